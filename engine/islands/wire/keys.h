/* An island's identity: a pair of CURVE keys, and the public keys of its peers, in a folder of text files.
 *
 *     FOLDER/island.secret    readable by its owner only     FOLDER/island.public
 *     FOLDER/peers/NAME.public  the other islands' public keys; an island trusts its own, too
 *
 * Keys are 40 characters of Z85, as ZeroMQ writes them. The caller owns an open `keys`.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { KEYS_TEXT = 41 };

typedef struct keys {
    char secret[KEYS_TEXT], mine[KEYS_TEXT];
    int count; /* trusted keys, the own first */
    char (*trusted)[KEYS_TEXT];
} keys;

status keys_open(keys *out, const char *folder);
void keys_close(keys *k);
/* Returns the index of a trusted key; -1: none. */
int keys_find(const keys *k, const char *text);
