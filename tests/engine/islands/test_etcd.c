/* Answers of an etcd that is somebody else's, or of who sits between: what was not asked for is left out, what is too
 * much is refused, and nothing else happens. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/islands/meet/etcd.h"
#include "engine/islands/meet/roster.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/test.h"

/* Says the same to whoever asks. */
typedef struct liar {
    int listener, port;
    pthread_t thread;
    pthread_mutex_t lock;
    char *answer;
    size_t bytes;
} liar;

static void read_request(int fd)
{
    char text[8192];
    size_t got = 0, whole = sizeof text - 1;
    while (got < whole) {
        ssize_t now = recv(fd, text + got, sizeof text - 1 - got, 0);
        if (now <= 0)
            return;
        text[got += (size_t)now] = 0;
        const char *end = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "content-length:");
        if (end && length)
            whole = (size_t)(end + 4 - text) + (size_t)atoi(length + strlen("content-length:"));
    }
}

static void *lie(void *argument)
{
    liar *l = argument;
    for (int fd; (fd = accept(l->listener, NULL, NULL)) >= 0; close(fd)) {
        read_request(fd);
        pthread_mutex_lock(&l->lock);
        AUTO_FREE char *head =
            must_format("HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", l->bytes);
        if (send(fd, head, strlen(head), MSG_NOSIGNAL) > 0)
            (void)send(fd, l->answer, l->bytes, MSG_NOSIGNAL);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

static void say(liar *l, const char *answer, size_t bytes)
{
    pthread_mutex_lock(&l->lock);
    free(l->answer);
    l->answer = must_alloc(bytes + 1);
    memcpy(l->answer, answer, bytes);
    l->answer[bytes] = 0;
    l->bytes = bytes;
    pthread_mutex_unlock(&l->lock);
}

static int setup(void **state)
{
    liar *l = must_calloc(1, sizeof *l);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    l->listener = socket(AF_INET, SOCK_STREAM, 0);
    pthread_mutex_init(&l->lock, NULL);
    if (bind(l->listener, (struct sockaddr *)&at, sizeof at) || listen(l->listener, 16) ||
        getsockname(l->listener, (struct sockaddr *)&at, &length))
        return -1;
    l->port = ntohs(at.sin_port);
    say(l, "{}", 2);
    *state = l;
    return pthread_create(&l->thread, NULL, lie, l);
}

static int teardown(void **state)
{
    liar *l = *state;
    shutdown(l->listener, SHUT_RDWR);
    pthread_join(l->thread, NULL);
    close(l->listener);
    pthread_mutex_destroy(&l->lock);
    free(l->answer);
    free(l);
    return 0;
}

static etcd *client(const liar *l)
{
    etcd *e;
    AUTO_FREE char *address = must_format("http://127.0.0.1:%d", l->port);
    assert_int_equal(etcd_open(&e, address), STATUS_OK);
    return e;
}

/* {"kvs": ...} of keys in base64; "live/" is bGl2ZS8=, "l" bA==, "live/member/3" bGl2ZS9tZW1iZXIvMw==. */
TEST(keys_that_were_not_asked_for_are_left_out)
{
    static const char answer[] = "{\"kvs\": [{\"key\": \"bA==\", \"value\": \"MQ==\", \"mod_revision\": \"1\"},"
                                 "{\"key\": \"\", \"value\": \"MQ==\"}, {\"value\": 3}, 7, {},"
                                 "{\"key\": \"bGl2ZS9tZW1iZXIvMw==\", \"value\": \"MQ==\", \"mod_revision\": \"8\"}]}";
    json_t *pairs;
    say(*state, answer, strlen(answer));
    etcd *e = client(*state);
    assert_int_equal(etcd_read(&pairs, e, "live/"), STATUS_OK);
    assert_int_equal(json_array_size(pairs), 1);
    const json_t *pair = json_array_get(pairs, 0);
    assert_string_equal(json_string_value(json_object_get(pair, "key")), "live/member/3");
    assert_string_equal(json_string_value(json_object_get(pair, "value")), "1");
    assert_int_equal(json_integer_value(json_object_get(pair, "revision")), 8);
    json_decref(pairs);
    etcd_close(e);
}

/* The vectors of RFC 4648, and what is no base64. */
TEST(keys_are_base64_of_the_rfc)
{
    static const char *const texts[] = {"Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy", "Zm9", "Zm9v!==="};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_auto_t *answer = json_pack("{s:[{s:s, s:s}]}", "kvs", "key", texts[i], "value", texts[i]);
        json_auto_t *pairs = etcd_pairs(answer, "f");
        assert_int_equal(json_array_size(pairs), i < 6);
        const char *key = json_string_value(json_object_get(json_array_get(pairs, 0), "key"));
        assert_int_equal(key ? strlen(key) : 0, i < 6 ? i + 1 : 0);
        assert_true(!key || strncmp("foobar", key, i + 1) == 0);
    }
}

/* Another cluster has other keys, and a state of before shows a former process's. */
TEST(another_cluster_and_an_older_state_are_refused)
{
    static const struct {
        const char *answer, *words;
    } cases[] = {
        {"{\"header\": {\"cluster_id\": \"7\", \"revision\": \"5\"}}", NULL},
        {"{\"header\": {\"cluster_id\": \"7\", \"revision\": \"9\"}}", NULL},
        {"{\"header\": {\"cluster_id\": \"8\", \"revision\": \"10\"}}", "is another cluster than the one"},
        {"{\"header\": {\"cluster_id\": \"7\", \"revision\": \"8\"}}", "revision 8, after 9"},
        {"{\"header\": {\"cluster_id\": \"7\", \"revision\": \"9\"}}", NULL},
    };
    etcd *e = client(*state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_auto_t *pairs = NULL;
        say(*state, cases[i].answer, strlen(cases[i].answer));
        assert_int_equal(etcd_read(&pairs, e, "live/"), cases[i].words ? STATUS_FAILED : STATUS_OK);
        if (cases[i].words && !strstr(status_message(), cases[i].words))
            fail_msg("%s", status_message());
    }
    etcd_close(e);
}

TEST(an_answer_without_an_end_is_refused)
{
    enum { BYTES = 5 << 20 };
    json_t *pairs;
    AUTO_FREE char *answer = must_alloc(BYTES);
    memset(answer, ' ', BYTES);
    answer[0] = '{';
    answer[BYTES - 1] = '}';
    say(*state, answer, BYTES);
    etcd *e = client(*state);
    assert_int_equal(etcd_read(&pairs, e, "live/"), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "etcd at http://127.0.0.1:"));
    etcd_close(e);
}

