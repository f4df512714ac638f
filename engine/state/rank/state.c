#include "engine/state/rank/state.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/storage.h"
#include "kernels/philox.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "engine/compile/model/owner.h"

int state_sections(state_section out[STATE_SECTIONS], const compiled *c)
{
    const char *states[OPTIMIZER_SECTIONS];
    int count = 0;
    optimizer_sections(states, &c->options);
    out[count++] = STATE_MODEL;
    for (int i = 0; states[i]; i++)
        out[count++] = states[i];
    if (optimizer_has_master(&c->options))
        out[count++] = STATE_MASTER;
    if (c->feedback_section) {
        out[count++] = c->feedback_section;
        out[count++] = STATE_FEEDBACK_SUM;
    }
    return count;
}

/* ---- rectangles ------------------------------------------------------------------------------------------------ */

/* A range of rows of a parameter's local part that a tensor holds: row `first` is the tensor's row 0. */
typedef struct held {
    const tensor *t;
    int64_t first, rows;
} held;

static bool is(state_section a, state_section b)
{
    return !strcmp(a, b);
}

/* Rows of the feedback that this rank sums, if it was saved by another number of ranks. */
#define OWN_FEEDBACK "feedback_own"

static bool is_feedback(state_section section)
{
    return !strncmp(section, "feedback_", 9);
}

/* Returns a section's rows; none if the optimizer has no such state, or no gradient changes the parameter. */
static held section_rows(const compiled *c, const storage *s, state_section section)
{
    if (s->of->shares >= 0) /* its bytes are another parameter's */
        return (held){0};
    if (is_feedback(section)) {
        if (is(section, STATE_FEEDBACK_SUM))
            return s->feedback_sum ? (held){s->feedback_sum, s->sum_first, s->sum_rows} : (held){0};
        return s->feedback ? (held){s->feedback, 0, s->of->rows} : (held){0};
    }
    if (is(section, STATE_MODEL))
        return s->shard_weight ? (held){s->shard, s->own_first, s->own_rows} : (held){s->weight, 0, s->of->rows};
    const tensor *t = is(section, STATE_MASTER) ? s->master : is(section, STATE_GRADIENT) ? s->own_gradient : NULL;
    const optimizer *o = optimizer_of(&c->options, s->of);
    for (int i = 0; i < s->states && !t; i++)
        t = is(section, o->state[i]) ? s->state[i] : NULL;
    return t && tensor_elements(t) > 0 ? (held){t, s->own_first, s->own_rows} : (held){0};
}

/* Returns rows of a parameter; for a vector, elements. */
static owner_rows rows_of(const parameter *p, int64_t first, int64_t rows)
{
    return p->vector ? (owner_rows){0, rows * p->columns} : (owner_rows){first, rows};
}

/* Returns the rectangle where piece `q` and rows `among` of parameter `p` intersect; false if empty. A vector's piece
 * is among them whole or not at all. */
static bool intersect_rows(checkpoint_piece *out, const parameter *p, const parameter_block *q, held h,
                           owner_rows among, char *arena)
{
    dtype type = (dtype)h.t->type;
    char *at = arena + h.t->address + q->column * dtype_bytes(type);
    out->of = q->of;
    out->at = (box_memory){.type = type, .data = at};
    box *part = &out->of.part;
    if (p->vector) {
        out->at.stride[0] = 1;
        return q->column >= among.first && q->column < among.first + among.rows;
    }
    int out_dim = q->transposed ? 1 : 0, in_dim = 1 - out_dim;
    owner_rows met = owner_rows_overlap((owner_rows){q->row, q->of.part.size[out_dim]}, among);
    part->start[out_dim] += met.first - q->row;
    part->size[out_dim] = met.rows;
    out->at.stride[out_dim] = p->columns;
    out->at.stride[in_dim] = 1;
    out->at.data = at + (met.first - h.first) * p->columns * dtype_bytes(type);
    return met.rows > 0 && q->of.part.size[in_dim] > 0;
}

/* ---- access to the arena ----------------------------------------------------------------------------------------- */

/* Borrows a piece's `data`, an address in the arena, which may be a device's, as host memory. */
static void *borrow_piece(void *context, const void *data, int64_t bytes)
{
    executor *e = context;
    return executor_borrow(e, (const char *)data - executor_context(e)->arena, bytes);
}

