#include "engine/tokenizer/charmap.h"

#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"

static uint32_t word_at(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Unit `index` of the trie. */
static uint32_t unit_at(const uint8_t *map, uint32_t index)
{
    return word_at(map + 4 + 4 * (size_t)index);
}

static uint32_t base_of(uint32_t node, uint32_t unit)
{
    return node ^ (unit >> 10 << (unit >> 6 & 8));
}

/* The child of a node by a byte (not 0) is at its base with the byte's bits turned, if the label there is that byte. */
static bool is_child(uint32_t unit, uint32_t label)
{
    return (unit & 0x800000FF) == label;
}

bool charmap_is_sound(const uint8_t *map, int64_t length)
{
    if (length == 0)
        return true;
    uint64_t trie_bytes = length >= 4 ? word_at(map) : 0;
    if (trie_bytes == 0 || trie_bytes % 4 || trie_bytes >= (uint64_t)length - 4 || map[length - 1] != 0)
        return false;
    uint32_t count = (uint32_t)(trie_bytes / 4), waiting = 0;
    uint64_t strings = (uint64_t)length - 4 - trie_bytes;
    AUTO_FREE uint8_t *seen = must_calloc(count, 1);
    AUTO_FREE uint32_t *stack = must_alloc(count * sizeof *stack);
    bool sound = true;
    stack[waiting++] = 0;
    seen[0] = 1;
    while (waiting && sound) {
        uint32_t node = stack[--waiting], unit = unit_at(map, node), base = base_of(node, unit);
        if ((base | 0xFF) >= count) {
            sound = false;
            break;
        }
        if (unit >> 8 & 1)
            sound = (unit_at(map, base) & 0x7FFFFFFF) < strings;
        for (uint32_t label = 1; label < 256 && sound; label++) {
            uint32_t child = base ^ label;
            if (is_child(unit_at(map, child), label) && !seen[child]) {
                seen[child] = 1;
                stack[waiting++] = child;
            }
        }
    }
    return sound;
}

int64_t charmap_match(const uint8_t *map, const char **replacement, const char *text, int64_t length)
{
    const char *strings = (const char *)map + 4 + word_at(map);
    uint32_t base = base_of(0, unit_at(map, 0));
    int64_t longest = 0;
    for (int64_t i = 0; i < length && text[i]; i++) {
        uint32_t label = (uint8_t)text[i], node = base ^ label, unit = unit_at(map, node);
        if (!is_child(unit, label))
            break;
        base = base_of(node, unit);
        if (unit >> 8 & 1) {
            *replacement = strings + (unit_at(map, base) & 0x7FFFFFFF);
            longest = i + 1;
        }
    }
    return longest;
}
