#include "engine/tokenizer/trie.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

typedef struct builder {
    trie *trie;
    const trie_string *strings;
    uint32_t first_free; /* all places below are taken or have been tried in vain too often */
} builder;

static int compare(const void *left, const void *right)
{
    const trie_string *a = left, *b = right;
    int64_t shared = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->bytes, b->bytes, (size_t)shared);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* Nodes come in blocks of 256, so that any base of an existing place has all its children within. */
static void grow(trie *t, uint32_t size)
{
    if (size <= t->size)
        return;
    uint32_t larger = t->size + t->size / 2 > size ? t->size + t->size / 2 : size;
    larger = (larger + 255) & ~255U;
    t->nodes = must_realloc(t->nodes, (unsigned long)larger * sizeof *t->nodes);
    for (uint32_t i = t->size; i < larger; i++)
        t->nodes[i] = (trie_node){0, 0, -1};
    t->size = larger;
}

/* A base under which the places of all the bytes are free. Place 0 is the root's and is never given away. */
static uint32_t find_base(builder *b, const uint8_t *bytes, int count)
{
    trie *t = b->trie;
    uint32_t tries = 0;
    for (uint32_t place = b->first_free;; place++) {
        grow(t, place + 1);
        if (t->nodes[place].parent || place == 0)
            continue;
        uint32_t base = place ^ bytes[0];
        int i = 0;
        while (i < count && (base ^ bytes[i]) != 0 && !t->nodes[base ^ bytes[i]].parent)
            i++;
        if (i == count)
            return base;
        if (++tries == 256) { /* crowded up to here: look further on from now on */
            b->first_free = place;
            tries = 0;
        }
    }
}

/* Make the children of a node for strings[low..high), which agree in their first `depth` bytes. */
static void build(builder *b, uint32_t node, int64_t low, int64_t high, int64_t depth)
{
    if (b->strings[low].length == depth)
        b->trie->nodes[node].value = b->strings[low++].value;
    if (low == high)
        return;
    uint8_t bytes[256];
    int64_t starts[257];
    int count = 0;
    for (int64_t i = low; i < high; i++)
        if (count == 0 || b->strings[i].bytes[depth] != bytes[count - 1]) {
            bytes[count] = b->strings[i].bytes[depth];
            starts[count++] = i;
        }
    starts[count] = high;
    uint32_t base = find_base(b, bytes, count);
    b->trie->nodes[node].base = base;
    for (int i = 0; i < count; i++)
        b->trie->nodes[base ^ bytes[i]].parent = node + 1;
    for (int i = 0; i < count; i++)
        build(b, base ^ bytes[i], starts[i], starts[i + 1], depth + 1);
}

trie *trie_open(trie_string *strings, int64_t count)
{
    trie *t = must_calloc(1, sizeof *t);
    builder b = {.trie = t, .strings = strings, .first_free = 1};
    grow(t, 256);
    if (count)
        qsort(strings, (size_t)count, sizeof *strings, compare);
    for (int64_t i = 1; i < count; i++)
        if (compare(&strings[i - 1], &strings[i]) == 0) {
            trie_close(t);
            return NULL;
        }
    if (count)
        build(&b, 0, 0, count, 0);
    return t;
}

void trie_close(trie *t)
{
    if (!t)
        return;
    free(t->nodes);
    free(t);
}
