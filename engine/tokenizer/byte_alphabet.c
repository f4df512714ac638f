#include "engine/tokenizer/byte_alphabet.h"

#include <stdbool.h>

static bool byte_prints(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

void byte_alphabet_fill(int16_t byte_of[BYTE_ALPHABET_CODES])
{
    for (int i = 0; i < BYTE_ALPHABET_CODES; i++)
        byte_of[i] = -1;
    int shifted = 256;
    for (int byte = 0; byte < 256; byte++)
        byte_of[byte_prints(byte) ? byte : shifted++] = (int16_t)byte;
}
