#include "tests/jobs/pairs.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"

enum {
    MODEL,
    EXPERT,
    TENSOR,
    CONTEXT,
    DATA,
    STAGES,
    ZERO,
    DOCUMENTS,
    MTP,
    ROUTER,
    BIAS,
    CAPS,
    OPTIMIZER,
    CLIP,
    COMPRESS,
    RAMP,
    VOCABULARY,
    SEQUENCE,
    RECOMPUTE,
    ORDER,
    BESIDE,
    REST
};

#define EXPERTS  "model.kv_heads=2 model.experts=4 model.expert_ffn_size=20 "
#define SLOTS    "parallel.expert=2 parallel.expert_dispatch=slots"
#define SHARDED  "parallel.zero_reduce=micro_batch parallel.zero_gather=micro_batch parallel.zero="
#define STAGED   "parallel.pipeline=2 parallel.schedule="
#define V_SHAPED "parallel.pipeline=2 parallel.virtual_stages=2 parallel.schedule="
#define LOSS     "model.router_loss=0.1 model.router_loss_over="

/* Rules are between early axes, so that what cannot be completed is seen soon. */
const pairs_axis pairs_axes[PAIRS_AXES] = {
    [MODEL] = {"model",
               false,
               NULL,
               {{"dense", "model.architecture=llama model.kv_heads=2"},
                {"experts", EXPERTS "model.architecture=mixtral"},
                {"shared expert", EXPERTS "model.architecture=glm4_moe model.shared_experts=1 model.dense_layers=1 "
                                          "model.rotary_size=4"},
                {"sinks", EXPERTS "model.architecture=gpt_oss model.swiglu_limit=0.1 model.sliding_window=9 "
                                  "model.full_every=2"},
                {"latent", "model.architecture=deepseek_v3 model.experts=4 model.expert_ffn_size=20 "
                           "model.shared_experts=1 model.dense_layers=1 model.head_size=10 model.rope_head_size=4 "
                           "model.v_head_size=7 model.kv_lora_rank=12 model.q_lora_rank=14"}}},
    [EXPERT] = {"expert",
                true,
                "1gssff",
                {{"1", ""},
                 {"2, gathered", "parallel.expert=2 parallel.expert_dispatch=gather"},
                 {"2, slots", SLOTS},
                 {"2, few slots", SLOTS " model.expert_capacity=0.4 model.expert_spill=1"},
                 {"4, gathered", "parallel.expert=4 parallel.expert_dispatch=gather"},
                 {"4, slots", "parallel.expert=4 parallel.expert_dispatch=slots"}}},
    [TENSOR] = {"tensor", true, "122", {{"1", ""}, {"2", "parallel.tensor=2"}, {"4", "parallel.tensor=4"}}},
    [CONTEXT] = {"context",
                 true,
                 "122",
                 {{"1", ""},
                  {"2", "parallel.context=2"},
                  {"2, documents", "parallel.context=2 parallel.context_balance=documents"}}},
    [DATA] = {"data", true, "12", {{"1", ""}, {"2", "parallel.data=2"}}},
    [STAGES] = {"pipeline",
                true,
                "1pppivvvpvpvip",
                {{"1", ""},
                 {"2 gpipe", STAGED "gpipe"},
                 {"2 1f1b", STAGED "1f1b"},
                 {"2 zb-h1", STAGED "zb-h1"},
                 {"2 interleaved", V_SHAPED "interleaved"},
                 {"2 zb-v", V_SHAPED "zb-v"},
                 {"2 v-half", V_SHAPED "v-half"},
                 {"2 v-min", V_SHAPED "v-min"},
                 {"2 zb-h2", STAGED "zb-h2"},
                 {"2 auto", V_SHAPED "auto"},
                 {"2 1f1b, no layer first", STAGED "1f1b parallel.layers_per_stage=[0,4]"},
                 {"2 zb-v, no layer at the ends", V_SHAPED "zb-v parallel.layers_per_stage=[0,3,1,0]"},
                 {"2 interleaved, no layer last", V_SHAPED "interleaved parallel.layers_per_stage=[1,1,2,0]"},
                 {"2 zb-h1, 3 layers and 1", STAGED "zb-h1 parallel.layers_per_stage=[3,1]"}}},
    [ZERO] = {"zero",
              true,
              "012233",
              {{"0", "parallel.zero=0"},
               {"1", ""},
               {"2", "parallel.zero=2"},
               {"2, each micro-batch", SHARDED "2"},
               {"3", "parallel.zero=3"},
               {"3, each micro-batch", SHARDED "3"}}},
    [DOCUMENTS] = {"documents", false, NULL, {{"joined", ""}, {"masked", "data.document_mask=true"}}},
    [MTP] = {"MTP", false, NULL, {{"none", ""}, {"1", "model.mtp_layers=1"}}},
    [ROUTER] = {"router loss",
                false,
                NULL,
                {{"none", ""},
                 {"sequence", LOSS "sequence"},
                 {"layer", LOSS "layer"},
                 {"sequence and z", LOSS "sequence model.router_z_loss=0.01"},
                 {"batch", LOSS "batch"},
                 {"pooled", LOSS "pooled"},
                 {"z", "model.router_z_loss=0.01"}}},
    [BIAS] = {"router bias", false, NULL, {{"none", ""}, {"moved", "model.router_bias_rate=0.03"}}},
    [CAPS] = {"caps",
              false,
              NULL,
              {{"none", ""}, {"scores", "model.attention_cap=0.5"}, {"logits", "model.logits_cap=0.75"}}},
    [OPTIMIZER] = {"optimizer",
                   false,
                   NULL,
                   {{"adamw", ""},
                    {"muon", "optimizer.name=muon"},
                    {"lion", "optimizer.name=lion optimizer.lr=1e-3"},
                    {"sgd", "optimizer.name=sgd optimizer.lr=0.1"}}},
    [CLIP] = {"QK-clip", false, NULL, {{"none", ""}, {"0.5", "optimizer.qk_clip=0.5"}}},
    [COMPRESS] = {"compress",
                  true,
                  NULL,
                  {{"none", ""}, {"bf16", "parallel.compress=bf16"}, {"int8", "parallel.compress=int8"}}},
    [RAMP] = {"batch ramp", false, NULL, {{"none", ""}, {"4, 8", "train.batch_ramp=[[0,4],[2,8]]"}}},
    [VOCABULARY] = {"vocabulary", true, "es", {{"ends", ""}, {"stages", "parallel.vocabulary=stages"}}},
    [SEQUENCE] = {"sequence", true, "tf", {{"true", ""}, {"false", "parallel.sequence=false"}}},
    [RECOMPUTE] = {"recompute",
                   true,
                   NULL,
                   {{"none", ""}, {"selective", "memory.recompute=selective"}, {"full", "memory.recompute=full"}}},
    [ORDER] = {"order",
               true,
               NULL,
               {{"auto", ""},
                {"none", "parallel.order=none"},
                {"launches", "parallel.order=launches"},
                {"halves", "parallel.order=halves"},
                {"parts", "parallel.order=parts"},
                {"auto, small buckets", "parallel.bucket=4KiB"}}},
    [BESIDE] = {"beside training",
                false,
                NULL,
                {{"nothing", ""},
                 {"evaluation", "data.validation=tests/golden/models/train evaluate.every=1 evaluate.batches=3"},
                 {"verification", "run.verify_every=1"},
                 {"a trace", "run.trace=[2,3]"}}},
    [REST] = {"precision",
              false,
              NULL,
              {{"fp32", ""},
               {"fp32, tied", "model.tied_embeddings=true"},
               {"fp32, dropout", "train.dropout=0.1"},
               {"bf16", "train.precision=bf16"},
               {"fp16", "train.precision=fp16 train.loss_scale=4096"},
               {"bf16, state and masters", "train.precision=bf16 optimizer.state=bf16 optimizer.master=bf16"}}},
};

