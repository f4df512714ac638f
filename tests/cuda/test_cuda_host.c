/* The CUDA device without a GPU: phalanx trains on the stand-ins of tests/cuda/standin, one rank and several, and the
 * CPU is the judge. Every run is also a search for races between streams and for wrong calls, which end it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cuda/cuda_runs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = CUDA_RUNS_STEPS, CAUGHT = CUDA_RUNS_CAUGHT };

static const char *folder;

static int set_up(void **state)
{
    int failed = cuda_runs_setup(state);
    folder = cuda_runs_folder();
    return failed;
}

/* ---- what it shows ---------------------------------------------------------------------------------------------- */

typedef struct host_layout {
    int ranks;
    const char *keys;
} host_layout;

static const host_layout layouts[] = {
    {1, "train.micro_batch=2"},
    {2, "parallel.tensor=2"},
    {2, "parallel.pipeline=2"},
    {2, "parallel.zero=0"},
    {2, "parallel.zero=1"},
    {2, "parallel.zero=3 parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"},
    {4, "parallel.tensor=2 parallel.pipeline=2 parallel.sequence=false"},
    {4, "parallel.tensor=2 parallel.pipeline=2 parallel.vocabulary=stages"},
    {2, "parallel.context=2 train.cuda_graph=true"},
    {4, "parallel.context=2 parallel.tensor=2 parallel.zero=3"},
};

/* Experts on ranks that divide them or not, with room for all tokens, with little, so that steps are played again, and
 * in slots. */
static const host_layout layouts_of_experts[] = {
    {1, "train.micro_batch=2 train.cuda_graph=true"},
    {2, "parallel.tensor=2"},
    {2, "parallel.expert=2 parallel.zero=3 parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"},
    {2, "parallel.expert=2 model.expert_capacity=0.4 model.expert_spill=1 train.cuda_graph=true"},
    {2, "parallel.expert=2 model.expert_capacity=0.4 model.expert_spill=1 parallel.expert_dispatch=slots"},
    {4, "parallel.tensor=2 parallel.expert=4 parallel.zero=1"},
    {4, "parallel.expert=2 parallel.pipeline=2"},
};

static void a_step_of_the_cuda_program_equals_the_cpu(const char *model, const host_layout *layout, size_t count)
{
    cuda_run cpu, cuda;
    char where[32], keys[256];
    snprintf(where, sizeof where, "%s-cpu", model);
    cuda_runs_train_well(&cpu, "../phalanx", 1, model, where, "train.device=cpu");
    for (size_t i = 0; i < count; i++) {
        snprintf(where, sizeof where, "%s-%zu", model, i);
        snprintf(keys, sizeof keys, "train.device=cuda %s", layout[i].keys);
        cuda_runs_train_well(&cuda, "phalanx_standin", layout[i].ranks, model, where, keys);
        cuda_runs_same(&cuda, &cpu, 1e-5, keys);
        assert_int_equal(cuda.replays > 0, strstr(keys, "expert_spill=") != NULL);
    }
}

TEST(gpt2_on_every_layout_equals_the_cpu)
{
    a_step_of_the_cuda_program_equals_the_cpu("gpt2", layouts, sizeof layouts / sizeof *layouts);
}

TEST(llama_on_every_layout_equals_the_cpu)
{
    a_step_of_the_cuda_program_equals_the_cpu("llama", layouts, sizeof layouts / sizeof *layouts);
}

TEST(experts_on_every_layout_equal_the_cpu)
{
    a_step_of_the_cuda_program_equals_the_cpu("experts", layouts_of_experts,
                                              sizeof layouts_of_experts / sizeof *layouts_of_experts);
}

