#include "tests/jobs/etcd_gate.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"

static int connect_to(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    MUST(connect(fd, (struct sockaddr *)&at, sizeof at) == 0, "etcd does not answer");
    return fd;
}

/* One request, whole. Its bytes; 0: the connection has ended. */
static int read_request(int fd, char *out)
{
    int got = 0, whole = GATE_REQUEST;
    while (got < whole) {
        ssize_t now = recv(fd, out + got, (size_t)(GATE_REQUEST - 1 - got), 0);
        if (now <= 0)
            return 0;
        out[got += (int)now] = 0;
        const char *end = strstr(out, "\r\n\r\n"), *length = strcasestr(out, "content-length:");
        if (end && length)
            whole = (int)(end + 4 - out) + atoi(length + strlen("content-length:"));
    }
    return got;
}

static bool is_path(const char *request, const char *path)
{
    const char *at = strchr(request, ' ');
    return at && strncmp(at + 1, path, strlen(path)) == 0;
}

void gate_send_on(gate *g, const char *request, int bytes, int client)
{
    static const char closes[] = "Connection: close\r\n";
    AUTO_FREE char *answer = NULL;
    const char *rest = strstr(request, "\r\n") + 2;
    int fd = connect_to(g->behind), length = 0;
    ssize_t got = send(fd, request, (size_t)(rest - request), MSG_NOSIGNAL);
    got += send(fd, closes, strlen(closes), MSG_NOSIGNAL);
    got += send(fd, rest, (size_t)(bytes - (rest - request)), MSG_NOSIGNAL);
    MUST(got == bytes + (ssize_t)strlen(closes), "etcd does not listen");
    do {
        answer = must_realloc(answer, (unsigned long)length + 4097);
        got = recv(fd, answer + length, 4096, 0);
        length += got > 0 ? (int)got : 0;
    } while (got > 0);
    close(fd);
    if (client >= 0)
        (void)send(client, answer, (size_t)length, MSG_NOSIGNAL);
    if (client < 0 || !is_path(request, "/v3/kv/range"))
        return;
    pthread_mutex_lock(&g->lock);
    free(g->read);
    answer[length] = 0;
    g->read = TAKE(answer);
    pthread_mutex_unlock(&g->lock);
}

/* What the gate itself answers; NULL: nothing. The caller frees it. */
static char *answer_falsely(const gate *g, gate_act act, const char *request)
{
    bool reads = is_path(request, "/v3/kv/range") && g->read;
    bool writes = is_path(request, "/v3/kv/put") || is_path(request, "/v3/kv/txn") || is_path(request, "/v3/kv/delete");
    if (act == GATE_REPEATS && reads)
        return must_strdup(g->read);
    const char *header = reads ? strstr(g->read, "{\"header\"") : NULL;
    AUTO_FREE char *text = act == GATE_LOSES_WRITES && writes ? must_strdup("{\"succeeded\": true}")
                           : act == GATE_FORGETS && header
                               ? must_format("%.*s}", (int)(strchr(header, '}') + 1 - header), header)
                               : NULL;
    return text ? must_format("HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", strlen(text),
                              text)
                : NULL;
}

static gate_act act_on(gate *g, const char *request, int bytes, int client)
{
    pthread_mutex_lock(&g->lock);
    gate_act act = g->act;
    if (act == GATE_LOSES_ANSWER || act == GATE_KEEPS_BACK) {
        if (!is_path(request, g->path)) {
            act = GATE_PASSES;
        } else {
            g->act = GATE_PASSES; /* once */
            memcpy(g->kept, request, (size_t)bytes + 1);
            g->kept_bytes = bytes;
        }
    }
    g->acted += act != GATE_PASSES;
    AUTO_FREE char *lie = answer_falsely(g, act, request);
    pthread_mutex_unlock(&g->lock);
    if (lie)
        (void)send(client, lie, strlen(lie), MSG_NOSIGNAL);
    bool passes = !lie && act != GATE_KEEPS_BACK && act != GATE_LOSES_ANSWER && act != GATE_IS_SHUT;
    return lie ? GATE_KEEPS_BACK : passes ? GATE_PASSES : act;
}

/* One connection, one request, after another: clients ask so. */
static void *keep_gate(void *argument)
{
    gate *g = argument;
    AUTO_FREE char *request = must_alloc(GATE_REQUEST);
    for (int fd; (fd = accept(g->listener, NULL, NULL)) >= 0; close(fd)) {
        int bytes = read_request(fd, request);
        gate_act act = bytes > 0 ? act_on(g, request, bytes, fd) : GATE_IS_SHUT;
        if (act == GATE_PASSES || act == GATE_LOSES_ANSWER)
            gate_send_on(g, request, bytes, act == GATE_PASSES ? fd : -1);
    }
    return NULL;
}

void gate_begin(gate *g, int behind)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    *g = (gate){.listener = socket(AF_INET, SOCK_STREAM, 0), .behind = behind};
    pthread_mutex_init(&g->lock, NULL);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    MUST(bind(g->listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(g->listener, 16) == 0 &&
             getsockname(g->listener, (struct sockaddr *)&at, &length) == 0 &&
             pthread_create(&g->thread, NULL, keep_gate, g) == 0,
         "the gate has no port");
    g->port = ntohs(at.sin_port);
}

void gate_end(gate *g)
{
    shutdown(g->listener, SHUT_RDWR);
    pthread_join(g->thread, NULL);
    close(g->listener);
    pthread_mutex_destroy(&g->lock);
    free(g->read);
}

void gate_set(gate *g, gate_act act, const char *path)
{
    pthread_mutex_lock(&g->lock);
    g->act = act;
    g->path = path;
    g->acted = 0;
    pthread_mutex_unlock(&g->lock);
}

int gate_acted(gate *g)
{
    pthread_mutex_lock(&g->lock);
    int acted = g->acted;
    pthread_mutex_unlock(&g->lock);
    return acted;
}
