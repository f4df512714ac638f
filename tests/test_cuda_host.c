/* The CUDA device without a GPU: phalanx trains on the stand-ins of tests/standin, one rank and several, and the CPU is
 * the judge. Every run is also a search for races between streams and for wrong calls, which end it. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "memory/log.h"
#include "tests/launch.h"
#include "tests/workfolder.h"

enum { STEPS = 3, CAUGHT = 98, VOCABULARY = 64, TOKENS = 2048 };

typedef struct run {
    double loss[STEPS], norm[STEPS], seconds[STEPS];
    int steps;
} run;

static char *folder;

/* ---- a tiny data set and two tiny models ------------------------------------------------------------------------ */

static void write_all(const char *name, const void *bytes, size_t count, const char *how)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, how);
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static void write_data(void)
{
    uint16_t tokens[TOKENS];
    uint32_t state = 12345;
    for (int i = 0; i < TOKENS; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (uint16_t)((state >> 16) % VOCABULARY);
    }
    const uint64_t version = 1, sequences = 1, boundaries = 2;
    const uint8_t code = 8;
    const int32_t length = TOKENS;
    const int64_t offset = 0, documents[] = {0, 1};
    write_all("data.bin", tokens, sizeof tokens, "wb");
    write_all("data.idx", "MMIDIDX\0\0", 9, "wb");
    write_all("data.idx", &version, 8, "ab");
    write_all("data.idx", &code, 1, "ab");
    write_all("data.idx", &sequences, 8, "ab");
    write_all("data.idx", &boundaries, 8, "ab");
    write_all("data.idx", &length, 4, "ab");
    write_all("data.idx", &offset, 8, "ab");
    write_all("data.idx", documents, 16, "ab");
}

static void write_config(const char *name, const char *model)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    fprintf(f,
            "model: {%s, layers: 2, hidden_size: 32, heads: 4, ffn_size: 64, vocab_size: %d, max_sequence: 12}\n"
            "data: {train: %s/data}\n"
            "train: {steps: %d, sequence: 12, micro_batch: 1, global_batch: 4, precision: fp32, threads: 1}\n"
            "optimizer: {lr: 1e-2, warmup: 1}\n"
            "evaluate: {every: 0}\n"
            "run: {tensorboard: false}\n"
            "checkpoint: {every: 0}\n",
            model, VOCABULARY, folder, STEPS);
    fclose(f);
    write_all(name, text, bytes, "wb");
    free(text);
}

static void *made; /* the folder, as workfolder.h hands it out */

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(workfolder_setup(&made), 0);
    folder = made;
    write_data();
    write_config("gpt2.yaml", "architecture: gpt2");
    write_config("llama.yaml", "architecture: llama, kv_heads: 2");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return workfolder_teardown(&made);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static void read_metrics(run *out, const char *where)
{
    char path[512], line[1024];
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, where);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    *out = (run){0};
    while (fgets(line, sizeof line, f)) {
        const char *loss = strstr(line, "\"loss\":"), *norm = strstr(line, "\"grad_norm\":");
        if (!loss || out->steps == STEPS)
            continue;
        const char *seconds = strstr(line, "\"step_seconds\":");
        out->loss[out->steps] = atof(loss + 7);
        out->seconds[out->steps] = seconds ? atof(seconds + strlen("\"step_seconds\":")) : NAN;
        out->norm[out->steps++] = norm ? atof(norm + 12) : NAN;
    }
    fclose(f);
}

/* phalanx ("../phalanx" or "phalanx_standin") with the model's configuration into the run folder `where`. */
static launch_result train(const char *program, int ranks, const char *environment, const char *model,
                           const char *where, const char *keys)
{
    char *path = launch_beside(program), *mpirun = ranks > 1 ? launch_mpirun(ranks) : NULL;
    launch_result r = launch_run(120, "cd %s && exec env %s %s %s train %s.yaml run.folder=%s/%s %s", folder,
                                 environment, mpirun ? mpirun : "", path, model, folder, where, keys);
    free(mpirun);
    free(path);
    return r;
}

