#include "tools/supervise/hosts.h"

#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"

/* These limits exceed the slots of any machine and any job. */
enum { MOST_SLOTS = 1 << 16, MOST_RANKS = 1 << 20 };

/* Rewrites "slots = 4" as "slots=4". */
static void join_around_equals(char *line)
{
    char *to = line;
    for (char *from = line; *from; from++) {
        if (*from == '=')
            while (to > line && isblank((unsigned char)to[-1]))
                to--;
        *to++ = *from;
        for (bool behind = *from == '='; behind && isblank((unsigned char)from[1]);)
            from++;
    }
    *to = 0;
}

static bool read_slots(int *slots, const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    *slots = (int)value;
    return end != text && !*end && !errno && value >= 1 && value <= MOST_SLOTS;
}

/* Splits "[ADDRESS]" or "[ADDRESS]:N" of IPv6. Cuts the address out; *colon points at the one before N, or is NULL. */
static bool split_brackets(char **name, char **colon)
{
    char *end = strchr(*name, ']'), *first = strchr(*name, ':');
    size_t behind = end && first && end > first ? (size_t)(end - first - 1) : 0; /* characters from colon to ']' */
    if (behind == 0 || !memchr(first + 1, ':', behind) || (*name)[1] == '[' || (end[1] && end[1] != ':'))
        return false;
    *colon = end[1] ? end + 1 : NULL;
    *end = 0;
    (*name)++;
    return true;
}

/* Splits "NAME:N" or "[ADDRESS]:N"; a name with several colons is an IPv6 address. Cuts the name off; false if N is not
 * a number. */
static bool split_name(char **name, int *slots)
{
    char *colon = strchr(*name, ':');
    if (**name == '[') {
        if (!split_brackets(name, &colon))
            return false;
    } else if (colon && strchr(colon + 1, ':')) {
        colon = NULL;
    }
    if (!colon)
        return true;
    *colon = 0;
    return read_slots(slots, colon + 1);
}

/* Parses "name slots=N ...", "name:N" or "name"; a line may be a comment. */
static status parse(hosts *h, char *line, const char *path, int number)
{
    char *comment = strchr(line, '#'), *rest = line;
    if (comment)
        *comment = 0;
    join_around_equals(line);
    char *name = strtok_r(rest, " \t\r\n", &rest);
    if (!name)
        return STATUS_OK;
    int slots = 1;
    bool good = split_name(&name, &slots);
    for (char *word; (word = strtok_r(rest, " \t\r\n", &rest));)
        if (strncmp(word, "slots=", 6) == 0)
            good = good && read_slots(&slots, word + 6);
    if (!good || !*name || strchr(name, '='))
        return status_fail(STATUS_USAGE, "%s:%d: expected NAME slots=N, N from 1 to %d", path, number, MOST_SLOTS);
    if (hosts_slots(h) + slots > MOST_RANKS)
        return status_fail(STATUS_USAGE, "%s:%d: more than %d slots in all", path, number, MOST_RANKS);
    if (hosts_find(h, name))
        return status_fail(STATUS_USAGE, "%s:%d: %s is named twice", path, number, name);
    APPEND(h->entry, h->count) = (hosts_entry){.name = must_strdup(name), .slots = slots};
    return STATUS_OK;
}

status hosts_read(hosts *out, const char *path)
{
    *out = (hosts){0};
    AUTO(FILE) *f = fopen(path, "r");
    if (!f)
        return status_fail(STATUS_USAGE, "cannot read %s: %s", path, strerror(errno));
    AUTO_FREE char *line = NULL;
    RELEASED_BY(hosts_free) hosts found = {0};
    size_t capacity = 0;
    for (int number = 1; getline(&line, &capacity, f) > 0; number++)
        TRY(parse(&found, line, path, number));
    if (!feof(f))
        return status_fail(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno));
    if (found.count == 0)
        return status_fail(STATUS_USAGE, "%s names no host", path);
    *out = found;
    found = (hosts){0};
    return STATUS_OK;
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

/* ---- by address ---- */

typedef struct addresses {
    int count;
    unsigned char (*item)[1 + 16]; /* the family, then the address */
} addresses;

static void add_address(addresses *a, const struct sockaddr *from)
{
    unsigned char one[17] = {0};
    if (!from || (from->sa_family != AF_INET && from->sa_family != AF_INET6))
        return;
    one[0] = (unsigned char)from->sa_family;
    if (from->sa_family == AF_INET)
        memcpy(one + 1, &((const struct sockaddr_in *)(const void *)from)->sin_addr, sizeof(struct in_addr));
    else
        memcpy(one + 1, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, sizeof(struct in6_addr));
    memcpy(APPEND(a->item, a->count), one, sizeof one);
}

static addresses find_addresses(const char *name)
{
    addresses a = {0};
    char own[256] = "";
    struct addrinfo *all = NULL;
    struct ifaddrs *its = NULL;
    gethostname(own, sizeof own - 1);
    if (strcmp(own, name) == 0 && getifaddrs(&its) == 0) { /* this machine knows all of its addresses */
        for (struct ifaddrs *i = its; i; i = i->ifa_next)
            add_address(&a, i->ifa_addr);
        freeifaddrs(its);
    }
    if (getaddrinfo(name, NULL, &(struct addrinfo){.ai_socktype = SOCK_STREAM}, &all) != 0)
        return a;
    for (struct addrinfo *i = all; i; i = i->ai_next)
        add_address(&a, i->ai_addr);
    freeaddrinfo(all);
    return a;
}

static bool share_address(const addresses *a, const addresses *b)
{
    for (int i = 0; i < a->count; i++)
        for (int k = 0; k < b->count; k++)
            if (memcmp(a->item[i], b->item[k], sizeof a->item[i]) == 0)
                return true;
    return false;
}

hosts_entry *hosts_find_address(const hosts *h, const char *name)
{
    addresses wanted = find_addresses(name);
    hosts_entry *found = NULL;
    for (int i = 0; wanted.count > 0 && i < h->count && !found; i++) {
        addresses one = find_addresses(h->entry[i].name);
        if (share_address(&one, &wanted))
            found = &h->entry[i];
        free(one.item);
    }
    free(wanted.item);
    return found;
}

status hosts_write(const hosts *h, const char *path, int ranks)
{
    AUTO_FREE char *text = NULL;
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
    return atomic_replace(path, text, (int64_t)bytes);
}
