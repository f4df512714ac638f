/* How byte-level BPE writes bytes as printable characters: those that print in Latin-1 as themselves, the other 68, in
 * order, as U+0100 and on. */
#pragma once

#include <stdint.h>

enum { BYTE_ALPHABET_CODES = 512 };

/* The byte of each character; -1: it is none of the alphabet. */
void byte_alphabet_fill(int16_t byte_of[BYTE_ALPHABET_CODES]);
