/* One rank of the communication tests: mpirun -np N rank_comm [MUTANT].
 *
 * Every rank can make every rank's input, so each checks its own results against a naive oracle of its own: bitwise.
 * Exit status 0: all correct; 3: wrong results were noticed (what a mutant must lead to); anything else: broken.
 * Mutants come between the operation and its check: `drop` (one member's contribution is lost), `swap` (two parts
 * change places), `order` (the sum runs from the last rank to the first).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/comm_backend.h"
#include "tests/parallel/schedule/least.h"

enum { GROUPS = 4, MOST_MEMBERS = 16, GUARD = 64 };

typedef struct bench {
    comm *c;
    comm_group *groups[GROUPS]; /* NULL where this rank is no member */
    const char *mutant;         /* "" for none */
    int64_t cases, wrong, failed;
} bench;

/* One operation to be tested: the same on all members of its group. */
typedef struct job {
    comm_kind kind;
    comm_group *group;
    dtype type;
    int64_t count;
    bool uneven, in_place, maximum;
    int root;
    unsigned salt;
    comm_call call;
    comm_shape shape;
    comm_request request;
    int64_t counts[MOST_MEMBERS];
    char *send, *receive, *guarded;
    int64_t receive_bytes;
} job;

static uint64_t hash(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t random_bits(unsigned salt, int rank, int64_t i)
{
    return hash(hash(hash(salt) + (uint64_t)rank) + (uint64_t)i);
}

/* Magnitudes from 2^-8 to 2^7 with both signs: the order of a sum shows in its last bits. */
static float random_float(uint64_t bits)
{
    float magnitude = 1.0f + (float)(bits >> 40) / (float)(1 << 24);
    return (bits & 1 ? -magnitude : magnitude) * (float)(1 << (bits >> 1 & 15)) / 256.0f;
}

static void put(void *at, dtype type, uint64_t bits)
{
    float value = random_float(bits);
    if (type == DTYPE_FP32)
        memcpy(at, &value, sizeof value);
    else if (type == DTYPE_FP64)
        memcpy(at, &(double){(double)value * (1 + 0x1p-40 * (double)(bits >> 50))}, sizeof(double));
    else if (type == DTYPE_BF16)
        memcpy(at, &(uint16_t){float_to_bf16(value)}, sizeof(uint16_t));
    else if (type == DTYPE_FP16)
        memcpy(at, &(uint16_t){float_to_fp16(value)}, sizeof(uint16_t));
    else
        memcpy(at, &bits, (size_t)dtype_bytes(type));
}

/* The sum of element i over the members, one addition at a time. */
static void put_sum(void *at, const job *j, int64_t i, bool backwards)
{
    int n = comm_group_ranks(j->group);
    float single = 0;
    double twice = 0;
    uint64_t whole = 0;
    for (int k = 0; k < n; k++) {
        char term[8] = {0};
        put(term, j->type, random_bits(j->salt, comm_group_member(j->group, backwards ? n - 1 - k : k), i));
        float f32;
        double f64;
        uint16_t half;
        uint32_t u32;
        uint64_t u64;
        memcpy(&f32, term, sizeof f32);
        memcpy(&f64, term, sizeof f64);
        memcpy(&half, term, sizeof half);
        memcpy(&u32, term, sizeof u32);
        memcpy(&u64, term, sizeof u64);
        float value = j->type == DTYPE_BF16 ? bf16_to_float(half) : j->type == DTYPE_FP16 ? fp16_to_float(half) : f32;
        int64_t integer = j->type == DTYPE_INT32 ? (int32_t)u32 : (int64_t)u64, most = (int64_t)whole;
        if (j->maximum) {
            single = k && single > value ? single : value;
            twice = k && twice > f64 ? twice : f64;
            whole = (uint64_t)(k && most > integer ? most : integer);
            continue;
        }
        single = k ? single + value : value;
        twice = k ? twice + f64 : f64;
        whole += j->type == DTYPE_INT32 ? u32 : u64;
    }
    if (j->type == DTYPE_FP32)
        memcpy(at, &single, sizeof single);
    else if (j->type == DTYPE_FP64)
        memcpy(at, &twice, sizeof twice);
    else if (j->type == DTYPE_BF16)
        memcpy(at, &(uint16_t){float_to_bf16(single)}, sizeof(uint16_t));
    else if (j->type == DTYPE_FP16)
        memcpy(at, &(uint16_t){float_to_fp16(single)}, sizeof(uint16_t));
    else
        memcpy(at, &whole, (size_t)dtype_bytes(j->type));
}

static void fill(char *out, dtype type, unsigned salt, int rank, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        put(out + i * dtype_bytes(type), type, random_bits(salt, rank, first + i));
}

/* Uneven parts: some members own nothing, one most. */
static void divide(int64_t *counts, int64_t count, int n, unsigned salt)
{
    int64_t left = count;
    for (int i = 0; i < n; i++) {
        int64_t some = (i + salt) % 3 == 0 ? 0 : left / ((i + salt) % 3 + 1);
        counts[i] = i == n - 1 ? left : some;
        left -= counts[i];
    }
}

static int64_t exchanged(const job *j, int member)
{
    return j->uneven ? j->count + 3 * member : j->count;
}

/* ---- begin: buffers, inputs, start ---- */

static void begin(job *j)
{
    comm_group *g = j->group;
    int n = comm_group_ranks(g), me = comm_group_me(g), rank = comm_group_member(g, me), width = dtype_bytes(j->type);
    if (j->uneven)
        divide(j->counts, j->count, n, j->salt);
    comm_call *call = &j->call;
    *call = (comm_call){
        .kind = j->kind, .group = g, .type = j->type, .count = j->count, .peer = j->root, .maximum = j->maximum};
    bool parts = j->kind == COMM_ALL_REDUCE || j->kind == COMM_ALL_GATHER || j->kind == COMM_REDUCE_SCATTER ||
                 j->kind == COMM_ALL_TO_ALL;
    call->counts = j->uneven && parts ? j->counts : NULL;
    j->shape = comm_call_shape(call);
    int64_t offset = 0, own = 0, sends = j->count, receives = j->count;
    comm_part(&offset, &own, &j->shape, me);
    if (j->kind == COMM_ALL_GATHER)
        sends = own;
    if (j->kind == COMM_REDUCE_SCATTER)
        receives = own;
    if (j->kind == COMM_ALL_TO_ALL)
        receives = n * own;
    if (j->kind == COMM_EXCHANGE) {
        call->peer = (me + 1) % n;
        call->source = (me + n - 1) % n;
        sends = call->count = exchanged(j, me);
        receives = call->receive_count = exchanged(j, call->source);
    }
    if (j->kind == COMM_SEND) { /* even members send, odd ones receive; a last even one has nobody */
        call->kind = me % 2 ? COMM_RECEIVE : COMM_SEND;
        call->peer = me + 1;
        call->source = me - 1;
    }
    j->shape = comm_call_shape(call);
    j->receive_bytes = receives * width;
    j->send = must_alloc((unsigned long)(sends * width));
    fill(j->send, j->type, j->salt, rank, j->kind == COMM_ALL_GATHER ? offset : 0, sends);
    int64_t room = (sends > receives ? sends : receives) > j->count ? sends + receives : j->count;
    j->guarded = must_alloc((unsigned long)(room * width + 2 * GUARD));
    memset(j->guarded, 0xa5, (size_t)(room * width + 2 * GUARD));
    j->receive = j->guarded + GUARD;
    call->send = j->send;
    if (j->in_place) { /* the input lies where the output will; what is elsewhere in the buffer is the caller's */
        char *whole = j->receive;
        call->send = j->kind == COMM_ALL_GATHER ? whole + offset * width : whole;
        memcpy((char *)(uintptr_t)call->send, j->send, (size_t)(sends * width));
        if (j->kind == COMM_REDUCE_SCATTER)
            j->receive = whole + offset * width;
    }
    call->receive = j->receive;
    call->scratch = must_alloc((unsigned long)comm_scratch_bytes(&j->shape) + 1);
    ((char *)call->scratch)[comm_scratch_bytes(&j->shape)] = 0x5a;
    if (call->kind == COMM_SEND && call->peer >= n)
        j->request = (comm_request){0};
    else
        comm_start(&j->request, call);
}

/* ---- end: the oracle ---- */

static void mutate(const bench *b, const job *j)
{
    int n = comm_group_ranks(j->group), width = dtype_bytes(j->type);
    bool reduces = j->kind == COMM_ALL_REDUCE || j->kind == COMM_REDUCE_SCATTER;
    int64_t offset = 0, own = 0, count = j->receive_bytes / width;
    if (j->kind == COMM_REDUCE_SCATTER)
        comm_part(&offset, &own, &j->shape, comm_group_me(j->group));
    if (strcmp(b->mutant, "drop") == 0 && !reduces && j->kind != COMM_SEND)
        memset(j->receive, 0xa5, (size_t)j->receive_bytes);
    if (strcmp(b->mutant, "drop") == 0 && reduces && j->type == DTYPE_INT64)
        for (int64_t i = 0; i < count; i++) {
            uint64_t sum, lost = random_bits(j->salt, comm_group_member(j->group, n - 1), offset + i);
            memcpy(&sum, j->receive + i * width, sizeof sum);
            sum -= lost;
            memcpy(j->receive + i * width, &sum, sizeof sum);
        }
    if (strcmp(b->mutant, "order") == 0 && reduces)
        for (int64_t i = 0; i < count; i++)
            put_sum(j->receive + i * width, j, offset + i, true);
    if (strcmp(b->mutant, "swap") == 0 && j->kind == COMM_ALL_GATHER && !j->uneven && n > 1) {
        int64_t half = count / n * width;
        for (int64_t i = 0; i < half; i++) {
            char first = j->receive[i];
            j->receive[i] = j->receive[half + i];
            j->receive[half + i] = first;
        }
    }
}

/* What element i of the output is, where it is not a sum. */
static uint64_t origin(const job *j, int64_t i)
{
    int me = comm_group_me(j->group), member = me;
    int64_t offset = 0, own = i + 1;
    if (j->kind == COMM_ALL_TO_ALL)
        comm_part(&offset, &own, &j->shape, me), member = (int)(i / own);
    if (j->kind == COMM_BROADCAST)
        member = j->root;
    if (j->kind == COMM_SEND)
        member = me - 1;
    if (j->kind == COMM_EXCHANGE)
        member = j->call.source;
    if (j->kind == COMM_ALL_GATHER)
        for (member = 0;; member++) {
            int64_t first, count;
            comm_part(&first, &count, &j->shape, member);
            if (i < first + count)
                break;
        }
    return random_bits(j->salt, comm_group_member(j->group, member), offset + i % own);
}

static bool correct(const job *j)
{
    int width = dtype_bytes(j->type), me = comm_group_me(j->group);
    int64_t offset = 0, own;
    bool reduces = j->kind == COMM_ALL_REDUCE || j->kind == COMM_REDUCE_SCATTER;
    if (j->kind == COMM_REDUCE_SCATTER)
        comm_part(&offset, &own, &j->shape, me);
    bool receives = j->kind != COMM_SEND || me % 2;
    for (int64_t i = 0; receives && i < j->receive_bytes / width; i++) {
        char want[8];
        if (reduces)
            put_sum(want, j, offset + i, false);
        else
            put(want, j->type, origin(j, i));
        if (memcmp(want, j->receive + i * width, (size_t)width) != 0)
            return false;
    }
    /* nothing outside the output was written */
    const unsigned char *before = (const unsigned char *)j->guarded;
    const unsigned char *after = (const unsigned char *)j->receive + j->receive_bytes;
    for (int i = 0; i < GUARD; i++)
        if (before[i] != 0xa5 || (!j->in_place && receives && after[i] != 0xa5))
            return false;
    return ((char *)j->call.scratch)[comm_scratch_bytes(&j->shape)] == 0x5a;
}

static void end(bench *b, job *j)
{
    comm_wait(&j->request);
    mutate(b, j);
    b->cases++;
    if (!correct(j)) {
        b->wrong++;
        if (!*b->mutant)
            fprintf(stderr, "rank %d: wrong: kind %d type %s count %lld uneven %d in place %d, %d members\n",
                    comm_rank(b->c), (int)j->kind, dtype_name(j->type), (long long)j->count, j->uneven, j->in_place,
                    comm_group_ranks(j->group));
    }
    free(j->send);
    free(j->guarded);
    free(j->call.scratch);
}

static void expect(bench *b, bool condition, const char *what)
{
    if (condition)
        return;
    b->failed++;
    fprintf(stderr, "rank %d: %s\n", comm_rank(b->c), what);
}

/* ---- the tests ---- */

/* One operation alone: its result, and that the counters moved by the formula, and all members' together by the
 * minimum. */
static void check_alone(bench *b, job j)
{
    if (!j.group || (comm_group_ranks(j.group) == 1 && (j.kind == COMM_SEND || j.kind == COMM_EXCHANGE)))
        return;
    int64_t bytes = comm_bytes_sent(j.group), messages = comm_messages_sent(j.group);
    begin(&j);
    comm_wait(&j.request);
    bytes = comm_bytes_sent(j.group) - bytes;
    messages = comm_messages_sent(j.group) - messages;
    bool idle = j.call.kind == COMM_SEND && j.call.peer >= comm_group_ranks(j.group);
    expect(b, bytes == (idle ? 0 : comm_expected_bytes(&j.shape)), "bytes sent differ from the formula");
    expect(b, messages == (idle ? 0 : comm_expected_messages(&j.shape)), "messages sent differ from the formula");
    int64_t all[MOST_MEMBERS], sum = 0;
    comm_all_gather_bytes(j.group, all, &bytes, sizeof bytes);
    for (int i = 0; i < comm_group_ranks(j.group); i++)
        sum += all[i];
    if (j.kind != COMM_SEND && j.kind != COMM_EXCHANGE)
        expect(b, sum == least_bytes(&j.shape), "bytes sent by all exceed the minimum");
    end(b, &j);
}

static void every_kind_type_and_size(bench *b)
{
    static const comm_kind kinds[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_BROADCAST,
                                      COMM_ALL_TO_ALL, COMM_EXCHANGE,       COMM_SEND};
    static const dtype types[] = {DTYPE_FP32,  DTYPE_BF16,  DTYPE_FP16, DTYPE_FP64,
                                  DTYPE_INT32, DTYPE_INT64, DTYPE_UINT8};
    static const int64_t sizes[] = {0, 1, 7, 1021, 40009};
    unsigned salt = 0;
    for (int k = 0; k < 7; k++)
        for (int t = 0; t < 7; t++)
            for (int s = 0; s < 5; s++)
                for (int variant = 0; variant < 4; variant++) {
                    bool in_place = variant & 2, reduces = k < 2;
                    if ((in_place && k > 2) || (reduces && types[t] == DTYPE_UINT8) ||
                        (s == 4 && ((t > 1 && variant) || *b->mutant)))
                        continue;
                    job j = {.kind = kinds[k],
                             .group = b->groups[salt % 5 ? 0 : 1],
                             .type = types[t],
                             .count = sizes[s],
                             .uneven = variant & 1,
                             .in_place = in_place,
                             .maximum = reduces && salt % 4 == 3,
                             .salt = salt};
                    j.root = j.group ? (int)salt % comm_group_ranks(j.group) : 0;
                    salt++;
                    check_alone(b, j);
                }
    /* several windows of segments */
    for (int k = 0; k < 7 && !*b->mutant; k++)
        check_alone(b, (job){.kind = kinds[k],
                             .group = b->groups[0],
                             .type = DTYPE_FP32,
                             .count = 2500003,
                             .uneven = k % 2,
                             .in_place = k < 3,
                             .salt = 7777});
}

/* The same list of operations on every rank, over groups that overlap, many in flight at once, waited for in another
 * order than started. */
enum { PIECES = 6 };

/* Is piece i of a call of several what it would be alone? */
static bool piece_is_correct(const job *j, const comm_segment *p)
{
    int n = comm_group_ranks(j->group), width = dtype_bytes(j->type);
    int64_t offset = 0, count = p->count;
    if (j->kind == COMM_REDUCE_SCATTER)
        comm_piece_part(&offset, &count, p, n, comm_group_me(j->group));
    for (int64_t i = 0; i < count; i++) {
        char want[8];
        put_sum(want, j, offset + i, false);
        if (memcmp(want, (const char *)p->receive + i * width, (size_t)width) != 0)
            return false;
    }
    return true;
}

/* Several tensors reduced by one call: the bits of each alone, and what is sent is what one tensor of their size would
 * send. Segments begin and end within pieces. */
static void check_together(bench *b, comm_group *g, comm_kind kind, dtype type, bool uneven)
{
    static const int64_t sizes[PIECES] = {0, 1, 1021, 300001, 7, 40009};
    int n = comm_group_ranks(g), rank = comm_group_member(g, comm_group_me(g)), width = dtype_bytes(type);
    int64_t counts[PIECES][MOST_MEMBERS], sums[MOST_MEMBERS] = {0}, total = 0;
    comm_segment pieces[PIECES];
    for (int i = 0; i < PIECES; i++) {
        char *values = must_alloc((unsigned long)(sizes[i] * width) + 1);
        fill(values, type, 500u + (unsigned)i, rank, 0, sizes[i]);
        pieces[i] = (comm_segment){.send = values, .receive = values, .count = sizes[i]};
        if (uneven)
            divide(counts[i], sizes[i], n, (unsigned)i);
        pieces[i].counts = uneven ? counts[i] : NULL;
        int64_t offset, count;
        for (int m = 0; m < n; m++) {
            comm_piece_part(&offset, &count, &pieces[i], n, m);
            sums[m] += count;
        }
        total += sizes[i];
        comm_piece_part(&offset, &count, &pieces[i], n, comm_group_me(g));
        if (kind == COMM_REDUCE_SCATTER) /* in place, as all here */
            pieces[i].receive = values + offset * width;
    }
    comm_call call = {.kind = kind,
                      .group = g,
                      .type = type,
                      .count = total,
                      .counts = sums,
                      .pieces = pieces,
                      .piece_count = PIECES};
    comm_shape shape = comm_call_shape(&call);
    call.scratch = must_alloc((unsigned long)comm_scratch_bytes(&shape) + 1);
    int64_t bytes = comm_bytes_sent(g), messages = comm_messages_sent(g);
    comm_run(&call);
    expect(b, comm_bytes_sent(g) - bytes == comm_expected_bytes(&shape), "bytes of several differ from the formula");
    expect(b, comm_messages_sent(g) - messages == comm_expected_messages(&shape), "messages of several differ, too");
    for (int i = 0; i < PIECES; i++) {
        job alone = {.kind = kind, .group = g, .type = type, .count = sizes[i], .salt = 500u + (unsigned)i};
        b->cases++;
        if (!piece_is_correct(&alone, &pieces[i])) {
            b->wrong++;
            fprintf(stderr, "rank %d: piece %d of several is wrong: kind %d, uneven %d\n", rank, i, (int)kind, uneven);
        }
        free((void *)(uintptr_t)pieces[i].send);
    }
    free(call.scratch);
}

static void several_tensors_are_reduced_together(bench *b)
{
    for (int i = 0; i < GROUPS; i++)
        for (int k = 0; k < 8; k++)
            if (b->groups[i] && comm_group_ranks(b->groups[i]) > 1)
                check_together(b, b->groups[i], k & 1 ? COMM_ALL_REDUCE : COMM_REDUCE_SCATTER,
                               k & 2 ? DTYPE_FP32 : DTYPE_BF16, k & 4);
}

static void many_at_once_over_several_groups(bench *b)
{
    enum { ROUNDS = 12, FLYING = 10 };
    static const dtype types[] = {DTYPE_BF16, DTYPE_FP32, DTYPE_INT64};
    for (unsigned round = 0; round < ROUNDS; round++) {
        job jobs[FLYING];
        for (unsigned i = 0; i < FLYING; i++) {
            unsigned salt = 100000 + round * FLYING + i;
            uint64_t dice = hash(salt);
            job j = {.kind = (comm_kind[]){COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_BROADCAST,
                                           COMM_ALL_TO_ALL, COMM_EXCHANGE, COMM_SEND}[dice % 7],
                     .group = b->groups[(dice >> 8) % GROUPS],
                     .type = types[(dice >> 16) % 3],
                     .count = (int64_t)((dice >> 20) % ((dice >> 40) % 4 ? 3000 : 120000)),
                     .uneven = dice >> 50 & 1,
                     .salt = salt};
            jobs[i] = j;
            if (!j.group || comm_group_ranks(j.group) == 1)
                jobs[i].group = NULL;
            else
                begin(&jobs[i]);
        }
        for (int i = FLYING - 1; i >= 0; i--) {
            job *j = &jobs[round % 2 ? i : (i * 7) % FLYING];
            if (j->group)
                end(b, j);
        }
    }
}

/* Member 0 starts a collective, and the others are kept from starting theirs until they hear from it: a start that
 * waited for the peers would never end. */
static void starting_does_not_wait_for_the_peers(bench *b)
{
    comm_group *g = b->groups[0];
    job big = {.kind = COMM_ALL_REDUCE, .group = g, .type = DTYPE_FP32, .count = 600000, .salt = 31};
    char word = 'g', heard[MOST_MEMBERS];
    if (comm_group_me(g) == 0)
        begin(&big);
    for (int i = 1; i < comm_group_ranks(g); i++) {
        if (comm_group_me(g) == 0)
            comm_run(
                &(comm_call){.kind = COMM_SEND, .group = g, .type = DTYPE_UINT8, .send = &word, .count = 1, .peer = i});
        else if (comm_group_me(g) == i)
            comm_run(&(comm_call){.kind = COMM_RECEIVE, .group = g, .type = DTYPE_UINT8, .receive = heard, .count = 1});
    }
    if (comm_group_me(g) != 0)
        begin(&big);
    end(b, &big);
}

/* Every member has come here. */
static void barrier(comm_group *g)
{
    MUST(comm_all_status(g, STATUS_OK) == STATUS_OK, "%s", status_message());
}

/* Bytes are sent before the wait: all of them, if the executor gives communication a turn between its ops, or if a
 * thread does; none, if nobody does (which shows that the measurement can fail). */
static void bytes_move_before_the_wait(bench *b, bool by_call, bool by_thread)
{
    comm_group *g = b->groups[0];
    expect(b, comm_progress_thread(b->c, by_thread) == STATUS_OK, status_message());
    barrier(g);
    job j = {.kind = COMM_ALL_REDUCE, .group = g, .type = DTYPE_FP32, .count = 1 << 20, .salt = 77};
    int64_t before = comm_bytes_sent(g), all;
    begin(&j);
    all = comm_expected_bytes(&j.shape);
    int64_t moved = 0;
    for (double until = clock_seconds() + (by_call || by_thread ? 20 : 0.1); clock_seconds() < until && moved < all;) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* an op */
        if (by_call)
            comm_progress(b->c);
        moved = comm_bytes_sent(g) - before;
    }
    if (by_call || by_thread)
        expect(b, moved == all, "bytes did not move before the wait");
    else
        expect(b, moved < all, "bytes moved though nobody moved them");
    end(b, &j);
    expect(b, comm_progress_thread(b->c, false) == STATUS_OK, status_message());
    barrier(g);
}

