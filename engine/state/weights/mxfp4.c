#include "engine/state/weights/mxfp4.h"

#include <math.h>

/* A sign, two bits of exponent and one of fraction. */
static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

enum { SCALE_OF_ONE = 127 };

void mxfp4_read(float *to, const mxfp4_matrices *from, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    const int64_t groups = from->in / MXFP4_GROUP;
    for (int64_t done = 0; done < rows;) {
        int64_t matrix = (row + done) / from->in, first = (row + done) % from->in;
        int64_t count = from->in - first < rows - done ? from->in - first : rows - done;
        for (int64_t j = 0; j < columns; j++) {
            int64_t group = (matrix * from->out + column + j) * groups;
            /* Elements [first, first + count) of a row of groups, `stride` apart in `to`. */
            for (int64_t i = first; i < first + count; i++) {
                uint8_t both = (from->blocks + group * MXFP4_BYTES)[i / 2];
                float value = values[i % 2 ? both >> 4 : both & 15];
                (to + done * columns + j)[(i - first) * columns] =
                    ldexpf(value, (from->scales + group)[i / MXFP4_GROUP] - SCALE_OF_ONE);
            }
        }
        done += count;
    }
}
