/* The client of object stores where the network and the store do what they should not: what it reads is what was
 * written, or it fails with a sentence. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/stores.h"
#include "tests/test.h"

static s3_server *server;

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

static int faults_begin(void **state)
{
    (void)state;
    s3_server_be(server, (s3_server_traits){0});
    s3_server_faults(server, NULL);
    s3_server_set_secret(server, S3_SERVER_SECRET, false);
    unsetenv("AWS_SESSION_TOKEN");
    return 0;
}

enum { FAULTY = 100000 };

TEST_WITH(reads_survive_what_passes, faults_begin, NULL)
{
    static const char *const scripts[] = {
        "503",
        "500 502 503 504 429 408",
        "reset",
        "reset reset 503 reset",
        "cut=1",
        "cut=50000",
        "cut=1 cut=2 503 cut=90000 reset cut=0",
        "html",
        "503/1",
        "damage",
        "damage damage cut=7 damage",
        "garbage",
        "lost lost",
        "cut=1000 503 cut=1000 503 cut=1000",
    };
    AUTO_FREE char *data = stores_bytes(FAULTY, 3), *got = must_alloc(FAULTY);
    s3_server_put(server, "faulty", data, FAULTY);
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        s3_server_faults(server, scripts[i]);
        memset(got, 0, FAULTY);
        status read = object_read(got, s, "faulty", 0, FAULTY, NULL);
        if (read != STATUS_OK)
            fail_msg("%s: %s", scripts[i], status_message());
        assert_memory_equal(got, data, FAULTY);
        assert_true(s3_server_faults_done(server));
    }
    object_close(s);
}

/* A body that is cut goes on where it was cut: what was read is not read again. */
TEST_WITH(a_body_that_is_cut_continues_where_it_was, faults_begin, NULL)
{
    AUTO_FREE char *data = stores_bytes(FAULTY, 4), *got = must_alloc(FAULTY);
    s3_server_put(server, "faulty", data, FAULTY);
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    s3_server_faults(server, "cut=30000 503 cut=30000 reset cut=30000");
    stores_assert_ok(object_read(got, s, "faulty", 0, FAULTY, NULL));
    assert_memory_equal(got, data, FAULTY);
    assert_int_equal(object_counted(s)->bytes_read, FAULTY);
    assert_int_equal(object_counted(s)->requests, 6);
    assert_int_equal(object_counted(s)->retries, 5);
    s3_server_faults(server, "cut=30000 ok");
    object_close(s);
}

/* The rest of another version is not put behind the beginning of the first. */
typedef struct replacer {
    char *data;
} replacer;

static void *replace_soon(void *argument)
{
    const replacer *r = argument;
    clock_nap(0.3);
    s3_server_put(server, "faulty", r->data, FAULTY);
    return NULL;
}

TEST_WITH(versions_are_not_mixed, faults_begin, NULL)
{
    AUTO_FREE char *data = stores_bytes(FAULTY, 5), *got = must_alloc(FAULTY);
    replacer other = {stores_bytes(FAULTY, 6)};
    pthread_t thread;
    s3_server_put(server, "faulty", data, FAULTY);
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    s3_server_faults(server, "cut=30000 503/1");
    assert_int_equal(pthread_create(&thread, NULL, replace_soon, &other), 0);
    stores_assert_failed(object_read(got, s, "faulty", 0, FAULTY, NULL), "replaced");
    pthread_join(thread, NULL);
    object_close(s);
    free(other.data);
}

TEST_WITH(writes_survive_what_passes, faults_begin, NULL)
{
    static const char *const scripts[] = {"503",     "500 reset 429", "lost",          "hang",
                                          "garbage", "503/1",         "lost lost 503", "late late"};
    char *data = stores_bytes(FAULTY, 7), *there;
    int64_t bytes = 0;
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        AUTO_FREE char *key = must_format("written/%zu", i);
        s3_server_faults(server, scripts[i]);
        stores_assert_ok(object_put(s, key, data, FAULTY));
        there = s3_server_get(server, key, &bytes);
        assert_int_equal(bytes, FAULTY);
        assert_memory_equal(there, data, FAULTY);
        free(there);
    }
    object_close(s);
    free(data);
}

