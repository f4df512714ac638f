/* A device: the place of the arena, and the way to launch ops. The executor plays the same programs on every device.
 *
 * A device has one queue for ops (launch), and queues for communication beside it. Everything but read, write and
 * synchronise only enqueues. The order between queues follows from the program: communication starts after the ops
 * launched before it, and `wait` makes the ops launched from then on wait for that communication.
 *
 * `device_cpu` executes at once. `device_cuda` is in build/libphalanx_cuda.so, found by device_load() at run time. A
 * device is opened, used and closed by one thread; it owns the arena, the mirror and the queues.
 */
#pragma once

#include "kernels/table/devices.h"
#include "kernels/table/op.h"

/* Raised whenever device_interface, op, run_context or comm_backend change: an older shared object is refused. */
enum { DEVICE_VERSION = 14 };

/* The most lists of launches that a device keeps, one a program. */
enum { DEVICE_LISTS = 93 };

/* Set to 1, several ranks may use one GPU (correctness only; NCCL is told that they are on different hosts). */
#define DEVICE_SHARE_ENVIRONMENT "PHALANX_SHARE_GPU"

typedef struct device device;

typedef struct device_options {
    int requests;              /* asynchronous ops are numbered 0 .. requests - 1 */
    int marks;                 /* marks of a program are numbered in the same way */
    int rank, local_rank;      /* world rank and the rank on its node, which selects the GPU */
    const op_backend *backend; /* the backend that supplies the kernels */
    int threads;
    bool tf32;   /* fp32 products may round their operands to 10 bits of mantissa */
    bool varies; /* sums may come in any order, where that is faster */
} device_options;

typedef struct device_facts {
    char name[64];
    char identity[64];           /* the same only for the same piece of hardware; "": sharing is not checked */
    char pci[32];                /* its address on the host's bus, "0000:1B:00.0"; "": it has none */
    int64_t memory, free_memory; /* bytes; free_memory: free at present */
    int64_t beside;              /* bytes of it that others than the arena take: context, libraries, other processes */
    double peak[PEAK_COUNT];     /* peak of dense products, FLOP/s; 0: unknown */
    double bandwidth;            /* bytes a second of its memory, by its clock and width; 0: unknown */
} device_facts;

enum { DEVICE_CHOICE_KEY = 384, DEVICE_CHOICE_VALUE = 256 };

/* One of several algorithms for the same result, chosen by timing. A table of them (engine/run/choices.h) is stored
 * with a run. */
typedef struct device_choice {
    char key[DEVICE_CHOICE_KEY];     /* the problem: computation, types, shape, alignment, library version, GPU */
    char value[DEVICE_CHOICE_VALUE]; /* the choice, in the device's own words */
    double microseconds;             /* measured time; 0: taken without timing */
} device_choice;

/* Verdict of a self-check on one thing. */
typedef enum device_verdict {
    DEVICE_RIGHT,
    DEVICE_WRONG,
    DEVICE_REFUSED,   /* the machine or a library refuses, in its own words */
    DEVICE_NOT_ASKED, /* not needed here */
} device_verdict;

typedef void device_say(void *context, device_verdict v, const char *name, const char *words);

/* Bytes of the arena: `rows` runs of `bytes`, the first at address `at`, `pitch` bytes from one to the next. */
typedef struct device_rows {
    int64_t at, pitch, bytes, rows;
} device_rows;

/* Record of the first difference that a comparison of sums finds: two words of 64 bits at address `note`, `what` (not
 * 0) and the step, an int64 at address `step`. */
typedef struct device_note {
    int64_t note, step;
    uint64_t what;
} device_note;

/* Moments that a device stamps, in sets that do not disturb one another. */
typedef enum device_clock { CLOCK_TRACE, CLOCK_PACE, DEVICE_CLOCKS } device_clock;

/* Choices among algorithms for the prepared ops, made between preparing and the first program; all NULL for a device
 * without choices. Until told otherwise an op uses the choice that the library guesses to be best. */
typedef struct device_choices {
    /* Returns the key of the i-th choice, in the order of preparation; NULL after the last. */
    const char *(*wanted)(const device *d, int i);
    /* Finds value and microseconds for wanted keys, by timing (which leaves the arena zero) or as guessed. */
    status (*find)(device *d, device_choice *choices, int count, bool timing);
    /* Uses this one; fails where the device cannot. */
    status (*choose)(device *d, const device_choice *choice);
    /* Writes the i-th candidate for choice->key, as `choose` takes it, into choice->value; false: there are no more. */
    bool (*candidate)(const device *d, device_choice *choice, int i);
} device_choices;

/* Copies of the arena in host memory, on a queue of their own, while programs play; all NULL where the arena is host
 * memory. */
typedef struct device_aside {
    /* Copies the arena's bytes (never host memory, which is at hand) as they are after all launches so far. */
    void (*copy)(device *d, void *to, int64_t at, int64_t bytes);
    /* Makes later launches wait for these copies; a captured launch waits at each replay for the latest copies. */
    void (*first)(device *d);
    /* Tells whether the host has them; with `wait`, waits for that. */
    bool (*done)(device *d, bool wait);
    /* Pins host memory for these copies; 0 bytes: unpins it. */
    status (*pin)(device *d, void *host, int64_t bytes);
} device_aside;

