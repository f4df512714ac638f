/* What the configuration refuses, and in which words: file and line or argument, key, what was expected. */
#include <string.h>

#include "engine/config/config.h"
#include "tests/test.h"

static status parse(config *c, const char *text, int overrides, const char **override)
{
    return config_parse(c, "a.yaml", text, strlen(text), overrides, (char **) override);
}

#define SMALL "model: {preset: llama-15m}\n"
#define MTP                                                                                                            \
    "model: {architecture: glm4_moe, layers: 2, hidden_size: 32, heads: 4, experts: 4, vocab_size: 64, mtp_layers: "   \
    "1}\n"

static const struct {
    const char *text, *override, *message;
} refusals[] = {
    /* keys */
    {SMALL "trian:\n  steps: 3\n", NULL, "a.yaml:2: unknown key trian; did you mean train?"},
    {SMALL "train:\n  stesp: 3\n", NULL, "a.yaml:3: unknown key train.stesp; did you mean train.steps?"},
    {SMALL "lr: 3\n", NULL, "a.yaml:2: unknown key lr; did you mean optimizer.lr?"},
    {SMALL "train: {lr: 3}\n", NULL, "a.yaml:2: unknown key train.lr; did you mean optimizer.lr?"},
    {SMALL "zzzzzz: 3\n", NULL, "a.yaml:2: unknown key zzzzzz; `phalanx train --help` lists all keys"},
    {SMALL "[1, 2]: 3\n", NULL, "a.yaml:2: unknown key (not a word); `phalanx train --help` lists all keys"},
    {SMALL "\"\": {}\n", NULL, "a.yaml:2: unknown key (not a word); `phalanx train --help` lists all keys"},
    {SMALL "\"a\\nb\": 1\n", NULL, "a.yaml:2: unknown key (not a word); `phalanx train --help` lists all keys"},
    {"model:\n  rope_scaling: {facto: 2}\n", NULL,
     "a.yaml:2: unknown key model.rope_scaling.facto; did you mean model.rope_scaling.factor?"},
    {"root:$6$salt$hash:20228:0:99999:7::: \n", NULL,
     "a.yaml:1: unknown key (not a word); `phalanx train --help` lists all keys"},
    {SMALL, "train.stesp=3", "command line: unknown key train.stesp; did you mean train.steps?"},
    {SMALL, "train.learning_rate=3", "command line: unknown key train.learning_rate; did you mean optimizer.lr?"},
    {SMALL, "num-layers=3", "command line: unknown key num-layers; did you mean model.layers?"},
    {SMALL "evalu: 3\n", NULL, "a.yaml:2: unknown key evalu; did you mean evaluate?"},
    {SMALL "train: {device: gpu}\n", NULL,
     "a.yaml:2: train.device: expected one of cpu, cuda, auto, not gpu; did you mean cuda?"},
    {SMALL "train: {precision: bfloat16}\n", NULL,
     "a.yaml:2: train.precision: expected one of fp32, bf16, fp16, not bfloat16; did you mean bf16?"},
    {SMALL, "train.steps", "command line: expected section.key=value, not train.steps"},
    {SMALL, "--steps=3", "command line: expected section.key=value, not --steps=3"},
    {SMALL, "train.steps=#", "command line: train.steps: no value after the ="},
    {SMALL,
     "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4"
     "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4=1",
     "command line: unknown key "
     "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4"
     "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4...; `phalanx train --help` lists "
     "all keys"},
    {SMALL, "run.export=[mlflow]",
     "command line: run.export is gone, and with it MLflow's file store, which MLflow 3 refuses: give run.mlflow the "
     "address of an MLflow server"},
    /* twice */
    {SMALL "train:\n  steps: 3\n  seed: 1\n  steps: 4\n", NULL,
     "a.yaml:5: train.steps is given twice (first in line 3); keep one"},
    {SMALL "train:\n  steps: 3\ntrain:\n  steps: 4\n", NULL,
     "a.yaml:5: train.steps is given twice (first in line 3); keep one"},
    {SMALL, "train={steps: 1, steps: 2}", "command line: train.steps is given twice; keep one"},
    {SMALL "data: {train: [{path: a, path: b}]}\n", NULL, "a.yaml:2: data.train: path of a data set is given twice"},
    /* types */
    {SMALL "train: 3\n", NULL, "a.yaml:2: train is a section: expected keys with values under it"},
    {"- 3\n", NULL, "a.yaml:1: a configuration is a section: expected keys with values under it"},
    {SMALL "train: {steps: ten}\n", NULL, "a.yaml:2: train.steps: expected an integer, at least 1, not ten"},
    {SMALL "train: {steps: 1.5}\n", NULL, "a.yaml:2: train.steps: expected an integer, at least 1, not 1.5"},
    {SMALL "train: {steps: \"10\"}\n", NULL,
     "a.yaml:2: train.steps: expected an integer, at least 1, not the string \"10\""},
    {SMALL "train: {steps: [1]}\n", NULL, "a.yaml:2: train.steps: expected an integer, at least 1, not a list"},
    {SMALL "train: {steps: }\n", NULL, "a.yaml:2: train.steps: expected an integer, at least 1, not nothing"},
    {SMALL "train: {steps: 99999999999999999999}\n", NULL,
     "a.yaml:2: train.steps: expected an integer, at least 1, not 99999999999999999999"},
    {SMALL "train: {steps: 0}\n", NULL, "a.yaml:2: train.steps: expected an integer, at least 1, not 0"},
    {SMALL "parallel: {zero: 4}\n", NULL, "a.yaml:2: parallel.zero: expected an integer from 0 to 3, not 4"},
    {SMALL, "parallel.zero=-1", "command line: parallel.zero: expected an integer from 0 to 3, not -1"},
    {SMALL "train: {micro_batch: 4294967300}\n", NULL,
     "a.yaml:2: train.micro_batch: expected an integer, at least 1, not 4294967300"},
    {SMALL "optimizer: {lr: nan}\n", NULL, "a.yaml:2: optimizer.lr: expected a number from 0 to 1000, not nan"},
    {SMALL "optimizer: {lr: 1e999}\n", NULL, "a.yaml:2: optimizer.lr: expected a number from 0 to 1000, not 1e999"},
    {SMALL "optimizer: {lr: 0x10}\n", NULL, "a.yaml:2: optimizer.lr: expected a number from 0 to 1000, not 0x10"},
    {SMALL "optimizer: {lr: -1}\n", NULL, "a.yaml:2: optimizer.lr: expected a number from 0 to 1000, not -1"},
    {SMALL "data: {shuffle: maybe}\n", NULL, "a.yaml:2: data.shuffle: expected true or false, not maybe"},
    {SMALL "data: {shuffle: 1}\n", NULL, "a.yaml:2: data.shuffle: expected true or false, not 1"},
    {SMALL "train: {precision: bf61}\n", NULL,
     "a.yaml:2: train.precision: expected one of fp32, bf16, fp16, not bf61; did you mean bf16?"},
    {SMALL "train: {device: {}}\n", NULL, "a.yaml:2: train.device: expected one of cpu, cuda, auto, not a map"},
    {SMALL "optimizer: {name: lyon}\n", NULL,
     "a.yaml:2: optimizer.name: expected one of adamw, lion, sgd, muon, not lyon; did you mean lion?"},
    {"model: {preset: llama_8b}\n", NULL,
     "a.yaml:1: model.preset: expected one of gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, llama-15m, llama-160m, "
     "llama-1b, llama-7b, llama-8b, llama-70b, llama-405b, gemma2-2b, gemma2-9b, gemma2-27b, gemma3-1b, gemma3-4b, "
     "gemma3-12b, gemma3-27b, granite-2b, "
     "granite-8b, smollm3-3b, olmo2-1b, olmo2-7b, olmo2-13b, olmo2-32b, olmo3-7b, olmo3-32b, phi3-4b, phi4-14b, "
     "glm4-9b, mixtral-8x7b, mixtral-8x22b, qwen3-30b-a3b, qwen3-235b-a22b, glm-4.5-air, glm-4.5, deepseek-v2-lite, "
     "moonlight-16b-a3b, deepseek-v3, kimi-k2, gpt-oss-20b, gpt-oss-120b, olmoe-1b-7b, "
     "granite-3b-a800m, pythia-160m, pythia-1b, pythia-7b, pythia-12b, not llama_8b; did you mean llama-8b?"},
    {SMALL "memory: {budget: 10GiBs}\n", NULL,
     "a.yaml:2: memory.budget: expected a size such as 10GiB or 512MiB, not 10GiBs"},
    {SMALL "memory: {budget: \"10\"}\n", NULL,
     "a.yaml:2: memory.budget: expected a size such as 10GiB or 512MiB, not the string \"10\""},
    {SMALL "memory: {budget: -1}\n", NULL, "a.yaml:2: memory.budget: expected a size such as 10GiB or 512MiB, not -1"},
    {SMALL "memory: {budget: 1e30TiB}\n", NULL,
     "a.yaml:2: memory.budget: expected a size such as 10GiB or 512MiB, not 1e30TiB"},
    {SMALL "run: {folder: [a]}\n", NULL, "a.yaml:2: run.folder: expected a string, not a list"},
    {SMALL "run: {folder: \"a\\0b\"}\n", NULL, "a.yaml:2: run.folder: expected a string, not the string \"a\""},
    {"model: {rope_scaling: {short_factor: 3}}\n", NULL,
     "a.yaml:1: model.rope_scaling.short_factor: expected a list of at most 64 numbers from 1e-06 to 1000000, not 3"},
    {"model: {rope_scaling: {long_factor: [1, 0]}}\n", NULL,
     "a.yaml:1: model.rope_scaling.long_factor: expected a list of at most 64 numbers from 1e-06 to 1000000, not 0"},
    {SMALL "parallel: {layers_per_stage: 3}\n", NULL,
     "a.yaml:2: parallel.layers_per_stage: expected a list of integers, each at least 0, not 3"},
    {SMALL "parallel: {layers_per_stage: [3, a]}\n", NULL,
     "a.yaml:2: parallel.layers_per_stage: expected a list of integers, each at least 0, not a"},
    /* data sets */
    {SMALL "data: {train: [[a]]}\n", NULL,
     "a.yaml:2: data.train: expected a prefix of .bin and .idx, or a list of prefixes or {path, weight}, not a list"},
    {SMALL "data: {train: [{path: a, wieght: 2}]}\n", NULL,
     "a.yaml:2: data.train: unknown key wieght of a data set; it has path and weight"},
    {SMALL "data: {train: [{weight: 2}]}\n", NULL,
     "a.yaml:2: data.train: a data set without a path: give the prefix of its .bin and .idx"},
    {SMALL "data: {train: [{path: a, weight: 0}]}\n", NULL,
     "a.yaml:2: data.train: weight: expected a number from 1e-12 to 1e+12, not 0"},
    /* YAML itself */
    {SMALL "train: {steps: 3\n", NULL,
     "a.yaml:3: not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'"},
    {SMALL "\ttrain: 3\n", NULL,
     "a.yaml:2: not valid YAML: while scanning for the next token, found character that cannot start any token"},
    {SMALL "---\ntrain: {steps: 3}\n", NULL, "a.yaml:3: a second document begins here; keep one"},
    {SMALL "run: {folder: \x80}\n", NULL, "a.yaml:2: not valid YAML: invalid leading UTF-8 octet"},
    {SMALL, "train.steps=]",
     "command line: train.steps: not valid YAML: while parsing a block node, did not find expected node content"},
    /* between keys */
    {"", NULL, "a.yaml: model.layers is not given: name a model.preset, a model.config or every size"},
    {"model: {layers: 2, hidden_size: 8, heads: 2}\n", NULL,
     "a.yaml: model.vocab_size is not given: name a model.preset, a model.config or every size"},
    {"model: {preset: llama-15m, config: c.json}\n", NULL,
     "a.yaml: model.preset and model.config both name the sizes; keep one"},
    {SMALL "train: {sequence: 512}\n", NULL,
     "a.yaml: train.sequence 512 exceeds model.max_sequence 256: lower the first or raise the second"},
    {SMALL "train: {micro_batch: 5}\n", NULL,
     "a.yaml: train.global_batch 32 is not a multiple of train.micro_batch 5: change one"},
    {SMALL "optimizer: {master: bf16}\ntrain: {precision: fp32}\n", NULL,
     "a.yaml: optimizer.master bf16 needs train.precision bf16, not fp32: change one"},
    {SMALL "optimizer: {qk_clip: 100}\n", NULL,
     "a.yaml: optimizer.qk_clip 100 scales weights after Muon's update: set optimizer.name to muon, or leave "
     "optimizer.qk_clip out"},
    {"model: {architecture: qwen3, layers: 2, hidden_size: 32, heads: 4, vocab_size: 64}\n"
     "optimizer: {name: muon, qk_clip: 100}\n",
     NULL,
     "a.yaml: optimizer.qk_clip 100: the model normalises queries and keys, so that their weights' size changes no "
     "score; leave it out"},
    {"model: {architecture: qwen2, layers: 2, hidden_size: 32, heads: 4, vocab_size: 64}\n"
     "optimizer: {name: muon, qk_clip: 100}\n",
     NULL,
     "a.yaml: optimizer.qk_clip 100: the model adds biases to queries and keys, which would stay as they are; leave it "
     "out"},
    {"model: {architecture: gemma2, layers: 2, hidden_size: 32, heads: 4, vocab_size: 64, attention_cap: 50}\n"
     "optimizer: {name: muon, qk_clip: 100}\n",
     NULL, "a.yaml: optimizer.qk_clip 100: model.attention_cap bounds scores already; leave it out"},
    {SMALL "optimizer: {lr: 1e-4, min_lr: 2e-4}\n", NULL,
     "a.yaml: optimizer.min_lr 0.0002 exceeds optimizer.lr 0.0001: lower the first"},
    {SMALL "optimizer: {schedule: wsd, warmup: 600, decay_fraction: 0.5}\n", NULL,
     "a.yaml: optimizer.warmup 600 and the last 0.5 of the steps (optimizer.decay_fraction) overlap in 1000 "
     "train.steps: "
     "lower one"},
    {"model: {architecture: mixtral, layers: 2, hidden_size: 32, heads: 4, experts: 4, vocab_size: 64, expert_drop: "
     "true}\n",
     NULL,
     "a.yaml: model.expert_drop drops rows beyond the share of a rank of parallel.expert, and with 1 a rank has all "
     "experts and room for all rows: leave it out, or divide the experts"},
    {"model: {architecture: mixtral, layers: 2, hidden_size: 32, heads: 4, vocab_size: 64, upcycle: true}\n", NULL,
     "a.yaml: model.upcycle copies the mlp of a dense model: name its folder in model.from"},
    {SMALL "model.mtp_layers: 1\n", NULL,
     "a.yaml: model.mtp_layers is 1: llama has no block behind its last layer; leave it out, or choose glm4_moe or "
     "deepseek_v3 as "
     "model.architecture"},
    {MTP "model.router_loss: 0.1\nmodel.router_loss_over: pooled\n", NULL,
     "a.yaml: model.router_loss_over pooled is over all layers, and model.mtp_layers 1 has a block behind them: use "
     "sequence, layer or batch"},
    {MTP "train: {sequence: 1}\n", NULL,
     "a.yaml: model.mtp_layers 1 predicts the token after the next: train.sequence must be at least 2"},
    {SMALL "parallel: {zero: 2, compress: int8}\n", NULL,
     "a.yaml: parallel.compress int8 needs whole gradients to compress, which parallel.zero 2 does not keep: use "
     "parallel.zero "
     "1 "
     "or 0"},
    {SMALL "parallel: {pipeline: 2, schedule: zb-v}\n", NULL,
     "a.yaml: parallel.schedule zb-v needs parallel.virtual_stages 2, not 1: change one"},
    {SMALL "parallel: {tensor: 4}\n", NULL,
     "a.yaml: parallel.tensor 4 does not divide model.heads 6: choose a divisor"},
    {SMALL "model.kv_heads: 2\nparallel: {tensor: 3}\n", NULL,
     "a.yaml: parallel.tensor 3 must divide model.kv_heads 2 or be a multiple of it: choose another"},
    {SMALL "parallel: {context: 3}\ntrain: {sequence: 256}\n", NULL,
     "a.yaml: train.sequence 256 is not a multiple of 2 x parallel.context 3: each rank has two runs of a sample; use "
     "a "
     "multiple of 6"},
    {SMALL "parallel: {context: 2, context_balance: documents}\n", NULL,
     "a.yaml: parallel.context_balance documents is for samples of masked documents: set data.document_mask true, or "
     "leave it at halves, which have equal work"},
    {SMALL "parallel: {pipeline: 2, layers_per_stage: [1, 2, 3]}\n", NULL,
     "a.yaml: parallel.layers_per_stage has 3 entries, but there are 2 chunks (2 stages x 1 virtual stages): give one "
     "number for each"},
    {SMALL "parallel: {pipeline: 2, layers_per_stage: [1, 2]}\n", NULL,
     "a.yaml: parallel.layers_per_stage sums to 3, but the model has 6 layers"},
    {SMALL "parallel: {pipeline: 3, virtual_stages: 3}\n", NULL,
     "a.yaml: parallel.pipeline 3 x virtual_stages 3 leaves runs without a layer, besides the first and the last: "
     "model.layers is 6"},
    {SMALL "parallel: {pipeline: 4, virtual_stages: 2, vocabulary: stages}\n", NULL,
     "a.yaml: parallel.vocabulary stages leaves nothing to a first or last run without a layer: use ends, or give each "
     "run a layer"},
    {SMALL "parallel: {data: 3}\n", NULL,
     "a.yaml: train.global_batch 32 is not a multiple of train.micro_batch 4 x 3 data-parallel ranks: use a multiple "
     "of 12"},
    {SMALL "memory: {budget: 1GiB, recompute: full}\n", NULL,
     "a.yaml: memory.budget decides itself what to recompute: leave out memory.recompute full"},
    {SMALL "run: {verify_every: 5}\ntrain: {batch_ramp: [[0, 4], [9, 8]], global_batch: 8, micro_batch: 4}\n", NULL,
     "a.yaml: run.verify_every watches the steps of one batch size: leave it out while train.batch_ramp grows the "
     "batch"},
    {SMALL "parallel: {schedule: auto}\ntrain: {batch_ramp: [[0, 4], [9, 8]], global_batch: 8, micro_batch: 4}\n", NULL,
     "a.yaml: parallel.schedule auto finds the order of one number of micro-batches: name a schedule while "
     "train.batch_ramp "
     "grows the batch"},
    {SMALL "profile: {start: 5, stop: 4}\n", NULL, "a.yaml: profile.stop 4 comes before profile.start 5"},
    {SMALL, "debug.merges=d", "command line: debug.merges is gone: leave it out"},
    {SMALL "debug: {gradients: d, at_step: 1001}\n", NULL,
     "a.yaml: debug.at_step 1001 is never reached: train.steps is 1000"},
    {SMALL "model.heads: 5\n", NULL, "a.yaml:2: model.heads is given twice"},
};

