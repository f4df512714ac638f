/* What a trained model is used for: texts do not depend on the other texts of a batch, losses not on how many windows
 * are computed together, and the evaluation while training is the one that `phalanx eval` makes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/manifest.h"
#include "engine/files/safetensors.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { DOCUMENTS = 160, HELD = 40, SEQUENCE = 48, BATCH = 8 };

static const char *const words[] = {"the", "cat", "sat", "on", "a", "mat", "and", "then", "ran", "off"};

/* Documents of 2 to 21 words, each of which follows from the one before it twice in three times. */
static void write_documents(const char *path, int count, uint32_t seed)
{
    AUTO_FREE char *text = must_calloc((unsigned long)count, 200);
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223; /* Numerical Recipes' generator; the high bits are the good ones */
        used += (size_t)sprintf(text + used, "{\"text\": \"");
        for (int left = 2 + (int)((seed >> 16) % 20), word = 0; left > 0; left--) {
            seed = seed * 1664525 + 1013904223;
            word = (seed >> 16) % 3 ? (word + 1) % 10 : (int)((seed >> 20) % 10);
            used += (size_t)sprintf(text + used, "%s%s", words[word], left > 1 ? " " : "");
        }
        used += (size_t)sprintf(text + used, "\"}\n");
    }
    runs_write_text(path, text);
}