static void give_back(void *context, void *borrowed, const void *data, int64_t bytes)
{
    executor *e = context;
    executor_give_back(e, borrowed, (const char *)data - executor_context(e)->arena, bytes, false);
}

void state_pieces(checkpoint_piece **list, int *count, const compiled *c, executor *e, state_section section,
                  bool writing)
{
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        const storage *s = &c->storage[p->number];
        held h = section_rows(c, s, section);
        if (!h.t)
            continue;
        owner_rows among = rows_of(p, h.first, h.rows);
        if (writing)
            /* Keeps the rows that this rank writes: each element of the model is written once; a rank's feedback, all
             * that no other rank has a copy of. */
            among = owner_rows_overlap(
                among, owner_rows_of(c->around.group, s, is_feedback(section) ? OWNER_ADDS : OWNER_WRITES));
        if (is(section, OWN_FEEDBACK))
            among = rows_of(p, s->sum_first, s->sum_rows);
        for (int k = 0; k < p->piece_count; k++) {
            checkpoint_piece one = {.section = section, .source = {borrow_piece, give_back, e}};
            if (intersect_rows(&one, p, &p->pieces[k], h, among, executor_context(e)->arena))
                APPEND(*list, *count) = one;
        }
    }
}

/* ---- normal deviates in plain arithmetic, the same bits on every machine: Philox and Box-Muller ---- */

/* The site of philox_draws() that dropout never uses. */
enum { INITIAL_SITE = 0xffff, BATCH = 256 }; /* blocks at a time */

/* ln(x) for x in [2^-24, 1]: x = 2^e m with m in [sqrt(1/2), sqrt(2)), then the first five terms of the series of 2
 * artanh((m-1)/(m+1)) (relative error below 1e-7). */
static inline float portable_log(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t shifted = bits - 0x3f3504f3u; /* bits of sqrt(1/2) */
    int32_t e = (int32_t)shifted >> 23;
    bits -= (uint32_t)e << 23;
    float m;
    memcpy(&m, &bits, 4);
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float series = 1.0f + z * (0.33333334f + z * (0.2f + z * (0.14285715f + z * 0.11111111f)));
    return (float)e * 0.69314718f + 2.0f * s * series;
}

/* sin and cos of 2 pi u, u in [0, 1), by the nearest quarter turn and Taylor series on [-pi/4, pi/4]. */
static inline void sine_cosine(float *sine, float *cosine, float u)
{
    float quarter = (float)(int32_t)(u * 4.0f + 0.5f);
    float a = (u - quarter * 0.25f) * 6.28318531f, z = a * a;
    float s = a * (1.0f - z * (0.16666667f - z * (8.3333333e-3f - z * (1.9841270e-4f - z * 2.7557319e-6f))));
    float c = 1.0f - z * (0.5f - z * (4.1666667e-2f - z * (1.3888889e-3f - z * 2.4801587e-5f)));
    int32_t q = (int32_t)quarter & 3;
    float swap_s = q & 1 ? c : s, swap_c = q & 1 ? s : c;
    *sine = q & 2 ? -swap_s : swap_s;
    *cosine = (q == 1 || q == 2) ? -swap_c : swap_c;
}

