#include "tests/jobs/spoiled.h"

#include <stdio.h>
#include <string.h>

#include "memory/log.h"
#include "parallel/comm/comm.h"

/* The list that is being made of a program. */
typedef struct edited {
    compiled_program *out;
    pool *pool;
} edited;

typedef struct spoiled_fault {
    const char *name, *kind;
    bool (*at)(const op *o);
    int (*times)(op *o); /* changes the op; how often it is in the program. NULL: once */
    void (*before)(edited *e, op *o), (*after)(edited *e, op *o);
} spoiled_fault;

/* ---- parts ------------------------------------------------------------------------------------------------------ */

static tensor *tensor_copy(pool *p, const tensor *of)
{
    tensor *t = pool_alloc(p, sizeof *t);
    *t = *of;
    return t;
}

static tensor *rows_of(pool *p, tensor *of, int64_t first, int64_t rows)
{
    tensor *t = tensor_copy(p, of);
    int64_t bytes = first * of->pitch * dtype_bytes((dtype)of->type);
    t->base = tensor_root(of);
    t->offset += bytes;
    t->address += of->address >= 0 ? bytes : 0;
    t->shape[0] = rows;
    return t;
}

static tensor *bytes_like(pool *p, const tensor *of)
{
    tensor *t = pool_alloc(p, sizeof *t);
    tensor_describe(t, of->name, CLASS_TEMPORARY, (dtype)of->type, of->dims, of->shape);
    return t;
}

static op *add_op(edited *e, const op *beside, op_kind kind, tensor *x, tensor *y)
{
    op *o = pool_alloc(e->pool, sizeof *o);
    *o = (op){.kind = (uint8_t)kind,
              .phase = beside->phase,
              .chunk = beside->chunk,
              .layer = beside->layer,
              .microbatch = beside->microbatch,
              .label = "spoiled",
              .site = "spoiled",
              .in = {x},
              .out = {y}};
    program_append(&e->out->list, o);
    return o;
}

static int drop(op *o)
{
    (void)o;
    return 0;
}

static int make_copy(op *o)
{
    o->kind = OP_copy;
    return 1;
}

/* ---- kinds of mistake -------------------------------------------------------------------------------------------- */

static bool sums_floats(const op *o)
{
    return (o->kind == OP_all_reduce || o->kind == OP_reduce_scatter) && o->in[0]->type == DTYPE_FP32 &&
           o->where.group_size > 1 && o->where.rows == 0;
}

static bool scatters_or_sums(const op *o)
{
    return (o->kind == OP_all_reduce || o->kind == OP_reduce_scatter) && o->in[0]->type == DTYPE_FP32 &&
           o->where.group_size > 1;
}

static void scale_sum(edited *e, op *o)
{
    if (tensor_elements(o->out[0]) > 0)
        add_op(e, o, OP_scale, o->out[0], o->out[0])->at.constants.scale = (float)o->where.group_size;
}

static void scale_down(edited *e, op *o)
{
    if (tensor_elements(o->out[0]) > 0)
        add_op(e, o, OP_scale, o->out[0], o->out[0])->at.constants.scale = 1 / (float)o->where.group_size;
}

static bool sums_gradient(const op *o)
{
    return scatters_or_sums(o) && o->in[0]->parameter;
}

static tensor *partial; /* the gradient at hand as it was before its sum: one op at a time is in a bundle */
static struct {
    const op *of;
    tensor *value;
} partials[COMM_SEGMENTS];
static int partial_count;

static void keep_partial(edited *e, op *o)
{
    MUST(partial_count < COMM_SEGMENTS, "more sums than a bundle has");
    partial = bytes_like(e->pool, o->in[0]);
    add_op(e, o, OP_copy, o->in[0], partial);
    partials[partial_count].of = o;
    partials[partial_count++].value = partial;
}

