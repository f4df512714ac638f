#include "engine/compile/order/order.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/record/program.h"
#include "kernels/record/product.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- which operands may share bytes ------------------------------------------------------------------------------ */

/* Operands by their storage: transient tensors by the tensor that holds their bytes, persistent ones by their
 * addresses, which they have before there is a program. */
typedef struct span {
    int64_t first, end; /* bytes of the arena */
    int64_t operand;    /* index of the operand */
} span;

static tensor *operand_at(const op *o, int k)
{
    return k < OP_MAX_IN ? o->in[k] : o->out[k - OP_MAX_IN];
}

static tensor *root_of(const op *o, int k)
{
    tensor *t = operand_at(o, k);
    while (t && t->base)
        t = t->base;
    return t;
}

static int compare_spans(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return (x->operand > y->operand) - (x->operand < y->operand);
}

/* Numbers persistent operands: those with overlapping bytes, directly or through others, get one number. */
static int number_persistent(int *of, span *spans, int64_t count, int objects)
{
    int64_t end = INT64_MIN;
    qsort(spans, (size_t)count, sizeof *spans, compare_spans);
    for (int64_t i = 0; i < count; i++) {
        bool same = i > 0 && (spans[i].first < end || spans[i].first == spans[i - 1].first);
        objects += !same;
        end = same && end > spans[i].end ? end : spans[i].end;
        of[spans[i].operand] = objects - 1;
    }
    return objects;
}

/* Operand k of op i at [i * ORDER_OPERANDS + k], inputs first: a number below *count, the same for two operands exactly
 * where they may share bytes; -1: none. Freed by the caller. Transient tensors lose their ids. */
static int *order_objects(const program *list, int *count)
{
    int64_t all = (int64_t)list->count * ORDER_OPERANDS, persistent = 0;
    int *of = must_alloc((unsigned long)(all + 1) * sizeof *of);
    AUTO_FREE span *spans = must_alloc((unsigned long)(all + 1) * sizeof *spans);
    for (int64_t i = 0; i < all; i++) {
        tensor *t = root_of(list->ops[i / ORDER_OPERANDS], (int)(i % ORDER_OPERANDS));
        of[i] = -1;
        if (t && tensor_persistent(t)) {
            t = operand_at(list->ops[i / ORDER_OPERANDS], (int)(i % ORDER_OPERANDS));
            spans[persistent++] = (span){t->address, t->address + tensor_bytes(t), i};
        } else if (t) {
            t->id = -1; /* its id is the program's own, and free to reuse by now */
        }
    }
    *count = 0;
    for (int64_t i = 0; i < all; i++) {
        tensor *t = root_of(list->ops[i / ORDER_OPERANDS], (int)(i % ORDER_OPERANDS));
        if (!t || tensor_persistent(t))
            continue;
        if (t->id < 0)
            t->id = (*count)++;
        of[i] = t->id;
    }
    *count = number_persistent(of, spans, persistent, *count);
    return of;
}

/* ---- the check: passes through both lists once, counting accesses to each object --------------------------------- */

/* State of an op's operands when it runs. */
typedef struct found {
    const op *of;
    int at;                      /* index in its list */
    int written[ORDER_OPERANDS]; /* [operand] number of writes to its object so far */
    int read[OP_MAX_OUT];        /* [output] number of reads of its object since */
    int messages;                /* a launch's count of messages between stages and of waits for them so far */
    int launched;                /* a launch's count of collectives of its queue */
} found;

static bool is_operand(const op *o, int k)
{
    return (k < OP_MAX_IN ? o->in[k] : o->out[k - OP_MAX_IN]) != NULL;
}

static int compare_found(const void *a, const void *b)
{
    const op *x = ((const found *)a)->of, *y = ((const found *)b)->of;
    return x != y ? ((uintptr_t)x < (uintptr_t)y ? -1 : 1) : 0;
}

typedef struct counts {
    int *written, *read; /* [objects] */
    int messages, launched[AXIS_QUEUES];
} counts;