/* Standard output of "phalanx ..." on the CPU; it must succeed. The text is the caller's. */
__attribute__((format(printf, 1, 2))) static char *phalanx(const char *format, ...)
{
    char arguments[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r =
        launch_finish(launch_start(60, "OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= exec %s %s", program, arguments));
    if (r.status)
        fail_msg("phalanx %s: status %d: %s", arguments, r.status, r.err);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

/* A model of bytes, trained for a few seconds; with the documents apart, so that eval has to follow. */
static int train(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    AUTO_FREE char *text = workfolder_path(top, "text.jsonl"), *held = workfolder_path(top, "held.jsonl");
    AUTO_FREE char *path = workfolder_path(top, "run.yaml");
    write_documents(text, DOCUMENTS, 1);
    write_documents(held, HELD, 2);
    free(phalanx("tokenize --output %s/train --tokenizer bytes %s", top, text));
    free(phalanx("tokenize --output %s/held --tokenizer bytes %s", top, held));
    char *keys = must_format(
        "model: {architecture: llama, layers: 2, hidden_size: 48, heads: 4, kv_heads: 2, ffn_size: 96, vocab_size: "
        "257, "
        "max_sequence: 96}\n"
        "data: {train: %s/train, validation: %s/held, document_mask: true}\n"
        "train: {steps: 12, sequence: %d, micro_batch: 4, global_batch: %d, precision: fp32, device: cpu, threads: 1}\n"
        "optimizer: {lr: 1e-2, warmup: 2}\n"
        "evaluate: {every: 6, batches: 2}\n"
        "run: {tensorboard: false}\n",
        top, top, SEQUENCE, BATCH);
    runs_write_text(path, keys);
    free(phalanx("train %s run.folder=%s/run", path, top));
    AUTO_FREE char *prompts = workfolder_path(top, "prompts");
    runs_write_text(prompts, "the cat\nthe cat sat on a mat and then\n\nr\nthe cat\n");
    free(keys);
    return 0;
}

/* ---- texts ------------------------------------------------------------------------------------------------------ */

TEST(a_text_is_the_same_alone_and_in_any_batch)
{
    static const char *const how[] = {"--temperature 0", "--temperature 1.1 --top-k 30 --top-p 0.95 --seed 5"};
    const char *top = *state;
    for (int i = 0; i < 2; i++) {
        char *alone =
            phalanx("generate --checkpoint %s/run --prompts %s/prompts --tokens 30 --batch 1 %s", top, top, how[i]);
        for (int batch = 2; batch <= 5; batch++) {
            AUTO_FREE char *together = phalanx(
                "generate --checkpoint %s/run --prompts %s/prompts --tokens 30 --batch %d %s", top, top, batch, how[i]);
            assert_string_equal(together, alone);
        }
        free(alone);
    }
}

TEST(the_likeliest_text_needs_no_seed_and_a_drawn_one_has_its_own)
{
    const char *top = *state;
    static const char *const how[] = {"--temperature 0", "--temperature 0 --seed 9", "--top-k 1 --seed 4",
                                      "--top-p 0 --seed 6"};
    AUTO_FREE char *first = phalanx("generate --checkpoint %s/run --prompt 'on a' --tokens 40 %s", top, how[0]);
    assert_int_equal(strncmp(first, "on a", 4), 0);
    for (int i = 1; i < 4; i++) {
        AUTO_FREE char *other = phalanx("generate --checkpoint %s/run --prompt 'on a' --tokens 40 %s", top, how[i]);
        assert_string_equal(other, first);
    }
    AUTO_FREE char *a = phalanx("generate --checkpoint %s/run --prompt 'on a' --tokens 40 --seed 1", top);
    AUTO_FREE char *b = phalanx("generate --checkpoint %s/run --prompt 'on a' --tokens 40 --seed 1", top);
    AUTO_FREE char *c = phalanx("generate --checkpoint %s/run --prompt 'on a' --tokens 40 --seed 2", top);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
}

/* One prompt streams, two do not: what is written is the same, whatever it is to stop at. */
TEST(a_streamed_text_ends_where_the_whole_one_does)
{
    const char *top = *state;
    char *whole =
        phalanx("generate --checkpoint %s/run --prompt 'the ' --only-new --ignore-end --tokens 40 --seed 3", top);
    size_t length = strlen(whole);
    assert_true(length > 24);
    AUTO_FREE char *twice = workfolder_path(top, "twice");
    runs_write_text(twice, "the \nthe \n");
    for (int at = 4; at <= 20; at += 8) {
        char *stop = must_format("%.5s", whole + at);
        for (char *c = stop; *c; c++)
            *c = *c == '\n' || *c == '\'' ? ' ' : *c; /* perhaps it then never stops: the two must agree all the same */
        AUTO_FREE char *streamed = phalanx(
            "generate --checkpoint %s/run --prompt 'the ' --only-new --ignore-end --tokens 40 --seed 3 --stop '%s'",
            top, stop);
        AUTO_FREE char *written = phalanx(
            "generate --checkpoint %s/run --prompts %s --only-new --ignore-end --tokens 40 --seed 3 --stop '%s'", top,
            twice, stop);
        assert_int_equal(strncmp(written, streamed, strlen(streamed)), 0);
        const char *found = strstr(whole, stop);
        assert_int_equal(strlen(streamed), found ? (size_t)(found - whole) + 1 : length);
        free(stop);
    }
    free(whole);
}

/* SentencePiece's first space of a text is dropped, but what follows a prompt begins no text: of many first pieces
 * drawn by a model that knows nothing, some must begin with a space. */
TEST(a_continuation_keeps_its_first_space)
{
    enum { PROMPTS = 64 };
    const char *top = *state;
    char *prompts = workfolder_path(top, "many"), lines[PROMPTS * 4 + 1] = "";
    for (int i = 0; i < PROMPTS; i++)
        strcat(lines, "cat\n");
    runs_write_text(prompts, lines);
    free(phalanx("tokenize --output %s/pieces --tokenizer tests/golden/text/unigram.model %s/text.jsonl", top, top));
    free(
        phalanx("train %s/run.yaml run.folder=%s/pieces-run data.train=%s/pieces data.validation=null evaluate.every=0 "
                "model.vocab_size=1200 train.steps=1 optimizer.warmup=0 optimizer.lr=1e-9",
                top, top, top));
    char *out = phalanx("generate --checkpoint %s/pieces-run --tokenizer tests/golden/text/unigram.model --prompts %s "
                        "--tokens 1 --seed 1 --ignore-end",
                        top, prompts);
    int with = 0, without = 0;
    for (const char *at = out; (at = strstr(at, "cat")); at += 3) {
        with += at[3] == ' ';
        without += at[3] != ' ';
    }
    if (with < 5 || without < 5)
        fail_msg("%d with a space, %d without: %s", with, without, out);
    free(out);
    free(prompts);
}

static const safetensors_tensor *tensor_named(const safetensors *file, const char *name)
{
    for (int i = 0; i < safetensors_count(file); i++)
        if (!strcmp(safetensors_at(file, i)->name, name))
            return safetensors_at(file, i);
    fail_msg("no tensor %s", name);
    return NULL;
}

/* The first ids that eval makes of the text, and what it says on standard error, which the caller frees. */
static char *ids_of_text(int32_t ids[4], const char *top, const char *run, const char *flags)
{
    AUTO_FREE char *program = launch_beside("../phalanx"), *path = workfolder_path(top, "ids.safetensors");
    launch_result r = launch_run(60, "%s eval --checkpoint %s/%s --text %s/two.jsonl --limit 4 --logits %s %s", program,
                                 top, run, top, path, flags);
    if (r.status)
        fail_msg("%s", r.err);
    AUTO(safetensors) *file = NULL;
    assert_int_equal(safetensors_open(&file, path), STATUS_OK);
    memcpy(ids, safetensors_data(file, tensor_named(file, "input_ids")), 4 * sizeof *ids);
    char *said = must_strdup(r.err);
    launch_free(&r);
    return said;
}

static void forget_begin(const char *top, const char *run)
{
    AUTO_FREE char *path = must_format("%s/%s/checkpoints/step-00000001/manifest.json", top, run);
    AUTO(manifest) *m = NULL;
    assert_int_equal(manifest_read(&m, path), STATUS_OK);
    assert_int_equal(json_object_del(m->meta, "document_begin"), 0);
    assert_int_equal(manifest_write(m, path), STATUS_OK);
}

/* Training saw no <s> (1) where tokenize wrote none: a text then begins with the </s> (2) of the document before, or,
 * where documents are apart, with nothing. A model that does not record it is prompted as its tokenizer says, and told
 * so once; a data set that does records it at the next save. */
TEST(a_text_begins_as_documents_did_in_training)
{
    static const struct {
        const char *run, *mask, *data;
        int32_t begin; /* -1: nothing */
    } rows[] = {{"begun-end", "false", "[pieces]", 2},
                {"begun-mask", "true", "[pieces]", -1},
                {"begun-token", "true", "[begun]", 1},
                {"begun-mixed", "false", "[{path: begun}, {path: pieces, weight: 2}]", 2}};
    const char *top = *state;
    AUTO_FREE char *two = workfolder_path(top, "two.jsonl"), *program = launch_beside("../phalanx");
    runs_write_text(two, "{\"text\": \"a\"}\n{\"text\": \"cat\"}\n");
    for (int i = 0; i < 2; i++)
        free(phalanx("tokenize --force --output %s/%s --tokenizer tests/golden/text/unigram.model %s %s/text.jsonl",
                     top, i ? "begun" : "pieces", i ? "--begin" : "", top));
    int32_t ids[4], plain[4];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        launch_result r = launch_run(60,
                                     "cd %s && %s train run.yaml run.folder=%s data.document_mask=%s 'data.train=%s' "
                                     "data.validation=null evaluate.every=0 model.vocab_size=1200 train.steps=1 "
                                     "optimizer.warmup=0",
                                     top, program, rows[i].run, rows[i].mask, rows[i].data);
        if (r.status || (i == 3) != (strstr(r.err, "its data sets differ in what begins a document") != NULL))
            fail_msg("%s: status %d: %s", rows[i].run, r.status, r.err);
        launch_free(&r);
        AUTO_FREE char *said = ids_of_text(ids, top, rows[i].run, "");
        AUTO_FREE char *bare = ids_of_text(plain, top, rows[i].run, "--begin nothing");
        assert_null(strstr(said, "warning"));
        if (rows[i].begin >= 0)
            assert_int_equal(ids[0], rows[i].begin);
        assert_memory_equal(ids + (rows[i].begin >= 0), plain, 2 * sizeof *ids);
    }
    forget_begin(top, "begun-end");
    AUTO_FREE char *said = ids_of_text(ids, top, "begun-end", "");
    assert_int_equal(ids[0], 1);
    const char *warned = strstr(said, "does not record what began documents");
    assert_non_null(warned);
    assert_null(strstr(warned + 1, "does not record"));
    AUTO_FREE char *more = must_format("cd %s && %s train begun-end/config.yaml train.steps=2", top, program);
    assert_int_equal(system(more), 0);
    AUTO_FREE char *after = ids_of_text(ids, top, "begun-end", "");
    assert_int_equal(ids[0], 2);
    assert_null(strstr(after, "warning"));
}

/* What two ranks have trained that divided its samples, one rank continues texts with, and as what one has trained. */
TEST(a_model_of_divided_samples_continues_texts_alike)
{
    const char *top = *state;
    free(runs_train_well(60, 2, "%s/run.yaml run.folder=%s/divided parallel.context=2 train.micro_batch=8", top, top));
    char *out[2];
    for (int i = 0; i < 2; i++)
        out[i] = phalanx("generate --checkpoint %s/%s --prompts %s/prompts --tokens 20 --temperature 0", top,
                         i ? "divided" : "run", top);
    assert_true(strlen(out[0]) > 60);
    assert_string_equal(out[0], out[1]);
    free(out[0]);
    free(out[1]);
}

/* ---- losses ----------------------------------------------------------------------------------------------------- */

static double loss_of(const char *top, const char *keys)
{
    AUTO_FREE char *out = phalanx("eval --checkpoint %s/run --data %s/held --json %s", top, top, keys);
    json_t *object = json_loads(out, 0, NULL);
    assert_non_null(object);
    double loss = json_number_value(json_object_get(object, "loss"));
    json_decref(object);
    return loss;
}

TEST(eval_is_the_evaluation_of_training_at_any_batch)
{
    const char *top = *state;
    AUTO_FREE char *folder = workfolder_path(top, "run");
    runs_metrics m = runs_read_metrics(folder);
    assert_int_equal(m.evaluations, 2);
    double trained = m.evaluation[1].loss;
    assert_true(trained > 1 && trained < 4.5); /* it has learnt, and not all */
    for (int batch = 1; batch <= 9; batch += 4) {
        AUTO_FREE char *keys = must_format("--batch %d --limit %d", batch, 2 * BATCH * SEQUENCE);
        double loss = loss_of(top, keys);
        if (!(fabs(loss / trained - 1) < 1e-6))
            fail_msg("batch %d: %.9g, in training %.9g", batch, loss, trained);
    }
    /* other windows, another loss: the comparison can fail */
    assert_true(fabs(loss_of(top, "--sequence 40 --limit 768") / trained - 1) > 1e-5);
}

/* -log softmax of the labels, summed over the rows of a file of logits. */
static double loss_of_file(const safetensors *file, int64_t rows, int64_t vocabulary)
{
    const safetensors_tensor *t = tensor_named(file, "logits"), *y = tensor_named(file, "labels");
    assert_true(t && t->type == DTYPE_FP32 && t->dims == 2 && t->shape[0] == rows && t->shape[1] == vocabulary);
    assert_true(y && y->type == DTYPE_INT32 && y->dims == 1 && y->shape[0] == rows);
    const float *row = safetensors_data(file, t);
    const int32_t *label = safetensors_data(file, y);
    double loss = 0;
    for (int64_t i = 0; i < rows; i++, row += vocabulary) {
        double sum = 0;
        for (int64_t k = 0; k < vocabulary; k++)
            sum += exp((double)row[k] - row[label[i]]);
        loss += log(sum);
    }
    return loss / (double)rows;
}

/* The logits of all tokens that are predicted, of windows and of documents apart in them: their loss is that of eval,
 * by the file too, and on ranks that share the model. */
TEST(logits_of_evaluated_tokens_are_kept)
{
    const char *top = *state;
    static const char *const layouts[] = {"", "--tensor 2"};
    double loss = loss_of(top, "--limit 200");
    AUTO_FREE char *path = must_format("%s/logits.safetensors", top);
    for (int i = 0; i < 2; i++) {
        char *mpirun = i ? launch_mpirun(2) : must_strdup(""), *program = launch_beside("../phalanx");
        launch_result r =
            launch_run(60, "%s %s eval --checkpoint %s/run --data %s/held --json --limit 200 --logits %s %s", mpirun,
                       program, top, top, path, layouts[i]);
        if (r.status)
            fail_msg("%s", r.err);
        json_t *object = json_loads(r.out, 0, NULL);
        double said = json_number_value(json_object_get(object, "loss"));
        safetensors *file;
        assert_int_equal(safetensors_open(&file, path), STATUS_OK);
        double kept = loss_of_file(file, 200, tensor_named(file, "logits")->shape[1]);
        if (!(fabs(said / loss - 1) < 1e-6 && fabs(kept / loss - 1) < 1e-6))
            fail_msg("eval %.9g, with --logits %.9g, its file %.9g", loss, said, kept);
        const safetensors_tensor *x = tensor_named(file, "input_ids"), *y = tensor_named(file, "labels");
        assert_memory_equal((const int32_t *)safetensors_data(file, x) + 1, safetensors_data(file, y), 199 * 4);
        safetensors_close(file);
        json_decref(object);
        launch_free(&r);
        free(program);
        free(mpirun);
    }
    AUTO_FREE char *nowhere = must_format("--limit 5 --logits %s/none/x.safetensors", top),
                   *program = launch_beside("../phalanx");
    launch_result r = launch_run(60, "%s eval --checkpoint %s/run --data %s/held %s", program, top, top, nowhere);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "none/x.safetensors"));
    launch_free(&r);
}

