#include "engine/islands/wire/keys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "engine/islands/islands.h"
#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"

static status write_key(const char *folder, const char *name, const char *key, mode_t mode)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name), *line = must_format("%s\n", key);
    status s = STATUS_OK;
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, mode);
    if (file < 0 || write(file, line, strlen(line)) != (ssize_t)strlen(line) || fsync(file) != 0)
        s = status_fail(STATUS_FAILED, "cannot write %s: %s", path, strerror(errno));
    if (file >= 0)
        close(file);
    return s;
}

status islands_make_keys(const char *folder)
{
    char public[KEYS_TEXT], secret[KEYS_TEXT];
    AUTO_FREE char *peers = must_format("%s/peers", folder);
    TRY(atomic_make_folders(peers));
    if (zmq_curve_keypair(public, secret) != 0)
        return status_fail(STATUS_FAILED, "ZeroMQ was built without CURVE: no keys can be made");
    TRY(write_key(folder, "island.secret", secret, 0600));
    return write_key(folder, "island.public", public, 0644);
}

/* Reads a key's 40 characters; the rest of the file must be blank. */
static status read_key(char out[KEYS_TEXT], const char *path)
{
    char text[64] = {0};
    uint8_t bytes[32];
    AUTO_CLOSE file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return status_fail(STATUS_FAILED, "cannot read %s: %s (phalanx keys FOLDER makes keys)", path, strerror(errno));
    ssize_t length = read(file, text, sizeof text - 1);
    while (length > 0 && strchr(" \r\n\t", text[length - 1]))
        text[--length] = 0;
    if (length != KEYS_TEXT - 1 || !zmq_z85_decode(bytes, text))
        return status_fail(STATUS_FAILED, "%s holds no key: 40 characters of Z85 are one", path);
    memcpy(out, text, KEYS_TEXT);
    return STATUS_OK;
}

/* Checks write access, since a writer decides which islands this one trusts. */
static status check_writers(const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0)
        return STATUS_OK; /* its reader reports the failure */
    if ((s.st_mode & S_IWOTH) != 0)
        return status_fail(STATUS_FAILED,
                           "%s can be written by everybody on this machine, who could add a key that this island "
                           "trusts: chmod go-w it",
                           path);
    if ((s.st_mode & S_IWGRP) != 0 || (s.st_uid != geteuid() && s.st_uid != 0))
        log_warn("islands: %s can be written by others than you: whoever adds a key there is trusted", path);
    return STATUS_OK;
}

static status read_own(keys *k, const char *folder)
{
    AUTO_FREE char *path = must_format("%s/island.secret", folder);
    struct stat s;
    TRY(read_key(k->secret, path));
    if (stat(path, &s) == 0 && (s.st_mode & 077) != 0)
        return status_fail(STATUS_FAILED, "%s can be read by others than its owner: chmod 600 it", path);
    return zmq_curve_public(k->mine, k->secret) == 0 ? STATUS_OK
                                                     : status_fail(STATUS_FAILED, "%s is no secret key", path);
}

static status read_peers(keys *k, const char *folder)
{
    AUTO_FREE char *peers = must_format("%s/peers", folder);
    AUTO(DIR) *d = opendir(peers);
    TRY(check_writers(folder));
    TRY(check_writers(peers));
    for (struct dirent *entry; d && (entry = readdir(d));) {
        size_t length = strlen(entry->d_name);
        if (length < 8 || strcmp(entry->d_name + length - 7, ".public") != 0)
            continue;
        AUTO_FREE char *path = must_format("%s/%s", peers, entry->d_name);
        TRY(check_writers(path));
        TRY(read_key(APPEND(k->trusted, k->count), path));
    }
    return STATUS_OK;
}

status keys_open(keys *out, const char *folder)
{
    RELEASED_BY(keys_close) keys k = {.count = 1, .trusted = must_calloc(1, sizeof *k.trusted)};
    TRY(read_own(&k, folder));
    memcpy(k.trusted[0], k.mine, KEYS_TEXT);
    TRY(read_peers(&k, folder));
    *out = k;
    k.trusted = NULL;
    return STATUS_OK;
}

void keys_close(keys *k)
{
    free(k->trusted);
    explicit_bzero(k, sizeof *k);
}

int keys_find(const keys *k, const char *text)
{
    for (int i = 0; i < k->count; i++)
        if (!strcmp(k->trusted[i], text))
            return i;
    return -1;
}
