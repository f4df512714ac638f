#include "tests/jobs/routed.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/files/indexed.h"
#include "engine/files/safetensors.h"
#include "engine/state/weights/weights.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/names.h"
#include "tests/jobs/runs.h"

enum { HIDDEN = 32, FFN = 24, TOKENS = ROUTED_BATCH * ROUTED_SEQUENCE, CLASS = 0, SAME = 1, OWN_COLUMNS = 2 };
static const float FEATURE = 2, PULL = 8;

static float draw(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*random >> 40) / (1 << 24) - 0.5);
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static model_shape shape_of(int layers, int active)
{
    model_shape s = {.architecture = SHAPE_MIXTRAL,
                     .layers = layers,
                     .hidden_size = HIDDEN,
                     .heads = 4,
                     .kv_heads = 2,
                     .experts = ROUTED_EXPERTS,
                     .experts_per_token = active,
                     .expert_ffn_size = FFN,
                     .router_renormalise = true,
                     .vocab_size = ROUTED_VOCABULARY,
                     .max_sequence = ROUTED_SEQUENCE};
    shape_fill(&s);
    return s;
}

/* What a router's row reads of the two columns. */
static void pull(float *row, routed_to to, int64_t expert)
{
    const bool second = expert >= ROUTED_EXPERTS / 2;
    row[SAME] =
        (to == ROUTED_TO_ONE_EXPERT && expert == ROUTED_EXPERTS - 1) || (to == ROUTED_TO_ONE_RANK && second) ? PULL : 0;
    row[CLASS] = to != ROUTED_BY_CLASS ? 0 : second ? -PULL : PULL;
}

static float *fill(const names_tensor *t, routed_to to, bool mute, uint64_t *random)
{
    const int64_t rows = t->shape[0], columns = t->dims > 1 ? t->shape[1] : 1;
    const bool large = parts_row_of(t->slot)->divided == PARTS_EXPERTS || t->slot == SLOT_EMBEDDING ||
                       (t->slot == SLOT_ROUTER && to == ROUTED_ANYWHERE);
    const float scale = large ? 1 : 0.2f;
    float *out = must_alloc((unsigned long)(rows * columns) * sizeof *out);
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t row = i / columns;
        const bool into_stream = t->slot == SLOT_OUT || t->slot == SLOT_EXPERT_DOWN;
        const bool silent = (into_stream && row < OWN_COLUMNS) || (mute && t->slot == SLOT_OUT);
        out[i] = t->dims == 1 ? 1 : silent ? 0 : scale * draw(random);
    }
    for (int64_t row = 0; row < rows && t->slot == SLOT_ROUTER; row++)
        pull(out + row * columns, to, row);
    for (int64_t row = 0; row < rows && t->slot == SLOT_EMBEDDING; row++) {
        out[row * columns + CLASS] = row < ROUTED_VOCABULARY / 2 ? FEATURE : -FEATURE;
        out[row * columns + SAME] = FEATURE;
    }
    return out;
}

