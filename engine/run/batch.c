#include "engine/run/batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/tokens.h"
#include "engine/system/crc32c.h"
#include "kernels/token.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/rope.h"

void batch_rope_table(const compiled *c, executor *e)
{
    const tensor *const tables[] = {c->values.rope_table, c->values.rope_table_local};
    for (int local = 0; local < 2; local++) {
        const tensor *t = tables[local];
        if (t->shape[0] == 0)
            continue;
        rope_fill(executor_at(e, t), &c->options.shape, t->shape[0], local);
        executor_send(e, t);
    }
}

void batch_scalars(const compiled *of, executor *e, const config *c, const batch_step *at, int64_t second)
{
    const layer_inputs *v = &of->values;
    step_scalars *s = executor_at(e, v->scalars);
    *s = (step_scalars){
#define SCALAR(type, name, value) .name = (type)(value),
#include "kernels/table/scalars.def"
    };
    if (tensor_elements(v->mtp_scalars) == 0)
        return;
    step_scalars *mtp = executor_at(e, v->mtp_scalars);
    *mtp = *s;
    mtp->loss_scale *= (float)c->model.shape.mtp_loss;
    mtp->loss_tokens = second > 0 ? (float)second : 1;
}

typedef void *place(executor *e, const tensor *t);

/* Addresses of a program's ids, by rows of layers/inputs.def; NULL: not used. */
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

static shard_shape shard_shape_of(const compile_options *o)
{
    return (shard_shape){.samples = o->micro_batch,
                         .sequence = o->sequence,
                         .ranks = o->grid.size[GRID_CONTEXT],
                         .run = tokens_count(o).run,
                         .window = o->shape.sliding_window};
}

/* Adds the imbalance of a micro-batch, as sharded and with zig-zag shards, averaged over `count` micro-batches. */
static void add_imbalance(batch_facts *out, const compile_options *o, const int32_t *token_positions,
                          const int32_t *document_start, double count)
{
    shard_shape d = shard_shape_of(o);
    out->imbalance += shard_imbalance(token_positions, &d, document_start) / count;
    if (o->layout.balance == CONFIG_BALANCE_ZIGZAG) {
        out->imbalance_of_zigzag = out->imbalance;
        return;
    }
    AUTO_FREE int32_t *zigzag = must_alloc((unsigned long)(d.samples * d.sequence) * sizeof *zigzag);
    d.run = tokens_zigzag_run(d.sequence, d.ranks);
    shard_zigzag(zigzag, &d);
    out->imbalance_of_zigzag += shard_imbalance(zigzag, &d, document_start) / count;
}

/* Writes the token positions of all ranks that shard a micro-batch. */
static void shard_micro_batch(int32_t *out, const compile_options *o, const int32_t *document_start)
{
    const shard_shape d = shard_shape_of(o);
    if (o->layout.balance == CONFIG_BALANCE_DOCUMENTS)
        shard_documents(out, &d, document_start);
    else
        shard_zigzag(out, &d);
}

/* Writes a sharded micro-batch's token positions: of all ranks, and this one's. `document_start`: [tokens] or NULL. */
static void shard_positions(const batch_ids *to, const compiled *c, int64_t m, const int32_t *document_start)
{
    const compile_options *o = &c->options;
    token_counts n = tokens_count(o);
    int32_t *all = to->of[INPUT_all_token_positions] + m * n.micro_batch;
    shard_micro_batch(all, o, document_start);
    memcpy(to->of[INPUT_token_positions] + m * n.rank, all + o->grid.at[GRID_CONTEXT] * n.rank,
           (size_t)n.rank * sizeof(int32_t));
}

/* Writes positions of unsharded tokens, which random draws depend on. */
static void count_positions(const batch_ids *to, const compiled *c, int64_t m)
{
    int64_t tokens = tokens_count(&c->options).rank;
    for (int64_t i = 0; to->of[INPUT_token_positions] && i < tokens; i++)
        to->of[INPUT_token_positions][m * tokens + i] = (int32_t)i;
}

void batch_positions(const compiled *c, executor *e, int microbatches)
{
    const batch_ids to = find_ids(c, e, executor_at);
    for (int64_t m = 0; m < microbatches; m++)
        if (tokens_count(&c->options).run)
            shard_positions(&to, c, m, NULL);
        else
            count_positions(&to, c, m);
}

/* Allocates a micro-batch's ids of the rows in the bit set `rows`; of[] NULL: another row. The caller frees it. */
static int32_t *make_whole(batch_ids *out, unsigned rows, const compile_options *o)
{
    int64_t tokens = o->micro_batch * o->sequence;
    int32_t *memory = must_alloc(INPUT_COUNT * (unsigned long)tokens * sizeof *memory);
    for (int k = 0; k < INPUT_COUNT; k++)
        out->of[k] = rows >> k & 1 ? memory + k * tokens : NULL;
    return memory;
}

/* `count` samples from number `first`; samples from `end` on have no labels. */
typedef struct batch_range {
    int64_t first, count, end;
} batch_range;

