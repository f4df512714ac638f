#include "tests/jobs/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/files/indexed.h"
#include "engine/files/safetensors.h"
#include "engine/infer/inference.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/engine/files/tensors.h"

const char *const golden_models[] = {"deepseek-v2",
                                     "deepseek-v3",
                                     "deepseek-v3-biased",
                                     "deepseek-v3-mtp",
                                     "gemma2",
                                     "gemma3",
                                     "glm4",
                                     "glm4-moe",
                                     "glm4-moe-mtp",
                                     "gpt-oss",
                                     "gpt2",
                                     "granite",
                                     "granite-moe",
                                     "llama",
                                     "llama-tied",
                                     "llama-deep",
                                     "llama-yarn",
                                     "mistral",
                                     "mixtral",
                                     "mixtral-balanced",
                                     "neox",
                                     "olmo2",
                                     "olmo3",
                                     "olmoe",
                                     "phi3",
                                     "phi3-short",
                                     "phi3-long",
                                     "qwen2",
                                     "qwen2-layers",
                                     "qwen3",
                                     "qwen3-moe",
                                     "qwen3-moe-balanced",
                                     "qwen3-moe-step",
                                     "smollm3",
                                     "starcoder2",
                                     NULL};

static json_t *expected(const char *model)
{
    AUTO_FREE char *path = must_format(GOLDEN_MODELS "/%s/expected.json", model);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    return root;
}

void golden_configuration(const char *path, const char *model)
{
    json_t *root = expected(model);
    const char *over = json_string_value(json_object_get(root, "router_loss_over"));
    char *text = must_format(
        "model: {from: %s/%s, router_loss_over: %s}\n"
        "data: {train: %s, shuffle: false}\n"
        "train: {steps: 100, sequence: 32, micro_batch: 2, global_batch: 8, precision: fp32, device: cpu, threads: 1}\n"
        "optimizer: {lr: 1e-3, min_lr: 1e-4, schedule: cosine, warmup: 10, beta1: 0.9, beta2: 0.95, epsilon: 1e-8,\n"
        "            weight_decay: 0.1, clip: 1}\n"
        "checkpoint: {every: 0, resume: never}\n"
        "run: {tensorboard: false}\n",
        GOLDEN_MODELS, model, over ? over : "sequence", GOLDEN_DATA);
    workfolder_write(path, text, (int64_t)strlen(text));
    free(text);
    json_decref(root);
}

static double worse(double a, double b)
{
    if (isnan(b))
        return INFINITY;
    return b > a ? b : a;
}

/* Error of a value of step `step` (from 1) over all lines of a metrics.jsonl that have it; lines[step - 1] is
 * counted. */
static double compare(const char *metrics, const char *model, const char *key, const char *list, int steps,
                      double limit)
{
    json_t *root = expected(model), *values = json_object_get(root, list);
    FILE *in = fopen(metrics, "r");
    char line[4096];
    int seen = 0;
    double worst = 0;
    assert_non_null(in);
    assert_true((int)json_array_size(values) >= steps);
    while (fgets(line, sizeof line, in)) {
        json_t *entry = json_loads(line, 0, NULL), *value = json_object_get(entry, key);
        int step = (int)json_integer_value(json_object_get(entry, "step"));
        assert_non_null(entry);
        if (value && step <= steps) {
            double want = json_number_value(json_array_get(values, (size_t)step - 1));
            double got = json_is_number(value) ? json_number_value(value) : NAN; /* null: not finite */
            assert_int_equal(step, ++seen);
            worst = worse(worst, fabs(got - want) / fabs(want) / limit);
        }
        json_decref(entry);
    }
    fclose(in);
    json_decref(root);
    assert_int_equal(seen, steps);
    return worst;
}

double golden_losses(const char *metrics, const char *model, int steps)
{
    return compare(metrics, model, "loss", "losses", steps, 1e-4);
}

static bool is_expected(const char *model, const char *list)
{
    json_t *root = expected(model);
    bool has = json_object_get(root, list) != NULL;
    json_decref(root);
    return has;
}

double golden_router_losses(const char *metrics, const char *model, int steps)
{
    return is_expected(model, "router_losses") ? compare(metrics, model, "router_loss", "router_losses", steps, 1e-4)
                                               : 0;
}

double golden_mtp_losses(const char *metrics, const char *model, int steps)
{
    return is_expected(model, "mtp_losses") ? compare(metrics, model, "mtp_loss", "mtp_losses", steps, 1e-4) : 0;
}

double golden_norm(const char *metrics, const char *model)
{
    return compare(metrics, model, "grad_norm", "grad_norms", 1, 1e-5);
}

static int64_t elements(const safetensors_tensor *t)
{
    assert_int_equal(t->type, DTYPE_FP32);
    return t->bytes / 4;
}

static double element(const safetensors *s, const safetensors_tensor *t, int64_t i)
{
    float value;
    memcpy(&value, (const char *)safetensors_data(s, t) + 4 * i, sizeof value);
    return value;
}