/* Draws `count` Philox blocks, each word of a block in its own plane. A round covers all blocks before the next one
 * starts, which vectorises. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void
draw_blocks(uint32_t draw[restrict 4][BATCH], uint64_t seed, uint64_t series, uint64_t first, int count)
{
    for (int i = 0; i < count; i++) {
        uint64_t block = first + (uint64_t)i;
        draw[0][i] = (uint32_t)block;
        draw[1][i] = (uint32_t)series;
        draw[2][i] = (uint32_t)(block >> 32);
        draw[3][i] = (INITIAL_SITE & 0xffffu) | ((uint32_t)(series >> 32) << 16);
    }
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
#pragma omp simd
        for (int i = 0; i < count; i++)
            philox_round(&draw[0][i], &draw[1][i], &draw[2][i], &draw[3][i], key[0], key[1]);
        philox_next_key(key);
    }
}

/* out[4 i + k] = deviation times the normal of draw[k][i] (Box and Muller, 1958: both of each pair) */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void
normals(float *restrict out, uint32_t draw[restrict 4][BATCH], int count, float deviation)
{
    float normal[4][BATCH];
    for (int k = 0; k < 4; k += 2) {
#pragma omp simd
        for (int i = 0; i < count; i++) {
            float u = (float)((int32_t)(draw[k][i] >> 8) + 1) * 5.9604645e-8f; /* (0, 1] */
            float v = (float)(int32_t)(draw[k + 1][i] >> 8) * 5.9604645e-8f;
            float radius = __builtin_sqrtf(-2.0f * portable_log(u)), s, c; /* avoids errno, so that it vectorises */
            sine_cosine(&s, &c, v);
            normal[k][i] = deviation * (radius * c);
            normal[k + 1][i] = deviation * (radius * s);
        }
    }
#pragma omp simd
    for (int i = 0; i < count; i++) {
        out[4 * i] = normal[0][i];
        out[4 * i + 1] = normal[1][i];
        out[4 * i + 2] = normal[2][i];
        out[4 * i + 3] = normal[3][i];
    }
}

void normal_fill(float *out, uint64_t seed, uint64_t series, int64_t first, int64_t count, float deviation)
{
    uint32_t draw[4][BATCH];
    float batch[4 * BATCH];
    int64_t done = 0;
    while (done < count) {
        int64_t index = first + done, skip = index & 3, left = skip + count - done;
        int64_t blocks = left < 4 * BATCH ? (left + 3) / 4 : BATCH, take = 4 * blocks < left ? 4 * blocks : left;
        bool whole = skip == 0 && take == 4 * blocks;
        draw_blocks(draw, seed, series, (uint64_t)(index >> 2), (int)blocks);
        normals(whole ? out + done : batch, draw, (int)blocks, deviation);
        if (!whole)
            memcpy(out + done, batch + skip, (size_t)(take - skip) * sizeof *out);
        done += take - skip;
    }
}

/* ---- initial weights ------------------------------------------------------------------------------------------- */

/* Fills elements from `first` of the tensor `name`, numbered as [out, in] in any file order. A kind of initial values
 * is a case here, and a function of the element's number, so that layouts do not change it. */
static void fill_initial(float *out, const parameter *p, const char *name, uint64_t seed, int64_t first, int64_t count)
{
    switch (p->init) {
    case INIT_NORMAL:
        normal_fill(out, seed, philox_stream(name), first, count, p->deviation);
        break;
    case INIT_ZERO:
    case INIT_ONE:
        for (int64_t i = 0; i < count; i++)
            out[i] = p->init == INIT_ONE;
        break;
    }
}

/* Writes row `row` of the parameter as fp32 into out[columns]: the pieces' values, zero elsewhere. */
static void initial_row(float *out, const parameter *p, int64_t row, uint64_t seed)
{
    memset(out, 0, (size_t)p->columns * sizeof *out);
    for (int k = 0; k < p->piece_count; k++) {
        const parameter_block *q = &p->pieces[k];
        const box *part = &q->of.part;
        int out_dim = q->transposed ? 1 : 0, in_dim = 1 - out_dim;
        int64_t count = p->vector ? part->size[0] : part->size[in_dim];
        if (!p->vector && (row < q->row || row >= q->row + part->size[out_dim]))
            continue;
        int64_t first = p->vector ? part->start[0]
                                  : (part->start[out_dim] + row - q->row) * q->of.global[in_dim] + part->start[in_dim];
        fill_initial(out + q->column, p, q->of.name, seed, first, count);
    }
}

/* A tensor being filled row by row: borrowed from the arena. */
typedef struct filled {
    held at;
    char *bytes;
} filled;

static filled fill_begin(executor *e, held h)
{
    return (filled){h, h.rows > 0 ? executor_borrow(e, h.t->address, tensor_bytes(h.t)) : NULL};
}

static void fill_end(executor *e, filled f)
{
    if (f.bytes)
        executor_give_back(e, f.bytes, f.at.t->address, tensor_bytes(f.at.t), true);
}

