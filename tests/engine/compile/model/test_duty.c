/* Every element of a model is counted in the norm once and written to a checkpoint once, whoever holds copies of it;
 * and the ranks that hold the same expert, which are strided, divide what is theirs as the replicas of a dense model
 * do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/storage.h"
#include "kernels/record/program.h"
#include "kernels/record/replicas.h"
#include "models/names.h"
#include "tests/test.h"
#include "engine/compile/model/owner.h"

typedef struct layout {
    shape_architecture architecture;
    int tensor, data, pipeline, zero, kv_heads;
    bool sequence, divided; /* the vocabulary, over the stages */
} layout;

static const layout layouts[] = {
    {SHAPE_GPT2, 1, 1, 1, 0, 12, false, false}, {SHAPE_GPT2, 2, 3, 2, 0, 12, true, false},
    {SHAPE_GPT2, 2, 3, 2, 1, 12, false, false}, {SHAPE_GPT2, 2, 2, 2, 3, 12, true, true},
    {SHAPE_QWEN2, 4, 2, 1, 0, 2, true, false},  {SHAPE_QWEN2, 4, 2, 1, 1, 2, false, false},
    {SHAPE_QWEN2, 4, 3, 2, 3, 2, true, false},  {SHAPE_QWEN3, 6, 2, 1, 2, 3, false, true},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts, MOST_RANKS = 32 };

static compile_options options_of(const layout *l, int rank)
{
    compile_options o = {.shape = {.architecture = l->architecture,
                                   .layers = 4,
                                   .hidden_size = 48,
                                   .heads = 12,
                                   .kv_heads = l->kv_heads,
                                   .ffn_size = 100,
                                   .vocab_size = 515,
                                   .max_sequence = 32,
                                   .tied_embeddings = l->architecture != SHAPE_QWEN3},
                         .precision = PRECISION_BF16,
                         .sequence = 32,
                         .micro_batch = 1,
                         .microbatches = 2,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .layout.sequence = l->sequence,
                         .layout.vocabulary = l->divided,
                         .layout.zero = l->zero,
                         .layout.zero_gather = true,
                         .layout.zero_reduce = true,
                         .loss_tokens = 32,
                         .threads = 1,
                         .train = true};
    shape_fill(&o.shape);
    int ranks = l->tensor * l->data * l->pipeline;
    assert_int_equal(grid_make(&o.grid, ranks, rank, GRID_SIZES(l->tensor, 1, l->data, l->pipeline)), STATUS_OK);
    return o;
}

/* ---- each element once
 * ----------------------------------------------------------------------------------------------- */

/* How often each element of each of the model's tensors was met, by owner_role. */
typedef struct tally {
    names_tensor *names;
    int count;
    int **met[OWNER_ROLES]; /* [count][elements] */
} tally;

static int64_t elements_of(const names_tensor *n)
{
    return n->shape[0] * (n->dims > 1 ? n->shape[1] : 1);
}

static void open_tally(tally *t, const model_shape *shape)
{
    t->names = names_list(&t->count, shape);
    assert_true(t->count > 4 * 9);
    for (int d = 0; d < OWNER_ROLES; d++) {
        t->met[d] = calloc((size_t)t->count, sizeof(int *));
        for (int i = 0; i < t->count; i++)
            t->met[d][i] = calloc((size_t)elements_of(&t->names[i]), sizeof(int));
    }
}

static void close_tally(tally *t)
{
    for (int d = 0; d < OWNER_ROLES; d++) {
        for (int i = 0; i < t->count; i++)
            free(t->met[d][i]);
        free(t->met[d]);
    }
    names_free(t->names, t->count);
}

static int *find_tensor(const tally *t, owner_role d, const char *name)
{
    for (int i = 0; i < t->count; i++)
        if (!strcmp(t->names[i].name, name))
            return t->met[d][i];
    fail_msg("%s is no tensor of the model", name);
    return NULL;
}