TEST(evaluation_takes_the_same_samples_in_every_layout)
{
    static const char *const layouts[] = {"train.micro_batch=1", "train.micro_batch=8",
                                          "parallel.tensor=2",   "parallel.pipeline=2 train.micro_batch=2",
                                          "parallel.context=2",  ""};
    static const int ranks[] = {1, 1, 2, 2, 2, 2};
    const char *top = *state;
    double first = 0;
    for (int i = 0; i < 6; i++) {
        /* 5 global batches are more than there is: one pass, of a number that 8 does not divide */
        AUTO_FREE char *keys = must_format("%s/run.yaml run.folder=%s/layout-%d train.steps=2 evaluate.batches=500 %s",
                                           top, top, i, layouts[i]);
        launch_result r = runs_train(60, ranks[i], keys);
        assert_int_equal(r.status, 0);
        assert_non_null(strstr(r.out, "of data.validation: fewer than evaluate.batches"));
        AUTO_FREE char *folder = must_format("%s/layout-%d", top, i);
        runs_metrics m = runs_read_metrics(folder);
        assert_int_equal(m.evaluations, 1);
        first = i ? first : m.evaluation[0].loss;
        if (!(fabs(m.evaluation[0].loss / first - 1) < 1e-6))
            fail_msg("%s: %.9g, elsewhere %.9g", layouts[i], m.evaluation[0].loss, first);
        launch_free(&r);
    }
}

