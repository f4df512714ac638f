#include "tools/supervise/hosts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "memory/log.h"

/* "name slots=N ...", "name:N", "name"; a line may be a comment. */
static status parse(hosts *h, char *line, const char *path, int number)
{
    char *comment = strchr(line, '#'), *rest = line;
    if (comment)
        *comment = 0;
    char *name = strtok_r(rest, " \t\r\n", &rest);
    if (!name)
        return STATUS_OK;
    int slots = 1;
    char *colon = strchr(name, ':');
    if (colon) {
        *colon = 0;
        slots = atoi(colon + 1);
    }
    for (char *word; (word = strtok_r(rest, " \t\r\n", &rest));)
        if (strncmp(word, "slots=", 6) == 0)
            slots = atoi(word + 6);
    if (slots < 1 || !*name)
        return status_fail(STATUS_USAGE, "%s:%d: expected NAME slots=N, N at least 1", path, number);
    if (hosts_find(h, name))
        return status_fail(STATUS_USAGE, "%s:%d: %s is named twice", path, number, name);
    h->entry = must_realloc(h->entry, (unsigned long)(h->count + 1) * sizeof *h->entry);
    h->entry[h->count++] = (hosts_entry){.name = must_strdup(name), .slots = slots};
    return STATUS_OK;
}

status hosts_read(hosts *out, const char *path)
{
    *out = (hosts){0};
    FILE *f = fopen(path, "r");
    if (!f)
        return status_fail(STATUS_USAGE, "cannot read %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t capacity = 0;
    status s = STATUS_OK;
    for (int number = 1; s == STATUS_OK && getline(&line, &capacity, f) > 0; number++)
        s = parse(out, line, path, number);
    if (s == STATUS_OK && !feof(f))
        s = status_fail(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno));
    free(line);
    fclose(f);
    if (s == STATUS_OK && out->count == 0)
        s = status_fail(STATUS_USAGE, "%s names no host", path);
    if (s != STATUS_OK)
        hosts_free(out);
    return s;
}

void hosts_free(hosts *h)
{
    for (int i = 0; i < h->count; i++)
        free(h->entry[i].name);
    free(h->entry);
    *h = (hosts){0};
}

int hosts_slots(const hosts *h)
{
    int slots = 0;
    for (int i = 0; i < h->count; i++)
        slots += h->entry[i].out ? 0 : h->entry[i].slots;
    return slots;
}

hosts_entry *hosts_find(const hosts *h, const char *name)
{
    size_t length = strcspn(name, ".");
    for (int i = 0; i < h->count; i++) {
        const char *other = h->entry[i].name;
        bool domains = name[length] && other[strcspn(other, ".")];
        if (domains ? strcmp(name, other) == 0 : length == strcspn(other, ".") && strncmp(name, other, length) == 0)
            return &h->entry[i];
    }
    return NULL;
}

status hosts_write(const hosts *h, const char *path, int ranks)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    for (int i = 0; i < h->count && ranks > 0; i++) {
        const hosts_entry *e = &h->entry[i];
        if (e->out)
            continue;
        fprintf(out, "%s slots=%d\n", e->name, e->slots < ranks ? e->slots : ranks);
        ranks -= e->slots;
    }
    fclose(out);
    status s = atomic_replace(path, text, (int64_t)bytes);
    free(text);
    return s;
}
