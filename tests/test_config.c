/* The configuration: what it accepts, what it refuses and in which words, and that what it writes it reads back. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "memory/log.h"
#include "engine/config.h"
#include "engine/config_table.h"
#include "engine/config_value.h"
#include "models/presets.h"

static status parse(config *c, const char *text, int overrides, const char **override)
{
    return config_parse(c, "a.yaml", text, strlen(text), overrides, (char **) override);
}

static config must_parse(const char *text)
{
    config c;
    if (parse(&c, text, 0, NULL) != STATUS_OK)
        fail_msg("%s: %s", text, status_message());
    return c;
}

/* The example of the manual, every key of it. */
static const char manual[] = "model:\n"
                             "  architecture: llama\n"
                             "  layers: 12\n"
                             "  hidden_size: 768\n"
                             "  heads: 12\n"
                             "  kv_heads: 4\n"
                             "  head_size: 64\n"
                             "  ffn_size: 2048\n"
                             "  vocab_size: 32000\n"
                             "  max_sequence: 1024\n"
                             "  tied_embeddings: false\n"
                             "  rope_theta: 10000\n"
                             "  rope_scaling: {factor: 8, low_frequency_factor: 1, high_frequency_factor: 4, "
                             "original_max_sequence: 512}\n"
                             "data:\n"
                             "  train: [{path: corpus/train, weight: 0.7}, corpus/more]\n"
                             "  validation: corpus/validation\n"
                             "  shuffle: false\n"
                             "  document_mask: true\n"
                             "train: {steps: 1000, sequence: 1024, micro_batch: 4, global_batch: 32, precision: bf16, "
                             "seed: 7, device: cpu}\n"
                             "optimizer: {name: adamw, lr: 3e-4, min_lr: 3e-5, schedule: cosine, warmup: 100, "
                             "beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, clip: 1.0}\n"
                             "parallel:  {tensor: 2, pipeline: 2, virtual_stages: 2, schedule: interleaved, "
                             "sequence: true, zero: 1, zero_gather: step, zero_reduce: micro_batch, "
                             "layers_per_stage: [3, 3, 3, 3], data: 2}\n"
                             "memory: {recompute: none, budget: 10GiB}\n"
                             "checkpoint: {every: 100, keep: 2, resume: auto}\n"
                             "evaluate: {every: 100, batches: 20}\n"
                             "run: {folder: runs/first, log_every: 1, tensorboard: true, hang_seconds: 600}\n"
                             "debug: {gradients: out, at_step: 1}\n"
                             "profile: {start: 10, stop: 12}\n";