TEST(bad_configurations_are_refused_in_one_exact_line)
{
    int last = (int)(sizeof refusals / sizeof *refusals) - 1; /* the last is this test's own mutant */
    for (int i = 0; i <= last; i++) {
        const char *override = refusals[i].override;
        config c;
        status s = parse(&c, refusals[i].text, override != NULL, &override);
        if (s == STATUS_OK)
            config_free(&c);
        bool expected = s == STATUS_USAGE && strcmp(status_message(), refusals[i].message) == 0;
        if (expected != (i < last))
            fail_msg("%s%s\n  got:      %s\n  expected: %s", refusals[i].text, override ? override : "",
                     s ? status_message() : "no refusal", refusals[i].message);
        assert_null(strchr(status_message(), '\n'));
    }
}

TEST(files_that_cannot_be_read_are_named)
{
    config c;
    assert_int_equal(config_load(&c, "/nonexistent/a.yaml", 0, NULL), STATUS_USAGE);
    assert_string_equal(status_message(),
                        "/nonexistent/a.yaml: cannot open the configuration: No such file or directory");
    assert_int_equal(config_load(&c, "/", 0, NULL), STATUS_USAGE);
    assert_string_equal(status_message(), "/: cannot read the configuration: Is a directory");
    assert_int_equal(config_load(&c, "/dev/zero", 0, NULL), STATUS_USAGE);
    assert_string_equal(status_message(), "/dev/zero: larger than 1 MiB: this is no configuration");
}

