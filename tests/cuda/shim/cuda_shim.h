/* CUDA on the CPU: the twins of what kernels/cuda/device.cuh wraps, for compiling .cu files as C++ (`-x c++`).
 *
 * A launch runs its blocks one after the other on the calling thread; a block's threads are fibers (shim.cc). A warp
 * operation is a deposit: each lane leaves its arguments and stops, the last to arrive executes for all 32. What a GPU
 * would leave undefined or hide is an error with one line and exit status SHIM_FAILED: a barrier that not every thread
 * reaches, warp operations that differ between lanes, a thread that ends with copies under way, misaligned accesses,
 * a write past a shared array. Shared memory starts as 0xFF (NaN), asynchronous copies can be made to land as late as
 * the program allows, and the order of warps and lanes follows a seed.
 */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <functional>

#define SHIM_FAILED      97 /* exit status after an error of the kernel under test */
#define SHIM_SHARED_MOST (227 * 1024)

struct shim_thread {
    uint3 index;
    int number; /* within the block: x fastest */
};

struct shim_site {
    uint64_t block; /* the block (counted over all launches) that `array` belongs to */
    void *array;
};

extern shim_thread *shim_self;
extern uint3 shim_block_index;
extern dim3 shim_block_size, shim_grid_size;

/* how the next launches run: order of warps and lanes; whether copies land at their wait instead of at their issue */
void shim_set_seed(uint64_t seed);
void shim_set_late_copies(bool late);
/* call `each` with the linker's name of every kernel that has been launched */
void shim_executed(void (*each)(const char *name, void *context), void *context);
/* the same of every kernel that has been launched with dynamic shared memory on an H100, and never, though it would
 * fit, where a block can have `bytes` */
void shim_not_executed_with(int bytes, void (*each)(const char *name, void *context), void *context);
/* for the stand-ins of the host side: called before each launch */
extern void (*shim_before_launch)(const char *name, void *stream);
/* and before that: true if it has kept `launch`, to be launched by `play` any number of times, and not now */
extern bool (*shim_keep_launch)(void *stream, void (*play)(void *launch), void *launch);

[[noreturn]] void shim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void shim_launch(const void *kernel, const char *name, dim3 grid, dim3 block, size_t shared, void *stream,
                 const std::function<void()> &body);
/* Bytes of shared memory that a block may have: SHIM_SHARED_KIB of the environment, or those of an H100. */
int shim_device_shared();
void shim_allow_shared(const void *kernel, int bytes);
void *shim_shared_array(shim_site *site, size_t bytes);
void *shim_shared_dynamic();
void shim_barrier(int line);
void shim_warp(void (*execute)(void *const lanes[32]), void *mine);
void shim_copy_async(void *shared, const void *global, bool valid);
void shim_copy_commit();
void shim_copy_wait(int pending);
/* dies unless [address, address + bytes) lies in this block's shared memory, aligned to 16 */
void shim_check_shared(const void *address, size_t bytes);
/* race.cc: an access made by the shim itself on behalf of a thread */
void shim_note_read(const void *address, size_t bytes, int thread);
void shim_note_write(const void *address, size_t bytes, int thread);
bool shim_watches_accesses();

/* banks.cc: wavefronts of shared memory that launches between the two calls take, and the least that accesses of their
 * sizes can take; both 0 where accesses are not watched */
struct shim_wavefronts {
    long taken, least;
};
void shim_count_wavefronts();
shim_wavefronts shim_counted_wavefronts();

#define threadIdx (shim_self->index)
#define blockIdx  shim_block_index
#define blockDim  shim_block_size
#define gridDim   shim_grid_size

