/* The decoder's parameters are the rows of parts.def: for every architecture, whatever its tensor ranks, and for layers
 * with more weights than any architecture has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "models/decoder.h"
#include "models/names.h"
#include "tests/test.h"

enum { LAYERS = 24, CHUNKS = 2 };

/* Traits that layers have beyond their architecture's. */
static uint64_t more;

layer_shape __real_shape_layer(const model_shape *shape, int layer);
layer_shape __wrap_shape_layer(const model_shape *shape, int layer);
layer_shape __wrap_shape_layer(const model_shape *shape, int layer)
{
    layer_shape l = __real_shape_layer(shape, layer);
    l.traits |= more;
    return l;
}

static model_shape shape_of(shape_architecture architecture, bool tied)
{
    model_shape s = {.architecture = architecture,
                     .layers = LAYERS,
                     .heads = 6,
                     .kv_heads = architecture == SHAPE_GPT2 ? 6 : 3,
                     .hidden_size = 48,
                     .ffn_size = 20,
                     .vocab_size = 300,
                     .max_sequence = 32,
                     .tied_embeddings = tied};
    if (shape_has_key(architecture, KEY_EXPERTS)) {
        s.experts = 7;
        s.expert_ffn_size = 12;
        s.dense_layers = 1;
        s.experts_every = 3;
    }
    if (shape_has_key(architecture, KEY_LATENT)) {
        s.kv_heads = 6;
        s.head_size = 14;
        s.rope_head_size = 4;
        s.v_head_size = 9;
        s.kv_lora_rank = 11;
        s.q_lora_rank = tied ? 13 : 0;
        s.attention_bias = tied;
    }
    shape_fill(&s);
    assert_int_equal(shape_check(&s), STATUS_OK);
    return s;
}

static void open_rank(decoder *d, pool *p, const model_shape *s, int ranks, int rank)
{
    static const int first[CHUNKS] = {0, LAYERS / 2}, layers[CHUNKS] = {LAYERS / 2, LAYERS / 2};
    int copies = ranks > s->kv_heads ? ranks / s->kv_heads : 1;
    decoder_layout layout = {.grid = recorder_alone(),
                             .compute = DTYPE_FP32,
                             .chunk_count = CHUNKS,
                             .first_layer = first,
                             .layers = layers,
                             .last_chunk = CHUNKS - 1};
    layout.grid.group[AXIS_TENSOR] = (axis_group){.ranks = ranks, .rank = rank};
    layout.grid.group[AXIS_EXPERT] = (axis_group){.ranks = ranks, .rank = rank};
    layout.grid.group[AXIS_KV] = (axis_group){.ranks = copies, .rank = rank % copies};
    decoder_open(d, p, s, &layout);
}

/* What pieces of a rank cover of each listed tensor, a count for each element. */
static void cover(uint8_t **seen, const names_tensor *list, int count, const decoder *d)
{
    for (int i = 0; i < d->parameter_count; i++)
        for (int k = 0; k < d->parameters[i]->piece_count; k++) {
            const parameter_block *q = &d->parameters[i]->pieces[k];
            int at = 0;
            while (at < count && strcmp(list[at].name, q->of.name))
                at++;
            if (at == count)
                fail_msg("%s is not listed", q->of.name);
            assert_int_equal(q->of.dims, list[at].dims);
            assert_memory_equal(q->of.global, list[at].shape, (size_t)q->of.dims * sizeof *q->of.global);
            int64_t columns = q->of.dims == 2 ? q->of.part.size[1] : 1, pitch = q->of.dims == 2 ? q->of.global[1] : 1;
            for (int64_t r = 0; r < q->of.part.size[0]; r++)
                for (int64_t c = 0; c < columns; c++)
                    seen[at][(q->of.part.start[0] + r) * pitch + q->of.part.start[1] + c]++;
        }
}

