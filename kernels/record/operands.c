#include "kernels/record/operands.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kernels/record/parameter.h"
#include "memory/log.h"

/* ---- refusal ------------------------------------------------------------------------------------------------- */

/* An entry of an operand list, "x w bias? y+": the operand's name and its marks: ?, + or =. */
typedef struct operand {
    const char *name;
    int length, marks; /* characters of the name, 0: there is none; characters of the marks that follow it */
} operand;

/* Reads the first entry of a list, which may be empty; *rest moves past it. */
static operand take_operand(const char **rest)
{
    operand o = {.name = *rest};
    o.length = (int)strcspn(o.name, " ?+=");
    o.marks = (int)strcspn(o.name + o.length, " ");
    const char *end = o.name + o.length + o.marks;
    *rest = end + (*end == ' ');
    return o;
}

static bool is_marked(const operand *o, char mark)
{
    return memchr(o->name + o->length, mark, (size_t)o->marks);
}

/* Properties of operands in the rows of the op table, a bit each; texts are read once, since ops are made by the
 * hundred thousand. */
typedef struct operand_bits {
    uint8_t named, optional, described;
} operand_bits;

static operand_bits in_bits[OP_COUNT], out_bits[OP_COUNT];
_Static_assert(OP_MAX_IN <= 8 && OP_MAX_OUT <= 8, "an operand has a bit of its own");

static operand_bits bits_of(const char *names, int count)
{
    operand_bits bits = {0};
    bool any = names[0] == '*';
    for (int i = 0; i < count; i++) {
        operand o = take_operand(&names);
        bits.named |= (uint8_t)((any || o.length > 0) << i);
        bits.optional |= (uint8_t)((any || o.length == 0 || is_marked(&o, '?')) << i);
        bits.described |= (uint8_t)((any || is_marked(&o, '+') || is_marked(&o, '=')) << i);
    }
    return bits;
}

static void read_rows(void)
{
    for (int i = 0; i < OP_COUNT; i++) {
        in_bits[i] = bits_of(op_rows[i].in_names, OP_MAX_IN);
        out_bits[i] = bits_of(op_rows[i].out_names, OP_MAX_OUT);
    }
}

static const operand_bits *row_bits(const operand_bits *of, const op *o)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_rows);
    return &of[o->kind];
}

bool operands_described(const op *o, int i)
{
    return row_bits(out_bits, o)->described >> i & 1;
}

const char *operands_text(char *out, int bytes, const tensor *t)
{
    static const char *const kinds[] = {"", "shared", "shard", "partial", "owned"};
    tensor_text(out, bytes, t);
    int used = (int)strlen(out);
    for (int slot = 0; slot < AXIS_SLOTS; slot++) {
        placement p = t->place.along[slot];
        char dim[8] = "";
        if (p.kind == PLACE_SHARD)
            snprintf(dim, sizeof dim, "(%d)", p.dim);
        if (p.kind != PLACE_REPLICATE && used < bytes)
            used += snprintf(out + used, (size_t)(bytes - used), " %s:%s%s", axis_slot_name(slot), kinds[p.kind], dim);
    }
    return out;
}

static int add_operands(char *out, int used, int bytes, const char *names, tensor *const *operands, int count)
{
    for (int i = 0; i < count && used < bytes; i++) {
        char text[256];
        operand at = take_operand(&names);
        if (operands[i])
            used += snprintf(out + used, (size_t)(bytes - used), " %.*s %s", at.length, at.name,
                             operands_text(text, sizeof text, operands[i]));
    }
    return used;
}

_Noreturn void operands_refuse(const op *o, const char *file, int line, const char *condition, const char *why)
{
    char label[256], operands[2048];
    int used = add_operands(operands, 0, sizeof operands, op_row_of(o)->in_names, o->in, OP_MAX_IN);
    if (used < (int)sizeof operands)
        used += snprintf(operands + used, sizeof operands - (size_t)used, " ->");
    /* an output not described yet matches any */
    tensor *described[OP_MAX_OUT] = {0};
    for (int i = 0; i < OP_MAX_OUT; i++)
        described[i] = operands_described(o, i) ? o->out[i] : NULL;
    if (used < (int)sizeof operands)
        add_operands(operands, used, sizeof operands, op_row_of(o)->out_names, described, OP_MAX_OUT);
    log_die(file, line, condition, "%s of%s: %s", op_text(label, sizeof label, o), operands, why);
}