TEST(every_optimizer_equals_the_cpu)
{
    static const struct {
        int ranks;
        const char *keys, *layout;
    } cases[] = {
        {1, "optimizer.name=lion", ""},
        {1, "optimizer.name=sgd", ""},
        {1, "optimizer.name=muon", ""},
        {1, "optimizer.name=muon", "train.cuda_graph=true"},
        {2, "optimizer.name=muon", "parallel.tensor=2"},
        {2, "optimizer.name=muon", "parallel.zero=1"},
        {1, "optimizer.state=bf16", ""},
        {2, "optimizer.state=bf16", "parallel.tensor=2"},
        {2, "optimizer.name=muon optimizer.state=bf16", "parallel.zero=1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_run cpu, cuda;
        char where[32], keys[256];
        snprintf(where, sizeof where, "optimizer-%zu-cpu", i);
        snprintf(keys, sizeof keys, "train.device=cpu %s", cases[i].keys);
        cuda_runs_train_well(&cpu, "../phalanx", 1, "llama", where, keys);
        snprintf(where, sizeof where, "optimizer-%zu", i);
        snprintf(keys, sizeof keys, "train.device=cuda %s %s", cases[i].keys, cases[i].layout);
        cuda_runs_train_well(&cuda, "phalanx_standin", cases[i].ranks, "llama", where, keys);
        cuda_runs_same(&cuda, &cpu, 1e-5, keys);
    }
}

/* In 16 bits the roundings differ in their order only: the losses stay within a few units of bf16's last place. */
TEST(sixteen_bits_train_alike)
{
    cuda_run cpu, cuda;
    cuda_runs_train_well(&cpu, "../phalanx", 1, "llama", "cpu-bf16", "train.device=cpu train.precision=bf16");
    cuda_runs_train_well(&cuda, "phalanx_standin", 1, "llama", "cuda-bf16", "train.device=cuda train.precision=bf16");
    cuda_runs_same(&cuda, &cpu, 2e-3, "bf16");
    cuda_runs_train_well(&cuda, "phalanx_standin", 2, "llama", "cuda-bf16-2",
                         "train.device=cuda train.precision=bf16 parallel.tensor=2");
    cuda_runs_same(&cuda, &cpu, 2e-3, "bf16, two ranks");
}

/* GPT-2's GELU goes through the products' epilogues, or behind the products where the library has none, or its z not
 * stored as the library wants it; whatever is made again. */
TEST(products_with_gelu_train_alike)
{
    static const struct {
        const char *mutant, *keys;
    } cases[] = {
        {"", "memory.recompute=none"},        {"", "memory.recompute=selective"}, {"", "memory.recompute=full"},
        {"no gelu", "memory.recompute=none"}, {"", "model.ffn_size=60"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_run cpu, cuda;
        char keys[128], environment[64];
        snprintf(keys, sizeof keys, "train.precision=bf16 checkpoint.resume=never train.device=cpu %s", cases[i].keys);
        cuda_runs_train_well(&cpu, "../phalanx", 1, "gpt2", "gelu-cpu", keys);
        snprintf(keys, sizeof keys, "train.precision=bf16 checkpoint.resume=never train.device=cuda %s", cases[i].keys);
        snprintf(environment, sizeof environment, "STANDIN_MUTANT='%s'", cases[i].mutant);
        launch_result r = cuda_runs_train("phalanx_standin", 1, environment, "gpt2", "gelu-cuda", keys);
        assert_int_equal(r.status, 0);
        launch_free(&r);
        cuda_runs_read(&cuda, "gelu-cuda");
        cuda_runs_same(&cuda, &cpu, 2e-3, cases[i].keys);
    }
    cuda_run whole, lost;
    cuda_runs_train_well(&whole, "phalanx_standin", 1, "gpt2", "gelu-whole", "train.precision=bf16 train.device=cuda");
    launch_result r = cuda_runs_train("phalanx_standin", 1, "STANDIN_MUTANT='aux is not written'", "gpt2", "gelu-lost",
                                      "train.precision=bf16 train.device=cuda");
    launch_free(&r);
    cuda_runs_read(&lost, "gelu-lost");
    assert_false(fabs(lost.norm[0] - whole.norm[0]) <= 2e-2 * whole.norm[0]);
}

/* Each method, with and without ZeRO, op by op and as a graph, beside the CPU's run of the same ranks. Gradients that
 * differ in their last bits are sometimes rounded to the neighbour, or another one of two is sent: few of them, in the
 * first steps. */
TEST(compressed_gradients_train_alike)
{
    static const struct {
        const char *keys;
        int ranks;
    } cases[] = {
        {"parallel.compress=bf16 parallel.zero=0", 2},
        {"parallel.compress=int8 parallel.zero=1", 2},
        {"parallel.compress=int4 parallel.zero=0", 4},
        {"parallel.compress=topk parallel.density=0.1 parallel.zero=1", 4},
        {"parallel.compress=topk parallel.density=0.1 parallel.zero=0 parallel.tensor=2", 4},
        {"parallel.compress=dct parallel.density=0.1 parallel.zero=0", 2},
    };
    cuda_run whole;
    cuda_runs_train_well(&whole, "../phalanx", 2, "llama", "sent-whole", "train.device=cpu parallel.zero=0");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_run cpu, cuda, graph;
        char where[32], keys[256];
        snprintf(where, sizeof where, "sent-%zu-cpu", i);
        snprintf(keys, sizeof keys, "train.device=cpu %s", cases[i].keys);
        cuda_runs_train_well(&cpu, "../phalanx", cases[i].ranks, "llama", where, keys);
        snprintf(where, sizeof where, "sent-%zu", i);
        snprintf(keys, sizeof keys, "train.device=cuda %s", cases[i].keys);
        cuda_runs_train_well(&cuda, "phalanx_standin", cases[i].ranks, "llama", where, keys);
        cuda_runs_same(&cuda, &cpu, 1e-4, keys);
        assert_true(cuda.norm[0] != whole.norm[0]);
        snprintf(where, sizeof where, "sent-%zu-graph", i);
        snprintf(keys, sizeof keys, "train.device=cuda train.cuda_graph=true %s", cases[i].keys);
        cuda_runs_train_well(&graph, "phalanx_standin", cases[i].ranks, "llama", where, keys);
        cuda_runs_same(&graph, &cuda, 0, keys);
    }
}

/* A loss scale that overflows: the step changes nothing, the scale halves, and the loss of the next step on the same
 * weights is what it was. */
/* At 2^21 cotangents overflow (2^21 / 48 tokens, and the norm of small embeddings multiplies by tens), at a quarter of
 * it they do not: the scale must fall. A skipped step has no norm. */
TEST(fp16_skips_what_overflows_and_goes_on)
{
    cuda_run cpu, cuda;
    const char *keys = "train.precision=fp16 train.loss_scale=2097152 train.device=";
    char text[128];
    snprintf(text, sizeof text, "%scpu", keys);
    cuda_runs_train_well(&cpu, "../phalanx", 1, "llama", "cpu-fp16", text);
    snprintf(text, sizeof text, "%scuda", keys);
    launch_result r = cuda_runs_train("phalanx_standin", 1, "", "llama", "cuda-fp16", text);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "skipped"));
    launch_free(&r);
    cuda_runs_read(&cuda, "cuda-fp16");
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(cuda.loss[i] - cpu.loss[i]) <= 2e-3 * cpu.loss[i]);
        assert_int_equal(cuda.norm[i] > 0, cpu.norm[i] > 0);
    }
    assert_false(cuda.norm[0] > 0);
    assert_true(cuda.norm[STEPS - 1] > 0);
}