static void the_manuals_example_is_read(void **state)
{
    (void)state;
    config c = must_parse(manual);
    assert_int_equal(c.model.shape.architecture, SHAPE_LLAMA);
    assert_int_equal(c.model.shape.layers, 12);
    assert_int_equal(c.model.shape.kv_heads, 4);
    assert_true(c.model.shape.rope_scaling.factor == 8);
    assert_int_equal(c.model.shape.rope_scaling.original_max_sequence, 512);
    assert_int_equal(c.data.train.count, 2);
    assert_string_equal(c.data.train.item[0].path, "corpus/train");
    assert_true(c.data.train.item[0].weight == 0.7);
    assert_string_equal(c.data.train.item[1].path, "corpus/more");
    assert_true(c.data.train.item[1].weight == 1);
    assert_int_equal(c.data.validation.count, 1);
    assert_false(c.data.shuffle);
    assert_true(c.data.document_mask);
    assert_int_equal(c.train.precision, CONFIG_BF16);
    assert_int_equal(c.train.seed, 7);
    assert_true(c.optimizer.lr == 3e-4 && c.optimizer.epsilon == 1e-8);
    assert_int_equal(c.parallel.schedule, CONFIG_INTERLEAVED);
    assert_int_equal(c.parallel.zero_reduce, CONFIG_EACH_MICRO_BATCH);
    assert_int_equal(c.parallel.layers_per_stage.count, 4);
    assert_int_equal(c.parallel.layers_per_stage.item[3], 3);
    assert_true(c.memory.budget == INT64_C(10737418240));
    assert_string_equal(c.run.folder, "runs/first");
    assert_string_equal(c.debug.gradients, "out");
    assert_int_equal(c.profile.stop, 12);
    assert_string_equal(config_word(&c, "parallel.schedule"), "interleaved");
    config_free(&c);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

#define SMALL "model: {preset: llama-15m}\n"

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
    {SMALL "\"a\\nb\": 1\n", NULL, "a.yaml:2: unknown key a?b; `phalanx train --help` lists all keys"},
    {"model:\n  rope_scaling: {facto: 2}\n", NULL,
     "a.yaml:2: unknown key model.rope_scaling.facto; did you mean model.rope_scaling.factor?"},
    {SMALL, "train.stesp=3", "argument 1: unknown key train.stesp; did you mean train.steps?"},
    {SMALL, "train.steps", "argument 1: expected section.key=value, not train.steps"},
    {SMALL, "--steps=3", "argument 1: expected section.key=value, not --steps=3"},
    {SMALL, "train.steps=#", "argument 1: train.steps: no value after the ="},
    /* twice */
    {SMALL "train:\n  steps: 3\n  seed: 1\n  steps: 4\n", NULL,
     "a.yaml:5: train.steps is given twice (first in line 3); keep one"},
    {SMALL "train:\n  steps: 3\ntrain:\n  steps: 4\n", NULL,
     "a.yaml:5: train.steps is given twice (first in line 3); keep one"},
    {SMALL, "train={steps: 1, steps: 2}", "argument 1: train.steps is given twice (first in argument 1); keep one"},
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
    {SMALL, "parallel.zero=-1", "argument 1: parallel.zero: expected an integer from 0 to 3, not -1"},
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
    {SMALL "optimizer: {name: lion}\n", NULL, "a.yaml:2: optimizer.name: expected adamw, not lion"},
    {"model: {preset: llama_8b}\n", NULL,
     "a.yaml:1: model.preset: expected one of gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, llama-15m, llama-160m, "
     "llama-1b, llama-7b, llama-8b, llama-70b, llama-405b, not llama_8b; did you mean llama-8b?"},
    {SMALL "memory: {budget: 10GiBs}\n", NULL,
     "a.yaml:2: memory.budget: expected a size such as 10GiB or 512MiB, not 10GiBs"},
    {SMALL "memory: {budget: -1}\n", NULL, "a.yaml:2: memory.budget: expected a size such as 10GiB or 512MiB, not -1"},
    {SMALL "memory: {budget: 1e30TiB}\n", NULL,
     "a.yaml:2: memory.budget: expected a size such as 10GiB or 512MiB, not 1e30TiB"},
    {SMALL "run: {folder: [a]}\n", NULL, "a.yaml:2: run.folder: expected a string, not a list"},
    {SMALL "run: {folder: \"a\\0b\"}\n", NULL, "a.yaml:2: run.folder: expected a string, not the string \"a\""},
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
    {SMALL, "train.steps=]", "argument 1: not valid YAML: X"},
    /* between keys */
    {"", NULL, "model.layers is not given: name a model.preset, a model.config or every size"},
    {"model: {layers: 2, hidden_size: 8, heads: 2}\n", NULL,
     "model.vocab_size is not given: name a model.preset, a model.config or every size"},
    {"model: {preset: llama-15m, config: c.json}\n", NULL,
     "model.preset and model.config both name the sizes; keep one"},
    {SMALL "train: {sequence: 512}\n", NULL,
     "train.sequence 512 exceeds model.max_sequence 256: lower the first or raise the second"},
    {SMALL "train: {micro_batch: 5}\n", NULL,
     "train.global_batch 32 is not a multiple of train.micro_batch 5: change one"},
    {SMALL "train: {steps: 10}\noptimizer: {warmup: 11}\n", NULL,
     "optimizer.warmup 11 exceeds train.steps 10: lower the first"},
    {SMALL "optimizer: {lr: 1e-4, min_lr: 2e-4}\n", NULL,
     "optimizer.min_lr 0.0002 exceeds optimizer.lr 0.0001: lower the first"},
    {SMALL "optimizer: {schedule: wsd, warmup: 600, decay_fraction: 0.5}\n", NULL,
     "optimizer.warmup 600 and the last 0.5 of the steps (optimizer.decay_fraction) overlap in 1000 train.steps: "
     "lower one"},
    {SMALL "parallel: {tensor: 4}\n", NULL, "parallel.tensor 4 does not divide model.heads 6: choose a divisor"},
    {SMALL "model.kv_heads: 2\nparallel: {tensor: 3}\n", NULL,
     "parallel.tensor 3 must divide model.kv_heads 2 or be a multiple of it: choose another"},
    {SMALL "parallel: {pipeline: 2, schedule: gpipe, virtual_stages: 2}\n", NULL,
     "parallel.virtual_stages 2 needs parallel.schedule interleaved, not gpipe: change one"},
    {SMALL "parallel: {virtual_stages: 2}\n", NULL, "parallel.virtual_stages 2 needs parallel.pipeline above 1"},
    {SMALL "parallel: {pipeline: 2, layers_per_stage: [1, 2, 3]}\n", NULL,
     "parallel.layers_per_stage has 3 numbers for pipeline 2 x virtual_stages 1: give 2"},
    {SMALL "parallel: {pipeline: 2, layers_per_stage: [1, 2]}\n", NULL,
     "parallel.layers_per_stage sums to 3, but model.layers is 6"},
    {SMALL "parallel: {pipeline: 9}\n", NULL,
     "parallel.pipeline 9 x virtual_stages 1 leaves runs without work: model.layers is only 6"},
    {SMALL "parallel: {data: 3}\n", NULL,
     "train.global_batch 32 is not a multiple of train.micro_batch 4 x 3 data-parallel ranks: use a multiple of 12"},
    {SMALL "memory: {budget: 1GiB, recompute: full}\n", NULL,
     "memory.budget decides itself what to recompute: leave out memory.recompute full"},
    {SMALL "profile: {start: 5, stop: 4}\n", NULL, "profile.stop 4 comes before profile.start 5"},
    {SMALL "debug: {gradients: d, at_step: 1001}\n", NULL, "debug.at_step 1001 is never reached: train.steps is 1000"},
    {SMALL "model.heads: 5\n", NULL, "a.yaml:2: model.heads is given twice"},
};