#define KERNEL(threads, blocks) void
#define SHARED(type, name, count)                                                                                      \
    static shim_site name##_site;                                                                                      \
    type *name = static_cast<type *>(shim_shared_array(&name##_site, sizeof(type) * (count)))
#define SHARED_DYNAMIC(name) unsigned char *name = static_cast<unsigned char *>(shim_shared_dynamic())
#define UNROLL
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                                               \
    shim_launch(reinterpret_cast<const void *>(kernel), #kernel, grid, block, shared, stream,                          \
                shim_bound(kernel, __VA_ARGS__))

/* the arguments' values as they are now: a launch may run later */
template <typename K, typename... A> static inline std::function<void()> shim_bound(K *kernel, A... arguments)
{
    return [=]() { kernel(arguments...); };
}

template <typename K> static inline int raise_shared_limit(K *kernel, int bytes)
{
    shim_allow_shared(reinterpret_cast<const void *>(kernel), bytes);
    return 0;
}

static inline int device_shared_bytes(void)
{
    return shim_device_shared();
}

static inline int launch_result(void)
{
    return 0;
}

static inline void block_barrier(int line = __builtin_LINE())
{
    shim_barrier(line);
}

struct shim_exchange {
    unsigned char value[8], result[8];
    int lane; /* where the result comes from */
};

void shim_exchange_all(void *const lanes[32]);
void shim_nothing(void *const lanes[32]);
void shim_ballot_all(void *const lanes[32]);

static inline void warp_barrier(void)
{
    shim_warp(shim_nothing, nullptr);
}

template <typename T> static inline T warp_from(T value, int lane)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    shim_exchange mine;
    memcpy(mine.value, &value, sizeof value);
    mine.lane = lane & 31;
    shim_warp(shim_exchange_all, &mine);
    memcpy(&value, mine.result, sizeof value);
    return value;
}

template <typename T> static inline T warp_xor(T value, int mask)
{
    return warp_from(value, (shim_self->number & 31) ^ mask);
}

struct shim_vote {
    bool value;
    uint32_t result;
};

static inline uint32_t warp_ballot(bool value)
{
    shim_vote mine = {value, 0};
    shim_warp(shim_ballot_all, &mine);
    return mine.result;
}

static inline int count_bits(uint32_t bits)
{
    return __builtin_popcount(bits);
}

static inline void atomic_add(unsigned long long *to, unsigned long long value)
{
    *to += value;
}

static inline int32_t atomic_add(int32_t *to, int32_t value)
{
    int32_t before = *to;
    *to += value;
    return before;
}

static inline void atomic_max(int32_t *to, int32_t value)
{
    *to = *to > value ? *to : value;
}

static inline float fast_exp2(float x)
{
    return exp2f(x);
}

static inline float fast_quotient(float a, float b)
{
    return a / b;
}

static inline float rounded_product(float a, float b)
{
    return a * b;
}

static inline double rounded_product(double a, double b)
{
    return a * b;
}

static inline void copy_async(void *shared, const void *global, bool valid)
{
    shim_copy_async(shared, global, valid);
}

static inline void copy_commit(void)
{
    shim_copy_commit();
}

template <int pending> static inline void copy_wait(void)
{
    shim_copy_wait(pending);
}

struct shim_matrices {
    const void *row;    /* the address this lane names */
    uint32_t result[4]; /* two elements of each of the four matrices */
};

void shim_load_matrices(void *const lanes[32]);
void shim_load_matrices_transposed(void *const lanes[32]);

static inline void load_matrix(uint32_t (&to)[4], const void *row)
{
    shim_matrices mine = {row, {0, 0, 0, 0}};
    shim_warp(shim_load_matrices, &mine);
    memcpy(to, mine.result, sizeof to);
}

static inline void load_matrix_transposed(uint32_t (&to)[4], const void *row)
{
    shim_matrices mine = {row, {0, 0, 0, 0}};
    shim_warp(shim_load_matrices_transposed, &mine);
    memcpy(to, mine.result, sizeof to);
}

struct shim_product {
    float c[4];
    uint32_t a[4], b[2];
};

void shim_multiply_bf16(void *const lanes[32]);
void shim_multiply_fp16(void *const lanes[32]);

static inline void multiply_add_by(void (*execute)(void *const lanes[32]), float (&c)[4], const uint32_t (&a)[4],
                                   uint32_t b0, uint32_t b1)
{
    shim_product mine = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    shim_warp(execute, &mine);
    memcpy(c, mine.c, sizeof mine.c);
}

static inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16)
{
    multiply_add_by(shim_multiply_bf16, c, a, b0, b1);
}

static inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half)
{
    multiply_add_by(shim_multiply_fp16, c, a, b0, b1);
}