static void resume_is_bitwise(const char *name, const char *more)
{
    cuda_run whole, parts;
    char where[32], keys[256];
    snprintf(where, sizeof where, "%s-whole", name);
    snprintf(keys, sizeof keys, "train.device=cuda checkpoint.resume=never %s", more);
    cuda_runs_train_well(&whole, "phalanx_standin", 2, "gpt2", where, keys);
    snprintf(where, sizeof where, "%s-parts", name);
    snprintf(keys, sizeof keys, "train.device=cuda train.steps=3 checkpoint.every=1 checkpoint.keep=0 %s", more);
    launch_result r = cuda_runs_train("phalanx_standin", 2, "", "gpt2", where, keys);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    AUTO_FREE char *path = launch_beside("phalanx_standin"), *mpirun = launch_mpirun(2);
    r = launch_run(60,
                   "cd %s/%s && rm -rf checkpoints/step-0000000[23] && echo step-00000001 >checkpoints/latest && "
                   "exec %s %s train ../gpt2.yaml run.folder=%s/%s train.device=cuda %s",
                   folder, where, mpirun, path, folder, where, more);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "resumed from"));
    launch_free(&r);
    cuda_runs_read(&parts, where);
    cuda_runs_same(&parts, &whole, 0, more);
}

TEST(resume_is_bitwise_on_the_device)
{
    resume_is_bitwise("plain", "");
    resume_is_bitwise("sent", "parallel.zero=0 parallel.compress=topk parallel.density=0.1");
}

