/* Folders of weights: what is converted there and back is the same to the bit, and whatever is wrong with a folder is
 * refused by name, in one line, with nothing written. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/files/safetensors.h"
#include "engine/files/sharded.h"
#include "engine/state/weights/weights_copy.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/golden.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/workfolder.h"
#include "tests/engine/files/tensors.h"
#include "tests/tools/conversion.h"
#include "tests/test.h"

/* ---- helpers ---- */

/* One change to the tensors of a file: rename (to NULL: drop), or another shape or type; without `from`, an
 * addition. */
typedef struct edit {
    const char *from, *to;
    int rows;   /* of two dimensions, columns to suit; 0: keep */
    dtype type; /* FP32: keep */
} edit;

enum { MOST_TENSORS = 128 };

/* The tensors of a file to be, and what must be freed after them. */
typedef struct contents {
    int count, owned;
    safetensors_tensor tensors[MOST_TENSORS];
    const void *data[MOST_TENSORS];
    void *own[MOST_TENSORS];
} contents;

static bool concerns(const edit *e, const char *name)
{
    if (!e->from)
        return false;
    size_t length = strlen(e->from);
    bool prefix = e->from[length - 1] == '*';
    return prefix ? !strncmp(name, e->from, length - 1) : !strcmp(name, e->from);
}

static void take(contents *c, const safetensors *s, const safetensors_tensor *t, const edit *edits, int count)
{
    c->tensors[c->count] = *t;
    c->data[c->count] = safetensors_data(s, t);
    for (int i = 0; i < count; i++) {
        const edit *e = &edits[i];
        safetensors_tensor *edited = &c->tensors[c->count];
        if (!concerns(e, t->name))
            continue;
        if (!e->to)
            return;
        size_t length = strlen(e->from);
        bool prefix = e->from[length - 1] == '*';
        edited->name = c->own[c->owned++] = must_format("%s%s", e->to, prefix ? t->name + length - 1 : "");
        if (e->rows) {
            edited->shape[1] = t->shape[0] * t->shape[1] / e->rows;
            edited->shape[0] = e->rows;
        }
        if (e->type != DTYPE_FP32)
            edited->type = e->type; /* of the same size */
    }
    c->count++;
}

/* The embedding (or else whatever comes first), one element off, under another name. */
static void add(contents *c, const safetensors *s, const char *name, float off)
{
    const safetensors_tensor *table = tensors_find(s, "model.embed_tokens.weight");
    table = table ? table : safetensors_at(s, 0);
    float *values = c->own[c->owned++] = must_alloc((unsigned long)table->bytes);
    memcpy(values, safetensors_data(s, table), (size_t)table->bytes);
    values[5] += off;
    c->tensors[c->count] = *table;
    c->tensors[c->count].name = name;
    c->data[c->count++] = values;
}