double golden_gradients(const char *dump, const char *model)
{
    safetensors *ours, *theirs;
    AUTO_FREE char *path = must_format(GOLDEN_MODELS "/%s/gradients.safetensors", model);
    assert_int_equal(safetensors_open(&ours, dump), STATUS_OK);
    assert_int_equal(safetensors_open(&theirs, path), STATUS_OK);
    int count = safetensors_count(theirs);
    double *norm = must_calloc((unsigned long)count, sizeof *norm), all = 0, worst = 0;
    assert_int_equal(safetensors_count(ours), count);
    for (int k = 0; k < count; k++) {
        const safetensors_tensor *t = safetensors_at(theirs, k);
        for (int64_t i = 0; i < elements(t); i++)
            norm[k] += element(theirs, t, i) * element(theirs, t, i);
        all += norm[k];
    }
    for (int k = 0; k < count; k++) {
        const safetensors_tensor *t = safetensors_at(theirs, k), *o = tensors_find(ours, t->name);
        double error = 0;
        assert_non_null(o);
        assert_int_equal(o->dims, t->dims);
        assert_memory_equal(o->shape, t->shape, (size_t)t->dims * sizeof *t->shape);
        for (int64_t i = 0; i < elements(t); i++) {
            double difference = element(ours, o, i) - element(theirs, t, i);
            error += difference * difference;
        }
        worst = worse(worst, sqrt(error) / fmax(1e-5 * sqrt(norm[k]), 1e-7 * sqrt(all)));
    }
    free(norm);
    safetensors_close(ours);
    safetensors_close(theirs);
    return worst;
}

/* Called with the logits of each of the expected positions, in order. */
typedef void seen_logits(void *context, const float *logits, int64_t vocabulary, size_t index);

/* Decodes the first sample with the weights of `folder`. */
static void decode(const char *folder, const json_t *positions, precision_kind p, seen_logits *see, void *context)
{
    size_t next = 0, count = json_array_size(positions);
    int32_t last = (int32_t)json_integer_value(json_array_get(positions, count - 1));
    indexed *data;
    weights *from;
    comm *self;
    generator *g;
    assert_int_equal(indexed_open(&data, GOLDEN_DATA), STATUS_OK);
    assert_int_equal(weights_open(&from, folder), STATUS_OK);
    assert_int_equal(comm_open(&self), STATUS_OK);
    assert_int_equal(
        generator_open(&g, from, &(inference_ranks){.world = self, .where = INFERENCE_CPU}, p, 1, last + 1), STATUS_OK);
    int64_t vocabulary = weights_shape(from)->vocab_size;
    for (int32_t at = 0; at <= last; at++) {
        int32_t token;
        assert_int_equal(indexed_read(data, &token, at, 1, vocabulary), STATUS_OK);
        generator_step(g, &token, at);
        if (at == json_integer_value(json_array_get(positions, next)))
            see(context, generator_logits(g, 0), vocabulary, next++);
    }
    assert_int_equal(next, count);
    generator_close(g);
    comm_close(self);
    weights_close(from);
    indexed_close(data);
}

typedef struct logits_wanted {
    const json_t *logits; /* a row a position */
    double worst;         /* |got - want|, at most, as a share of the limit */
    double squares;       /* of the differences */
    int64_t count;
} logits_wanted;

static void compare_logits(void *context, const float *got, int64_t vocabulary, size_t index)
{
    logits_wanted *w = context;
    const json_t *want = json_array_get(w->logits, index);
    double largest = 0;
    size_t count = json_array_size(want);
    assert_int_equal(count, vocabulary);
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(json_number_value(json_array_get(want, i))));
    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - json_number_value(json_array_get(want, i)));
        w->worst = worse(w->worst, difference / (1e-5 * largest));
        w->squares += difference * difference;
        w->count++;
    }
}

double golden_logits(const char *folder, const char *model)
{
    json_t *root = expected(model);
    logits_wanted w = {.logits = json_object_get(root, "logits")};
    decode(folder, json_object_get(root, "logit_positions"), PRECISION_FP32, compare_logits, &w);
    assert_int_equal(w.count, json_array_size(w.logits) * json_array_size(json_array_get(w.logits, 0)));
    json_decref(root);
    return w.worst;
}

double golden_bf16(const char *model)
{
    json_t *root = expected(model), *bf16 = json_load_file(GOLDEN_MODELS "/bf16.json", 0, NULL);
    const json_t *row = json_object_get(bf16, model);
    logits_wanted w = {.logits = json_object_get(row, "logits")};
    double theirs = json_number_value(json_object_get(row, "error"));
    AUTO_FREE char *folder = must_format(GOLDEN_MODELS "/%s", model);
    assert_true(theirs > 0);
    decode(folder, json_object_get(root, "logit_positions"), PRECISION_BF16, compare_logits, &w);
    json_decref(root);
    json_decref(bf16);
    double ours = sqrt(w.squares / (double)w.count);
    return isfinite(ours) ? ours / theirs : INFINITY;
}