TEST(an_error_of_etcd_writes_no_lines_of_ours)
{
    static const char answer[] = "[{\"message\": 1}]", error[] = "{\"kvs\"";
    json_t *pairs;
    etcd *e = client(*state);
    say(*state, answer, strlen(answer));
    assert_int_equal(etcd_read(&pairs, e, "live/"), STATUS_FAILED);
    say(*state, error, strlen(error));
    assert_int_equal(etcd_read(&pairs, e, "live/"), STATUS_FAILED);
    for (const char *c = status_message(); *c; c++)
        assert_true((unsigned char)*c >= 0x20);
    etcd_close(e);
}

static uint32_t draw(uint64_t *random)
{
    *random = *random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*random >> 33);
}

/* 1,000 answers, each good but for some bytes: every call, and what islands make of it. */
TEST(damaged_answers_do_no_harm)
{
    static const char good[] =
        "{\"ID\": \"7587\", \"TTL\": \"10\", \"result\": {\"TTL\": \"10\"}, \"succeeded\": true, \"token\": \"t\","
        "\"kvs\": [{\"key\": \"bGl2ZS9oZWFk\", \"value\": \"eyJtZXJnZSI6IDN9\", \"mod_revision\": \"5\"},"
        "{\"key\": \"bGl2ZS9tZW1iZXIvMw==\", \"value\": \"eyJpZCI6ICJ4In0=\", \"mod_revision\": \"8\"}]}";
    uint64_t random = 1;
    etcd *e = client(*state);
    for (int i = 0; i < 1000; i++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        for (uint32_t n = 1 + draw(&random) % 4; n > 0; n--)
            text[draw(&random) % (sizeof good - 1)] = (char)draw(&random);
        say(*state, text, draw(&random) % 4 ? sizeof good - 1 : draw(&random) % sizeof good);
        json_t *pairs = NULL;
        int64_t lease;
        bool yes;
        const etcd_condition none = {"live/head", 0};
        const etcd_change change = {"live/head", "{}", 0};
        if (i % 4 == 0 && etcd_read(&pairs, e, "live/") == STATUS_OK) {
            roster r;
            size_t k;
            json_t *pair;
            json_array_foreach(pairs, k, pair)
                assert_int_equal(strncmp(json_string_value(json_object_get(pair, "key")), "live/", 5), 0);
            roster_read_pairs(&r, pairs, NULL);
            json_decref(pairs);
        }
        (void)(i % 4 == 1 && etcd_lease(&lease, e, 10) == STATUS_OK);
        (void)(i % 4 == 2 && etcd_keep_alive(&yes, e, 7587) == STATUS_OK);
        (void)(i % 4 == 3 && etcd_transact(&yes, e, &none, 1, &change, 1) == STATUS_OK);
    }
    etcd_close(e);
}

