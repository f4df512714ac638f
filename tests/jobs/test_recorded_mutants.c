/* Ways to record a wrong program, generated from right ones: each collective of some layouts is dropped, doubled and
 * sent along other axes, each op's result is placed as it is not, and so is each weight and its gradient. The recorder
 * is to refuse them: a process compiles every rank's program with one of these faults, and nothing is trained. A fault
 * that leaves the program as it is is none. The linker puts this file's functions between the compiler's (-Wl,--wrap,
 * see the Makefile). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/compile/compile.h"
#include "engine/compile/model/storage.h"
#include "kernels/heads.h"
#include "kernels/record/program.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/jobs/layouts.h"
#include "tests/test.h"

#define EACH    "parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"
#define ALONE   "parallel.sequence=false"
#define DIVIDED "parallel.vocabulary=stages"
#define LATENTS "parallel.context_gather=latent"

static const layouts_row layouts[] = {
    /* clang-format off */
    {"gpt2",       2, 1, 2, 2, 2, ONE_F_ONE_B, 0, 0, "", 0},
    {"gpt2",       2, 1, 1, 2, 2, 0,           0, 1, ALONE, 0},
    {"llama",      4, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"llama",      1, 2, 1, 2, 2, 0,           0, 2, "parallel.zero_reduce=micro_batch", 0},
    {"tied",       3, 1, 2, 2, 1, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"mixtral",    2, 1, 1, 2, 2, 0,           0, 1, "parallel.expert=2", 0},
    {"mixtral",    2, 2, 1, 2, 1, 0,           0, 1, "parallel.expert_dispatch=slots parallel.expert=4", 0},
    {"batch",      2, 1, 1, 2, 2, 0,           0, 1, "parallel.expert=2", 0},
    {"shared",     2, 1, 1, 2, 2, 0,           0, 3, "parallel.expert=4 " EACH, 0},
    {"mtp",        2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"mtp-tied",   1, 2, 2, 1, 2, ZB_V,        2, 1, "", 0},
    {"latent",     2, 2, 1, 1, 2, 0,           0, 1, LATENTS, 0},
    {"unrouted",   2, 1, 1, 2, 2, 0,           0, 1, ALONE, 0},
    {"olmo2",      4, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"gpt-oss",    4, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"documents",  2, 2, 1, 1, 2, 0,           0, 1, "parallel.context_balance=documents memory.recompute=full", 0},
    {"llama",      2, 1, 1, 2, 2, 0,           0, 1, "optimizer.name=muon optimizer.qk_clip=100", 0},
    {"gpt2",       1, 1, 1, 4, 1, 0,           0, 0, "parallel.compress=int8", 0},
    /* clang-format on */
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

typedef enum fault { DROPPED, DOUBLED, MISDIRECTED, MISPLACED, MISDECLARED, FAULTS } fault;

static const char *const fault_names[FAULTS] = {"exchange dropped", "exchange doubled", "exchange along another axis",
                                                "result's placement lied about", "weight's placement lied about"};

typedef struct mutant {
    fault fault;
    int layout;
    char point[160]; /* where: phase, site, op, axis */
    axis instead;    /* MISDIRECTED */
    int slot;        /* MISPLACED, MISDECLARED */
    placement lie;
    bool sums;       /* MISDECLARED: the lie is about the sum of its gradient */
    char facts[160]; /* for the rings */
} mutant;

enum { MOST_RANKS = 16 };

static mutant *mutants;
static int count, capacity;

static const mutant *spoiling; /* NULL: the program is recorded as it should be */
static bool listing;           /* the faults that the program could have are listed */
static int layout;
static axis_group groups[AXIS_COUNT];
static int members[AXIS_COUNT][MOST_RANKS];

op *__real_op_make(pool *p, const op *like, unsigned outputs, tensor *const *into);
op *__wrap_op_make(pool *p, const op *like, unsigned outputs, tensor *const *into);
void __real_storage_describe(compiled *c);
void __wrap_storage_describe(compiled *c);
void __real_recorder_open(recorder *r, pool *p, const recorder_grid *g, dtype compute, const storage *table,
                          int parameters);
