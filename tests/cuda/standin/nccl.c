/* NCCL over MPI. Before a collective moves anything its members compare notes: kind, count, type, root and how many
 * came before must agree. Everything happens when the host enqueues it, and a message takes both of its ranks: a rank
 * stops where the other is not yet, as if all communication of a rank were one serial queue with rendezvous. What runs
 * here to its end makes progress under every weaker reading.
 *
 * Time is that of the real thing (enqueue.cc of NCCL 2.28): a kernel waits for its stream, for the last kernel of its
 * communicator, and, by NCCL_LAUNCH_ORDER_IMPLICIT, for the kernels launched before it to have been launched, whatever
 * their communicator. It ends when all of its members have begun. A receive that waits holds the kernels behind it in
 * its communicator, and these hold the ones launched later. */
#include <math.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "memory/dtype.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/comm/comm_shape.h"
#include "tests/cuda/standin/standin.h"

enum {
    INTRODUCTION = 7001,
    TABLE = 7002,
    MESSAGE = 7003,
    ANSWER = 7004,
    GROUPED = 256,
    MEMBERS = 64,
    BLOCKS = 32,
    MULTIPROCESSORS = 108
};

static const double KERNEL_MILLISECONDS = 0.1;

typedef enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SEND, RECEIVE } kind;

static const char *const names[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast",
                                    "reduce",     "send",       "receive"};

typedef struct note {
    int32_t kind, type, root, padding;
    int64_t count, serial;
    double begin; /* of the kernel at this member; not compared */
} note;

struct ncclComm {
    MPI_Comm members;
    int count, me;
    int64_t serial;
    int blocks;                                          /* of its kernels at most */
    unsigned connected[REDUCE_SCATTER + 1][DTYPE_COUNT]; /* bit i: calls of 4^i elements a member have been made */
    int graphs;                                          /* references to it from within executable graphs */
    double until;                                        /* its last kernel ends, milliseconds */
};

typedef struct task {
    ncclComm_t comm;
    kind kind;
    const void *send;
    void *receive;
    int64_t count;
    dtype type;
    bool maximum;
    int root; /* or peer */
    int queue;
    double begin, end; /* of its kernel, milliseconds */
} task;

static double launched; /* the last kernel of any communicator begins */

static task waiting[GROUPED];
static int held, depth;
static int64_t calls; /* while the device works */

ncclResult_t ncclGetVersion(int *version)
{
    const char *text = getenv("STANDIN_NCCL");
    *version = text ? atoi(text) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclSuccess       ? "no error"
           : r == ncclRemoteError ? "remote process exited or there was a network error"
                                  : "error";
}

const char *ncclGetLastError(ncclComm_t group)
{
    (void)group;
    return "stand-in";
}

/* ---- communicators --------------------------------------------------------------------------------------------- */

typedef struct identity {
    int32_t root, serial; /* world rank */
} identity;

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    static int32_t serial;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    identity id = {rank, ++serial};
    memcpy(out->internal, &id, sizeof id);
    return ncclSuccess;
}