/* Standard output of "phalanx ..." on so many ranks; it must succeed. The text is the caller's. */
static char *phalanx_on(int ranks, const char *arguments)
{
    AUTO_FREE char *program = launch_beside("../phalanx"), *launcher = launch_mpirun(ranks);
    launch_result r = launch_finish(
        launch_start(120, "OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= exec %s %s %s", launcher, program, arguments));
    if (r.status)
        fail_msg("%d ranks, phalanx %s: status %d: %s", ranks, arguments, r.status, r.err);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

/* Printed once: whole standard outputs are compared. */
TEST(ranks_that_share_a_model_generate_what_one_does)
{
    static const struct {
        int ranks;
        const char *layout;
    } rows[] = {{2, ""}, {2, "--tensor 2"}, {2, "--pipeline 2"}, {4, "--tensor 2 --pipeline 2"}, {4, "--tensor 4"}};
    static const char *const how[] = {"--temperature 0", "--temperature 0.5 --top-k 30 --seed 5"};
    const char *top = *state;
    for (int i = 0; i < 2; i++) {
        char *command =
            must_format("generate --checkpoint %s/run --prompts %s/prompts --tokens 20 %s", top, top, how[i]);
        AUTO_FREE char *one = phalanx("%s", command);
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            AUTO_FREE char *all = must_format("%s %s", command, rows[k].layout),
                           *together = phalanx_on(rows[k].ranks, all);
            assert_string_equal(together, one);
        }
        free(command);
    }
}