static void a_failure_on_one_rank_is_known_to_all(bench *b)
{
    comm_group *g = b->groups[0];
    int last = comm_group_ranks(g) - 1;
    expect(b, comm_all_status(g, STATUS_OK) == STATUS_OK, "a failure out of nothing");
    status mine = comm_group_me(g) == last ? status_fail(STATUS_USAGE, "no such file: \"a\"") : STATUS_OK;
    expect(b, comm_all_status(g, mine) == STATUS_USAGE, "a failure is not known to all");
    char want[64];
    snprintf(want, sizeof want, "rank %d: no such file: \"a\"", last);
    expect(b, last == 0 || strcmp(status_message(), want) == 0, status_message());
}

/* The last rank's facts differ from the others': all are told, in the same words. */
static void ranks_that_differ_are_told(bench *b)
{
    comm_group *g = b->groups[0];
    int last = comm_group_ranks(g) - 1;
    bool apart = comm_group_me(g) == last;
    static const char *const lists[] = {"", "rank 0", "ranks 0, 1", "ranks 0, 1, 2"}; /* at most 4 ranks */
    char long_one[400], words[300];
    snprintf(long_one, sizeof long_one, "a: 1\nb: %0300d%s\n", 0, apart ? "mine" : "yours");
    const struct {
        const char *usual, *other, *name, *value[2];
    } rows[] = {{"a: 1\nb: 2\n", "a: 1\nb: 3\n", "b", {"2", "3"}},
                {"a: 1\nb: 2\n", "a: 1\n", "b", {"2", "unknown"}},
                {"a: 1\n", "a: 1\nc: 2\n", "c", {"unknown", "2"}},
                {long_one,
                 long_one,
                 "b",
                 {"...00000000000000000000000000000000yours", "...00000000000000000000000000000000mine"}}};
    expect(b, agree_all(g, STATUS_OK, rows[0].usual, rows[0].usual) == STATUS_OK, "equal facts differ");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(words, sizeof words, "%s is %s on %s and %s on rank %d", rows[i].name, rows[i].value[0], lists[last],
                 rows[i].value[1], last);
        expect(b,
               agree_all(g, STATUS_OK, apart ? rows[i].other : rows[i].usual, NULL) == STATUS_USAGE &&
                   strstr(status_message(), words),
               status_message());
    }
    status mine = apart ? status_fail(STATUS_FAILED, "no such file") : STATUS_OK;
    expect(b,
           agree_all(g, mine, apart ? "" : "a: 1\n", NULL) == STATUS_FAILED &&
               strstr(status_message(), ": no such file"),
           "a failure is not known to all");
    AUTO_FREE agree_message *all = must_calloc((unsigned long)last + 1, sizeof *all);
    const agree_message newer = {.magic = "phalanx", .protocol = AGREE_PROTOCOL + 1};
    snprintf(words, sizeof words, "rank %d version %d", last, AGREE_PROTOCOL + 1);
    if (apart)
        comm_all_gather_bytes(g, all, &newer, sizeof newer);
    else
        expect(b, agree_all(g, STATUS_OK, "", NULL) == STATUS_USAGE && strstr(status_message(), words),
               status_message());
}