static void bad_configurations_are_refused_in_one_exact_line(void **state)
{
    (void)state;
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

static void files_that_cannot_be_read_are_named(void **state)
{
    (void)state;
    config c;
    assert_int_equal(config_load(&c, "/nonexistent/a.yaml", 0, NULL), STATUS_USAGE);
    assert_string_equal(status_message(),
                        "/nonexistent/a.yaml: cannot open the configuration: No such file or directory");
    assert_int_equal(config_load(&c, "/", 0, NULL), STATUS_USAGE);
    assert_string_equal(status_message(), "/: cannot read the configuration: Is a directory");
    assert_int_equal(config_load(&c, "/dev/zero", 0, NULL), STATUS_USAGE);
    assert_string_equal(status_message(), "/dev/zero: larger than 1 MiB: this is no configuration");
}

/* --- meaning ------------------------------------------------------------------------------------------------------ */

static void overrides_win_over_the_file(void **state)
{
    (void)state;
    const char *override[] = {"train.steps=7",   "data.train=[a,b]",      "data.validation=[{path: x, weight: 2}]",
                              "run={folder: z}", "memory.budget=1.5 KiB", "model.rope_scaling={factor: 2}",
                              "debug.gradients="};
    config c;
    assert_int_equal(parse(&c, SMALL "train: {steps: 5}\ndebug: {gradients: g}\n", 7, override), STATUS_OK);
    assert_int_equal(c.train.steps, 7);
    assert_int_equal(c.data.train.count, 2);
    assert_string_equal(c.data.train.item[1].path, "b");
    assert_true(c.data.validation.item[0].weight == 2);
    assert_string_equal(c.run.folder, "z");
    assert_int_equal(c.memory.budget, 1536);
    assert_true(c.model.shape.rope_scaling.factor == 2);
    assert_int_equal(c.model.shape.rope_scaling.original_max_sequence, 8192);
    assert_null(c.debug.gradients);
    config_free(&c);
    const char *twice[] = {"train.steps=7", "train.seed=1", "train.steps=8"};
    assert_int_equal(parse(&c, SMALL, 3, twice), STATUS_USAGE);
    assert_string_equal(status_message(), "argument 3: train.steps is given twice (first in argument 1); keep one");
}

static void keys_beside_a_preset_override_it_in_any_order(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "model: {preset: gpt2-124m, layers: 2, vocab_size: 300}\n",
        "model: {layers: 2, preset: gpt2-124m, vocab_size: 300}\n",
        "model: {layers: 2, vocab_size: 300, architecture: gpt2, preset: gpt2-124m}\n",
    };
    for (int i = 0; i < 3; i++) {
        config c = must_parse(texts[i]);
        model_shape expected = presets_find("gpt2-124m")->shape;
        expected.layers = 2;
        expected.vocab_size = 300;
        assert_int_equal(c.model.shape.architecture, SHAPE_GPT2);
        assert_int_equal(shape_parameters(&c.model.shape), shape_parameters(&expected));
        assert_int_equal(c.model.shape.heads, 12);
        config_free(&c);
    }
    /* Sizes of the preset that only follow from an overridden one follow the new one. */
    config c = must_parse("model: {preset: gpt2-124m, heads: 8}\n");
    assert_int_equal(c.model.shape.kv_heads, 8);
    assert_int_equal(c.model.shape.head_size, 96);
    config_free(&c);
    /* The preset may come from the command line as well. */
    const char *override[] = {"model.preset=llama-15m"};
    assert_int_equal(parse(&c, "model: {preset: gpt2-124m}\n", 1, override), STATUS_OK);
    assert_int_equal(c.model.shape.hidden_size, 288);
    config_free(&c);
}