static void meet_piece(const tally *t, owner_role d, const parameter *p, const parameter_block *q, owner_rows rows)
{
    int *met = find_tensor(t, d, q->of.name);
    int out = q->transposed ? 1 : 0;
    for (int64_t i = 0; i < (p->vector ? q->of.part.size[0] : q->of.part.size[out]); i++) {
        int64_t at = p->vector ? q->column + i : q->row + i;
        if (at < rows.first || at >= rows.first + rows.rows)
            continue;
        for (int64_t j = 0; j < (p->vector ? 1 : q->of.part.size[1 - out]); j++) {
            int64_t index[2] = {q->of.part.start[0] + i, 0};
            if (!p->vector) {
                index[out] = q->of.part.start[out] + i;
                index[1 - out] = q->of.part.start[1 - out] + j;
            }
            met[p->vector ? index[0] : index[0] * q->of.global[1] + index[1]]++;
        }
    }
}

static void meet_rank(const tally *t, const compiled *c)
{
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        for (owner_role d = 0; d < OWNER_ROLES; d++)
            for (int k = 0; k < p->piece_count; k++)
                meet_piece(t, d, p, &p->pieces[k], owner_rows_of(c->around.group, &c->storage[p->number], d));
    }
}

TEST(every_element_is_counted_and_written_once)
{
    for (int l = 0; l < LAYOUTS; l++) {
        tally t;
        compile_options any = options_of(&layouts[l], 0);
        open_tally(&t, &any.shape);
        for (int rank = 0; rank < any.grid.ranks; rank++) {
            compile_options o = options_of(&layouts[l], rank);
            compiled c = {0};
            assert_int_equal(compile_model(&c, &o), STATUS_OK);
            meet_rank(&t, &c);
            compile_free(&c);
        }
        int replicas = layouts[l].data, adds = replicas, updates = layouts[l].zero > 0 ? 1 : replicas;
        for (int i = 0; i < t.count; i++)
            for (int64_t k = 0; k < elements_of(&t.names[i]); k++) {
                if (t.met[OWNER_COUNTS][i][k] != 1 || t.met[OWNER_WRITES][i][k] != 1)
                    fail_msg("layout %d: element %lld of %s is counted %d times and written %d times", l, (long long)k,
                             t.names[i].name, t.met[OWNER_COUNTS][i][k], t.met[OWNER_WRITES][i][k]);
                assert_int_equal(t.met[OWNER_ADDS][i][k], adds);
                int updated = t.met[OWNER_UPDATES][i][k], compared = t.met[OWNER_COMPARES][i][k];
                assert_true(updated >= updates && updated % updates == 0); /* by each that holds a copy */
                bool whole = replicas > 1 && layouts[l].zero < 3;
                assert_true(whole ? compared >= replicas && compared % replicas == 0 : compared == 0);
            }
        close_tally(&t);
    }
}

/* ---- strided replicas
 * ------------------------------------------------------------------------------------------------ */

enum { BLOCK = 4 };

/* The matrices of the MLPs become one expert a rank of a block: whole, and on one rank of each block. */
static void make_experts(compiled *c)
{
    c->options.grid.block[AXIS_EXPERT] = BLOCK;
    for (axis a = 0; a < AXIS_COUNT; a++)
        c->around.group[a] = grid_group(&c->options.grid, a);
    for (int i = 0; i < c->model.parameter_count; i++) {
        parameter *p = c->model.parameters[i];
        if (!strstr(p->name, "mlp/"))
            continue;
        p->replicas = AXIS_EXPERT_DATA;
        p->place = place_along(AXIS_SLOT_EXPERT_DATA, place_shared());
        p->sums = axis_slots(AXIS_EXPERT_DATA);
    }
    storage_describe(c);
}