static void note_operands(found *f, counts *c, const int *objects)
{
    const op *o = f->of;
    bool communicates = op_communicates(o);
    bool message = op_waits(o) || (communicates && axis_between_stages((axis)o->where.axis));
    for (int k = 0; k < ORDER_OPERANDS; k++) {
        if (!is_operand(o, k))
            continue;
        f->written[k] = c->written[objects[k]];
        if (k >= OP_MAX_IN)
            f->read[k - OP_MAX_IN] = c->read[objects[k]];
    }
    f->messages = communicates || message ? c->messages : 0;
    c->messages += message;
    if (communicates)
        f->launched = c->launched[axis_rows[o->where.axis].queue]++;
    for (int k = 0; k < ORDER_OPERANDS; k++) {
        if (!is_operand(o, k))
            continue;
        if (k < OP_MAX_IN) {
            c->read[objects[k]]++;
        } else {
            c->written[objects[k]]++;
            c->read[objects[k]] = 0;
        }
    }
}

/* Sorts the rows by the ops' addresses, so that two lists of the same ops give matching rows. */
static found *look_through(const program *list)
{
    int objects;
    int *of = order_objects(list, &objects);
    found *all = must_calloc((unsigned long)list->count + 1, sizeof *all);
    counts c = {.written = must_calloc((unsigned long)objects + 1, sizeof(int)),
                .read = must_calloc((unsigned long)objects + 1, sizeof(int))};
    for (int i = 0; i < list->count; i++) {
        all[i].of = list->ops[i];
        all[i].at = i;
        note_operands(&all[i], &c, &of[(int64_t)i * ORDER_OPERANDS]);
    }
    qsort(all, (size_t)list->count, sizeof *all, compare_found);
    free(c.written);
    free(c.read);
    free(of);
    return all;
}

static status refuse_order(const found *x, const found *y, const char *what)
{
    char text[200];
    return status_fail(STATUS_FAILED, "op %d (%s), which was at %d: %s", y->at, op_text(text, sizeof text, x->of),
                       x->at, what);
}

static status compare_rows(const found *x, const found *y)
{
    if (x->of != y->of)
        return refuse_order(x, y, "it is missing, or in the list twice");
    for (int k = 0; k < ORDER_OPERANDS; k++)
        if (x->written[k] != y->written[k])
            return refuse_order(x, y, k < OP_MAX_IN ? "reads another value" : "writes in another turn");
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (x->read[k] != y->read[k])
            return refuse_order(x, y, "overwrites what is still to be read");
    if (x->messages != y->messages)
        return refuse_order(x, y, "has passed a message between stages");
    if (x->launched != y->launched)
        return refuse_order(x, y, "is launched in another turn");
    return STATUS_OK;
}

status order_check(const program *before, const program *after)
{
    if (before->count != after->count)
        return status_fail(STATUS_FAILED, "%d ops in order, not %d", after->count, before->count);
    found *x = look_through(before), *y = look_through(after);
    int first = -1; /* index of the wrong op */
    for (int i = 0; i < before->count; i++)
        if ((first < 0 || y[i].at < y[first].at) && compare_rows(&x[i], &y[i]) != STATUS_OK)
            first = i;
    status s = first >= 0 ? compare_rows(&x[first], &y[first]) : STATUS_OK;
    free(x);
    free(y);
    return s;
}

static bool is_halved(compile_order how)
{
    return how == ORDER_HALVED || how == ORDER_HALVED_PARTS;
}

/* ---- halves ------------------------------------------------------------------------------------------------------ */

/* The gradient of a weight as two products: its first rows and its last. Which product a half is of is its index, while
 * the list is being put in order. */

/* Rows of a tile of the usual kernels: a half that is a multiple leaves none of them partly empty. */
enum { TILE = 128, PARTS = 4 };

/* A view of rows (dim 0) or columns (1) [first, first + count) of a tensor. */
static tensor *order_part(compiled_program *out, tensor *of, int dim, int64_t first, int64_t count)
{
    tensor *v = pool_alloc(&out->pool, sizeof *v);
    *v = *of;
    v->base = tensor_root(of);
    v->producer = NULL;
    int64_t offset = first * (dim == 0 ? of->pitch : 1) * dtype_bytes((dtype)of->type);
    v->offset = of->offset + offset;
    v->address = of->address >= 0 ? of->address + offset : -1;
    v->shape[dim] = count;
    return v;
}

/* Narrows a product to its rows (PRODUCT_M) or columns (PRODUCT_N) [first, first + count): each operand that has them,
 * unless it is NULL, becomes a view. */
