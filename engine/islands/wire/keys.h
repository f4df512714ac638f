/* An island's identity: a pair of CURVE keys, and the public keys of those it talks to, in a folder of text files.
 *
 *     FOLDER/island.secret    readable by its owner only     FOLDER/island.public
 *     FOLDER/peers/NAME.public  the other islands' public keys; an island trusts its own, too
 *
 * Keys are 40 characters of Z85, as ZeroMQ writes them. An open `keys` is the caller's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { KEYS_TEXT = 41 };

typedef struct keys {
    char secret[KEYS_TEXT], mine[KEYS_TEXT];
    int count; /* trusted, the own first */
    char (*trusted)[KEYS_TEXT];
} keys;

status keys_open(keys *out, const char *folder);
void keys_close(keys *k);
/* Which of the trusted ones it is; -1: none. */
int keys_find(const keys *k, const char *text);
