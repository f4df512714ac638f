#include "engine/config/nearest.h"

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

void nearest_offer(nearest *n, const char *candidate)
{
    int distance = nearest_distance(n->wanted, candidate);
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