static void order_cut(compiled_program *out, op *product, product_side side, int64_t first, int64_t count)
{
    for (int i = 0; i < OP_MAX_IN; i++)
        if (product->in[i] && product_input_dim(product, i, side) >= 0)
            product->in[i] = order_part(out, product->in[i], product_input_dim(product, i, side), first, count);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (product->out[i])
            product->out[i] = order_part(out, product->out[i], side == PRODUCT_N, first, count);
}

static void append_half(compiled_program *out, const op *o, int of, int64_t first, int64_t count)
{
    op half = *o;
    order_cut(out, &half, PRODUCT_M, first, count);
    op *made = op_make(&out->pool, &half, 0, NULL);
    made->index = of;
    program_append(&out->list, made);
}

program order_halve(compiled_program *out)
{
    program whole = out->list;
    out->list = (program){0};
    for (int i = 0; i < whole.count; i++) {
        op *o = whole.ops[i];
        int64_t rows = product_is_free(o) ? product_of(o).m : 0, half = (rows + 1) / 2;
        if (rows > 2 * TILE)
            half = (half + TILE - 1) / TILE * TILE;
        if (rows < 2) { /* too few rows of a product: no rank of a real layer has them */
            program_append(&out->list, o);
            continue;
        }
        append_half(out, o, i, 0, half);
        append_half(out, o, i, half, rows - half);
    }
    return whole;
}

void order_join(program *list, const program *whole)
{
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        op *o = list->ops[i], *next = i + 1 < list->count ? list->ops[i + 1] : NULL;
        bool halves = next && product_is_free(o) && product_is_free(next) && next->index == o->index &&
                      o != whole->ops[o->index] && next != whole->ops[o->index];
        list->ops[count++] = halves ? whole->ops[o->index] : o;
        i += halves;
    }
    list->count = count;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* Products of the forward pass in parts, so that a transfer has a part beside it where no other product is left. Each
 * element is the sum that it was.
 *
 * - Before a reduce-scatter: by columns. While one part's sums travel the next part is computed; in the end the parts
 *   are copied side by side, since a message is contiguous.
 * - After a gather: by rows. A rank has its own rows before anything travels, and computes them first.
 */

static void append_op_like(compiled_program *out, const op *like, unsigned made)
{
    program_append(&out->list, op_make(&out->pool, like, made, NULL));
}

static tensor *last_output(const compiled_program *out)
{
    return out->list.ops[out->list.count - 1]->out[0];
}

/* Appends the sums of columns [first, first + count), contiguous. */
static tensor *append_columns(compiled_program *out, const op *product, const op *scatter, int64_t first, int64_t count)
{
    op part = *product, sums = *scatter;
    part.out[0] = sums.out[0] = NULL;
    order_cut(out, &part, PRODUCT_N, first, count);
    append_op_like(out, &part, 1);
    sums.in[0] = last_output(out);
    append_op_like(out, &sums, 1);
    out->tensors += 2;
    return last_output(out);
}

static void cut_columns(compiled_program *out, const op *product, const op *scatter)
{
    tensor *sums[PARTS], *whole = scatter->out[0];
    int64_t columns = whole->shape[1], each = (columns + PARTS - 1) / PARTS, left = columns;
    int parts = 0;
    if (columns >= PARTS * TILE)
        each = (each + TILE - 1) / TILE * TILE;
    for (; left > 0; left -= each, parts++)
        sums[parts] = append_columns(out, product, scatter, columns - left, left < each ? left : each);
    for (int i = 0; i < parts; i++) {
        op copy = *scatter;
        copy.kind = OP_copy;
        copy.where = (op_where){0};
        copy.in[0] = sums[i];
        copy.out[0] = order_part(out, whole, 1, i * each, sums[i]->shape[1]);
        append_op_like(out, &copy, 0);
    }
}

/* Appends rows of a product's operand and results; of `own`, which holds them alone, unless that is NULL. */
static void append_rows(compiled_program *out, const op *product, const tensor *own, int64_t first, int64_t count)
{
    op part = *product;
    if (count == 0)
        return;
    order_cut(out, &part, PRODUCT_M, first, count);
    if (own) {
        part.in[0]->base = tensor_root((tensor *)own);
        part.in[0]->offset = own->offset;
        part.in[0]->pitch = own->pitch;
        part.in[0]->address = own->address;
        part.in[0]->class = own->class;
    }
    append_op_like(out, &part, 0);
}

