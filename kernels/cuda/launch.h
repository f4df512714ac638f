/* The launchers of the CUDA kernels: plain C, device pointers and sizes in, a cudaError_t (0: none) out.
 *
 * Every launcher only enqueues work on `stream`; nothing here allocates, waits or owns memory. `type` is the element
 * type T of the activations: LAUNCH_FP32, LAUNCH_BF16 or LAUNCH_FP16, numbered as memory/dtype.h does. Pitches count
 * elements from one row to the next. `accumulate`: add to the output instead of writing it. Formulas:
 * kernels/table/ops.def.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LAUNCH_FP32 = 0, LAUNCH_BF16 = 1, LAUNCH_FP16 = 2 };

/* ---- pointwise.cu: [rows, columns], each operand with its own pitch ------------------------------------------- */
typedef struct launch_matrix {
    void *at;
    int64_t pitch;
} launch_matrix;

typedef struct launch_extent {
    int64_t rows, columns;
} launch_extent;

int launch_scale(void *stream, int type, launch_matrix y, launch_matrix x, float factor, int64_t rows, int64_t columns);
int launch_soft_cap(void *stream, int type, launch_matrix y, launch_matrix x, float cap, int64_t rows, int64_t columns);
int launch_soft_cap_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, float cap,
                         launch_extent of);
int launch_gelu(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns);
int launch_gelu_exact(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns);
int launch_gelu_exact_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                           int64_t columns);
int launch_gelu_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                     int64_t columns);
/* x [rows, 2 columns] holds gate | up */
int launch_swiglu(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns);
int launch_swiglu_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                       int64_t columns);
int launch_geglu(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns);
int launch_geglu_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                      int64_t columns);
typedef struct launch_clamp {
    float limit, slope;
} launch_clamp;

/* x [rows, 2 columns] holds pairs of a gate and an up: y = g sigmoid(slope g) (1 + u), of gates up to `limit`, and ups
 * between -limit and limit */
int launch_swiglu_clamped(void *stream, int type, launch_matrix y, launch_matrix x, launch_extent of, launch_clamp by);
int launch_swiglu_clamped_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x,
                               launch_extent of, launch_clamp by);
int launch_add(void *stream, int type, launch_matrix y, launch_matrix a, launch_matrix b, int64_t rows,
               int64_t columns);
int launch_cast(void *stream, int to_type, int from_type, launch_matrix y, launch_matrix x, int64_t rows,
                int64_t columns);
/* rows of `row_bytes` bytes; pitches in bytes */
int launch_copy(void *stream, launch_matrix y, launch_matrix x, int64_t rows, int64_t row_bytes);
/* The same, but nothing where control[SCALARS_SKIP] is set. */
int launch_keep(void *stream, launch_matrix y, launch_matrix x, const float *control, int64_t rows, int64_t row_bytes);
int launch_zero(void *stream, void *y, int64_t bytes);
/* y[places[i]] = x[i], or with `inverse` y[i] = x[places[i]]: rows of `row_bytes` bytes */
int launch_arrange(void *stream, void *y, const void *x, const int32_t *places, int64_t rows, int64_t row_bytes,
                   bool inverse);
typedef struct launch_mask {
    const int32_t *places; /* row r is token places[r] of the micro-batch */
    int32_t sample, sequence, site;
    float probability;
} launch_mask;

/* scalars: a step_scalars on the device */
int launch_dropout(void *stream, int type, launch_matrix y, launch_matrix x, const void *scalars, launch_extent of,
                   launch_mask mask);

/* ---- grouped.cu ----------------------------------------------------------------------------------------------- */
typedef struct launch_grouped {
    launch_matrix a, b, c;
    const int32_t *offsets; /* [experts + 1] */
    int32_t experts;
    int64_t rows;     /* of all experts and of nobody */
    int64_t m, n, k;  /* of one expert, the side that is its rows 0 */
    const void *bias; /* [experts n] T or NULL, for rows */
} launch_grouped;