static void store_row(filled f, int64_t row, const float *values, int64_t columns)
{
    held h = f.at;
    if (row < h.first || row >= h.first + h.rows)
        return;
    int64_t bytes = columns * dtype_bytes((dtype)h.t->type);
    dtype_convert(f.bytes + (row - h.first) * bytes, (dtype)h.t->type, values, DTYPE_FP32, columns);
}

static void draw_weight(const compiled *c, executor *e, const storage *s, uint64_t seed)
{
    const parameter *p = s->of;
    bool apart = c->options.train && optimizer_has_master(&c->options);
    filled weight = fill_begin(e, section_rows(c, s, STATE_MODEL)), master = {0};
    if (apart)
        master = fill_begin(e, section_rows(c, s, STATE_MASTER));
#pragma omp parallel num_threads(executor_context(e)->threads)
    {
        AUTO_FREE float *values = must_alloc((unsigned long)p->columns * sizeof *values);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < p->rows; row++) {
            initial_row(values, p, row, seed);
            store_row(weight, row, values, p->columns);
            if (apart)
                store_row(master, row, values, p->columns);
        }
    }
    fill_end(e, weight);
    fill_end(e, master);
}

void state_initialise(const compiled *c, executor *e, uint64_t seed)
{
    for (int i = 0; i < c->model.parameter_count; i++)
        if (c->model.parameters[i]->shares < 0)
            draw_weight(c, e, &c->storage[c->model.parameters[i]->number], seed);
}

static const parameter_block *find_piece(const parameter **of, const decoder *model, const char *name)
{
    for (int i = 0; i < model->parameter_count; i++) {
        const parameter *p = model->parameters[i];
        for (int k = 0; k < p->piece_count && p->shares < 0; k++)
            if (!strcmp(p->pieces[k].of.name, name)) {
                *of = p;
                return &p->pieces[k];
            }
    }
    MUST(false, "%s is no tensor of the model", name);
    return NULL;
}

/* Elements are numbered as [out, in]: draws a tensor stored as [in, out] one of its rows at a time. */
static void draw_transposed(float *out, const parameter *p, const parameter_block *q, int64_t first, int64_t rows,
                            uint64_t seed)
{
    AUTO_FREE float *drawn = must_alloc((unsigned long)rows * sizeof *drawn);
    for (int64_t i = 0; i < q->of.global[1]; i++) {
        fill_initial(drawn, p, q->of.name, seed, i * q->of.global[0] + first, rows);
        for (int64_t row = 0; row < rows; row++)
            out[row * q->of.global[1] + i] = drawn[row];
    }
}

void state_initial_rows(float *out, const decoder *model, const char *name, int64_t first, int64_t rows, uint64_t seed)
{
    const parameter *p = NULL;
    const parameter_block *q = find_piece(&p, model, name);
    int64_t columns = q->of.dims > 1 ? q->of.global[1] : 1;
    if (q->transposed)
        draw_transposed(out, p, q, first, rows, seed);
    else
        fill_initial(out, p, name, seed, first * columns, rows * columns);
}

static void clear_tensor(executor *e, const tensor *t)
{
    int64_t bytes = t ? tensor_bytes(t) : 0;
    if (bytes == 0)
        return;
    MUST(t->address >= 0, "%s has no bytes of its own", t->name);
    char *data = executor_borrow(e, t->address, bytes);
    memset(data, 0, (size_t)bytes);
    executor_give_back(e, data, t->address, bytes, true);
}

void state_clear(const compiled *c, executor *e)
{
    for (int i = 0; i < c->model.parameter_count; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        clear_tensor(e, s->shard_weight ? s->shard : s->weight);
        clear_tensor(e, s->master);
        for (int k = 0; k < s->states; k++)
            clear_tensor(e, s->state[k]);
        clear_tensor(e, s->feedback);
        clear_tensor(e, s->feedback_sum);
    }
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

typedef struct from_checkpoint {
    checkpoint *file;
    const char *section;
} from_checkpoint;

static status read_checkpoint(void *context, const rectangle *of, const box_memory *to)
{
    from_checkpoint *f = context;
    return checkpoint_read(f->file, f->section, of, to);
}

static status load_section(const compiled *c, executor *e, state_section section, state_reader *read, void *context)
{
    int count = 0;
    AUTO_FREE checkpoint_piece *pieces = NULL;
    status s = STATUS_OK;
    state_pieces(&pieces, &count, c, e, section, false);
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        box_memory to = pieces[i].at;
        int64_t address = (char *)to.data - executor_context(e)->arena, bytes = checkpoint_extent(&pieces[i]);
        to.data = executor_borrow(e, address, bytes);
        s = read(context, &pieces[i].of, &to);
        executor_give_back(e, to.data, address, bytes, true);
    }
    return s;
}