static void leave_partial(edited *e, op *o)
{
    for (int i = 0; i < partial_count; i++) {
        if (partials[i].of != o)
            continue;
        tensor *own = partials[i].value;
        int64_t first = 0, rows = o->out[0]->shape[0];
        if (o->kind == OP_reduce_scatter && o->where.owner < 0)
            shard_rows(&first, &rows, own->shape[0], o->where.group_size, o->where.group_rank);
        if (rows > 0)
            add_op(e, o, OP_copy, rows_of(e->pool, own, first, rows), o->out[0]);
    }
}

static bool gathers(const op *o)
{
    return o->kind == OP_all_gather && o->where.group_size > 1 && o->out[0]->dims == 2 && o->out[0]->shape[0] > 1 &&
           o->where.owner < 0;
}

/* The blocks of all ranks, each in the next one's place. */
static void rotate_blocks(edited *e, op *o)
{
    tensor *y = o->out[0], *t = bytes_like(e->pool, y);
    int64_t rows = y->shape[0], block = rows / o->where.group_size > 0 ? rows / o->where.group_size : 1;
    add_op(e, o, OP_copy, y, t);
    add_op(e, o, OP_copy, rows_of(e->pool, t, block, rows - block), rows_of(e->pool, y, 0, rows - block));
    add_op(e, o, OP_copy, rows_of(e->pool, t, 0, block), rows_of(e->pool, y, rows - block, block));
}

static bool exchanges(const op *o)
{
    return o->kind == OP_all_to_all && o->where.group_size > 1 && o->where.rows > 0;
}

static bool adds_up(const op *o)
{
    return o->at.accumulate == OP_ADDS && o->microbatch > 0 && op_has(o, OP_GRADIENT) && o->kind != OP_accumulate;
}

static int write_over(op *o)
{
    o->at.accumulate = OP_WRITES;
    return 1;
}

static bool counts_norm(const op *o)
{
    return o->kind == OP_sum_squares && o->in[0]->parameter;
}

/* No rows: the first op still sets the bins to zero. */
static int count_nothing(op *o)
{
    tensor *none = must_alloc(sizeof *none);
    *none = *o->in[0];
    none->shape[0] = 0;
    o->in[0] = none;
    return 1;
}

static void count_again(edited *e, op *o)
{
    op *again = add_op(e, o, OP_sum_squares, o->in[0], o->out[0]);
    again->at.accumulate = OP_ADDS;
}

static bool updates(const op *o)
{
    return op_is(o, OP_CLASS_UPDATE) && o->kind != OP_muon_momentum;
}

static int decay_otherwise(op *o)
{
    o->at.update.decay = !o->at.update.decay;
    return 1;
}

static int by_local_index(op *o)
{
    o->at.update.first_element = 0;
    return 1;
}

static bool rounds(const op *o)
{
    return updates(o) && o->at.update.first_element > 0 && o->out[1] && o->out[1]->type != DTYPE_FP32;
}

static bool drops_out(const op *o)
{
    return o->kind == OP_dropout;
}

static int draw_by_local_token(op *o)
{
    o->in[2]->address = tensor_root(o->in[2])->address;
    return 1;
}

static int draw_by_one_site(op *o)
{
    o->at.dropout.site = 0;
    return 1;
}

static bool attends(const op *o)
{
    return o->kind == OP_attention || o->kind == OP_attention_grad;
}

static bool has_window(const op *o)
{
    return attends(o) && o->at.attention.window > 0;
}

static int widen_window(op *o)
{
    o->at.attention.window++;
    return 1;
}

static int document_operand(const op *o)
{
    return o->kind == OP_attention_grad ? 6 : 3;
}

static bool has_documents(const op *o)
{
    return attends(o) && o->in[document_operand(o)];
}

static int shift_operand(op *o, int i)
{
    tensor *t = must_alloc(sizeof *t);
    *t = *o->in[i];
    t->address += (int64_t)sizeof(int32_t);
    o->in[i] = t;
    return 1;
}

static int shift_documents(op *o)
{
    return shift_operand(o, document_operand(o));
}

static int ignore_documents(op *o)
{
    tensor *t = o->in[document_operand(o)];
    o->in[document_operand(o)] = NULL;
    return t != NULL;
}

