#include "kernels/operands.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "memory/log.h"

/* ---- refusal ------------------------------------------------------------------------------------------------- */

/* The name of operand i in a list like "x w bias?", its marks in *marks ("", "?", "+", "=" or "?+"). */
static void operand_name(char name[32], char marks[3], const char *names, int i)
{
    name[0] = marks[0] = 0;
    while (i-- > 0 && (names = strchr(names, ' ')))
        names++;
    if (!names)
        return;
    int length = (int)strcspn(names, " ?+=");
    snprintf(name, 32, "%.*s", length, names);
    snprintf(marks, 3, "%.*s", (int)strcspn(names + length, " "), names + length);
}

bool operands_described(const op *o, int i)
{
    char name[32], marks[3];
    operand_name(name, marks, op_row_of(o)->out_names, i);
    return strchr(marks, '+') || strchr(marks, '=') || op_row_of(o)->out_names[0] == '*';
}

static int add_operands(char *out, int used, int bytes, const char *names, tensor *const *operands, int count)
{
    for (int i = 0; i < count && used < bytes; i++) {
        char name[32], marks[3], text[128];
        operand_name(name, marks, names, i);
        if (operands[i])
            used += snprintf(out + used, (size_t)(bytes - used), " %s %s", name,
                             tensor_text(text, sizeof text, operands[i]));
    }
    return used;
}

_Noreturn void operands_refuse(const op *o, const char *file, int line, const char *condition, const char *why)
{
    char label[256], operands[1024];
    int used = add_operands(operands, 0, sizeof operands, op_row_of(o)->in_names, o->in, OP_MAX_IN);
    if (used < (int)sizeof operands)
        used += snprintf(operands + used, sizeof operands - (size_t)used, " ->");
    /* an output not described yet says nothing */
    tensor *described[OP_MAX_OUT] = {0};
    for (int i = 0; i < OP_MAX_OUT; i++) {
        described[i] = operands_described(o, i) ? o->out[i] : NULL;
    }
    if (used < (int)sizeof operands)
        add_operands(operands, used, sizeof operands, op_row_of(o)->out_names, described, OP_MAX_OUT);
    log_die(file, line, condition, "%s of%s: %s", op_text(label, sizeof label, o), operands, why);
}

void operands_present(const op *o)
{
    char name[32], marks[3];
    for (int i = 0; i < OP_MAX_IN; i++) {
        operand_name(name, marks, op_row_of(o)->in_names, i);
        OPERANDS_CHECK(o->in[i] ? name[0] : !name[0] || marks[0] == '?', "an input is missing or one too many");
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        operand_name(name, marks, op_row_of(o)->out_names, i);
        OPERANDS_CHECK(o->out[i] ? name[0] : !name[0] || marks[0] == '?', "an output is missing or one too many");
    }
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
    case PLACE_REPLICATE:
        break;
    }
    return 'r';
}

static placement letter_place(char letter)
{
    if (isdigit((unsigned char)letter))
        return place_shard(letter - '0');
    return letter == 's' ? place_shared() : letter == 'p' ? place_partial() : place_replicate();
}

static bool letter_matches(char letter, const tensor *t)
{
    return !t || letter == '.' || (letter != '-' && letter == place_letter(t->place));
}

void operands_place(op *o, const char *rules)
{
    for (const char *rule = rules; rule; rule = strchr(rule, ' ')) {
        rule += *rule == ' ';
        const char *letters = rule;
        bool matches = true;
        for (int i = 0; letters[0] != '>'; i++, letters++)
            matches &= letter_matches(letters[0], o->in[i]);
        letters++;
        for (int i = 0; letters[i] && letters[i] != ' '; i++)
            matches &= !operands_described(o, i) || letter_matches(letters[i], o->out[i]);
        if (!matches)
            continue;
        for (int i = 0; letters[i] && letters[i] != ' '; i++)
            if (o->out[i] && !operands_described(o, i))
                o->out[i]->place = letter_place(letters[i]);
        return;
    }
    char why[256];
    snprintf(why, sizeof why,
             "placements must be one of %s (inputs > outputs; r replicate, s shared, p partial, digit shard)", rules);
    operands_refuse(o, __FILE__, __LINE__, "placement", why);
}