/* Copied while the next step computes, enqueued op by op or as a graph: what training that waits would have saved. */
TEST(checkpoints_beside_training_hold_the_same_bits)
{
    static const char *const keys[] = {"checkpoint.asynchronous=false", "checkpoint.asynchronous=true",
                                       "checkpoint.asynchronous=true train.cuda_graph=true"};
    for (int i = 0; i < 3; i++) {
        char where[32], text[256];
        cuda_run run;
        snprintf(where, sizeof where, "saved-%d", i);
        snprintf(text, sizeof text,
                 "train.device=cuda train.precision=bf16 parallel.zero=1 checkpoint.every=1 checkpoint.keep=0 %s",
                 keys[i]);
        cuda_runs_train_well(&run, "phalanx_standin", 2, "gpt2", where, text);
        for (int step = 1; step <= STEPS && i > 0; step++) {
            char *a = must_format("%s/%s/checkpoints/step-%08d", folder, where, step), difference[256];
            AUTO_FREE char *b = must_format("%s/saved-0/checkpoints/step-%08d", folder, step);
            assert_true(runs_compare_checkpoints(difference, sizeof difference, a, b) >= 4 * 20);
            if (*difference)
                fail_msg("%s, step %d: %s", keys[i], step, difference);
            free(a);
        }
    }
}

/* Within a graph the ops that change the state wait for the copy of it, and the others do not: without that wait the
 * stand-ins see the race. */
TEST(a_graph_waits_for_a_checkpoint_where_it_changes_the_state)
{
    launch_result r = cuda_runs_train("phalanx_standin", 1, "STANDIN_MUTANT='a graph forgets external events'", "gpt2",
                                      "unwaited", "train.device=cuda checkpoint.every=1 train.cuda_graph=true");
    if (r.status != CAUGHT)
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    launch_free(&r);
}

/* Steps are traced by events on their queues, op by op also where there is a graph; nothing that is computed
 * changes. */
TEST(traced_steps_are_those_of_the_device)
{
    cuda_run plain, traced;
    cuda_runs_train_well(&plain, "phalanx_standin", 2, "llama", "untraced", "train.device=cuda parallel.tensor=2");
    for (int graph = 0; graph < 2; graph++) {
        char keys[128], *path = must_format("%s/traced-%d/trace/rank-00001.json", folder, graph), where[32];
        snprintf(where, sizeof where, "traced-%d", graph);
        snprintf(keys, sizeof keys, "train.device=cuda parallel.tensor=2 run.trace=[2,3] train.cuda_graph=%s",
                 graph ? "true" : "false");
        cuda_runs_train_well(&traced, "phalanx_standin", 2, "llama", where, keys);
        cuda_runs_same(&traced, &plain, 0, keys);
        json_t *events = json_load_file(path, 0, NULL), *event;
        size_t i;
        int computes = 0, begun = 0, ended = 0;
        assert_non_null(events);
        json_array_foreach(events, i, event)
        {
            const char *kind = json_string_value(json_object_get(event, "ph"));
            computes += *kind == 'X';
            begun += *kind == 'b';
            ended += *kind == 'e';
        }
        assert_true(computes > 100 && begun > 10 && begun == ended);
        json_decref(events);
        free(path);
    }
}

