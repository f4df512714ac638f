/* Outer steps on this rank's units: encoding changes, merging them into the reference, giving it to the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/outer_parts.h"
#include "memory/log.h"

static const outer_unit *mine(const outer *o, int u)
{
    return o->mine_of[u] < 0 ? NULL : &o->mine[o->mine_of[u]];
}

static float *optional(float *values, int64_t at)
{
    return values ? values + at : NULL;
}

static bool all_finite(const float *x, int64_t n)
{
    float sum = 0; /* x - x is 0, or not a number */
    for (int64_t i = 0; i < n; i++)
        sum += x[i] - x[i];
    return sum == 0;
}

bool outer_encode(outer *o, int fragment)
{
    float decay = (float)o->config->outer.error_decay;
    bool good = true;
    for (int u = 0; u < o->count; u++) {
        const outer_unit *m = mine(o, u);
        int64_t n = o->units[u].elements;
        if (o->units[u].fragment != fragment)
            continue;
        outer_move_gather(o->move, o->values, u);
        if (!m)
            continue;
        rule_change(o->values, o->reference + m->at, optional(o->error, m->at), decay, n);
        if (!all_finite(o->values, n)) {
            good = false;
            memset(o->values, 0, (size_t)n * sizeof *o->values);
        }
        compress_encode(o->out + m->coded, o->values, &o->method, n);
        memcpy(o->rest + m->at, o->values, (size_t)n * sizeof *o->rest);
    }
    return outer_everywhere(o, good);
}

bool outer_sound(outer *o, int slot, int fragment)
{
    bool good = true;
    for (int i = 0; i < o->mine_count; i++) {
        const outer_unit *m = &o->mine[i];
        if (o->units[m->unit].fragment == fragment)
            good &= compress_decode(o->other, o->in[slot] + m->coded, &o->method, o->units[m->unit].elements);
    }
    return good;
}

/* values = sum of w_i D_i, in the order of slots */
static void mean_change(outer *o, const outer_unit *m, int64_t n)
{
    const roster *r = &o->roster;
    double all = 0;
    bool equal = o->config->outer.weights == CONFIG_OUTER_EQUAL;
    for (int i = 0; i < r->parts; i++)
        all += equal ? 1 : (double)r->part[i].tokens;
    memset(o->values, 0, (size_t)n * sizeof *o->values);
    for (int i = 0; i < r->parts; i++) {
        int slot = r->part[i].slot;
        double weight = all > 0 ? (equal ? 1 : (double)r->part[i].tokens) / all : 1.0 / r->parts;
        const uint8_t *from = slot == o->slot ? o->out : o->in[slot];
        MUST(compress_decode(o->other, from + m->coded, &o->method, n), "a change of slot %d went bad", slot);
        rule_add(o->values, o->other, (float)weight, n);
    }
}

void outer_merge_reference(outer *o, bool took_part)
{
    for (int u = 0; u < o->count; u++) {
        const outer_unit *m = mine(o, u);
        int64_t n = o->units[u].elements;
        if (o->units[u].fragment != o->fragment)
            continue;
        if (m) {
            float *reference = o->reference + m->at;
            mean_change(o, m, n);
            memcpy(o->other, reference, (size_t)n * sizeof *reference);
            rule_step(reference, optional(o->momentum, m->at), o->values, &o->rule, n);
            if (took_part && o->error)
                memcpy(o->error + m->at, o->rest + m->at, (size_t)n * sizeof *o->error);
        }
        if (took_part)
            continue;
        outer_move_gather(o->move, o->values, u); /* its own change stays, and goes with the next merge */
        for (int64_t i = 0; m && i < n; i++)
            o->values[i] += o->reference[m->at + i] - o->other[i];
        outer_move_scatter(o->move, u, o->values);
    }
}

void outer_settle(outer *o, int fragment)
{
    float mix = (float)o->config->outer.mix;
    for (int u = 0; u < o->count; u++) {
        const outer_unit *m = mine(o, u);
        if (o->units[u].fragment != fragment)
            continue;
        if (mix > 0)
            outer_move_gather(o->move, o->values, u);
        if (m && mix > 0)
            rule_mix(o->values, o->reference + m->at, mix, o->units[u].elements);
        outer_move_scatter(o->move, u, m && !(mix > 0) ? o->reference + m->at : o->values);
    }
}

void outer_keep_change(outer *o)
{
    for (int u = 0; u < o->count; u++) {
        const outer_unit *m = mine(o, u);
        outer_move_gather(o->move, o->values, u);
        for (int64_t i = 0; m && i < o->units[u].elements; i++)
            o->rest[m->at + i] = o->values[i] - o->reference[m->at + i];
    }
}

void outer_take_reference(outer *o, bool with_rest)
{
    for (int u = 0; u < o->count; u++) {
        const outer_unit *m = mine(o, u);
        for (int64_t i = 0; m && i < o->units[u].elements; i++)
            o->values[i] = o->reference[m->at + i] + (with_rest ? o->rest[m->at + i] : 0);
        outer_move_scatter(o->move, u, o->values);
    }
}