#define ANY_BUT(first) (~(first)&0xffff)
#define DIVIDED        ANY_BUT(1) /* more ranks than one, or experts over them */
#define WITH_EXPERTS   ANY_BUT(1)

static const pairs_rule rules[] = {
    {{[MODEL] = 1, [EXPERT] = DIVIDED}, "the model has no experts to divide"},
    {{[MODEL] = 1, [ROUTER] = ANY_BUT(1)}, "layers of llama have no experts"},
    {{[MODEL] = 1, [BIAS] = 2}, "layers of llama have no experts"},
    {{[MODEL] = 1 | 2 | 8, [MTP] = 2}, "has no block behind its last layer"},
    {{[MTP] = 2, [ROUTER] = 1 << 5}, "and model.mtp_layers 1 has a block behind them"},
    {{[STAGES] = DIVIDED, [ROUTER] = 1 << 5},
     "model.router_loss_over pooled is over all layers, and parallel.pipeline 2"},
    {{[MODEL] = WITH_EXPERTS, [TENSOR] = DIVIDED, [SEQUENCE] = 2},
     "would compute each token's experts on all tensor ranks"},
    {{[EXPERT] = DIVIDED, [TENSOR] = 1, [CONTEXT] = 1, [DATA] = 1}, "does not divide tensor x context x data"},
    {{[EXPERT] = 16 | 32, [TENSOR] = 1 | 2, [CONTEXT] = 1, [DATA] = 1}, "does not divide tensor x context x data"},
    {{[EXPERT] = 16 | 32, [TENSOR] = 1, [CONTEXT] = ANY_BUT(1), [DATA] = 1}, "does not divide tensor x context x data"},
    {{[EXPERT] = 16 | 32, [TENSOR] = 1, [CONTEXT] = 1, [DATA] = 2}, "does not divide tensor x context x data"},
    {{[CONTEXT] = 4, [DOCUMENTS] = 1}, "parallel.context_balance documents is for samples of masked documents"},
    {{[OPTIMIZER] = ANY_BUT(2), [CLIP] = 2}, "scales weights after Muon's update"},
    {{[CAPS] = 2, [CLIP] = 2}, "model.attention_cap bounds scores already"},
    {{[MODEL] = 4 | 8, [CLIP] = 2}, "optimizer.qk_clip 0.5: the model adds biases to queries and keys"},
    {{[MODEL] = WITH_EXPERTS, [COMPRESS] = ANY_BUT(1)}, "and those of experts are another"},
    {{[ZERO] = ANY_BUT(3), [COMPRESS] = ANY_BUT(1)}, "needs whole gradients to compress"},
    {{[MODEL] = 1, [TENSOR] = 4, [COMPRESS] = ANY_BUT(1)}, "would round the copies of key/value heads differently"},
    {{[ROUTER] = 1 << 4, [DATA] = 2}, NULL}, /* loads of all data ranks' micro-batches: no one rank has such a run */
    {{[STAGES] = 7 << 10, [VOCABULARY] = 2},
     "parallel.vocabulary stages leaves nothing to a first or last run without a layer"},
    {{[RAMP] = 2, [BESIDE] = 4}, "run.verify_every watches the steps of one batch size"},
    {{[STAGES] = 1 << 9, [RAMP] = 2}, "parallel.schedule auto finds the order of one number of micro-batches"},
};

