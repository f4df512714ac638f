#include "tools/plan/timeline_picture.h"

#include <stdio.h>

#include "engine/files/output.h"
#include "memory/units.h"

enum { LEFT = 92, WIDTH = 760, TOP = 44, BAND = 76, GAP = 14, BOTTOM = 52 };

/* Layers from the bottom up: classes that live as long as the run, tensors kept for the backward pass, and tensors
 * freed within their action. */
static const struct {
    const char *label, *colour;
    int first, last; /* first and last class; the last two layers are curves */
} layers[] = {{"weights", "#5b93cc", CLASS_INPUT, CLASS_WEIGHT},
              {"gradients", "#8ccf8a", CLASS_GRADIENT, CLASS_GRADIENT},
              {"optimizer", "#f0b86c", CLASS_OPTIMIZER, CLASS_OPTIMIZER},
              {"kept", "#a98fd6", -1, -1},
              {"temporary", "#d9d9d9", -1, -1}};
enum { LAYERS = sizeof layers / sizeof *layers, FLAT = LAYERS - 2 };

/* One row of the picture: the position of its ground, and the pixels of a microsecond and of a byte. */
typedef struct band {
    const picture_row *row;
    picture_moment moments[PICTURE_MOMENTS];
    int count;
    double ground, x_scale, y_scale;
} band;

static void write_layer(FILE *out, const band *b, int layer)
{
    fprintf(out, "<path fill=\"%s\" d=\"M%d %.1f", layers[layer].colour, LEFT, b->ground);
    for (int i = 0; i < b->count; i++) {
        double until = i + 1 < b->count ? b->moments[i + 1].begin * b->x_scale : WIDTH;
        int64_t height = (layer >= FLAT ? b->moments[i].kept : 0) + (layer > FLAT ? b->moments[i].rest : 0);
        for (int k = 0; k <= layer && k < FLAT; k++)
            for (int c = layers[k].first; c <= layers[k].last; c++)
                height += b->row->class_bytes[c];
        fprintf(out, "V%.1fH%.1f", b->ground - (double)height * b->y_scale, LEFT + until);
    }
    fprintf(out, "V%.1fZ\"/>\n", b->ground);
}

/* Draws the highest layer first, so that each lower one covers its part. */
static void write_band(FILE *out, const band *b)
{
    double arena = b->ground - (double)b->row->arena * b->y_scale;
    for (int layer = LAYERS - 1; layer >= 0; layer--)
        write_layer(out, b, layer);
    fprintf(out,
            "<path stroke=\"#444\" stroke-dasharray=\"4 3\" d=\"M%d %.1fh%d\"/>"
            "<text x=\"12\" y=\"%.0f\">%s</text><text x=\"%d\" y=\"%.0f\">%s</text>\n",
            LEFT, arena, WIDTH, b->ground - 4, b->row->name, LEFT + WIDTH + 8, arena + 4, BYTES_TEXT(b->row->arena));
}

static void write_legend(FILE *out, double y)
{
    double x = LEFT;
    for (int layer = 0; layer < LAYERS; layer++, x += 110)
        fprintf(out,
                "<rect x=\"%.0f\" y=\"%.0f\" width=\"14\" height=\"14\" fill=\"%s\"/>"
                "<text x=\"%.0f\" y=\"%.0f\">%s</text>\n",
                x, y, layers[layer].colour, x + 20, y + 12, layers[layer].label);
    fprintf(out, "<text x=\"%.0f\" y=\"%.0f\">dashed: the arena</text>\n", x, y + 12);
}

void timeline_memory_svg(FILE *out, const void *what)
{
    const picture *p = what;
    int height = TOP + p->count * (BAND + GAP) + BOTTOM, width = LEFT + WIDTH + 90;
    int64_t most = 1;
    for (int i = 0; i < p->count; i++)
        most = p->rows[i].arena > most ? p->rows[i].arena : most;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<style>text{font-family:sans-serif;font-size:12px;fill:#222}.t{font-size:15px;font-weight:bold}</style>\n"
            "<text class=\"t\" x=\"12\" y=\"26\">memory over a step of %.1f ms, %s</text>\n",
            width, height, width, height, p->length / 1e3, p->name);
    for (int i = 0; i < p->count; i++) {
        band b = {.row = &p->rows[i],
                  .ground = TOP + (i + 1) * (BAND + GAP) - GAP,
                  .x_scale = WIDTH / p->length,
                  .y_scale = BAND / (double)most};
        b.count = picture_sample_memory(b.moments, b.row, p->length);
        if (b.count > 0)
            write_band(out, &b);
    }
    write_legend(out, TOP + p->count * (BAND + GAP) + 8);
    fputs("</svg>\n", out);
}