static void train_well(run *out, const char *program, int ranks, const char *model, const char *where, const char *keys)
{
    launch_result r = train(program, ranks, "", model, where, keys);
    if (r.status || r.timed_out)
        fprintf(stderr, "%s: %s: status %d\n%s%s", model, keys, r.status, r.out, r.err);
    assert_false(r.timed_out);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    read_metrics(out, where);
    assert_int_equal(out->steps, STEPS);
}

static void same(const run *got, const run *want, double tolerance, const char *what)
{
    for (int i = 0; i < STEPS; i++) {
        bool good = fabs(got->loss[i] - want->loss[i]) <= tolerance * fabs(want->loss[i]) &&
                    fabs(got->norm[i] - want->norm[i]) <= 10 * tolerance * fabs(want->norm[i]);
        if (!good)
            fprintf(stderr, "%s, step %d: loss %.9g, should be %.9g; norm %.9g, should be %.9g\n", what, i + 1,
                    got->loss[i], want->loss[i], got->norm[i], want->norm[i]);
        assert_true(good);
    }
}

/* ---- what it shows ---------------------------------------------------------------------------------------------- */

static const struct {
    int ranks;
    const char *keys;
} layouts[] = {
    {1, "train.micro_batch=2"},
    {2, "parallel.tensor=2"},
    {2, "parallel.pipeline=2"},
    {2, "parallel.zero=0"},
    {2, "parallel.zero=1"},
    {2, "parallel.zero=3 parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"},
    {4, "parallel.tensor=2 parallel.pipeline=2 parallel.sequence=false"},
};

static void a_step_of_the_cuda_program_equals_the_cpu(const char *model)
{
    run cpu, cuda;
    char where[32], keys[256];
    snprintf(where, sizeof where, "%s-cpu", model);
    train_well(&cpu, "../phalanx", 1, model, where, "train.device=cpu");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        snprintf(where, sizeof where, "%s-%zu", model, i);
        snprintf(keys, sizeof keys, "train.device=cuda %s", layouts[i].keys);
        train_well(&cuda, "phalanx_standin", layouts[i].ranks, model, where, keys);
        same(&cuda, &cpu, 1e-5, keys);
    }
}

static void gpt2_on_every_layout_equals_the_cpu(void **state)
{
    (void)state;
    a_step_of_the_cuda_program_equals_the_cpu("gpt2");
}

static void llama_on_every_layout_equals_the_cpu(void **state)
{
    (void)state;
    a_step_of_the_cuda_program_equals_the_cpu("llama");
}

/* In 16 bits the roundings differ in their order only: the losses stay within a few units of bf16's last place. */
static void sixteen_bits_train_alike(void **state)
{
    (void)state;
    run cpu, cuda;
    train_well(&cpu, "../phalanx", 1, "llama", "cpu-bf16", "train.device=cpu train.precision=bf16");
    train_well(&cuda, "phalanx_standin", 1, "llama", "cuda-bf16", "train.device=cuda train.precision=bf16");
    same(&cuda, &cpu, 2e-3, "bf16");
    train_well(&cuda, "phalanx_standin", 2, "llama", "cuda-bf16-2",
               "train.device=cuda train.precision=bf16 parallel.tensor=2");
    same(&cuda, &cpu, 2e-3, "bf16, two ranks");
}

/* GPT-2's GELU goes through the products' epilogues, or behind the products where the library has none, or its z not stored
 * as the library wants it; whatever is made again. */