enum { RULES = sizeof rules / sizeof *rules };

int pairs_rules(void)
{
    return RULES;
}

const pairs_rule *pairs_rule_at(int index)
{
    return &rules[index];
}

int pairs_values(int axis)
{
    int count = 0;
    while (count < PAIRS_VALUES && pairs_axes[axis].values[count].name)
        count++;
    return count;
}

int pairs_axis_of(const char *name)
{
    for (int a = 0; a < PAIRS_AXES; a++)
        if (!strcmp(pairs_axes[a].name, name))
            return a;
    MUST(0, "no axis %s", name);
}

int pairs_ranks(const pairs_row *row)
{
    const int tensor = row->value[TENSOR] < 0 ? 0 : row->value[TENSOR];
    return (1 << tensor) * (row->value[CONTEXT] > 0 ? 2 : 1) * (row->value[DATA] > 0 ? 2 : 1) *
           (row->value[STAGES] > 0 ? 2 : 1);
}

char *pairs_keys(const pairs_row *row, bool one)
{
    char *text = must_strdup("");
    for (int a = 0; a < PAIRS_AXES; a++) {
        const char *keys = pairs_axes[a].values[row->value[a]].keys;
        if (!*keys || (one && pairs_axes[a].lays_out))
            continue;
        char *more = must_format("%s %s", text, keys);
        free(text);
        text = more;
    }
    return text;
}

