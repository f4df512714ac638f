/* The drawing for a file: plain SVG 1.1, one group per stage, colours by class. */
#include "parallel/schedule/timeline.h"

#include <math.h>
#include <string.h>

/* Pixels. */
enum {
    LEFT = 76,
    TOP = 64,
    ROW = 30,
    BAR = 24,
    RIGHT = 190,
    AXIS = 24,
    TICK = 100, /* between two, at the least */
    BOTTOM = AXIS + 46,
    WIDEST = 6000,
    UNIT_LEAST = 14,
    UNIT_MOST = 30
};

static const struct {
    const char *class, *label;
    const char *shade[3]; /* by chunk */
} looks[ACTION_KINDS] = {
    [ACTION_FORWARD] = {"f", "forward", {"#7fb2e5", "#a9cdf0", "#5b93cc"}},
    [ACTION_BACKWARD] = {"b", "backward", {"#8ccf8a", "#b5e2b3", "#63b060"}},
    [ACTION_BACKWARD_INPUT] = {"i", "backward-input", {"#6fc7c0", "#a5dfda", "#48a8a0"}},
    [ACTION_BACKWARD_WEIGHT] = {"w", "backward-weight", {"#f0b86c", "#f7d6a6", "#d99a42"}},
};
enum { SHADES = 3 };

/* Pixels per unit of time: wide enough for a number in the shortest action, unless the picture would be endless. */
static double scale_of(const simulation *sim)
{
    double unit = sim->shortest > 0 ? sim->shortest : 1, units = sim->length / unit;
    double pixels = fmin(fmax(1200 / fmax(units, 1), UNIT_LEAST), UNIT_MOST);
    return fmin(pixels, WIDEST / fmax(units, 1)) / unit;
}

static void write_style(FILE *out)
{
    fputs("<style>text{font-family:sans-serif;font-size:12px;fill:#222}.n{font-size:9.5px;text-anchor:middle}"
          ".v{stroke:#333;stroke-width:1}.t{font-size:15px;font-weight:bold}.h{fill:#666}.idle{fill:#f1f1f1}.axis "
          "line{stroke:#888}rect{stroke:#fff;stroke-width:.6}",
          out);
    for (int k = 0; k < ACTION_KINDS; k++)
        for (int shade = 0; shade < SHADES; shade++)
            fprintf(out, ".%s%d{fill:%s}", looks[k].class, shade, looks[k].shade[shade]);
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
        fprintf(out, "<rect class=\"%s%d%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>", looks[a.kind].class,
                shared ? 0 : a.chunk % SHADES, shared ? " v" : "", x, top, width, BAR);
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

/* Times are seconds: the step between two ticks is 1, 2 or 5 of a power of ten. */
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
            fprintf(out, "<rect class=\"%s%d\" x=\"%d\" y=\"%d\" width=\"14\" height=\"14\"/>", looks[k].class, shade,
                    x, y);
        fprintf(out, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + 4, y + 12, looks[k].label);
        x += 24 + 8 * (int)strlen(looks[k].label);
    }
    if (s->shared)
        fprintf(out, "<text x=\"%d\" y=\"%d\">outlined: head and embedding</text>\n", x + 4, y + 12);
}

void timeline_svg(FILE *out, const simulation *sim)
{
    const schedule *s = sim->schedule;
    double scale = scale_of(sim), right = LEFT + sim->length * scale;
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