static bool has_places(const op *o)
{
    return attends(o) && o->in[document_operand(o) + 1];
}

static int shift_places(op *o)
{
    return shift_operand(o, document_operand(o) + 1);
}

static bool rotates(const op *o)
{
    return o->kind == OP_rope;
}

static int shift_rotation(op *o)
{
    return shift_operand(o, 2);
}

static bool reads_labels(const op *o)
{
    return o->kind == OP_cross_entropy;
}

static int shift_labels(op *o)
{
    return shift_operand(o, 1);
}

static bool balances(const op *o)
{
    return o->kind == OP_balance_grad;
}

static int double_balance(op *o)
{
    o->at.balance.load *= 2;
    return 1;
}

#define ORDER  "exchange of the wrong order"
#define MASK   "mask or position shifted"
#define LEFT   "weight left out, or counted twice"
#define RANDOM "random numbers by local index"
#define SCALE  "scale by an axis' size"
#define OVER   "gradient overwritten"
static const spoiled_fault faults[] = {
    {"scaled", SCALE, sums_floats, NULL, NULL, scale_sum},
    {"averaged", SCALE, sums_floats, NULL, NULL, scale_down},
    {"loss-scaled", SCALE, balances, double_balance, NULL, NULL},
    {"left-partial", "gradient left partial", sums_gradient, NULL, keep_partial, leave_partial},
    {"rotated", ORDER, gathers, NULL, NULL, rotate_blocks},
    {"stays", ORDER, exchanges, make_copy, NULL, NULL},
    {"written-over", OVER, adds_up, write_over, NULL, NULL},
    {"not-in-norm", LEFT, counts_norm, count_nothing, NULL, NULL},
    {"twice-in-norm", LEFT, counts_norm, NULL, NULL, count_again},
    {"not-updated", LEFT, updates, drop, NULL, NULL},
    {"decay", LEFT, updates, decay_otherwise, NULL, NULL},
    {"rounded", RANDOM, rounds, by_local_index, NULL, NULL},
    {"drawn-by-token", RANDOM, drops_out, draw_by_local_token, NULL, NULL},
    {"drawn-alike", RANDOM, drops_out, draw_by_one_site, NULL, NULL},
    {"window", MASK, has_window, widen_window, NULL, NULL},
    {"documents-shifted", MASK, has_documents, shift_documents, NULL, NULL},
    {"documents-ignored", MASK, has_documents, ignore_documents, NULL, NULL},
    {"places-shifted", MASK, has_places, shift_places, NULL, NULL},
    {"rotation-shifted", MASK, rotates, shift_rotation, NULL, NULL},
    {"labels-shifted", MASK, reads_labels, shift_labels, NULL, NULL},
};
enum { FAULTS = sizeof faults / sizeof *faults };
#define INITIAL "initial" /* RANDOM, of a weight */

/* ---- points ----------------------------------------------------------------------------------------------------- */

static void without_spaces(char *text)
{
    for (; *text; text++)
        *text = *text == ' ' ? '_' : *text;
}

static const char *without_layer(const char *site)
{
    const char *end = site && !strncmp(site, "layer ", 6) ? strchr(site, '/') : NULL;
    return end ? end + 1 : site ? site : "";
}

static void point_of(char out[160], const op *o)
{
    snprintf(out, 160, "%s/%s/%s", phase_name((phase)o->phase), without_layer(o->label), op_row_of(o)->name);
    without_spaces(out);
}

static void add(spoiled_rows *rows, const spoiled_row *row)
{
    for (int i = 0; i < rows->count; i++)
        if (!strcmp(rows->row[i].fault, row->fault) && !strcmp(rows->row[i].point, row->point))
            return;
    if (rows->count == rows->capacity) {
        rows->capacity = rows->capacity ? 2 * rows->capacity : 256;
        rows->row = must_realloc(rows->row, (unsigned long)rows->capacity * sizeof *rows->row);
    }
    rows->row[rows->count++] = *row;
}

