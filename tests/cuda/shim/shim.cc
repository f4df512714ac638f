/* Blocks as fibers: see cuda_shim.h. One operating-system thread runs everything; a launch returns when it is done.
 *
 * Scheduling is what finds races. Threads run until they block; warps have random priorities, redrawn at each barrier,
 * and the most urgent warp that can run, runs ("warp-greedy": one warp races far ahead of another, as on a GPU, which a
 * mere shuffling of the release order hardly ever shows). Within a warp the first lane is random. A fiber whose thread
 * ends takes the next thread that has not started, so that a kernel without barriers is a loop.
 */
#include <cuda_shim.h>

#include "shim.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <pthread.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define WITH_ASAN 1
#else
#define WITH_ASAN                             0
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

namespace
{
constexpr size_t STACK_BYTES = 64 * 1024, PAGE = 4096, REDZONE = 64;
constexpr int MAX_THREADS = 1024;
constexpr size_t SHARED_DEFAULT = 48 * 1024;
constexpr size_t SHARED_STATIC = 1024; /* as in device.cuh */

struct fiber {
    void *stack_pointer = nullptr;
    char *stack = nullptr;
    void *fake_stack = nullptr;
    shim_thread *thread = nullptr;
};

struct copy {
    void *to;
    const void *from;
    bool valid;
    uint64_t group;
};

enum class wait { none, warp, barrier };

struct thread_state {
    shim_thread self;
    fiber *on = nullptr;
    wait waiting = wait::none;
    std::vector<copy> copies;
    uint64_t group = 0; /* copies issued now belong to this group; those before it are committed */
};

struct warp_state {
    uint32_t ready, unstarted, done, arrived;
    void (*execute)(void *const lanes[32]);
    void *deposit[32];
};

struct block_state {
    thread_state threads[MAX_THREADS];
    warp_state warps[MAX_THREADS / 32];
    int order[MAX_THREADS / 32]; /* warps, most urgent first */
    int threads_count, warps_count, finished, at_barrier, barrier_line;
    size_t shared_used, dynamic_bytes;
    std::vector<size_t> redzones;
    const std::function<void()> *body;
};

block_state block;
fiber fibers[MAX_THREADS]; /* as many as threads can wait at once */
int fibers_made;
std::vector<fiber *> idle;
fiber host;
fiber *running = &host;
const void *kernel;
uint64_t random_state = 1;
bool late_copies;
std::map<const void *, int> allowed;
std::set<const void *> launched;
struct dynamic_use {
    size_t least = SIZE_MAX; /* bytes */
    std::set<int> devices;   /* bytes that a block could have when it was launched */
};
std::map<const void *, dynamic_use> dynamic_uses;
unsigned char *dynamic_memory;

uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 33) % below);
}

thread_state &current()
{
    return block.threads[shim_self->number];
}
} // namespace

shim_thread *shim_self;
alignas(1024) unsigned char shim_shared_memory[SHIM_SHARED_BYTES];
uint32_t shim_epoch, shim_warp_epoch[32];
uint64_t shim_block_serial;
uint3 shim_block_index;
dim3 shim_block_size, shim_grid_size;
void (*shim_before_launch)(const char *name, void *stream);
bool (*shim_keep_launch)(void *stream, void (*play)(void *launch), void *launch);

/* shim_switch(where to keep this stack, the stack to go on with): callee-saved registers travel on the stack */
extern "C" void shim_switch(void **keep, void *go);
__asm__(".text\n"
        ".globl shim_switch\n"
        ".type shim_switch, @function\n"
        "shim_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size shim_switch, . - shim_switch\n"
        ".section .note.GNU-stack,\"\",@progbits\n"
        ".text\n");

void shim_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    Dl_info info;
    const char *name = kernel && dladdr(kernel, &info) && info.dli_sname ? info.dli_sname : "?";
    fprintf(stderr, "shim: kernel %s, block (%u, %u, %u), thread %d: ", name, shim_block_index.x, shim_block_index.y,
            shim_block_index.z, shim_self ? shim_self->number : -1);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(SHIM_FAILED);
}

