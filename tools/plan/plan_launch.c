#include "tools/plan/plan_parts.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/storage.h"
#include "engine/config/config.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"

/* ---- the whole run ----------------------------------------------------------------------------------------------- */

typedef struct course {
    double tokens, seconds, gpu_hours; /* seconds exclude evaluations, checkpoints and restarts */
    int64_t checkpoint, kept;          /* bytes of one; bytes of all kept on disk, 0: not pruned */
    int64_t free;                      /* bytes left on the device that needs most; -1: it has no memory of its own */
} course;

/* Sums the whole run; a step of a ramp takes time in proportion to its samples. */
static course course_of(const config *c, const plan *p)
{
    double samples = (double)batch_ramp_total(c, 0, c->train.steps), sequence = (double)c->train.sequence;
    course r = {.tokens = samples * sequence, .checkpoint = storage_checkpoint_bytes(&p->options), .free = -1};
    r.seconds = p->step_seconds * r.tokens / (double)p->tokens_per_step;
    r.gpu_hours = r.seconds / 3600 * p->options.grid.ranks;
    r.kept = c->checkpoint.keep ? (c->checkpoint.keep + 1) * r.checkpoint : 0; /* one more is being written */
    const plan_rank *most = plan_neediest(p);
    if (p->profile.capacity > 0)
        r.free = p->profile.capacity - most->arena - plan_rank_beside(most, p->profile.reserve);
    return r;
}

/* ---- launch lines ------------------------------------------------------------------------------------------------ */

/* Prints a word of a shell's line, quoted if needed. */
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

/* Prints the command line's file and keys, a space before each. */
static void print_arguments(FILE *out, const options_said *said)
{
    for (int i = said->file ? -1 : 0; i < said->overrides; i++) {
        fputc(' ', out);
        print_word(out, i < 0 ? said->file : said->override[i]);
    }
}

enum { MPIRUN, SLURM, LAUNCHERS };

/* Formats the line that starts the ranks under each launcher; the caller frees both. One node needs no host file. */
static void lines_of(char *out[LAUNCHERS], const config *c, int ranks, int node_ranks, const options_said *said)
{
    int tasks = ranks < node_ranks ? ranks : node_ranks;
    AUTO_FREE char *arguments = MUST_PRINT(to, print_arguments(to, said));
    AUTO_FREE char *hosts = must_format(" --hostfile hosts --map-by ppr:%d:node", node_ranks);
    AUTO_FREE char *gpus = must_format(" --gpus-per-node=%d", tasks);
    out[MPIRUN] = must_format("mpirun -np %d%s phalanx train%s", ranks, ranks > node_ranks ? hosts : "", arguments);
    out[SLURM] = must_format("sbatch --nodes=%d --ntasks-per-node=%d%s tools/slurm/train.sbatch%s",
                             (ranks + tasks - 1) / tasks, tasks, c->train.device != CONFIG_CPU ? gpus : "", arguments);
}

void plan_launch_lines(FILE *out, const config *c, int ranks, int node_ranks, const options_said *said)
{
    char *line[LAUNCHERS];
    lines_of(line, c, ranks, node_ranks, said);
    fprintf(out, "launch            %s\n                  %s\n", line[MPIRUN], line[SLURM]);
    free(line[MPIRUN]);
    free(line[SLURM]);
}

/* ---- said -------------------------------------------------------------------------------------------------------- */

void plan_launch_print(FILE *out, const config *c, const plan *p, const options_said *said)
{
    course r = course_of(c, p);
    bool gpu = p->profile.capacity > 0;
    fprintf(out, "\nrun               %lld steps (train.steps), %s tokens", (long long)c->train.steps,
            COUNT_TEXT(r.tokens));
    if (r.free >= 0 || !gpu)
        fprintf(out, ": %s", DURATION_TEXT(r.seconds));
    if ((r.free >= 0 || !gpu) && r.gpu_hours >= 1)
        fprintf(out, ", %s %s hours", COUNT_TEXT(r.gpu_hours), gpu ? "GPU" : "rank");
    fputc('\n', out);
    fprintf(out, "checkpoint        %s each", BYTES_TEXT(r.checkpoint));
    if (r.kept)
        fprintf(out, "; checkpoint.keep = %d of them and the one being written: %s\n", c->checkpoint.keep,
                BYTES_TEXT(r.kept));
    else
        fputs("; all are kept (checkpoint.keep = 0)\n", out);
    if (gpu && r.free >= 0)
        fprintf(out, "free              %s of the GPU that needs most\n", BYTES_TEXT(r.free));
    if (r.free >= 0 || !gpu)
        plan_launch_lines(out, c, p->options.grid.ranks, p->profile.node_ranks, said);
}

void plan_launch_facts(fact_writer *out, const config *c, const plan *p, const options_said *said)
{
    course r = course_of(c, p);
    char *line[LAUNCHERS];
    lines_of(line, c, p->options.grid.ranks, p->profile.node_ranks, said);
    json_auto_t *run = json_pack("{s:I, s:f, s:f, s:f}", "steps", (json_int_t)c->train.steps, "tokens", r.tokens,
                                 "seconds", r.seconds, "gpu_hours", r.gpu_hours);
    FACTS(out, FACT("\n run", run), FACT("\n checkpoint_bytes", r.checkpoint), FACT("\n free_bytes", r.free));
    FACTS_OBJECT(out, "\n launch", FACT("mpirun", line[MPIRUN]), FACT("slurm", line[SLURM]));
    free(line[MPIRUN]);
    free(line[SLURM]);
}