static void products_with_gelu_train_alike(void **state)
{
    (void)state;
    static const struct {
        const char *mutant, *keys;
    } cases[] = {
        {"", "memory.recompute=none"},        {"", "memory.recompute=selective"}, {"", "memory.recompute=full"},
        {"no gelu", "memory.recompute=none"}, {"", "model.ffn_size=60"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run cpu, cuda;
        char keys[128], environment[64];
        snprintf(keys, sizeof keys, "train.precision=bf16 checkpoint.resume=never train.device=cpu %s", cases[i].keys);
        train_well(&cpu, "../phalanx", 1, "gpt2", "gelu-cpu", keys);
        snprintf(keys, sizeof keys, "train.precision=bf16 checkpoint.resume=never train.device=cuda %s", cases[i].keys);
        snprintf(environment, sizeof environment, "STANDIN_MUTANT='%s'", cases[i].mutant);
        launch_result r = train("phalanx_standin", 1, environment, "gpt2", "gelu-cuda", keys);
        assert_int_equal(r.status, 0);
        launch_free(&r);
        read_metrics(&cuda, "gelu-cuda");
        same(&cuda, &cpu, 2e-3, cases[i].keys);
    }
    run whole, lost;
    train_well(&whole, "phalanx_standin", 1, "gpt2", "gelu-whole", "train.precision=bf16 train.device=cuda");
    launch_result r = train("phalanx_standin", 1, "STANDIN_MUTANT='aux is not written'", "gpt2", "gelu-lost",
                            "train.precision=bf16 train.device=cuda");
    launch_free(&r);
    read_metrics(&lost, "gelu-lost");
    assert_false(fabs(lost.norm[0] - whole.norm[0]) <= 2e-2 * whole.norm[0]);
}

/* A loss scale that overflows: the step changes nothing, the scale halves, and the loss of the next step on the same
 * weights is what it was. */
static void fp16_skips_what_overflows(void **state)
{
    (void)state;
    run cpu, cuda;
    const char *keys = "train.precision=fp16 train.loss_scale=4294967296 train.device=";
    char text[128];
    snprintf(text, sizeof text, "%scpu", keys);
    train_well(&cpu, "../phalanx", 1, "llama", "cpu-fp16", text);
    snprintf(text, sizeof text, "%scuda", keys);
    launch_result r = train("phalanx_standin", 1, "", "llama", "cuda-fp16", text);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "skipped"));
    launch_free(&r);
    read_metrics(&cuda, "cuda-fp16");
    for (int i = 0; i < STEPS; i++)
        assert_true(fabs(cuda.loss[i] - cpu.loss[i]) <= 2e-3 * cpu.loss[i]);
}

static void resume_is_bitwise_on_the_device(void **state)
{
    (void)state;
    run whole, parts;
    train_well(&whole, "phalanx_standin", 2, "gpt2", "whole", "train.device=cuda checkpoint.resume=never");
    launch_result r = train("phalanx_standin", 2, "", "gpt2", "parts",
                            "train.device=cuda train.steps=3 checkpoint.every=1 checkpoint.keep=0");
    assert_int_equal(r.status, 0);
    launch_free(&r);
    char *path = launch_beside("phalanx_standin"), *mpirun = launch_mpirun(2);
    r = launch_run(60,
                   "cd %s/parts && rm -rf checkpoints/step-0000000[23] && echo step-00000001 >checkpoints/latest && "
                   "exec %s %s train ../gpt2.yaml run.folder=%s/parts train.device=cuda",
                   folder, mpirun, path, folder);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "resumed from"));
    free(path);
    free(mpirun);
    launch_free(&r);
    read_metrics(&parts, "parts");
    assert_int_equal(parts.steps, STEPS);
    for (int i = 0; i < STEPS; i++)
        assert_true(parts.loss[i] == whole.loss[i] && parts.norm[i] == whole.norm[i]);
}

/* "phalanx eval" or "phalanx generate" of the run `where`; it must succeed. The text is the caller's. */
static char *use(const char *program, const char *command, const char *where, const char *keys)
{
    char *path = launch_beside(program);
    launch_result r =
        launch_run(60, "cd %s && OMP_NUM_THREADS=1 exec %s %s --checkpoint %s %s", folder, path, command, where, keys);
    if (r.status)
        fail_msg("%s %s: status %d: %s", command, keys, r.status, r.err);
    char *out = must_strdup(r.out);
    launch_free(&r);
    free(path);
    return out;
}

static double loss_of(const char *program, const char *where, const char *keys)
{
    char *all = must_format("--data data --json %s", keys), *out = use(program, "eval", where, all);
    double loss = 0;
    assert_int_equal(sscanf(out, "{\"loss\": %lf", &loss), 1);
    free(out);
    free(all);
    return loss;
}