void __wrap_recorder_open(recorder *r, pool *p, const recorder_grid *g, dtype compute, const storage *table,
                          int parameters);

static bool counting; /* layers are recorded to count their operations: they are no part of the program */

void __wrap_recorder_open(recorder *r, pool *p, const recorder_grid *g, dtype compute, const storage *table,
                          int parameters)
{
    counting = g->group[AXIS_GRID].ranks <= 1;
    __real_recorder_open(r, p, g, compute, table, parameters);
}

/* ---- what may be wrong ------------------------------------------------------------------------------------------- */

/* "layer 3/attention/output/dx": without the layer's number. */
static const char *without_layer(const char *site)
{
    const char *end = site && !strncmp(site, "layer ", 6) ? strchr(site, '/') : NULL;
    return end ? end + 1 : site ? site : "";
}

static bool exchanges(const op *o)
{
    bool sums = op_communicates(o) && !op_has(o, OP_MESSAGE | OP_EXCHANGE);
    return sums || o->kind == OP_copy_to_shards || o->kind == OP_regroup;
}

static void point_of(char out[160], const op *o)
{
    snprintf(out, 160, "%s %s: %s along %s", phase_name((phase)o->phase), without_layer(o->label), op_row_of(o)->name,
             axis_name((axis)o->where.axis));
}

static const char *const kinds[] = {"whole", "shared", "shard", "partial", "owned"};

/* One misplaced result for each kind of op, not for each of its sites. */
static void result_of(char out[160], const op *o, int k, int slot, placement lie)
{
    snprintf(out, 160, "%s %s: result %d along %s, %s, is called %s", phase_name((phase)o->phase), op_row_of(o)->name,
             k, axis_slot_name(slot), kinds[o->out[k]->place.along[slot].kind], kinds[lie.kind]);
}

static void weight_of(char out[160], const parameter *p, int slot, bool sums)
{
    if (sums)
        snprintf(out, 160, "%s: its gradient along %s, %s, is called %s", without_layer(p->name), axis_slot_name(slot),
                 p->sums >> slot & 1 ? "a sum" : "whole", p->sums >> slot & 1 ? "whole" : "a sum");
    else
        snprintf(out, 160, "%s along %s, %s, is called whole", without_layer(p->name), axis_slot_name(slot),
                 kinds[p->place.along[slot].kind]);
}

/* `what`: an op or a weight. */
static void add(const mutant *m, const char *what)
{
    for (int i = 0; i < count; i++)
        if (mutants[i].fault == m->fault && mutants[i].instead == m->instead && !strcmp(mutants[i].point, m->point))
            return;
    if (count == capacity) {
        capacity = capacity ? 2 * capacity : 512;
        mutants = must_realloc(mutants, (unsigned long)capacity * sizeof *mutants);
    }
    mutants[count] = *m;
    snprintf(mutants[count].facts, sizeof mutants->facts, "fault=%d layout=%d of=%s instead=%d slot=%d sums=%d",
             m->fault, m->layout, what, m->instead, m->slot, m->sums);
    for (char *letter = strstr(mutants[count].facts, "of="); *letter && strncmp(letter, " instead", 8); letter++)
        *letter = *letter == ' ' ? '-' : *letter;
    count++;
}

static bool same_ranks(axis a, axis b)
{
    return groups[a].ranks == groups[b].ranks &&
           !memcmp(members[a], members[b], (size_t)groups[a].ranks * sizeof *members[a]);
}

/* True if a sum is due along all of `instead`: it is the same sum, at once. */
static bool is_sum_of_more(const op *o, axis instead)
{
    bool more = o->kind == OP_all_reduce;
    for (int slot = 0; slot < AXIS_SLOTS; slot++)
        more &= !((groups[instead].slots | groups[o->where.axis].slots) >> slot & 1) ||
                ((groups[instead].slots >> slot & 1) && o->in[0]->place.along[slot].kind == PLACE_PARTIAL);
    return more;
}

