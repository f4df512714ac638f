/* A set of byte strings with a number each, for finding all that stand at a place of a text: a double array (Aoe 1989).
 *
 * The child of node n by byte b is base[n] ^ b, if that place says that n is its parent. Immutable once made.
 */
#pragma once

#include <stdint.h>

typedef struct trie_node {
    uint32_t base, parent; /* parent + 1; 0: free */
    int32_t value;         /* of the string that ends here; -1: none does */
} trie_node;

typedef struct trie {
    trie_node *nodes; /* [size], the root is 0 */
    uint32_t size;
} trie;

typedef struct trie_string {
    const uint8_t *bytes;
    int64_t length; /* at least 1 */
    int32_t value;  /* at least 0 */
} trie_string;

/* Sorts the strings, which need not outlive the call. NULL if two are equal. Its stack grows with the longest. */
trie *trie_open(trie_string *strings, int64_t count);
void trie_close(trie *t);

/* The child of a node, or 0. */
static inline uint32_t trie_child(const trie *t, uint32_t node, uint8_t byte)
{
    uint32_t child = t->nodes[node].base ^ byte;
    return t->nodes[child].parent == node + 1 ? child : 0;
}