TEST_WITH(uploads_survive_what_passes, faults_begin, NULL)
{
    static const char *const scripts[] = {
        "POST:503 PUT:503 PUT:reset", "PUT:lost PUT:500 PUT:late", "POST:ok POST:late POST:late",
        "POST:ok POST:lost",          /* the end's answer: the upload is gone, and the object there */
        "POST:lost POST:ok POST:500", /* one upload more than is ended: abort_all's */
    };
    int64_t bytes = OBJECT_PART_LEAST + 10;
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    for (unsigned i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        object_upload *u;
        AUTO_FREE char *data = stores_bytes(bytes, 10 + i);
        int64_t length = 0;
        s3_server_faults(server, scripts[i]);
        stores_assert_ok(object_upload_begin(&u, s, "parts", 2));
        stores_assert_ok(object_upload_part(u, s, 0, data, OBJECT_PART_LEAST));
        stores_assert_ok(object_upload_part(u, s, 1, data + OBJECT_PART_LEAST, 10));
        stores_assert_ok(object_upload_end(u, s));
        AUTO_FREE char *there = s3_server_get(server, "parts", &length);
        assert_int_equal(length, bytes);
        assert_memory_equal(there, data, bytes);
        assert_true(s3_server_faults_done(server));
    }
    assert_int_equal(s3_server_open_uploads(server), 1);
    stores_assert_ok(object_upload_abort_all(s, "parts"));
    assert_int_equal(s3_server_open_uploads(server), 0);
    object_close(s);
}

/* An upload that is gone, and an object of its size that is another: nothing was published. */
TEST_WITH(a_lost_upload_is_not_taken_for_an_older_object, faults_begin, NULL)
{
    object_upload *u;
    AUTO_FREE char *data = stores_bytes(100, 20), *older = stores_bytes(100, 21);
    object_store *s = stores_open(S3_SERVER_BUCKET, 20), *other = stores_open(S3_SERVER_BUCKET, 20);
    s3_server_put(server, "gone", older, 100);
    stores_assert_ok(object_upload_begin(&u, s, "gone", 1));
    stores_assert_ok(object_upload_part(u, s, 0, data, 100));
    stores_assert_ok(object_upload_abort_all(other, "gone"));
    stores_assert_failed(object_upload_end(u, s), "gone|forgotten the upload");
    object_close(other);
    object_close(s);
}

TEST_WITH(a_claim_survives_a_lost_answer_and_an_old_store, faults_begin, NULL)
{
    bool made;
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    s3_server_faults(server, "PUT:lost");
    stores_assert_ok(object_put_new(&made, s, "claim-lost", "run-1", 5));
    assert_true(made);
    s3_server_be(server, (s3_server_traits){.old = true});
    stores_assert_ok(object_put_new(&made, s, "claim-old", "run-1", 5));
    assert_true(made);
    stores_assert_ok(object_put_new(&made, s, "claim-old", "run-2", 5));
    assert_false(made);
    object_close(s);
}

TEST_WITH(what_does_not_pass_fails_at_once_and_says_why, faults_begin, NULL)
{
    static const struct {
        const char *script, *words;
    } cases[] = {
        {"403", "cannot read s3://bucket/faulty at http://127.0.0.1|403 AccessDenied: as it is: the "
                "credentials|AWS_ACCESS_KEY_ID|(request R"},
        {"expired", "400 ExpiredToken|have expired: renew"},
        {"echo", "403 Strange"},
        {"501", "501|lacks the operation"},
        {"405", "405"},
        {"301", "301 Failure: as it is|elsewhere|AWS_REGION"},
        {"whole", "does not read ranges"},
        {"elsewhere", "another range"},
        {"long", "more than was asked for"},
    };
    AUTO_FREE char *data = stores_bytes(FAULTY, 8), *got = must_alloc(FAULTY);
    s3_server_put(server, "faulty", data, FAULTY);
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s3_server_faults(server, cases[i].script);
        double start = clock_seconds();
        stores_assert_failed(object_read(got, s, "faulty", 10, 1000, NULL), cases[i].words);
        assert_true(clock_seconds() - start < 5);
        s3_server_faults(server, NULL);
        stores_assert_ok(object_read(got, s, "faulty", 10, 1000, NULL)); /* the handle is as good as before */
        assert_memory_equal(got, data + 10, 1000);
    }
    object_close(s);
}