/* c[rows, n] T, row by row: a[rows, k] T times the expert's b_e[n, k] T transposed, or b_e[k, n], plus its bias; b has
 * the experts' one below the other. Rows that no expert has: zeros. */
int launch_grouped_rows(void *stream, int type, const launch_grouped *of, bool b_turned);
/* c_e[m, n] fp32 (+)= a^T b over each expert's rows of a[rows, m] T and b[rows, n] T */
int launch_grouped_sums(void *stream, int type, const launch_grouped *of, bool accumulate);
/* db[experts n] fp32 (+)= the sum of x[.., n] T over each expert's rows */
int launch_grouped_column_sums(void *stream, int type, float *db, launch_matrix x, const int32_t *offsets,
                               launch_extent of, bool accumulate);

/* ---- reduce.cu ------------------------------------------------------------------------------------------------ */
int64_t launch_column_sum_scratch(int64_t rows, int64_t columns);
/* sum[columns] fp32 (+)= the sum of the rows of x[rows, columns] */
int launch_column_sum(void *stream, int type, float *sum, launch_matrix x, launch_extent of, bool accumulate,
                      float *scratch);

/* ---- embedding.cu --------------------------------------------------------------------------------------------- */
typedef struct launch_rows {
    int64_t tokens, columns;
    int64_t first, table_rows; /* ids from first to first + table_rows are this table's */
} launch_rows;

int launch_embed(void *stream, int type, void *y, const int32_t *tokens, const void *table, launch_rows of);
/* `positions` are rows of the table: of.first is 0 */
int launch_add_rows(void *stream, int type, void *y, const void *x, const int32_t *positions, const void *table,
                    launch_rows of);
int64_t launch_embed_grad_scratch(int64_t tokens, int64_t table_rows);
/* dtable[table_rows, columns] fp32 (+)= rows of dy summed by id - first, ascending; ids outside count nothing */
typedef struct launch_embed_grad_in {
    const void *dy;
    const int32_t *ids;
    launch_rows of;
    bool accumulate;
    int32_t *scratch;
} launch_embed_grad_in;

int launch_embed_grad(void *stream, int type, float *dtable, launch_embed_grad_in in);

/* ---- experts.cu ----------------------------------------------------------------------------------------------- */
enum { LAUNCH_EXPERTS = 512 }; /* the most */

typedef struct launch_routing {
    int32_t experts, active; /* at most 32 active */
    int32_t groups, groups_kept, group_best;
    float scale;
    bool sigmoid, renormalise;
} launch_routing;

/* weights, experts [tokens, active]; bias may be NULL */
int launch_route(void *stream, int type, float *weights, int32_t *experts, launch_matrix logits, const float *bias,
                 int64_t tokens, launch_routing as);
/* dlogits may be logits or addend, which may be absent */
typedef struct launch_route_grad {
    launch_matrix dlogits, logits, addend;
    const float *dweights, *weights;
    const int32_t *experts;
} launch_route_grad;

int launch_route_slopes(void *stream, int type, launch_route_grad in, int64_t tokens, launch_routing as);
int64_t launch_assign_scratch(int64_t assignments, int32_t local);
/* of assignments to experts first .. first + local - 1, rows skip .. skip + rows - 1 */
typedef struct launch_assign_in {
    const int32_t *experts;
    int64_t assignments, skip, rows;
    int32_t first, local;
    int32_t *scratch;
} launch_assign_in;

int launch_assign(void *stream, int32_t *places, int32_t *offsets, launch_assign_in in);
/* A slot of in.rows / in.local rows for each of in.local ranks, which divide in.first experts. */
int launch_slots(void *stream, int32_t *places, int32_t *ids, int32_t *offsets, launch_assign_in in);
/* over [rungs + 1]: += what `rungs` rungs have no room for of n assignments to experts first .. first + local - 1; the
 * last element becomes infinite where rung `rung` has not (none has with rung >= rungs). `add`: to what is there. With
 * slots > 0 that many ranks divide experts_divided experts, and each one's n counts by itself. */
