/* The configuration: what it means, and that what it writes it reads back. Refusals are test_config_refusals.c. */
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "engine/config/config.h"
#include "engine/config/config_table.h"
#include "engine/config/nearest.h"
#include "memory/scope.h"
#include "models/parts.h"
#include "models/presets.h"
#include "tests/test.h"

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
                             "memory: {recompute: none, budget: \"10GiB\"}\n"
                             "checkpoint: {every: 100, keep: 2, resume: auto}\n"
                             "evaluate: {every: 100, batches: 20}\n"
                             "run: {folder: runs/first, log_every: 1, tensorboard: true, hang_seconds: 600}\n"
                             "debug: {gradients: out, at_step: 1}\n"
                             "profile: {start: 10, stop: 12}\n";

TEST(the_manuals_example_is_read)
{
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
    assert_int_equal(c.train.precision, PRECISION_BF16);
    assert_int_equal(c.train.seed, 7);
    assert_true(c.optimizer.lr == 3e-4 && c.optimizer.epsilon == 1e-8);
    assert_int_equal(c.parallel.schedule, SCHEDULE_INTERLEAVED);
    assert_int_equal(c.parallel.zero_reduce, CONFIG_EACH_MICRO_BATCH);
    assert_int_equal(c.parallel.layers_per_stage.count, 4);
    assert_int_equal(c.parallel.layers_per_stage.item[3], 3);
    assert_true(c.memory.budget == INT64_C(10737418240)); /* in quotes */
    assert_string_equal(c.run.folder, "runs/first");
    assert_string_equal(c.debug.gradients, "out");
    assert_int_equal(c.profile.stop, 12);
    assert_string_equal(config_word(&c, "parallel.schedule"), "interleaved");
    config_free(&c);
}

#define SMALL "model: {preset: llama-15m}\n"

/* --- meaning ------------------------------------------------------------------------------------------------------ */

TEST(overrides_win_over_the_file)
{
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
    assert_string_equal(status_message(), "command line: train.steps is given twice; keep one");
}