static void fiber_switch(fiber *to)
{
    fiber *from = running;
    running = to;
    shim_self = to->thread;
#if WITH_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, STACK_BYTES);
#endif
    shim_switch(&from->stack_pointer, to->stack_pointer);
#if WITH_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

static void draw_order()
{
    for (int i = block.warps_count - 1; i > 0; i--)
        std::swap(block.order[i], block.order[draw((uint32_t)i + 1)]);
}

/* Everyone who has not ended is waiting: open the barrier, or say what is wrong. */
static void release_barrier()
{
    if (block.at_barrier == 0 || block.at_barrier + block.finished != block.threads_count)
        shim_fail("deadlock: %d threads at a barrier (line %d), %d ended, the others in a warp operation that not all "
                  "lanes reach",
                  block.at_barrier, block.barrier_line, block.finished);
    if (block.finished)
        shim_fail("barrier (line %d) that %d of %d threads never reach: they have ended", block.barrier_line,
                  block.finished, block.threads_count);
    block.at_barrier = 0;
    shim_epoch++;
    for (int i = 0; i < block.threads_count; i++)
        block.threads[i].waiting = wait::none;
    for (int w = 0; w < block.warps_count; w++)
        block.warps[w].ready = 0xffffffffu;
    draw_order();
}

/* the next thread to run, removed from its warp's set; NULL when the block is done */
static thread_state *pick()
{
    if (block.finished == block.threads_count)
        return nullptr;
    for (;;) {
        for (int i = 0; i < block.warps_count; i++) {
            int w = block.order[i];
            warp_state &warp = block.warps[w];
            uint32_t can = warp.ready | warp.unstarted;
            if (!can)
                continue;
            int turn = (int)draw(32);
            uint32_t turned = turn ? (can >> turn) | (can << (32 - turn)) : can;
            int lane = (__builtin_ctz(turned) + turn) & 31;
            warp.ready &= ~(1u << lane);
            return &block.threads[w * 32 + lane];
        }
        release_barrier();
    }
}

static void fiber_main();

static fiber *fiber_take()
{
    fiber *f;
    if (idle.empty()) {
        f = &fibers[fibers_made++];
        char *memory = (char *)mmap(nullptr, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE))
            shim_fail("no memory for a stack");
        f->stack = memory + PAGE;
    } else {
        f = idle.back();
        idle.pop_back();
    }
    /* the frames that fiber_main has left for ever are its own: a kernel's have been cleared when it returned */
    ASAN_UNPOISON_MEMORY_REGION(f->stack + STACK_BYTES - PAGE, PAGE);
    void **top = (void **)(f->stack + STACK_BYTES);
    *--top = nullptr; /* so that the entry finds its stack 8 mod 16, as after a call */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->stack_pointer = top;
    f->fake_stack = nullptr;
    return f;
}

static void thread_begin(thread_state *t, fiber *on)
{
    t->on = on;
    on->thread = &t->self;
    block.warps[t->self.number / 32].unstarted &= ~(1u << (t->self.number & 31));
}

static bool unstarted(const thread_state *t)
{
    return block.warps[t->self.number / 32].unstarted >> (t->self.number & 31) & 1;
}

/* leave the running fiber for the next thread that can run, or for the host when there is none */
static void go_on(thread_state *next)
{
    fiber *to = &host;
    if (next) {
        if (unstarted(next))
            thread_begin(next, fiber_take());
        to = next->on;
    }
    if (to != running)
        fiber_switch(to);
}

static void thread_end(thread_state *t)
{
    for (const copy &c : t->copies)
        if (c.to)
            shim_fail("the thread ended with asynchronous copies under way");
    t->copies.clear();
    warp_state &warp = block.warps[t->self.number / 32];
    warp.done |= 1u << (t->self.number & 31);
    block.finished++;
    t->on = nullptr;
}

static void fiber_main()
{
#if WITH_ASAN
    __sanitizer_finish_switch_fiber(running->fake_stack, nullptr, nullptr);
#endif
    fiber *me = running;
    for (;;) {
        (*block.body)();
        thread_end(&current());
        thread_state *next = pick();
        if (next && unstarted(next)) {
            thread_begin(next, me);
            shim_self = me->thread;
            continue;
        }
        idle.push_back(me);
        go_on(next);
        shim_fail("a fiber that was done was resumed");
    }
}

static void block_wait(wait why)
{
    current().waiting = why;
    go_on(pick());
}

void shim_barrier(int line)
{
    if (block.at_barrier == 0)
        block.barrier_line = line;
    else if (block.barrier_line != line)
        shim_fail("threads of one block wait at different barriers (lines %d and %d)", block.barrier_line, line);
    block.at_barrier++;
    block_wait(wait::barrier);
}

