#include "tools/plan_launch.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/storage.h"
#include "engine/config/batch_ramp.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"

/* ---- the whole run ----------------------------------------------------------------------------------------------- */

typedef struct course {
    double tokens, seconds, gpu_hours; /* seconds: without evaluations, checkpoints and restarts */
    int64_t checkpoint, kept;          /* bytes of one; of all that lie on disk at a time, 0: they are not pruned */
    int64_t free;                      /* bytes of the device that needs most; -1: it has no memory of its own */
} course;

/* Steps of a ramp are as long as their samples are many. */
static course course_of(const config *c, const plan *p)
{
    double samples = (double)batch_ramp_total(c, 0, c->train.steps), sequence = (double)c->train.sequence;
    course r = {.tokens = samples * sequence, .checkpoint = storage_checkpoint_bytes(&p->options), .free = -1};
    r.seconds = p->step_seconds * r.tokens / (double)p->tokens_per_step;
    r.gpu_hours = r.seconds / 3600 * p->options.grid.ranks;
    r.kept = c->checkpoint.keep ? (c->checkpoint.keep + 1) * r.checkpoint : 0; /* and the one that is being written */
    const plan_rank *most = plan_neediest(p);
    if (p->profile.capacity > 0)
        r.free = p->profile.capacity - most->arena - plan_rank_beside(most, p->profile.reserve);
    return r;
}

/* ---- how it is started ------------------------------------------------------------------------------------------- */

/* A word of a shell's line, in quotes where it needs them. */
static void print_word(FILE *out, const char *word)
{
    static const char simple[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-=:,@%+";
    if (*word && !word[strspn(word, simple)]) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (char[]){*word, 0}, out);
    fputc('\'', out);
}

static void print_arguments(FILE *out, const options_said *said)
{
    if (said->file) {
        fputc(' ', out);
        print_word(out, said->file);
    }
    for (int i = 0; i < said->overrides; i++) {
        fputc(' ', out);
        print_word(out, said->override[i]);
    }
}

/* On one node nobody needs a host file. */
static void print_mpirun(FILE *out, int ranks, int node_ranks, const options_said *said)
{
    fprintf(out, "mpirun -np %d", ranks);
    if (ranks > node_ranks)
        fprintf(out, " --hostfile hosts --map-by ppr:%d:node", node_ranks);
    fputs(" phalanx train", out);
    print_arguments(out, said);
}

static void print_slurm(FILE *out, const config *c, int ranks, int node_ranks, const options_said *said)
{
    int tasks = ranks < node_ranks ? ranks : node_ranks;
    fprintf(out, "sbatch --nodes=%d --ntasks-per-node=%d", (ranks + tasks - 1) / tasks, tasks);
    if (c->train.device != CONFIG_CPU)
        fprintf(out, " --gpus-per-node=%d", tasks);
    fputs(" tools/slurm/train.sbatch", out);
    print_arguments(out, said);
}

void plan_launch_lines(FILE *out, const config *c, int ranks, int node_ranks, const options_said *said)
{
    fputs("launch            ", out);
    print_mpirun(out, ranks, node_ranks, said);
    fputs("\n                  ", out);
    print_slurm(out, c, ranks, node_ranks, said);
    fputc('\n', out);
}

/* ---- said -------------------------------------------------------------------------------------------------------- */

void plan_launch_print(FILE *out, const config *c, const plan *p, const options_said *said)
{
    course r = course_of(c, p);
    char tokens[UNITS_TEXT], hours[UNITS_TEXT], one[UNITS_TEXT], all[UNITS_TEXT], left[UNITS_TEXT];
    bool gpu = p->profile.capacity > 0;
    units_count(tokens, r.tokens);
    units_count(hours, r.gpu_hours);
    units_bytes(one, (double)r.checkpoint);
    units_bytes(all, (double)r.kept);
    units_bytes(left, (double)r.free);
    fprintf(out, "\nrun               %lld steps (train.steps), %s tokens: %.3g days, %s %s hours\n",
            (long long)c->train.steps, tokens, r.seconds / 86400, hours, gpu ? "GPU" : "rank");
    fprintf(out, "checkpoint        %s each", one);
    if (r.kept)
        fprintf(out, "; checkpoint.keep = %d of them and the one being written: %s\n", c->checkpoint.keep, all);
    else
        fputs("; all are kept (checkpoint.keep = 0)\n", out);
    if (gpu && r.free >= 0)
        fprintf(out, "free              %s of the GPU that needs most\n", left);
    if (r.free >= 0 || !gpu)
        plan_launch_lines(out, c, p->options.grid.ranks, p->profile.node_ranks, said);
}

char *plan_launch_json(const config *c, const plan *p, const options_said *said)
{
    course r = course_of(c, p);
    char *line[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        size_t bytes;
        FILE *out = open_memstream(&line[i], &bytes);
        MUST(out, "out of host memory");
        if (i == 0)
            print_mpirun(out, p->options.grid.ranks, p->profile.node_ranks, said);
        else
            print_slurm(out, c, p->options.grid.ranks, p->profile.node_ranks, said);
        MUST(fclose(out) == 0, "out of host memory");
    }
    json_t *run = json_pack("{s:I, s:f, s:f, s:f}", "steps", (json_int_t)c->train.steps, "tokens", r.tokens, "seconds",
                            r.seconds, "gpu_hours", r.gpu_hours),
           *launch = json_pack("{s:s, s:s}", "mpirun", line[0], "slurm", line[1]);
    MUST(run && launch, "a command line is no text: bytes that are no UTF-8");
    AUTO_FREE char *run_text = json_dumps(run, JSON_REAL_PRECISION(17)), *launch_text = json_dumps(launch, 0);
    char *all = must_format("\"run\": %s,\n \"checkpoint_bytes\": %lld,\n \"free_bytes\": %lld,\n \"launch\": %s",
                            run_text, (long long)r.checkpoint, (long long)r.free, launch_text);
    json_decref(run);
    json_decref(launch);
    free(line[0]);
    free(line[1]);
    return all;
}