static void what_is_left_out_follows_from_the_rest(void **state)
{
    (void)state;
    config c = must_parse("model: {layers: 2, hidden_size: 64, heads: 4, vocab_size: 256}\ntrain: {sequence: 128}\n");
    assert_int_equal(c.model.shape.architecture, SHAPE_LLAMA);
    assert_int_equal(c.model.shape.head_size, 16);
    assert_int_equal(c.model.shape.kv_heads, 4);
    assert_int_equal(c.model.shape.ffn_size, 256);
    assert_int_equal(c.model.shape.max_sequence, 128);
    assert_false(c.model.shape.tied_embeddings);
    assert_true(c.model.shape.norm_epsilon == 1e-5);
    config_free(&c);
    c = must_parse("model: {architecture: gpt2, layers: 2, hidden_size: 64, heads: 4, vocab_size: 256}\n");
    assert_true(c.model.shape.tied_embeddings);
    assert_int_equal(c.train.sequence, 1024);
    config_free(&c);
    c = must_parse(SMALL "parallel: {pipeline: 2, virtual_stages: 3}\ntrain: {device: cuda}\n");
    assert_int_equal(c.train.sequence, 256);
    assert_int_equal(c.parallel.schedule, CONFIG_INTERLEAVED);
    assert_int_equal(c.train.precision, CONFIG_BF16);
    config_free(&c);
}

static void a_shape_from_elsewhere_keeps_what_was_given(void **state)
{
    (void)state;
    config c = must_parse("model: {config: c.json, layers: 3}\n");
    assert_true(config_wants_shape(&c));
    config_take_shape(&c, &presets_find("llama-8b")->shape);
    assert_int_equal(config_check(&c), STATUS_OK);
    assert_int_equal(c.model.shape.layers, 3);
    assert_int_equal(c.model.shape.hidden_size, 4096);
    assert_true(c.model.shape.rope_theta == 500000);
    assert_int_equal(c.train.sequence, 1024);
    /* Written and read again, the sizes are all there and the file is not wanted any more. */
    char *text = config_text(&c);
    config again = must_parse(text);
    assert_false(config_wants_shape(&again));
    assert_int_equal(shape_parameters(&again.model.shape), shape_parameters(&c.model.shape));
    free(text);
    config_free(&again);
    config_free(&c);
}

