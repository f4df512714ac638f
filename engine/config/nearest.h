/* "Did you mean ...?": among the words that exist, the one of the same meaning (aliases.def), else one that begins or
 * is begun by the word that was typed, else the one nearest to it in spelling. */
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

/* Returns our word for another trainer's, which may have leading dashes, a section, and - for _; NULL: not known. */
const char *nearest_meaning(const char *word);

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b. Words over 63 bytes are cut. */
int nearest_distance(const char *a, const char *b);
