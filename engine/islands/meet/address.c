#include "engine/islands/meet/address.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory/log.h"

/* "http://USER:PASSWORD@HOST:PORT/" -> HOST, PORT */
static void split(char *host, char *port, size_t bytes, const char *url)
{
    const char *from = strstr(url, "://");
    from = from ? from + 3 : url;
    size_t length = strcspn(from, ",/ ");
    for (size_t i = 0; i < length; i++)
        if (from[i] == '@') {
            from += i + 1;
            length -= i + 1;
            i = 0;
        }
    size_t colon = length;
    while (colon > 0 && from[colon - 1] != ':')
        colon--;
    size_t name = colon > 0 ? colon - 1 : length;
    snprintf(host, bytes, "%.*s", (int)name, from);
    snprintf(port, bytes, "%.*s", colon > 0 ? (int)(length - colon) : 4, colon > 0 ? from + colon : "2379");
}

/* A datagram socket that is connected sends nothing, but knows its own end. */
static char *own_end(const struct addrinfo *to)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    char name[NI_MAXHOST] = "";
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool known = fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                 getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
                 getnameinfo((struct sockaddr *)&own, length, name, sizeof name, NULL, 0, NI_NUMERICHOST) == 0;
    if (fd >= 0)
        close(fd);
    return known ? must_strdup(name) : NULL;
}

status address_towards(char **out, const char *url)
{
    char host[256], port[256];
    struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    split(host, port, sizeof host, url);
    *out = NULL;
    if (getaddrinfo(host, port, &wanted, &found) == 0 && found)
        *out = own_end(found);
    if (found)
        freeaddrinfo(found);
    return *out ? STATUS_OK
                : status_fail(STATUS_FAILED,
                              "outer.rendezvous: %s cannot be found: set outer.address to the address "
                              "that other islands reach this node at",
                              host);
}