/* The creator of the id learns who is who, and tells the others. */
static void introduce(int *table, const identity *id, int count, int me)
{
    int world;
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    if (world != id->root) {
        int mine[3] = {me, world, id->serial};
        MPI_Send(mine, 3, MPI_INT, id->root, INTRODUCTION, MPI_COMM_WORLD);
        MPI_Recv(table, count, MPI_INT, id->root, TABLE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }
    table[me] = world;
    for (int i = 1; i < count; i++) {
        int theirs[3];
        MPI_Recv(theirs, 3, MPI_INT, MPI_ANY_SOURCE, INTRODUCTION, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (theirs[2] != id->serial || theirs[0] < 0 || theirs[0] >= count)
            standin_fail("ncclCommInitRankConfig: a rank joins with another id");
        table[theirs[0]] = theirs[1];
    }
    for (int i = 0; i < count; i++)
        if (i != me)
            MPI_Send(table, count, MPI_INT, table[i], TABLE, MPI_COMM_WORLD);
}

/* What NCCL is told, unless the user has told it something: where sums are to have the same bits in every run, to sum
 * along rings; and how many blocks its kernels may have, 0: as it likes. */
static void say_configuration(const ncclConfig_t *config)
{
    const char *algorithms = getenv("NCCL_ALGO");
    fprintf(stderr, "standin: NCCL_ALGO=%s\n", algorithms ? algorithms : "");
    fprintf(stderr, "standin: maxCTAs=%d;\n", config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->maxCTAs);
}

/* Of a kernel, at most: the user's word is the last. */
static int blocks_of(const ncclConfig_t *config)
{
    const char *most = getenv("NCCL_MAX_CTAS");
    if (most)
        return atoi(most);
    return config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? BLOCKS : config->maxCTAs;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int count, ncclUniqueId unique, int me, ncclConfig_t *config)
{
    if (!config || config->magic != 0xcafebeef || (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs < 1))
        standin_fail("ncclCommInitRankConfig: a configuration that was not initialised");
    say_configuration(config);
    identity id;
    int table[MEMBERS];
    memcpy(&id, unique.internal, sizeof id);
    if (count < 1 || count > MEMBERS || me < 0 || me >= count)
        standin_fail("ncclCommInitRankConfig: rank %d of %d", me, count);
    introduce(table, &id, count, me);
    if (!standin_library_takes())
        return ncclUnhandledCudaError;
    MPI_Group world, some;
    ncclComm_t made = must_calloc(1, sizeof *made);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, count, table, &some);
    MPI_Comm_create_group(MPI_COMM_WORLD, some, 7100 + id.serial % 1000, &made->members);
    MPI_Group_free(&some);
    MPI_Group_free(&world);
    made->count = count;
    made->me = me;
    made->blocks = blocks_of(config);
    standin_more_queues(1);
    *out = made;
    return ncclSuccess;
}

/* The library polls until no graph refers to the communicator, and for ever if none is destroyed. */
ncclResult_t ncclCommDestroy(ncclComm_t group)
{
    if (group->graphs)
        standin_fail("ncclCommDestroy never returns: graphs refer %d times to the communicator", group->graphs);
    standin_more_queues(-1);
    MPI_Comm_free(&group->members);
    free(group);
    return ncclSuccess;
}

/* A link breaks after some calls of the steps, or when a graph refers to it. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t group, ncclResult_t *out)
{
    bool broken =
        standin_mutant("link breaks") ? calls > 20 : standin_mutant("link breaks in a graph") && group->graphs;
    *out = broken ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

/* ---- execution ------------------------------------------------------------------------------------------------- */

static bool same(const note *a, const note *b)
{
    return a->kind == b->kind && a->type == b->type && a->root == b->root && a->count == b->count &&
           a->serial == b->serial;
}

static void compare_notes(task *t)
{
    note mine = {t->kind, t->type, t->root, 0, t->count, t->comm->serial++, t->begin}, all[MEMBERS];
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, t->comm->members);
    for (int i = 0; i < t->comm->count; i++) {
        t->end = fmax(t->end, all[i].begin + KERNEL_MILLISECONDS);
        if (!same(&all[i], &mine))
            standin_fail(
                "mismatched collective, number %lld of its communicator: member %d has %s of %lld %s (root %d), "
                "member %d has %s of %lld %s (root %d)",
                (long long)mine.serial, t->comm->me, names[mine.kind], (long long)mine.count,
                dtype_name((dtype)mine.type), mine.root, i, names[all[i].kind], (long long)all[i].count,
                dtype_name((dtype)all[i].type), all[i].root);
    }
}

/* Every member's `elements` elements, one behind the other. */
static char *gather(const task *t, int64_t elements)
{
    int64_t bytes = elements * dtype_bytes(t->type);
    char *all = must_alloc((unsigned long)(bytes * t->comm->count + 1));
    MPI_Allgather(t->send, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, t->comm->members);
    return all;
}