void routed_write(const char *folder, routed_to to, int layers, int active, bool mute)
{
    const model_shape s = shape_of(layers, active);
    int count;
    names_tensor *names = names_list(&count, &s);
    AUTO_FREE safetensors_tensor *tensors = must_calloc((unsigned long)count, sizeof *tensors);
    for (int i = 0; i < count; i++)
        tensors[i] = (safetensors_tensor){
            names[i].name, DTYPE_FP32, names[i].dims, {names[i].shape[0], names[i].shape[1]}, 0, 0};
    char *path = must_format("%s/model.safetensors", folder), *json_path = must_format("%s/config.json", folder), *text;
    safetensors_writer *w;
    MUST(atomic_make_folders(folder) == STATUS_OK &&
             safetensors_writer_open(&w, path, tensors, count, NULL) == STATUS_OK &&
             huggingface_text(&text, &s, DTYPE_FP32, NULL) == STATUS_OK,
         "%s", status_message());
    uint64_t random = 11;
    for (int k = 0; k < count; k++) {
        const names_tensor *t = &names[safetensors_writer_order(w)[k]];
        AUTO_FREE float *values = fill(t, to, mute, &random);
        const int64_t bytes = t->shape[0] * (t->dims > 1 ? t->shape[1] : 1) * (int64_t)sizeof *values;
        MUST(safetensors_writer_data(w, values, bytes) == STATUS_OK, "%s", status_message());
    }
    MUST(safetensors_writer_close(w) == STATUS_OK, "%s", status_message());
    runs_write_text(json_path, text);
    free(text);
    free(json_path);
    free(path);
    names_free(names, count);
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static int32_t token_of(char letter, int64_t at)
{
    const int half = ROUTED_VOCABULARY / 2, id = (int)((at * 7 + at / 5) % half);
    return letter == 'b' || (letter == 'm' && at % 2) ? half + id : id;
}

void routed_write_data(const char *prefix, const char *pattern)
{
    indexed_writer *w;
    const size_t steps = strlen(pattern);
    AUTO_FREE int32_t *tokens = must_alloc((steps * TOKENS + 1) * sizeof *tokens);
    for (size_t i = 0; i < steps * TOKENS; i++)
        tokens[i] = token_of(pattern[i / TOKENS], (int64_t)i);
    tokens[steps * TOKENS] = 0;
    MUST(indexed_writer_open(&w, prefix, ROUTED_VOCABULARY) == STATUS_OK &&
             indexed_writer_document(w, tokens, (int64_t)(steps * TOKENS + 1)) == STATUS_OK &&
             indexed_writer_close(w) == STATUS_OK,
         "%s", status_message());
}

/* ---- a plain model ----------------------------------------------------------------------------------------------- */

/* Weights of the one layer, as the folder has them. */
typedef struct plain {
    float embedding[ROUTED_VOCABULARY][HIDDEN], head[ROUTED_VOCABULARY][HIDDEN], router[ROUTED_EXPERTS][HIDDEN];
    float gate[ROUTED_EXPERTS][FFN][HIDDEN], up[ROUTED_EXPERTS][FFN][HIDDEN], down[ROUTED_EXPERTS][HIDDEN][FFN];
} plain;

static void *place_of(plain *p, const names_tensor *t)
{
    return t->slot == SLOT_EMBEDDING     ? (void *)p->embedding
           : t->slot == SLOT_HEAD        ? (void *)p->head
           : t->slot == SLOT_ROUTER      ? (void *)p->router
           : t->slot == SLOT_EXPERT_GATE ? (void *)p->gate[t->expert]
           : t->slot == SLOT_EXPERT_UP   ? (void *)p->up[t->expert]
           : t->slot == SLOT_EXPERT_DOWN ? (void *)p->down[t->expert]
                                         : NULL;
}

static void read_plain(plain *p, int *active, const char *folder)
{
    weights *w;
    MUST(weights_open(&w, folder) == STATUS_OK, "%s", status_message());
    MUST(weights_shape(w)->layers == 1, "one layer");
    *active = weights_shape(w)->experts_per_token;
    for (int i = 0; i < weights_count(w); i++) {
        const names_tensor *t = weights_at(w, i);
        const rectangle of = box_whole(t->name, t->dims, t->shape);
        const box_memory to = {place_of(p, t), DTYPE_FP32, {t->shape[1], 1}};
        if (to.data)
            MUST(weights_read(w, &of, &to) == STATUS_OK, "%s", status_message());
    }
    weights_close(w);
}

static void normalise(double out[HIDDEN], const double x[HIDDEN])
{
    double squares = 0;
    for (int i = 0; i < HIDDEN; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < HIDDEN; i++)
        out[i] = x[i] / sqrt(squares / HIDDEN + 1e-5);
}

static double dot(const float *w, const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

/* The best `active` experts, best first, and their weights, which sum to 1. */
static void choose(int *expert, double *weight, const plain *p, const double h[HIDDEN], int active)
{
    double logit[ROUTED_EXPERTS], sum = 0;
    bool taken[ROUTED_EXPERTS] = {false};
    for (int e = 0; e < ROUTED_EXPERTS; e++)
        logit[e] = dot(p->router[e], h, HIDDEN);
    for (int j = 0; j < active; j++) {
        expert[j] = -1;
        for (int e = 0; e < ROUTED_EXPERTS; e++)
            if (!taken[e] && (expert[j] < 0 || logit[e] > logit[expert[j]]))
                expert[j] = e;
        taken[expert[j]] = true;
        weight[j] = exp(logit[expert[j]]);
        sum += weight[j];
    }
    for (int j = 0; j < active; j++)
        weight[j] /= sum;
}

static void add_expert(double y[HIDDEN], const plain *p, int e, double weight, const double h[HIDDEN])
{
    double a[FFN];
    for (int i = 0; i < FFN; i++) {
        const double gate = dot(p->gate[e][i], h, HIDDEN);
        a[i] = gate / (1 + exp(-gate)) * dot(p->up[e][i], h, HIDDEN);
    }
    for (int i = 0; i < HIDDEN; i++)
        y[i] += weight * dot(p->down[e][i], a, FFN);
}

static double loss_of(const plain *p, const double x[HIDDEN], int target)
{
    double y[HIDDEN], sum = 0;
    normalise(y, x);
    for (int v = 0; v < ROUTED_VOCABULARY; v++)
        sum += exp(dot(p->head[v], y, HIDDEN));
    return log(sum) - dot(p->head[target], y, HIDDEN);
}

/* Of the ids of the first batch, and the one behind it. */
static void read_tokens(int tokens[TOKENS + 1], const char *data)
{
    indexed *in;
    int32_t ids[TOKENS + 1];
    MUST(indexed_open(&in, data) == STATUS_OK, "%s", status_message());
    MUST(indexed_read(in, ids, 0, TOKENS + 1, ROUTED_VOCABULARY) == STATUS_OK, "%s", status_message());
    for (int i = 0; i <= TOKENS; i++)
        tokens[i] = ids[i];
    indexed_close(in);
}

double routed_loss(int *dropped, const char *folder, const char *data, int ranks, int room)
{
    static double x[TOKENS][HIDDEN], h[TOKENS][HIDDEN], weight[TOKENS][ROUTED_EXPERTS];
    static int expert[TOKENS][ROUTED_EXPERTS], tokens[TOKENS + 1];
    static plain p;
    const int each = ROUTED_EXPERTS / ranks;
    int active, used = 0;
    double loss = 0;
    read_plain(&p, &active, folder);
    read_tokens(tokens, data);
    for (int i = 0; i < TOKENS; i++) {
        for (int k = 0; k < HIDDEN; k++)
            x[i][k] = (double)p.embedding[tokens[i]][k];
        normalise(h[i], x[i]);
        choose(expert[i], weight[i], &p, h[i], active);
    }
    *dropped = 0;
    for (int e = 0; e < ROUTED_EXPERTS; e++) {
        used = e % each == 0 ? 0 : used;
        for (int i = 0; i < TOKENS; i++)
            for (int j = 0; j < active; j++) {
                if (expert[i][j] != e)
                    continue;
                if (used++ < room)
                    add_expert(x[i], &p, e, weight[i][j], h[i]);
                else
                    ++*dropped;
            }
    }
    for (int i = 0; i < TOKENS; i++)
        loss += loss_of(&p, x[i], tokens[i + 1]) / TOKENS;
    return loss;
}