/* Times of ops; all NULL, where the host's clock suffices. */
typedef struct device_times {
    /* Makes room for `count` stamps in a set; 0: there are no more. */
    void (*stamps)(device *d, device_clock set, int count);
    /* Stamps the time when the queue that plays `o` has done its work so far; for communication, after all compute
     * launched so far. A captured stamp is taken anew at each replay. */
    void (*stamp)(device *d, device_clock set, int index, const op *o);
    /* Returns the time between two stamps of a set, once the device has been waited for. */
    double (*seconds)(const device *d, device_clock set, int from, int to);
} device_times;

/* Verification (engine/guard/verify.h), enqueued after the ops launched before. */
typedef struct device_bits {
    /* Writes a checksum of these rows to the 8 bytes at `to`: a change of one 64-bit word always changes it, other
     * changes almost always; another device has other sums. The next 8 bytes are working memory: 0 before and after. */
    void (*sum)(device *d, int64_t to, const device_rows *of);
    /* Compares the rows' sum with the one at `with`, and notes a difference unless one is noted already. */
    void (*check)(device *d, int64_t with, const device_rows *of, const device_note *note);
    /* Copies the rows to address `to`, one after another; `bring_back` restores them from there. */
    void (*keep)(device *d, int64_t to, const device_rows *of);
    void (*bring_back)(device *d, const device_rows *to, int64_t from);
} device_bits;

typedef struct device_interface {
    int version; /* DEVICE_VERSION */
    const char *name;
    const op_backend *backend;                /* NULL: any may be given */
    const struct comm_backend *communication; /* parallel/comm/comm_backend.h; NULL: the job's own */

    /* Fails, with one line of reason, if this machine has no such device. */
    status (*available)(void);
    /* Returns the table's row of the device that this local rank will open; NULL: it is not in the table. */
    const devices_row *(*row)(int local_rank);
    /* Open queues and libraries; then, once everything else that takes the device's memory has taken it, allocate the
     * arena and host memory: a mirror of the arena's beginning, a second block of ids, tensors of CLASS_HOST; last, 4
     * bytes for each mark. */
    status (*open)(device **out, const device_options *o);
    status (*allocate)(device *d, int64_t arena_bytes, int64_t host_bytes);
    /* Zeroes the arena and host memory at once. NULL where they are one memory. */
    void (*clear)(device *d);
    void (*close)(device *d);
    void (*facts)(device_facts *out, const device *d);
    run_context *(*context)(device *d); /* the context of ops; its arena is an address on the device */
    char *(*host)(device *d);           /* address of the host_bytes; the arena's where the device is the host */

    /* Sets o->prepared, owned by the device, or leaves it NULL; called before the first program. */
    status (*prepare)(device *d, op *o);

    /* Checks, after `allocate`, properties that no op's result shows, and calls `say` for each: versions, limits,
     * instructions, kinds of memory. NULL: there are none. */
    void (*check)(device *d, device_say *say, void *context);

    /* Enqueue copies: of the host's bytes from `from` on to the arena's `at`; of the arena's to the mirror. */
    void (*copy_in)(device *d, int64_t at, int64_t from, int64_t bytes);
    void (*copy_out)(device *d, int64_t at, int64_t bytes);
    /* Launches an op; copies to and from host memory (OP_CLASS_HOST), too, which end where they are waited for. */
    void (*launch)(device *d, const op *o);
    /* Enclose putting the communication `o` on the queue that `start` returns: a stream, or NULL on the host. */
    void *(*start)(device *d, const op *o);
    void (*started)(device *d, const op *o);
    void (*wait)(device *d, const op *o);
    /* Enqueues `mark` after all launches so far; `passed` tells whether the device got there. People are shown this. */
    void (*mark)(device *d, int mark);
    bool (*passed)(device *d, int mark);
    /* Record launches, starts, waits and marks from `capture` to `captured` as that list, without playing them;
     * `replay` plays the list, as often as it is called. NULL where that gains no time. */
    void (*capture)(device *d, int list); /* list: 0 .. DEVICE_LISTS - 1 */
    void (*captured)(device *d);
    void (*replay)(device *d, int list);
    /* Drops the lists, which must happen before the groups that they communicate in are closed. */
    void (*forget)(device *d);
    /* Waits until all enqueued work is done; calls `meanwhile` again and again. */
    void (*synchronise)(device *d, void (*meanwhile)(void *context), void *context);

    /* Give access to bytes of the arena, or from TENSOR_HOST on of host memory, at once; not while a program plays. A
     * device without its own memory returns the address itself from `borrow`; otherwise borrow gives a copy, which
     * `give_back` writes to the arena if it was changed. */
    void *(*borrow)(device *d, int64_t at, int64_t bytes);
    void (*give_back)(device *d, void *copy, int64_t at, int64_t bytes, bool changed);

    device_choices choices;
    device_aside aside;
    device_times times;
    device_bits bits;

    void (*profile)(device *d, bool on); /* the vendor's profiler */
} device_interface;

extern const device_interface device_cpu;

/* Loads the interface `name` ("cuda") from the shared object beside this program, or from the program itself. It is not
 * yet opened, nor known to be available. */
status device_load(const device_interface **out, const char *name);
/* Loads it and checks that the device is available; otherwise *out stays as it is. */
status device_find(const device_interface **out, const char *name);
