/* The backend `nccl`: groups with operands on GPUs. It is in the CUDA shared object.
 *
 * A group is one NCCL communicator, or shares that of an earlier group. NCCL runs one kernel of a communicator at a
 * time, and a kernel that waits for another rank keeps its multiprocessors: so messages have a communicator for each
 * edge and direction, and the kernels of messages and of small sums get few of them. Its unique id travels over a group
 * of the job's own backend (MPI), which has no other use. Calls are put on the stream that they name, in the order in
 * which the program starts them, which is the same total order that the schedule's validator has shown to make
 * progress; NCCL is asked to keep it across communicators, and, where sums must have the same bits in every run, to sum
 * along rings only, unless the user's NCCL_* say otherwise. Every kind of call is made once at the start, in all sizes,
 * so that NCCL connects no algorithm within a step, and only those in use. A call counts as complete once it is on its
 * stream: the executor makes the streams wait for each other.
 *
 * NCCL's all-gather and reduce-scatter need even parts: uneven ones take one broadcast or one reduction a member,
 * grouped into one launch.
 */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host.h"
#include "memory/scope.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/comm_backend.h"

#define NCCL_MUST(call)                                                                                                \
    do {                                                                                                               \
        ncclResult_t nccl_must_ = (call);                                                                              \
        MUST(nccl_must_ == ncclSuccess, "%s: %s (%s)", #call, ncclGetErrorString(nccl_must_), ncclGetLastError(NULL)); \
    } while (0)

enum { OLDEST = NCCL_VERSION(2, 26, 0) };

/* Blocks of a kernel, one a multiprocessor, for messages and for collectives of few bytes (loss, norm); others have
 * NCCL's own number, 32 at most. Four edges, gradients and activations that all wait at once then leave an A100's 108 a
 * dozen, and eight blocks still fill a link between nodes. NCCL makes buffers for each block, too. */
enum { MESSAGE_BLOCKS = 8, SMALL_BLOCKS = 2, SMALL_BYTES = 1 << 20 };

/* The first version that takes graph usage in a communicator's config; before, the environment says it for all. */
enum { FIRST_WITH_GRAPH_CONFIG = NCCL_VERSION(2, 29, 0) };
#define CONFIG_SAYS_GRAPHS (NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)) /* the header has the field */

/* A driver before CUDA 12.9 makes NCCL launch the kernels of a captured step one after the other. */
enum { OLDEST_ORDERED_CAPTURE = 12090 };

typedef struct communicator {
    ncclComm_t handle; /* NULL: no member uses it */
    int groups;        /* number of groups that use it */
} communicator;

/* float8 has no sums here, so it is not listed. */
static const struct {
    ncclDataType_t type;
    bool known;
} types[DTYPE_COUNT] = {
    [DTYPE_FP32] = {ncclFloat32, true}, [DTYPE_BF16] = {ncclBfloat16, true}, [DTYPE_FP16] = {ncclFloat16, true},
    [DTYPE_FP64] = {ncclFloat64, true}, [DTYPE_INT32] = {ncclInt32, true},   [DTYPE_INT64] = {ncclInt64, true},
    [DTYPE_UINT8] = {ncclUint8, true},
};

/* ---- operations ------------------------------------------------------------------------------------------------ */

/* A call with its values in NCCL's terms. */
typedef struct launch {
    const comm_call *call;
    comm_shape shape;
    ncclComm_t handle;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int64_t element;
    cudaStream_t stream;
} launch;

static bool even(const launch *l)
{
    int64_t offset, first, count;
    comm_part(&offset, &first, &l->shape, 0);
    for (int i = 1; i < l->shape.members; i++) {
        comm_part(&offset, &count, &l->shape, i);
        if (count != first)
            return false;
    }
    return true;
}

static void all_reduce(const launch *l)
{
    NCCL_MUST(ncclAllReduce(l->call->send, l->call->receive, (size_t)l->call->count, l->type, l->reduction, l->handle,
                            l->stream));
}

static void all_gather(const launch *l)
{
    int64_t offset, count;
    comm_part(&offset, &count, &l->shape, l->shape.me);
    if (even(l)) {
        if (count > 0)
            NCCL_MUST(ncclAllGather(l->call->send, l->call->receive, (size_t)count, l->type, l->handle, l->stream));
        return;
    }
    NCCL_MUST(ncclGroupStart());
    for (int i = 0; i < l->shape.members; i++) {
        comm_part(&offset, &count, &l->shape, i);
        char *to = (char *)l->call->receive + offset * l->element;
        const void *from = i == l->shape.me ? l->call->send : to;
        if (count > 0)
            NCCL_MUST(ncclBroadcast(from, to, (size_t)count, l->type, i, l->handle, l->stream));
    }
    NCCL_MUST(ncclGroupEnd());
}

static void reduce_scatter(const launch *l)
{
    int64_t offset, count;
    comm_part(&offset, &count, &l->shape, l->shape.me);
    if (even(l)) {
        if (count > 0)
            NCCL_MUST(ncclReduceScatter(l->call->send, l->call->receive, (size_t)count, l->type, l->reduction,
                                        l->handle, l->stream));
        return;
    }
    NCCL_MUST(ncclGroupStart());
    for (int i = 0; i < l->shape.members; i++) {
        comm_part(&offset, &count, &l->shape, i);
        const char *from = (const char *)l->call->send + offset * l->element;
        if (count > 0)
            NCCL_MUST(ncclReduce(from, i == l->shape.me ? l->call->receive : NULL, (size_t)count, l->type, l->reduction,
                                 i, l->handle, l->stream));
    }
    NCCL_MUST(ncclGroupEnd());
}

static void all_to_all(const launch *l)
{
    int64_t offset, count, own;
    comm_part(&offset, &own, &l->shape, l->shape.me);
    NCCL_MUST(ncclGroupStart());
    for (int i = 0; i < l->shape.members; i++) {
        comm_part(&offset, &count, &l->shape, i);
        if (count > 0)
            NCCL_MUST(ncclSend((const char *)l->call->send + offset * l->element, (size_t)count, l->type, i, l->handle,
                               l->stream));
        if (own > 0)
            NCCL_MUST(ncclRecv((char *)l->call->receive + i * own * l->element, (size_t)own, l->type, i, l->handle,
                               l->stream));
    }
    NCCL_MUST(ncclGroupEnd());
}

static void broadcast(const launch *l)
{
    NCCL_MUST(ncclBroadcast(l->call->send, l->call->receive, (size_t)l->call->count, l->type, l->call->peer, l->handle,
                            l->stream));
}

static void send_to(const launch *l)
{
    NCCL_MUST(ncclSend(l->call->send, (size_t)l->call->count, l->type, l->call->peer, l->handle, l->stream));
}

static void receive_from(const launch *l)
{
    NCCL_MUST(ncclRecv(l->call->receive, (size_t)l->call->count, l->type, l->call->source, l->handle, l->stream));
}

static void exchange(const launch *l)
{
    NCCL_MUST(ncclGroupStart());
    send_to(l);
    NCCL_MUST(
        ncclRecv(l->call->receive, (size_t)l->call->receive_count, l->type, l->call->source, l->handle, l->stream));
    NCCL_MUST(ncclGroupEnd());
}

static void (*const launches[COMM_KINDS])(const launch *l) = {
    [COMM_ALL_REDUCE] = all_reduce, [COMM_ALL_GATHER] = all_gather, [COMM_REDUCE_SCATTER] = reduce_scatter,
    [COMM_ALL_TO_ALL] = all_to_all, [COMM_BROADCAST] = broadcast,   [COMM_SEND] = send_to,
    [COMM_RECEIVE] = receive_from,  [COMM_EXCHANGE] = exchange,
};

/* Launches several tensors together. */
static void launch_pieces(launch whole)
{
    NCCL_MUST(ncclGroupStart());
    for (int i = 0; i < whole.call->piece_count; i++) {
        const comm_segment *p = &whole.call->pieces[i];
        comm_call call = *whole.call;
        call.send = p->send;
        call.receive = p->receive;
        call.count = p->count;
        call.counts = p->counts;
        call.pieces = NULL;
        launch one = whole;
        one.call = &call;
        one.shape = comm_call_shape(&call);
        launches[call.kind](&one);
    }
    NCCL_MUST(ncclGroupEnd());
}

static void nccl_start(comm_request *out, const comm_call *call)
{
    comm_group *g = call->group;
    const communicator *n = g->state;
    MUST(types[call->type].known, "NCCL does not carry %s", dtype_name(call->type));
    MUST(call->stream, "a call of NCCL without a stream");
    const launch l = {.call = call,
                      .shape = comm_call_shape(call),
                      .handle = n->handle,
                      .type = types[call->type].type,
                      .reduction = call->maximum ? ncclMax : ncclSum,
                      .element = dtype_bytes(call->type),
                      .stream = call->stream};
    if (call->pieces)
        launch_pieces(l);
    else
        launches[call->kind](&l);
    atomic_fetch_add_explicit(&g->bytes_sent, comm_expected_bytes(&l.shape), memory_order_relaxed);
    atomic_fetch_add_explicit(&g->messages_sent, 1, memory_order_relaxed);
    out->flight = NULL;
}

/* ---- groups ---------------------------------------------------------------------------------------------------- */

/* Sets NCCL's environment before the first communicator, without overriding the user's. Algorithms by function need
 * 2.24. Trees, NVLink's multicast and PAT add up in orders that NCCL chooses by size, topology and version; rings of
 * the same topology always in the same. Gathers and messages have no sums and keep all algorithms. */
static void prepare_environment(const comm *c, bool varies)
{
    const char *share = getenv(DEVICE_SHARE_ENVIRONMENT);
    int driver = 0, version = 0;
    NCCL_MUST(ncclGetVersion(&version));
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);    /* launches of several communicators run in the host's order */
    if (version < FIRST_WITH_GRAPH_CONFIG)           /* later ones would take it for: no graphs */
        setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0); /* the host waits between a graph and launches outside it */
    if (!varies)
        setenv("NCCL_ALGO", "allreduce:ring;reducescatter:ring", 0);
    if (share && !strcmp(share, "1")) {
        char name[64];
        snprintf(name, sizeof name, "phalanx-rank-%d", c->rank); /* two ranks of one host may not share a GPU */
        setenv("NCCL_HOSTID", name, 0);
    }
    static bool said;
    CUDA_MUST(cudaDriverGetVersion(&driver));
    if (!said && driver < OLDEST_ORDERED_CAPTURE)
        log_info(
            "  driver      for CUDA %d.%d: before 12.9 NCCL launches one kernel after the other in a captured step, "
            "and train.cuda_graph may gain nothing",
            driver / 1000, driver % 1000 / 10);
    said = true;
}