static void layouts_must_multiply_to_the_ranks(void **state)
{
    (void)state;
    config c = must_parse(SMALL "parallel: {tensor: 2, pipeline: 3}\n");
    int data = 0;
    assert_int_equal(config_check_ranks(&c, 12, &data), STATUS_OK);
    assert_int_equal(data, 2);
    assert_int_equal(config_check_ranks(&c, 8, &data), STATUS_USAGE);
    assert_string_equal(status_message(),
                        "8 ranks cannot be laid out as tensor 2 x pipeline 3 x data: start a multiple of 6");
    assert_int_equal(config_check_ranks(&c, 18, &data), STATUS_USAGE);
    assert_string_equal(status_message(), "train.global_batch 32 is not a multiple of train.micro_batch 4 x 3 "
                                          "data-parallel ranks: use a multiple of 12");
    config_free(&c);
    c = must_parse(SMALL "parallel: {tensor: 2, data: 2}\n");
    assert_int_equal(config_check_ranks(&c, 8, &data), STATUS_USAGE);
    assert_string_equal(status_message(), "parallel.data 2 x tensor 2 x pipeline 1 is not the 8 ranks that were "
                                          "started: leave out parallel.data or start 4");
    assert_int_equal(data, 2);
    config_free(&c);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* A value that is not the default, as YAML, for every type. */
static char *other_value(const config_row *row, const config *c)
{
    char *now = config_value_text(c, row), *other = NULL;
    const char *const words[] = {row->type == CONFIG_TYPE_WORD ? row->word[0] : "",
                                 row->type == CONFIG_TYPE_WORD ? row->word[1] : ""};
    double number = row->low + (row->high - row->low) / 3;
    switch (row->type) {
    case CONFIG_TYPE_INT:
    case CONFIG_TYPE_LONG:
        other = must_format("%.0f", row->high > row->low + 7 ? row->low + 7 : row->high);
        break;
    case CONFIG_TYPE_SIZE:
        other = must_strdup("12345KiB");
        break;
    case CONFIG_TYPE_NUMBER:
        other = must_format("%.17g", number);
        break;
    case CONFIG_TYPE_BOOL:
        other = must_strdup(strcmp(now, "true") == 0 ? "false" : "true");
        break;
    case CONFIG_TYPE_WORD:
        other = must_strdup(!words[1] || strcmp(now, words[0]) != 0 ? words[0] : words[1]);
        break;
    case CONFIG_TYPE_PRESET:
        other = must_strdup("llama-15m");
        break;
    case CONFIG_TYPE_SOURCES:
        other = must_strdup("[{path: \"a b\", weight: 0.3333333333333333}, {path: c, weight: 2}]");
        break;
    case CONFIG_TYPE_INTEGERS:
        other = must_strdup("[1, 2, 3]");
        break;
    default:
        other = must_strdup("\"some \\\\ \\\"text\\\" #1: \u00e4\"");
    }
    free(now);
    return other;
}

static void every_key_of_the_table_is_set_written_and_read_back(void **state)
{
    (void)state;
    config defaults = must_parse(SMALL);
    int differing = 0;
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        assert_non_null(row->doc);
        assert_true(row->fallback || row->otherwise);
        assert_true(config_table_is_section(strtok(strcpy((char[64]){0}, row->key), ".")));
        config c = {0}, again = {0};
        char *value = other_value(row, &defaults), *text = must_format("%s: %s\n", row->key, value);
        /* By itself, without the rules between keys. */
        yaml_document_t document;
        yaml_parser_t parser;
        assert_true(yaml_parser_initialize(&parser));
        yaml_parser_set_input_string(&parser, (const unsigned char *)value, strlen(value));
        assert_true(yaml_parser_load(&parser, &document));
        if (config_value_set(&c, row, &document, yaml_document_get_root_node(&document)) != STATUS_OK)
            fail_msg("%s: %s", text, status_message());
        yaml_document_delete(&document);
        yaml_parser_delete(&parser);
        char *written = config_value_text(&c, row), *before = config_value_text(&defaults, row);
        differing += strcmp(written, before) != 0;
        assert_true(yaml_parser_initialize(&parser));
        yaml_parser_set_input_string(&parser, (const unsigned char *)written, strlen(written));
        assert_true(yaml_parser_load(&parser, &document));
        assert_int_equal(config_value_set(&again, row, &document, yaml_document_get_root_node(&document)), STATUS_OK);
        yaml_document_delete(&document);
        yaml_parser_delete(&parser);
        char *rewritten = config_value_text(&again, row);
        assert_string_equal(written, rewritten);
        config_free(&c);
        config_free(&again);
        free(value);
        free(text);
        free(written);
        free(before);
        free(rewritten);
    }
    /* optimizer.name has one word only, and model.preset is that of the defaults. */
    assert_int_equal(differing, config_table_rows() - 2);
    config_free(&defaults);
}