/* Their heads are divided, and all have the cache of latents. */
TEST(ranks_that_share_latents_generate_what_one_does)
{
    static const struct {
        int ranks;
        const char *layout;
    } rows[] = {{2, "--tensor 2"}, {4, "--tensor 2 --pipeline 2"}, {4, "--tensor 4"}};
    const char *top = *state;
    free(
        phalanx("train %s/run.yaml run.folder=%s/latent model.architecture=deepseek_v3 model.layers=4 "
                "model.kv_heads=4 model.head_size=14 model.rope_head_size=6 model.v_head_size=10 model.kv_lora_rank=18 "
                "model.q_lora_rank=22 model.experts=4 model.expert_ffn_size=24 model.dense_layers=1",
                top, top));
    char *command =
        must_format("generate --checkpoint %s/latent --prompts %s/prompts --tokens 20 --temperature 0", top, top);
    AUTO_FREE char *one = phalanx("%s", command);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        AUTO_FREE char *all = must_format("%s %s", command, rows[k].layout), *together = phalanx_on(rows[k].ranks, all);
        assert_string_equal(together, one);
    }
    free(command);
}

TEST(ranks_that_share_a_model_or_the_data_find_one_ranks_loss)
{
    static const struct {
        int ranks;
        const char *layout;
    } rows[] = {{2, ""}, {2, "--tensor 2"}, {2, "--pipeline 2"}, {4, "--pipeline 2"}};
    const char *top = *state;
    AUTO_FREE char *command = must_format("eval --checkpoint %s/run --data %s/held --batch 3 --json", top, top);
    AUTO_FREE char *one = phalanx("%s", command);
    json_t *alone = json_loads(one, 0, NULL);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        AUTO_FREE char *all = must_format("%s %s", command, rows[k].layout), *said = phalanx_on(rows[k].ranks, all);
        json_t *here = json_loads(said, 0, NULL); /* fails if it is said twice */
        assert_non_null(here);
        assert_int_equal(json_integer_value(json_object_get(here, "tokens")),
                         json_integer_value(json_object_get(alone, "tokens")));
        double a = json_number_value(json_object_get(alone, "loss")),
               b = json_number_value(json_object_get(here, "loss"));
        if (!(a > 0 && fabs(a - b) <= 1e-6 * a))
            fail_msg("%d ranks, %s: loss %.9g, alone %.9g", rows[k].ranks, rows[k].layout, b, a);
        json_decref(here);
    }
    json_decref(alone);
}

