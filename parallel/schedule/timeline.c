#include "parallel/schedule/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "memory/log.h"

enum { WIDTH_DEFAULT = 120, WIDTH_LEAST = 60, UNIT_LEAST = 2, UNIT_MOST = 4, RESULTS = 25, GAP = 5 };

/* Letter and ANSI colours (text; background for even and odd chunks) of an action. */
static const struct {
    char letter[2]; /* even, odd chunks */
    const char *colour[2];
} looks[ACTION_KINDS] = {
    [ACTION_FORWARD] = {{'F', 'f'}, {"\033[30;104m", "\033[97;44m"}},
    [ACTION_BACKWARD] = {{'B', 'b'}, {"\033[30;102m", "\033[97;42m"}},
    [ACTION_BACKWARD_INPUT] = {{'I', 'i'}, {"\033[30;106m", "\033[97;46m"}},
    [ACTION_BACKWARD_WEIGHT] = {{'W', 'w'}, {"\033[30;103m", "\033[30;43m"}},
};

/* Letters of a divided vocabulary: the head's forward, loss and weights' gradient, and the embedding's two. */
static const char vocabulary_letters[SCHEDULE_SHARED][ACTION_KINDS] = {
    [SCHEDULE_HEAD] = {[ACTION_FORWARD] = 'H',
                       [ACTION_BACKWARD] = 'L',
                       [ACTION_BACKWARD_INPUT] = 'L',
                       [ACTION_BACKWARD_WEIGHT] = 'V'},
    [SCHEDULE_EMBEDDING] = {[ACTION_FORWARD] = 'E', [ACTION_BACKWARD] = 'e'},
};

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
        int shared = a.chunk - sim->schedule->chunks;
        out->text[from] = shared < 0 ? looks[a.kind].letter[a.chunk % 2] : vocabulary_letters[shared][a.kind];
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

/* The time that `each` columns stand for: the shortest action's, or the mean if that took too many columns, and at
 * least the length over the most columns. */
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

/* ---- SVG: plain 1.1, one group per stage, colours by class; pixels ---- */

enum {
    LEFT = 76,
    TOP = 64,
    ROW = 30,
    BAR = 24,
    RIGHT = 190,
    AXIS = 24,
    TICK = 100, /* pixels between two ticks, at the least */
    BOTTOM = AXIS + 46,
    WIDEST = 6000,
    SVG_UNIT_LEAST = 14,
    SVG_UNIT_MOST = 30
};

static const struct {
    const char *class, *label;
    const char *shade[3]; /* shades by chunk */
} svg_looks[ACTION_KINDS] = {
    [ACTION_FORWARD] = {"f", "forward", {"#7fb2e5", "#a9cdf0", "#5b93cc"}},
    [ACTION_BACKWARD] = {"b", "backward", {"#8ccf8a", "#b5e2b3", "#63b060"}},
    [ACTION_BACKWARD_INPUT] = {"i", "backward-input", {"#6fc7c0", "#a5dfda", "#48a8a0"}},
    [ACTION_BACKWARD_WEIGHT] = {"w", "backward-weight", {"#f0b86c", "#f7d6a6", "#d99a42"}},
};
enum { SHADES = 3 };

static void write_style(FILE *out)
{
    fputs("<style>text{font-family:sans-serif;font-size:12px;fill:#222}.n{font-size:9.5px;text-anchor:middle}"
          ".v{stroke:#333;stroke-width:1}.t{font-size:15px;font-weight:bold}.h{fill:#666}.idle{fill:#f1f1f1}.axis "
          "line{stroke:#888}rect{stroke:#fff;stroke-width:.6}",
          out);
    for (int k = 0; k < ACTION_KINDS; k++)
        for (int shade = 0; shade < SHADES; shade++)
            fprintf(out, ".%s%d{fill:%s}", svg_looks[k].class, shade, svg_looks[k].shade[shade]);
    fputs("</style>\n", out);
}