typedef struct launch_overflow_in {
    const int32_t *experts;
    int64_t assignments, room[2];
    int32_t first, local, rung, slots, experts_divided;
    bool add;
} launch_overflow_in;

int launch_overflow(void *stream, float *over, launch_overflow_in in);
typedef struct launch_places {
    const int32_t *places;  /* [tokens, active] */
    const float *weights;   /* the same, or NULL: 1 */
    const int32_t *offsets; /* [experts + 1]; of dispatch */
    int64_t tokens, active, experts;
    int64_t slots; /* of dispatch: runs of rows, run i filled up from offsets[i + 1] on; 0: one */
} launch_places;

/* rows of all.rows, all.columns */
int launch_dispatch(void *stream, int type, launch_matrix rows, launch_matrix x, launch_places of, launch_extent all);
/* y may be addend, which may be absent */
int launch_combine(void *stream, int type, launch_matrix y, launch_matrix rows, launch_matrix addend, launch_places of,
                   int64_t columns);
int launch_combine_dots(void *stream, int type, float *dweights, launch_matrix dy, launch_matrix rows, launch_places of,
                        int64_t columns);

/* ---- norm.cu -------------------------------------------------------------------------------------------------- */
typedef struct launch_norm_in {
    const void *x, *w, *b, *residual;
    launch_extent of;
    float epsilon;
    float offset; /* of RMSNorm: added to w */
} launch_norm_in;

typedef struct launch_norm_out {
    void *y;
    float *rstd, *mean;
    void *sum;
} launch_norm_out;

/* mean, b NULL: RMSNorm, else LayerNorm. residual NULL: sum may be NULL */
int launch_norm(void *stream, int type, launch_norm_out out, launch_norm_in in);
int64_t launch_norm_grad_scratch(int64_t rows, int64_t columns, bool layernorm);
typedef struct launch_norm_grad_in {
    const void *dy, *s, *w;
    const float *rstd, *mean;
    const void *addend;
    launch_extent of;
    bool accumulate; /* into dw and db */
    float *scratch;
    float offset;
} launch_norm_grad_in;

/* dx = addend + ...; addend may be NULL; mean, db NULL: RMSNorm */
int launch_norm_grad(void *stream, int type, void *dx, float *dw, float *db, launch_norm_grad_in in);

/* ---- heads.cu: heads of q[t, heads head_size] and of k[t, kv_heads head_size] ---------------------------------- */
typedef struct launch_heads {
    int32_t heads, kv_heads, head_size, v_head_size;
    int32_t sequence; /* tokens of a sample */
    int32_t window;   /* 0: none */
    float scale;      /* of attention scores */
    float cap;        /* a score s is cap tanh(s scale / cap); 0: s scale */
} launch_heads;

typedef struct launch_rope_operands {
    launch_matrix yq, yk, q, k, table; /* the table fp32 */
    const int32_t *positions;
    int64_t tokens;
    int32_t rotated; /* elements of a head, the table's columns */
    int32_t front;   /* elements of a head of q before them, which the one head of k has not; 0: k's are like q's */
    launch_heads at;
    bool inverse;
    bool interleaved; /* pairs are elements 2i and 2i + 1, not i and i + rotated / 2 */
} launch_rope_operands;

int launch_rope(void *stream, int type, const launch_rope_operands *of);

typedef struct launch_head_norm_operands {
    launch_matrix yq, yk, q, k;
    const void *wq, *wk;
    float *rstd; /* [tokens, heads + kv_heads] */
    int64_t tokens;
    launch_heads at;
    float epsilon, offset;
} launch_head_norm_operands;

int launch_head_norm(void *stream, int type, const launch_head_norm_operands *of);

typedef struct launch_head_norm_gradients {
    launch_matrix dq, dk, dyq, dyk, q, k;
    const void *wq, *wk;
    const float *rstd;
    float *dwq, *dwk, *scratch;
    int64_t tokens;
    launch_heads at;
    bool accumulate;
    float offset;
} launch_head_norm_gradients;

