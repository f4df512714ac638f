/* Compressed gradients: the same bytes as kernels/compress.c writes. A block of threads has a chunk. */
#include "kernels/cuda/compress.cuh"

/* A tensor of rows without gaps, which parts divide as shard_rows() does; each part of a message has `bytes`. */
struct launch_parts {
    int64_t rows, width, bytes;
    int32_t parts, kind; /* compress_kind, not COMPRESS_NONE */
    double density;
};

/* A block's piece: elements [first, first + count) of the tensor; bytes from `from` on of a message of all parts, and
 * `room`, the bytes until the next chunk's or the end of the part. */
struct message_block {
    int64_t first, from, room;
    int count;
};

template <typename M> DEVICE message_block message_block_of(const launch_parts &of, int64_t chunks)
{
    int64_t part = blockIdx.x / chunks, chunk = blockIdx.x % chunks, whole = M::bytes(COMPRESS_CHUNK, of.density);
    int64_t each = of.rows / of.parts, more = of.rows % of.parts; /* as shard_rows() divides */
    int64_t row = each * part + (part < more ? part : more);
    int64_t left = (each + (part < more)) * of.width - chunk * COMPRESS_CHUNK;
    int64_t end = chunk == chunks - 1 ? of.bytes : (chunk + 1) * whole;
    left = left < 0 ? 0 : left;
    return {row * of.width + chunk * COMPRESS_CHUNK, part * of.bytes + chunk * whole, end - chunk * whole,
            left < COMPRESS_CHUNK ? (int)left : (int)COMPRESS_CHUNK};
}

DEVICE void fill(unsigned char *out, int64_t from, int64_t to, unsigned char value)
{
    for (int64_t i = from + threadIdx.x; i < to; i += CHUNK_THREADS)
        out[i] = value;
}

template <typename M>
KERNEL(CHUNK_THREADS, M::BLOCKS)
encode_chunks(unsigned char *message, float *kept, const float *gradient, const float *feedback,
              const step_scalars *scalars, launch_parts of, int64_t chunks)
{
    message_block p = message_block_of<M>(of, chunks);
    float x[EACH], inverse = 1.0f / scalars->loss_scale;
    bool finite = true;
    UNROLL for (int j = 0; j < EACH; j++)
    {
        int64_t i = p.first + place_of(j);
        x[j] = place_of(j) < p.count ? rounded_product(gradient[i], inverse) + feedback[i] : 0.0f;
        finite = finite && isfinite(x[j]);
    }
    unsigned char *out = message + p.from;
    int bytes = M::bytes(p.count, of.density);
    if (block_any(!finite)) {
        fill(out, 0, bytes, 0xff);
    } else if (p.count > 0) {
        M::prepare();
        M::encode(out, x, p.count, of.density);
    }
    fill(out, bytes, p.room, 0);
    UNROLL for (int j = 0; j < EACH; j++) if (place_of(j) < p.count) kept[p.first + place_of(j)] = x[j];
}

template <typename M>
KERNEL(CHUNK_THREADS, M::BLOCKS)
decode_chunks(float *y, const unsigned char *messages, const step_scalars *scalars, int64_t count, launch_parts of,
              int64_t chunks)
{
    message_block p = message_block_of<M>(of, chunks);
    float sum[EACH], scale = scalars->loss_scale;
    bool sound = true;
    if (p.count == 0)
        return;
    M::prepare();
    for (int64_t m = 0; m < count; m++) {
        float x[EACH];
        sound = M::decode(x, messages + m * of.parts * of.bytes + p.from, p.count, of.density) && sound;
        UNROLL for (int j = 0; j < EACH; j++)
        {
            sound = sound && isfinite(x[j]);
            sum[j] = m == 0 ? x[j] : sum[j] + x[j];
        }
    }
    bool broken = block_any(!sound);
    UNROLL for (int j = 0; j < EACH; j++) if (place_of(j) < p.count) y[p.first + place_of(j)] =
        broken ? NAN : sum[j] * scale;
}

/* ---- host side ----------------------------------------------------------------------------------------------- */

/* Calls f(M()) with the method. */
template <typename F> static int with_method(int kind, F f)
{
    switch (kind) {
    case COMPRESS_BF16:
        return f(as_bf16());
    case COMPRESS_INT8:
        return f(as_integers<COMPRESS_BLOCK8, 8, COMPRESS_TOP8>());
    case COMPRESS_INT4:
        return f(as_integers<COMPRESS_BLOCK4, 4, COMPRESS_TOP4>());
    case COMPRESS_TOPK:
        return f(as_largest());
    case COMPRESS_DCT:
        return f(as_frequencies());
    default:
        return (int)cudaErrorInvalidValue;
    }
}

/* Launches `kernel_of` the op's method with a block for each chunk of t. */
template <typename K, typename... A>
static void each_chunk(const op *o, const run_context *r, const tensor *t, const tensor *message, K kernel_of, A... a)
{
    const op_compression &as = o->at.compression;
    const launch_parts of = {t->shape[0], columns_of(t),     message->shape[1], compression_parts(o, t),
                             as.kind,     (double)as.density};
    const int64_t chunks = divide_up(divide_up(of.rows, of.parts) * of.width, COMPRESS_CHUNK);
    cuda_launched(o, with_method(of.kind, [&](auto m) {
                      auto kernel = kernel_of(m);
                      if (chunks > 0)
                          LAUNCH(kernel, (unsigned)(of.parts * chunks), CHUNK_THREADS, 0, (cudaStream_t)r->stream, a...,
                                 of, chunks);
                      return launch_result();
                  }));
}

/* Writes message[parts, bytes] and the error kept of x = gradient / scalars.loss_scale + feedback. */
void cuda_compress(const op *o, const run_context *r)
{
    const tensor *gradient = o->in[0], *message = o->out[0];
    each_chunk(
        o, r, gradient, message, [](auto m) { return encode_chunks<decltype(m)>; }, whole<unsigned char>(o, message, r),
        whole<float>(o, o->out[1], r), whole<const float>(o, gradient, r), whole<const float>(o, o->in[1], r),
        data<const step_scalars>(o->in[2], r));
}

/* y = scalars.loss_scale times the sum, in order, of the decoded messages[count, parts, bytes] */
void cuda_decompress(const op *o, const run_context *r)
{
    const tensor *messages = o->in[0], *y = o->out[0];
    each_chunk(
        o, r, y, messages, [](auto m) { return decode_chunks<decltype(m)>; }, whole<float>(o, y, r),
        whole<const unsigned char>(o, messages, r), data<const step_scalars>(o->in[1], r), o->at.compression.messages);
}