static void read_one(roster *r, const char *key, json_t *value)
{
    json_t *pairs = json_pack("[{s:s, s:o, s:i}]", "key", key, "value", value, "revision", 1);
    roster_read_pairs(r, pairs, NULL);
    r->member[3].endpoints = NULL;
    json_decref(pairs);
}

TEST(a_key_is_of_a_slot_only_as_it_is_written)
{
    static const char *const no[] = {"offer/3x", "offer/03", "offer/ 3", "offer/+3", "offer/3/", "offer/99999999993"};
    roster r;
    for (unsigned i = 0; i < sizeof no / sizeof *no; i++) {
        read_one(&r, no[i], json_pack("{s:i}", "merge", 1));
        for (int s = 0; s < ROSTER_SLOTS; s++)
            assert_false(r.member[s].offers);
    }
    read_one(&r, "offer/3", json_pack("{s:i}", "merge", 1));
    assert_true(r.member[3].offers);
}

/* What is added to them is no overflow: tokens of all slots, or the merge after the last. */
TEST(numbers_are_bounded)
{
    static const int64_t MOST = (int64_t)1 << 56;
    roster r = {0};
    json_t *head = json_pack("{s:I, s:I, s:I, s:[{s:i, s:I, s:I, s:I, s:I}]}", "merge", (json_int_t)INT64_MAX, "step",
                             (json_int_t)-7, "updates", (json_int_t)(MOST + 1), "parts", "slot", 3, "tokens",
                             (json_int_t)INT64_MAX, "offer", (json_int_t)INT64_MAX, "merge", (json_int_t)5, "id",
                             (json_int_t)INT64_MAX);
    assert_non_null(head);
    roster_read_head(&r, head, 1);
    assert_true(r.merge == MOST && r.step == 0 && r.updates == MOST && r.parts == 1);
    assert_true(r.part[0].tokens == MOST && r.part[0].offer == MOST && r.part[0].merge == 5);
    assert_true(r.part[0].id == INT64_MAX); /* drawn, and never added to */
    json_decref(head);
}

TEST(a_name_writes_no_lines_of_ours)
{
    roster r;
    read_one(&r, "member/3", json_pack("{s:s, s:s}", "name", "x\nphalanx: \x1b[31mfails", "id", "a\rb"));
    assert_string_equal(r.member[3].name, "x?phalanx: ?[31mfails");
    assert_string_equal(r.member[3].id, "a?b");
}

TEST_MAIN(setup, teardown)