int64_t launch_head_norm_grad_scratch(int64_t tokens, launch_heads at);
int launch_head_norm_grad(void *stream, int type, const launch_head_norm_gradients *of);

/* ---- width.cu: all heads of q and of k, [0] and [1] of each array ---------------------------------------------- */
typedef struct launch_width {
    launch_matrix y[2]; /* what is written: y, or dx */
    launch_matrix dy[2], x[2];
    const void *w[2];
    launch_matrix squares, dots; /* fp32 [tokens, 2] */
    float *dw[2], *scratch;
    int64_t tokens, columns[2];
    int64_t width[2]; /* elements of all ranks' rows */
    float epsilon, offset;
    bool accumulate; /* into dw */
} launch_width;

/* An op uses the members that it has operands for; the others are zero. */
int launch_width_squares(void *stream, int type, const launch_width *of);
int launch_width_norm(void *stream, int type, const launch_width *of);
/* columns: of both */
int64_t launch_width_dots_scratch(int64_t tokens, int64_t columns);
int launch_width_dots(void *stream, int type, const launch_width *of);
int launch_width_norm_grad(void *stream, int type, const launch_width *of);

/* ---- attention: flash_*.cu for head sizes 64, 80, 96, 128, 256, and 192 with values of 128, in 16 bits, attention.cu
 * for everything else
 * ------------------------------------------------------------------------------------------------ */
typedef struct launch_attention_operands {
    launch_matrix q, k, v, y;
    float *lse;                    /* [tokens / run, heads, run] */
    const int32_t *document_start; /* [tokens] or NULL */
    const int32_t *places;         /* [tokens] of the queries among the keys; NULL: they are the same tokens */
    int64_t tokens, keys;
    int32_t run; /* so many queries each have neighbouring places in one sample; without places, a sample */
    launch_heads at;
    const void *sinks; /* [heads] T or NULL; its gradient does not read them */
    float *largest;    /* [heads, tokens], of neither sinks nor a cap; or NULL */
    int64_t largest_pitch;
} launch_attention_operands;

/* writes y and lse, which its gradient reads, and the largest scores */
int launch_attention(void *stream, int type, const launch_attention_operands *of);

typedef struct launch_attention_gradients {
    launch_matrix dq, dk, dv, dy;
    float *scratch;
} launch_attention_gradients;

int64_t launch_attention_grad_scratch(int64_t tokens, launch_heads at);
int launch_attention_grad(void *stream, int type, const launch_attention_gradients *to,
                          const launch_attention_operands *of);

typedef struct launch_sinks_gradient {
    launch_matrix dy, y;
    const float *lse; /* [tokens / run, heads, run] */
    const void *sinks;
    float *dsinks, *scratch; /* scratch: launch_attention_grad_scratch() */
    int64_t tokens;
    launch_heads at; /* heads and v_head_size */
    bool accumulate;
    int32_t run;
} launch_sinks_gradient;

int launch_attention_sinks_grad(void *stream, int type, const launch_sinks_gradient *of);

typedef struct launch_decode_operands {
    launch_matrix q, k, v, y;
    void *k_cache, *v_cache; /* [samples, capacity, kv_heads head_size], [samples, capacity, kv_heads v_head_size] */
    const int32_t *positions;
    int64_t samples, capacity;
    launch_heads at;
    const void *sinks; /* [heads] T or NULL */
} launch_decode_operands;

int launch_attention_decode(void *stream, int type, const launch_decode_operands *of);

/* ---- latent.cu: heads of nope + rope elements, the latter of k shared by all heads ------------------------------- */
typedef struct launch_keys {
    launch_matrix k, kn, kr; /* [tokens, heads (nope + rope)], [tokens, heads nope], [tokens, rope] */
    int64_t tokens;
    int32_t heads, nope, rope;
} launch_keys;

/* writes k */
int launch_join_keys(void *stream, int type, const launch_keys *of);
/* writes kn and kr of k, all of them cotangents */
int launch_split_keys(void *stream, int type, const launch_keys *of);

