#include "engine/config/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { LONGEST = 63 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

int nearest_distance(const char *a, const char *b)
{
    int n = (int)strnlen(a, LONGEST), m = (int)strnlen(b, LONGEST);
    int d[LONGEST + 1][LONGEST + 1]; /* d[i][j]: from the first i bytes of a to the first j of b */
    for (int i = 0; i <= n; i++)
        d[i][0] = i;
    for (int j = 0; j <= m; j++)
        d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int cost = a[i - 1] != b[j - 1];
            d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + cost);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[n][m];
}

const char *nearest_meaning(const char *word)
{
    static const struct {
        const char *theirs, *ours;
    } aliases[] = {
#define ALIAS(theirs, ours) {theirs, ours},
#include "engine/config/aliases.def"
#undef ALIAS
    };
    const char *dot = strrchr(word, '.');
    char plain[LONGEST + 1] = "";
    strncpy(plain, dot ? dot + 1 : word + strspn(word, "-"), LONGEST);
    for (char *c = plain; *c; c++)
        *c = (char)(*c == '-' ? '_' : tolower((unsigned char)*c));
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(plain, aliases[i].theirs) == 0)
            return aliases[i].ours;
    return NULL;
}

/* True if one of the words begins with the other, and goes on within the same part of a key. */
static bool is_begun(const char *a, const char *b)
{
    enum { FEWEST = 3 };
    size_t n = strlen(a), m = strlen(b), both = n < m ? n : m;
    return both >= FEWEST && strncmp(a, b, both) == 0 && !strchr((n < m ? b : a) + both, '.');
}

/* Less than 0: no number of edits is as near. */
static int distance_of(const char *wanted, const char *candidate)
{
    const char *meant = nearest_meaning(wanted);
    if (meant && strcmp(meant, candidate) == 0)
        return -2 * LONGEST;
    int edits = nearest_distance(wanted, candidate);
    return is_begun(wanted, candidate) ? edits - LONGEST : edits;
}

void nearest_offer(nearest *n, const char *candidate)
{
    int distance = distance_of(n->wanted, candidate);
    if (!n->best || distance < n->distance) {
        n->best = candidate;
        n->distance = distance;
    }
}

const char *nearest_word(const nearest *n)
{
    if (!n->best)
        return NULL;
    int length = (int)strnlen(n->wanted, LONGEST);
    int tolerated = length < 4 ? 1 : length < 9 ? 2 : length / 3;
    return n->distance <= tolerated ? n->best : NULL;
}
