/* Communication between ranks: what comm.h promises. The ranks themselves are rank_comm.c, started here under
 * mpirun. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/scope.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/comm_backend.h"
#include "parallel/comm/comm_shape.h"
#include "tests/jobs/launch.h"
#include "tests/parallel/schedule/least.h"
#include "tests/test.h"

enum { MOST = 40 };

static launch_result ranks(int count, const char *mutant)
{
    AUTO_FREE char *mpirun = launch_mpirun(count), *program = launch_beside("rank_comm");
    launch_result r = launch_run(120, "exec %s %s %s", mpirun, program, mutant);
    if (r.timed_out || (r.status && r.status != 3))
        fprintf(stderr, "%s%s", r.out, r.err);
    return r;
}

/* "... ranks: 123 cases, 0 wrong, 0 failed" */
static void read_counts(const launch_result *r, long long *cases, long long *wrong, long long *failed)
{
    const char *at = strstr(r->out, "ranks: ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "ranks: %lld cases, %lld wrong, %lld failed", cases, wrong, failed), 3);
}

static void operations_are_exact(int count)
{
    long long cases, wrong, failed;
    launch_result r = ranks(count, "");
    assert_false(r.timed_out);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "mpi backend"));
    read_counts(&r, &cases, &wrong, &failed);
    assert_true(cases >= 500 * count); /* nothing was skipped */
    assert_true(wrong == 0 && failed == 0);
    launch_free(&r);
}

TEST(operations_are_exact_on_2_ranks)
{
    operations_are_exact(2);
}

TEST(operations_are_exact_on_3_ranks)
{
    operations_are_exact(3);
}

TEST(operations_are_exact_on_4_ranks)
{
    operations_are_exact(4);
}

TEST(wrong_results_are_noticed)
{
    static const char *const mutants[] = {"drop", "swap", "order"};
    for (int i = 0; i < 3; i++) {
        long long cases, wrong, failed;
        launch_result r = ranks(3, mutants[i]);
        assert_int_equal(r.status, 3);
        read_counts(&r, &cases, &wrong, &failed);
        assert_true(wrong >= 50 && failed == 0);
        launch_free(&r);
    }
}

TEST(one_process_needs_no_mpirun)
{
    AUTO_FREE char *program = launch_beside("rank_comm");
    static const char *const environments[] = {"", "OMPI_COMM_WORLD_SIZE=1", "SLURM_NTASKS=8"};
    for (int i = 0; i < 3; i++) {
        long long cases, wrong, failed;
        launch_result r = launch_run(60, "%s exec %s", environments[i], program);
        assert_int_equal(r.status, 0);
        assert_non_null(strstr(r.out, "self backend, 1 ranks"));
        read_counts(&r, &cases, &wrong, &failed);
        assert_true(cases >= 200 && wrong == 0 && failed == 0);
        launch_free(&r);
    }
}

/* A launcher that is not this MPI's leaves every process thinking it is alone: refused, in one line. */
TEST(a_foreign_launcher_is_refused)
{
    AUTO_FREE char *program = launch_beside("rank_comm");
    launch_result r = launch_run(
        60, "ASAN_OPTIONS=detect_leaks=0 PMI_SIZE=4 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 exec %s",
        program);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "the launcher started 4 processes, but MPI sees 1"));
    launch_free(&r);
}

/* ---- arithmetic ---- */

static comm_shape shape_of(comm_kind kind, int members, int me, int64_t count)
{
    return (comm_shape){.kind = kind, .type = DTYPE_BF16, .members = members, .me = me, .count = count};
}

TEST(expected_traffic_is_the_formula_and_the_minimum)
{
    for (int n = 1; n <= MOST; n++) {
        int64_t count = 9973 * n, bytes = count * 2; /* divides: every member sends its share */
        for (int me = 0; me < n; me++) {
            comm_shape reduce = shape_of(COMM_ALL_REDUCE, n, me, count),
                       scatter = shape_of(COMM_REDUCE_SCATTER, n, me, count),
                       gather = shape_of(COMM_ALL_GATHER, n, me, count);
            assert_int_equal(comm_expected_bytes(&reduce), 2 * (n - 1) * bytes / n);
            assert_int_equal(comm_expected_bytes(&scatter), (n - 1) * bytes / n);
            assert_int_equal(comm_expected_bytes(&gather), (n - 1) * bytes / n);
        }
        for (comm_kind kind = COMM_ALL_REDUCE; kind <= COMM_BROADCAST; kind++)
            for (int64_t odd = 0; odd < 3 * n; odd += 2) {
                int64_t sum = 0, scratch = 0;
                for (int me = 0; me < n; me++) {
                    comm_shape s = shape_of(kind, n, me, odd);
                    s.peer = n / 2;
                    sum += comm_expected_bytes(&s);
                    scratch += comm_scratch_bytes(&s);
                }
                comm_shape s = shape_of(kind, n, 0, odd);
                assert_int_equal(sum, least_bytes(&s));
                assert_int_equal(least_bytes(&s), (kind == COMM_ALL_REDUCE ? 2 : 1) * (n - 1) * odd * 2);
                assert_int_equal(scratch > 0,
                                 n > 1 && odd > 0 && (kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER));
            }
    }
}

