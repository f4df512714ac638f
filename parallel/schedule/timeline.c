/* The drawing for the terminal; that for a file is in timeline_svg.c. */
#include "parallel/schedule/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "memory/log.h"

enum { WIDTH_DEFAULT = 120, WIDTH_LEAST = 60, UNIT_LEAST = 2, UNIT_MOST = 4, RESULTS = 25, GAP = 5 };

/* Letter and ANSI colours (text; background for even and odd chunks) of an action. */
static const struct {
    char letter[2]; /* of even, of odd chunks */
    const char *colour[2];
} looks[ACTION_KINDS] = {
    [ACTION_FORWARD] = {{'F', 'f'}, {"\033[30;104m", "\033[97;44m"}},
    [ACTION_BACKWARD] = {{'B', 'b'}, {"\033[30;102m", "\033[97;42m"}},
    [ACTION_BACKWARD_INPUT] = {{'I', 'i'}, {"\033[30;106m", "\033[97;46m"}},
    [ACTION_BACKWARD_WEIGHT] = {{'W', 'w'}, {"\033[30;103m", "\033[30;43m"}},
};

/* Of a divided vocabulary: the head's forward, loss and weights' gradient, and the embedding's two. */
static const char vocabulary_letters[SCHEDULE_SHARED][ACTION_KINDS] = {
    [SCHEDULE_HEAD] = {[ACTION_FORWARD] = 'H',
                       [ACTION_BACKWARD] = 'L',
                       [ACTION_BACKWARD_INPUT] = 'L',
                       [ACTION_BACKWARD_WEIGHT] = 'V'},
    [SCHEDULE_EMBEDDING] = {[ACTION_FORWARD] = 'E', [ACTION_BACKWARD] = 'e'},
};

static char letter_of(const schedule *s, action a)
{
    int shared = a.chunk - s->chunks;
    return shared < 0 ? looks[a.kind].letter[a.chunk % 2] : vocabulary_letters[shared][a.kind];
}

/* One stage's row in columns of time: the character and the look of each; look -1: idle. */
typedef struct row {
    char *text;
    signed char *look; /* kind * 2 + chunk % 2 */
} row;

timeline_style timeline_style_of(FILE *out)
{
    timeline_style style = {.width = WIDTH_DEFAULT, .colour = false};
    struct winsize size;
    if (!isatty(fileno(out)))
        return style;
    if (!ioctl(fileno(out), TIOCGWINSZ, &size) && size.ws_col > 0)
        style.width = size.ws_col;
    style.colour = !getenv("NO_COLOR");
    return style;
}

static void fill_row(row *out, const simulation *sim, int stage, int columns, double scale)
{
    memset(out->text, '.', columns);
    memset(out->look, -1, columns);
    for (int i = 0; i < sim->schedule->counts[stage]; i++) {
        action a = sim->schedule->actions[stage][i];
        int from = (int)lround(sim->spans[stage][i].start * scale), to = (int)lround(sim->spans[stage][i].end * scale);
        int width = (to < columns ? to : columns) - from;
        if (width < 1)
            continue;
        char digits[16];
        int n = snprintf(digits, sizeof digits, "%d", a.microbatch);
        int fit = n < width - 1 ? n : width - 1; /* the last digits, if not all */
        memset(out->text + from, '-', width);
        memset(out->look + from, a.kind * 2 + a.chunk % 2, width);
        out->text[from] = letter_of(sim->schedule, a);
        memcpy(out->text + from + 1, digits + n - fit, fit);
    }
}

static void print_columns(FILE *out, const row *r, int from, int to, bool colour)
{
    signed char look = -1;
    for (int i = from; i < to; i++) {
        if (colour && r->look[i] != look) {
            look = r->look[i];
            fputs(look < 0 ? "\033[0m" : looks[look / 2].colour[look % 2], out);
        }
        fputc(r->text[i], out);
    }
    if (look >= 0)
        fputs("\033[0m", out);
}

static void print_legend(FILE *out, const simulation *sim)
{
    const schedule *s = sim->schedule;
    fprintf(out, "%s: %d stage%s", schedule_name(s->kind), s->stages, s->stages == 1 ? "" : "s");
    if (s->chunks > 1)
        fprintf(out, " x %d", s->chunks);
    fprintf(out, ", %d micro-batch%s, bubble %.1f%%\n", s->microbatches, s->microbatches == 1 ? "" : "es",
            100 * sim->bubble);
    if (s->shared)
        fputs("H, L, V: each stage's part of the head, its loss and its weights' gradient; E, e: of the embedding\n",
              out);
}

/* The time that `each` columns stand for: the shortest action's, unless the others would be endless beside it: then the
 * mean, and of what is mostly waiting, as much as the most columns need. */
static double unit_of(const simulation *sim)
{
    enum { MOST = 100000 };
    double busy = 0, count = 0, unit = sim->shortest;
    for (int i = 0; i < sim->schedule->stages; i++) {
        busy += sim->stages[i].busy;
        count += sim->schedule->counts[i];
    }
    if (unit * MOST < sim->length && count > 0)
        unit = busy / count;
    return fmax(unit, sim->length / MOST);
}

void timeline_print(FILE *out, const simulation *sim, timeline_style style)
{
    const schedule *s = sim->schedule;
    int width = style.width > WIDTH_LEAST ? style.width : WIDTH_LEAST;
    int digits = snprintf(NULL, 0, "%d", s->stages - 1), label = digits + (int)sizeof "stage  |" - 1;
    int room = width - label - RESULTS;
    double unit = unit_of(sim), units = unit > 0 ? sim->length / unit : 0;
    int each = units > 0 ? (int)fmin(room / units, UNIT_MOST) : UNIT_LEAST;
    each = each < UNIT_LEAST ? UNIT_LEAST : each;
    int columns = (int)lround(units * each), head = columns, tail = 0;
    if (columns > room) {
        head = (room - GAP + 1) / 2;
        tail = room - GAP - head;
    }
    row r = {.text = must_alloc(columns + 1), .look = must_alloc(columns + 1)};
    print_legend(out, sim);
    fprintf(out, "%-*s%7s %9s %6s\n", label + 1 + (tail ? room : columns),
            s->chunks > 1 ? "lower case: odd virtual stages" : "", "bubble", "in flight", "peak");
    for (int stage = 0; stage < s->stages; stage++) {
        const simulate_stage *st = &sim->stages[stage];
        fill_row(&r, sim, stage, columns, unit > 0 ? each / unit : 0);
        fprintf(out, "stage %*d |", digits, stage);
        print_columns(out, &r, 0, head, style.colour);
        if (tail) {
            fputs(" ... ", out);
            print_columns(out, &r, columns - tail, columns, style.colour);
        }
        fprintf(out, "|%6.1f%% %9d %6.2f\n", 100 * st->bubble, st->in_flight, st->peak);
    }
    free(r.text);
    free(r.look);
}
