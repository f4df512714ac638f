/* Every key of the configuration does something: a row for each says by what it is seen, and with which other settings.
 * A key without a row fails, and so does one whose change cannot be seen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config_table.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/keys.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

typedef struct keys_row {
    const char *key, *change; /* the value that is compared with what it is otherwise */
    keys_observer how;
    const char *with;  /* settings of both, or "" */
    const char *again; /* what is seen is a second run, with these settings besides (keys.h); NULL: the first */
    const char *test;  /* instead: the test program that shows it, which names the key */
    bool nothing;      /* no part of the program reads it yet */
} keys_row;

#define ROPE  "model.rope_scaling.factor=8 model.rope_scaling.original_max_sequence=200"
#define DEEP  "model.layers=4 train.global_batch=8"
#define PIPE  DEEP " parallel.pipeline=2"
#define SPLIT "train.global_batch=8 parallel.data=2"
#define YARN  "model.rope_scaling.kind=yarn " ROPE
#define LONGROPE                                                                                                       \
    "model.rotary_size=4 model.rope_scaling.kind=longrope model.rope_scaling.factor=8 "                                \
    "model.rope_scaling.short_factor=[1,2] "                                                                           \
    "model.rope_scaling.long_factor=[2,3]"
#define EXPERTS "model.architecture=olmoe model.experts=4"
#define SHARED  "model.architecture=glm4_moe model.experts=4 model.shared_experts=1"
#define LATENT                                                                                                         \
    "model.architecture=deepseek_v3 model.experts=4 model.kv_lora_rank=12 model.rope_head_size=4 -model.kv_heads"
#define CLAMPED "model.architecture=gpt_oss model.experts=4"
#define EVAL    "data.validation=TOP/held"
#define CUDA    "train.device=cuda"
#define FP16    "train.precision=fp16 train.max_skipped=20"

/* clang-format off */
/* key, the value it is changed to, settings of both runs */
#define PLANNED(key, change, with)      {key, change, KEYS_PLANNED, with, NULL, NULL, false}
#define TRAINED(key, change, with)      {key, change, KEYS_TRAINED, with, NULL, NULL, false}
#define FILES(key, change, with)        {key, change, KEYS_FILES, with, NULL, NULL, false}
#define SCREEN(key, change, with)       {key, change, KEYS_SCREEN, with, NULL, NULL, false}
#define DEVICE(key, change, with)       {key, change, KEYS_DEVICE, with, NULL, NULL, false}
/* what a second run says, which differs from the first by `again` */
#define AGAIN(key, change, again)       {key, change, KEYS_SCREEN, "", again, NULL, false}
#define SHOWN_BY(key, test)             {key, NULL, KEYS_OBSERVERS, "", NULL, test, false}
/* nothing reads it yet: where something does, the row says how its effect is seen */
#define NOT_YET(key, change, how, with) {key, change, how, with, NULL, NULL, true}
/* clang-format on */