/* True if each given operand is named, and each that is not optional is given. */
static bool are_due(const operand_bits *bits, tensor *const *given, int count)
{
    bool due = true;
    for (int i = 0; i < count; i++)
        due &= (given[i] ? bits->named : bits->optional) >> i & 1;
    return due;
}

void operands_infer(op *o)
{
    OPERANDS_CHECK(are_due(row_bits(in_bits, o), o->in, OP_MAX_IN), "an input is missing or one too many");
    OPERANDS_CHECK(are_due(row_bits(out_bits, o), o->out, OP_MAX_OUT), "an output is missing or one too many");
    op_row_of(o)->infer(o);
}

/* ---- placements ---------------------------------------------------------------------------------------------- */

static char place_letter(placement p)
{
    switch ((placement_kind)p.kind) {
    case PLACE_SHARED:
        return 's';
    case PLACE_PARTIAL:
        return 'p';
    case PLACE_SHARD:
        return (char)('0' + p.dim);
    case PLACE_OWNED:
        return 'o';
    case PLACE_REPLICATE:
        break;
    }
    return 'r';
}

static placement letter_place(char letter)
{
    if (isdigit((unsigned char)letter))
        return place_shard(letter - '0');
    return letter == 's'                    ? place_shared()
           : letter == 'p'                  ? place_partial()
           : letter == 'b' || letter == 't' ? place_shard(0)
           : letter == 'o'                  ? place_owned()
                                            : place_replicate();
}

static bool letter_matches(char letter, const tensor *t, int slot)
{
    if (!t || letter == '.')
        return true;
    char is = place_letter(t->place.along[slot]);
    if (letter == 'b')
        return is == '0' && slot < AXIS_COORDINATES && axis_coordinates[slot].divides == AXIS_DIVIDES_SAMPLES;
    if (letter == 't')
        return is == '0' && slot < AXIS_COORDINATES && axis_divides_activations(slot);
    return letter != '-' && letter == is;
}

/* Sets the outputs by the first rule that matches; false if none does. */
static bool place_by_rules(op *o, int slot, const char *rules)
{
    for (const char *rule = rules; rule; rule = strchr(rule, ' ')) {
        rule += *rule == ' ';
        const char *letters = rule;
        bool matches = true;
        for (int i = 0; letters[0] != '>'; i++, letters++)
            matches &= letter_matches(letters[0], o->in[i], slot);
        letters++;
        for (int i = 0; letters[i] && letters[i] != ' '; i++)
            matches &= !operands_described(o, i) || letter_matches(letters[i], o->out[i], slot);
        if (!matches)
            continue;
        for (int i = 0; letters[i] && letters[i] != ' '; i++)
            if (o->out[i] && !operands_described(o, i))
                o->out[i]->place.along[slot] = letter_place(letters[i]);
        return true;
    }
    return false;
}

static int count_inputs(const op *o, int slot, placement_kind kind)
{
    int n = 0;
    for (int i = 0; i < OP_MAX_IN; i++)
        n += o->in[i] && o->in[i]->place.along[slot].kind == kind;
    return n;
}

/* True if an input is a partial sum along the axis, where the op takes none or adds to a value that is not partial. */
static bool sum_is_missing(const op *o, int slot, const char *rules)
{
    if (count_inputs(o, slot, PLACE_PARTIAL) == 0)
        return false;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o->out[i] && operands_described(o, i) && o->out[i]->place.along[slot].kind != PLACE_PARTIAL)
            return true;
    return !strchr(rules, 'p');
}

static _Noreturn void refuse_placement(const op *o, int slot, const char *rules)
{
    char why[320];
    const char *name = axis_slot_name(slot);
    if (sum_is_missing(o, slot, rules))
        snprintf(why, sizeof why,
                 "an input is still a partial sum along the %s axis, and must be the sum: a reduction is missing "
                 "(placements %s)",
                 name, rules);
    else
        snprintf(why, sizeof why,
                 "placements along the %s axis must be one of %s (inputs > outputs; r replicate, s shared, p partial, "
                 "digit shard, b samples, t tokens)",
                 name, rules);
    operands_refuse(o, __FILE__, __LINE__, "placement", why);
}

