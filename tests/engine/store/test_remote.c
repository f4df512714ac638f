/* An object as a file: any bytes in any order are the object's, ahead of the reader or not; what changes meanwhile, is
 * damaged or is stopped fails. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/store/blocks/blocks.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/stores.h"
#include "tests/test.h"

enum { BYTES = (40 << 20) + 12345, PIECE = 300000 };

static s3_server *server;

static blocks_object *open_object(const char *url, const atomic_bool *stop)
{
    blocks_object *r = NULL;
    stores_assert_ok(blocks_open_one(&r, url, stop));
    return r;
}

TEST(any_bytes_in_any_order_are_the_objects)
{
    AUTO_FREE char *data = stores_bytes(BYTES, 1), *got = must_alloc(PIECE);
    s3_server_put(server, "large", data, BYTES);
    blocks_object *r = open_object("s3://bucket/large", NULL);
    assert_int_equal(blocks_bytes(r), BYTES);
    s3_server_faults(server, "503 cut=100000 reset ok cut=8000000 500");
    for (int64_t at = 0; at < BYTES; at += PIECE) { /* one after the other */
        int64_t bytes = BYTES - at < PIECE ? BYTES - at : PIECE;
        stores_assert_ok(blocks_read(r, got, at, bytes));
        assert_memory_equal(got, data + at, bytes);
    }
    uint64_t x = 7;
    for (int i = 0; i < 60; i++) { /* here and there, over ends of blocks too */
        x = x * 6364136223846793005u + 1442695040888963407u;
        int64_t at = (int64_t)((x >> 20) % (BYTES - PIECE));
        stores_assert_ok(blocks_read(r, got, at, PIECE));
        assert_memory_equal(got, data + at, PIECE);
    }
    stores_assert_ok(blocks_read(r, got, BYTES, 0));
    blocks_close_one(r);
    r = open_object("s3://bucket/large", NULL); /* closed while blocks are on their way */
    s3_server_faults(server, "slow=100000 slow=100000 slow=100000");
    double start = clock_seconds();
    blocks_close_one(r);
    assert_true(clock_seconds() - start < 3);
    s3_server_faults(server, NULL);
}

TEST(an_empty_object_has_no_bytes)
{
    int64_t bytes = -1;
    s3_server_put(server, "empty", "", 0);
    blocks_object *r = open_object("s3://bucket/empty", NULL);
    assert_int_equal(blocks_bytes(r), 0);
    stores_assert_ok(blocks_read(r, NULL, 0, 0));
    blocks_close_one(r);
    stores_assert_ok(blocks_look(&bytes, "s3://bucket/empty"));
    assert_int_equal(bytes, 0);
    stores_assert_failed(blocks_open_one(&r, "s3://bucket/none", NULL), "s3://bucket/none: there is no such object");
    stores_assert_failed(blocks_look(&bytes, "s3://nobody/none"), "NoSuchBucket");
}

static status read_all(blocks_object *r, char *got)
{
    for (int64_t at = 0; at < BYTES; at += PIECE)
        TRY(blocks_read(r, got, at, BYTES - at < PIECE ? BYTES - at : PIECE));
    return STATUS_OK;
}

TEST(another_version_and_damage_fail)
{
    AUTO_FREE char *data = stores_bytes(BYTES, 2), *got = must_alloc(PIECE);
    s3_server_put(server, "large", data, BYTES);
    blocks_object *r = open_object("s3://bucket/large", NULL);
    stores_assert_ok(blocks_read(r, got, 0, PIECE));
    data[BYTES - 1] ^= 1;
    s3_server_put(server, "large", data, BYTES);
    stores_assert_failed(read_all(r, got), "s3://bucket/large|replaced");
    blocks_close_one(r);
    r = open_object("s3://bucket/large", NULL);
    s3_server_faults(server, "GET:ok GET:damage"); /* stores say no checksum of a range */
    stores_assert_failed(read_all(r, got), "s3://bucket/large|do not have the checksum");
    blocks_close_one(r);
}

static void *stop_in_a_moment(void *stop)
{
    clock_nap(0.3);
    atomic_store((atomic_bool *)stop, true);
    return NULL;
}

TEST(a_reader_that_is_stopped_stops)
{
    atomic_bool stop = false;
    pthread_t thread;
    AUTO_FREE char *data = stores_bytes(BYTES, 3), *got = must_alloc(PIECE);
    s3_server_put(server, "large", data, BYTES);
    blocks_object *r = open_object("s3://bucket/large", &stop);
    s3_server_faults(server, "slow=100000 slow=100000 slow=100000");
    assert_int_equal(pthread_create(&thread, NULL, stop_in_a_moment, &stop), 0);
    double start = clock_seconds();
    stores_assert_failed(read_all(r, got), "s3://bucket/large: stopped");
    blocks_close_one(r);
    assert_true(clock_seconds() - start < 4);
    pthread_join(thread, NULL);
    s3_server_faults(server, NULL);
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