static void sum(const task *t, void *out, const char *all, int64_t stride, int64_t first, int64_t count)
{
    const void *arrays[MEMBERS];
    for (int i = 0; i < t->comm->count; i++)
        arrays[i] = all + (i * stride + first) * dtype_bytes(t->type);
    comm_reduce(out, arrays, t->comm->count, count, t->type, t->maximum);
}

static void collective(task *t)
{
    int64_t bytes = t->count * dtype_bytes(t->type), n = t->comm->count;
    bool root = t->comm->me == t->root;
    compare_notes(t);
    if (t->kind == BROADCAST) {
        AUTO_FREE char *moved = must_alloc((unsigned long)bytes + 1);
        if (root)
            memcpy(moved, t->send, (size_t)bytes);
        MPI_Bcast(moved, (int)bytes, MPI_BYTE, t->root, t->comm->members);
        memcpy(t->receive, moved, (size_t)bytes);
        return;
    }
    int64_t each = t->kind == REDUCE_SCATTER ? t->count * n : t->count;
    AUTO_FREE char *all = gather(t, each);
    if (t->kind == ALL_GATHER)
        memcpy(t->receive, all, (size_t)(bytes * n));
    else if (t->kind == REDUCE_SCATTER)
        sum(t, t->receive, all, each, t->comm->me * t->count, t->count);
    else if (t->kind == ALL_REDUCE || root)
        sum(t, t->receive, all, each, 0, t->count);
}

static char *send_begin(MPI_Request *request, const task *t)
{
    int64_t bytes = t->count * dtype_bytes(t->type);
    char *copy = must_alloc((unsigned long)bytes + sizeof(note));
    note head = {t->kind, t->type, 0, 0, t->count, 0, t->begin};
    memcpy(copy, &head, sizeof head);
    memcpy(copy + sizeof head, t->send, (size_t)bytes);
    MPI_Isend(copy, (int)(bytes + (int64_t)sizeof head), MPI_BYTE, t->root, MESSAGE, t->comm->members, request);
    return copy;
}

/* The receiver says when it has begun. */
static void send_end(task *t, char *copy, MPI_Request *request)
{
    double theirs;
    MPI_Recv(&theirs, 1, MPI_DOUBLE, t->root, ANSWER, t->comm->members, MPI_STATUS_IGNORE);
    MPI_Wait(request, MPI_STATUS_IGNORE);
    t->end = fmax(t->begin, theirs) + KERNEL_MILLISECONDS;
    free(copy);
}

static void receive_message(task *t)
{
    MPI_Status s;
    int bytes;
    MPI_Probe(t->root, MESSAGE, t->comm->members, &s);
    MPI_Get_count(&s, MPI_BYTE, &bytes);
    AUTO_FREE char *got = must_alloc((unsigned long)bytes);
    MPI_Recv(got, bytes, MPI_BYTE, t->root, MESSAGE, t->comm->members, MPI_STATUS_IGNORE);
    MPI_Send(&t->begin, 1, MPI_DOUBLE, t->root, ANSWER, t->comm->members);
    note head;
    memcpy(&head, got, sizeof head);
    if (head.count != t->count || head.type != (int32_t)t->type)
        standin_fail("a receive of %lld %s from member %d meets a send of %lld %s", (long long)t->count,
                     dtype_name(t->type), t->root, (long long)head.count, dtype_name((dtype)head.type));
    memcpy(t->receive, got + sizeof head, (size_t)bytes - sizeof head);
    t->end = fmax(t->begin, head.begin) + KERNEL_MILLISECONDS;
}

/* Elements that a member reads and writes. */
static int64_t reads(const task *t)
{
    if (t->kind == RECEIVE || (t->kind == BROADCAST && t->comm->me != t->root))
        return 0;
    return t->kind == REDUCE_SCATTER ? t->count * t->comm->count : t->count;
}

static int64_t writes(const task *t)
{
    if (t->kind == SEND || (t->kind == REDUCE && t->comm->me != t->root))
        return 0;
    return t->kind == ALL_GATHER ? t->count * t->comm->count : t->count;
}