char *pairs_title(const pairs_row *row, bool all)
{
    char *text = must_strdup("");
    for (int a = 0; a < PAIRS_AXES; a++) {
        if (row->value[a] < !all)
            continue;
        char *more = must_format("%s%s%s %s", text, *text ? ", " : "", pairs_axes[a].name,
                                 pairs_axes[a].values[row->value[a]].name);
        free(text);
        text = more;
    }
    return text;
}

pairs_row pairs_nothing(void)
{
    pairs_row row;
    for (int a = 0; a < PAIRS_AXES; a++)
        row.value[a] = -1;
    return row;
}

/* ---- completing a row -------------------------------------------------------------------------------------------- */

/* All that the rule asks for is set in the row. */
static bool breaks(const pairs_row *row, const pairs_rule *r)
{
    for (int a = 0; a < PAIRS_AXES; a++)
        if (r->sets[a] && (row->value[a] < 0 || !(r->sets[a] >> row->value[a] & 1)))
            return false;
    return true;
}

int pairs_broken(const pairs_row *row, int except)
{
    for (int r = 0; r < RULES; r++)
        if (r != except && breaks(row, &rules[r]))
            return r;
    return -1;
}

static bool may_be(const pairs_row *row, int except)
{
    return pairs_broken(row, except) < 0 && pairs_ranks(row) <= PAIRS_RANKS;
}

static bool complete_from(pairs_row *row, int axis, int except)
{
    while (axis < PAIRS_AXES && row->value[axis] >= 0)
        axis++;
    if (axis == PAIRS_AXES)
        return true;
    for (int v = 0; v < pairs_values(axis); v++) {
        row->value[axis] = v;
        if (may_be(row, except) && complete_from(row, axis + 1, except))
            return true;
    }
    row->value[axis] = -1;
    return false;
}

bool pairs_complete(pairs_row *row, int except)
{
    return may_be(row, except) && complete_from(row, 0, except);
}

/* ---- covering ---------------------------------------------------------------------------------------------------- */

enum { CODES = PAIRS_AXES * PAIRS_VALUES, TRIES = 12 };

/* What rows have together: pairs of values, and triples of kinds of axes that divide. */
typedef struct coverage {
    bool pair[CODES][CODES], triple[CODES][CODES][CODES];
} coverage;

static int code_of(int axis, int value)
{
    return axis * PAIRS_VALUES + value;
}

/* The first value of the same kind stands for all of them. */
static int kind_of(int axis, int value)
{
    const char *kinds = pairs_axes[axis].kinds;
    return code_of(axis, (int)(strchr(kinds, kinds[value]) - kinds));
}

/* How much the value would add to what is set; with `add`, adds it. */
static int gain_of(coverage *c, const pairs_row *row, int axis, int value, bool add)
{
    int gain = 0;
    for (int b = 0; b < PAIRS_AXES; b++) {
        if (b == axis || row->value[b] < 0)
            continue;
        bool *pair = c->pair[code_of(axis < b ? axis : b, axis < b ? value : row->value[b])] +
                     code_of(axis < b ? b : axis, axis < b ? row->value[b] : value);
        gain += !*pair;
        *pair |= add;
        for (int d = b + 1; d < PAIRS_AXES && pairs_axes[axis].kinds && pairs_axes[b].kinds; d++) {
            if (d == axis || row->value[d] < 0 || !pairs_axes[d].kinds)
                continue;
            int k[3] = {kind_of(b, row->value[b]), kind_of(d, row->value[d]), kind_of(axis, value)};
            for (int i = 2; i > 0 && k[i] < k[i - 1]; i--) {
                int last = k[i];
                k[i] = k[i - 1];
                k[i - 1] = last;
            }
            gain += !c->triple[k[0]][k[1]][k[2]];
            c->triple[k[0]][k[1]][k[2]] |= add;
        }
    }
    return gain;
}