/* The weight that row `row` of the tensor is of: tensors of several hold them one after the other, or head by head. */
static parts_slot slot_at(const names_tensor *t, int64_t row, const model_shape *s)
{
    layer_shape l = shape_layer(s, t->layer);
    for (int i = t->slot; i < SLOT_COUNT; i++) {
        const char *name = names_format(s->architecture, (parts_slot)i);
        if (!name || strcmp(name, names_format(s->architecture, t->slot)) != 0 || !parts_in((parts_slot)i, &l))
            continue;
        names_span span = names_span_of((parts_slot)i, s, &l);
        if (row >= span.first && (row - span.first) % span.stride < span.unit)
            return (parts_slot)i;
    }
    fail_msg("row %lld of %s is of no weight", (long long)row, t->name);
    return SLOT_COUNT;
}

/* A divided weight is with one rank an element, but for copies of key/value heads; others are with all, or the
 * first. */
static void check_cover(const uint8_t *seen, const names_tensor *t, const model_shape *s, int ranks)
{
    int64_t width = t->dims == 2 ? t->shape[1] : 1;
    bool transposed = names_transposed(s->architecture, t->slot);
    for (int64_t i = 0; i < t->shape[0] * width; i++) {
        const parts_row *row = parts_row_of(slot_at(t, transposed ? i % width : i / width, s));
        int copies = ranks > s->kv_heads ? ranks / s->kv_heads : 1;
        const parts_divided by = row->divided;
        int holders = by == PARTS_STREAM || by == PARTS_SHARED || by == PARTS_COUNTED ? ranks
                      : row->rows == PARTS_SIZE_KEY || row->rows == PARTS_SIZE_VALUE  ? copies
                                                                                      : 1;
        if (seen[i] != holders)
            fail_msg("%s: %d of %d ranks have element %lld, not %d", t->name, seen[i], ranks, (long long)i, holders);
    }
}

TEST(ranks_together_have_every_listed_tensor)
{
    for (int a = 0; a < 2 * SHAPE_ARCHITECTURES; a++)
        for (int ranks = 1; ranks <= 6; ranks += ranks == 1 ? 2 : 3) {
            model_shape s = shape_of((shape_architecture)(a / 2), a % 2);
            int count;
            names_tensor *list = names_list(&count, &s);
            uint8_t **seen = must_calloc((unsigned long)count, sizeof *seen);
            for (int i = 0; i < count; i++)
                seen[i] =
                    must_calloc((unsigned long)(list[i].shape[0] * (list[i].dims == 2 ? list[i].shape[1] : 1)), 1);
            for (int rank = 0; rank < ranks; rank++) {
                pool p = {0};
                decoder d;
                open_rank(&d, &p, &s, ranks, rank);
                cover(seen, list, count, &d);
                pool_free(&p);
            }
            for (int i = 0; i < count; i++) {
                check_cover(seen[i], &list[i], &s, ranks);
                free(seen[i]);
            }
            free(seen);
            names_free(list, count);
        }
}

static int arrays_of_layer(const decoder *d, int layer)
{
    char prefix[32];
    int count = 0, length = snprintf(prefix, sizeof prefix, "layer %d/", layer);
    for (int i = 0; i < d->parameter_count; i++)
        count += !strncmp(d->parameters[i]->name, prefix, (size_t)length);
    return count;
}

/* GPT-2's twelve arrays a layer are the most that an architecture has; nothing depends on it. */
TEST(layers_may_have_more_weights_than_any_architecture)
{
    enum { ARRAYS = 14, ENDS = 4 };
    more = UINT64_C(1) << TRAIT_LAYER_NORM | UINT64_C(1) << TRAIT_QKV_BIAS | UINT64_C(1) << TRAIT_OUT_BIAS |
           UINT64_C(1) << TRAIT_MLP_BIAS | UINT64_C(1) << TRAIT_QK_NORM;
    model_shape s = shape_of(SHAPE_LLAMA, false);
    pool p = {0};
    decoder d;
    open_rank(&d, &p, &s, 1, 0);
    assert_int_equal(d.parameter_count, LAYERS * ARRAYS + ENDS);
    for (int i = 0; i < d.parameter_count; i++)
        assert_int_equal(d.parameters[i]->number, i);
    for (int i = 0; i < LAYERS; i++)
        assert_int_equal(arrays_of_layer(&d, i), ARRAYS);
    const block_layer *last = &d.chunks[CHUNKS - 1].blocks[LAYERS / CHUNKS - 1];
    assert_int_equal(last->attention.qkv_bias->piece_count, 3);
    assert_int_equal(last->mlp.up_bias->columns, 2 * s.ffn_size); /* the gate's and the branch's */
    assert_string_equal(last->mlp.up_bias->pieces[1].of.name, "model.layers.23.mlp.up_proj.bias");
    pool_free(&p);
    more = 0;
}