static void rows_do_not_overlap(void **state)
{
    (void)state;
    for (int i = 0; i < config_table_rows(); i++)
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(config_table_row(i)->key, config_table_row(k)->key);
            assert_int_not_equal(config_table_row(i)->offset, config_table_row(k)->offset);
        }
}

static int fields_differ(const config *a, const config *b)
{
    char *one = config_text(a), *two = config_text(b);
    int differ = strcmp(one, two);
    free(one);
    free(two);
    return differ;
}

static void the_effective_configuration_reads_back_to_itself(void **state)
{
    (void)state;
    static const char *const texts[] = {manual, SMALL,
                                        "model: {preset: llama-405b}\noptimizer: {lr: 0.1234567890123456789}\n"
                                        "run: {folder: \"a\\tb \\u2028 \\U0001F600 'x' \\x85\"}\n"
                                        "data: {train: 'null', validation: [~x]}\n"};
    for (int i = 0; i < 3; i++) {
        config c = must_parse(texts[i]);
        char *text = config_text(&c);
        config again = must_parse(text);
        assert_int_equal(fields_differ(&c, &again), 0);
        assert_int_equal(memcmp(&c.model.shape, &again.model.shape, sizeof c.model.shape), 0);
        assert_true(c.optimizer.lr == again.optimizer.lr);
        assert_string_equal(c.run.folder, again.run.folder);
        for (int k = 0; k < c.data.train.count; k++)
            assert_string_equal(c.data.train.item[k].path, again.data.train.item[k].path);
        again.optimizer.lr *= 1 + 2.3e-16; /* one bit: the comparison sees it */
        assert_int_not_equal(fields_differ(&c, &again), 0);
        free(text);
        config_free(&again);
        config_free(&c);
    }
}

static void note(void *context, const char *key, const char *old_value, const char *new_value)
{
    char *log = context;
    size_t used = strlen(log);
    snprintf(log + used, 512 - used, "%s: %s -> %s; ", key, old_value, new_value);
}

static void resuming_lists_what_changed_and_refuses_what_may_not(void **state)
{
    (void)state;
    config saved = must_parse(SMALL "train: {steps: 10}\n"), now;
    char log[512] = "";
    const char *fine[] = {"train.steps=20", "parallel.tensor=2", "run.folder=elsewhere"};
    assert_int_equal(parse(&now, SMALL, 3, fine), STATUS_OK);
    assert_int_equal(config_compare_for_resume(&saved, &now, note, log), STATUS_OK);
    assert_string_equal(log, "train.steps: 10 -> 20; parallel.tensor: 1 -> 2; ");
    config_free(&now);
    const char *wrong[] = {"model.layers=4", "train.seed=2", "data.train=[x]"};
    assert_int_equal(parse(&now, SMALL "train: {steps: 10}\n", 3, wrong), STATUS_OK);
    assert_int_equal(config_compare_for_resume(&saved, &now, note, log), STATUS_USAGE);
    assert_string_equal(status_message(), "a run that resumes cannot change model.layers (6 -> 4), data.train ([] -> "
                                          "[{path: x, weight: 1}]), train.seed (1 -> 2); set it back, or start afresh "
                                          "with checkpoint.resume=never");
    config_free(&now);
    config_free(&saved);
}