/* A folder like the golden model's with its tensors edited. */
static void write_model(const char *folder, const char *model, const edit *edits, int count, float off)
{
    safetensors *s;
    safetensors_writer *w;
    contents c = {0};
    AUTO_FREE char *source = conversion_golden(model), *file = workfolder_path(source, SHARDED_FILE),
                   *path = workfolder_path(folder, SHARDED_FILE);
    assert_int_equal(atomic_make_folders(folder), STATUS_OK);
    conversion_copy_file(source, folder, "config.json");
    assert_int_equal(safetensors_open(&s, file), STATUS_OK);
    for (int i = 0; i < safetensors_count(s); i++)
        take(&c, s, safetensors_at(s, i), edits, count);
    for (int e = 0; e < count; e++)
        if (!edits[e].from)
            add(&c, s, edits[e].to, off);
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

/* Replace `from` in the folder's config.json. */
static void edit_config(const char *folder, const char *from, const char *to)
{
    AUTO_FREE char *path = workfolder_path(folder, "config.json");
    int64_t bytes;
    char *text = (char *)workfolder_read(path, &bytes), *at = strstr(text, from);
    assert_non_null(at);
    AUTO_FREE char *edited = must_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    workfolder_write(path, edited, (int64_t)strlen(edited));
    free(text);
}

/* ---- promises ---- */

TEST(there_and_back_every_tensor_is_the_same_to_the_bit)
{
    for (const char *const *model = golden_models; *model; model++) {
        AUTO_FREE char *source = conversion_golden(*model),
                       *there = must_format("%s/%s-checkpoint", (char *)*state, *model);
        AUTO_FREE char *back = must_format("%s/%s-back", (char *)*state, *model),
                       *again = must_format("%s/%s-again", (char *)*state, *model);
        AUTO_FREE char *third = must_format("%s/%s-third", (char *)*state, *model);
        checkpoint *c;
        conversion_must(source, there, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
        assert_int_equal(checkpoint_open(&c, there), STATUS_OK);
        assert_int_equal(checkpoint_verify(c), STATUS_OK);
        checkpoint_close(c);
        conversion_must(there, back, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
        conversion_same_file(source, back, SHARDED_FILE);
        conversion_must(back, again, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
        conversion_must(again, third, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP,
                        0); /* export, import, export: all the same bytes */
        conversion_same_file(back, third, SHARDED_FILE);
        conversion_same_file(back, third, "config.json");
    }
}

TEST(several_files_are_one_model)
{
    AUTO_FREE char *source = conversion_golden("qwen3"), *cut = workfolder_path(*state, "cut"),
                   *checkpoint_cut = workfolder_path(*state, "cut-checkpoint");
    AUTO_FREE char *joined = workfolder_path(*state, "joined"), *joined2 = workfolder_path(*state, "joined2");
    conversion_must(source, cut, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 30000);
    assert_true(conversion_has(cut, "model-00001-of-00005.safetensors") &&
                conversion_has(cut, "model-00005-of-00005.safetensors"));
    assert_true(conversion_has(cut, SHARDED_INDEX) && !conversion_has(cut, SHARDED_FILE));
    conversion_must(cut, joined, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
    conversion_same_file(source, joined, SHARDED_FILE);
    conversion_must(cut, checkpoint_cut, WEIGHTS_PHALANX, WEIGHTS_KEEP, 1); /* a file for each tensor */
    conversion_must(checkpoint_cut, joined2, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
    conversion_same_file(source, joined2, SHARDED_FILE);
}

TEST(another_dtype_rounds_once_and_widens_exactly)
{
    AUTO_FREE char *source = conversion_golden("gpt2"), *there = workfolder_path(*state, "bf16"),
                   *back = workfolder_path(*state, "bf16-back");
    AUTO_FREE char *config_json = workfolder_path(back, "config.json");
    conversion_must(source, there, WEIGHTS_PHALANX, DTYPE_BF16, 0);
    conversion_must(there, back, WEIGHTS_HUGGINGFACE, DTYPE_FP32, 0);
    sharded *a, *b;
    assert_int_equal(sharded_open(&a, source), STATUS_OK);
    assert_int_equal(sharded_open(&b, back), STATUS_OK);
    int64_t differ = 0;
    for (int i = 0; i < sharded_count(a); i++) {
        const sharded_tensor *x = sharded_at(a, i), *y = sharded_find(b, x->tensor->name);
        for (int64_t k = 0; k < x->tensor->bytes / 4; k++) {
            float before, after;
            memcpy(&before, (const char *)sharded_data(x) + 4 * k, 4);
            memcpy(&after, (const char *)sharded_data(y) + 4 * k, 4);
            assert_true(after == bf16_to_float(float_to_bf16(before)));
            differ += after != before;
        }
    }
    assert_true(differ > 10000);
    sharded_close(a);
    sharded_close(b);
    int64_t bytes;
    AUTO_FREE char *text = (char *)workfolder_read(config_json, &bytes);
    assert_non_null(strstr(text, "\"torch_dtype\": \"float32\""));
}

/* Pieces as several ranks would write them, weights in bf16 and masters in fp32. */
TEST(a_divided_checkpoint_is_joined_and_masters_are_taken_for_fp32)
{
    AUTO_FREE char *source = conversion_golden("llama-tied"), *checkpoints = workfolder_path(*state, "divided");
    AUTO_FREE char *plain = workfolder_path(*state, "divided-16"), *precise = workfolder_path(*state, "divided-32");
    AUTO_FREE char *whole = workfolder_path(*state, "undivided");
    weights *w;
    checkpoint *c;
    assert_int_equal(weights_open(&w, source), STATUS_OK);
    conversion_must(source, whole, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
    assert_int_equal(checkpoint_open(&c, whole), STATUS_OK);
    int n = 0;
    AUTO_FREE checkpoint_piece *pieces = must_calloc((unsigned long)weights_count(w) * 6, sizeof *pieces);
    for (int i = 0; i < weights_count(w); i++) {
        const names_tensor *t = weights_at(w, i);
        int64_t columns = t->dims == 2 ? t->shape[1] : 1, total = t->shape[0] * columns;
        const rectangle whole_tensor = box_whole(t->name, t->dims, t->shape);
        float *fp32 = must_alloc((unsigned long)total * 4);
        uint16_t *bf16 = must_alloc((unsigned long)total * 2);
        box_memory at = {.data = fp32, .type = DTYPE_FP32};
        box_row_major(at.stride, t->dims, t->shape);
        assert_int_equal(weights_read(w, &whole_tensor, &at), STATUS_OK);
        dtype_convert(bf16, DTYPE_BF16, fp32, DTYPE_FP32, total);
        /* the weight by columns where it has them, the master by rows */
        int64_t split = t->dims == 2 ? columns / 3 : t->shape[0] / 3, row = t->shape[0] / 2;
        for (int half = 0; half < 2; half++) {
            checkpoint_piece p = {.section = "model", .of = whole_tensor, .at = at}, master = p;
            int along = t->dims - 1;
            p.of.part.start[along] = half ? split : 0;
            p.of.part.size[along] = half ? t->shape[along] - split : split;
            p.at.type = DTYPE_BF16;
            p.at.data = bf16 + p.of.part.start[along];
            pieces[n++] = p;
            master.section = "master";
            master.of.part.start[0] = half ? row : 0;
            master.of.part.size[0] = half ? t->shape[0] - row : row;
            master.at.data = fp32 + master.of.part.start[0] * columns;
            pieces[n++] = master;
        }
    }
    const checkpoint_share all = {pieces, n, 0, 1, "", false};
    assert_int_equal(checkpoint_write(checkpoints, "step-00000003", &all, checkpoint_meta(c), NULL, NULL), STATUS_OK);
    conversion_must(checkpoints, plain, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
    conversion_must(checkpoints, precise, WEIGHTS_HUGGINGFACE, DTYPE_FP32, 0);
    conversion_same_file(source, precise, SHARDED_FILE);
    sharded *s;
    assert_int_equal(sharded_open(&s, plain), STATUS_OK);
    for (int i = 0; i < n; i += 4) {
        const sharded_tensor *t = sharded_find(s, pieces[i].of.name);
        assert_int_equal(t->tensor->type, DTYPE_BF16);
        assert_memory_equal(sharded_data(t), pieces[i].at.data, t->tensor->bytes);
    }
    sharded_close(s);
    for (int i = 0; i < n; i += 4) {
        free(pieces[i].at.data);
        free(pieces[i + 1].at.data);
    }
    checkpoint_close(c);
    weights_close(w);
}

/* What other programs leave in files, and names without the outer prefix, are the same model. */
TEST(bare_names_known_leftovers_and_tied_heads_are_accepted)
{
    const edit bare[] = {{"transformer.*", "", 0, DTYPE_FP32},
                         {NULL, "h.0.attn.bias", 0, DTYPE_FP32},
                         {NULL, "h.1.attn.masked_bias", 0, DTYPE_FP32}};
    const edit tied[] = {{NULL, "lm_head.weight", 0, DTYPE_FP32},
                         {NULL, "model.layers.1.self_attn.rotary_emb.inv_freq", 0, DTYPE_FP32}};
    const edit behind[] = {{NULL, "model.layers.3.eh_proj.weight", 0, DTYPE_FP32},
                           {NULL, "model.layers.3.mlp.experts.0.up_proj.weight", 0, DTYPE_FP32}};
    const edit copies[] = {{"model.layers.2.embed_tokens.weight", NULL, 0, DTYPE_FP32},
                           {"model.layers.2.shared_head.head.weight", NULL, 0, DTYPE_FP32}};
    const struct {
        const char *model;
        const edit *edits;
        int count;
    } cases[] = {{"gpt2", bare, 3},
                 {"llama-tied", tied, 2},
                 {"qwen2", tied, 2},
                 {"glm4-moe", behind, 2},
                 {"glm4-moe-mtp", copies, 2}};
    for (int i = 0; i < 5; i++) {
        AUTO_FREE char *source = conversion_golden(cases[i].model),
                       *folder = must_format("%s/odd-%d", (char *)*state, i), *to = must_format("%s-to", folder);
        write_model(folder, cases[i].model, cases[i].edits, cases[i].count, 0);
        conversion_must(folder, to, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
        conversion_same_file(source, to, SHARDED_FILE);
    }
}

/* transformers keeps the key of the block behind the last layer and drops its weights; who has no use for the block
 * drops the key. Either way the rest is a model. */
TEST(a_block_behind_the_last_layer_is_left_out_where_key_or_weights_are)
{
    const edit gone[] = {{"model.layers.2.*", NULL, 0, DTYPE_FP32}};
    AUTO_FREE char *first = must_format("%s/block-0-to", (char *)*state);
    for (int by_key = 0; by_key < 2; by_key++) {
        AUTO_FREE char *folder = must_format("%s/block-%d", (char *)*state, by_key), *to = must_format("%s-to", folder);
        weights *w;
        write_model(folder, "glm4-moe-mtp", gone, !by_key, 0);
        if (by_key)
            edit_config(folder, "\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 0");
        assert_int_equal(weights_open(&w, folder), STATUS_OK);
        assert_int_equal(weights_shape(w)->mtp_layers, 0);
        weights_close(w);
        conversion_must(folder, to, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
        conversion_same_file(first, to, SHARDED_FILE);
        conversion_same_file(first, to, "config.json");
    }
}

TEST(a_copy_of_the_table_that_differs_is_refused)
{
    const edit other[] = {{"model.layers.2.embed_tokens.weight", NULL, 0, DTYPE_FP32},
                          {NULL, "model.layers.2.embed_tokens.weight", 0, DTYPE_FP32}};
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *folder = must_format("%s/copy-%d", (char *)*state, i), *to = must_format("%s-to", folder);
        write_model(folder, "glm4-moe-mtp", other, 2, i ? 1e-6f : 0);
        assert_int_equal(conversion(folder, to, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0), i ? STATUS_FAILED : STATUS_OK);
        if (i)
            workfolder_message_has("model.layers.2.embed_tokens.weight differs from model.embed_tokens.weight");
    }
}

TEST(wrong_tensors_are_refused_by_name)
{
    const struct {
        const char *model;
        edit edit;
        float off;
        const char *part;
    } cases[] = {
        {"llama",
         {"model.layers.1.mlp.up_proj.weight", NULL, 0, DTYPE_FP32},
         0,
         "model.layers.1.mlp.up_proj.weight is missing"},
        {"llama", {"lm_head.weight", NULL, 0, DTYPE_FP32}, 0, "tensor lm_head.weight is missing"},
        {"gpt2", {"transformer.ln_f.bias", NULL, 0, DTYPE_FP32}, 0, "transformer.ln_f.bias is missing"},
        {"qwen3", {"model.norm.weight", "model.morn.weight", 0, DTYPE_FP32}, 0, "model.norm.weight is missing"},
        {"llama",
         {NULL, "model.layers.2.mlp.up_proj.weight", 0, DTYPE_FP32},
         0,
         "model.layers.2.mlp.up_proj.weight is none of"},
        {"glm4-moe",
         {NULL, "model.layers.2.eh_proj.weight", 0, DTYPE_FP32},
         0,
         "model.layers.2.eh_proj.weight is none of"},
        {"glm4-moe-mtp",
         {"model.layers.2.hnorm.weight", NULL, 0, DTYPE_FP32},
         0,
         "tensor model.layers.2.hnorm.weight is missing"},
        {"llama", {NULL, "model.layers.0.self_attn.q_proj.bias", 0, DTYPE_FP32}, 0, "self_attn.q_proj.bias is none of"},
        {"llama", {NULL, "embed_tokens.weight", 0, DTYPE_FP32}, 0, "embed_tokens.weight is none of"},
        {"mistral",
         {"model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight", 48, DTYPE_FP32},
         0,
         "model.layers.0.mlp.down_proj.weight has shape [48, 32], but the configuration makes it [32, 48]"},
        {"mistral",
         {"model.norm.weight", "model.norm.weight", 0, DTYPE_INT32},
         0,
         "model.norm.weight is of type int32"},
        {"qwen2",
         {NULL, "lm_head.weight", 0, DTYPE_FP32},
         1e-6f,
         "lm_head.weight differs from model.embed_tokens.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_FREE char *folder = must_format("%s/wrong-%zu", (char *)*state, i), *to = must_format("%s-to", folder);
        write_model(folder, cases[i].model, &cases[i].edit, 1, cases[i].off);
        assert_int_equal(conversion(folder, to, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0), STATUS_FAILED);
        workfolder_message_has(cases[i].part);
        workfolder_message_has(folder);
        assert_false(atomic_exists(to));
    }
}

static void refused(const char *folder, const char *part)
{
    weights *w = NULL;
    assert_int_equal(weights_open(&w, folder), STATUS_FAILED);
    assert_null(w);
    workfolder_message_has(part);
}

TEST(wrong_folders_are_refused_in_one_line)
{
    AUTO_FREE char *folder = workfolder_path(*state, "bad"), *file = workfolder_path(folder, SHARDED_FILE);
    refused(folder, "does not exist");
    assert_int_equal(atomic_make_folders(folder), STATUS_OK);
    refused(folder, "holds no model");
    write_model(folder, "llama", NULL, 0, 0);
    int64_t bytes;
    AUTO_FREE uint8_t *data = workfolder_read(file, &bytes);
    for (int64_t cut = 0; cut < bytes; cut += bytes / 7 + 1) {
        workfolder_write(file, data, cut);
        refused(folder, SHARDED_FILE);
    }
    assert_int_equal(atomic_remove(file), STATUS_OK);
    refused(folder, "neither model.safetensors nor model.safetensors.index.json");
    conversion_put(folder, "weights.safetensors", "x");
    refused(folder, "has weights.safetensors but neither");
    conversion_put(folder, "pytorch_model.bin", "x");
    conversion_put(folder, "a.pth", "x");
    refused(folder, "a.pth is a pickle");
    workfolder_write(file, data, bytes); /* pickles beside safetensors are let lie */
    weights *w;
    assert_int_equal(weights_open(&w, folder), STATUS_OK);
    weights_close(w);
    edit_config(folder, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    refused(folder, "model.layers.2.input_layernorm.weight is missing");
    edit_config(folder, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1");
    refused(folder, "is none of a llama model of 1 layers");
    edit_config(folder, "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 1,,");
    refused(folder, "config.json:");
}

TEST(wrong_indices_are_refused_in_one_line)
{
    AUTO_FREE char *source = conversion_golden("llama"), *folder = workfolder_path(*state, "indexed"),
                   *index = workfolder_path(folder, SHARDED_INDEX);
    conversion_must(source, folder, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 60000);
    int64_t bytes;
    AUTO_FREE char *text = (char *)workfolder_read(index, &bytes),
                   *shard = workfolder_path(folder, "model-00001-of-00002.safetensors");
    const struct {
        const char *from, *to, *part;
    } cases[] = {
        {"{", "[", "no JSON"},
        {"weight_map", "weight-map", "weight_map is missing"},
        {"00001-of-00002.", "00003-of-00002.", "cannot open"},
        {"\"model-00001-of-00002.safetensors\"", "\"../model-00001-of-00002.safetensors\"", "name of a file beside it"},
        {"\"model-00001-of-00002.safetensors\"", "7", "name of a file beside it"},
        {"\"model.norm.weight\"", "\"model.morn.weight\"", "model.norm.weight is in a file but not in the weight_map"},
        {"\"weight_map\": {", "\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\",",
         "is missing from model-00001"},
        {"\"lm_head.weight\": \"model-00002", "\"lm_head.weight\": \"model-00001",
         "lm_head.weight is not only in model-00001"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *at = strstr(text, cases[i].from);
        assert_non_null(at);
        AUTO_FREE char *edited =
            must_format("%.*s%s%s", (int)(at - text), text, cases[i].to, at + strlen(cases[i].from));
        workfolder_write(index, edited, (int64_t)strlen(edited));
        refused(folder, cases[i].part);
    }
    workfolder_write(index, text, bytes);
    weights *w;
    assert_int_equal(weights_open(&w, folder), STATUS_OK);
    weights_close(w);
    assert_int_equal(atomic_remove(shard), STATUS_OK);
    refused(folder, "cannot open");
}

/* A damaged checkpoint is found while it is read: then there is neither the new folder nor its temporary one. */
TEST(a_failed_conversion_leaves_nothing)
{
    AUTO_FREE char *source = conversion_golden("mistral"), *there = workfolder_path(*state, "whole"),
                   *to = workfolder_path(*state, "never");
    AUTO_FREE char *file = workfolder_path(there, "model-00000.safetensors");
    conversion_must(source, there, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
    int64_t bytes;
    AUTO_FREE uint8_t *data = workfolder_read(file, &bytes);
    data[bytes - 9] ^= 4;
    workfolder_write(file, data, bytes);
    assert_int_equal(conversion(there, to, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0), STATUS_FAILED);
    workfolder_message_has("is damaged");
    assert_false(atomic_exists(to));
    assert_false(conversion_has(*state, "never.tmp"));
    data[bytes - 9] ^= 4;
    workfolder_write(file, data, bytes);
    assert_int_equal(atomic_make_folders(to), STATUS_OK); /* an empty folder is taken */
    conversion_must(there, to, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
    assert_int_equal(conversion(there, to, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0), STATUS_FAILED);
    workfolder_message_has("is there already");
    conversion_same_file(source, to, SHARDED_FILE);
}

/* The last value of a Hugging Face file. */
/* The second, which mpirun may start, neither takes the first one's folder away nor writes into it. */
TEST(two_conversions_to_one_folder_do_not_mix)
{
    const char *top = *state;
    AUTO_FREE char *from = conversion_golden("llama"), *to = workfolder_path(top, "both"),
                   *first = workfolder_path(top, "both.tmp"), *mark = must_format("%s/mark", first);
    assert_int_equal(mkdir(first, 0755), 0);
    conversion_put(first, "mark", "the first one's");
    AUTO_CLOSE held = open(first, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(held, LOCK_EX), 0);
    assert_int_equal(conversion(from, to, WEIGHTS_PHALANX, DTYPE_FP32, 0), STATUS_FAILED);
    workfolder_message_has("both.tmp is being written by another process");
    assert_true(atomic_exists(mark) && !atomic_exists(to));
    assert_int_equal(flock(held, LOCK_UN), 0);
    conversion_must(from, to, WEIGHTS_PHALANX, DTYPE_FP32, 0); /* a leftover */
    assert_true(!atomic_exists(first) && conversion_has(to, "manifest.json"));
}

TEST(wild_values_are_refused_by_name)
{
    static const struct {
        float value;
        int type;
        const char *words;
    } cases[] = {{NAN, WEIGHTS_KEEP, "has values that are not finite (NaN or infinity)"},
                 {-INFINITY, DTYPE_BF16, "has values that are not finite (NaN or infinity)"},
                 {1e30f, DTYPE_FP16, "has values beyond the range of fp16"}};
    AUTO_FREE char *source = conversion_golden("mistral"), *from = workfolder_path(*state, "wild"),
                   *to = workfolder_path(*state, "tame"), *file = workfolder_path(from, SHARDED_FILE);
    int64_t bytes;
    conversion_must(source, from, WEIGHTS_HUGGINGFACE, DTYPE_FP32, 0);
    AUTO_FREE uint8_t *data = workfolder_read(file, &bytes);
    for (int i = 0; i < 3; i++) {
        memcpy(data + bytes - 4, &cases[i].value, 4);
        workfolder_write(file, data, bytes);
        assert_int_equal(conversion(from, to, WEIGHTS_PHALANX, cases[i].type, 0), STATUS_FAILED);
        workfolder_message_has(": tensor model.");
        workfolder_message_has(cases[i].words);
        assert_false(atomic_exists(to));
    }
}

TEST(tokenizer_files_go_along_both_ways)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                        "generation_config.json"};
    AUTO_FREE char *folder = workfolder_path(*state, "tokenized"), *there = workfolder_path(*state, "tokenized-there");
    AUTO_FREE char *back = workfolder_path(*state, "tokenized-back");
    write_model(folder, "qwen2", NULL, 0, 0);
    for (int i = 0; i < 4; i++)
        conversion_put(folder, names[i], names[i]);
    conversion_must(folder, there, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
    conversion_must(there, back, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
    for (int i = 0; i < 4; i++)
        conversion_same_file(folder, back, names[i]);
    assert_false(conversion_has(back, "merges.txt"));
}

TEST(the_command_says_what_is_wrong_in_one_line)
{
    AUTO_FREE char *program = launch_beside("../phalanx"), *to = workfolder_path(*state, "command");
    const struct {
        const char *arguments;
        int code;
        const char *part;
    } cases[] = {
        {"--to x", 2, "convert needs --from"},
        {"--from x", 2, "convert needs --to"},
        {"--from x --to y --dtype int8", 2, "int8"},
        {"--from /nonexistent --to y", 1, "/nonexistent does not exist"},
        {"--from " GOLDEN_MODELS " --to y", 1, "holds no model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = launch_run(20, "%s convert %s", program, cases[i].arguments);
        assert_int_equal(r.status, cases[i].code);
        assert_non_null(strstr(r.err, cases[i].part));
        assert_ptr_equal(strchr(r.err, '\n'), r.err + strlen(r.err) - 1);
        launch_free(&r);
    }
    launch_result r = launch_run(20, "%s convert --from %s/qwen3 --to %s --dtype bf16", program, GOLDEN_MODELS, to);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "qwen3, 27.9k parameters"));
    assert_true(conversion_has(to, "manifest.json"));
    launch_free(&r);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