typedef struct launch_latent {
    launch_matrix y, q, latent, kr, w; /* w [heads (nope + v_head_size), rank] */
    void *cache;                       /* [samples, capacity, rank + rope] */
    const int32_t *positions;
    int64_t samples, capacity;
    int32_t heads, nope, rope, v_head_size, rank;
    float scale;
} launch_latent;

/* cudaErrorInvalidValue where a head's sums do not fit into a block's shared memory: 2 rank + rope floats of 4 bytes */
int launch_latent_decode(void *stream, int type, const launch_latent *of);

/* ---- cross_entropy.cu ------------------------------------------------------------------------------------------ */
typedef struct launch_logits {
    const void *at; /* [tokens, columns] T */
    const int32_t *targets;
    int64_t tokens, columns;
    int64_t count, first; /* the real columns among them, and the first one's id */
} launch_logits;

int launch_cross_entropy_stats(void *stream, int type, float *stats, launch_logits of);
int64_t launch_cross_entropy_scratch(int64_t tokens);

typedef struct launch_cross_entropy_in {
    launch_logits of;
    const float *stats; /* [shards tokens, 3] */
    const void *scalars;
    int64_t shards;
    bool accumulate; /* into the loss */
    float *scratch;
} launch_cross_entropy_in;

int launch_cross_entropy(void *stream, int type, float *loss, void *dlogits, launch_cross_entropy_in in);

/* ---- balance.cu ------------------------------------------------------------------------------------------------ */
typedef struct launch_choices {
    const int32_t *chosen; /* [tokens, active] */
    const int32_t *places; /* or NULL: token t is at t */
    int64_t tokens, active, groups, experts;
    int32_t sequence; /* tokens of a group; 0: there is one */
} launch_choices;

/* load[groups, experts] */
int launch_expert_load(void *stream, float *load, const launch_choices *of, float scale);
/* counts [experts], of all tokens; `add`: to what is there */
int launch_expert_count(void *stream, int32_t *counts, const launch_choices *of, bool add);
/* load [experts] = experts counts / the sum of counts */
int launch_expert_share(void *stream, float *load, const int32_t *counts, int32_t experts);
/* bias [experts] += rate sign(mean of counts - counts), but nothing where control[SCALARS_SKIP] is set */
int launch_expert_bias(void *stream, float *bias, const int32_t *counts, const float *control, int32_t experts,
                       float rate);

typedef struct launch_router {
    const void *logits;    /* [tokens, experts] T */
    const float *load;     /* [groups, experts] */
    const int32_t *places; /* or NULL */
    int64_t tokens, experts;
    int32_t sequence;
    bool sigmoid;
} launch_router;

int64_t launch_balance_scratch(int64_t tokens);
/* sums[2] */
int launch_balance(void *stream, int type, float *sums, const launch_router *of, bool accumulate, double *scratch);

typedef struct launch_losses {
    float load, z; /* coefficients */
} launch_losses;

/* addend: or NULL; dlogits may lie there */
int launch_balance_grad(void *stream, int type, void *dlogits, const void *addend, const void *scalars,
                        const launch_router *of, const launch_losses *losses);

/* ---- optimizer.cu ---------------------------------------------------------------------------------------------- */
int launch_sum_squares(void *stream, int64_t *bins, const float *gradient, int64_t rows, int64_t columns, int64_t pitch,
                       bool accumulate);
int launch_clip(void *stream, float *control, const int64_t *bins, const void *scalars);

/* ---- compress.cu: kernels/compress.h on the device --------------------------------------------------------------- */
/* A tensor of rows without gaps, which parts divide as shard_rows() does; a message is parts of so many bytes. */
typedef struct launch_parts {
    int64_t rows, width, bytes;
    int32_t parts, kind; /* compress_kind, not COMPRESS_NONE */
    double density;
} launch_parts;

/* message[parts, bytes] and kept of x = gradient / scalars.loss_scale + feedback */
int launch_compress(void *stream, void *message, float *kept, const float *gradient, const float *feedback,
                    const void *scalars, const launch_parts *of);
