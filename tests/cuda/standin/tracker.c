/* Device memory with its shadow, and the clocks that say what is ordered. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mpi.h>

#include "memory/log.h"
#include "tests/cuda/standin/standin.h"

enum { GRAIN = 4, ALLOCATIONS = 64 };

typedef struct cell {
    uint32_t written, read[STANDIN_STREAMS]; /* clocks */
    int32_t writer;                          /* queue */
    const char *who;                         /* wrote it last */
} cell;

typedef struct allocation {
    char *base;
    int64_t bytes;
    cell *cells; /* mapped: untouched cells cost nothing */
} allocation;

static allocation table[ALLOCATIONS];
static standin_clock clocks[STANDIN_STREAMS];
static int64_t accesses;

_Noreturn void standin_fail(const char *format, ...)
{
    va_list list;
    fprintf(stderr, "standin: rank %d: ", log_rank());
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    if (standin_op())
        fprintf(stderr, " [op %s: %s]", standin_op()->label, op_row_of(standin_op())->name);
    fputc('\n', stderr);
    fflush(stderr);
    nanosleep(&(struct timespec){0, 300000000}, NULL); /* the thread of memory/outlet.h passes it on */
    int started = 0;
    MPI_Initialized(&started);
    if (started)
        MPI_Abort(MPI_COMM_WORLD, STANDIN_FAILED);
    _exit(STANDIN_FAILED);
}

bool standin_mutant(const char *name)
{
    static const char *wanted;
    static bool asked;
    if (!asked)
        wanted = getenv("STANDIN_MUTANT");
    asked = true;
    return wanted && !strcmp(wanted, name);
}

static size_t cell_bytes(int64_t bytes)
{
    return (size_t)((bytes + GRAIN - 1) / GRAIN) * sizeof(cell);
}

void *standin_allocate(int64_t bytes)
{
    for (int i = 0; i < ALLOCATIONS; i++) {
        allocation *a = &table[i];
        if (a->base)
            continue;
        a->bytes = bytes;
        a->base = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256);
        a->cells =
            mmap(NULL, cell_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(a->base && a->cells != MAP_FAILED, "out of memory");
        memset(a->base, 0xFF, (size_t)bytes); /* NaN: nobody may count on zeros */
        return a->base;
    }
    standin_fail("more than %d allocations of device memory", ALLOCATIONS);
}

static allocation *find(const void *at, int64_t bytes)
{
    for (int i = 0; i < ALLOCATIONS; i++)
        if (table[i].base && (const char *)at >= table[i].base &&
            (const char *)at + bytes <= table[i].base + table[i].bytes)
            return &table[i];
    return NULL;
}

int64_t standin_free(void *memory)
{
    if (!memory)
        return 0;
    allocation *a = find(memory, 0);
    if (!a || a->base != memory)
        standin_fail("cudaFree of what cudaMalloc did not give");
    int64_t bytes = a->bytes;
    munmap(a->cells, cell_bytes(a->bytes));
    free(a->base);
    *a = (allocation){0};
    return bytes;
}

bool standin_is_device(const void *at)
{
    return find(at, 1) != NULL;
}

standin_clock *standin_clock_of(int queue)
{
    return &clocks[queue];
}

void standin_join(standin_clock *to, const standin_clock *from)
{
    for (int i = 0; i < STANDIN_STREAMS; i++)
        if (from->at[i] > to->at[i])
            to->at[i] = from->at[i];
}

void standin_tick(int queue)
{
    if (standin_captured(queue))
        standin_fail("work for a captured queue is executed: its stand-in cannot keep it");
    standin_join(&clocks[queue], &clocks[STANDIN_HOST]);
    clocks[queue].at[queue]++;
}

int64_t standin_accesses(void)
{
    return accesses;
}

/* Some queue reads the cell later than `now` knows of. No early end: so the comparisons are those of vectors. */
static bool read_later(const cell *c, const standin_clock *now)
{
    unsigned later = 0;
    for (int i = 0; i < STANDIN_STREAMS; i++)
        later |= c->read[i] > now->at[i];
    return later;
}

static _Noreturn void say_race(const cell *c, int queue, bool write, const char *what, const void *at)
{
    const standin_clock *now = &clocks[queue];
    if (c->written > now->at[c->writer])
        standin_fail("race: %s on queue %d %s %p, which %s on queue %d writes: no wait between them", what, queue,
                     write ? "writes" : "reads", at, c->who, c->writer);
    int reader = 0;
    while (c->read[reader] <= now->at[reader])
        reader++;
    standin_fail("race: %s on queue %d writes %p, which queue %d still reads: no wait between them", what, queue, at,
                 reader);
}

void standin_access(int queue, const void *at, int64_t bytes, bool write, const char *what)
{
    if (bytes <= 0)
        return;
    allocation *a = find(at, bytes);
    if (!a)
        standin_fail("%s %s %lld bytes at %p, which is %s", what, write ? "writes" : "reads", (long long)bytes, at,
                     find(at, 1) ? "more than the allocation holds" : "no device memory");
    accesses++;
    const standin_clock *now = &clocks[queue];
    int64_t first = ((const char *)at - a->base) / GRAIN, last = ((const char *)at - a->base + bytes - 1) / GRAIN;
    for (int64_t i = first; i <= last; i++) {
        cell *c = &a->cells[i];
        if (c->written > now->at[c->writer] || (write && read_later(c, now)))
            say_race(c, queue, write, what, a->base + i * GRAIN);
        if (write) {
            c->written = now->at[queue];
            c->writer = queue;
            c->who = what;
        } else {
            c->read[queue] = now->at[queue];
        }
    }
}

void standin_access_tensor(int queue, const tensor *t, char *arena, bool write, const char *what)
{
    if (!t || tensor_elements(t) == 0)
        return;
    char *at = tensor_at(t, arena);
    if (tensor_contiguous(t)) {
        standin_access(queue, at, tensor_bytes(t), write, what);
        return;
    }
    int64_t element = dtype_bytes((dtype)t->type), row = tensor_elements(t) / t->shape[0] * element;
    for (int64_t i = 0; i < t->shape[0]; i++)
        standin_access(queue, at + i * t->pitch * element, row, write, what);
}
