/* Experts' weights in mxfp4 are read as transformers dequantises them, any rectangle of them, and what is none is
 * refused by name. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/files/safetensors.h"
#include "engine/state/weights/weights.h"
#include "engine/state/weights/weights.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/files/tensors.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

#define FOLDER "tests/golden/mxfp4"

TEST(values_are_those_of_the_format)
{
    uint8_t blocks[2][MXFP4_BYTES], scales[2] = {127, 125}; /* a matrix of two rows */
    float to[MXFP4_GROUP][2];
    for (int i = 0; i < MXFP4_BYTES; i++) {
        blocks[0][i] = (uint8_t)(i | (15 - i) << 4);
        blocks[1][i] = (uint8_t)(i << 4);
    }
    const mxfp4_matrices m = {.blocks = blocks[0], .scales = scales, .out = 2, .in = MXFP4_GROUP};
    mxfp4_read(to[0], &m, 0, MXFP4_GROUP, 0, 2);
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int i = 0; i < MXFP4_GROUP; i++) {
        int first = i % 2 ? 15 - i / 2 : i / 2, second = i % 2 ? i / 2 : 0;
        assert_true(to[i][0] == (first < 8 ? values[first] : -values[first - 8]));
        assert_true(to[i][1] == (second < 8 ? values[second] : -values[second - 8]) / 4);
    }
}

static const safetensors_tensor *expected_of(const safetensors *s, const char *name)
{
    const safetensors_tensor *t = tensors_find(s, name);
    assert_true(t && t->type == DTYPE_BF16 && t->dims == 3);
    return t;
}

/* Rows and columns from `row`, `column` on, bit for bit. */
static void check_part(weights *w, const safetensors *s, const char *name, const int64_t start[2],
                       const int64_t size[2])
{
    const safetensors_tensor *t = expected_of(s, name);
    const uint16_t *want = safetensors_data(s, t);
    int64_t rows = t->shape[0] * t->shape[1], columns = t->shape[2];
    rectangle of = {.name = name, .dims = 2, .global = {rows, columns}};
    uint16_t *got = must_alloc((unsigned long)(size[0] * size[1]) * sizeof *got);
    box_memory to = {.data = got, .type = DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        of.part.start[i] = start[i];
        of.part.size[i] = size[i];
    }
    box_row_major(to.stride, 2, size);
    assert_int_equal(weights_read(w, &of, &to), STATUS_OK);
    for (int64_t i = 0; i < size[0]; i++)
        assert_memory_equal(got + i * size[1], want + (start[0] + i) * columns + start[1],
                            (size_t)size[1] * sizeof *got);
    free(got);
}

TEST(every_rectangle_is_what_transformers_makes_of_it)
{
    static const char *const names[] = {"model.layers.0.mlp.experts.gate_up_proj",
                                        "model.layers.0.mlp.experts.down_proj"};
    weights *w;
    safetensors *s;
    assert_int_equal(weights_open(&w, FOLDER), STATUS_OK);
    assert_int_equal(safetensors_open(&s, FOLDER "/expected.safetensors"), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        const safetensors_tensor *t = expected_of(s, names[i]);
        int64_t rows = t->shape[0] * t->shape[1], columns = t->shape[2], in = t->shape[1];
        const int64_t starts[][2] = {{0, 0}, {in - 5, 3}, {in, columns - 1}, {2 * in + 31, 0}};
        const int64_t sizes[][2] = {{rows, columns}, {in + 7, 9}, {in, 1}, {1, columns}};
        for (int k = 0; k < 4; k++)
            check_part(w, s, names[i], starts[k], sizes[k]);
    }
    for (int i = 0; i < weights_count(w); i++)
        assert_int_equal(weights_type(w, i), DTYPE_BF16);
    safetensors_close(s);
    weights_close(w);
}

/* A copy of the folder in which one text of a file is another, as long. */
static char *changed(const char *top, const char *name, const char *file, const char *from, const char *to)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char *folder = must_format("%s/%s", top, name);
    assert_int_equal(mkdir(folder, 0777), 0);
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *source = must_format(FOLDER "/%s", files[i]), *path = must_format("%s/%s", folder, files[i]);
        int64_t bytes, found = 0;
        AUTO_FREE uint8_t *text = workfolder_read(source, &bytes);
        for (int64_t k = 0; !strcmp(files[i], file) && k + (int64_t)strlen(from) <= bytes; k++)
            if (!memcmp(text + k, from, strlen(from)))
                memcpy(text + k, to, strlen(to)), found++;
        assert_true(found > 0 || strcmp(files[i], file) != 0);
        workfolder_write(path, text, bytes);
    }
    return folder;
}

TEST(what_is_no_mxfp4_is_refused)
{
    static const struct {
        const char *name, *file, *from, *to, *message;
    } cases[] = {
        {"scales", "model.safetensors", "down_proj_scales", "down_proj_scalez", "mlp.experts.down_proj is missing"},
        {"shape", "model.safetensors", "[3,64,2,16]", "[3,32,4,16]",
         "gate_up_proj_blocks has shape [3, 32, 4, 16], but the configuration makes it [3, 64, 2, 16]"},
        {"method", "config.json", "\"mxfp4\"", "\"awq_4\"", "quantization_config is"},
        {"size", "config.json", "\"intermediate_size\": 32", "\"intermediate_size\": 48", "makes it [3, 96, 2, 16]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_FREE char *folder = changed(*state, cases[i].name, cases[i].file, cases[i].from, cases[i].to);
        weights *w;
        assert_int_equal(weights_open(&w, folder), STATUS_FAILED);
        if (!strstr(status_message(), cases[i].message))
            fail_msg("%s: %s", cases[i].name, status_message());
    }
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