/* Windows that do not fill the last batch; three prompts of which the last is a batch by itself, in the first one's cache. */
static void a_trained_model_is_evaluated_and_continued_as_on_the_cpu(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2", "llama"};
    static const char prompts[] = "1 2 3\n(55)\n0\n";
    const char *how = "--prompts prompts --tokenizer bytes --temperature 0 --tokens 8 --batch 2 --device";
    write_all("prompts", prompts, sizeof prompts - 1, "wb");
    for (int i = 0; i < 2; i++) {
        run trained;
        char where[32], keys[256];
        snprintf(where, sizeof where, "%s-used", models[i]);
        train_well(&trained, "../phalanx", 1, models[i], where, "train.device=cpu checkpoint.every=3");
        double cpu = loss_of("../phalanx", where, "--batch 5 --device cpu");
        double cuda = loss_of("phalanx_standin", where, "--batch 5 --device cuda");
        assert_true(cpu > 1 && fabs(cuda - cpu) <= 1e-6 * cpu);
        assert_true(fabs(loss_of("phalanx_standin", where, "--sequence 7") - cpu) > 1e-5 * cpu); /* it can differ */
        snprintf(keys, sizeof keys, "%s cpu", how);
        char *want = use("../phalanx", "generate", where, keys);
        snprintf(keys, sizeof keys, "%s cuda", how);
        char *got = use("phalanx_standin", "generate", where, keys);
        assert_true(strlen(want) > sizeof prompts);
        assert_string_equal(got, want);
        free(got);
        free(want);
    }
}

static void a_trained_model_is_used_on_the_device_that_is_there(void **state)
{
    (void)state;
    static const struct {
        const char *environment, *device, *says; /* NULL: it works */
    } cases[] = {
        {"STANDIN_GPUS=0", "cuda", "shows no GPU"},
        {"STANDIN_GPUS=0", "auto", NULL},
        {"STANDIN_MEMORY=1000", "cpu", NULL},
        {"STANDIN_MEMORY=1000", "auto", "GiB too little"},
        {"STANDIN_MEMORY=1000", "cuda", "GiB too little"},
    };
    char *path = launch_beside("phalanx_standin");
    run trained;
    train_well(&trained, "../phalanx", 1, "llama", "there",
               "train.device=cpu checkpoint.every=3 checkpoint.resume=never");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int generates = 0; generates < 2; generates++) {
            launch_result r = launch_run(
                60, "cd %s && exec env %s %s %s --checkpoint there --device %s", folder, cases[i].environment, path,
                generates ? "generate --prompt 0 --tokenizer bytes" : "eval --data data", cases[i].device);
            if (!r.status != !cases[i].says || (cases[i].says && !strstr(r.err, cases[i].says)))
                fail_msg("%s, %s: status %d: %s", cases[i].environment, cases[i].device, r.status, r.err);
            launch_free(&r);
        }
    free(path);
}