/* "phalanx eval" or "phalanx generate" of the run `where`; it must succeed. The text is the caller's. */
static char *use(const char *program, const char *command, const char *where, const char *keys)
{
    AUTO_FREE char *path = launch_beside(program);
    launch_result r =
        launch_run(60, "cd %s && OMP_NUM_THREADS=1 exec %s %s --checkpoint %s %s", folder, path, command, where, keys);
    if (r.status)
        fail_msg("%s %s: status %d: %s", command, keys, r.status, r.err);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

static double loss_of(const char *program, const char *where, const char *keys)
{
    AUTO_FREE char *all = must_format("--data data --json %s", keys), *out = use(program, "eval", where, all);
    double loss = 0;
    assert_int_equal(sscanf(out, "{\"loss\": %lf", &loss), 1);
    return loss;
}

/* Windows that do not fill the last batch; three prompts of which the last is a batch by itself, in the first one's
 * cache. */
TEST(a_trained_model_is_evaluated_and_continued_as_on_the_cpu)
{
    static const char *const models[] = {"gpt2", "llama"};
    static const char prompts[] = "1 2 3\n(55)\n0\n";
    const char *how = "--prompts prompts --tokenizer bytes --temperature 0 --tokens 8 --batch 2 --device";
    char *path = workfolder_path(folder, "prompts");
    runs_write_text(path, prompts);
    free(path);
    for (int i = 0; i < 2; i++) {
        cuda_run trained;
        char where[32], keys[256];
        snprintf(where, sizeof where, "%s-used", models[i]);
        cuda_runs_train_well(&trained, "../phalanx", 1, models[i], where, "train.device=cpu checkpoint.every=3");
        double cpu = loss_of("../phalanx", where, "--batch 5 --device cpu");
        double cuda = loss_of("phalanx_standin", where, "--batch 5 --device cuda");
        assert_true(cpu > 1 && fabs(cuda - cpu) <= 1e-6 * cpu);
        assert_true(fabs(loss_of("phalanx_standin", where, "--sequence 7") - cpu) > 1e-5 * cpu); /* it can differ */
        snprintf(keys, sizeof keys, "%s cpu", how);
        AUTO_FREE char *want = use("../phalanx", "generate", where, keys);
        snprintf(keys, sizeof keys, "%s cuda", how);
        AUTO_FREE char *got = use("phalanx_standin", "generate", where, keys);
        assert_true(strlen(want) > sizeof prompts);
        assert_string_equal(got, want);
    }
}

TEST(a_trained_model_is_used_on_the_device_that_is_there)
{
    static const struct {
        const char *environment, *device, *says; /* NULL: it works */
    } cases[] = {
        {"STANDIN_GPUS=0", "cuda", "shows no GPU"},
        {"STANDIN_GPUS=0", "auto", NULL},
        {"STANDIN_MEMORY=100000", "cpu", NULL},
        {"STANDIN_MEMORY=100000", "auto", "GiB too little"},
        {"STANDIN_MEMORY=100000", "cuda", "GiB too little"},
    };
    AUTO_FREE char *path = launch_beside("phalanx_standin");
    cuda_run trained;
    cuda_runs_train_well(&trained, "../phalanx", 1, "llama", "there",
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
}

TEST(mistakes_are_caught)
{
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
        {"updates are late", "race: ", "memory.offload=optimizer", 1, 1},
        {"one block", "the host changes", "", 1, 1000},
        {"a graph does not wait", "has joined the capture", "train.cuda_graph=true", 2, 1},
        {"wrong count", "mismatched collective", "parallel.tensor=2", 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char environment[128], keys[256];
        snprintf(environment, sizeof environment, "STANDIN_MUTANT='%s' STANDIN_ASKED=%d", cases[i].mutant,
                 cases[i].asked);
        snprintf(keys, sizeof keys, "train.device=cuda checkpoint.resume=never %s", cases[i].keys);
        launch_result r = cuda_runs_train("phalanx_standin", cases[i].ranks, environment, "llama", "mutant", keys);
        if (!strstr(r.err, cases[i].says))
            fprintf(stderr, "%s, %s: status %d\n%s%s", cases[i].mutant, cases[i].keys, r.status, r.out, r.err);
        assert_false(r.timed_out);
        assert_int_equal(r.status, CAUGHT);
        assert_non_null(strstr(r.err, cases[i].says));
        launch_free(&r);
    }
}

/* 8 is what a context has unless it is told otherwise before. */
TEST(streams_have_hardware_queues_of_their_own)
{
    const char *keys = "train.device=cuda train.steps=1 parallel.tensor=2 checkpoint.resume=never";
    launch_result r = cuda_runs_train("phalanx_standin", 2, "CUDA_DEVICE_MAX_CONNECTIONS=8", "llama", "queues", keys);
    assert_int_equal(r.status, CAUGHT);
    assert_non_null(strstr(r.err, "streams for 8 hardware queues"));
    launch_free(&r);
    r = cuda_runs_train("phalanx_standin", 2, "", "llama", "queues", keys);
    assert_int_equal(r.status, 0);
    launch_free(&r);
}

TEST(a_broken_link_ends_the_run)
{
    launch_result r =
        cuda_runs_train("phalanx_standin", 2, "STANDIN_MUTANT='link breaks'", "llama", "broken", "train.device=cuda");
    assert_false(r.timed_out);
    assert_int_not_equal(r.status, 0);
    assert_non_null(strstr(r.err, "remote process exited"));
    launch_free(&r);
}

/* The words are said while the graph lives; NCCL would wait for its end if it were asked to abort. */
TEST(a_link_that_breaks_in_a_graph_ends_the_run)
{
    launch_result r = cuda_runs_train("phalanx_standin", 2, "STANDIN_MUTANT='link breaks in a graph'", "llama",
                                      "broken-graph", "train.device=cuda train.cuda_graph=true parallel.tensor=2");
    if (r.timed_out || !r.status || !strstr(r.err, "NCCL, in a group of 2 ranks (0, 1): remote process"))
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    assert_null(strstr(r.err, "is stuck"));
    assert_non_null(strstr(r.err, "has lost touch with another rank, and none says why")); /* it has only heard of it */
    launch_free(&r);
}

/* Trees and multicast add up in an order of NCCL's choice: rings only, unless the user or the configuration says that
 * it does not matter. */
TEST(sums_go_along_rings_where_bits_must_be_the_same)
{
    static const struct {
        const char *environment, *keys, *algorithms;
    } cases[] = {
        {"", "train.deterministic=true", "NCCL_ALGO=allreduce:ring;reducescatter:ring\n"},
        {"", "train.deterministic=false", "NCCL_ALGO=\n"},
        {"NCCL_ALGO=tree", "train.deterministic=true", "NCCL_ALGO=tree\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[200];
        snprintf(keys, sizeof keys, "train.device=cuda train.steps=1 parallel.tensor=2 checkpoint.resume=never %s",
                 cases[i].keys);
        launch_result r = cuda_runs_train("phalanx_standin", 2, cases[i].environment, "llama", "rings", keys);
        if (r.status || !strstr(r.err, cases[i].algorithms))
            fail_msg("%s %s: status %d\n%s%s", cases[i].environment, cases[i].keys, r.status, r.out, r.err);
        launch_free(&r);
    }
}

/* A kernel that waits keeps its blocks' multiprocessors: messages have eight at most, small sums two, what else there
 * is as many as NCCL likes; and all have what the user says. */
TEST(messages_and_small_sums_have_few_blocks_unless_the_user_says_others)
{
    static const char *const environments[] = {"", "NCCL_MAX_CTAS=16"};
    for (int user = 0; user <= 1; user++) {
        launch_result r = cuda_runs_train("phalanx_standin", 4, environments[user], "llama", "blocks",
                                          "train.device=cuda train.steps=1 parallel.tensor=2 parallel.pipeline=2 "
                                          "checkpoint.resume=never");
        bool few = strstr(r.err, "maxCTAs=8;") && strstr(r.err, "maxCTAs=2;");
        bool any = strstr(r.err, "maxCTAs=8;") || strstr(r.err, "maxCTAs=2;");
        if (r.status || (user ? any || !strstr(r.err, "maxCTAs=0;") : !few))
            fail_msg("%s: status %d\n%s%s", environments[user], r.status, r.out, r.err);
        launch_free(&r);
    }
}

TEST(what_cannot_be_is_refused_in_one_line)
{
    static const struct {
        const char *environment, *says;
        int ranks;
    } cases[] = {
        {"STANDIN_GPUS=-1", "no NVIDIA driver", 1},          {"STANDIN_GPUS=0", "shows no GPU", 1},
        {"STANDIN_MEMORY=100000", "GiB too little", 1},      {"STANDIN_GPUS=1", "share one GPU", 2},
        {"STANDIN_NCCL=22505", "NCCL 2.25.5 is too old", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = cuda_runs_train("phalanx_standin", cases[i].ranks, cases[i].environment, "llama", "refused",
                                          "train.device=cuda");
        const char *line = strstr(r.err, "phalanx: ");
        if (!line || !strstr(line, cases[i].says))
            fprintf(stderr, "%s: status %d\n%s%s", cases[i].environment, r.status, r.out, r.err);
        assert_true(r.status == 1 || r.status == 2);
        assert_non_null(line);
        assert_non_null(strstr(line, cases[i].says));
        launch_free(&r);
    }
    launch_result r =
        cuda_runs_train("../phalanx", 1, "LANG=C", "llama", "refused",
                        "train.device=cuda"); /* with no shared object, or with one and no driver: a line each */
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "phalanx: device=cuda: "));
    launch_free(&r);
}

/* Of a GPU that the arena and what it knows to be taken beside it just fill, the libraries have their part first. */
TEST(the_arena_takes_what_libraries_leave)
{
    static const struct {
        int memory,
            /* the arena is 316,416 bytes; context, cuBLASLt and its kernels, and one communicator take 50,000 each */
            status;
        const char *says;
    } cases[] = {{600000, 0, "(CUDA, libraries, 1 communicator; "}, {460000, 1, "GiB too little; CUDA, its libraries"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char environment[64];
        snprintf(environment, sizeof environment, "STANDIN_TAKES=50000 STANDIN_MEMORY=%d", cases[i].memory);
        launch_result r = cuda_runs_train("phalanx_standin", 2, environment, "llama", "takes",
                                          "train.device=cuda parallel.tensor=2 checkpoint.resume=never");
        if (r.status != cases[i].status || !strstr(i ? r.err : r.out, cases[i].says))
            fail_msg("%s: status %d\n%s%s", environment, r.status, r.out, r.err);
        launch_free(&r);
    }
    /* what was measured is what the next plan goes by */
    AUTO_FREE char *path = launch_beside("../phalanx");
    launch_result r = launch_run(60, "cd %s && exec %s plan --json llama.yaml parallel.tensor=2 run.folder=%s/takes",
                                 folder, path, folder);
    const char *reserve = strstr(r.out, "\"reserve_bytes\": ");
    assert_non_null(reserve);
    assert_int_equal(atoi(reserve + strlen("\"reserve_bytes\": ")), 4 * 50000);
    assert_non_null(strstr(reserve, "\"reserve_measured\": true"));
    launch_free(&r);
}

/* A whole number of what `phalanx plan --json` says, with these keys and the folder `where` of the runs. */
static int64_t planned(const char *name, const char *where, const char *keys)
{
    AUTO_FREE char *path = launch_beside("../phalanx"), *key = must_format("\"%s\": ", name);
    launch_result r = launch_run(
        60, "cd %s && exec %s plan --json llama.yaml train.device=cuda parallel.tensor=2 run.folder=%s/%s %s", folder,
        path, folder, where, keys);
    const char *at = strstr(r.out, key);
    if (r.status || !at)
        fail_msg("%s: status %d, no %s\n%s%s", keys, r.status, key, r.out, r.err);
    int64_t value = atoll(at + strlen(key));
    launch_free(&r);
    return value;
}

/* Planned by an assumption, or by what a run has measured; and a graph for which there is no room. */
TEST(graphs_have_memory_in_the_plan)
{
    static const char graph[] = "train.cuda_graph=true",
                      keys[] = "train.device=cuda parallel.tensor=2 train.cuda_graph=true";
    int64_t assumed = planned("reserve_bytes", "none", graph) - planned("reserve_bytes", "none", "");
    int64_t nodes = planned("graph_nodes", "none", graph);
    assert_true(nodes > 100 && planned("graph_nodes", "none", "") == 0);
    assert_int_equal(assumed, 10240 * nodes);

    launch_result r =
        cuda_runs_train("phalanx_standin", 2, "STANDIN_TAKES=50000 STANDIN_GRAPH_TAKES=100", "llama", "graphs", keys);
    int launched = 0;
    const char *line = strstr(r.err, "standin: a graph: ");
    if (r.status || !line || sscanf(line, "standin: a graph: %d nodes", &launched) != 1)
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    launch_free(&r);
    int64_t beside = planned("reserve_bytes", "graphs", "");
    assert_int_equal(beside, 4 * 50000);
    /* the ranks' graphs differ by a few nodes: the dearest node of one is multiplied by the most nodes of the other */
    double graphs = (double)(planned("reserve_bytes", "graphs", graph) - beside);
    assert_true(fabs(graphs / (100.0 * launched) - 1) < 0.02);

    r = cuda_runs_train("phalanx_standin", 2, "STANDIN_TAKES=50000 STANDIN_GRAPH_TAKES=1000 STANDIN_MEMORY=600000",
                        "llama", "no-room", keys);
    assert_true(r.status != 0);
    if (!strstr(r.err, "too little for a CUDA graph of the program: train.cuda_graph=false"))
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    launch_free(&r);
}

TEST(two_ranks_share_a_gpu_when_forced)
{
    launch_result r = cuda_runs_train("phalanx_standin", 2, "STANDIN_GPUS=1 PHALANX_SHARE_GPU=1", "llama", "shared",
                                      "train.device=cuda train.steps=1");
    assert_int_equal(r.status, 0);
    launch_free(&r);
}

/* tests/cuda/gpu/device_ops.c, which runs on a GPU too. */
TEST(every_op_agrees_with_the_reference_through_the_device)
{
    AUTO_FREE char *program = launch_beside("device_ops_standin");
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
}

int main(void)
{
    return cuda_runs_group(set_up, cuda_runs_teardown);
}