status state_load_weights(const compiled *c, executor *e, state_reader *read, void *context)
{
    if (c->options.train && optimizer_has_master(&c->options))
        TRY(load_section(c, e, STATE_MASTER, read, context));
    return load_section(c, e, STATE_MODEL, read, context);
}

static bool has_section(const checkpoint *file, state_section section)
{
    for (int i = 0; i < checkpoint_tensors(file); i++)
        if (is(checkpoint_at(file, i)->section, section))
            return true;
    return false;
}

/* Loads the optimizer's states: all of them, or none if the file lacks one. */
static status load_states(const compiled *c, executor *e, checkpoint *file, bool *has_states)
{
    const char *states[OPTIMIZER_SECTIONS];
    optimizer_sections(states, &c->options);
    *has_states = true;
    for (int i = 0; states[i]; i++)
        *has_states &= has_section(file, states[i]);
    for (int i = 0; states[i] && *has_states && c->options.train; i++) {
        from_checkpoint from = {file, states[i]};
        TRY(load_section(c, e, states[i], read_checkpoint, &from));
    }
    return STATUS_OK;
}

/* Adds a section of feedback, fp32. */
static status add_checkpoint(void *context, const rectangle *of, const box_memory *to)
{
    bool matrix = of->dims > 1;
    int64_t rows = of->part.size[0], columns = matrix ? of->part.size[1] : 1, step = matrix ? to->stride[1] : 0;
    AUTO_FREE float *more = must_alloc((unsigned long)(rows * columns) * sizeof *more + 1);
    TRY(read_checkpoint(context, of, &(box_memory){more, to->type, {columns, 1}}));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            ((float *)to->data)[i * to->stride[0] + j * step] += more[i * columns + j];
    return STATUS_OK;
}

static status load_feedback(const compiled *c, executor *e, checkpoint *file)
{
    char section[32];
    int saved = 0;
    for (bool there = true; there; saved += there) {
        snprintf(section, sizeof section, "feedback_%d", saved);
        there = has_section(file, section);
    }
    if (!c->feedback_section || saved == 0)
        return STATUS_OK;
    bool sums = has_section(file, STATE_FEEDBACK_SUM);
    if (saved == c->feedback_ranks && sums == !storage_divides(&c->options, CLASS_OPTIMIZER)) {
        from_checkpoint own = {file, c->feedback_section}, sum = {file, STATE_FEEDBACK_SUM};
        TRY(load_section(c, e, c->feedback_section, read_checkpoint, &own));
        return load_section(c, e, STATE_FEEDBACK_SUM, read_checkpoint, &sum);
    }
    /* Sums all sections, and the state loaded so far, where this rank owns it. */
    from_checkpoint each = {file, section}, sum = {file, STATE_FEEDBACK_SUM};
    for (int i = 0; i < saved; i++) {
        snprintf(section, sizeof section, "feedback_%d", i);
        TRY(load_section(c, e, OWN_FEEDBACK, add_checkpoint, &each));
    }
    return sums ? load_section(c, e, OWN_FEEDBACK, add_checkpoint, &sum) : STATUS_OK;
}

status state_load(const compiled *c, executor *e, checkpoint *file, bool *has_states)
{
    from_checkpoint model = {file, STATE_MODEL}, master = model;
    if (has_section(file, STATE_MASTER))
        master.section = STATE_MASTER;
    if (c->options.train && optimizer_has_master(&c->options))
        TRY(load_section(c, e, STATE_MASTER, read_checkpoint, &master));
    TRY(load_section(c, e, STATE_MODEL, read_checkpoint, optimizer_has_master(&c->options) ? &model : &master));
    TRY(load_states(c, e, file, has_states));
    return c->options.train ? load_feedback(c, e, file) : STATUS_OK;
}