TEST(parts_cover_the_tensor_once)
{
    static const int64_t counts[5] = {0, 7, 0, 1, 12};
    for (int n = 1; n <= MOST; n++)
        for (int64_t count = 0; count < 100; count += 9) {
            int64_t next = 0, offset, own, least = INT64_MAX, most = 0;
            comm_shape s = shape_of(COMM_ALL_GATHER, n, 0, count);
            for (int i = 0; i < n; i++) {
                comm_part(&offset, &own, &s, i);
                assert_int_equal(offset, next);
                next += own;
                least = own < least ? own : least;
                most = own > most ? own : most;
            }
            assert_int_equal(next, count);
            assert_true(most - least <= 1);
        }
    comm_shape uneven = shape_of(COMM_ALL_GATHER, 5, 0, 20);
    uneven.counts = counts;
    int64_t offset, own;
    comm_part(&offset, &own, &uneven, 4);
    assert_true(offset == 8 && own == 12);
}

/* Following the parents leads to the root, and a member's children are those whose parent it is. */
TEST(a_broadcast_reaches_everyone_once)
{
    for (int n = 1; n <= MOST; n++)
        for (int root = 0; root < n; root++) {
            int parents[MOST], found[MOST] = {0}, children[31], parent;
            for (int me = 0; me < n; me++)
                comm_tree(children, &parents[me], n, me, root);
            for (int me = 0; me < n; me++) {
                int count = comm_tree(children, &parent, n, me, root), steps = 0, at = me;
                for (int i = 0; i < count; i++) {
                    assert_int_equal(parents[children[i]], me);
                    found[children[i]]++;
                }
                for (; at != root; at = parents[at])
                    assert_true(steps++ < 7); /* log2(MOST), rounded up, and one */
                assert_int_equal(parents[root], -1);
            }
            for (int me = 0; me < n; me++)
                assert_int_equal(found[me], me != root);
        }
}

TEST(scratch_stays_small_with_many_members)
{
    for (int n = 2; n <= 4096; n *= 2) {
        comm_shape s = shape_of(COMM_REDUCE_SCATTER, n, 0, (int64_t)1 << 33);
        assert_true(comm_scratch_bytes(&s) <= (n <= 512 ? 16 << 20 : (int64_t)n << 15));
    }
}

/* bf16 sums round once: 1 + 2^-9 + 2^-9 is 1 + 2^-8 -> a tie, to even: 1; three of them: above the tie. Rounding after
 * each addition would give 1 for both. */
TEST(narrow_sums_round_once)
{
    uint16_t one = float_to_bf16(1), small = float_to_bf16(0x1p-9f), out;
    const void *terms[] = {&one, &small, &small, &small};
    comm_reduce(&out, terms, 3, 1, DTYPE_BF16, false);
    assert_int_equal(out, float_to_bf16(1));
    comm_reduce(&out, terms, 4, 1, DTYPE_BF16, false);
    assert_int_equal(out, float_to_bf16(1 + 0x1p-7f));
    uint16_t whole = float_to_fp16(2048), unit = float_to_fp16(1);
    const void *halves[] = {&whole, &unit, &unit, &unit};
    comm_reduce(&out, halves, 4, 1, DTYPE_FP16, false);
    assert_int_equal(out, float_to_fp16(2052)); /* 2051: a tie between 2050 and 2052 */
    comm_reduce(&out, halves, 4, 1, DTYPE_FP16, true);
    assert_int_equal(out, whole);
    assert_false(comm_sum_takes(DTYPE_UINT8));
}

/* Of integers below zero the largest is not that of their bits. */
TEST(maxima_have_signs)
{
    const int32_t low = -7, high = -3;
    const float less = -0.5f, more = 0x1p-140f;
    int32_t whole;
    float single;
    comm_reduce(&whole, (const void *const[]){&low, &high, &low}, 3, 1, DTYPE_INT32, true);
    comm_reduce(&single, (const void *const[]){&more, &less}, 2, 1, DTYPE_FP32, true);
    assert_true(whole == -3 && single == more);
}

int main(void)
{
    /* this program may itself have been started by a launcher */
    static const char *const launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        unsetenv(launchers[i]);
    return test_run(NULL, NULL);
}
