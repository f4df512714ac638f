/* safetensors files: byte for byte what the reference writes, and every wrong header refused by name. */
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/files/safetensors.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/engine/files/tensors.h"
#include "tests/test.h"

#define REFERENCE                                                                                                      \
    "tests/golden/reference.safetensors" /* by the safetensors package: tests/engine/files/interop_safetensors.py */

TEST(the_reference_writer_s_file_is_read)
{
    safetensors *s;
    assert_int_equal(safetensors_open(&s, REFERENCE), STATUS_OK);
    assert_int_equal(safetensors_count(s), 17);
    int types = 0;
    for (int i = 0; i < 17; i++) {
        const safetensors_tensor *t = safetensors_at(s, i);
        assert_ptr_equal(tensors_find(s, t->name), t);
        if (t->name[0] != 't')
            continue;
        double values[6];
        assert_true(t->dims == 2 && t->shape[0] == 2 && t->shape[1] == 3);
        dtype_convert(values, DTYPE_FP64, safetensors_data(s, t), t->type, 6);
        for (int k = 0; k < 6; k++)
            assert_true(values[k] == k % 2);
        types++;
    }
    assert_int_equal(types, DTYPE_COUNT); /* each type once */
    float scalar;
    memcpy(&scalar, safetensors_data(s, tensors_find(s, "scalar")), 4);
    assert_true(scalar == 1.5f && tensors_find(s, "scalar")->dims == 0);
    assert_int_equal(tensors_find(s, "empty")->bytes, 0);
    assert_null(tensors_find(s, "__metadata__"));
    assert_null(tensors_find(s, "t99"));
    assert_string_equal(json_string_value(json_object_get(safetensors_metadata(s), "format")), "pt");
    safetensors_close(s);
}

/* Declared in another order than the file's, data handed over in pieces of 5 bytes. */
TEST(our_writer_makes_the_reference_writer_s_bytes)
{
    AUTO_FREE char *path = workfolder_path(*state, "copy.safetensors");
    safetensors *s;
    safetensors_writer *w;
    safetensors_tensor tensors[17];
    assert_int_equal(safetensors_open(&s, REFERENCE), STATUS_OK);
    for (int i = 0; i < 17; i++)
        tensors[i] = *safetensors_at(s, i * 5 % 17);
    assert_int_equal(safetensors_writer_open(&w, path, tensors, 17, safetensors_metadata(s)), STATUS_OK);
    const int *order = safetensors_writer_order(w);
    for (int k = 0; k < 17; k++) {
        const safetensors_tensor *t = &tensors[order[k]];
        assert_int_equal(safetensors_writer_offset(w, order[k]), t->offset);
        const char *data = safetensors_data(s, t);
        for (int64_t done = 0, now; done < t->bytes; done += now) {
            now = t->bytes - done < 5 ? t->bytes - done : 5;
            assert_int_equal(safetensors_writer_data(w, data + done, now), STATUS_OK);
        }
    }
    assert_int_equal(safetensors_writer_close(w), STATUS_OK);
    safetensors_close(s);
    int64_t bytes, expected;
    AUTO_FREE uint8_t *ours = workfolder_read(path, &bytes), *theirs = workfolder_read(REFERENCE, &expected);
    assert_int_equal(bytes, expected);
    assert_memory_equal(ours, theirs, bytes);
}

static status parse(const char *header, int64_t data_bytes)
{
    uint64_t length = strlen(header);
    uint8_t file[2048] = {0};
    safetensors *s = NULL;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    status result = safetensors_parse(&s, file, 8 + (int64_t)length + data_bytes, "x.safetensors");
    assert_true((result == STATUS_OK) == (s != NULL));
    safetensors_close(s);
    return result;
}

TEST(a_wrong_header_is_refused_by_name)
{
    const struct {
        const char *header;
        int64_t data;
        const char *part;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 8, "header, byte"},
        {"[1]", 0, "no JSON object"},
        {"{\"a\":1}", 0, "tensor a"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype"},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype F31"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "dimension 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "dimension 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "two data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,\"8\"]}}", 8, "tensor a: its bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "tensor a: its bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "tensor a: its bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "tensor a: its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "tensor a: its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4,
         "tensor a: its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "9 dimensions"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3, "belong to none"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "tensor a does not follow"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "tensor b overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
         5, "a hole"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2, "duplicate"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
        {"{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "control characters"},
        {"{\"a\":{\"dtype\":\"U\\n8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "unknown dtype"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(cases[i].header, cases[i].data), STATUS_FAILED);
        workfolder_message_has(cases[i].part);
        workfolder_message_has("x.safetensors: ");
    }
    assert_int_equal(parse("{}", 0), STATUS_OK);
    assert_int_equal(
        parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4611686018427387905,9],\"data_offsets\":[0,0]}}  ", 0), STATUS_OK);
}

TEST(no_damage_reads_outside)
{
    int64_t bytes;
    AUTO_FREE uint8_t *file = workfolder_read(REFERENCE, &bytes);
    int refused = 0;
    for (int64_t i = 0; i < bytes * 8; i++) {
        safetensors *s;
        file[i / 8] ^= (uint8_t)(1 << i % 8);
        if (safetensors_parse(&s, file, bytes, "flipped") == STATUS_OK) {
            for (int k = 0; k < safetensors_count(s); k++) {
                const safetensors_tensor *t = safetensors_at(s, k);
                (void)crc32c(0, safetensors_data(s, t), t->bytes); /* reads them all: ASan watches */
            }
            safetensors_close(s);
        } else {
            workfolder_message_has("flipped: ");
            refused++;
        }
        file[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_true(refused > 8 * 100);
    for (int64_t cut = 0; cut < bytes; cut++) {
        uint8_t *part = must_alloc((unsigned long)cut); /* exactly as large: reading beyond is seen by ASan */
        safetensors *s = NULL;
        memcpy(part, file, (size_t)cut);
        assert_int_equal(safetensors_parse(&s, part, cut, "cut"), STATUS_FAILED);
        free(part);
    }
}

TEST(an_abandoned_file_leaves_nothing)
{
    AUTO_FREE char *path = workfolder_path(*state, "none.safetensors"),
                   *temporary = workfolder_path(*state, "none.safetensors.tmp");
    safetensors_tensor t = {.name = "x", .type = DTYPE_BF16, .dims = 1, .shape = {4}};
    safetensors_writer *w;
    assert_int_equal(safetensors_writer_open(&w, path, &t, 1, NULL), STATUS_OK);
    assert_true(atomic_exists(temporary) && !atomic_exists(path));
    safetensors_writer_abandon(w);
    assert_false(atomic_exists(temporary) || atomic_exists(path));
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