/* The sum of its gradient, made as a step makes it. */
static void check_sum(compiled *c, const storage *s)
{
    pool ops = {0};
    tensor d = *s->gradient;
    if (s->shard_gradient) { /* of a micro-batch, by all rows */
        tensor_describe(&d, "gradient", CLASS_TEMPORARY, DTYPE_FP32, s->weight->dims, s->weight->shape);
        d.place = parameter_gradient_place(s->of);
        d.parameter = s->of;
    }
    assert_int_equal(replicas_next_sum(s->of, &d, AXIS_COUNT), AXIS_EXPERT_DATA);
    op like = replicas_sum(c->around.group, s, AXIS_EXPERT_DATA, &d);
    like.label = "sum";
    const op *o = op_make(&ops, &like, 1, NULL);
    const tensor *sum = o->out[0];
    assert_int_equal(o->where.axis, AXIS_EXPERT_DATA);
    assert_int_equal(o->where.group_size, c->around.group[AXIS_EXPERT_DATA].ranks);
    assert_int_equal(o->kind, s->divided ? OP_reduce_scatter : OP_all_reduce);
    assert_int_equal(sum->shape[0], s->own_gradient->shape[0]);
    assert_int_equal(sum->place.along[AXIS_SLOT_EXPERT_DATA].kind, !s->divided     ? PLACE_REPLICATE
                                                                   : s->owner >= 0 ? PLACE_OWNED
                                                                                   : PLACE_SHARD);
    assert_int_equal(replicas_next_sum(s->of, sum, AXIS_EXPERT_DATA), AXIS_COUNT);
    pool_free(&ops);
}

/* Rows of the expert's parameter that this rank has a owner_role for, added to met[owner_role][row]. */
static void note_rows(int *met[OWNER_ROLES], const compiled *c, const storage *s)
{
    for (owner_role d = 0; d < OWNER_ROLES; d++) {
        owner_rows r = owner_rows_of(c->around.group, s, d);
        for (int64_t row = r.first; row < r.first + r.rows; row++)
            met[d][row]++;
    }
}

static void check_expert(const layout *l, int place, int number)
{
    int *met[OWNER_ROLES], holders = l->tensor * l->data / BLOCK;
    int64_t rows = 0;
    for (int d = 0; d < OWNER_ROLES; d++)
        met[d] = calloc(4096, sizeof(int));
    for (int rank = place; rank < l->tensor * l->data; rank += BLOCK) {
        compile_options o = options_of(l, rank);
        compiled c = {0};
        assert_int_equal(compile_model(&c, &o), STATUS_OK);
        make_experts(&c);
        const storage *s = &c.storage[number];
        assert_int_equal(s->of->replicas, AXIS_EXPERT_DATA);
        assert_int_equal(c.around.group[AXIS_EXPERT_DATA].rank, rank / BLOCK);
        rows = parameter_rows(s->of);
        check_sum(&c, s);
        note_rows(met, &c, s);
        compile_free(&c);
    }
    for (int64_t row = 0; row < rows; row++) {
        assert_int_equal(met[OWNER_COUNTS][row], 1);
        assert_int_equal(met[OWNER_WRITES][row], 1);
        assert_int_equal(met[OWNER_UPDATES][row], l->zero > 0 ? 1 : holders);
        assert_int_equal(met[OWNER_COMPARES][row], l->zero < 3 ? holders : 0);
    }
    for (int d = 0; d < OWNER_ROLES; d++)
        free(met[d]);
}

TEST(expert_data_ranks_divide_an_expert_as_replicas_do)
{
    for (int zero = 0; zero < STORAGE_LEVELS; zero++) {
        const layout l = {SHAPE_GPT2, 2, 6, 1, zero, 12, false, false};
        compile_options o = options_of(&l, 0);
        compiled c = {0};
        assert_int_equal(compile_model(&c, &o), STATUS_OK);
        int experts = 0;
        for (int i = 0; i < c.model.parameter_count; i++) {
            const parameter *p = c.model.parameters[i];
            if (!strncmp(p->name, "layer 1/mlp/", 12) && !strstr(p->name, "down bias")) { /* which tensor rank 0 has */
                check_expert(&l, (experts + zero) % BLOCK, p->number);
                experts++;
            }
        }
        assert_int_equal(experts, 3);
        compile_free(&c);
    }
}

TEST_MAIN(NULL, NULL)