TEST(ranks_that_no_layout_needs_are_refused_once)
{
    static const char *const rows[][2] = {
        {"generate --checkpoint run --prompt a --tensor 1", "--tensor 1 x --pipeline 1 are not the job's 2 ranks"},
        {"eval --checkpoint run --data held --tensor 3", "--tensor 3 x --pipeline 1 does not divide the job's 2 ranks"},
        {"eval --checkpoint run --data nowhere", "nowhere"}};
    AUTO_FREE char *program = launch_beside("../phalanx"), *launcher = launch_mpirun(2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        launch_result r = launch_run(60, "cd %s && OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= %s %s %s", (char *)*state,
                                     launcher, program, rows[i][0]);
        assert_int_not_equal(r.status, 0);
        if (!strstr(r.err, rows[i][1]) || runs_error_lines(r.err) != 1)
            fail_msg("%s: %s", rows[i][0], r.err);
        launch_free(&r);
    }
}

TEST(a_complete_run_says_so_and_stays_as_it_is)
{
    const char *top = *state;
    AUTO_FREE char *summary = must_format("%s/run/summary.json", top),
                   *metrics = must_format("%s/run/metrics.jsonl", top);
    int64_t bytes, lines;
    AUTO_FREE char *before = (char *)workfolder_read(summary, &bytes),
                   *steps = (char *)workfolder_read(metrics, &lines);
    AUTO_FREE char *out = phalanx("train %s/run.yaml run.folder=%s/run", top, top);
    assert_non_null(strstr(out, "nothing left to do: 12 steps are done, and train.steps is 12"));
    AUTO_FREE char *after = (char *)workfolder_read(summary, &bytes), *now = (char *)workfolder_read(metrics, &lines);
    assert_string_equal(after, before);
    assert_string_equal(now, steps);
}

TEST_MAIN(train, workfolder_teardown)