static void list_exchange(const op *o)
{
    mutant m = {.layout = layout};
    point_of(m.point, o);
    m.fault = DROPPED;
    add(&m, op_row_of(o)->name);
    if (o->kind == OP_regroup)
        return; /* a view, of which two are as one */
    m.fault = DOUBLED;
    add(&m, op_row_of(o)->name);
    m.fault = MISDIRECTED;
    axis others[AXIS_COUNT];
    int n = 0;
    for (axis a = 0; a < AXIS_COUNT; a++)
        if (groups[a].ranks > 1 && axis_has_messages(a) && !axis_rows[a].edges && !same_ranks(a, (axis)o->where.axis) &&
            !is_sum_of_more(o, a))
            others[n++] = a;
    for (int i = 0; i < n; i++) {
        m.instead = others[i];
        if (i == 0 || (i == n - 1 && (o->kind == OP_all_reduce || o->phase != PHASE_UPDATE)))
            add(&m, op_row_of(o)->name);
    }
}

/* The coordinates along which there are several ranks, and the blocks of experts. */
static unsigned slots_of_layout(void)
{
    unsigned slots = 0;
    for (axis a = 0; a < AXIS_COUNT; a++)
        slots |= groups[a].slots & ((1u << AXIS_COORDINATES) - 1);
    return slots | groups[AXIS_EXPERT].slots | (groups[AXIS_EXPERT].ranks > 1 ? groups[AXIS_EXPERT_DATA].slots : 0);
}

static void list_results(const op *o)
{
    const unsigned slots = slots_of_layout();
    for (int k = 0; k < OP_MAX_OUT; k++)
        for (int slot = 0; slot < AXIS_SLOTS; slot++) {
            if (!o->out[k] || o->out[k]->producer != o || o->out[k]->base || !(slots >> slot & 1))
                continue;
            const bool whole = o->out[k]->place.along[slot].kind == PLACE_REPLICATE;
            if (whole && (slot >= AXIS_COORDINATES || axis_coordinates[slot].divides == AXIS_DIVIDES_LAYERS))
                continue;
            mutant m = {.fault = MISPLACED, .layout = layout, .slot = slot};
            m.lie = whole ? place_partial() : place_replicate();
            result_of(m.point, o, k, slot, m.lie);
            add(&m, op_row_of(o)->name);
        }
}

static void list_weights(const compiled *c)
{
    for (int i = 0; i < c->model.parameter_count; i++)
        for (int slot = 0; slot < AXIS_SLOTS; slot++) {
            const parameter *p = c->model.parameters[i];
            mutant m = {.fault = MISDECLARED, .layout = layout, .slot = slot, .lie = place_replicate()};
            if (!(slots_of_layout() >> slot & 1))
                continue;
            weight_of(m.point, p, slot, false);
            if (p->place.along[slot].kind != PLACE_REPLICATE)
                add(&m, without_layer(p->name));
            m.sums = true;
            weight_of(m.point, p, slot, true);
            add(&m, without_layer(p->name));
        }
}

/* ---- making programs wrong --------------------------------------------------------------------------------------- */

/* The rows that a reduction leaves on this rank, without their sum. */
static op *unreduced(pool *p, const op *like, unsigned outputs, tensor *const *into)
{
    op copy = *like;
    copy.kind = OP_copy;
    copy.where = (op_where){0};
    if (like->kind == OP_reduce_scatter) {
        tensor *rows = pool_alloc(p, sizeof *rows);
        int64_t first = 0, own = like->where.group_rank == like->where.owner ? like->in[0]->shape[0] : 0;
        *rows = *like->in[0];
        if (like->where.owner < 0)
            shard_rows(&first, &own, rows->shape[0], like->where.group_size, like->where.group_rank);
        rows->shape[0] = own;
        copy.in[0] = rows;
    }
    return __real_op_make(p, &copy, outputs, into);
}