TEST_WITH(trouble_that_stays_ends_in_time, faults_begin, NULL)
{
    char byte[1000];
    s3_server_put(server, "faulty", "0123456789", 10);
    object_store *s = stores_open(S3_SERVER_BUCKET, 1.5);
    char script[4096] = "";
    for (int i = 0; i < 1000; i++)
        strcat(script, "503 ");
    s3_server_faults(server, script);
    double start = clock_seconds();
    stores_assert_failed(object_read(byte, s, "faulty", 0, 10, NULL), "503 SlowDown|tries in");
    assert_true(clock_seconds() - start < 10);
    s3_server_faults(server, "hang hang hang hang hang hang hang hang");
    start = clock_seconds();
    stores_assert_failed(object_read(byte, s, "faulty", 0, 10, NULL), "faulty");
    assert_true(clock_seconds() - start < 15);
    object_close(s);
    s3_server_faults(server, NULL);
    const char *endpoint = s3_server_endpoint(server);
    setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", 1);
    s = stores_open(S3_SERVER_BUCKET, 1.5);
    stores_assert_failed(object_read(byte, s, "faulty", 0, 10, NULL), "http://127.0.0.1:1");
    setenv("AWS_ENDPOINT_URL_S3", endpoint, 1);
    object_close(s);
}

TEST_WITH(a_store_that_trickles_is_left, faults_begin, NULL)
{
    AUTO_FREE char *data = stores_bytes(FAULTY, 9), *got = must_alloc(FAULTY);
    s3_server_put(server, "faulty", data, FAULTY);
    object_store *s = stores_open(S3_SERVER_BUCKET, 2);
    s3_server_faults(server, "slow=100");
    double start = clock_seconds();
    stores_assert_ok(object_read(got, s, "faulty", 0, FAULTY, NULL));
    assert_memory_equal(got, data, FAULTY);
    assert_true(clock_seconds() - start < 30);
    object_close(s);
}

/* A byte now and then is no answer: neither of a list nor of what has no length, nor of pages without an end. */
TEST_WITH(an_answer_that_drips_is_left, faults_begin, NULL)
{
    object_listing l = {0};
    object_upload *u = NULL;
    for (int i = 0; i < 40; i++) {
        AUTO_FREE char *key = must_format("drip/%d", i);
        s3_server_put(server, key, "x", 1);
    }
    object_store *s = stores_open(S3_SERVER_BUCKET, 1);
    s3_server_faults(server, "slow=3 slow=3 slow=3 slow=3 slow=3");
    double start = clock_seconds();
    stores_assert_failed(object_list(&l, s, "drip/", true, 100), "cannot list s3://bucket/|the whole answer took");
    assert_true(clock_seconds() - start < 4);
    s3_server_faults(server, "slow=3 slow=3 slow=3 slow=3 slow=3");
    start = clock_seconds();
    stores_assert_failed(object_upload_begin(&u, s, "drip/u", 1), "the whole answer took");
    assert_true(clock_seconds() - start < 4);
    s3_server_faults(server, NULL);
    s3_server_be(server, (s3_server_traits){.page = 1, .rate = 4000});
    start = clock_seconds();
    stores_assert_failed(object_list(&l, s, "drip/", true, 100), "list s3://bucket/drip/|does not come to an end");
    assert_true(clock_seconds() - start < 4);
    object_close(s);
    s3_server_be(server, (s3_server_traits){0});
    stores_assert_ok(object_open(&s, S3_SERVER_BUCKET, &(object_limits){.until = clock_seconds() + 0.5}));
    stores_assert_ok(object_list(&l, s, "drip/", true, 100));
    object_listing_free(&l);
    s3_server_faults(server, "503 503 slow=3 slow=3 slow=3 slow=3 slow=3");
    start = clock_seconds();
    stores_assert_failed(object_list(&l, s, "drip/", true, 100), "tries in");
    assert_true(clock_seconds() - start < 2);
    object_close(s);
}

static void *stop_soon(void *stop)
{
    clock_nap(0.3);
    atomic_store((atomic_bool *)stop, true);
    return NULL;
}

