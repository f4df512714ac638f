/* Launchers of the device beside its ops (cuda.h): plain C, device pointers and sizes in, a cudaError_t (0: none) out.
 * Every launcher only enqueues work on `stream`; none allocates, waits or owns memory.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pointwise.cu: of the element types of activations, [rows, columns] or bytes --------------------------------- */

/* The pitch counts elements from one row to the next. An absent operand's is all zero. */
typedef struct launch_matrix {
    void *at;
    int64_t pitch;
} launch_matrix;

/* y = a + b */
int launch_add(void *stream, int type, launch_matrix y, launch_matrix a, launch_matrix b, int64_t rows,
               int64_t columns);
int launch_zero(void *stream, void *y, int64_t bytes);

/* ---- instructions.cu: the instructions that device.cuh writes in PTX, one by one --------------------------------- */
enum { LAUNCH_CHECKS = 7, LAUNCH_CHECK_BYTES = 2048 };
typedef struct launch_check {
    const char *name;
    void (*give)(void *in); /* the input, in host memory, onto zeros; in and out have LAUNCH_CHECK_BYTES */
    int (*launch)(void *stream, void *out, const void *in);
    /* The worst error of copies in host memory, relative to the value or to 1; up to 1e-6 is right. */
    double (*error)(const void *out, const void *in);
} launch_check;
extern const launch_check launch_checks[LAUNCH_CHECKS];

/* ---- bits.cu --------------------------------------------------------------------------------------------------- */
/* Sets *word, in pinned host memory, to 1 when the stream gets here. */
int launch_mark(void *stream, volatile uint32_t *word);

/* ---- bits.cu: sums of the bits of rows of bytes, `pitch` bytes from one to the next ------------------------------ */
typedef struct launch_bytes {
    const void *at;
    int64_t pitch, bytes, rows;
} launch_bytes;

/* Adds the checksum to *total, which must be zero before. */
int launch_sum_bits(void *stream, uint64_t *total, const launch_bytes *of);
/* Clears *total. note NULL: moves it to *sum; else, if it differs from *sum and note[0] is 0, sets note to {what,
 * *step}. */
int launch_finish_bits(void *stream, uint64_t *total, uint64_t *sum, uint64_t *note, uint64_t what,
                       const int64_t *step);

/* ---- update.cu ------------------------------------------------------------------------------------------------- */
enum launch_rule {
#define UPDATE(name) LAUNCH_##name,
#include "kernels/table/updates.def"
    LAUNCH_RULES
};

typedef struct launch_update_segment {
    const float *gradient; /* LAUNCH_muon: the direction x */
    const float *factors;  /* one per row of `columns` elements; or NULL */
    void *weight;          /* T, or NULL */
    void *master;          /* fp32, or bf16; LAUNCH_muon_momentum: x, which is written only, and fp32 */
    void *state[2];        /* fp32, or bf16; as many as the rule has */
    int64_t count;
    float scale;   /* LAUNCH_muon: factor on the rate */
    int32_t block; /* the launcher's own: the first block of this segment */
    uint8_t decay, nesterov, narrow_master, narrow_state;
    /* Rounding of bf16 outputs (kernels/rounding.h): element i is number first + stride (i / columns) + i mod columns
     * of the name. */
    uint16_t site; /* the first output's */
    uint64_t stream;
    int64_t first, stride, columns;
} launch_update_segment;

enum { LAUNCH_UPDATE_SEGMENTS = 32 };

/* type: the weights'; scalars: step_scalars; control: float[CONTROL_COUNT] */
int launch_update(void *stream, int rule, int type, const launch_update_segment *segments, int count,
                  const void *scalars, const float *control);

#ifdef __cplusplus
}
#endif
