/* Experts' weights lie in Hugging Face's files one tensor an expert, or all of a layer's in one: either is read, and
 * what is written is what was published. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/files/safetensors.h"
#include "engine/files/sharded.h"
#include "engine/state/weights/weights_copy.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/engine/files/tensors.h"
#include "tests/tools/conversion.h"
#include "tests/test.h"

enum { MOST_TENSORS = 128 };

/* The tensors of a file to be, and what must be freed after them. */
typedef struct contents {
    int count, owned;
    safetensors_tensor tensors[MOST_TENSORS];
    const void *data[MOST_TENSORS];
    void *own[MOST_TENSORS];
} contents;

static void take(contents *c, const safetensors *s, const safetensors_tensor *t)
{
    c->tensors[c->count] = *t;
    c->data[c->count++] = safetensors_data(s, t);
}

/* A golden model of experts as transformers saves it under its modules' own names. */
static const struct {
    const char *model, *published, *own; /* of layers' experts */
    const char *part[4][2];              /* router, gate, up, down: published, own; "%d": one tensor an expert */
    int layers, experts;
} modules[] = {
    {"mixtral",
     "block_sparse_moe",
     "mlp",
     {{"gate.weight", "gate.weight"},
      {"experts.%d.w1.weight", "experts.gate_up_proj"},
      {"experts.%d.w3.weight", "experts.gate_up_proj"},
      {"experts.%d.w2.weight", "experts.down_proj"}},
     2,
     5},
    {"qwen3-moe",
     "mlp",
     "mlp",
     {{"gate.weight", "gate.weight"},
      {"experts.%d.gate_proj.weight", "experts.gate_up_proj"},
      {"experts.%d.up_proj.weight", "experts.gate_up_proj"},
      {"experts.%d.down_proj.weight", "experts.down_proj"}},
     3,
     7},
    {"granite-moe",
     "block_sparse_moe",
     "block_sparse_moe",
     {{"router.layer.weight", "router.weight"},
      {"input_linear.weight", "experts.gate_up_proj"},
      {NULL},
      {"output_linear.weight", "experts.down_proj"}},
     2,
     5},
};

/* The weights of one part of one layer's experts, or its one tensor, to the tensor of the same own name. */
static void append_part(contents *c, safetensors *s, int m, int layer, int part)
{
    const char *from = modules[m].part[part][0], *to = modules[m].part[part][1],
               *percent = from ? strchr(from, '%') : NULL;
    for (int e = 0; from && e < (percent ? modules[m].experts : 1); e++) {
        char *end = percent ? must_format("%.*s%d%s", (int)(percent - from), from, e, percent + 2) : must_strdup(from);
        char *name = must_format("model.layers.%d.%s.%s", layer, modules[m].published, end);
        const safetensors_tensor *t = tensors_find(s, name);
        free(end);
        free(name);
        if (!t) /* a layer without experts */
            return;
        int64_t rows = t->shape[0], bytes = t->bytes, place = e;
        if (e == 0 && part != 2) { /* ups are behind the gates of theirs */
            safetensors_tensor *made = &c->tensors[c->count];
            int64_t all = !percent ? 1 : part == 1 ? 2 * modules[m].experts : modules[m].experts;
            *made = *t;
            made->name = c->own[c->owned++] = must_format("model.layers.%d.%s.%s", layer, modules[m].own, to);
            if (percent) {
                made->dims = 3;
                made->shape[2] = t->shape[1];
                made->shape[1] = part == 1 ? 2 * rows : rows;
                made->shape[0] = modules[m].experts;
            }
            made->bytes = all * bytes;
            c->data[c->count++] = c->own[c->owned++] = must_alloc((unsigned long)made->bytes);
        }
        if (percent && part < 3)
            place = 2 * e + (part == 2);
        memcpy((char *)(uintptr_t)c->data[c->count - 1] + place * bytes, safetensors_data(s, t), (size_t)bytes);
    }
}

static void write_modules(const char *folder, int m)
{
    contents c = {0};
    safetensors *s;
    safetensors_writer *w;
    AUTO_FREE char *source = conversion_golden(modules[m].model), *file = workfolder_path(source, SHARDED_FILE),
                   *path = workfolder_path(folder, SHARDED_FILE);
    AUTO_FREE char *of_experts = must_format(".%s.", modules[m].published);
    assert_int_equal(atomic_make_folders(folder), STATUS_OK);
    conversion_copy_file(source, folder, "config.json");
    assert_int_equal(safetensors_open(&s, file), STATUS_OK);
    for (int i = 0; i < safetensors_count(s); i++) {
        const char *name = safetensors_at(s, i)->name;
        if (!strstr(name, of_experts) || strstr(name, "layers.0.mlp.gate_proj") ||
            strstr(name, "layers.0.mlp.up_proj") || strstr(name, "layers.0.mlp.down_proj"))
            take(&c, s, safetensors_at(s, i));
    }
    for (int layer = 0; layer < modules[m].layers; layer++)
        for (int part = 0; part < 4; part++)
            append_part(&c, s, m, layer, part);
    assert_int_equal(safetensors_writer_open(&w, path, c.tensors, c.count, NULL), STATUS_OK);
    for (int k = 0; k < c.count; k++) {
        int i = safetensors_writer_order(w)[k];
        assert_int_equal(safetensors_writer_data(w, c.data[i], c.tensors[i].bytes), STATUS_OK);
    }
    assert_int_equal(safetensors_writer_close(w), STATUS_OK);
    for (int i = 0; i < c.owned; i++)
        free(c.own[i]);
    safetensors_close(s);
}

TEST(experts_are_read_under_the_names_of_modules_too)
{
    for (int m = 0; m < (int)(sizeof modules / sizeof *modules); m++) {
        AUTO_FREE char *name = must_format("%s-modules", modules[m].model), *folder = workfolder_path(*state, name);
        AUTO_FREE char *there = must_format("%s-there", folder), *back = must_format("%s-back", folder);
        AUTO_FREE char *source = conversion_golden(modules[m].model);
        write_modules(folder, m);
        conversion_must(folder, there, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
        conversion_must(there, back, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
        conversion_same_file(source, back, SHARDED_FILE);
    }
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