static void mistakes_are_caught(void **state)
{
    (void)state;
    static const struct {
        const char *mutant, *says, *keys;
        int ranks;
        int asked; /* how often the host asks before it sees the device come so far */
    } cases[] = {
        {"compute does not wait", "race: ", "parallel.tensor=2", 2, 1},
        {"compute does not wait", "race: ", "parallel.zero=3", 2, 1},
        {"communication does not wait", "race: ", "parallel.tensor=2", 2, 1},
        {"communication does not wait", "race: ", "parallel.pipeline=2", 2, 1},
        {"no record", "race: ", "parallel.zero=1", 2, 1},
        {"updates are late", "race: ", "parallel.zero=1", 2, 1},
        {"one block", "the host changes", "", 1, 1000},
        {"a graph does not wait", "has joined the capture", "train.cuda_graph=true", 2, 1},
        {"wrong count", "mismatched collective", "parallel.tensor=2", 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char environment[128], keys[256];
        snprintf(environment, sizeof environment, "STANDIN_MUTANT='%s' STANDIN_ASKED=%d", cases[i].mutant,
                 cases[i].asked);
        snprintf(keys, sizeof keys, "train.device=cuda checkpoint.resume=never %s", cases[i].keys);
        launch_result r = train("phalanx_standin", cases[i].ranks, environment, "llama", "mutant", keys);
        if (!strstr(r.err, cases[i].says))
            fprintf(stderr, "%s, %s: status %d\n%s%s", cases[i].mutant, cases[i].keys, r.status, r.out, r.err);
        assert_false(r.timed_out);
        assert_int_equal(r.status, CAUGHT);
        assert_non_null(strstr(r.err, cases[i].says));
        launch_free(&r);
    }
}

/* The host has long enqueued everything when a kernel of rank 1 does not end, and rank 0 stops behind it: the stretch of ops is
 * named in which the device of rank 1 is, and not the end of the program. */
static void a_device_that_hangs_is_named_with_the_ops_it_stands_in(void **state)
{
    (void)state;
    launch_result r =
        train("phalanx_standin", 2, "STANDIN_ENDLESS_1='layer 1/mlp/down/dw' STANDIN_ENDLESS_0='embed/dtable'", "llama",
              "hangs", "train.device=cuda run.hang_seconds=2");
    const char *line = strstr(r.err, "watchdog: rank 1 is behind"), *end = line ? strchr(line, '\n') : NULL;
    if (!end)
        fprintf(stderr, "status %d\n%s%s", r.status, r.out, r.err);
    assert_false(r.timed_out);
    assert_int_not_equal(r.status, 0);
    assert_non_null(end);
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)(end - line), line);
    if (!strstr(text, "last at step 1, micro-batch 0, forward, op layer 1/mlp/up .. layer 1/norm/dx"))
        fail_msg("%s", text);
    launch_free(&r);
}

/* A step that takes longer than run.hang_seconds, on a device that moves. */
static void a_slow_device_is_no_hang(void **state)
{
    (void)state;
    run slow;
    launch_result r = train("phalanx_standin", 2, "STANDIN_KERNEL_SECONDS=0.035", "llama", "slow",
                            "train.device=cuda train.steps=1 run.hang_seconds=2");
    if (r.status)
        fprintf(stderr, "%s%s", r.out, r.err);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    read_metrics(&slow, "slow");
    assert_int_equal(slow.steps, 1);
    if (slow.seconds[0] < 4)
        fail_msg("the step took %.1f s only", slow.seconds[0]);
}

/* What rank 0 has sent, as the summary says it. */
static void read_sent(char *out, int bytes, const char *where)
{
    char path[512], text[8192] = {0};
    snprintf(path, sizeof path, "%s/%s/summary.json", folder, where);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    const char *at = strstr(text, "\"bytes_sent\":");
    assert_non_null(at);
    snprintf(out, (size_t)bytes, "%.*s", (int)strcspn(at, "}"), at);
}

/* Step 1 op by op, step 2 captured and launched, step 3 launched again: as without, to the last bit, what was sent included. */
static void a_graph_of_the_step_changes_nothing(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        const char *keys;
    } cases[] = {
        {1, "data.document_mask=true train.dropout=0.1"},
        {2, "parallel.tensor=2 train.precision=bf16"},
        {2, "parallel.zero=1"},
        {2, "parallel.zero=3 parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"},
        {2, "parallel.pipeline=2 parallel.schedule=zb-h1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run without, with;
        char keys[512], sent[2][256];
        snprintf(keys, sizeof keys,
                 "train.device=cuda checkpoint.resume=never data.validation=%s/data evaluate.every=1 %s "
                 "train.cuda_graph=false",
                 folder, cases[i].keys);
        train_well(&without, "phalanx_standin", cases[i].ranks, "llama", "by-op", keys);
        strcpy(strrchr(keys, '=') + 1, "true");
        launch_result r = train("phalanx_standin", cases[i].ranks, "", "llama", "graph", keys);
        if (r.status || !strstr(r.err, "nodes, launched 2 times"))
            fail_msg("%s: status %d\n%s%s", keys, r.status, r.out, r.err);
        launch_free(&r);
        read_metrics(&with, "graph");
        assert_int_equal(with.steps, STEPS);
        same(&with, &without, 0, keys);
        read_sent(sent[0], sizeof sent[0], "by-op");
        read_sent(sent[1], sizeof sent[1], "graph");
        assert_string_equal(sent[1], sent[0]);
    }
}