/* y = scalars.loss_scale times the sum, in order, of what messages[count, parts, bytes] say */
int launch_decompress(void *stream, float *y, const void *messages, const void *scalars, int64_t count,
                      const launch_parts *of);

/* ---- instructions.cu: what device.cuh writes in PTX, one by one -------------------------------------------------- */
enum { LAUNCH_CHECKS = 7, LAUNCH_CHECK_BYTES = 2048 };
const char *launch_check_name(int which);
/* The input, in host memory; in and out have LAUNCH_CHECK_BYTES. */
void launch_check_input(int which, void *in);
int launch_check(void *stream, int which, void *out, const void *in);
/* Of copies in host memory: the worst error relative to the value, or to 1; up to 1e-6 is right. */
double launch_check_error(int which, const void *out, const void *in);

/* ---- mark.cu --------------------------------------------------------------------------------------------------- */
/* *word, in pinned host memory, becomes 1 when the stream has come here */
int launch_mark(void *stream, volatile uint32_t *word);

/* ---- bits.cu: sums of the bits of rows of bytes, `pitch` bytes from one to the next
 * ------------------------------- */
typedef struct launch_bytes {
    const void *at;
    int64_t pitch, bytes, rows;
} launch_bytes;

/* *total, zero before, becomes the sum */
int launch_sum_bits(void *stream, uint64_t *total, const launch_bytes *of);
/* *total becomes zero again. note NULL: *sum becomes it; else, if *sum is another one and note[0] is 0: note becomes
 * {what, *step} */
int launch_settle_bits(void *stream, uint64_t *total, uint64_t *sum, uint64_t *note, uint64_t what,
                       const int64_t *step);

/* ---- qk_clip.cu ------------------------------------------------------------------------------------------------ */
/* y[rows] = the largest element of each row, and of what y was where it accumulates */
int launch_largest(void *stream, float *y, launch_matrix x, launch_extent of, bool accumulate);

/* As the op qk_factors has them; peaks are rows of `heads`, of each rank `layers`. */
typedef struct launch_qk_factors {
    const float *peaks;
    int64_t peak_rows, layers, layer;
    int32_t heads, blocks, size, whole;
    float threshold;
} launch_qk_factors;

int launch_qk_clip(void *stream, float *factors, int64_t rows, const launch_qk_factors *of);

/* ---- update.cu ------------------------------------------------------------------------------------------------- */
enum launch_rule {
#define UPDATE(name) LAUNCH_##name,
#include "kernels/table/updates.def"
#undef UPDATE
    LAUNCH_RULES
};

typedef struct launch_update_segment {
    const float *gradient; /* of LAUNCH_muon the direction x */
    const float *factors;  /* of rows of `columns` elements; or NULL */
    void *weight;          /* T, or NULL */
    void *master;          /* fp32, or bf16; of LAUNCH_muon_momentum x, which is written only, and fp32 */
    void *state[2];        /* fp32, or bf16; as many as the rule has */
    int64_t count;
    float scale;   /* of LAUNCH_muon's rate */
    int32_t block; /* the launcher's own: the first block of this segment */
    uint8_t decay, nesterov, narrow_master, narrow_state;
    /* Of what is bf16 (kernels/rounding.h): element i is element first + stride (i / columns) + i mod columns of the
     * name. */
    uint16_t site; /* of the first output */
    uint64_t stream;
    int64_t first, stride, columns;
} launch_update_segment;

enum { LAUNCH_UPDATE_SEGMENTS = 32 };

/* type: of the weights; scalars: step_scalars; control: float[CONTROL_COUNT] */
int launch_update(void *stream, int rule, int type, const launch_update_segment *segments, int count,
                  const void *scalars, const float *control);
/* fp32 matrices [n, n] */
int launch_muon_scale(void *stream, launch_matrix scaled, float *scale, launch_matrix gram, int64_t n, float epsilon);
/* scale: NULL for 1 */
int launch_muon_polynomial(void *stream, launch_matrix p, launch_matrix gram, launch_matrix square, const float *scale,
                           int64_t n);

#ifdef __cplusplus
}
#endif
