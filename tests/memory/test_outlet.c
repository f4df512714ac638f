/* Standard output whose reader lives and does not read holds up nobody; what is missing is counted; what is there is in
 * order. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/outlet.h"
#include "tests/test.h"

enum { LINES = 4000, LINE = 60, PAGE = 4096 };

/* A process whose output leads into these pipes, of a page each; one where they are the same. */
static pid_t speaker(int out[2], int error[2], void (*speak)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(error[1], STDERR_FILENO);
        close(out[0]);
        speak();
        _exit(77);
    }
    close(out[1]);
    if (error != out)
        close(error[1]);
    return pid;
}

static void open_pipe(int ends[2])
{
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETPIPE_SZ, PAGE), PAGE);
}

/* Until the writers have gone; the caller's. */
static char *read_all(int file)
{
    size_t used = 0, room = 1 << 20;
    char *text = must_alloc(room);
    for (ssize_t got; used + 1 < room && (got = read(file, text + used, room - used - 1)) > 0;)
        used += (size_t)got;
    text[used] = 0;
    close(file);
    return text;
}

static int status_of(pid_t pid)
{
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

static void print_line(FILE *stream, int number)
{
    fprintf(stream, "%0*d\n", LINE - 1, number);
    fflush(stream);
}

/* Exits with 0 if nothing has made it wait. */
static void speak_much(void)
{
    outlet_open();
    double began = clock_seconds();
    for (int i = 0; i < LINES; i++)
        print_line(stdout, i);
    bool quick = clock_seconds() - began < 5, all = outlet_dropped() == 0;
    fputs("and an error\n", stderr);
    outlet_close(0.2);
    _exit(quick ? all : 2);
}

TEST(a_reader_that_does_not_read_holds_up_nobody)
{
    int out[2], error[2];
    open_pipe(out);
    open_pipe(error);
    pid_t pid = speaker(out, error, speak_much);
    assert_int_equal(status_of(pid), 0); /* and something is missing */
    char *said = read_all(error[0]);
    assert_string_equal(said, "and an error\n"); /* whose reader has not lost a byte */
    free(said);
    said = read_all(out[0]);
    assert_in_range(strlen(said), LINE, PAGE);
    assert_int_equal(strspn(said, "0"), LINE - 1); /* the first line */
    free(said);
}

TEST(what_is_missing_is_counted_where_it_is_missing)
{
    int out[2], error[2], number, next = 0;
    long long missing = 0, bytes;
    open_pipe(out);
    open_pipe(error);
    pid_t pid = speaker(out, error, speak_much);
    usleep(100000); /* by then it has said all */
    char *said = read_all(out[0]), *rest = said;
    for (char *line; (line = strtok_r(rest, "\n", &rest));)
        if (sscanf(line, "[%lld bytes of output are missing here", &bytes) == 1) {
            missing += bytes;
            next += (int)(bytes / LINE);
        } else {
            assert_int_equal(sscanf(line, "%d", &number), 1);
            assert_int_equal(number, next++);
        }
    assert_int_equal(next, LINES);
    assert_true(missing > 0 && missing % LINE == 0);
    assert_int_equal(status_of(pid), 0);
    close(error[0]);
    free(said);
}

static void speak_both(void)
{
    outlet_open();
    for (int i = 0; i < 200; i++)
        print_line(i % 3 ? stdout : stderr, i);
    outlet_close(5);
    print_line(stdout, 200); /* as it was before */
    _exit(outlet_dropped() > 0);
}

TEST(output_and_error_that_lead_to_one_place_stay_in_order)
{
    int out[2], next = 0, number;
    open_pipe(out);
    pid_t pid = speaker(out, out, speak_both);
    char *said = read_all(out[0]), *rest = said;
    for (char *line; (line = strtok_r(rest, "\n", &rest)); next++)
        assert_true(sscanf(line, "%d", &number) == 1 && number == next);
    assert_int_equal(next, 201);
    assert_int_equal(status_of(pid), 0);
    free(said);
}

static void speak_last(void)
{
    outlet_open();
    for (int i = 0; i < LINES; i++)
        print_line(stderr, i);
    double began = clock_seconds();
    for (int i = 0; i < 50; i++) /* every rank of a job, at its end */
        outlet_last_words("last\n", 5, 0.5);
    _exit(clock_seconds() - began > 2);
}

static void die(void)
{
    outlet_open();
    fputs("before\n", stdout);
    MUST(false, "last words");
}

TEST(last_words_are_written_directly_or_given_up_soon)
{
    int out[2], error[2];
    open_pipe(out);
    open_pipe(error);
    assert_int_equal(status_of(speaker(out, error, speak_last)), 0);
    close(out[0]);
    close(error[0]);
    assert_int_equal(pipe(out), 0);
    assert_int_equal(status_of(speaker(out, out, die)), 128 + SIGABRT);
    char *said = read_all(out[0]), *first = strstr(said, "before\n"), *last = strstr(said, "fatal: last words");
    assert_true(first && last && first < last);
    free(said);
}

static void speak_to_nobody(void)
{
    signal(SIGPIPE, SIG_IGN);
    outlet_open();
    print_line(stdout, 0);
    for (int i = 0; i < 100 && !ferror(stdout); i++) {
        print_line(stdout, i);
        usleep(10000);
    }
    _exit(!ferror(stdout));
}

TEST(a_reader_that_is_gone_is_an_error_of_the_stream)
{
    int out[2], error[2];
    open_pipe(out);
    open_pipe(error);
    close(out[0]);
    out[0] = -1;
    assert_int_equal(status_of(speaker(out, error, speak_to_nobody)), 0);
    close(error[0]);
}

/* Lines of both streams, one that comes in pieces, one without an end, and last words: an object each. */
static void speak_json(void)
{
    outlet_open();
    outlet_write_json(log_rank);
    fputs("one ", stdout);
    fflush(stdout);
    fputs("line\n\n{\"step\": 1}\n", stdout);
    fflush(stdout);
    fputs("phalanx: warning: two\n", stderr);
    fputs("the end", stdout);
    outlet_close(OUTLET_CLOSE_SECONDS);
    outlet_open();
    outlet_write_json(log_rank);
    outlet_last_words("phalanx: last\n", 14, 1);
    _exit(0);
}

TEST(lines_become_objects_last_words_too)
{
    static const char *const parts[] = {"\"message\": \"one line\"", "\"metrics\": {\"step\": 1}",
                                        "\"level\": \"warning\", \"rank\": 0, \"message\": \"two\"",
                                        "\"message\": \"the end\"",
                                        "\"level\": \"error\", \"rank\": 0, \"message\": \"last\""};
    int both[2], lines = 0;
    open_pipe(both);
    pid_t pid = speaker(both, both, speak_json);
    char *text = read_all(both[0]), *at = text;
    assert_int_equal(status_of(pid), 0);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        assert_memory_equal(line, "{\"time\": \"", 10);
        assert_true(lines < 5);
        assert_non_null(strstr(line, parts[lines]));
    }
    assert_int_equal(lines, 5);
    free(at);
}

TEST_MAIN(NULL, NULL)
