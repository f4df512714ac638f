/* The client of object stores: what it reads is what was written. Beside the stand-in, these tests run against a real
 * store where PHALANX_S3_REAL names a bucket of it (interop_s3.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/stores.h"
#include "tests/test.h"

static s3_server *server; /* NULL: a real store */
static const char *bucket = S3_SERVER_BUCKET;

/* ---- what every store does --------------------------------------------------------------------------------------- */

TEST(an_object_comes_back_whole_and_in_ranges)
{
    enum { BYTES = 300000 };
    static const char *const keys[] = {"plain", "folder/with space & more/\xC3\xA4+%41=~.bin", "a//b"};
    AUTO_FREE char *data = stores_bytes(BYTES, 1), *got = must_alloc(BYTES);
    object_store *s = stores_open(bucket, 20);
    for (size_t k = 0; k < (server ? 3 : 2); k++) {
        object_facts o;
        stores_assert_ok(object_put(s, keys[k], data, BYTES));
        stores_assert_ok(object_look(&o, s, keys[k]));
        assert_true(o.there);
        assert_int_equal(o.bytes, BYTES);
        assert_true(o.etag[0] != 0);
        if (o.has_crc32c)
            assert_int_equal(o.crc32c, crc32c(0, data, BYTES));
        stores_assert_ok(object_read(got, s, keys[k], 0, BYTES, o.etag));
        assert_memory_equal(got, data, BYTES);
        for (int64_t offset = 0; offset < BYTES; offset += 99991) {
            int64_t bytes = BYTES - offset < 65537 ? BYTES - offset : 65537;
            stores_assert_ok(object_read(got, s, keys[k], offset, bytes, NULL));
            assert_memory_equal(got, data + offset, bytes);
        }
        stores_assert_ok(object_read(got, s, keys[k], BYTES - 1, 1, NULL));
        assert_int_equal(got[0], data[BYTES - 1]);
        stores_assert_ok(object_remove(s, keys[k]));
        stores_assert_ok(object_look(&o, s, keys[k]));
        assert_false(o.there);
        stores_assert_ok(object_remove(s, keys[k]));
        stores_assert_failed(object_read(got, s, keys[k], 0, 1, NULL), "cannot read s3://|NoSuchKey|no such object");
    }
    object_close(s);
}

TEST(small_objects_come_whole_or_not_at_all)
{
    char *got = NULL;
    int64_t bytes = -1;
    object_store *s = stores_open(bucket, 20);
    stores_assert_ok(object_read_whole(&got, &bytes, s, "not/there", 100));
    assert_null(got);
    stores_assert_ok(object_put(s, "empty", "", 0));
    stores_assert_ok(object_read_whole(&got, &bytes, s, "empty", 100));
    assert_int_equal(bytes, 0);
    assert_string_equal(got, "");
    free(got);
    stores_assert_ok(object_put(s, "small", "step-00000100\n", 14));
    stores_assert_ok(object_read_whole(&got, &bytes, s, "small", 100));
    assert_int_equal(bytes, 14);
    assert_string_equal(got, "step-00000100\n");
    free(got);
    stores_assert_failed(object_read_whole(&got, &bytes, s, "small", 13), "larger");
    object_close(s);
}

TEST(ranges_beyond_the_end_and_other_versions_fail)
{
    char got[64];
    object_facts o;
    object_store *s = stores_open(bucket, 20);
    stores_assert_ok(object_put(s, "short", "0123456789", 10));
    stores_assert_ok(object_look(&o, s, "short"));
    stores_assert_failed(object_read(got, s, "short", 8, 3, NULL), "s3://|short|has 10 bytes");
    stores_assert_failed(object_read(got, s, "short", 10, 1, NULL), "short");
    stores_assert_ok(object_put(s, "short", "9876543210", 10));
    stores_assert_failed(object_read(got, s, "short", 0, 10, o.etag), "replaced");
    stores_assert_ok(object_read(got, s, "short", 0, 10, NULL));
    assert_memory_equal(got, "9876543210", 10);
    object_close(s);
}

TEST(lists_are_whole_and_sorted)
{
    enum { OBJECTS = 25 };
    object_listing l;
    object_store *s = stores_open(bucket, 20);
    for (int i = 0; i < OBJECTS; i++) {
        AUTO_FREE char *key = must_format("list/step-%d/part %c&<%03d>", i % 3, 'a' + i % 2, i);
        stores_assert_ok(object_put(s, key, "12345", i % 6));
    }
    stores_assert_ok(object_put(s, "list/top", "1", 1));
    if (server)
        s3_server_be(server, (s3_server_traits){.page = 4});
    stores_assert_ok(object_list(&l, s, "list/", true, 1000));
    assert_int_equal(l.count, OBJECTS + 1);
    int64_t bytes = 0;
    for (int64_t i = 0; i < l.count; i++) {
        bytes += l.entry[i].bytes;
        assert_false(l.entry[i].folder);
        assert_true(l.entry[i].etag[0] != 0);
        assert_true(i == 0 || strcmp(l.entry[i - 1].key, l.entry[i].key) < 0);
    }
    assert_string_equal(l.entry[0].key, "list/step-0/part a&<000>");
    assert_int_equal(bytes, 4 * 15 + 0 + 1);
    object_listing_free(&l);
    stores_assert_ok(object_list(&l, s, "list/", false, 1000));
    assert_int_equal(l.count, 4);
    for (int i = 0; i < 3; i++)
        assert_true(l.entry[i].folder);
    assert_string_equal(l.entry[1].key, "list/step-1/");
    assert_string_equal(l.entry[3].key, "list/top");
    object_listing_free(&l);
    stores_assert_ok(object_list(&l, s, "nothing/of/the/kind", true, 1000));
    assert_int_equal(l.count, 0);
    object_listing_free(&l);
    stores_assert_failed(object_list(&l, s, "list/", true, OBJECTS), "cannot list s3://|more objects than may be");
    object_close(s);
}