enum { IS_MESSAGE = 1u << COMM_SEND | 1u << COMM_RECEIVE | 1u << COMM_EXCHANGE };

/* ---- the first use of everything ---- */

/* NCCL chooses an algorithm by kind, type and size, and connects it when it first chooses it. The choice is the same
 * for all sizes above the largest here. */
enum { WARM_GROWTH = 4, WARM_MOST = 256 << 20 };

typedef struct warming {
    ncclComm_t handle;
    cudaStream_t stream;
    const comm_use *use; /* union over all members */
    int members, me;
    char *memory; /* `bytes` of it, that every call reads and writes in place */
    int64_t bytes;
} warming;

/* The collectives of one type over `elements` elements a member. */
static void warm_size(const warming *w, dtype type, size_t elements)
{
    const unsigned *asked = w->use->types, bit = 1u << type;
    ncclDataType_t t = types[type].type;
    char *own = w->memory + (size_t)w->me * elements * (size_t)dtype_bytes(type);
    if (asked[COMM_ALL_REDUCE] & bit)
        NCCL_MUST(ncclAllReduce(w->memory, w->memory, elements * (size_t)w->members, t, ncclSum, w->handle, w->stream));
    if (asked[COMM_ALL_GATHER] & bit)
        NCCL_MUST(ncclAllGather(own, w->memory, elements, t, w->handle, w->stream));
    if (asked[COMM_REDUCE_SCATTER] & bit)
        NCCL_MUST(ncclReduceScatter(w->memory, own, elements, t, ncclSum, w->handle, w->stream));
}

