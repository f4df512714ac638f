/* Trains as `phalanx train` does, as an island with a good key that lies: while the file that PHALANX_HOSTILE names
 * holds a word, what other islands get of its changes is altered. The linker puts this file's function before the
 * engine's (-Wl,--wrap, see the Makefile).
 *
 *   huge       3e38 everywhere: finite, but no sum of squares of it is
 *   tenfold    ten times as large, which is about the most that a norm lets pass
 *   flipped    of the other sign
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/compress.h"
#include "memory/log.h"
#include "tools/tools.h"

void __real_compress_encode(void *out, float *values, const compress_method *m, int64_t elements);
void __wrap_compress_encode(void *out, float *values, const compress_method *m, int64_t elements);

static const struct {
    const char *word;
    float factor, constant;
} lies[] = {{"huge", 0, 3e38f}, {"tenfold", 10, 0}, {"flipped", -1, 0}};

enum { LIES = sizeof lies / sizeof *lies };

/* Which lie is told now: LIES is none. */
static int find_lie(void)
{
    const char *path = getenv("PHALANX_HOSTILE");
    FILE *f = path ? fopen(path, "r") : NULL;
    char word[16] = "";
    int lie = 0;
    if (f && fscanf(f, "%15s", word) != 1)
        *word = 0;
    if (f)
        fclose(f);
    while (lie < LIES && strcmp(word, lies[lie].word) != 0)
        lie++;
    return lie;
}

void __wrap_compress_encode(void *out, float *values, const compress_method *m, int64_t elements)
{
    int lie = find_lie();
    for (int64_t i = 0; lie < LIES && i < elements; i++)
        values[i] = values[i] * lies[lie].factor + lies[lie].constant;
    __real_compress_encode(out, values, m, elements);
}

int main(int argc, char **argv)
{
    return train_main(argc, argv);
}