static void a_broken_link_ends_the_run(void **state)
{
    (void)state;
    launch_result r =
        train("phalanx_standin", 2, "STANDIN_MUTANT='link breaks'", "llama", "broken", "train.device=cuda");
    assert_false(r.timed_out);
    assert_int_not_equal(r.status, 0);
    assert_non_null(strstr(r.err, "remote process exited"));
    launch_free(&r);
}

static void what_cannot_be_is_refused_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *environment, *says;
        int ranks;
    } cases[] = {
        {"STANDIN_GPUS=-1", "no NVIDIA driver", 1},
        {"STANDIN_GPUS=0", "shows no GPU", 1},
        {"STANDIN_MEMORY=100000", "GiB too little", 1},
        {"STANDIN_GPUS=1", "share one GPU", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r =
            train("phalanx_standin", cases[i].ranks, cases[i].environment, "llama", "refused", "train.device=cuda");
        const char *line = strstr(r.err, "phalanx: ");
        if (!line || !strstr(line, cases[i].says))
            fprintf(stderr, "%s: status %d\n%s%s", cases[i].environment, r.status, r.out, r.err);
        assert_true(r.status == 1 || r.status == 2);
        assert_non_null(line);
        assert_non_null(strstr(line, cases[i].says));
        launch_free(&r);
    }
    launch_result r = train("../phalanx", 1, "LANG=C", "llama", "refused",
                            "train.device=cuda"); /* with no shared object, or with one and no driver: a line each */
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "phalanx: device=cuda: "));
    launch_free(&r);
}

static void two_ranks_share_a_gpu_when_forced(void **state)
{
    (void)state;
    launch_result r = train("phalanx_standin", 2, "STANDIN_GPUS=1 PHALANX_SHARE_GPU=1", "llama", "shared",
                            "train.device=cuda train.steps=1");
    assert_int_equal(r.status, 0);
    launch_free(&r);
}

/* tests/gpu/device_ops.c, which runs on a GPU too. */
static void every_op_agrees_with_the_reference_through_the_device(void **state)
{
    (void)state;
    char *program = launch_beside("device_ops_standin");
    launch_result r = launch_run(300, "exec %s", program);
    int ops = 0, cases = 0, failed = -1;
    const char *line = strstr(r.out, "device_ops: ");
    if (r.status)
        fprintf(stderr, "%s%s", r.out, r.err);
    assert_int_equal(r.status, 0);
    assert_non_null(line);
    assert_int_equal(sscanf(line, "device_ops: %d ops, %d cases, %d failed", &ops, &cases, &failed), 3);
    assert_true(ops >= 34 && cases >= 2000 && failed == 0);
    launch_free(&r);
    free(program);
}

/* A number that the stand-ins say of the profiled steps: the one before `what`. */
static int profiled(const launch_result *r, const char *what)
{
    const char *line = strstr(r->err, "standin: profiled: "), *at = line ? strstr(line, what) : NULL;
    if (!at)
        fprintf(stderr, "status %d, no \"%s\"\n%s%s", r->status, what, r->out, r->err);
    assert_int_equal(r->status, 0);
    assert_non_null(at);
    while (at > line && at[-1] != ',' && at[-1] != ':')
        at--;
    return atoi(at);
}

static void the_profiler_runs_for_the_steps_asked_for(void **state)
{
    (void)state;
    launch_result r =
        train("phalanx_standin", 1, "", "gpt2", "profiled", "train.device=cuda profile.start=2 profile.stop=2");
    assert_true(profiled(&r, " launches") > 100);
    launch_free(&r);
}