static op *spoil_exchange(pool *p, const op *like, unsigned outputs, tensor *const *into)
{
    op other = *like;
    if (spoiling->fault == DROPPED)
        return unreduced(p, like, outputs, into);
    if (spoiling->fault == DOUBLED) {
        other.in[0] = __real_op_make(p, like, outputs, into)->out[0];
        return __real_op_make(p, &other, outputs, into);
    }
    const op_where where = op_along(groups, spoiling->instead);
    other.where.axis = where.axis;
    other.where.group_size = where.group_size;
    other.where.group_rank = where.group_rank;
    other.where.slots = where.slots;
    return __real_op_make(p, &other, outputs, into);
}

static void misplace(op *o)
{
    char point[160];
    for (int k = 0; k < OP_MAX_OUT; k++) {
        if (!o->out[k] || o->out[k]->producer != o || o->out[k]->base)
            continue;
        result_of(point, o, k, spoiling->slot, spoiling->lie);
        if (!strcmp(point, spoiling->point))
            o->out[k]->place.along[spoiling->slot] = spoiling->lie;
    }
}

op *__wrap_op_make(pool *p, const op *like, unsigned outputs, tensor *const *into)
{
    char point[160];
    if (counting)
        return __real_op_make(p, like, outputs, into);
    bool exchange =
        (listing || spoiling) && exchanges(like) && (like->where.group_size > 1 || like->kind == OP_regroup);
    if (listing && exchange)
        list_exchange(like);
    if (exchange)
        point_of(point, like);
    if (spoiling && exchange && spoiling->fault <= MISDIRECTED && !strcmp(point, spoiling->point))
        return spoil_exchange(p, like, outputs, into);
    op *o = __real_op_make(p, like, outputs, into);
    if (listing && !op_waits(o))
        list_results(o);
    if (spoiling && spoiling->fault == MISPLACED && !op_waits(o))
        misplace(o);
    return o;
}

