/* The character map of a SentencePiece model's normalizer: strings that are replaced by others before anything else.
 *
 * In the file: the size of a double-array trie (Darts) in bytes, the trie, then the replacements, each with a 0 at its
 * end. A unit of the trie: bit 31 marks a value (then bits 0-30 are it), bits 0-7 the label, bit 8 "has a value", bits
 * 10-30 the offset of the children, times 256 if bit 9 is set.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Whether every place that can be reached from the root is within the map: the library follows it without looking. */
bool charmap_is_sound(const uint8_t *map, int64_t length);

/* The longest string of a sound map with which the text begins: its bytes, or 0 when there is none. *replacement is
 * what takes its place, ended by a 0. */
int64_t charmap_match(const uint8_t *map, const char **replacement, const char *text, int64_t length);