static void write_stage(FILE *out, const simulation *sim, int stage, double scale)
{
    const schedule *s = sim->schedule;
    const simulate_stage *st = &sim->stages[stage];
    double right = LEFT + sim->length * scale;
    int top = TOP + stage * ROW, baseline = top + 16;
    fprintf(out, "<g><text x=\"12\" y=\"%d\">stage %d</text>\n", baseline, stage);
    fprintf(out, "<rect class=\"idle\" x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>\n", LEFT, top, right - LEFT,
            BAR);
    for (int i = 0; i < s->counts[stage]; i++) {
        action a = s->actions[stage][i];
        simulate_span t = sim->spans[stage][i];
        char digits[16];
        int n = snprintf(digits, sizeof digits, "%d", a.microbatch);
        double x = LEFT + t.start * scale, width = (t.end - t.start) * scale;
        bool shared = a.chunk >= s->chunks;
        fprintf(out, "<rect class=\"%s%d%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>",
                svg_looks[a.kind].class, shared ? 0 : a.chunk % SHADES, shared ? " v" : "", x, top, width, BAR);
        if (width >= 6.0 * n)
            fprintf(out, "<text class=\"n\" x=\"%.2f\" y=\"%d\">%s</text>", x + width / 2, baseline, digits);
        fputc('\n', out);
    }
    fprintf(out,
            "<text x=\"%.0f\" y=\"%d\">%.1f%%</text><text x=\"%.0f\" y=\"%d\">%d</text>"
            "<text x=\"%.0f\" y=\"%d\">%.2f</text></g>\n",
            right + 12, baseline, 100 * st->bubble, right + 72, baseline, st->in_flight, right + 136, baseline,
            st->peak);
}

/* Writes the axis in seconds: the step between two ticks is 1, 2 or 5 of a power of ten. */
static void write_axis(FILE *out, const simulation *sim, double scale, int y)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}};
    double least = TICK / scale, step = pow(10, floor(log10(least)));
    step *= step >= least ? 1 : 2 * step >= least ? 2 : 5 * step >= least ? 5 : 10;
    int u = step >= 0.1 ? 0 : step >= 1e-4 ? 1 : 2;
    fprintf(out, "<g><line x1=\"%d\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\"/>\n", LEFT, LEFT + sim->length * scale, y, y);
    for (int i = 0; i * step <= sim->length * (1 + 1e-9) && sim->length > 0; i++) {
        double x = LEFT + i * step * scale;
        fprintf(
            out,
            "<line x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\"/><text class=\"n\" x=\"%.2f\" y=\"%d\">%g %s</text>\n",
            x, x, y, y + 5, x, y + 16, i * step / units[u].unit, units[u].name);
    }
    fputs("</g>\n", out);
}

static void write_legend(FILE *out, const simulation *sim, int y)
{
    const schedule *s = sim->schedule;
    bool split = schedule_splits(s);
    int x = LEFT;
    for (int k = 0; k < ACTION_KINDS; k++) {
        if (k != ACTION_FORWARD && (k == ACTION_BACKWARD) == split)
            continue;
        for (int shade = 0; shade < SHADES && shade < s->chunks; shade++, x += 16)
            fprintf(out, "<rect class=\"%s%d\" x=\"%d\" y=\"%d\" width=\"14\" height=\"14\"/>", svg_looks[k].class,
                    shade, x, y);
        fprintf(out, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + 4, y + 12, svg_looks[k].label);
        x += 24 + 8 * (int)strlen(svg_looks[k].label);
    }
    if (s->shared)
        fprintf(out, "<text x=\"%d\" y=\"%d\">outlined: head and embedding</text>\n", x + 4, y + 12);
}

void timeline_svg(FILE *out, const void *what)
{
    const simulation *sim = what;
    const schedule *s = sim->schedule;
    double unit = sim->shortest > 0 ? sim->shortest : 1, units = fmax(sim->length / unit, 1);
    /* pixels per unit of time: wide enough for a number in the shortest action, unless the picture became too wide */
    double scale = fmin(fmin(fmax(1200 / units, SVG_UNIT_LEAST), SVG_UNIT_MOST), WIDEST / units) / unit;
    double right = LEFT + sim->length * scale;
    int height = TOP + s->stages * ROW + BOTTOM;
    int width = (int)fmax(right + RIGHT, 640);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            width, height, width, height);
    write_style(out);
    fprintf(out, "<text class=\"t\" x=\"12\" y=\"26\">%s: %d stages", schedule_name(s->kind), s->stages);
    if (s->chunks > 1)
        fprintf(out, " of %d virtual stages", s->chunks);
    fprintf(out, ", %d micro-batches, bubble %.1f%%</text>\n", s->microbatches, 100 * sim->bubble);
    fprintf(out,
            "<text class=\"h\" x=\"%.0f\" y=\"54\">bubble</text><text class=\"h\" x=\"%.0f\" y=\"54\">in flight</text>"
            "<text class=\"h\" x=\"%.0f\" y=\"54\">peak</text>\n",
            right + 12, right + 72, right + 136);
    for (int stage = 0; stage < s->stages; stage++)
        write_stage(out, sim, stage, scale);
    write_axis(out, sim, scale, TOP + s->stages * ROW);
    write_legend(out, sim, TOP + s->stages * ROW + AXIS + 14);
    fputs("</svg>\n", out);
}