/* world; the first half; the last two; the even ranks */
static void open_groups(bench *b)
{
    int n = comm_ranks(b->c), lists[GROUPS][MOST_MEMBERS], counts[GROUPS] = {0};
    for (int r = 0; r < n; r++) {
        lists[0][counts[0]++] = r;
        if (r < (n + 1) / 2)
            lists[1][counts[1]++] = r;
        if (r >= n - 2)
            lists[2][counts[2]++] = r;
        if (r % 2 == 0)
            lists[3][counts[3]++] = r;
    }
    for (int i = 0; i < GROUPS; i++) {
        bool member = false;
        for (int k = 0; k < counts[i]; k++)
            member |= lists[i][k] == comm_rank(b->c);
        if (!member)
            continue;
        MUST(comm_group_open(&b->groups[i], b->c, lists[i], counts[i]) == STATUS_OK, "%s", status_message());
        expect(b, comm_group_member(b->groups[i], comm_group_me(b->groups[i])) == comm_rank(b->c), "not in my group");
    }
}

int main(int count, char **arguments)
{
    bench b = {.mutant = count > 1 ? arguments[1] : ""};
    if (comm_open(&b.c) != STATUS_OK) {
        log_error("%s", status_message());
        return 2;
    }
    open_groups(&b);
    every_kind_type_and_size(&b);
    several_tensors_are_reduced_together(&b);
    if (!*b.mutant && comm_ranks(b.c) > 1) {
        many_at_once_over_several_groups(&b);
        starting_does_not_wait_for_the_peers(&b);
        bytes_move_before_the_wait(&b, true, false);
        bytes_move_before_the_wait(&b, false, true);
        bytes_move_before_the_wait(&b, false, false);
        comm_progress_thread(b.c, true);
        many_at_once_over_several_groups(&b);
        comm_progress_thread(b.c, false);
    }
    a_failure_on_one_rank_is_known_to_all(&b);
    if (comm_ranks(b.c) > 1)
        ranks_that_differ_are_told(&b);
    int64_t totals[3] = {b.cases, b.wrong, b.failed};
    comm_run(&(comm_call){.kind = COMM_ALL_REDUCE,
                          .group = b.groups[0],
                          .type = DTYPE_INT64,
                          .send = totals,
                          .receive = totals,
                          .count = 3,
                          .scratch = (char[1024]){0}});
    if (comm_rank(b.c) == 0)
        printf("%s backend, %d ranks: %lld cases, %lld wrong, %lld failed\n", b.c->backend->name, comm_ranks(b.c),
               (long long)totals[0], (long long)totals[1], (long long)totals[2]);
    for (int i = 0; i < GROUPS; i++)
        comm_group_close(b.groups[i]);
    comm_close(b.c);
    return totals[2] ? 1 : totals[1] ? 3 : 0;
}