TEST(documents_that_contain_themselves_end)
{
    static const char *const texts[] = {"&a {model: *a}\n", "&a {\"\": *a}\n", "data: {train: &a [*a]}\n",
                                        "data: {train: &a {path: *a}}\n", "&a [*a]\n"};
    for (int i = 0; i < 5; i++) {
        config c;
        assert_int_equal(parse(&c, texts[i], 0, NULL), STATUS_USAGE);
    }
}

/* A megabyte of brackets would keep libyaml at work for minutes. */
TEST(what_is_nested_too_deep_is_refused_at_once)
{
    enum { DEPTH = 200000 };
    static char flow[2 * DEPTH + 16], block[2 * DEPTH + 16];
    strcpy(flow, "data: ");
    memset(flow + 6, '[', DEPTH);
    memset(flow + 6 + DEPTH, ']', DEPTH);
    strcpy(block, "data:\n  ");
    for (int i = 0; i < DEPTH; i++)
        memcpy(block + 8 + 2 * i, "- ", 2);
    config c;
    assert_int_equal(parse(&c, flow, 0, NULL), STATUS_USAGE);
    assert_string_equal(status_message(), "a.yaml:1: nested more than 32 deep: this is no configuration");
    assert_int_equal(parse(&c, block, 0, NULL), STATUS_USAGE);
    assert_string_equal(status_message(), "a.yaml:2: nested more than 32 deep: this is no configuration");
}

TEST_MAIN(NULL, NULL)