/* If some inputs exist on the owner only and the rest are replicated, only the owner computes. */
static bool owner_alone(op *o, int slot)
{
    int owned = count_inputs(o, slot, PLACE_OWNED), inputs = 0;
    for (int i = 0; i < OP_MAX_IN; i++)
        inputs += o->in[i] != NULL;
    if (owned == 0 || owned + count_inputs(o, slot, PLACE_REPLICATE) < inputs)
        return false;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o->out[i] && !operands_described(o, i))
            o->out[i]->place.along[slot] = place_owned();
    return true;
}

/* Places outputs where all inputs are replicated: no rule is needed, if outputs are replicated, too. Along some axes
 * each rank computes with its own values, and only sums relate them to others' values. */
static bool all_replicate(op *o, int slot)
{
    const bool apart = slot >= AXIS_COORDINATES || axis_coordinates[slot].divides == AXIS_DIVIDES_LAYERS;
    for (int i = 0; i < OP_MAX_IN; i++)
        if (o->in[i] && o->in[i]->place.along[slot].kind != PLACE_REPLICATE)
            return false;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!o->out[i])
            continue;
        if (!operands_described(o, i))
            o->out[i]->place.along[slot] = place_replicate();
        else if (!apart && o->out[i]->place.along[slot].kind != PLACE_REPLICATE)
            return false;
    }
    return true;
}

void operands_place(op *o, const char *rules)
{
    for (int slot = 0; slot < AXIS_SLOTS; slot++)
        if (!all_replicate(o, slot) && !owner_alone(o, slot) && !place_by_rules(o, slot, rules))
            refuse_placement(o, slot, rules);
}

/* ---- communication ------------------------------------------------------------------------------------------- */

/* "tensor and data"; "" for no axis */
static const char *partial_along(char out[128], const tensor *x)
{
    int used = 0;
    out[0] = 0;
    for (int slot = 0; slot < AXIS_SLOTS; slot++)
        if (x->place.along[slot].kind == PLACE_PARTIAL && used < 128)
            used += snprintf(out + used, (size_t)(128 - used), "%s%s", used ? " and " : "", axis_slot_name(slot));
    return out;
}

static _Noreturn void refuse_communication(const op *o, const char *rules)
{
    char why[400], along[128];
    const tensor *x = o->in[0];
    const char *name = axis_name((axis)o->where.axis);
    bool was = x->parameter && (x->parameter->sums & axis_slots((axis)o->where.axis));
    partial_along(along, x);
    if (rules[0] != 'p')
        snprintf(why, sizeof why, "placements along the %s axis must be one of %s", name, rules);
    else if (was || !along[0])
        snprintf(why, sizeof why, "x is the sum along the %s axis already: it is reduced twice", name);
    else
        snprintf(why, sizeof why,
                 "x is a partial sum along %s, not along the %s axis: it is reduced along the wrong axis", along, name);
    operands_refuse(o, __FILE__, __LINE__, "placement", why);
}

void operands_place_along(op *o, const char *rules)
{
    unsigned slots = axis_slots((axis)o->where.axis);
    bool changed = false;
    o->out[0]->place = o->in[0]->place;
    o->out[0]->parameter = o->in[0]->parameter;
    if (o->where.group_size == 1)
        return;
    for (int slot = 0; slot < AXIS_SLOTS; slot++) {
        bool whole = o->in[0]->place.along[slot].kind == PLACE_REPLICATE, alone = !(o->where.slots >> slot & 1);
        if (!(slots >> slot & 1) || (whole && alone && rules[0] != 'r'))
            continue;
        if (!place_by_rules(o, slot, rules))
            refuse_communication(o, rules);
        changed = true;
    }
    if (!changed)
        refuse_communication(o, rules);
}

void operands_placed_as(const tensor *t, const placements *expected)
{
    char text[256];
    for (int slot = 0; slot < AXIS_SLOTS; slot++) {
        placement is = t->place.along[slot], as = expected->along[slot];
        MUST(
            is.kind == as.kind && is.dim == as.dim,
            "%s, %s, is handed over: along %s its placement must be %c (r replicate, s shared, p partial, digit shard)",
            t->name, operands_text(text, sizeof text, t), axis_slot_name(slot), place_letter(as));
    }
}

void operands_whole(const tensor *t)
{
    char along[128];
    MUST(!*partial_along(along, t), "%s is read as a whole, but is a partial sum along %s: a reduction is missing",
         t->name, along);
}