/* A row without a name in the family of an architecture that has the weight would be an error of the run. */
TEST(every_weight_has_a_name)
{
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++) {
        model_shape s = shape_of((shape_architecture)a, false);
        for (int layer = -1; layer < LAYERS; layer++) {
            layer_shape l = shape_layer(&s, layer);
            for (int i = 0; i < SLOT_COUNT; i++)
                if (parts_in((parts_slot)i, &l))
                    assert_non_null(names_format((shape_architecture)a, (parts_slot)i));
        }
    }
}

/* Every third layer but the first one has experts: their arrays are stacked expert by expert, gate before up. */
TEST(experts_are_stacked_one_after_the_other)
{
    model_shape s = shape_of(SHAPE_MIXTRAL, false);
    for (int rank = 0; rank < 2; rank++) {
        pool p = {0};
        decoder d;
        open_rank(&d, &p, &s, 2, rank);
        assert_null(d.chunks[0].blocks[1].experts.router);
        assert_non_null(d.chunks[0].blocks[1].mlp.up);
        const block_layer *b = &d.chunks[0].blocks[2];
        assert_null(b->mlp.up);
        const int first = rank ? 4 : 0, count = rank ? 3 : 4;
        assert_int_equal(b->experts.up->rows, count * 2 * s.expert_ffn_size);
        assert_int_equal(b->experts.down->rows, count * s.hidden_size);
        assert_int_equal(b->experts.up->replicas, AXIS_EXPERT_DATA);
        for (int i = 0; i < 2 * count; i++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.2.block_sparse_moe.experts.%d.w%d.weight", first + i / 2,
                     1 + 2 * (i % 2));
            assert_string_equal(b->experts.up->pieces[i].of.name, name);
            assert_int_equal(b->experts.up->pieces[i].row, i * s.expert_ffn_size);
        }
        pool_free(&p);
    }
}

/* In memory all heads' keys come before all values, in the file each head's values behind its keys. */
TEST(keys_and_values_of_latents_are_stacked_by_head)
{
    model_shape s = shape_of(SHAPE_DEEPSEEK_V3, true);
    for (int rank = 0; rank < 2; rank++) {
        pool p = {0};
        decoder d;
        open_rank(&d, &p, &s, 2, rank);
        const latent_layer *l = &d.chunks[0].blocks[1].attention.latent;
        assert_null(d.chunks[0].blocks[1].attention.qkv);
        assert_int_equal(l->kv_down->rows, 11 + 4);
        assert_int_equal(l->q_up->rows, 3 * 14);
        assert_int_equal(l->q_up->piece_count, 1);
        assert_int_equal(l->kv_up->rows, 3 * (10 + 9));
        assert_int_equal(l->kv_up->piece_count, 6);
        for (int i = 0; i < 6; i++) {
            const parameter_block *q = &l->kv_up->pieces[i];
            const int head = i % 3, value = i / 3;
            assert_string_equal(q->of.name, "model.layers.1.self_attn.kv_b_proj.weight");
            assert_int_equal(q->of.global[0], 6 * (10 + 9));
            assert_int_equal(q->of.part.start[0], (3 * rank + head) * (10 + 9) + 10 * value);
            assert_int_equal(q->of.part.size[0], value ? 9 : 10);
            assert_int_equal(q->row, value ? 30 + 9 * head : 10 * head);
        }
        pool_free(&p);
    }
}

TEST_MAIN(NULL, NULL)