void __wrap_storage_describe(compiled *c)
{
    char point[160];
    if (listing)
        list_weights(c);
    for (int i = 0; spoiling && spoiling->fault == MISDECLARED && i < c->model.parameter_count; i++) {
        parameter *p = c->model.parameters[i];
        weight_of(point, p, spoiling->slot, spoiling->sums);
        if (strcmp(point, spoiling->point) != 0)
            continue;
        if (spoiling->sums)
            p->sums ^= 1u << spoiling->slot;
        else
            p->place.along[spoiling->slot] = spoiling->lie;
    }
    __real_storage_describe(c);
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static config read_layout(int index)
{
    enum { WORDS = 32 };
    config c;
    const layouts_model *model = layouts_model_of(layouts[index].model);
    AUTO_FREE char *yaml = layouts_yaml(model, "data"), *keys = layouts_overrides(&layouts[index]);
    AUTO_FREE char *all = must_strdup(keys);
    char *word[WORDS], *rest = all;
    int words = 0;
    while (words < WORDS && (word[words] = strtok_r(rest, " ", &rest)))
        words++;
    if (config_parse(&c, "layout", yaml, strlen(yaml), words, word) != STATUS_OK)
        fail_msg("%s: %s", keys, status_message());
    return c;
}

/* A number for what the program does: which ops, with whom, on how many rows. */
static uint64_t hash_program(const program *p)
{
    uint64_t hash = 0;
    for (int i = 0; i < p->count; i++) {
        const op *o = p->ops[i];
        const int64_t words[] = {o->kind,
                                 o->phase,
                                 o->microbatch,
                                 o->at.accumulate,
                                 o->where.axis,
                                 o->where.group_size,
                                 o->out[0] ? o->out[0]->shape[0] : 0,
                                 o->in[0] ? o->in[0]->shape[0] : 0};
        for (unsigned k = 0; k < sizeof words / sizeof *words; k++)
            hash = (hash ^ (uint64_t)words[k]) * 1099511628211u;
        for (const char *letter = o->label; letter && *letter; letter++)
            hash = (hash ^ (uint64_t)*letter) * 1099511628211u;
    }
    return hash;
}

/* Compiles a rank's program as the mutant says (NULL: rightly, and the faults that it could have are listed). */
static status compile_rank(uint64_t *hash, const config *c, int rank, const mutant *m)
{
    RELEASED_BY(compile_free) compiled made = {0};
    compile_options o;
    grid g;
    TRY(config_make_grid(&g, c, layouts_ranks(&layouts[layout]), rank));
    TRY(compile_options_from(&o, c, &g, &cpu_backend, 1));
    g.block[AXIS_KV] = heads_copies(o.shape.kv_heads, g.size[GRID_TENSOR]);
    config_set_expert_blocks(&g, &o.layout);
    for (axis a = 0; a < AXIS_COUNT; a++) {
        groups[a] = grid_group(&g, a);
        grid_members(members[a], &g, a);
    }
    o.evaluate = false;
    spoiling = m;
    listing = !m;
    status s = compile(&made, &o);
    spoiling = NULL;
    listing = false;
    *hash = hash_program(&made.training.list);
    return s;
}

/* ---- the faults, one after the other ---------------------------------------------------------------------------- */

static uint64_t sound[LAYOUTS][MOST_RANKS]; /* the programs without a fault */

/* Exit statuses of a process that was refused nothing. */
enum { ENDED_OTHER, ENDED_FAILED, ENDED_SAME };

/* Parts of the compiler's messages, and the table's words for them. */
static const struct {
    const char *said, *words;
} refusals[] = {
    {"a reduction is missing", "a reduction is missing"},
    {"it is reduced twice", "it is reduced twice"},
    {"along the wrong axis", "it is reduced along the wrong axis"},
    {"is handed over", "another chunk expects it placed otherwise"},
    {"placements along", "placements do not fit"},
    {"placed otherwise", "an output is placed otherwise"},
    {"rows", "rows do not fit"},
    {"", "another rule of the op"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals, SAME_PROGRAM = REFUSALS, UNNOTICED, OUTCOMES };

static const char *outcome_words(int outcome)
{
    return outcome < REFUSALS ? refusals[outcome].words : outcome == SAME_PROGRAM ? "the same program" : "SURVIVES";
}

static _Noreturn void compile_all_ranks(const config *c, const mutant *m)
{
    bool same = true;
    for (int rank = 0; rank < layouts_ranks(&layouts[layout]); rank++) {
        uint64_t hash;
        if (compile_rank(&hash, c, rank, m) != STATUS_OK)
            _exit(ENDED_FAILED);
        same &= hash == sound[layout][rank];
    }
    _exit(same ? ENDED_SAME : ENDED_OTHER);
}

/* Compiles with the fault in a process of its own. */
static int outcome_of(const config *c, const mutant *m)
{
    char message[8192];
    int ends[2], result;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        compile_all_ranks(c, m);
    }
    close(ends[1]);
    size_t used = 0;
    ssize_t more;
    while (used < sizeof message - 1 && (more = read(ends[0], message + used, sizeof message - 1 - used)) > 0)
        used += (size_t)more;
    message[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    if (WIFEXITED(result) && WEXITSTATUS(result) == ENDED_SAME)
        return SAME_PROGRAM;
    if (!WIFSIGNALED(result) || WTERMSIG(result) != SIGABRT || !strstr(message, "phalanx: fatal: ")) {
        print_message("%s (status %x)\n", message, (unsigned)result);
        return UNNOTICED;
    }
    int outcome = 0;
    while (!strstr(message, refusals[outcome].said))
        outcome++;
    return outcome;
}

/* Compiles all ranks of all layouts as they should be, and lists the faults. */
static void list_mutants(void)
{
    for (layout = 0; layout < LAYOUTS; layout++) {
        config c = read_layout(layout);
        for (int rank = 0; rank < layouts_ranks(&layouts[layout]); rank++)
            if (compile_rank(&sound[layout][rank], &c, rank, NULL) != STATUS_OK)
                fail_msg("layout %d: %s", layout, status_message());
        config_free(&c);
    }
}

static int free_mutants(void **state)
{
    (void)state;
    free(mutants);
    return 0;
}

/* Chooses the mutants of this process's ring, which cover kinds, ops, axes and layouts. */
static void take_mutants(bool *takes)
{
    const char **facts = must_calloc((unsigned long)count + 1, sizeof *facts);
    for (int i = 0; i < count; i++)
        facts[i] = mutants[i].facts;
    cover_take(takes, facts, count, 4);
    free(facts);
}

/* Faults that were published, and the mutant that is each of them. */
static const struct {
    const char *number;
    fault fault;
    const char *point;
} published[] = {
    {"Megatron-LM #1446", DROPPED, "update final norm/reduce gradient: all_reduce along tensor"},
    {"Megatron-LM #1464", DROPPED, "backward attention/gather k/dx: reduce_scatter along context"},
    {"Megatron-LM #7452 (11)", DROPPED, "update attention/q norm/reduce gradient: all_reduce along tensor"},
};
enum { PUBLISHED = sizeof published / sizeof *published };

/* The published fault that a mutant is, or -1. */
static int number_of(const mutant *m)
{
    for (int i = 0; i < PUBLISHED; i++)
        if (published[i].fault == m->fault && !strcmp(published[i].point, m->point))
            return i;
    return -1;
}

static int totals[FAULTS][OUTCOMES];

static int total_of(fault f, int from, int to)
{
    int sum = 0;
    for (int i = from; i < to; i++)
        sum += totals[f][i];
    return sum;
}

static void print_totals(void)
{
    printf("proof: | mistake in the recording | mutants | refused | the same program | caught by |\n"
           "proof: | --- | --- | --- | --- | --- |\n");
    for (fault f = 0; f < FAULTS; f++) {
        printf("proof: | %s | %d | %d | %d |", fault_names[f], total_of(f, 0, OUTCOMES), total_of(f, 0, REFUSALS),
               totals[f][SAME_PROGRAM]);
        const char *between = "";
        for (int i = 0; i < REFUSALS; i++)
            if (totals[f][i]) {
                printf("%s %d \"%s\"", between, totals[f][i], refusals[i].words);
                between = ",";
            }
        printf(" |\n");
    }
}

/* Nine of ten that change a program are refused, none goes unnoticed, no kind has more than 30 of a hundred. */
TEST(programs_that_are_recorded_wrong_are_refused)
{
    list_mutants();
    AUTO_FREE bool *takes = must_calloc((unsigned long)count + 1, sizeof *takes);
    take_mutants(takes);
    int of[FAULTS] = {0}, taken = 0, refused = 0, unnoticed = 0, known[PUBLISHED] = {0};
    for (layout = 0; layout < LAYOUTS; layout++) {
        config c = read_layout(layout);
        AUTO_FREE char *title = layouts_title(&layouts[layout]);
        for (int i = 0; i < count; i++) {
            const mutant *m = &mutants[i];
            if (m->layout != layout)
                continue;
            of[m->fault]++;
            const int number = number_of(m);
            if (!takes[i] && number < 0)
                continue;
            int outcome = outcome_of(&c, m);
            totals[m->fault][outcome]++;
            taken += outcome != SAME_PROGRAM;
            refused += outcome < REFUSALS;
            if (number >= 0)
                known[number] = 1 + outcome;
            unnoticed += outcome == UNNOTICED;
            printf("%s: %s%s%s (%s): %s\n", fault_names[m->fault], m->point, m->fault == MISDIRECTED ? " -> " : "",
                   m->fault == MISDIRECTED ? axis_name(m->instead) : "", title, outcome_words(outcome));
        }
        config_free(&c);
    }
    print_totals();
    for (int i = 0; i < PUBLISHED; i++) {
        assert_in_range(known[i], 1, REFUSALS);
        printf("proof: | %s: %s | 1 | 1 | 0 | \"%s\" |\n", published[i].number, published[i].point,
               outcome_words(known[i] - 1));
    }
    printf("%d of %d mutants change a program\n", taken, count);
    assert_int_equal(unnoticed, 0);
    assert_true(10 * refused >= 9 * taken);
    assert_true(count >= 200);
    for (fault f = 0; f < FAULTS; f++)
        assert_true(10 * of[f] <= 3 * count);
}

TEST_MAIN(NULL, free_mutants)
