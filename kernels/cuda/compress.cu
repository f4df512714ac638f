/* Compressed gradients: the same bytes as kernels/compress.c writes. A block of threads has a chunk. */
#include "kernels/cuda/compress.cuh"

#include "kernels/cuda/scalars.h"

/* A block's: elements [first, first + count) of the tensor; bytes from `from` on of a message of all parts, and how
 * many there are until the next chunk's or the end of the part. */
struct piece {
    int64_t first, from, room;
    int count;
};

template <typename M> DEVICE piece piece_of(const launch_parts &of, int64_t chunks)
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
              const scalars_device *scalars, launch_parts of, int64_t chunks)
{
    piece p = piece_of<M>(of, chunks);
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
decode_chunks(float *y, const unsigned char *messages, const scalars_device *scalars, int64_t count, launch_parts of,
              int64_t chunks)
{
    piece p = piece_of<M>(of, chunks);
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

static int64_t chunks_of(const launch_parts *of)
{
    return divide_up(divide_up(of->rows, of->parts) * of->width, COMPRESS_CHUNK);
}

/* Call f(M()) with the method. */
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

int launch_compress(void *stream, void *message, float *kept, const float *gradient, const float *feedback,
                    const void *scalars, const launch_parts *of)
{
    int64_t chunks = chunks_of(of);
    return with_method(of->kind, [&](auto m) {
        auto kernel = encode_chunks<decltype(m)>;
        if (chunks > 0)
            LAUNCH(kernel, (unsigned)(of->parts * chunks), CHUNK_THREADS, 0, (cudaStream_t)stream,
                   (unsigned char *)message, kept, gradient, feedback, (const scalars_device *)scalars, *of, chunks);
        return launch_result();
    });
}

int launch_decompress(void *stream, float *y, const void *messages, const void *scalars, int64_t count,
                      const launch_parts *of)
{
    int64_t chunks = chunks_of(of);
    return with_method(of->kind, [&](auto m) {
        auto kernel = decode_chunks<decltype(m)>;
        if (chunks > 0)
            LAUNCH(kernel, (unsigned)(of->parts * chunks), CHUNK_THREADS, 0, (cudaStream_t)stream, y,
                   (const unsigned char *)messages, (const scalars_device *)scalars, count, *of, chunks);
        return launch_result();
    });
}