/* Warms the broadcasts and reductions of uneven parts, and all-to-all: these have one algorithm, whatever the size. */
static void warm_the_rest(const warming *w)
{
    char *one = w->memory, *all = w->memory + sizeof(int32_t) * (size_t)w->members;
    if (w->use->kinds & 1u << COMM_ALL_GATHER)
        NCCL_MUST(ncclBroadcast(one, one, 1, ncclInt32, 0, w->handle, w->stream));
    if (w->use->kinds & 1u << COMM_REDUCE_SCATTER)
        NCCL_MUST(ncclReduce(one, one, 1, ncclInt32, ncclSum, 0, w->handle, w->stream));
    if (w->use->kinds & 1u << COMM_ALL_TO_ALL) {
        NCCL_MUST(ncclGroupStart());
        for (int i = 0; i < w->members; i++) {
            NCCL_MUST(ncclSend(one, 1, ncclInt32, i, w->handle, w->stream));
            NCCL_MUST(ncclRecv((int32_t *)(void *)all + i, 1, ncclInt32, i, w->handle, w->stream));
        }
        NCCL_MUST(ncclGroupEnd());
    }
}

/* Makes each kind of call, in every type and size: NCCL makes buffers and connections now, in memory that is given back
 * before the arena is taken. `use`: union over members; messages: this member's own. */