/* Where a member's own part of the result is what it sends, that is not written. */
static void access_result(const task *t)
{
    int64_t element = dtype_bytes(t->type), own = t->count * element, me = t->comm->me;
    char *to = t->receive;
    if (t->kind == ALL_GATHER && t->send == to + me * own) {
        standin_access(t->queue, to, me * own, true, names[t->kind]);
        standin_access(t->queue, to + (me + 1) * own, (t->comm->count - me - 1) * own, true, names[t->kind]);
    } else if (t->kind != BROADCAST || t->send != to || me != t->root) {
        standin_access(t->queue, to, writes(t) * element, true, names[t->kind]);
    }
}

/* When the last kernel of the task's communicator ends. The mutant: of any edge in its direction. */
static double *until_of(const task *t)
{
    static double until[2];
    bool up = (t->kind == SEND) == (t->comm->me == 1);
    bool message = t->kind == SEND || t->kind == RECEIVE;
    return message && standin_mutant("a communicator a direction") ? &until[up] : &t->comm->until;
}

/* A kernel that waits keeps its multiprocessors, and one stream has one kernel at a time: if all wait, some must be
 * left for the ops that what they wait for depends on. */
static void occupy(const task *t)
{
    static int blocks[STANDIN_STREAMS];
    int all = 0;
    if (blocks[t->queue] < t->comm->blocks)
        blocks[t->queue] = t->comm->blocks;
    for (int i = 0; i < STANDIN_STREAMS; i++)
        all += blocks[i];
    if (all >= MULTIPROCESSORS)
        standin_fail("NCCL's kernels on all streams may occupy %d of %d multiprocessors", all, MULTIPROCESSORS);
}

static void begin(task *t)
{
    int64_t element = dtype_bytes(t->type);
    occupy(t);
    standin_tick(t->queue);
    standin_access(t->queue, t->send, reads(t) * element, false, names[t->kind]);
    access_result(t);
    t->begin = fmax(fmax(standin_time(t->queue), *until_of(t)), launched);
    t->end = t->begin + KERNEL_MILLISECONDS;
}

static void end(task *t)
{
    *until_of(t) = fmax(*until_of(t), t->end);
    standin_wait_until(t->queue, t->end);
}

/* One kernel a call, or a group's calls in one of each communicator: nothing within a group waits for anything else of
 * it. */
typedef struct batch {
    int count;
    task tasks[];
} batch;

static void execute(int queue, void *what)
{
    batch *b = what;
    char *copies[GROUPED];
    MPI_Request requests[GROUPED];
    double first = 0;
    (void)queue;
    for (int i = 0; i < b->count; i++) {
        begin(&b->tasks[i]);
        first = fmax(first, b->tasks[i].begin);
    }
    launched = first;
    for (int i = 0; i < b->count; i++)
        if (b->tasks[i].kind == SEND)
            copies[i] = send_begin(&requests[i], &b->tasks[i]);
    for (int i = 0; i < b->count; i++)
        if (b->tasks[i].kind == RECEIVE)
            receive_message(&b->tasks[i]);
        else if (b->tasks[i].kind != SEND)
            collective(&b->tasks[i]);
    for (int i = 0; i < b->count; i++) {
        if (b->tasks[i].kind == SEND)
            send_end(&b->tasks[i], copies[i], &requests[i]);
        end(&b->tasks[i]);
    }
}

static void keep_or_execute(const task *tasks, int count)
{
    size_t bytes = sizeof(batch) + (size_t)count * sizeof(task);
    AUTO_FREE batch *b = must_calloc(1, bytes);
    b->count = count;
    memcpy(b->tasks, tasks, (size_t)count * sizeof(task));
    for (int i = 1; i < count; i++)
        if (tasks[i].queue != tasks[0].queue)
            standin_fail("a group of calls on several streams");
    if (standin_keep(tasks[0].queue, execute, b, bytes))
        for (int i = 0; i < count; i++)
            standin_refer(&tasks[i].comm->graphs);
    else
        execute(tasks[0].queue, b);
}

/* ---- the calls ------------------------------------------------------------------------------------------------- */