static void cut_rows(compiled_program *out, const op *gather, const op *product)
{
    int64_t rows = product_of(product).m, first, count;
    shard_rows(&first, &count, rows, gather->where.group_size, gather->where.group_rank);
    append_rows(out, product, gather->in[0], first, count);
    append_rows(out, product, NULL, 0, first);
    append_rows(out, product, NULL, first + count, rows - first - count);
}

/* Counts the operands that are each object of a list. */
static int *count_uses(int **objects, const program *list)
{
    int count;
    *objects = order_objects(list, &count);
    int *uses = must_calloc((unsigned long)count + 1, sizeof *uses);
    for (int64_t i = 0; i < (int64_t)list->count * ORDER_OPERANDS; i++)
        if ((*objects)[i] >= 0)
            uses[(*objects)[i]]++;
    return uses;
}

/* True if only the scatter reads the product's result. */
static bool makes_sums(const op *product, const op *scatter, int uses)
{
    return product->kind == OP_linear && scatter->kind == OP_reduce_scatter && scatter->in[0] == product->out[0] &&
           scatter->where.owner < 0 && uses == 2 && scatter->out[0]->shape[1] >= PARTS;
}

/* True if parts are worth it: with few columns a rank's own rows take less time than the gather, and fill no GPU. */
static bool reads_rows(const op *gather, const op *o)
{
    if (!op_is(o, OP_CLASS_PRODUCT) || op_has(o, OP_GRADIENT) || gather->kind != OP_all_gather ||
        gather->where.owner >= 0)
        return false;
    matrix_product p = product_of(o);
    return p.a == gather->out[0] && 2 * p.n >= p.k;
}

void order_parts_cut(compiled_program *out, const program *bare)
{
    program whole = out->list;
    int *objects, *uses = count_uses(&objects, &whole), at = 0;
    const op *gather = NULL; /* the last gather in parts, until its result is read */
    out->list = (program){0};
    for (int i = 0; i < whole.count; i++) {
        op *o = whole.ops[i], *next = i + 1 < whole.count ? whole.ops[i + 1] : NULL;
        const op *sought = at < bare->count ? bare->ops[at] : NULL;
        int result = objects[(int64_t)i * ORDER_OPERANDS + OP_MAX_IN];
        bool columns = next && next == sought && makes_sums(o, next, result >= 0 ? uses[result] : 0);
        bool reads = gather && o->in[0] == gather->out[0];
        if (columns)
            cut_columns(out, o, next);
        else if (reads && reads_rows(gather, o))
            cut_rows(out, gather, o);
        else
            program_append(&out->list, o);
        gather = o == sought ? o : reads ? NULL : gather;
        at += columns || o == sought;
        i += columns;
    }
    MUST(at == bare->count, "%d of %d transfers found", at, bare->count);
    free(objects);
    free(uses);
    program_free(&whole);
}

/* ---- which ops may pass which ------------------------------------------------------------------------------------ */

static bool is_collective(const op *o)
{
    return op_communicates(o) && !axis_between_stages((axis)o->where.axis);
}

/* True if the op hides a transfer. All ranks of a stage have the same such ops. */
static bool is_long(const op *o)
{
    return op_does(o, OP_LONG);
}

/* The objects of an op, and a bit for each (of 64: a bit may be several objects'), to see at once that two ops have
 * none alike. */
typedef struct uses {
    int of[ORDER_OPERANDS];
    uint64_t written, all;
} uses;

typedef struct orderer {
    program *list;
    uses *uses; /* [ops] of the list as it is now */
} orderer;

/* True if one of two ops writes an object that the other reads or writes. */
static bool ops_conflict(const orderer *o, int one, int other)
{
    const uses *a = &o->uses[one], *b = &o->uses[other];
    if (!(a->written & b->all) && !(b->written & a->all))
        return false;
    for (int i = OP_MAX_IN; i < ORDER_OPERANDS; i++)
        for (int k = 0; k < ORDER_OPERANDS; k++)
            if ((a->of[i] >= 0 && a->of[i] == b->of[k]) || (b->of[i] >= 0 && b->of[i] == a->of[k]))
                return true;
    return false;
}

