/* What the tests of the CUDA kernels share: arrays that live where kernels can reach them, and comparison with float64.
 *
 * An `array` holds its values twice: as doubles, already rounded to its element type, for the reference, and as bytes
 * for the kernel. On the shim these are exactly as long as the array, so that AddressSanitizer sees the first byte too
 * many; under nvcc they are device memory and the same program runs on a GPU. Outputs start as NaN.
 */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <functional>
#include <initializer_list>
#include <vector>

#include "kernels/cuda/bind.cuh"
#include "kernels/cuda/launch.h"

using std::vector;

enum { INT32 = DTYPE_INT32, INT64 = DTYPE_INT64, FP64 = DTYPE_FP64, BYTES = DTYPE_UINT8 };

static const int check_types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};

struct counters {
    long compared = 0, failed = 0, cases = 0;
    uint64_t hash = 0; /* of every output looked at */
    const char *now = "";
};
extern counters check_count;

[[noreturn]] void check_die(const char *what);
double check_random(); /* uniform in [-1, 1), a fixed sequence per case */
void check_seed(uint64_t seed);
int check_integer(int below);

/* Where kernels reach: exact size, 16-byte aligned. */
void *check_allocate(size_t bytes);
void check_free(void *at);
void check_to(void *device, const void *host, size_t bytes);
void check_from(void *host, const void *device, size_t bytes);

int type_bytes(int type);
void encode(void *to, int type, double value);
double decode(const void *from, int type);
double rounded_to(int type, double value);

class array
{
  public:
    int type;
    vector<double> value;

    array(int type_, vector<double> values) : type(type_), value(std::move(values))
    {
        allocate();
        put();
    }
    /* an output: NaN (or -1) in every element */
    array(int type_, size_t count) : type(type_), value(count, 0)
    {
        allocate();
        vector<unsigned char> bytes(size(), 0xff);
        check_to(at, bytes.data(), bytes.size());
    }
    array(const array &) = delete;
    array &operator=(const array &) = delete;
    ~array()
    {
        check_free(at);
    }
    size_t size() const
    {
        return value.size() * (size_t)type_bytes(type);
    }
    template <typename T = void> T *to() const
    {
        return static_cast<T *>(at);
    }
    void put();
    const vector<double> &get();

  private:
    void allocate()
    {
        at = check_allocate(size());
    }
    void *at = nullptr;
};

/* ---- ops --------------------------------------------------------------------------------------------------------- */

/* [rows, columns] from element `first` of an array on, rows `pitch` elements apart; 0: one behind the other. Operands
 * are addresses in an arena that begins at 0. */
inline tensor rows_in(const array &a, int64_t rows, int64_t columns, int64_t pitch = 0, int64_t first = 0)
{
    tensor t = {};
    t.address = (int64_t)(uintptr_t)(a.to<char>() + first * type_bytes(a.type));
    t.type = (uint8_t)a.type;
    t.dims = 2;
    t.shape[0] = rows;
    t.shape[1] = columns;
    t.shape[2] = 1;
    t.pitch = pitch ? pitch : columns;
    return t;
}

/* all of an array, or `count` elements of it, as a vector */
inline tensor all_of(const array &a, int64_t count = -1, int64_t first = 0)
{
    tensor t = rows_in(a, count < 0 ? (int64_t)a.value.size() : count, 1, 1, first);
    t.dims = 1;
    return t;
}

/* an operand that the op does without */
const tensor none = {};

/* the operand, or none */
inline tensor only_if(bool there, const tensor &t)
{
    return there ? t : none;
}

/* An op and its operands, for its entry point. */
struct call {
    op o = {};
    tensor operands[OP_MAX_IN + OP_MAX_OUT + 1];

    call(std::initializer_list<tensor> in, std::initializer_list<tensor> out)
    {
        int i = 0, k = 0;
        for (const tensor &t : in)
            set(o.in[i], i, t), i++;
        for (const tensor &t : out)
            set(o.out[k], OP_MAX_IN + k, t), k++;
        o.where.owner = -1;
    }
    call(const call &) = delete;
    call &operator=(const call &) = delete;
    void in(int i, const tensor &t)
    {
        set(o.in[i], i, t);
    }
    void out(int i, const tensor &t)
    {
        set(o.out[i], OP_MAX_IN + i, t);
    }
    void scratch(const array &a)
    {
        set(o.scratch, OP_MAX_IN + OP_MAX_OUT, all_of(a));
    }
    /* Runs it; what its launches said. */
    int error_of(op_kernel entry);

  private:
    void set(tensor *&place, int at, const tensor &t)
    {
        operands[at] = t;
        place = t.dims ? &operands[at] : nullptr;
    }
};

#define RUN(name, of) run_ok("cuda_" #name, (of).error_of(cuda_##name))

/* a struct as a kernel reads it */
inline array bytes_of(const void *from, size_t count)
{
    vector<double> bytes(count);
    for (size_t i = 0; i < count; i++)
        bytes[i] = static_cast<const unsigned char *>(from)[i];
    return array(BYTES, bytes);
}

/* `count` random values in [-scale, scale) */
vector<double> randoms(size_t count, double scale = 1);

/* Pass where |got - want| <= unit(type) |want| + slack (rms(want) + |want|): one rounding to the type, and `slack` for
 * what fp32 arithmetic, or narrowed intermediate values, may add. Anything that is not a number fails. */
void compare(const char *what, array &got, const vector<double> &want, double slack);
void check(const char *what, bool good);

void run_ok(const char *what, int result);

/* While it lives the shim's device has so many KiB of shared memory a block (sm_86, sm_89, sm_120: 99; sm_80: 163); on
 * a GPU nothing changes. */
struct shared_limit {
    explicit shared_limit(const char *kib)
    {
        setenv("SHIM_SHARED_KIB", kib, 1);
    }
    ~shared_limit()
    {
        unsetenv("SHIM_SHARED_KIB");
    }
    shared_limit(const shared_limit &) = delete;
    shared_limit &operator=(const shared_limit &) = delete;
};

/* Wavefronts of shared memory that `launches` take, and the least that accesses of their sizes can take. Known in the
 * race build of the shim, where their number is more than 0. */
struct wavefronts {
    bool known;
    long taken, least;
};
wavefronts count_wavefronts(const std::function<void()> &launches);

struct test_case {
    const char *name;
    void (*run)();
};

extern const vector<test_case> pointwise_cases, row_cases, loss_cases, attention_cases, optimizer_cases, update_cases,
    compress_cases, expert_cases, grouped_cases, balance_cases, latent_cases, qk_clip_cases, instruction_cases;