static dtype type_of(ncclDataType_t type)
{
    static const struct {
        ncclDataType_t from;
        dtype to;
    } table[] = {{ncclFloat32, DTYPE_FP32}, {ncclBfloat16, DTYPE_BF16}, {ncclFloat16, DTYPE_FP16},
                 {ncclFloat64, DTYPE_FP64}, {ncclInt32, DTYPE_INT32},   {ncclInt64, DTYPE_INT64},
                 {ncclUint8, DTYPE_UINT8}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].from == type)
            return table[i].to;
    standin_fail("NCCL: type %d", (int)type);
}

/* nccl.h declares these two without a prototype */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth-- < 1)
        standin_fail("ncclGroupEnd without ncclGroupStart");
    if (depth > 0)
        return ncclSuccess;
    if (held > 0)
        keep_or_execute(waiting, held);
    held = 0;
    return ncclSuccess;
}

/* NCCL connects the algorithm of a collective when it first chooses it, by kind, type and size: which is not to be
 * while the device works. */
static void connect_on_demand(const task *t)
{
    int64_t each = t->kind == ALL_REDUCE ? t->count / t->comm->count : t->count;
    unsigned size = 0, *connected = &t->comm->connected[t->kind][t->type];
    for (int64_t n = 4; n <= each; n *= 4)
        size++;
    if (standin_counts.launches > 0 && !(*connected & 1u << size))
        standin_fail("NCCL connects while the device works: the first %s of %lld %s", names[t->kind],
                     (long long)t->count, dtype_name(t->type));
    *connected |= 1u << size;
}

static ncclResult_t put(task t, ncclDataType_t type, size_t count, cudaStream_t stream)
{
    calls += standin_counts.launches > 0;
    if (!t.comm || t.root < 0 || t.root >= t.comm->count)
        standin_fail("NCCL %s: no communicator, or member %d of it", names[t.kind], t.root);
    t.type = type_of(type);
    t.count = (int64_t)count;
    if (t.kind <= REDUCE_SCATTER)
        connect_on_demand(&t);
    if (t.kind == ALL_REDUCE && t.comm->me == 1 && calls > 10 && t.count > 1 && standin_mutant("wrong count"))
        t.count--;
    t.queue = standin_stream(stream, names[t.kind]);
    if (depth == 0) {
        keep_or_execute(&t, 1);
        return ncclSuccess;
    }
    if (held == GROUPED)
        standin_fail("more than %d calls in one group", GROUPED);
    waiting[held++] = t;
    return ncclSuccess;
}

static bool is_maximum(ncclRedOp_t how)
{
    if (how != ncclSum && how != ncclMax)
        standin_fail("NCCL: a reduction that is neither a sum nor a maximum");
    return how == ncclMax;
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t how,
                           ncclComm_t group, cudaStream_t stream)
{
    return put((task){.comm = group, .kind = ALL_REDUCE, .send = send, .receive = receive, .maximum = is_maximum(how)},
               type, count, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t group,
                           cudaStream_t stream)
{
    return put((task){.comm = group, .kind = ALL_GATHER, .send = send, .receive = receive}, type, count, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t how,
                               ncclComm_t group, cudaStream_t stream)
{
    return put(
        (task){.comm = group, .kind = REDUCE_SCATTER, .send = send, .receive = receive, .maximum = is_maximum(how)},
        type, count, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t group, cudaStream_t stream)
{
    return put((task){.comm = group, .kind = BROADCAST, .send = send, .receive = receive, .root = root}, type, count,
               stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t how, int root,
                        ncclComm_t group, cudaStream_t stream)
{
    standin_counts.reduced++;
    return put(
        (task){
            .comm = group, .kind = REDUCE, .send = send, .receive = receive, .maximum = is_maximum(how), .root = root},
        type, count, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t group,
                      cudaStream_t stream)
{
    return put((task){.comm = group, .kind = SEND, .send = send, .root = peer}, type, count, stream);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t group, cudaStream_t stream)
{
    return put((task){.comm = group, .kind = RECEIVE, .receive = receive, .root = peer}, type, count, stream);
}