static void help_names_every_key(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    config_help(out);
    fclose(out);
    for (int i = 0; i < config_table_rows(); i++) {
        char *name = must_format("\n  %s: ", config_table_row(i)->key);
        assert_non_null(strstr(text, name));
        assert_non_null(strstr(text, config_table_row(i)->doc));
        free(name);
    }
    free(text);
}

static void the_example_configurations_are_valid(void **state)
{
    (void)state;
    static const char *const files[] = {"demo",           "gpt2-124m",        "llama-1b",
                                        "llama-8b-64gpu", "llama-70b-512gpu", "llama-405b"};
    static const int ranks[] = {1, 1, 8, 64, 512, 16384};
    for (int i = 0; i < 6; i++) {
        char *path = must_format("models/configs/%s.yaml", files[i]);
        config c;
        if (config_load(&c, path, 0, NULL) != STATUS_OK)
            fail_msg("%s", status_message());
        int data;
        if (config_check_ranks(&c, ranks[i], &data) != STATUS_OK)
            fail_msg("%s: %s", path, status_message());
        assert_true(c.data.train.count > 0);
        config_free(&c);
        free(path);
    }
}

/* --- rubbish ------------------------------------------------------------------------------------------------------ */

static uint32_t next(uint32_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 17;
    return *random ^= *random << 5;
}

/* Byte flips, cuts and copies of a valid text: refused in one line or read to something that reads back. */
static void mutated_text_is_refused_or_reads_back(void **state)
{
    (void)state;
    uint32_t random = 2463534242u;
    int accepted = 0, refused = 0;
    size_t length = sizeof manual - 1;
    for (int i = 0; i < 4000; i++) {
        char text[sizeof manual];
        memcpy(text, manual, sizeof manual);
        size_t bytes = next(&random) % 4 ? length : next(&random) % length;
        for (uint32_t k = next(&random) % 3; k < 3; k++) {
            size_t to = next(&random) % length, from = next(&random) % length;
            if (next(&random) % 2)
                text[to] = text[from];
            else
                text[to] = (char)(text[to] ^ (1 << next(&random) % 8));
        }
        config c;
        if (config_parse(&c, "a.yaml", text, bytes, 0, NULL) != STATUS_OK) {
            refused++;
            assert_null(strchr(status_message(), '\n'));
            continue;
        }
        accepted++;
        char *written = config_text(&c);
        config again = must_parse(written);
        assert_int_equal(fields_differ(&c, &again), 0);
        free(written);
        config_free(&again);
        config_free(&c);
    }
    assert_true(accepted > 100 && refused > 1000);
}

static void documents_that_contain_themselves_end(void **state)
{
    (void)state;
    static const char *const texts[] = {"&a {model: *a}\n", "&a {\"\": *a}\n", "data: {train: &a [*a]}\n",
                                        "data: {train: &a {path: *a}}\n", "&a [*a]\n"};
    for (int i = 0; i < 5; i++) {
        config c;
        assert_int_equal(parse(&c, texts[i], 0, NULL), STATUS_USAGE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_manuals_example_is_read),
        cmocka_unit_test(bad_configurations_are_refused_in_one_exact_line),
        cmocka_unit_test(files_that_cannot_be_read_are_named),
        cmocka_unit_test(overrides_win_over_the_file),
        cmocka_unit_test(keys_beside_a_preset_override_it_in_any_order),
        cmocka_unit_test(what_is_left_out_follows_from_the_rest),
        cmocka_unit_test(a_shape_from_elsewhere_keeps_what_was_given),
        cmocka_unit_test(layouts_must_multiply_to_the_ranks),
        cmocka_unit_test(every_key_of_the_table_is_set_written_and_read_back),
        cmocka_unit_test(rows_do_not_overlap),
        cmocka_unit_test(the_effective_configuration_reads_back_to_itself),
        cmocka_unit_test(resuming_lists_what_changed_and_refuses_what_may_not),
        cmocka_unit_test(help_names_every_key),
        cmocka_unit_test(the_example_configurations_are_valid),
        cmocka_unit_test(mutated_text_is_refused_or_reads_back),
        cmocka_unit_test(documents_that_contain_themselves_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