static status warm(const comm_group *g, comm_group *job, ncclComm_t handle, const comm_use *use)
{
    int64_t least = 2 * g->count * (int64_t)sizeof(int64_t),
            largest = use->largest < WARM_MOST ? use->largest : WARM_MOST;
    warming w = {
        .handle = handle, .use = use, .members = g->count, .me = g->me, .bytes = largest > least ? largest : least};
    cudaError_t e = cudaMalloc((void **)&w.memory, (size_t)w.bytes);
    status s = STATUS_OK;
    if (e != cudaSuccess)
        s = status_fail(STATUS_FAILED, "the GPU has no %lld bytes to connect %d ranks with: %s", (long long)w.bytes,
                        g->count, cudaGetErrorString(e));
    TRY(comm_all_status(job, s)); /* a member that stayed away would leave the others waiting */
    CUDA_MUST(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
    CUDA_MUST(cudaMemsetAsync(w.memory, 0, (size_t)w.bytes, w.stream));
    for (int type = 0; type < DTYPE_COUNT; type++) {
        int64_t most = types[type].known ? w.bytes / dtype_bytes((dtype)type) / w.members : 0, n;
        for (n = 1; n < most; n *= WARM_GROWTH)
            warm_size(&w, (dtype)type, (size_t)n);
        if (most > 0)
            warm_size(&w, (dtype)type, (size_t)most);
    }
    warm_the_rest(&w);
    MUST(!(w.use->kinds & IS_MESSAGE) || w.members == 2, "messages among %d ranks", w.members);
    if (g->use.kinds & 1u << COMM_SEND)
        NCCL_MUST(ncclSend(w.memory, 1, ncclInt32, 1 - w.me, w.handle, w.stream));
    if (g->use.kinds & 1u << COMM_RECEIVE)
        NCCL_MUST(ncclRecv(w.memory + sizeof(int64_t), 1, ncclInt32, 1 - w.me, w.handle, w.stream));
    CUDA_MUST(cudaStreamSynchronize(w.stream));
    CUDA_MUST(cudaFree(w.memory));
    CUDA_MUST(cudaStreamDestroy(w.stream));
    return STATUS_OK;
}

/* ---- opening ---- */

/* The kernels of several communicators have no order without NCCL_LAUNCH_ORDER_IMPLICIT, and ranks may wait for each
 * other crosswise. */
static status check_version(void)
{
    int version = 0;
    NCCL_MUST(ncclGetVersion(&version));
    if (version >= OLDEST)
        return STATUS_OK;
    return status_fail(STATUS_USAGE,
                       "NCCL %d.%d.%d is too old: several communicators of one GPU are started in order from 2.26 on; "
                       "update NCCL (pip install nvidia-nccl-cu13), or run on one rank",
                       version / 10000, version / 100 % 100, version % 100);
}

static status nccl_version(char *out, int bytes)
{
    int version = 0;
    NCCL_MUST(ncclGetVersion(&version));
    snprintf(out, (size_t)bytes, "version %d.%d.%d, built with %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    return check_version();
}

/* True if the user has set NCCL's blocks: they are kept. */
static bool user_says_blocks(void)
{
    static const char *const names[] = {"NCCL_MAX_CTAS",      "NCCL_MIN_CTAS",          "NCCL_MAX_NCHANNELS",
                                        "NCCL_MIN_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS", "NCCL_MIN_P2P_NCHANNELS",
                                        "NCCL_NVLS_NCHANNELS"};
    bool says = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        says |= getenv(names[i]) != NULL;
    return says;
}

static status connect(ncclComm_t *out, comm_group *job, const comm_group *g, const comm_use *use)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    memset(&id, 0, sizeof id);
    if (use->kinds & IS_MESSAGE && !user_says_blocks())
        config.maxCTAs = MESSAGE_BLOCKS;
    else if (use->largest <= SMALL_BYTES && !user_says_blocks())
        config.maxCTAs = SMALL_BLOCKS;
#if CONFIG_SAYS_GRAPHS
    config.graphUsageMode = 2; /* several graphs, and ops beside them; 0 would be NCCL_GRAPH_MIXING_SUPPORT=0 */
#endif
    ncclResult_t r = g->me == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    status s = r == ncclSuccess ? STATUS_OK
                                : status_fail(STATUS_FAILED, "NCCL does not start: %s (%s)", ncclGetErrorString(r),
                                              ncclGetLastError(NULL));
    TRY(comm_all_status(job, s));
    comm_broadcast_bytes(job, &id, sizeof id, 0);
    r = ncclCommInitRankConfig(out, g->count, id, g->me, &config);
    if (r != ncclSuccess)
        s = status_fail(STATUS_FAILED,
                        "NCCL does not connect %d ranks: %s (%s); is there memory for it on the GPU? "
                        "NCCL_DEBUG=INFO says more",
                        g->count, ncclGetErrorString(r), ncclGetLastError(NULL));
    return comm_all_status(job, s);
}

static status nccl_group_open(comm_group *g)
{
    if (g->like) {
        communicator *shared = g->like->state;
        shared->groups++;
        g->state = shared;
        return STATUS_OK;
    }
    prepare_environment(g->owner, g->use.varies);
    TRY(check_version());
    AUTO(comm_group) *job = NULL;
    TRY(comm_group_open(&job, g->owner, g->members, g->count));
    /* joins the calls of all members */
    comm_use use = g->use;
    AUTO_FREE comm_use *each = must_calloc((unsigned long)comm_group_ranks(job), sizeof *each);
    comm_all_gather_bytes(job, each, &g->use, sizeof g->use);
    for (int i = 0; i < comm_group_ranks(job); i++)
        use = comm_use_of_both(&use, &each[i]);
    AUTO_FREE communicator *n = must_calloc(1, sizeof *n);
    n->groups = 1;
    if (use.kinds) {
        TRY(connect(&n->handle, job, g, &use));
        TRY(warm(g, job, n->handle, &use));
    }
    g->state = TAKE(n);
    return STATUS_OK;
}

static void nccl_group_close(comm_group *g)
{
    communicator *n = g->state;
    if (--n->groups > 0)
        return;
    if (n->handle)
        NCCL_MUST(ncclCommDestroy(n->handle));
    free(n);
}

/* A communicator that has failed is not aborted: ncclCommAbort waits until no graph refers to it, and the graph goes
 * after the main thread, which waits here. The process says its last words, and its end frees everything. */
static status nccl_poll(bool *heard, comm_group *g)
{
    const communicator *n = g->state;
    ncclResult_t failed = ncclSuccess;
    if (!n->handle)
        return STATUS_OK;
    ncclResult_t r = ncclCommGetAsyncError(n->handle, &failed);
    if (r == ncclSuccess && (failed == ncclSuccess || failed == ncclInProgress))
        return STATUS_OK;
    char members[160];
    ncclResult_t why = r == ncclSuccess ? failed : r;
    *heard = why == ncclRemoteError;
    /* "0, 8, 16, 24", or the first of many, "..." and the last */
    enum { LISTED = 16 };
    size_t used = 0;
    for (int i = 0; i < g->count; i++)
        if (i < LISTED - 1 || i == g->count - 1)
            used += (size_t)snprintf(members + used, (sizeof members) - used, "%s%s%d", i ? ", " : "",
                                     i >= LISTED ? "..., " : "", g->members[i]);
    return status_fail(STATUS_FAILED, "NCCL, in a group of %d ranks (%s): %s (%s)", g->count, members,
                       ncclGetErrorString(why), ncclGetLastError(NULL));
}

/* ---- the other functions of a backend ---------------------------------------------------------------------------- */

static void nccl_wait(comm_request *r)
{
    (void)r;
}

/* Jobs are opened by the job's own backend; this one has groups only. */
const comm_backend comm_nccl_backend = {
    .name = "nccl",
    .group_open = nccl_group_open,
    .group_close = nccl_group_close,
    .start = nccl_start,
    .wait = nccl_wait,
    .poll = nccl_poll,
    .version = nccl_version,
};
