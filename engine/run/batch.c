#include "engine/run/batch.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/tokens.h"
#include "memory/log.h"
#include "models/rope.h"

void batch_rope_table(const compiled *c, executor *e)
{
    const tensor *t = c->values.rope_table;
    if (t->shape[0] == 0)
        return;
    rope_fill(executor_at(e, t), &c->options.shape, t->shape[0]);
    executor_send(e, t);
}

typedef void *place(executor *e, const tensor *t);

/* Where the ids of a program are, by rows of layers/inputs.def; NULL: not wanted. */
typedef struct batch_ids {
    int32_t *of[INPUT_COUNT];
} batch_ids;

static batch_ids find_ids(const compiled *c, executor *e, place *at)
{
    batch_ids ids;
    for (int k = 0; k < INPUT_COUNT; k++)
        ids.of[k] = c->values.ids[k]->shape[0] ? at(e, c->values.ids[k]) : NULL;
    return ids;
}

/* The places of context rank `rank`'s tokens within a micro-batch: its first run of every sample, then its second. */
static void deal_places(int32_t *out, const compile_options *o, int rank)
{
    int64_t run = tokens_count(o).run;
    for (int half = 0; half < TOKENS_RUNS; half++)
        for (int64_t b = 0; b < o->micro_batch; b++)
            for (int64_t i = 0; i < run; i++)
                *out++ = (int32_t)(b * o->sequence + tokens_run_of(o->grid.size[GRID_CONTEXT], rank, half) * run + i);
}

/* The places of micro-batch number `m`'s tokens. */
static void fill_places(const batch_ids *to, const compiled *c, int64_t m)
{
    const compile_options *o = &c->options;
    token_counts n = tokens_count(o);
    int32_t *own = to->of[INPUT_places], *all = to->of[INPUT_all_places];
    for (int64_t i = 0; own && n.run == 0 && i < n.rank; i++)
        own[m * n.rank + i] = (int32_t)i;
    if (own && n.run > 0)
        deal_places(own + m * n.rank, o, o->grid.at[GRID_CONTEXT]);
    for (int rank = 0; all && rank < o->grid.size[GRID_CONTEXT]; rank++)
        deal_places(all + m * n.micro_batch + rank * n.rank, o, rank);
}

void batch_places(const compiled *c, executor *e, int microbatches)
{
    const batch_ids to = find_ids(c, e, executor_at);
    for (int64_t m = 0; m < microbatches; m++)
        fill_places(&to, c, m);
}

/* This rank's tokens of a sample, which is the `b`-th of a micro-batch whose own ids begin at index `first`. */
static void deal_sample(const batch_ids *to, const batch_ids *sample, const compile_options *o, int64_t first,
                        int64_t b)
{
    int64_t run = tokens_count(o).run;
    for (int k = 0; k < INPUT_COUNT; k++)
        for (int half = 0; sample->of[k] && half < TOKENS_RUNS; half++)
            memcpy(to->of[k] + first + (half * o->micro_batch + b) * run,
                   sample->of[k] + tokens_run_of(o->grid.size[GRID_CONTEXT], o->grid.at[GRID_CONTEXT], half) * run,
                   (size_t)run * sizeof(int32_t));
}

/* Room for one sample's ids where ranks divide its tokens; of[] NULL: not wanted, or not read of a sample. */
static int32_t *make_sample(batch_ids *out, const batch_ids *to, const compile_options *o)
{
    int32_t *memory = must_alloc(INPUT_COUNT * (unsigned long)o->sequence * sizeof *memory);
    for (int k = 0; k < INPUT_COUNT; k++)
        out->of[k] = to->of[k] && k != INPUT_places && k != INPUT_all_places ? memory + k * o->sequence : NULL;
    return memory;
}

/* `count` samples from number `first` on, those from `end` on without targets. */
typedef struct batch_range {
    int64_t first, count, end;
} batch_range;

static void forget_targets(int64_t *left_out, int32_t *targets, int64_t sequence)
{
    *left_out -= targets[0] < 0; /* it would not have counted anyway */
    for (int64_t i = 0; i < sequence; i++)
        targets[i] = -1;
}

static status fill_whole(int64_t *left_out, const batch_ids *to, const compiled *c, const samples *s, batch_range of)
{
    batch_ids at = *to;
    for (int64_t i = of.first; i < of.first + of.count; i++) {
        bool out = false;
        TRY(samples_read(s, &out, at.of, i));
        *left_out += out;
        if (i >= of.end)
            forget_targets(left_out, at.of[INPUT_targets], c->options.sequence);
        for (int k = 0; k < INPUT_COUNT; k++)
            at.of[k] += at.of[k] ? c->options.sequence : 0;
    }
    return STATUS_OK;
}

static status fill_divided(int64_t *left_out, const batch_ids *to, const compiled *c, const samples *s, batch_range of)
{
    const compile_options *o = &c->options;
    int64_t tokens = tokens_count(o).rank;
    batch_ids sample;
    int32_t *memory = make_sample(&sample, to, o);
    status got = STATUS_OK;
    for (int64_t i = 0; i < of.count && got == STATUS_OK; i++) {
        bool out = false;
        got = samples_read(s, &out, sample.of, of.first + i);
        *left_out += out;
        if (of.first + i >= of.end)
            forget_targets(left_out, sample.of[INPUT_targets], o->sequence);
        deal_sample(to, &sample, o, i / o->micro_batch * tokens, i % o->micro_batch);
    }
    free(memory);
    return got;
}

static status fill(int64_t *left_out, const compiled *c, executor *e, place *at, const samples *s, batch_range of)
{
    batch_ids to = find_ids(c, e, at);
    *left_out = 0;
    for (int64_t m = 0; m < of.count / c->options.micro_batch; m++)
        fill_places(&to, c, m);
    return (tokens_count(&c->options).run ? fill_divided : fill_whole)(left_out, &to, c, s, of);
}

int64_t batch_first(const compile_options *o, int64_t first, int microbatches)
{
    return first + (int64_t)microbatches * o->micro_batch * grid_index(&o->grid, AXIS_SAMPLES);
}

status batch_fill(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first, int microbatches)
{
    const batch_range of = {batch_first(&c->options, first, microbatches),
                            (int64_t)microbatches * c->options.micro_batch, INT64_MAX};
    return fill(left_out, c, e, executor_at, s, of);
}

status batch_read_ahead(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first,
                        int microbatches)
{
    const batch_range of = {batch_first(&c->options, first, microbatches),
                            (int64_t)microbatches * c->options.micro_batch, INT64_MAX};
    return fill(left_out, c, e, executor_ahead, s, of);
}

status batch_fill_evaluation(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first,
                             int64_t end)
{
    int64_t mine = c->options.micro_batch;
    const batch_range of = {first + mine * grid_index(&c->options.grid, AXIS_SAMPLES), mine, end};
    return fill(left_out, c, e, executor_at, s, of);
}