TEST(an_object_of_parts_appears_whole_at_its_end)
{
    enum { PARTS = 3, LAST = 1000 };
    int64_t bytes = (PARTS - 1) * (int64_t)OBJECT_PART_LEAST + LAST;
    AUTO_FREE char *data = stores_bytes(bytes, 2), *got = must_alloc((unsigned long)bytes);
    object_upload *u;
    object_facts o;
    object_store *s = stores_open(bucket, 20);
    stores_assert_ok(object_upload_begin(&u, s, "large/one", PARTS));
    for (int i = PARTS - 1; i >= 0; i--)
        stores_assert_ok(object_upload_part(u, s, i, data + i * (int64_t)OBJECT_PART_LEAST,
                                            i == PARTS - 1 ? LAST : OBJECT_PART_LEAST));
    stores_assert_ok(object_upload_part(u, s, 1, data + OBJECT_PART_LEAST, OBJECT_PART_LEAST)); /* again */
    stores_assert_ok(object_look(&o, s, "large/one"));
    assert_false(o.there);
    stores_assert_ok(object_upload_end(u, s));
    stores_assert_ok(object_look(&o, s, "large/one"));
    assert_int_equal(o.bytes, bytes);
    assert_false(o.has_crc32c); /* a checksum of checksums is none of the object */
    stores_assert_ok(object_read(got, s, "large/one", 0, bytes, o.etag));
    assert_memory_equal(got, data, bytes);
    stores_assert_ok(object_upload_begin(&u, s, "large/two", 2));
    stores_assert_ok(object_upload_part(u, s, 0, data, OBJECT_PART_LEAST));
    object_upload_abort(u, s);
    stores_assert_ok(object_look(&o, s, "large/two"));
    assert_false(o.there);
    if (server)
        assert_int_equal(s3_server_open_uploads(server), 0);
    stores_assert_ok(object_upload_begin(&u, s, "large/three", 1)); /* of a process that is killed */
    stores_assert_ok(object_upload_abort_all(s, "large/"));
    stores_assert_failed(object_upload_part(u, s, 0, data, 10), "write a part|large/three");
    object_upload_abort(u, s);
    object_close(s);
}

TEST(one_of_several_writers_makes_a_new_object)
{
    bool made = false;
    char *got;
    int64_t bytes;
    object_store *s = stores_open(bucket, 20), *other = stores_open(bucket, 20);
    stores_assert_ok(object_remove(s, "claim"));
    stores_assert_ok(object_put_new(&made, s, "claim", "run-1", 5));
    assert_true(made);
    stores_assert_ok(object_put_new(&made, other, "claim", "run-2", 5));
    assert_false(made);
    stores_assert_ok(object_put_new(&made, s, "claim", "run-1", 5)); /* its own */
    assert_true(made);
    stores_assert_ok(object_read_whole(&got, &bytes, s, "claim", 100));
    assert_string_equal(got, "run-1");
    free(got);
    object_close(other);
    object_close(s);
}

TEST(a_missing_bucket_is_said)
{
    object_store *s;
    object_facts o;
    object_listing l;
    char byte;
    stores_assert_ok(object_open(&s, "no-such-bucket-here", &(object_limits){.patience = 5, .first_pause = 0.001}));
    stores_assert_failed(object_list(&l, s, "", true, 10), "cannot list s3://no-such-bucket-here/|NoSuchBucket");
    stores_assert_failed(object_read(&byte, s, "k", 0, 1, NULL), "s3://no-such-bucket-here/k|NoSuchBucket");
    stores_assert_failed(object_look(&o, s, "k"),
                         "look at s3://no-such-bucket-here/k|404 NoSuchBucket: |: check the bucket");
    object_close(s);
}

TEST(urls_are_split)
{
    static const struct {
        const char *url, *bucket, *key;
    } good[] = {{"s3://b/k", "b", "k"},
                {"s3://b.c-d_E/a/b c/", "b.c-d_E", "a/b c/"},
                {"s3://b", "b", ""},
                {"s3://b/", "b", ""},
                {"s3://b//k", "b", "/k"}};
    static const char *const bad[] = {"s3://",      "s3:///k",     "s3://a b/k", "s3://a@b/k",
                                      "s3://b/k\n", "s3://b/\x7F", "s3://.b/k"};
    char *name, *key;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        stores_assert_ok(object_split(&name, &key, good[i].url));
        assert_string_equal(name, good[i].bucket);
        assert_string_equal(key, good[i].key);
        free(name);
        free(key);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(object_split(&name, &key, bad[i]), STATUS_USAGE);
    assert_true(object_is_url("s3://x"));
    assert_true(object_is_folder("s3://x") && object_is_folder("s3://x/") && object_is_folder("s3://x/y/"));
    assert_false(object_is_folder("s3://x/y") || object_is_folder("x/"));
    assert_false(object_is_url("runs/s3://x"));
}

static int begin_all(void **state)
{
    (void)state;
    if (getenv("PHALANX_S3_REAL"))
        bucket = getenv("PHALANX_S3_REAL");
    else
        server = s3_server_start();
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    if (server)
        s3_server_stop(server);
    return 0;
}

TEST_MAIN(begin_all, end_all)