static uses *find_uses(const program *list)
{
    int count;
    AUTO_FREE int *objects = order_objects(list, &count);
    uses *all = must_calloc((unsigned long)list->count, sizeof *all);
    for (int i = 0; i < list->count; i++)
        for (int k = 0; k < ORDER_OPERANDS; k++) {
            int object = all[i].of[k] = objects[(int64_t)i * ORDER_OPERANDS + k];
            uint64_t bit = object >= 0 ? (uint64_t)1 << object % 64 : 0;
            all[i].all |= bit;
            all[i].written |= k < OP_MAX_IN ? 0 : bit;
        }
    return all;
}

/* Sorts the ops by ascending place, stably. An op that stays is at STAYS(i); BEFORE(i) is before it. */
#define STAYS(i)  (2 * (i) + 1)
#define BEFORE(i) (2 * (i))

static void rearrange_ops(orderer *o, const int *place)
{
    int n = o->list->count, at = 0;
    unsigned long count = (unsigned long)n;
    AUTO_FREE int *head = must_alloc(2 * count * sizeof *head), *next = must_alloc(count * sizeof *next);
    AUTO_FREE op **ops = must_alloc(count * sizeof *ops);
    uses *moved = must_alloc(count * sizeof *moved);
    for (int i = 0; i < 2 * n; i++)
        head[i] = -1;
    for (int i = n - 1; i >= 0; i--) {
        next[i] = head[place[i]];
        head[place[i]] = i;
    }
    for (int i = 0; i < 2 * n; i++)
        for (int k = head[i]; k >= 0; k = next[k]) {
            moved[at] = o->uses[k];
            ops[at++] = o->list->ops[k];
        }
    memcpy(o->list->ops, ops, count * sizeof *ops);
    free(o->uses);
    o->uses = moved;
}