void shim_warp(void (*execute)(void *const lanes[32]), void *mine)
{
    int lane = shim_self->number & 31;
    warp_state &warp = block.warps[shim_self->number / 32];
    if (warp.done)
        shim_fail("warp operation after lanes %08x of the warp have ended", warp.done);
    if (warp.arrived && warp.execute != execute)
        shim_fail("the lanes of a warp are in different warp operations");
    warp.execute = execute;
    warp.deposit[lane] = mine;
    warp.arrived |= 1u << lane;
    if (warp.arrived != 0xffffffffu) {
        block_wait(wait::warp);
        return;
    }
    execute(warp.deposit);
    if (execute == shim_nothing)
        shim_warp_epoch[shim_self->number / 32]++;
    warp.arrived = 0;
    warp.ready = 0xffffffffu & ~(1u << lane);
}

/* A piece of this block's shared memory with a redzone behind it, poisoned as uninitialised memory is not: with
 * NaNs. */
static void *shared_take(size_t bytes)
{
    size_t at = block.shared_used, end = at + (bytes + 15) / 16 * 16;
    if (end + REDZONE > SHIM_SHARED_BYTES)
        shim_fail("more shared memory than any device has");
    unsigned char *memory = shim_shared_memory + at;
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    memset(memory, 0xff, bytes);
    if (!WITH_ASAN)
        memset(shim_shared_memory + end, 0xa5, REDZONE);
    block.redzones.push_back(end);
    block.shared_used = end + REDZONE;
    return memory;
}

void *shim_shared_array(shim_site *site, size_t bytes)
{
    if (site->block != shim_block_serial) {
        site->block = shim_block_serial;
        site->array = shared_take(bytes);
    }
    return site->array;
}

void *shim_shared_dynamic()
{
    return block.dynamic_bytes ? dynamic_memory : nullptr; /* a kernel may do without */
}

void shim_check_shared(const void *address, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)address;
    if (at < shim_shared_memory || at + bytes > shim_shared_memory + block.shared_used)
        shim_fail("address outside of shared memory");
    if ((uintptr_t)at % 16)
        shim_fail("shared address not aligned to 16 bytes");
#if WITH_ASAN
    if (__asan_region_is_poisoned((void *)address, bytes))
        shim_fail("address past the end of a shared array");
#endif
}

int shim_device_shared()
{
    const char *kib = getenv("SHIM_SHARED_KIB");
    return kib ? atoi(kib) * 1024 : SHIM_SHARED_MOST;
}

void shim_allow_shared(const void *kernel, int bytes)
{
    if (bytes > shim_device_shared())
        shim_fail("%d bytes of shared memory asked for, a device has %d", bytes, shim_device_shared());
    allowed[kernel] = bytes;
}

static void copy_land(const copy &c)
{
    if (c.valid)
        memcpy(c.to, c.from, 16);
    else
        memset(c.to, 0, 16);
}

/* Early: the copy lands at once. Late: the destination is garbage until the thread waits for the group. */
void shim_copy_async(void *shared, const void *global, bool valid)
{
    shim_check_shared(shared, 16);
    if (valid && (uintptr_t)global % 16)
        shim_fail("asynchronous copy from an address not aligned to 16 bytes");
    copy c = {shared, global, valid, current().group};
    shim_note_write(shared, 16, shim_self->number);
    if (late_copies)
        memset(shared, 0xff, 16);
    else
        copy_land(c);
    current().copies.push_back(c);
}

void shim_copy_commit()
{
    current().group++;
}

void shim_copy_wait(int pending)
{
    thread_state &t = current();
    size_t kept = 0;
    for (const copy &c : t.copies) {
        if (c.group + (uint64_t)pending < t.group) {
            shim_note_write(c.to, 16, shim_self->number);
            if (late_copies)
                copy_land(c);
        } else {
            t.copies[kept++] = c;
        }
    }
    t.copies.resize(kept);
}

static void block_check_redzones()
{
    if (WITH_ASAN)
        return;
    for (size_t zone : block.redzones)
        for (size_t i = 0; i < REDZONE; i++)
            if (shim_shared_memory[zone + i] != 0xa5)
                shim_fail("write past the end of a shared array");
}

