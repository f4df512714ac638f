/* How far the device has come, for a host that must not wait: a word of pinned memory that a kernel of one thread sets.
 *
 * An event would do outside of graphs. What cudaEventQuery says of one that a graph records anew at each launch, before
 * this launch has come so far, is not written anywhere; a word that the host clears before the launch has one meaning
 * only.
 */
#include "kernels/cuda/vector.cuh"

KERNEL(WARP, 1) set_word(volatile uint32_t *word)
{
    if (threadIdx.x == 0)
        *word = 1;
}

int launch_mark(void *stream, volatile uint32_t *word)
{
    auto kernel = set_word;
    LAUNCH(kernel, 1, WARP, 0, (cudaStream_t)stream, word);
    return launch_result();
}