TEST_WITH(a_stop_is_obeyed, faults_begin, NULL)
{
    static const char *const scripts[] = {"slow=2000", "hang", "503/30"};
    AUTO_FREE char *data = stores_bytes(FAULTY, 9), *got = must_alloc(FAULTY);
    s3_server_put(server, "faulty", data, FAULTY);
    for (int i = 0; i < 3; i++) {
        atomic_bool stop = false;
        pthread_t thread;
        object_store *s;
        stores_assert_ok(object_open(&s, S3_SERVER_BUCKET, &(object_limits){.stop = &stop}));
        s3_server_faults(server, scripts[i]);
        double start = clock_seconds();
        assert_int_equal(pthread_create(&thread, NULL, stop_soon, &stop), 0);
        assert_int_not_equal(object_read(got, s, "faulty", 0, FAULTY, NULL), STATUS_OK);
        assert_true(clock_seconds() - start < 3);
        pthread_join(thread, NULL);
        object_close(s);
    }
}

/* ---- region, clock, credentials ---------------------------------------------------------------------------------- */

TEST_WITH(another_region_and_a_wrong_clock_are_set_right, faults_begin, NULL)
{
    object_facts o;
    s3_server_put(server, "placed", "x", 1);
    s3_server_be(server, (s3_server_traits){.region = "eu-north-7", .clock_offset = 7200});
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    char byte = 0;
    stores_assert_ok(object_read(&byte, s, "placed", 0, 1, NULL));
    assert_int_equal(byte, 'x');
    int64_t before = s3_server_requests(server);
    stores_assert_ok(object_look(&o, s, "placed"));
    assert_true(o.there);
    assert_int_equal(s3_server_requests(server), before + 1); /* it was kept */
    object_close(s);
    s = stores_open(S3_SERVER_BUCKET, 20); /* HEAD has no body that would say so */
    stores_assert_ok(object_look(&o, s, "placed"));
    assert_true(o.there);
    object_close(s);
    s3_server_be(server, (s3_server_traits){.region = "evil.example/"});
    s = stores_open(S3_SERVER_BUCKET, 20);
    stores_assert_failed(object_read(&byte, s, "placed", 0, 1, NULL), "elsewhere");
    object_close(s);
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#define PROFILE(secret, token)                                                                                         \
    "[other]\naws_access_key_id = AKIDOTHER\naws_secret_access_key = x\n\n[default]\naws_access_key_id "               \
    "= " S3_SERVER_ID "\naws_secret_access_key=" secret "\n" token

TEST_WITH(credentials_that_expire_are_read_again, faults_begin, NULL)
{
    char byte, path[] = "/tmp/phalanx-credentials-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    write_file(path, PROFILE(S3_SERVER_SECRET, ""));
    s3_server_put(server, "kept", "x", 1);
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    stores_assert_ok(object_read(&byte, s, "kept", 0, 1, NULL));
    s3_server_set_secret(server, "another+secret", true);
    stores_assert_failed(object_read(&byte, s, "kept", 0, 1, NULL), "profile default of");
    write_file(path, PROFILE("another+secret", "aws_session_token = " S3_SERVER_TOKEN "\n"));
    stores_assert_ok(object_read(&byte, s, "kept", 0, 1, NULL)); /* the same handle */
    s3_server_set_secret(server, S3_SERVER_SECRET, false);
    stores_assert_failed(object_put(s, "kept", "y", 1), "SignatureDoesNotMatch|secret key of profile default");
    object_close(s);
    unlink(path);
    setenv("AWS_ACCESS_KEY_ID", S3_SERVER_ID, 1);
    setenv("AWS_SECRET_ACCESS_KEY", S3_SERVER_SECRET, 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials", 1);
}

/* ---- lies -------------------------------------------------------------------------------------------------------- */

#define LIST(inside) "<ListBucketResult>" inside "</ListBucketResult>"
#define ITEM(key)    "<Contents><Key>" key "</Key><Size>1</Size></Contents>"

TEST_WITH(lists_that_lie_are_refused, faults_begin, NULL)
{
    static const struct {
        const char *list, *words;
    } cases[] = {
        {LIST(ITEM("elsewhere/k")), "a key that was not asked for"},
        {LIST(ITEM("p/a") ITEM("p/a")), "twice"},
        {LIST("<Contents><Key>p/a</Key><Key>p/b</Key><Size>1</Size></Contents>"), "two names"},
        {LIST("<Contents><Key>p/a</Key><Size>-1</Size></Contents>"), "without a size"},
        {LIST("<Contents><Key>p/a</Key><Size>99999999999999999999</Size></Contents>"), "without a size"},
        {LIST("<Contents><Key>p/a</Key><Size>999999999999999999</Size></Contents>"), "or of more than 64 TiB"},
        {LIST("<Contents><Key>p/a</Key><Size>70368744177665</Size></Contents>"), "or of more than 64 TiB"},
        {LIST("<Contents><Key>p/a</Key></Contents>"), "without a size"},
        {LIST("<Contents><Size>1</Size></Contents>"), "a key that is none"},
        {LIST("<EncodingType>url</EncodingType>" ITEM("p/%0A")), "a key that is none"},
        {LIST("<EncodingType>url</EncodingType>" ITEM("p/%00")), "a key that is none"},
        {LIST("<EncodingType>url</EncodingType>" ITEM("p/%x1")), "a key that is none"},
        {LIST(ITEM("p/&#10;")), "a key that is none"},
        {LIST("<CommonPrefixes><Prefix>p/x/</Prefix></CommonPrefixes>"), "a folder that is none"},
        {LIST(ITEM("p/a") "<IsTruncated>true</IsTruncated>"), "does not go on"},
        {LIST("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"), "does not go on"},
        {"<ListBucketResult><Contents>", "no XML"},
        {"<ListBucketResult></Contents>", "no XML"},
        {"<!DOCTYPE x [<!ENTITY a \"b\">]><ListBucketResult/>", "no XML"},
        {"<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>", "no XML"},
        {LIST(ITEM("p/&bomb;")), "no XML"},
        {"<html><body>Welcome</body></html>", "something else"},
        {"", "no XML"},
        {"{\"json\": true}", "no XML"},
    };
    object_listing l = {0};
    object_store *s = stores_open(S3_SERVER_BUCKET, 20);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s3_server_lie(server, cases[i].list);
        status listed = object_list(&l, s, "p/", true, 100);
        if (listed == STATUS_OK)
            fail_msg("believed: %s", cases[i].list);
        stores_assert_failed(listed, cases[i].words);
    }
    s3_server_lie(server, "<?xml version='1.0'?><!-- > --><ListBucketResult a='>/'>" ITEM(
                              "p/&lt;&#228;&#x1F600;&amp;") "<Empty/></ListBucketResult>\n");
    stores_assert_ok(object_list(&l, s, "p/", true, 100));
    assert_int_equal(l.count, 1);
    assert_string_equal(l.entry[0].key, "p/<\xC3\xA4\xF0\x9F\x98\x80&");
    object_listing_free(&l);
    object_close(s);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, EACH = 30, BLOCK = 5000 };

typedef struct worker {
    int number;
    bool well;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    object_store *s;
    char got[BLOCK], *data = stores_bytes(FAULTY, 30);
    w->well = object_open(&s, S3_SERVER_BUCKET, &(object_limits){.patience = 20, .first_pause = 0.001}) == STATUS_OK;
    for (int i = 0; i < EACH && w->well; i++) {
        int64_t offset = (w->number * EACH + i) * 613 % (FAULTY - BLOCK);
        w->well = object_read(got, s, "faulty", offset, BLOCK, NULL) == STATUS_OK && !memcmp(got, data + offset, BLOCK);
    }
    object_close(s);
    free(data);
    return NULL;
}

TEST_WITH(threads_with_handles_of_their_own_read_at_once, faults_begin, NULL)
{
    pthread_t thread[THREADS];
    worker workers[THREADS] = {0};
    AUTO_FREE char *data = stores_bytes(FAULTY, 30);
    s3_server_put(server, "faulty", data, FAULTY);
    s3_server_faults(server, "ok ok 503 cut=100 ok reset ok ok 500 cut=4999 ok ok reset 503");
    for (int i = 0; i < THREADS; i++) {
        workers[i].number = i;
        assert_int_equal(pthread_create(&thread[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_true(workers[i].well);
    }
}

static int begin_all(void **state)
{
    (void)state;
    server = s3_server_start();
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    s3_server_stop(server);
    return 0;
}

TEST_MAIN(begin_all, end_all)