static const keys_row rows[] = {
    /* clang-format off */
    PLANNED("model.preset", "llama-160m", "-model. model.preset=llama-15m"),
    PLANNED("model.architecture", "gpt2", ""),
    PLANNED("model.layers", "3", ""),
    PLANNED("model.hidden_size", "32", ""),
    PLANNED("model.heads", "2", ""),
    PLANNED("model.kv_heads", "4", ""),
    PLANNED("model.head_size", "8", ""),
    PLANNED("model.ffn_size", "48", ""),
    PLANNED("model.kv_lora_rank", "16", LATENT),
    PLANNED("model.q_lora_rank", "16", LATENT),
    PLANNED("model.rope_head_size", "2", LATENT),
    PLANNED("model.v_head_size", "8", LATENT),
    PLANNED("model.attention_bias", "true", LATENT),
    PLANNED("model.experts", "5", EXPERTS),
    PLANNED("model.experts_per_token", "3", EXPERTS),
    PLANNED("model.expert_ffn_size", "48", EXPERTS),
    TRAINED("model.router_renormalise", "true", EXPERTS),
    TRAINED("model.swiglu_limit", "0.01", CLAMPED),
    TRAINED("model.swiglu_alpha", "3", CLAMPED),
    PLANNED("model.shared_experts", "2", SHARED),
    PLANNED("model.qk_norm", "true", SHARED),
    TRAINED("model.router_scale", "2.5", EXPERTS),
    TRAINED("model.router_groups", "2", SHARED " model.router_groups_kept=1 model.experts_per_token=1"),
    TRAINED("model.router_groups_kept", "2", SHARED " model.router_groups=2 model.experts_per_token=1 model.router_groups_kept=1"),
    PLANNED("model.dense_layers", "1", EXPERTS),
    PLANNED("model.experts_every", "2", EXPERTS),
    PLANNED("model.expert_capacity", "2", SPLIT " " EXPERTS " parallel.expert=2"),
    PLANNED("model.expert_spill", "0", SPLIT " " EXPERTS " parallel.expert=2 model.expert_capacity=0.25"),
    PLANNED("model.expert_drop", "true", SPLIT " " EXPERTS " parallel.expert=2 model.expert_capacity=0.25"),
    TRAINED("model.router_loss", "0.1", EXPERTS),
    TRAINED("model.router_z_loss", "0.1", EXPERTS),
    TRAINED("model.router_bias_rate", "0.1", EXPERTS),
    TRAINED("model.router_loss_over", "layer", EXPERTS " model.router_loss=0.1"),
    PLANNED("model.mtp_layers", "1", "model.architecture=glm4_moe model.experts=4"),
    TRAINED("model.mtp_loss", "0.5", "model.architecture=glm4_moe model.experts=4 model.mtp_layers=1"),
    PLANNED("model.vocab_size", "140", ""),
    PLANNED("model.max_sequence", "40", "model.architecture=gpt2 model.kv_heads=4"),
    PLANNED("model.tied_embeddings", "true", ""),
    TRAINED("model.rope_theta", "500", ""),
    SHOWN_BY("model.rope_parameters", "tests/tools/test_inspect_huggingface.c"),
    TRAINED("model.rope_scaling.factor", "4", ROPE),
    TRAINED("model.rope_scaling.low_frequency_factor", "0.5", ROPE),
    TRAINED("model.rope_scaling.high_frequency_factor", "8", ROPE),
    TRAINED("model.rope_scaling.original_max_sequence", "64", ROPE),
    TRAINED("model.rope_scaling.kind", "linear", ROPE),
    TRAINED("model.rope_scaling.beta_fast", "1.1", YARN),
    TRAINED("model.rope_scaling.beta_slow", "0.01", YARN),
    TRAINED("model.rope_scaling.attention_factor", "1.5", YARN),
    TRAINED("model.rope_scaling.mscale", "0.5", LATENT " " YARN " model.rope_scaling.mscale_all_dim=1"),
    TRAINED("model.rope_scaling.mscale_all_dim", "0.5", LATENT " " YARN),
    TRAINED("model.rope_scaling.fractional", "true", YARN),
    TRAINED("model.rope_scaling.short_factor", "[1,3]", LONGROPE " model.rope_scaling.original_max_sequence=200"),
    TRAINED("model.rope_scaling.long_factor", "[2,4]", LONGROPE " model.rope_scaling.original_max_sequence=4"),
    TRAINED("model.unrotated_every", "2", ""),
    TRAINED("model.rotary_size", "4", ""),
    TRAINED("model.rope_local_theta", "500", "model.sliding_window=5"),
    TRAINED("model.embedding_multiplier", "3", ""),
    TRAINED("model.residual_multiplier", "0.5", ""),
    TRAINED("model.attention_multiplier", "0.1", ""),
    TRAINED("model.logits_scaling", "4", ""),
    TRAINED("model.attention_cap", "0.5", ""),
    TRAINED("model.logits_cap", "0.5", ""),
    TRAINED("model.norm_epsilon", "0.01", ""),
    TRAINED("model.sliding_window", "5", ""),
    TRAINED("model.full_first", "1", "model.sliding_window=5"),
    TRAINED("model.full_every", "2", "model.sliding_window=5"),
    TRAINED("model.from", "TOP/begun", ""),
    SHOWN_BY("model.upcycle", "tests/jobs/test_golden.c"),
    PLANNED("model.config", "tests/golden/models/qwen3/config.json", "-model. model.config=tests/golden/models/llama/config.json"),

    TRAINED("data.train", "TOP/other", ""),
    TRAINED("data.validation", "TOP/held", "evaluate.every=1"),
    FILES("data.tokenizer", "tests/golden/text/gpt2.json", ""),
    SHOWN_BY("data.allow_changed", "tests/jobs/test_recovery.c"),
    SHOWN_BY("data.cache", "tests/jobs/test_stored.c"),
    SHOWN_BY("data.cache_size", "tests/jobs/test_stored.c"),
    SHOWN_BY("data.skip_bad", "tests/jobs/test_endings.c"),
    TRAINED("data.shuffle", "false", ""),
    TRAINED("data.document_mask", "true", ""),

    TRAINED("train.steps", "4", ""),
    PLANNED("train.sequence", "8", ""),
    PLANNED("train.micro_batch", "4", ""),
    PLANNED("train.global_batch", "8", ""),
    TRAINED("train.batch_ramp", "[[0,2],[1,4]]", ""),
    PLANNED("train.precision", "bf16", ""),
    TRAINED("train.seed", "4", ""),
    DEVICE("train.device", "cuda", ""),
    DEVICE("train.tf32", "true", CUDA),
    DEVICE("train.deterministic", "false", CUDA),
    DEVICE("train.tune", "false", CUDA),
    DEVICE("train.cuda_graph", "true", CUDA),
    TRAINED("train.dropout", "0.2", ""),
    TRAINED("train.max_skipped", "2", FP16 " train.loss_scale=4294967296"),
    PLANNED("train.threads", "3", ""),
    TRAINED("train.loss_scale", "4294967296", FP16),
    TRAINED("train.loss_scale_window", "2", FP16 " train.loss_scale=1024"),

    TRAINED("optimizer.name", "sgd", ""),
    TRAINED("optimizer.lr", "2e-2", ""),
    TRAINED("optimizer.min_lr", "5e-3", "optimizer.schedule=linear"),
    TRAINED("optimizer.schedule", "cosine", ""),
    TRAINED("optimizer.warmup", "2", ""),
    TRAINED("optimizer.decay_fraction", "0.9", "optimizer.schedule=wsd train.steps=5"),
    TRAINED("optimizer.beta1", "0.5", ""),
    TRAINED("optimizer.beta2", "0.5", ""),
    TRAINED("optimizer.epsilon", "0.01", ""),
    TRAINED("optimizer.weight_decay", "10", ""),
    TRAINED("optimizer.momentum", "0.5", "optimizer.name=sgd"),
    TRAINED("optimizer.nesterov", "false", "optimizer.name=sgd"),
    TRAINED("optimizer.muon_lr", "0.5", "optimizer.name=muon"),
    TRAINED("optimizer.qk_clip", "1e-6", "optimizer.name=muon"),
    TRAINED("optimizer.muon_adjust", "match_rms_adamw", "optimizer.name=muon"),
    TRAINED("optimizer.clip", "0.01", ""),
    TRAINED("optimizer.state", "bf16", ""),
    TRAINED("optimizer.master", "bf16", "train.precision=bf16"),

    PLANNED("parallel.tensor", "2", ""),
    PLANNED("parallel.context", "2", ""),
    SHOWN_BY("parallel.context_balance", "tests/jobs/test_context.c"),
    PLANNED("parallel.pipeline", "2", ""),
    PLANNED("parallel.virtual_stages", "2", PIPE " parallel.schedule=interleaved"),
    PLANNED("parallel.expert", "2", SPLIT " " EXPERTS),
    PLANNED("parallel.context_gather", "latent", LATENT " parallel.context=2 parallel.context_gather=keys"),
    PLANNED("parallel.expert_dispatch", "slots", SPLIT " " EXPERTS " parallel.expert=2"),
    PLANNED("parallel.data", "2", ""),
    PLANNED("parallel.schedule", "gpipe", PIPE),
    SHOWN_BY("parallel.schedule_for", "tests/engine/compile/plan/test_plan.c"),
    PLANNED("parallel.vocabulary", "stages", PIPE),
    PLANNED("parallel.sequence", "false", "parallel.tensor=2"),
    PLANNED("parallel.zero", "3", SPLIT),
    PLANNED("parallel.zero_gather", "micro_batch", SPLIT " parallel.zero=3"),
    PLANNED("parallel.zero_reduce", "micro_batch", SPLIT " parallel.zero=2"),
    PLANNED("parallel.order", "none", "parallel.tensor=2"),
    PLANNED("parallel.layers_per_stage", "[1,3]", PIPE),
    PLANNED("parallel.bucket", "1KiB", SPLIT),
    PLANNED("parallel.compress", "int8", SPLIT),
    PLANNED("parallel.density", "0.2", SPLIT " parallel.compress=topk"),

    PLANNED("memory.recompute", "full", ""),
    PLANNED("memory.budget", "320KiB", ""),
    SHOWN_BY("memory.offload", "tests/cuda/test_cuda_offload.c"),
    SHOWN_BY("memory.window", "tests/cuda/test_cuda_offload.c"),

    SHOWN_BY("outer.bandwidth", "tests/engine/islands/test_transport.c"),
    SHOWN_BY("outer.clip", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.noise", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.group", "tests/engine/islands/test_outer.c"),
    SHOWN_BY("outer.topology", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.staleness", "tests/jobs/test_server.c"),
    SHOWN_BY("outer.every", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.optimizer", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.lr", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.momentum", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.fragments", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.delay", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.mix", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.compress", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.density", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.error_decay", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.robust", "tests/jobs/test_merges.c"),
    SHOWN_BY("outer.undo", "tests/jobs/test_undo.c"),
    SHOWN_BY("outer.weights", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.rendezvous", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.credentials", "tests/jobs/test_secrets.c"),
    SHOWN_BY("outer.run", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.island", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.keys", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.address", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.slots", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.slot", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.private_data", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.min_islands", "tests/jobs/test_islands.c"),
    SHOWN_BY("outer.timeout", "tests/jobs/test_islands.c"),

    FILES("checkpoint.every", "1", "checkpoint.keep=0"),
    FILES("checkpoint.keep", "1", "checkpoint.every=1"),
    FILES("checkpoint.keep_every", "2", "checkpoint.every=1 checkpoint.keep=1"),
    SHOWN_BY("checkpoint.fallback", "tests/jobs/test_recovery.c"),
    SHOWN_BY("checkpoint.asynchronous", "tests/jobs/test_recovery.c"),
    SHOWN_BY("checkpoint.export.every", "tests/jobs/test_exports.c"),
    SHOWN_BY("checkpoint.export.format", "tests/jobs/test_exports.c"),
    SHOWN_BY("checkpoint.memory_every", "tests/jobs/test_node_copies.c"),
    SHOWN_BY("checkpoint.mirror", "tests/jobs/test_mirror.c"),
    AGAIN("checkpoint.resume", "never", "train.steps=4"),
    SHOWN_BY("checkpoint.restart_data", "tests/jobs/test_stages.c"),
    SHOWN_BY("checkpoint.restart_schedule", "tests/jobs/test_stages.c"),

    TRAINED("evaluate.every", "1", EVAL),
    TRAINED("evaluate.batches", "3", EVAL " evaluate.every=1"),

    FILES("run.folder", "TOP/observed/elsewhere", ""),
    SCREEN("run.log_every", "2", ""),
    SCREEN("run.log_format", "json", ""),
    FILES("run.loads_every", "0", EXPERTS),
    SHOWN_BY("run.verify_every", "tests/jobs/test_verify.c"),
    SHOWN_BY("run.first_steps", "tests/jobs/test_first_run.c"),
    SHOWN_BY("run.hash_every", "tests/jobs/test_parity.c"),
    SHOWN_BY("run.slow_ratio", "tests/jobs/test_pace.c"),
    SHOWN_BY("run.spike.zscore", "tests/jobs/test_spikes.c"),
    SHOWN_BY("run.spike.rewind", "tests/jobs/test_spikes.c"),
    SHOWN_BY("run.trace", "tests/tools/plan/test_timeline.c"),
    FILES("run.tensorboard", "true", ""),
    FILES("run.resource_seconds", "0", ""),
    SHOWN_BY("run.mlflow", "tests/jobs/test_metrics.c"),
    SHOWN_BY("run.mlflow_experiment", "tests/jobs/test_metrics.c"),
    SHOWN_BY("run.mlflow_name", "tests/jobs/test_metrics.c"),
    SHOWN_BY("run.lock", "tests/jobs/test_recovery.c"),
    SHOWN_BY("run.hang_seconds", "tests/jobs/test_watch.c"),
    SHOWN_BY("run.silent_seconds", "tests/jobs/test_phases.c"),
    SHOWN_BY("run.setup_seconds", "tests/jobs/test_phases.c"),
    SHOWN_BY("run.evaluation_seconds", "tests/jobs/test_phases.c"),
    SHOWN_BY("run.load_seconds", "tests/jobs/test_phases.c"),
    SHOWN_BY("run.save_seconds", "tests/jobs/test_phases.c"),
    SHOWN_BY("run.exit_when_stopped", "tests/jobs/test_endings.c"),

    FILES("debug.gradients", "TOP/observed/gradients", ""),
    FILES("debug.at_step", "2", "debug.gradients=TOP/observed/gradients"),

    DEVICE("profile.start", "2", CUDA " profile.start=1 profile.stop=3"),
    DEVICE("profile.stop", "3", CUDA " profile.start=1 profile.stop=2"),
    /* clang-format on */
};

enum { ROWS = sizeof rows / sizeof *rows };

static int prepare(void **state)
{
    if (workfolder_setup(state))
        return -1;
    keys_prepare(*state);
    return 0;
}

/* What many rows are compared with is observed once. */
static struct seen {
    const keys_row *row;
    char *text;
} seen[ROWS];

static bool same_words(const char *a, const char *b)
{
    return !strcmp(a ? a : "", b ? b : "");
}

static const char *unchanged(const char *top, const keys_row *row)
{
    struct seen *s = seen;
    while (s->row &&
           (s->row->how != row->how || strcmp(s->row->with, row->with) != 0 || !same_words(s->row->again, row->again)))
        s++;
    if (!s->row) {
        s->row = row;
        s->text = keys_observe(top, row->how, row->with, row->again);
    }
    return s->text;
}

static bool effect_is_seen(const char *top, const keys_row *row)
{
    AUTO_FREE char *with = must_format("%s %s=%s", row->with, row->key, row->change);
    AUTO_FREE char *changed = keys_observe(top, row->how, with, row->again);
    const char *before = unchanged(top, row);
    bool different = strcmp(changed, before) != 0;
    if (!different && !row->nothing)
        fprintf(stderr, "%s=%s changes nothing in:\n%.600s\n", row->key, row->change, before);
    if (different && row->nothing)
        fprintf(stderr, "%s=%s has an effect by now: say so in its row\n", row->key, row->change);
    return different != row->nothing;
}

static bool named_in_its_test(const keys_row *row)
{
    int64_t bytes;
    AUTO_FREE char *text = (char *)workfolder_read(row->test, &bytes);
    bool named = strstr(text, row->key) != NULL;
    if (!named)
        fprintf(stderr, "%s does not name %s\n", row->test, row->key);
    return named;
}

TEST(every_key_has_a_row_and_every_row_a_key)
{
    int wrong = 0;
    for (int i = 0; i < config_table_rows(); i++) {
        const char *key = config_table_row(i)->key;
        int count = 0;
        for (int k = 0; k < ROWS; k++)
            count += !strcmp(rows[k].key, key);
        if (count != 1)
            fprintf(stderr, "%s has %d rows: say how its effect is seen\n", key, count);
        wrong += count != 1;
    }
    for (int k = 0; k < ROWS; k++)
        if (config_table_find(rows[k].key) < 0) {
            fprintf(stderr, "%s is no key\n", rows[k].key);
            wrong++;
        }
    assert_int_equal(wrong, 0);
}

TEST(every_key_has_an_effect)
{
    int wrong = 0;
    for (int k = 0; k < ROWS; k++)
        wrong += !(rows[k].test ? named_in_its_test(&rows[k]) : effect_is_seen(*state, &rows[k]));
    assert_int_equal(wrong, 0);
}

/* Otherwise any change would seem to have an effect. */
TEST(what_is_compared_is_the_same_each_time)
{
    int wrong = 0;
    for (struct seen *s = seen; s < seen + ROWS && s->row; s++) {
        AUTO_FREE char *again = keys_observe(*state, s->row->how, s->row->with, s->row->again);
        if (strcmp(again, s->text) != 0) {
            fprintf(stderr, "%s: once\n%.300s\nand then\n%.300s\n", s->row->key, s->text, again);
            wrong++;
        }
        free(s->text);
        s->text = NULL;
    }
    assert_int_equal(wrong, 0);
}

TEST_MAIN(prepare, workfolder_teardown)