static unsigned drawn(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*random >> 33);
}

/* Sets one axis after another, in a random order, to the value that adds most and can be completed. */
static int fill(pairs_row *row, coverage *c, uint64_t *random)
{
    int order[PAIRS_AXES], total = 0;
    for (int i = 0; i < PAIRS_AXES; i++) {
        int k = (int)(drawn(random) % (unsigned)(i + 1));
        order[i] = order[k];
        order[k] = i;
    }
    for (int i = 0; i < PAIRS_AXES; i++) {
        const int axis = order[i], count = pairs_values(axis), shift = (int)(drawn(random) % (unsigned)count);
        int best = -1, most = -1;
        for (int k = 0; k < count && row->value[axis] < 0; k++) {
            pairs_row whole = *row;
            const int v = (k + shift) % count, gain = gain_of(c, row, axis, v, false);
            whole.value[axis] = v;
            if (gain > most && pairs_complete(&whole, -1)) {
                most = gain;
                best = v;
            }
        }
        total += most > 0 ? most : 0;
        row->value[axis] = best >= 0 ? best : row->value[axis];
    }
    return total;
}

static void add_best(pairs_row *out, coverage *c, const pairs_row *from, uint64_t *random)
{
    int most = -1;
    for (int t = 0; t < TRIES; t++) {
        pairs_row row = *from;
        int gain = fill(&row, c, random);
        if (gain > most) {
            most = gain;
            *out = row;
        }
    }
    for (int a = 0; a < PAIRS_AXES; a++)
        gain_of(c, out, a, out->value[a], true);
}

static bool may_meet(int a, int v, int b, int w, int d, int x)
{
    pairs_row row = pairs_nothing();
    row.value[a] = v;
    row.value[b] = w;
    if (d >= 0)
        row.value[d] = x;
    return pairs_complete(&row, -1);
}

/* A row for each triple of kinds that none has, beginning with the axes a and b. */
static int cover_triples(pairs_row *rows, int count, coverage *c, const pairs_row *from, int a, int b, uint64_t *random)
{
    for (int d = b + 1; d < PAIRS_AXES; d++)
        for (int x = 0; pairs_axes[d].kinds && x < pairs_values(d); x++) {
            const int k[3] = {kind_of(a, from->value[a]), kind_of(b, from->value[b]), kind_of(d, x)};
            if (c->triple[k[0]][k[1]][k[2]] || k[0] != code_of(a, from->value[a]) ||
                k[1] != code_of(b, from->value[b]) || k[2] != code_of(d, x) ||
                !may_meet(a, from->value[a], b, from->value[b], d, x))
                continue;
            pairs_row row = *from;
            row.value[d] = x;
            MUST(count < PAIRS_ROWS, "more than %d rows", PAIRS_ROWS);
            add_best(&rows[count++], c, &row, random);
        }
    return count;
}

int pairs_cover(pairs_row rows[PAIRS_ROWS])
{
    AUTO_FREE coverage *c = must_calloc(1, sizeof *c);
    uint64_t random = 20;
    int count = 0;
    for (int triples = 1; triples >= 0; triples--)
        for (int a = 0; a < PAIRS_AXES; a++)
            for (int b = a + 1; b < PAIRS_AXES; b++)
                for (int v = 0; v < pairs_values(a); v++)
                    for (int w = 0; w < pairs_values(b); w++) {
                        pairs_row row = pairs_nothing();
                        row.value[a] = v;
                        row.value[b] = w;
                        if (triples && pairs_axes[a].kinds && pairs_axes[b].kinds)
                            count = cover_triples(rows, count, c, &row, a, b, &random);
                        if (triples || c->pair[code_of(a, v)][code_of(b, w)] || !may_meet(a, v, b, w, -1, 0))
                            continue;
                        MUST(count < PAIRS_ROWS, "more than %d rows", PAIRS_ROWS);
                        add_best(&rows[count++], c, &row, &random);
                    }
    return count;
}
