/* Breadth-first over time: the set of states reachable after t units, without those that cannot end in time.
 *
 * Per global chunk a state counts forwards, and the halves of backwards (whole) or the input and weight gradients
 * (split). The order within a chunk is ascending, so counts say everything; an odd number of halves is a backward under
 * way. */
#include "tests/parallel/schedule/optimum.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"

enum { CHUNKS = 8, COUNTERS = 3 };

typedef struct counts {
    int8_t n[CHUNKS][COUNTERS]; /* forward; backward halves or inputs; weights */
} counts;

typedef struct search {
    const schedule *s;
    bool split;
    int chunks; /* all stages */
    int bits[COUNTERS];
    int memory[16]; /* [stages] in halves of a chunk's activations */
    int length;
    uint64_t *next; /* hash set of the states of the next unit; 0 is empty, states are stored + 1 */
    unsigned long capacity, used;
} search;

static void unpack(counts *out, const search *x, uint64_t state)
{
    memset(out, 0, sizeof *out);
    for (int g = 0; g < x->chunks; g++)
        for (int k = 0; k < COUNTERS; k++) {
            out->n[g][k] = (int8_t)(state & ((1u << x->bits[k]) - 1));
            state >>= x->bits[k];
        }
}

static uint64_t pack(const counts *c, const search *x)
{
    uint64_t state = 0;
    for (int g = x->chunks - 1; g >= 0; g--)
        for (int k = COUNTERS - 1; k >= 0; k--)
            state = state << x->bits[k] | (uint64_t)c->n[g][k];
    return state;
}

static void insert(search *x, uint64_t state);

static void grow(search *x)
{
    AUTO_FREE uint64_t *old = x->next;
    unsigned long before = x->capacity;
    x->capacity = before ? before * 2 : 1024;
    x->next = must_calloc(x->capacity, sizeof *x->next);
    x->used = 0;
    for (unsigned long i = 0; i < before; i++)
        if (old[i])
            insert(x, old[i] - 1);
}

static void insert(search *x, uint64_t state)
{
    if (2 * (x->used + 1) > x->capacity)
        grow(x);
    unsigned long i = (unsigned long)((state * 0x9E3779B97F4A7C15u) >> 20) & (x->capacity - 1);
    while (x->next[i] && x->next[i] != state + 1)
        i = (i + 1) & (x->capacity - 1);
    if (!x->next[i])
        x->used++;
    x->next[i] = state + 1;
}

/* The least number of units until the end, by the work left on each stage and the way back from it. */
static int units_left(const search *x, const counts *c)
{
    int p = x->s->stages, m = x->s->microbatches, most = 0;
    for (int stage = 0; stage < p; stage++) {
        int work = 0;
        for (int g = stage; g < x->chunks; g += p)
            work += 3 * m - c->n[g][0] - c->n[g][1] - c->n[g][2];
        /* whole: after this stage's last backward the stages before it have one each. Split: weights may come last. */
        int tail = x->split || c->n[stage][1] == 2 * m ? 0 : 2 * stage;
        most = work + tail > most ? work + tail : most;
    }
    /* the last micro-batch's way through what is left of its chunks */
    int way = 0;
    for (int g = 0; g < x->chunks; g++) {
        way += c->n[g][0] < m;
        way += x->split ? (c->n[g][1] < m) : 2 * m - c->n[g][1] < 2 ? 2 * m - c->n[g][1] : 2;
    }
    way += x->split && c->n[0][2] < m;
    return way > most ? way : most;
}

/* May global chunk g take one unit of `kind`, `c` being what was finished before this unit? */
static bool allowed(const search *x, const counts *c, int g, int kind)
{
    int p = x->s->stages, m = x->s->microbatches, stage = g % p, step = x->split ? 1 : 2;
    const int8_t *n = c->n[g];
    if (kind == 2)
        return x->split && n[2] < n[1];
    if (kind == 1)
        return n[1] < m * step && (n[1] % step || (n[1] / step < n[0] && (g + 1 == x->chunks || //
                                                                          n[1] / step < c->n[g + 1][1] / step)));
    int held = 2; /* by the forward that would begin */
    for (int h = stage; h < x->chunks; h += p)
        held += 2 * (c->n[h][0] - c->n[h][1] / step) + (x->split ? c->n[h][1] - c->n[h][2] : 0);
    return n[0] < m && (g == 0 || n[0] < c->n[g - 1][0]) && held <= x->memory[stage];
}

/* Every choice of every stage from `stage` on. */
static void expand(search *x, const counts *before, counts *after, int stage, int units_then)
{
    int p = x->s->stages;
    if (stage == p) {
        if (units_left(x, after) <= units_then)
            insert(x, pack(after, x));
        return;
    }
    int only = -1; /* a whole backward under way goes on */
    for (int g = stage; g < x->chunks && !x->split; g += p)
        only = before->n[g][1] % 2 ? g : only;
    for (int g = stage; g < x->chunks; g += p)
        for (int kind = 0; kind < COUNTERS; kind++)
            if (only < 0 ? allowed(x, before, g, kind) : g == only && kind == 1) {
                after->n[g][kind]++;
                expand(x, before, after, stage + 1, units_then);
                after->n[g][kind]--;
            }
    if (only < 0)
        expand(x, before, after, stage + 1, units_then);
}

bool optimum_fits(const schedule *s)
{
    bool split = schedule_splits(s);
    return !s->folded && s->microbatches <= 7 && s->stages * s->chunks <= (split ? 6 : CHUNKS);
}

static void set_memory(search *x)
{
    for (int stage = 0; stage < x->s->stages; stage++) {
        int held = 0;
        for (int i = 0; i < x->s->counts[stage]; i++) {
            int kind = x->s->actions[stage][i].kind;
            held += kind == ACTION_FORWARD ? 2 : 0;
            x->memory[stage] = held > x->memory[stage] ? held : x->memory[stage];
            held -= kind == ACTION_BACKWARD ? 2 : kind == ACTION_FORWARD ? 0 : 1;
        }
    }
}

bool optimum_reachable(const schedule *s, int length)
{
    MUST(optimum_fits(s) && s->stages <= 16, "too large to search");
    search x = {.s = s, .split = schedule_splits(s), .chunks = s->stages * s->chunks, .length = length};
    memcpy(x.bits, x.split ? (int[]){3, 3, 3} : (int[]){3, 4, 0}, sizeof x.bits);
    set_memory(&x);
    int all = 3 * s->microbatches * x.chunks;
    bool found = false;
    uint64_t *now = must_calloc(1, sizeof *now);
    unsigned long states = 1;
    for (int t = 1; t <= length && states && !found; t++) {
        x.next = NULL;
        x.capacity = x.used = 0;
        for (unsigned long i = 0; i < states; i++) {
            counts before, after;
            unpack(&before, &x, now[i]);
            after = before;
            expand(&x, &before, &after, 0, length - t);
        }
        free(now);
        now = must_alloc((x.used + 1) * sizeof *now);
        states = 0;
        for (unsigned long i = 0; i < x.capacity; i++)
            if (x.next[i])
                now[states++] = x.next[i] - 1;
        free(x.next);
        for (unsigned long i = 0; i < states && !found; i++) {
            counts c;
            unpack(&c, &x, now[i]);
            int done = 0;
            for (int g = 0; g < x.chunks; g++)
                done += c.n[g][0] + c.n[g][1] + c.n[g][2];
            found = done == all;
        }
    }
    free(now);
    return found;
}
