#include "tests/cover.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_WORDS = 256, WORDS_OF_A_ROW = 24 };

typedef struct vocabulary {
    int count;
    char *words[MOST_WORDS];
} vocabulary;

typedef struct covered {
    bool word[MOST_WORDS], pair[MOST_WORDS][MOST_WORDS];
} covered;

typedef struct fact_list {
    int count, of[WORDS_OF_A_ROW];
} fact_list;

static int find_word(vocabulary *v, const char *word)
{
    for (int i = 0; i < v->count; i++)
        if (!strcmp(v->words[i], word))
            return i;
    MUST(v->count < MOST_WORDS, "more than %d words describe a table", MOST_WORDS);
    v->words[v->count] = must_strdup(word);
    return v->count++;
}

static fact_list read_facts(vocabulary *v, const char *text)
{
    fact_list list = {0};
    char *copy = must_strdup(text), *rest = copy;
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        MUST(list.count < WORDS_OF_A_ROW, "a row has more than %d facts: %s", WORDS_OF_A_ROW, text);
        list.of[list.count++] = find_word(v, word);
    }
    free(copy);
    return list;
}

/* How much a row would add; words count before any number of pairs. */
static int gain_of(const fact_list *row, const covered *c)
{
    int words = 0, pairs = 0;
    for (int i = 0; i < row->count; i++) {
        words += !c->word[row->of[i]];
        for (int k = 0; k < i; k++)
            pairs += !c->pair[row->of[i]][row->of[k]];
    }
    return words * WORDS_OF_A_ROW * WORDS_OF_A_ROW + pairs;
}

static void add_row(covered *c, const fact_list *row)
{
    for (int i = 0; i < row->count; i++) {
        c->word[row->of[i]] = true;
        for (int k = 0; k < row->count; k++)
            c->pair[row->of[i]][row->of[k]] = true;
    }
}

static int best_row(const fact_list *list, const bool *chosen, int rows, const covered *c)
{
    int best = -1, most = -1;
    for (int i = 0; i < rows; i++) {
        int gain = chosen[i] ? -1 : gain_of(&list[i], c);
        if (gain > most) {
            most = gain;
            best = i;
        }
    }
    return best;
}

void cover_choose(bool *chosen, const char *const *facts, int rows, int share)
{
    AUTO_FREE vocabulary *v = must_calloc(1, sizeof *v);
    AUTO_FREE covered *c = must_calloc(1, sizeof *c);
    fact_list *list = must_calloc((unsigned long)rows + 1, sizeof *list);
    for (int i = 0; i < rows; i++) {
        chosen[i] = false;
        list[i] = read_facts(v, facts[i]);
    }
    for (int taken = 0, wanted = (rows + share - 1) / share; taken < rows; taken++) {
        int best = best_row(list, chosen, rows, c);
        if (taken >= wanted && gain_of(&list[best], c) < WORDS_OF_A_ROW * WORDS_OF_A_ROW)
            break;
        chosen[best] = true;
        add_row(c, &list[best]);
    }
    for (int i = 0; i < v->count; i++)
        free(v->words[i]);
    free(list);
}

static bool ring_is(const char *name)
{
    const char *ring = getenv("TEST_RING");
    ring = ring && *ring ? ring : "check";
    MUST(!strcmp(ring, "check") || !strcmp(ring, "rest") || !strcmp(ring, "all"), "TEST_RING is %s", ring);
    return !strcmp(ring, name);
}

bool cover_has_rest(void)
{
    return !ring_is("check");
}

bool cover_has_check(void)
{
    return !ring_is("rest");
}

void cover_take(bool *takes, const char *const *facts, int rows, int share)
{
    cover_choose(takes, facts, rows, share);
    for (int i = 0; i < rows; i++)
        takes[i] = takes[i] ? cover_has_check() : cover_has_rest();
}

/* The first bits of the commit's hash; 0 outside a repository. */
static uint64_t seed_of_commit(void)
{
    char text[16] = "";
    const char *given = getenv("COVER_SEED");
    FILE *git = given ? NULL : popen("git rev-parse --short=12 HEAD 2>/dev/null", "r");
    if (git && !fgets(text, sizeof text, git))
        text[0] = 0;
    if (git)
        pclose(git);
    return strtoull(given ? given : text, NULL, 16);
}

void cover_take_drawn(bool *takes, int rows, int share)
{
    const uint64_t seed = seed_of_commit();
    uint64_t random = seed;
    for (int i = 0; i < rows; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const bool drawn = (random >> 33) % (unsigned)share == 0;
        takes[i] = drawn ? cover_has_check() : cover_has_rest();
    }
    printf("COVER_SEED=%llx draws one row in %d\n", (unsigned long long)seed, share);
}