void spoiled_list(spoiled_rows *rows, const compiled *c, int layout)
{
    for (int i = 0; i < c->training.list.count; i++)
        for (int f = 0; f < FAULTS; f++) {
            const op *o = c->training.list.ops[i];
            spoiled_row row = {.fault = faults[f].name, .kind = faults[f].kind, .layout = layout};
            if (op_waits(o) || !faults[f].at(o))
                continue;
            point_of(row.point, o);
            snprintf(row.facts, sizeof row.facts, "fault=%s op=%s layout=%d phase=%d", row.fault, op_row_of(o)->name,
                     layout, o->phase);
            add(rows, &row);
        }
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        spoiled_row row = {.fault = INITIAL, .kind = RANDOM, .layout = layout};
        const box *part = &p->pieces[0].of.part;
        if (p->init != INIT_NORMAL || p->piece_count == 0 || part->start[0] + part->start[1] == 0)
            continue;
        snprintf(row.point, sizeof row.point, "%s", without_layer(p->name));
        without_spaces(row.point);
        snprintf(row.facts, sizeof row.facts, "fault=%s layout=%d", INITIAL, layout);
        add(rows, &row);
    }
}

/* ---- making them ------------------------------------------------------------------------------------------------- */

static const spoiled_fault *chosen;
static char chosen_point[160];
static bool chosen_initial;

bool spoiled_choose(const char *word)
{
    const char *colon = strchr(word, ':');
    chosen = NULL;
    chosen_initial = false;
    if (!colon)
        return false;
    snprintf(chosen_point, sizeof chosen_point, "%s", colon + 1);
    for (int i = 0; i < FAULTS; i++)
        if (strlen(faults[i].name) == (size_t)(colon - word) && !strncmp(faults[i].name, word, (size_t)(colon - word)))
            chosen = &faults[i];
    chosen_initial = !strncmp(word, INITIAL ":", strlen(INITIAL) + 1);
    return chosen || chosen_initial;
}

static bool is_meant(const op *o)
{
    char point[160];
    if (!chosen->at(o))
        return false;
    point_of(point, o);
    return !strcmp(point, chosen_point);
}

void spoiled_program(compiled_program *out)
{
    if (!chosen)
        return;
    program before = out->list;
    edited e = {out, &out->pool};
    out->list = (program){0};
    for (int i = 0, next; i < before.count; i = next) {
        next = i + 1; /* of a bundle, all ops at once: nothing may be between them */
        while (next < before.count && before.ops[i]->where.bundle_of > 1 && before.ops[next]->where.bundle > 0 &&
               before.ops[next]->where.bundle_of == before.ops[i]->where.bundle_of)
            next++;
        partial_count = 0;
        for (int k = i; k < next; k++)
            if (chosen->before && is_meant(before.ops[k]))
                chosen->before(&e, before.ops[k]);
        for (int k = i; k < next; k++) {
            int times = chosen->times && is_meant(before.ops[k]) ? chosen->times(before.ops[k]) : 1;
            if (times > 0)
                program_append(&out->list, before.ops[k]);
        }
        for (int k = i; k < next; k++)
            if (chosen->after && is_meant(before.ops[k]))
                chosen->after(&e, before.ops[k]);
    }
    program_free(&before);
}

void spoiled_initial(const compiled *c, bool local)
{
    enum { MOST = 1024 };
    static int64_t starts[MOST][BOX_DIMS];
    int at = 0;
    for (int i = 0; chosen_initial && i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        char point[160];
        snprintf(point, sizeof point, "%s", without_layer(p->name));
        without_spaces(point);
        for (int k = 0; !strcmp(point, chosen_point) && k < p->piece_count; k++, at++)
            for (int d = 0; d < BOX_DIMS; d++) {
                int64_t *start = &p->pieces[k].of.part.start[d];
                MUST(at < MOST, "more pieces than expected");
                starts[at][d] = local ? *start : starts[at][d];
                *start = local ? 0 : starts[at][d];
            }
    }
}