/* Of the batches of three steps, the first is read at once and each other one while the step before it is played; host
 * memory is what the plan says. */
static void the_next_batch_is_read_while_the_device_plays(void **state)
{
    (void)state;
    launch_result r = train("phalanx_standin", 1, "", "gpt2", "ahead",
                            "train.device=cuda profile.start=1 profile.stop=3 data.document_mask=true");
    assert_int_equal(profiled(&r, " read ahead"), 2 * 4);
    assert_int_equal(profiled(&r, " read idle"), 0);
    char *path = launch_beside("../phalanx");
    launch_result plan = launch_run(60, "cd %s && exec %s plan --json gpt2.yaml data.document_mask=true", folder, path);
    const char *planned = strstr(plan.out, "\"pinned_bytes\": ");
    assert_non_null(planned);
    assert_int_equal(profiled(&r, " bytes pinned"), atoi(planned + strlen("\"pinned_bytes\": ")));
    launch_free(&plan);
    launch_free(&r);
    free(path);
    run without, with;
    char keys[600];
    snprintf(keys, sizeof keys, "train.device=cuda data.validation=%s/data evaluate.every=1 evaluate.batches=2",
             folder);
    train_well(&without, "phalanx_standin", 2, "gpt2", "straight", "train.device=cuda");
    train_well(&with, "phalanx_standin", 2, "gpt2", "evaluated", keys);
    same(&with, &without, 0, "with evaluation in between");
}

/* 6 layers of GPT-2 are 76 tensors, and a launch takes 48 of them; with ZeRO 1, 16 before their gathers go out. */
static void small_tensors_are_updated_together(void **state)
{
    (void)state;
    launch_result r = train("phalanx_standin", 1, "", "gpt2", "together",
                            "train.device=cuda train.steps=1 model.layers=6 profile.start=1 profile.stop=1");
    assert_int_equal(profiled(&r, " of updates"), 2);
    launch_free(&r);
    r = train("phalanx_standin", 2, "", "gpt2", "together-2",
              "train.device=cuda train.steps=1 model.layers=6 profile.start=1 profile.stop=1 parallel.zero=1");
    assert_int_equal(profiled(&r, " of updates"), 5);
    launch_free(&r);
}

static void stand_ins_were_not_built(void **state)
{
    (void)state;
    skip(); /* they need the headers of the CUDA toolkit */
}

int main(void)
{
    const struct CMUnitTest none[] = {cmocka_unit_test(stand_ins_were_not_built)};
    char *program = launch_beside("phalanx_standin");
    bool built = access(program, X_OK) == 0;
    free(program);
    if (!built)
        return cmocka_run_group_tests(none, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_on_every_layout_equals_the_cpu),
        cmocka_unit_test(llama_on_every_layout_equals_the_cpu),
        cmocka_unit_test(sixteen_bits_train_alike),
        cmocka_unit_test(products_with_gelu_train_alike),
        cmocka_unit_test(fp16_skips_what_overflows),
        cmocka_unit_test(resume_is_bitwise_on_the_device),
        cmocka_unit_test(a_trained_model_is_evaluated_and_continued_as_on_the_cpu),
        cmocka_unit_test(a_trained_model_is_used_on_the_device_that_is_there),
        cmocka_unit_test(mistakes_are_caught),
        cmocka_unit_test(a_device_that_hangs_is_named_with_the_ops_it_stands_in),
        cmocka_unit_test(a_slow_device_is_no_hang),
        cmocka_unit_test(a_graph_of_the_step_changes_nothing),
        cmocka_unit_test(a_broken_link_ends_the_run),
        cmocka_unit_test(what_cannot_be_is_refused_in_one_line),
        cmocka_unit_test(two_ranks_share_a_gpu_when_forced),
        cmocka_unit_test(every_op_agrees_with_the_reference_through_the_device),
        cmocka_unit_test(the_profiler_runs_for_the_steps_asked_for),
        cmocka_unit_test(small_tensors_are_updated_together),
        cmocka_unit_test(the_next_batch_is_read_while_the_device_plays),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