static int *as_it_is(const orderer *o)
{
    int *place = must_alloc((unsigned long)o->list->count * sizeof *place);
    for (int i = 0; i < o->list->count; i++)
        place[i] = STAYS(i);
    return place;
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

/* Returns the earliest place of the launch `at`. */
static int earliest_place(const orderer *o, int at)
{
    const op *launch = o->list->ops[at];
    int to = at;
    while (to > 0) {
        const op *above = o->list->ops[to - 1];
        bool communicates = op_communicates(above);
        if (op_waits(above) || (communicates && axis_between_stages((axis)above->where.axis)) || /* crosses stages */
            (is_collective(above) && (axis_rows[above->where.axis].queue == axis_rows[launch->where.axis].queue)) ||
            ops_conflict(o, to - 1, at))
            break;
        to--;
    }
    return to;
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* A product moves past at most this many other products: two layers'; with halves, a stage's. */
enum { WINDOW_FILLED = 8, WINDOW_HALVED = 128 };

typedef struct filler {
    orderer *o;
    int window;
    int *place;              /* [ops] new places */
    int free[WINDOW_HALVED]; /* products that may still move down to here, oldest first */
    int count;
    int *launched; /* [ops] collectives that are under way, ascending */
    int under_way;
    int last_long; /* the last long op that stays; -1 */
    bool *bare;    /* [ops], or NULL: marks launches with no long op before the op that needs them */
} filler;

static void drop_product(filler *f, int which)
{
    f->count--;
    for (int i = which; i < f->count; i++)
        f->free[i] = f->free[i + 1];
}

/* Ends the collectives that op `at` needs; true if one had no long op since its launch. */
static bool ends_bare(filler *f, int at)
{
    bool bare = false;
    int kept = 0;
    for (int i = 0; i < f->under_way; i++) {
        int launch = f->launched[i];
        if (!ops_conflict(f->o, launch, at)) {
            f->launched[kept++] = launch;
            continue;
        }
        bare |= launch > f->last_long;
        if (f->bare)
            f->bare[launch] = launch > f->last_long;
    }
    f->under_way = kept;
    return bare;
}

static void pass_op(filler *f, int at)
{
    const op *o = f->o->list->ops[at];
    /* Op `at` must find its operands done: products that it may not precede no longer move. */
    for (int i = f->count - 1; i >= 0; i--)
        if (ops_conflict(f->o, f->free[i], at))
            drop_product(f, i);
    if (ends_bare(f, at) && f->count > 0) {
        f->place[f->free[--f->count]] = BEFORE(at);
        f->last_long = at - 1;
    }
    if (is_collective(o)) {
        f->launched[f->under_way++] = at;
    } else if (product_is_free(o)) {
        if (f->count == f->window)
            drop_product(f, 0);
        f->free[f->count++] = at;
    } else if (is_long(o)) {
        f->last_long = at;
    }
}

static void fill_gaps(orderer *o, int window)
{
    int n = o->list->count;
    filler f = {.o = o, .window = window, .place = as_it_is(o), .last_long = -1};
    f.launched = must_alloc((unsigned long)n * sizeof *f.launched);
    for (int i = 0; i < n; i++)
        pass_op(&f, i);
    rearrange_ops(o, f.place);
    free(f.launched);
    free(f.place);
}

/* ---- remaining transfers ---------------------------------------------------------------------------------------- */

/* Finds the transfers within layers of the forward pass that are waited for at once, in launch order. */
static void find_bare(program *out, program *list)
{
    orderer o = {.list = list, .uses = find_uses(list)};
    filler f = {.o = &o, .last_long = -1};
    f.launched = must_alloc((unsigned long)list->count * sizeof *f.launched);
    f.bare = must_calloc((unsigned long)list->count, sizeof *f.bare);
    for (int i = 0; i < list->count; i++) {
        ends_bare(&f, i);
        if (is_collective(list->ops[i]))
            f.launched[f.under_way++] = i;
        else if (is_long(list->ops[i]))
            f.last_long = i;
    }
    for (int i = 0; i < list->count; i++)
        if (f.bare[i] && list->ops[i]->phase == PHASE_FORWARD && axis_within_layers((axis)list->ops[i]->where.axis))
            program_append(out, list->ops[i]);
    free(f.bare);
    free(f.launched);
    free(o.uses);
}

/* Cuts products of transfers that no product overlaps in an order of whole products. That order leaves out collectives
 * along other axes: a rank may gather a bias that its peers in the exchange of parts do not have. */
static void cut_bare(compiled_program *out, compile_order how)
{
    program tried = {0}, bare = {0};
    for (int i = 0; i < out->list.count; i++)
        if (!is_collective(out->list.ops[i]) || axis_within_layers((axis)out->list.ops[i]->where.axis))
            program_append(&tried, out->list.ops[i]);
    order_list(&tried, how);
    find_bare(&bare, &tried);
    order_parts_cut(out, &bare);
    program_free(&tried);
    program_free(&bare);
}

void order_micro_batches(compiled_program *out, compile_order how)
{
    program whole = {0};
    bool communicates = false; /* every rule of order moves ops for a transfer */
    for (int i = 0; i < out->list.count; i++)
        communicates |= op_communicates(out->list.ops[i]);
    if (!communicates)
        return;
    if (is_halved(how))
        whole = order_halve(out);
    if (how >= ORDER_EARLY_PARTS)
        cut_bare(out, how);
    program lowered = {0};
    for (int i = 0; i < out->list.count; i++)
        program_append(&lowered, out->list.ops[i]);
    order_list(&out->list, how);
    MUST(order_check(&lowered, &out->list) == STATUS_OK, "%s", status_message());
    if (is_halved(how))
        order_join(&out->list, &whole);
    program_free(&lowered);
    program_free(&whole);
}

void order_list(program *list, compile_order how)
{
    if (how == ORDER_AS_LOWERED || list->count == 0)
        return;
    orderer o = {.list = list, .uses = find_uses(list)};
    AUTO_FREE int *place = as_it_is(&o);
    for (int i = 0; i < o.list->count; i++)
        if (is_collective(o.list->ops[i])) {
            int to = earliest_place(&o, i);
            place[i] = to < i ? BEFORE(to) : STAYS(i);
        }
    rearrange_ops(&o, place);
    if (how != ORDER_EARLY && how != ORDER_EARLY_PARTS)
        fill_gaps(&o, is_halved(how) ? WINDOW_HALVED : WINDOW_FILLED);
    free(o.uses);
}
