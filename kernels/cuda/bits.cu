/* Checksums of bytes, for verification: words of 64 bits, each times an odd number made of its index, added up modulo
 * 2^64. A product with an odd number is 0 for 0 alone, so that a change of one word always changes the sum; the numbers
 * differ from index to index (Knuth's multiplicative hashing), so that swapped words change it, too, except with a
 * probability of about 2^-64. Addition of integers has no order: atomics cost no bit.
 */
#include "kernels/cuda/vector.cuh"

static constexpr int BITS_THREADS = 256, BITS_BLOCKS = 528; /* four on each multiprocessor of an H100 */

/* Word `i` of a row, zeros past the row's end. Rows of 16-bit elements may begin anywhere. */
DEVICE unsigned long long word_of(const unsigned char *row, int64_t bytes, int64_t i, bool whole)
{
    unsigned long long word = 0;
    if (whole)
        return ((const unsigned long long *)(const void *)row)[i];
    for (int k = 0; k < 8 && 8 * i + k < bytes; k++)
        word |= (unsigned long long)row[8 * i + k] << 8 * k;
    return word;
}

/* Each blockIdx.y takes every gridDim.y-th row. */
KERNEL(BITS_THREADS, 4) sum_bits(unsigned long long *total, launch_bytes of, bool whole)
{
    int64_t words = (of.bytes + 7) / 8, step = (int64_t)gridDim.x * BITS_THREADS;
    unsigned long long sum = 0;
    for (int64_t row = blockIdx.y; row < of.rows; row += gridDim.y) {
        const unsigned char *at = (const unsigned char *)of.at + row * of.pitch;
        for (int64_t i = (int64_t)blockIdx.x * BITS_THREADS + threadIdx.x; i < words; i += step) {
            unsigned long long place = (unsigned long long)(row * words + i);
            sum += word_of(at, of.bytes, i, whole) * ((place + 1) * 0x9e3779b97f4a7c15ull | 1);
        }
    }
    for (int mask = WARP / 2; mask > 0; mask /= 2)
        sum += warp_xor(sum, mask);
    if (threadIdx.x % WARP == 0)
        atomic_add(total, sum);
}

int launch_sum_bits(void *stream, uint64_t *total, const launch_bytes *of)
{
    int64_t words = (of->bytes + 7) / 8, blocks = divide_up(words, BITS_THREADS);
    int64_t across = blocks < BITS_BLOCKS ? blocks : BITS_BLOCKS, down = BITS_BLOCKS / across;
    bool whole = aligned(of->at, 8) && of->pitch % 8 == 0 && of->bytes % 8 == 0;
    dim3 grid((unsigned)across, (unsigned)(of->rows < down ? of->rows : down), 1);
    return launch(sum_bits, grid, BITS_THREADS, 0, stream, (unsigned long long *)total, *of, whole);
}

KERNEL(WARP, 1) finish_bits(uint64_t *total, uint64_t *sum, uint64_t *note, uint64_t what, const int64_t *step)
{
    if (threadIdx.x)
        return;
    uint64_t now = *total;
    *total = 0;
    if (!note) {
        *sum = now;
    } else if (now != *sum && !note[0]) {
        note[0] = what;
        note[1] = (uint64_t)*step;
    }
}

int launch_finish_bits(void *stream, uint64_t *total, uint64_t *sum, uint64_t *note, uint64_t what, const int64_t *step)
{
    return launch(finish_bits, 1, WARP, 0, stream, total, sum, note, what, step);
}

/* ---- how far the device has come ----------------------------------------------------------------------------- */

/* Reports the device's progress to a host that must not wait: a kernel of one thread sets a word of pinned memory.
 *
 * An event would do outside of graphs. CUDA does not document cudaEventQuery for an event that a graph records anew at
 * each launch, before this launch reaches it; a word that the host clears before the launch is unambiguous.
 */
KERNEL(WARP, 1) set_word(volatile uint32_t *word)
{
    if (threadIdx.x == 0)
        *word = 1;
}

int launch_mark(void *stream, volatile uint32_t *word)
{
    return launch(set_word, 1, WARP, 0, stream, word);
}
