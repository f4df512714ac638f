/* Every CUDA kernel against naive float64 references, over odd sizes. Without a GPU the kernels execute on the shim
 * (tests/cuda/shim), each case under several orders of warps and with asynchronous copies landing early and late;
 * compiled by nvcc the same file runs on a GPU.
 *
 *     test_cuda_kernels [--executed] [PREFIX OF CASE NAMES]     --executed prints the linker names of the kernels that
 *                                                               ran
 */
#include "tests/cuda/check.h"

#ifndef __CUDACC__
#include <cuda_shim.h>
#endif

counters check_count;
static uint64_t random_state;

void check_die(const char *what)
{
    fprintf(stderr, "%s: %s\n", check_count.now, what);
    exit(1);
}

void check_seed(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15ull + 1;
}

static uint64_t draw()
{
    random_state += 0x9e3779b97f4a7c15ull; /* splitmix64 */
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

double check_random()
{
    return (double)(int64_t)draw() * 0x1p-63;
}

int check_integer(int below)
{
    return (int)(draw() % (uint64_t)below);
}

vector<double> randoms(size_t count, double scale)
{
    vector<double> values(count);
    for (double &v : values)
        v = check_random() * scale;
    return values;
}

#ifdef __CUDACC__
static void must(cudaError_t error)
{
    if (error != cudaSuccess)
        check_die(cudaGetErrorString(error));
}

void *check_allocate(size_t bytes)
{
    void *at = nullptr;
    must(cudaMalloc(&at, bytes ? bytes : 1));
    return at;
}

void check_free(void *at)
{
    must(cudaFree(at));
}

void check_to(void *device, const void *host, size_t bytes)
{
    must(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void check_from(void *host, const void *device, size_t bytes)
{
    must(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

wavefronts count_wavefronts(const std::function<void()> &launches)
{
    launches();
    return {false, 0, 0};
}
#else
void *check_allocate(size_t bytes)
{
    return malloc(bytes ? bytes : 1);
}

void check_free(void *at)
{
    free(at);
}

void check_to(void *device, const void *host, size_t bytes)
{
    memcpy(device, host, bytes);
}

void check_from(void *host, const void *device, size_t bytes)
{
    memcpy(host, device, bytes);
}

wavefronts count_wavefronts(const std::function<void()> &launches)
{
    shim_count_wavefronts();
    launches();
    shim_wavefronts w = shim_counted_wavefronts();
    return {shim_watches_accesses(), w.taken, w.least};
}
#endif

int type_bytes(int type)
{
    return type == DTYPE_FP32 || type == INT32 ? 4 : type == INT64 || type == FP64 ? 8 : type == BYTES ? 1 : 2;
}

template <typename T> static void put_as(void *to, T value)
{
    memcpy(to, &value, sizeof value);
}

template <typename T> static T get_as(const void *from)
{
    T value;
    memcpy(static_cast<void *>(&value), from, sizeof value);
    return value;
}

void encode(void *to, int type, double value)
{
    if (type == DTYPE_FP32)
        put_as(to, (float)value);
    else if (type == DTYPE_BF16)
        put_as(to, __float2bfloat16_rn((float)value));
    else if (type == DTYPE_FP16)
        put_as(to, __float2half_rn((float)value));
    else if (type == INT32)
        put_as(to, (int32_t)value);
    else if (type == INT64)
        put_as(to, (int64_t)value);
    else if (type == FP64)
        put_as(to, value);
    else
        put_as(to, (unsigned char)value);
}

double decode(const void *from, int type)
{
    if (type == DTYPE_FP32)
        return (double)get_as<float>(from);
    if (type == DTYPE_BF16)
        return (double)__bfloat162float(get_as<__nv_bfloat16>(from));
    if (type == DTYPE_FP16)
        return (double)__half2float(get_as<__half>(from));
    if (type == INT32)
        return get_as<int32_t>(from);
    if (type == INT64)
        return (double)get_as<int64_t>(from);
    return type == FP64 ? get_as<double>(from) : (double)get_as<unsigned char>(from);
}

double rounded_to(int type, double value)
{
    unsigned char bytes[8];
    encode(bytes, type, value);
    return decode(bytes, type);
}

void array::put()
{
    vector<unsigned char> bytes(size());
    for (size_t i = 0; i < value.size(); i++) {
        encode(bytes.data() + i * (size_t)type_bytes(type), type, value[i]);
        value[i] = decode(bytes.data() + i * (size_t)type_bytes(type), type);
    }
    check_to(at, bytes.data(), bytes.size());
}

const vector<double> &array::get()
{
    vector<unsigned char> bytes(size());
    check_from(bytes.data(), at, bytes.size());
    for (unsigned char byte : bytes)
        check_count.hash = (check_count.hash ^ byte) * 0x100000001b3ull; /* FNV-1a */
    for (size_t i = 0; i < value.size(); i++)
        value[i] = decode(bytes.data() + i * (size_t)type_bytes(type), type);
    return value;
}

static double unit(int type)
{
    return type == DTYPE_FP32 ? 0x1p-24 : type == DTYPE_BF16 ? 0x1p-8 : type == DTYPE_FP16 ? 0x1p-11 : 0;
}

/* CHECK_STOP in the environment: one failure is enough, as it is of a mutant. */
static void count_failure()
{
    check_count.failed++;
    if (getenv("CHECK_STOP"))
        exit(1);
}

void compare(const char *what, array &got, const vector<double> &want, double slack)
{
    got.get();
    if (got.value.size() != want.size())
        check_die("sizes differ");
    double square = 0, worst = 0;
    size_t at = 0;
    for (double w : want)
        square += w * w;
    double rms = want.empty() ? 0 : sqrt(square / (double)want.size());
    double tiny = got.type == DTYPE_FP16 ? 0x1p-25 : 1e-38;
    for (size_t i = 0; i < want.size(); i++) {
        double allowed = unit(got.type) * fabs(want[i]) + slack * (rms + fabs(want[i])) + tiny;
        double error = want[i] == got.value[i] ? 0 : fabs(got.value[i] - want[i]) / allowed;
        if (!(error <= worst)) {
            worst = error;
            at = i;
        }
    }
    check_count.compared++;
    if (getenv("CHECK_VERBOSE"))
        printf("  %-28s %-20s worst %.3f\n", check_count.now, what, worst);
    if (worst <= 1)
        return;
    printf("FAILED %s: %s: element %zu of %zu is %.9g, should be %.9g (%.3g times the tolerance)\n", check_count.now,
           what, at, want.size(), got.value[at], want[at], worst);
    count_failure();
}

void check(const char *what, bool good)
{
    check_count.compared++;
    if (good)
        return;
    printf("FAILED %s: %s\n", check_count.now, what);
    count_failure();
}

void run_ok(const char *what, int result)
{
    if (result)
        check_die(what);
#ifdef __CUDACC__
    must(cudaDeviceSynchronize());
#endif
}

static int launch_error; /* of the op that runs */

void cuda_launched(const op *, int error)
{
    launch_error = launch_error ? launch_error : error;
}

void cuda_must_be_whole(const op *, const tensor *t)
{
    if (t && !tensor_contiguous(t))
        check_die("an operand with gaps between its rows");
}

int call::error_of(op_kernel entry)
{
    const run_context context = {};
    launch_error = 0;
    entry(&o, &context);
    return launch_error;
}

static void run_case(const test_case &c)
{
    check_count.now = c.name;
    check_count.cases++;
#ifdef __CUDACC__
    long compared = check_count.compared, failed = check_count.failed;
    check_seed(1);
    c.run();
    printf("%-36s %6ld comparisons, %ld failed\n", c.name, check_count.compared - compared,
           check_count.failed - failed);
#else
    uint64_t hash[2];
    for (int order = 0; order < 2; order++) {
        shim_set_seed((uint64_t)order + 1);
        shim_set_late_copies(order == 1);
        check_seed(1);
        check_count.hash = 0;
        c.run();
        hash[order] = check_count.hash;
    }
    if (getenv("CHECK_VERBOSE"))
        printf("  %-28s bits %016llx\n", c.name, (unsigned long long)hash[0]);
    check("the order of warps changes no bit", hash[0] == hash[1]);
#endif
}

#ifndef __CUDACC__
/* What a kernel keeps in dynamic shared memory it keeps on every GPU: tiles, rows and limits follow what a block
 * has. */
static void check_shared_sizes()
{
    check_count.now = "every kernel with dynamic shared memory";
    for (int kib : {99, 163})
        shim_not_executed_with(
            kib * 1024,
            [](const char *name, void *size) {
                printf("%s has not run with %d KiB a block\n", name, *(const int *)size);
                check("runs on every GPU that it fits", false);
            },
            &kib);
}
#endif

int main(int count, char **arguments)
{
    bool executed = count > 1 && !strcmp(arguments[1], "--executed");
    const char *prefix = count > 1 + executed ? arguments[1 + executed] : "";
    setvbuf(stdout, nullptr, _IOLBF, 0); // a program that is ended in the middle has said what it saw
#ifdef __CUDACC__
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("test_cuda_kernels: skipped, no CUDA device\n");
        return 77;
    }
#endif
    for (const vector<test_case> *cases :
         {&pointwise_cases, &row_cases, &loss_cases, &attention_cases, &optimizer_cases, &update_cases, &compress_cases,
          &expert_cases, &grouped_cases, &balance_cases, &latent_cases, &qk_clip_cases, &instruction_cases})
        for (const test_case &c : *cases)
            if (!strncmp(c.name, prefix, strlen(prefix)))
                run_case(c);
#ifndef __CUDACC__
    if (!*prefix)
        check_shared_sizes();
    if (executed)
        shim_executed([](const char *name, void *) { printf("executed %s\n", name); }, nullptr);
#endif
    printf("test_cuda_kernels: %ld cases, %ld comparisons, %ld failed\n", check_count.cases, check_count.compared,
           check_count.failed);
    return check_count.failed || !check_count.cases ? 1 : 0;
}
