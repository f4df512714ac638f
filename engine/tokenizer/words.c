#include "engine/tokenizer/words.h"

#include <stdlib.h>

#include "memory/log.h"

words *words_open(void)
{
    unsigned long bytes = sizeof(words_place) << WORDS_BITS;
    words *w = must_calloc(1, sizeof *w);
    w->places = aligned_alloc(64, bytes);
    MUST(w->places, "out of host memory: %lu bytes", bytes);
    memset(w->places, 0xFF, bytes);
    return w;
}

void words_close(words *w)
{
    if (!w)
        return;
    free(w->places);
    free(w);
}