TEST(keys_beside_a_preset_override_it_in_any_order)
{
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
        assert_int_equal(parts_parameters(&c.model.shape), parts_parameters(&expected));
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

TEST(what_is_left_out_follows_from_the_rest)
{
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
    c = must_parse(SMALL "train: {device: cuda}\n");
    assert_int_equal(c.train.sequence, 256);
    assert_int_equal(c.train.precision, PRECISION_BF16);
    config_free(&c);
}

TEST(a_shape_from_elsewhere_keeps_what_was_given)
{
    config c = must_parse("model: {config: c.json, layers: 3}\n");
    assert_true(config_wants_shape(&c));
    config_take_shape(&c, &presets_find("llama-8b")->shape);
    assert_int_equal(config_check(&c), STATUS_OK);
    assert_int_equal(c.model.shape.layers, 3);
    assert_int_equal(c.model.shape.hidden_size, 4096);
    assert_true(c.model.shape.rope_theta == 500000);
    assert_int_equal(c.train.sequence, 1024);
    /* Written and read again, the sizes are all there and the file is not wanted any more. */
    AUTO_FREE char *text = config_text(&c);
    config again = must_parse(text);
    assert_false(config_wants_shape(&again));
    assert_int_equal(parts_parameters(&again.model.shape), parts_parameters(&c.model.shape));
    config_free(&again);
    config_free(&c);
}

TEST(layouts_must_multiply_to_the_ranks)
{
    config c = must_parse(SMALL "parallel: {tensor: 2, pipeline: 3}\n");
    grid g = {0};
    assert_int_equal(config_make_grid(&g, &c, 12, 11), STATUS_OK);
    assert_int_equal(g.size[GRID_DATA], 2);
    assert_int_equal(g.rank, 11);
    assert_int_equal(config_make_grid(&g, &c, 8, 0), STATUS_USAGE);
    assert_string_equal(status_message(), "8 ranks cannot be laid out as tensor 2 x pipeline 3 x data: start a "
                                          "multiple of 6, or change parallel.*");
    assert_int_equal(config_make_grid(&g, &c, 18, 0), STATUS_USAGE);
    assert_string_equal(status_message(), "train.global_batch 32 is not a multiple of train.micro_batch 4 x 3 "
                                          "data-parallel ranks: use a multiple of 12");
    config_free(&c);
    c = must_parse(SMALL "parallel: {tensor: 2, data: 2}\n");
    assert_int_equal(config_make_grid(&g, &c, 8, 0), STATUS_USAGE);
    assert_string_equal(status_message(), "parallel.data 2 x tensor 2 x pipeline 1 is 4 ranks, and 8 were started: "
                                          "leave out parallel.data or start 4");
    config_free(&c);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* A value that is not the default, as YAML, for every type. */
static char *other_value(const config_row *row, const config *c)
{
    char *now = config_value_text(c, row), *other = NULL;
    const char *const words[] = {row->word ? row->word[0] : "", row->word ? row->word[1] : ""};
    double number = row->low + (row->high - row->low) / 3;
    switch (row->type) {
    case CONFIG_TYPE_INT:
    case CONFIG_TYPE_LONG:
        other = must_format("%.0f", row->high > row->low + 7 ? row->low + 7 : row->high);
        if (strcmp(other, now) == 0) {
            free(other);
            other = must_format("%.0f", row->low);
        }
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
    case CONFIG_TYPE_ADDRESSES:
        other = must_strdup("[{path: \"a b\", weight: 0.3333333333333333}, {path: c, weight: 2}]");
        break;
    case CONFIG_TYPE_INTEGERS:
        other = must_strdup("[1, 2, 3]");
        break;
    case CONFIG_TYPE_FACTORS:
        other = must_strdup("[0.3333333333333333, 2]");
        break;
    case CONFIG_TYPE_PAIRS:
        other = must_strdup("[[0, 64], [1000, 128]]");
        break;
    default:
        other = must_strdup("\"some \\\\ \\\"text\\\" #1: \u00e4\"");
    }
    free(now);
    return other;
}

TEST(every_key_of_the_table_is_set_written_and_read_back)
{
    config defaults = must_parse(SMALL);
    int differing = 0;
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        assert_non_null(row->doc);
        assert_true(row->fallback || row->otherwise);
        config c = {0}, again = {0};
        AUTO_FREE char *value = other_value(row, &defaults), *text = must_format("%s: %s\n", row->key, value);
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
        AUTO_FREE char *written = config_value_text(&c, row), *before = config_value_text(&defaults, row);
        differing += strcmp(written, before) != 0;
        assert_true(yaml_parser_initialize(&parser));
        yaml_parser_set_input_string(&parser, (const unsigned char *)written, strlen(written));
        assert_true(yaml_parser_load(&parser, &document));
        assert_int_equal(config_value_set(&again, row, &document, yaml_document_get_root_node(&document)), STATUS_OK);
        yaml_document_delete(&document);
        yaml_parser_delete(&parser);
        AUTO_FREE char *rewritten = config_value_text(&again, row);
        assert_string_equal(written, rewritten);
        config_free(&c);
        config_free(&again);
    }
    /* model.preset is that of the defaults, and there is one format of exports. */
    assert_int_equal(differing, config_table_rows() - 2);
    config_free(&defaults);
}

TEST(rows_do_not_overlap)
{
    for (int i = 0; i < config_table_rows(); i++)
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(config_table_row(i)->key, config_table_row(k)->key);
            assert_int_not_equal(config_table_row(i)->offset, config_table_row(k)->offset);
        }
}

/* A word of another trainer's is none of ours, and leads to a key or to a value of one. */
TEST(every_alias_leads_to_a_key)
{
    static const char *const aliases[][2] = {
#define ALIAS(theirs, ours) {theirs, ours},
#include "engine/config/aliases.def"
#undef ALIAS
    };
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        AUTO_FREE char *elsewhere = must_format("train.%s", aliases[i][0]), *flag = must_format("--%s", aliases[i][0]);
        if (!strchr(aliases[i][1], '.'))
            continue;
        assert_true(config_table_find(aliases[i][1]) >= 0);
        assert_string_equal(config_table_nearest(elsewhere), aliases[i][1]);
        assert_string_equal(nearest_meaning(flag), aliases[i][1]);
    }
}

