/* "Did you mean ...?": among the words that exist, the one nearest to the word that was typed. */
#pragma once

/* Start with {.wanted = word}; offer every candidate; the strings must outlive it. */
typedef struct nearest {
    const char *wanted;
    const char *best;
    int distance;
} nearest;

void nearest_offer(nearest *n, const char *candidate);

/* The best candidate, or NULL if none is near enough. */
const char *nearest_word(const nearest *n);

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b. Words over 63 bytes are cut. */
int nearest_distance(const char *a, const char *b);