/* Reads samples from number `of.first` on, end to end. */
static status read_samples(batch_facts *out, batch_ids at, int64_t sequence, const samples *s, batch_range of)
{
    for (int64_t i = of.first; i < of.first + of.count; i++) {
        bool left_out = false;
        const int32_t *second = at.of[INPUT_second_targets];
        TRY(samples_read(s, &left_out, at.of, i));
        out->left_out += left_out;
        for (int64_t k = 0; second && k < sequence; k++)
            out->second_targets += second[k] >= 0;
        if (i >= of.end) {
            out->left_out -= at.of[INPUT_targets][0] < 0; /* it is already left out */
            for (int64_t k = 0; k < sequence; k++)
                at.of[INPUT_targets][k] = -1;
        }
        for (int k = 0; k < INPUT_COUNT; k++)
            at.of[k] += at.of[k] ? sequence : 0;
    }
    return STATUS_OK;
}

static status fill_divided(batch_facts *out, const batch_ids *to, const compiled *c, const samples *s, batch_range of)
{
    const compile_options *o = &c->options;
    batch_ids whole;
    unsigned rows = 0; /* used by the program, and filled by samples */
    for (unsigned k = 0; k < INPUT_COUNT; k++)
        rows |= to->of[k] && k != INPUT_token_positions && k != INPUT_all_token_positions ? 1u << k : 0;
    AUTO_FREE int32_t *memory = make_whole(&whole, rows, o);
    status got = STATUS_OK;
    for (int64_t m = 0; m * o->micro_batch < of.count && got == STATUS_OK; m++) {
        got = read_samples(out, whole, o->sequence, s,
                           (batch_range){of.first + m * o->micro_batch, o->micro_batch, of.end});
        shard_positions(to, c, m, whole.of[INPUT_document_start]);
        add_imbalance(out, o, to->of[INPUT_all_token_positions] + m * tokens_count(o).micro_batch,
                      whole.of[INPUT_document_start], (double)of.count / o->micro_batch);
        const int64_t sharded = tokens_count(o).micro_batch, bytes = sharded * (int64_t)sizeof(int32_t);
        out->assignment = crc32c(out->assignment, to->of[INPUT_all_token_positions] + m * sharded, bytes);
        out->assignment = crc32c(out->assignment, whole.of[INPUT_tokens], bytes);
        /* Selects this rank's tokens of micro-batch `m` from `whole`, where ids lie end to end. */
        int64_t tokens = tokens_count(o).rank;
        const int32_t *token_positions = to->of[INPUT_token_positions] + m * tokens;
        for (int k = 0; k < INPUT_COUNT; k++)
            for (int64_t i = 0; whole.of[k] && i < tokens; i++)
                to->of[k][m * tokens + i] = whole.of[k][token_positions[i]];
    }
    return got;
}

static status fill_batch(batch_facts *out, const compiled *c, executor *e, place *at, const samples *s, batch_range of)
{
    const batch_ids to = find_ids(c, e, at);
    *out = (batch_facts){0};
    if (tokens_count(&c->options).run)
        return fill_divided(out, &to, c, s, of);
    batch_ids ids = to;
    ids.of[INPUT_token_positions] = NULL;
    for (int64_t m = 0; m * c->options.micro_batch < of.count; m++)
        count_positions(&to, c, m);
    return read_samples(out, ids, c->options.sequence, s, of);
}

int64_t batch_first(const compile_options *o, int64_t first, int microbatches)
{
    return first + (int64_t)microbatches * o->micro_batch * grid_index(&o->grid, AXIS_SAMPLES);
}

status batch_measure(batch_facts *out, const compile_options *o, const samples *s, int64_t first, int microbatches)
{
    const unsigned rows = 1u << INPUT_tokens | 1u << INPUT_targets | 1u << INPUT_positions |
                          (unsigned)o->document_mask << INPUT_document_start;
    batch_ids whole;
    AUTO_FREE int32_t *memory = make_whole(&whole, rows, o);
    AUTO_FREE int32_t *token_positions =
        must_alloc((unsigned long)(o->micro_batch * o->sequence) * sizeof *token_positions);
    int64_t at = batch_first(o, first, microbatches);
    status got = STATUS_OK;
    *out = (batch_facts){0};
    for (int m = 0; m < microbatches && got == STATUS_OK; m++, at += o->micro_batch) {
        got = read_samples(out, whole, o->sequence, s, (batch_range){at, o->micro_batch, INT64_MAX});
        shard_micro_batch(token_positions, o, whole.of[INPUT_document_start]);
        add_imbalance(out, o, token_positions, whole.of[INPUT_document_start], microbatches);
    }
    return got;
}

double batch_unseen(const compile_options *o)
{
    const shard_shape d = shard_shape_of(o);
    int64_t all = d.samples * d.sequence, unseen = 0;
    AUTO_FREE int32_t *token_positions = must_alloc((unsigned long)all * sizeof *token_positions);
    shard_micro_batch(token_positions, o, NULL);
    for (int rank = 0; rank < d.ranks; rank++)
        unseen += shard_unseen(token_positions, &d, NULL, rank);
    return (double)unseen / (double)(all * (d.ranks - 1));
}

status batch_fill(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first, int microbatches,
                  bool ahead)
{
    const batch_range of = {batch_first(&c->options, first, microbatches),
                            (int64_t)microbatches * c->options.micro_batch, INT64_MAX};
    return fill_batch(out, c, e, ahead ? executor_ahead : executor_at, s, of);
}

status batch_fill_evaluation(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first,
                             int64_t end)
{
    int64_t mine = c->options.micro_batch;
    const batch_range of = {first + mine * grid_index(&c->options.grid, AXIS_SAMPLES), mine, end};
    return fill_batch(out, c, e, executor_at, s, of);
}