/* The keys that TrainingArguments and Megatron's flags are most used for: each leads to a key, not to a section. */
TEST(other_trainers_keys_lead_to_ours)
{
    static const char words[] =
        "tp pp dp cp sp ep vp vpp mbs gbs wd grad_clip gradient_clipping output_dir model_name_or_path config_name "
        "tokenizer_name train_file validation_file block_size max_seq_length "
        "per_device_train_batch_size gradient_accumulation_steps learning_rate weight_decay adam_beta1 adam_beta2 "
        "adam_epsilon max_grad_norm num_train_epochs max_steps lr_scheduler_type warmup_ratio warmup_steps "
        "logging_steps save_strategy save_steps save_total_limit seed bf16 fp16 tf32 torch_dtype eval_strategy "
        "eval_steps run_name report_to optim deepspeed fsdp gradient_checkpointing resume_from_checkpoint n_layer "
        "n_head n_embd tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size "
        "expert-model-parallel-size sequence-parallel num-layers-per-virtual-pipeline-stage num-layers hidden-size "
        "ffn-hidden-size num-attention-heads num-query-groups kv-channels max-position-embeddings rotary-base "
        "norm-epsilon untie-embeddings-and-output-weights num-experts moe-router-topk moe-aux-loss-coeff "
        "micro-batch-size global-batch-size rampup-batch-size seq-length train-iters train-samples lr min-lr "
        "lr-decay-style lr-warmup-iters lr-warmup-fraction clip-grad hidden-dropout use-distributed-optimizer "
        "recompute-granularity recompute-activations initial-loss-scale data-path tokenizer-model eval-interval "
        "eval-iters log-interval save-interval save load tensorboard-dir data-cache-path distributed-timeout-minutes";
    AUTO_FREE char *all = must_strdup(words);
    for (char *word = strtok(all, " "); word; word = strtok(NULL, " ")) {
        const char *key = config_table_nearest(word);
        if (!key || config_table_find(key) < 0)
            fail_msg("%s leads to %s", word, key ? key : "nothing");
    }
}

/* The message names the key, which is the one word that a reader can look for, wherever it was typed. */
TEST(a_key_and_its_value_are_one_word)
{
    config c = {0};
    char key[] = "train.steps", value[] = "100", *words[] = {key, value};
    assert_int_equal(config_read_overrides(&c, 2, words), STATUS_USAGE);
    assert_string_equal(status_message(), "command line: a key and its value are one word: train.steps=100");
}

TEST(every_section_is_found_behind_a_slip_of_the_finger)
{
    for (int i = 0; i < config_table_rows(); i++) {
        const char *key = config_table_row(i)->key;
        for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.')) {
            AUTO_FREE char *section = must_format("%.*s", (int)(dot - key), key), *slip = must_format("%sx", section);
            assert_true(config_table_is_section(section));
            assert_string_equal(config_table_nearest(slip), section);
        }
    }
}

static int fields_differ(const config *a, const config *b)
{
    AUTO_FREE char *one = config_text(a), *two = config_text(b);
    return strcmp(one, two);
}

TEST(the_effective_configuration_reads_back_to_itself)
{
    static const char *const texts[] = {manual, SMALL,
                                        "model: {preset: llama-405b}\noptimizer: {lr: 0.1234567890123456789}\n"
                                        "run: {folder: \"a\\tb \\u2028 \\U0001F600 'x' \\x85\"}\n"
                                        "data: {train: 'null', validation: [~x]}\n",
                                        "model: {layers: 6, hidden_size: 257, heads: 4, ffn_size: 7}\ndata: {train: "
                                        "x}\n" /* no head_size; the vocabulary comes later */};
    for (int i = 0; i < 4; i++) {
        config c = must_parse(texts[i]);
        AUTO_FREE char *text = config_text(&c);
        config again = must_parse(text);
        const char *nested = strstr(text, "\n  rope_scaling:");
        assert_true(nested && !strstr(nested + 1, "\n  rope_scaling:")); /* a YAML mapping has a key once */
        assert_int_equal(fields_differ(&c, &again), 0);
        assert_int_equal(memcmp(&c.model.shape, &again.model.shape, sizeof c.model.shape), 0);
        assert_true(c.optimizer.lr == again.optimizer.lr);
        assert_string_equal(c.run.folder, again.run.folder);
        for (int k = 0; k < c.data.train.count; k++)
            assert_string_equal(c.data.train.item[k].path, again.data.train.item[k].path);
        again.optimizer.lr *= 1 + 2.3e-16; /* one bit: the comparison sees it */
        assert_int_not_equal(fields_differ(&c, &again), 0);
        config_free(&again);
        config_free(&c);
    }
}

