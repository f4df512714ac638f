/* "Did you mean ...?": finds the existing word that a typed one means: its synonym (aliases.def), else a word that is
 * its prefix or that it is a prefix of, else the nearest in spelling. */
#pragma once

/* Initialise with {.wanted = word}, then offer every candidate; the strings must outlive the struct. */
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
