#include "layers/layer.h"

#include "memory/log.h"

static tensor *mix_mlp(recorder *r, const block_layer *b, const layer_inputs *in, const mixer_input *from)
{
    (void)in;
    const mlp_layer *m = &b->mlp;
    tensor *bias = recorder_weight(r, m->up_bias);
    tensor *full = layer_enter(r, from->x);                                        /* [tokens, hidden] */
    tensor *h = record_linear(r, "mlp/up", full, recorder_weight(r, m->up), bias); /* the ranks divide columns */
    tensor *a = m->exact    ? record_gelu_exact(r, "mlp/gelu", h)                  /* [tokens, ffn / tp] */
                : !m->gated ? record_gelu(r, "mlp/gelu", h)
                : m->gelu   ? record_geglu(r, "mlp/geglu", h)
                            : record_swiglu(r, "mlp/swiglu", h);
    tensor *down_bias = recorder_weight(r, m->down_bias); /* exists on the group's first rank only */
    return layer_leave(r, record_linear(r, "mlp/down", a, recorder_weight(r, m->down), down_bias));
}

const layer_mixer_row layer_mixers[] = {
#define KEEPS(name)  [MIXER_##name].states = states_##name,
#define SCORES(name) [MIXER_##name].clip = clip_##name,
#define MIXER(name, sublayer_, needs, crossing_, sum_)                                                                 \
    [MIXER_##name] = {.sublayer = sublayer_, .crossing = CROSSING_##crossing_, .sum = sum_, .record = mix_##name},
#include "layers/mixers.def"
};

static bool has(const block_layer *b, int mixer)
{
    return b->sub[layer_mixers[mixer].sublayer].mixers >> mixer & 1;
}

bool layer_attends(const block_layer *b)
{
    bool attends = false;
    for (int m = 0; m < MIXER_COUNT; m++)
        attends |= has(b, m) && layer_mixers[m].clip;
    return attends;
}

op_qk_clip layer_clipped(const block_layer *b, const parameter *p)
{
    op_qk_clip made = {0};
    for (int m = 0; m < MIXER_COUNT && made.blocks == 0; m++)
        if (has(b, m) && layer_mixers[m].clip)
            made = layer_mixers[m].clip(b, p);
    return made;
}

/* Lists the states of the mixers before row `end` of the table. */
static int states_of_mixers(layer_state out[LAYER_STATES], const block_layer *b, int end)
{
    int count = 0;
    for (int m = 0; m < end; m++) {
        layer_state own[LAYER_STATES];
        const int more = has(b, m) && layer_mixers[m].states ? layer_mixers[m].states(own, b) : 0;
        MUST(count + more <= LAYER_STATES, "a block keeps more than %d states", LAYER_STATES);
        for (int i = 0; i < more; i++)
            out[count++] = own[i];
    }
    return count;
}

int layer_states(layer_state out[LAYER_STATES], const block_layer *b)
{
    return states_of_mixers(out, b, MIXER_COUNT);
}

/* Sums the outputs of a sublayer's mixers on x. */
static tensor *mix_all(recorder *r, const stream *s, const block_layer *b, unsigned mixers, const layer_inputs *in,
                       tensor *x)
{
    tensor *sum = NULL;
    for (int m = 0; m < MIXER_COUNT; m++) {
        if (!(mixers >> m & 1))
            continue;
        layer_state before[LAYER_STATES];
        const int first = b->state + states_of_mixers(before, b, m);
        const mixer_input from = {x, in->states ? in->states + first : NULL, s->routers};
        tensor *y = layer_mixers[m].record(r, b, in, &from);
        sum = sum ? record_add(r, layer_mixers[m].sum, y, sum) : y;
    }
    return sum;
}

void layer_block(recorder *r, stream *s, const block_layer *b, const layer_inputs *in)
{
    bool first = true;
    for (const sublayer *l = b->sub; l < b->sub + LAYER_SUBLAYERS; l++) {
        if (!l->mixers)
            continue;
        tensor *branch = l->joins ? s->delta : NULL; /* the branch so far */
        if (l->joins)
            s->delta = NULL;
        tensor *x = layer_norm(r, s, &l->norm, in);
        if (first)
            recorder_keep(s->sum); /* full recompute keeps only this of a block */
        x = mix_all(r, s, b, l->mixers, in, x);
        if (l->post_norm.weight)
            x = layer_norm_of(r, "norm behind", x, &l->post_norm, in);
        s->delta = layer_dropout(r, in, layer_multiply(r, x, b->multiplier));
        if (branch)
            s->delta = record_add(r, "branches", branch, s->delta);
        first = false;
    }
}