TEST(numbers_are_written_as_people_write_them)
{
    static const struct {
        double value;
        const char *text;
    } numbers[] = {{500000, "500000"},  {0, "0"},          {0.1, "0.1"},
                   {3e-4, "0.0003"},    {1e-8, "1.0e-08"}, {1.0 / 3, "0.3333333333333333"},
                   {1.5e-7, "1.5e-07"}, {100, "100"}};
    const config_row *row = config_table_row(config_table_find("model.rope_theta"));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        config c = {.model.shape.rope_theta = numbers[i].value};
        AUTO_FREE char *text = config_value_text(&c, row);
        assert_string_equal(text, numbers[i].text);
    }
}

static void note(void *context, const char *key, const char *old_value, const char *new_value)
{
    char *log = context;
    size_t used = strlen(log);
    snprintf(log + used, 512 - used, "%s: %s -> %s; ", key, old_value, new_value);
}

TEST(resuming_lists_what_changed_and_refuses_what_may_not)
{
    config saved = must_parse(SMALL "train: {steps: 10}\n"), now;
    char log[512] = "";
    const char *fine[] = {"train.steps=20", "parallel.tensor=2", "run.folder=elsewhere"};
    assert_int_equal(parse(&now, SMALL, 3, fine), STATUS_OK);
    assert_int_equal(config_compare_for_resume(&saved, &now, false, note, log), STATUS_OK);
    assert_string_equal(log, "train.steps: 10 -> 20; parallel.tensor: 1 -> 2; ");
    config_free(&now);
    const char *wrong[] = {"model.layers=4", "train.seed=2", "data.train=[x]"};
    assert_int_equal(parse(&now, SMALL "train: {steps: 10}\n", 3, wrong), STATUS_OK);
    assert_int_equal(config_compare_for_resume(&saved, &now, false, note, log), STATUS_USAGE);
    assert_string_equal(status_message(), "a run that resumes cannot change model.layers (6 -> 4), data.train ([] -> "
                                          "[{path: x, weight: 1}]), train.seed (1 -> 2); set it back, or start afresh "
                                          "with checkpoint.resume=never, or begin a new stage: another run.folder, and "
                                          "checkpoint.resume with this one");
    config_free(&now);
    const char *stage[] = {"data.train=[x]", "train.batch_ramp=[[0,8],[100,32]]"};
    *log = 0;
    assert_int_equal(parse(&now, SMALL "train: {steps: 10}\n", 2, stage), STATUS_OK);
    assert_int_equal(config_compare_for_resume(&saved, &now, true, note, log), STATUS_OK);
    assert_string_equal(log, "data.train: [] -> [{path: x, weight: 1}]; train.batch_ramp: [] -> [[0, 8], [100, 32]]; ");
    assert_true(config_same(&saved, &now, "train.sequence"));
    assert_false(config_same(&saved, &now, "train.batch_ramp"));
    config_free(&now);
    config_free(&saved);
}

TEST(help_names_every_key)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    config_help(out);
    fclose(out);
    for (int i = 0; i < config_table_rows(); i++) {
        AUTO_FREE char *name = must_format("\n  %s: ", config_table_row(i)->key);
        assert_non_null(strstr(text, name));
        assert_non_null(strstr(text, config_table_row(i)->doc));
    }
    free(text);
}

TEST(the_example_configurations_are_valid)
{
    static const char *const files[] = {"demo",           "gpt2-124m",     "llama-1b",
                                        "llama-8b-64gpu", "llama-8b-128k", "llama-70b-512gpu",
                                        "llama-405b",     "gemma3-4b",     "pythia-1b"};
    static const int ranks[] = {1, 1, 8, 64, 64, 512, 16384, 8, 8};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        AUTO_FREE char *path = must_format("models/configs/%s.yaml", files[i]);
        config c;
        if (config_load(&c, path, 0, NULL) != STATUS_OK)
            fail_msg("%s", status_message());
        grid g;
        if (config_make_grid(&g, &c, ranks[i], 0) != STATUS_OK)
            fail_msg("%s: %s", path, status_message());
        assert_true(c.data.train.count > 0);
        config_free(&c);
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
TEST(mutated_text_is_refused_or_reads_back)
{
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
        AUTO_FREE char *written = config_text(&c);
        config again = must_parse(written);
        assert_int_equal(fields_differ(&c, &again), 0);
        config_free(&again);
        config_free(&c);
    }
    assert_true(accepted > 100 && refused > 1000);
}

TEST_MAIN(NULL, NULL)