static void block_run()
{
    shim_block_serial++;
    shim_epoch++;
    block.finished = block.at_barrier = 0;
    ASAN_POISON_MEMORY_REGION(shim_shared_memory, block.shared_used); /* what the block before had taken */
    block.shared_used = REDZONE;
    block.redzones.clear();
    if (block.dynamic_bytes)
        dynamic_memory = (unsigned char *)shared_take(block.dynamic_bytes);
    for (int i = 0; i < block.threads_count; i++) {
        unsigned x = shim_block_size.x, y = shim_block_size.y, u = (unsigned)i;
        block.threads[i].self = {{u % x, u / x % y, u / (x * y)}, i};
        block.threads[i].on = nullptr;
        block.threads[i].waiting = wait::none;
        block.threads[i].group = 0;
    }
    for (int w = 0; w < block.warps_count; w++) {
        warp_state &warp = block.warps[w];
        warp.ready = warp.done = warp.arrived = 0;
        warp.unstarted = 0xffffffffu;
        block.order[w] = w;
    }
    draw_order();
    go_on(pick());
    shim_self = nullptr;
    block_check_redzones();
    size_t static_bytes = block.shared_used - REDZONE * (block.redzones.size() + 1);
    static_bytes -= block.dynamic_bytes;
    size_t device_has = (size_t)shim_device_shared(), most = allowed.count(kernel) ? device_has : SHARED_DEFAULT;
    if (static_bytes > SHARED_DEFAULT || static_bytes + block.dynamic_bytes > most)
        shim_fail("%zu bytes of static and %zu of dynamic shared memory: together more than the %zu that %s",
                  static_bytes, block.dynamic_bytes, most,
                  most == device_has ? "a device has" : "there are without asking");
}

static void host_stack_bounds()
{
#if WITH_ASAN
    if (host.stack)
        return;
    pthread_attr_t attributes;
    void *stack;
    size_t bytes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &bytes);
    pthread_attr_destroy(&attributes);
    host.stack = (char *)stack + bytes - STACK_BYTES;
#endif
}

struct kept_launch {
    const void *kernel;
    const char *name;
    dim3 grid, size;
    size_t shared;
    void *stream;
    std::function<void()> body;
};

static void play_kept(void *launch)
{
    const kept_launch *l = static_cast<const kept_launch *>(launch);
    shim_launch(l->kernel, l->name, l->grid, l->size, l->shared, l->stream, l->body);
}

void shim_launch(const void *launching, const char *name, dim3 grid, dim3 size, size_t shared, void *stream,
                 const std::function<void()> &body)
{
    kernel = launching;
    shim_block_index = {0, 0, 0};
    if (shim_keep_launch) {
        std::unique_ptr<kept_launch> all(new kept_launch{launching, name, grid, size, shared, stream, body});
        if (shim_keep_launch(stream, play_kept, all.get())) {
            all.release(); /* it may be played until the process ends */
            return;
        }
    }
    size_t threads = (size_t)size.x * size.y * size.z;
    if (shim_before_launch)
        shim_before_launch(name, stream);
    if (threads == 0 || threads > MAX_THREADS || threads % 32)
        shim_fail("block of %zu threads", threads);
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        shim_fail("grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
    if (shared > SHARED_DEFAULT && (!allowed.count(kernel) || (size_t)allowed[kernel] < shared))
        shim_fail("%zu bytes of dynamic shared memory without asking for them", shared);
    host_stack_bounds();
    launched.insert(kernel);
    if (shared) {
        dynamic_use &use = dynamic_uses[kernel];
        use.least = std::min(use.least, shared);
        use.devices.insert(shim_device_shared());
    }
    shim_block_size = size;
    shim_grid_size = grid;
    block.threads_count = (int)threads;
    block.warps_count = (int)(threads / 32);
    block.dynamic_bytes = shared;
    block.body = &body;
    block.shared_used = 0;
    ASAN_POISON_MEMORY_REGION(shim_shared_memory, SHIM_SHARED_BYTES);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                shim_block_index = {x, y, z};
                block_run();
            }
    ASAN_UNPOISON_MEMORY_REGION(shim_shared_memory, SHIM_SHARED_BYTES);
}

void shim_set_seed(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
}

void shim_set_late_copies(bool late)
{
    late_copies = late;
}

static std::string name_of(const void *launched_kernel)
{
    Dl_info info;
    bool known = dladdr(launched_kernel, &info) && info.dli_sname;
    return known ? info.dli_sname : "(unnamed: link with -rdynamic)";
}

void shim_executed(void (*each)(const char *name, void *context), void *context)
{
    std::set<std::string> names;
    for (const void *launched_kernel : launched)
        names.insert(name_of(launched_kernel));
    for (const std::string &name : names)
        each(name.c_str(), context);
}

void shim_not_executed_with(int bytes, void (*each)(const char *name, void *context), void *context)
{
    for (const auto &[launched_kernel, use] : dynamic_uses)
        if (use.devices.count(SHIM_SHARED_MOST) && use.least + SHARED_STATIC <= (size_t)bytes &&
            !use.devices.count(bytes))
            each(name_of(launched_kernel).c_str(), context);
}
