#include "engine/state/weights/weights.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/files/sharded.h"
#include "engine/data/tokenizer_files.h"
#include "engine/store/object.h"
#include "memory/bits.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/parts.h"
#include "models/huggingface.h"

#define AHEAD_BYTES (16 << 20) /* read ahead of a rectangle: the next one usually follows */

#define MODEL  "model"
#define MASTER "master"

/* ---- dequantisation of mxfp4 ---- */

/* Values by a sign, two bits of exponent and one of fraction. */
static const float mxfp4_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

enum { SCALE_OF_ONE = 127 };

void mxfp4_read(float *to, const mxfp4_matrices *from, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    const int64_t groups = from->in / MXFP4_GROUP;
    for (int64_t done = 0; done < rows;) {
        int64_t matrix = (row + done) / from->in, first = (row + done) % from->in;
        int64_t count = from->in - first < rows - done ? from->in - first : rows - done;
        for (int64_t j = 0; j < columns; j++) {
            int64_t group = (matrix * from->out + column + j) * groups;
            /* Elements [first, first + count) of a row of groups, `stride` apart in `to`. */
            for (int64_t i = first; i < first + count; i++) {
                uint8_t both = (from->blocks + group * MXFP4_BYTES)[i / 2];
                float value = mxfp4_values[i % 2 ? both >> 4 : both & 15];
                (to + done * columns + j)[(i - first) * columns] =
                    ldexpf(value, (from->scales + group)[i / MXFP4_GROUP] - SCALE_OF_ONE);
            }
        }
        done += count;
    }
}

/* Location of a model's tensor in a Hugging Face folder: rows from `first` of one of its files' tensors. */
typedef struct stored_at {
    const sharded_tensor *in;
    int64_t first;
    const sharded_tensor *scales; /* mxfp4 scales of the blocks `in`; else NULL */
} stored_at;

struct weights {
    char *folder;
    model_shape shape;
    json_t *tokens;
    names_tensor *names; /* [count] */
    int count;
    const names_tensor **by_name; /* [count] */
    sharded *files;
    stored_at *stored;      /* [count] of a Hugging Face folder */
    checkpoint *checkpoint; /* or NULL */
    config config;          /* the checkpoint's configuration */
    bool said_mxfp4;
};

/* Tensors stored by other programs that transformers does not load either: rotary tables, causal masks. */
static const char *const leftovers[] = {"*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias"};

static bool is_leftover(const char *name)
{
    for (size_t i = 0; i < sizeof leftovers / sizeof *leftovers; i++)
        if (fnmatch(leftovers[i], name, 0) == 0)
            return true;
    return false;
}

/* True if it belongs to an MTP module that the model does not have. */
static bool is_mtp_tensor(const model_shape *s, const char *name)
{
    AUTO_FREE char *layers = must_format("%slayers.", names_prefix(s->architecture));
    const size_t length = strlen(layers);
    return shape_has_key(s->architecture, KEY_MTP) && !strncmp(name, layers, length) &&
           strtol(name + length, NULL, 10) >= shape_blocks(s);
}

static int compare_name(const void *a, const void *b)
{
    return strcmp((*(const names_tensor *const *)a)->name, (*(const names_tensor *const *)b)->name);
}

static void list_names(weights *w)
{
    w->names = names_list(&w->count, &w->shape);
    w->by_name = must_alloc((unsigned long)w->count * sizeof *w->by_name);
    for (int i = 0; i < w->count; i++)
        w->by_name[i] = &w->names[i];
    qsort(w->by_name, (size_t)w->count, sizeof *w->by_name, compare_name);
}

/* Returns -1 if the model has no tensor of that name. */
static int find_tensor(const weights *w, const char *name)
{
    const names_tensor key = {.name = (char *)(uintptr_t)name}, *const wanted = &key;
    const names_tensor **at = bsearch(&wanted, w->by_name, (size_t)w->count, sizeof *w->by_name, compare_name);
    return at ? (int)(*at - w->names) : -1;
}

static void shape_text(char out[200], int dims, const int64_t *shape)
{
    size_t used = 0;
    out[0] = 0;
    for (int d = 0; d < dims; d++)
        used += (size_t)snprintf(out + used, 200 - used, "%s%" PRId64, d ? ", " : "", shape[d]);
}

static status check_shape(const char *folder, const char *name, int dims, const int64_t *shape, int dims_wanted,
                          const int64_t *shape_wanted)
{
    if (dims == dims_wanted && memcmp(shape, shape_wanted, (size_t)dims * sizeof *shape) == 0)
        return STATUS_OK;
    char stored[200], wanted[200];
    shape_text(stored, dims, shape);
    shape_text(wanted, dims_wanted, shape_wanted);
    return status_fail(STATUS_FAILED, "%s: tensor %s has shape [%s], but the configuration makes it [%s]", folder, name,
                       stored, wanted);
}

static status check_type(const char *folder, const char *name, dtype type)
{
    if (dtype_is_float(type) && dtype_bytes(type) >= 2)
        return STATUS_OK;
    return status_fail(STATUS_FAILED, "%s: tensor %s is of type %s: weights must be fp32, bf16, fp16 or fp64", folder,
                       name, dtype_name(type));
}

/* ---- a Hugging Face folder ---- */

/* Finds "transformer.wte.weight" in a file of the model with its head, "wte.weight" in one of the bare model. */
static const sharded_tensor *find_stored(const weights *w, const char *name)
{
    const char *prefix = names_prefix(w->shape.architecture);
    const sharded_tensor *t = sharded_find(w->files, name);
    if (!t && !strncmp(name, prefix, strlen(prefix)))
        t = sharded_find(w->files, name + strlen(prefix));
    return t;
}

/* Matches an expert's matrices as GPT-OSS is published: two tensors, NAME_blocks and NAME_scales. */
static bool match_mxfp4(stored_at *out, const weights *w, const names_tensor *n)
{
    if (!shape_has_key(w->shape.architecture, KEY_MXFP4) || !n->stacked || n->dims != 2)
        return false;
    AUTO_FREE char *blocks = must_format("%s_blocks", n->name), *scales = must_format("%s_scales", n->name);
    *out = (stored_at){find_stored(w, blocks), 0, find_stored(w, scales)};
    return out->in && out->scales;
}

static status check_mxfp4(const weights *w, const stored_at *at, const names_tensor *n)
{
    const int64_t experts = n->stacked, in = n->shape[0] / experts, out = n->shape[1];
    const int64_t wanted[] = {experts, out, in / MXFP4_GROUP, MXFP4_BYTES};
    const sharded_tensor *const both[] = {at->in, at->scales};
    if (in % MXFP4_GROUP)
        return status_fail(STATUS_FAILED,
                           "%s: tensor %s has groups of %d, which do not divide the %" PRId64
                           " columns that the configuration makes",
                           w->folder, at->in->tensor->name, MXFP4_GROUP, in);
    for (int i = 0; i < 2; i++) {
        const safetensors_tensor *t = both[i]->tensor;
        TRY(check_shape(w->folder, t->name, t->dims, t->shape, i ? 3 : 4, wanted));
        if (t->type != DTYPE_UINT8)
            return status_fail(STATUS_FAILED, "%s: tensor %s is of type %s: mxfp4 is uint8", w->folder, t->name,
                               dtype_name(t->type));
    }
    return STATUS_OK;
}

/* Matches a tensor with the first of its possible locations (names_slice_of) that the files have. */
static status match_tensor(weights *w, int i)
{
    names_slice at;
    for (int which = 0; names_slice_of(&at, &w->shape, &w->names[i], which); which++) {
        w->stored[i] = (stored_at){find_stored(w, at.name), at.first, NULL};
        if (!w->stored[i].in)
            continue;
        /* Its shape must be the one of that location. */
        const safetensors_tensor *t = w->stored[i].in->tensor;
        const names_tensor whole = {
            .dims = w->names[i].dims, .shape = {at.rows, w->names[i].shape[1]}, .stacked = at.stacked};
        int64_t shape[3];
        int dims = names_file_shape(shape, &whole);
        TRY(check_shape(w->folder, at.name, t->dims, t->shape, dims, shape));
        return check_type(w->folder, at.name, t->type);
    }
    if (match_mxfp4(&w->stored[i], w, &w->names[i]))
        return check_mxfp4(w, &w->stored[i], &w->names[i]);
    return status_fail(STATUS_FAILED, "%s: tensor %s is missing: config.json asks for it", w->folder, w->names[i].name);
}

static bool are_equal(const sharded_tensor *x, const sharded_tensor *y)
{
    const int64_t step = 16 << 20, bytes = x->tensor->bytes;
    const char *a = sharded_data(x), *b = sharded_data(y);
    bool equal = bytes == y->tensor->bytes && x->tensor->type == y->tensor->type;
    for (int64_t done = 0, now; equal && done < bytes; done += now) {
        now = bytes - done < step ? bytes - done : step;
        equal = memcmp(a + done, b + done, (size_t)now) == 0;
        sharded_forget(x, done, now);
        sharded_forget(y, done, now);
    }
    return equal;
}

static const sharded_tensor *stored_of(const weights *w, parts_slot slot)
{
    return w->stored[find_tensor(w, names_format(w->shape.architecture, slot))].in;
}

/* Returns the tensor that `name` repeats (parts.def), or NULL. */
static const sharded_tensor *find_repeated(const weights *w, const char *name)
{
    char copy[NAMES_BYTES];
    parts_slot slot;
    for (int i = 0; names_copy_of(copy, &slot, &w->shape, i); i++)
        if (strcmp(copy, name) == 0)
            return stored_of(w, slot);
    return NULL;
}

static status match_tensors(weights *w)
{
    int left_out = 0;
    AUTO_FREE bool *taken = must_calloc((unsigned long)sharded_count(w->files) + 1, sizeof *taken);
    w->stored = must_calloc((unsigned long)w->count, sizeof *w->stored);
    for (int i = 0; i < w->count; i++) {
        TRY(match_tensor(w, i));
        taken[sharded_number(w->files, w->stored[i].in)] = true;
        if (w->stored[i].scales)
            taken[sharded_number(w->files, w->stored[i].scales)] = true;
    }
    for (int i = 0; i < sharded_count(w->files); i++) {
        const sharded_tensor *t = sharded_at(w->files, i), *repeated = find_repeated(w, t->tensor->name);
        const char *name = t->tensor->name;
        if (repeated && !are_equal(t, repeated))
            return status_fail(STATUS_FAILED,
                               "%s: tensor %s differs from %s, but the block behind the last layer shares the model's: "
                               "set num_nextn_predict_layers to 0 in config.json to leave that block out",
                               w->folder, name, repeated->tensor->name);
        if (repeated)
            continue;
        bool tied = w->shape.tied_embeddings && !strcmp(name, names_format(w->shape.architecture, SLOT_HEAD));
        const sharded_tensor *embedding = tied ? stored_of(w, SLOT_EMBEDDING) : NULL;
        if (tied && !are_equal(t, embedding)) /* a tied head that is stored all the same */
            return status_fail(STATUS_FAILED,
                               "%s: tensor %s differs from %s, but tie_word_embeddings makes them one: set it to "
                               "false in config.json",
                               w->folder, name, embedding->tensor->name);
        if (tied)
            continue;
        if (is_mtp_tensor(&w->shape, name))
            left_out++;
        else if (!taken[i] && !is_leftover(name))
            return status_fail(STATUS_FAILED,
                               "%s: tensor %s is none of a %s model of %d layers: is config.json another model's?",
                               w->folder, name, shape_traits_of(w->shape.architecture)->name, w->shape.layers);
    }
    if (left_out > 0 && log_rank() == 0)
        log_warn("%s: %d tensors of layers behind the last one are left out: num_nextn_predict_layers is not 1",
                 w->folder, left_out);
    return STATUS_OK;
}

static status read_config_json(model_shape *shape, json_t **tokens, const char *path)
{
    AUTO_FREE char *text = NULL;
    size_t bytes;
    TRY(config_read_file(&text, &bytes, path));
    return huggingface_parse(shape, tokens, text, bytes, path);
}

/* Drops the MTP module if only its configuration key is present: transformers keeps the key, but not its weights. */
static void leave_block(weights *w)
{
    char name[NAMES_BYTES];
    if (w->shape.mtp_layers == 0 ||
        find_stored(w, names_write(name, w->shape.architecture, SLOT_MTP_ENORM, w->shape.layers, -1)))
        return;
    if (log_rank() == 0)
        log_warn("%s: there is no %s: the block that num_nextn_predict_layers 1 asks for is left out", w->folder, name);
    w->shape.mtp_layers = 0;
    w->shape.mtp_loss = 0;
}

/* ---- a checkpoint ---- */

static status open_checkpoint(weights *w, const char *path)
{
    TRY(checkpoint_open(&w->checkpoint, path));
    free(w->folder);
    w->folder = must_strdup(checkpoint_folder(w->checkpoint));
    const json_t *meta = checkpoint_meta(w->checkpoint);
    const char *text = json_string_value(json_object_get(meta, "config"));
    if (!text)
        return status_fail(STATUS_FAILED, "%s: the manifest holds no configuration", w->folder);
    TRY(config_parse(&w->config, w->folder, text, strlen(text), 0, NULL));
    w->shape = w->config.model.shape;
    w->tokens = json_deep_copy(json_object_get(meta, "tokens"));
    list_names(w);
    AUTO_FREE const char **names = must_alloc((unsigned long)w->count * sizeof *names);
    for (int i = 0; i < w->count; i++)
        names[i] = w->names[i].name;
    TRY(checkpoint_expect(w->checkpoint, MODEL, names, w->count));
    for (int i = 0; i < w->count; i++) {
        const manifest_tensor *t = checkpoint_find(w->checkpoint, MODEL, w->names[i].name);
        TRY(check_shape(w->folder, t->name, t->dims, t->global, w->names[i].dims, w->names[i].shape));
        TRY(check_type(w->folder, t->name, t->type));
    }
    return STATUS_OK;
}

/* ---- both formats ---- */

/* True if a file of that name exists. */
static bool has(const char *folder, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return atomic_exists(path);
}

static status open_either(weights *w, const char *folder)
{
    bool huggingface = has(folder, "config.json") && !has(folder, "manifest.json");
    if (!atomic_exists(folder))
        return status_fail(STATUS_FAILED, "%s does not exist", folder);
    if (!huggingface && !has(folder, "manifest.json") && !has(folder, "latest") && !has(folder, "checkpoints/latest"))
        return status_fail(
            STATUS_FAILED,
            "%s holds no model: neither a Hugging Face folder (config.json) nor a checkpoint (manifest.json, "
            "latest or checkpoints/latest)",
            folder);
    w->folder = must_strdup(folder);
    if (!huggingface)
        return open_checkpoint(w, folder);
    AUTO_FREE char *path = must_format("%s/config.json", folder);
    TRY(read_config_json(&w->shape, &w->tokens, path));
    TRY(sharded_open(&w->files, w->folder));
    leave_block(w);
    list_names(w);
    return match_tensors(w);
}

static status open_part(weights **out, const char *path, folder_part part)
{
    AUTO_FREE char *folder = NULL;
    TRY(folder_local(&folder, path, part));
    if (part == FOLDER_WHOLE && has(folder, FOLDER_NO_VALUES))
        return status_fail(STATUS_FAILED, "%s has names and sizes of tensors, but no values: name the s3:// folder",
                           folder);
    AUTO(weights) *w = must_calloc(1, sizeof *w);
    TRY(open_either(w, folder));
    if (!json_is_object(w->tokens)) {
        json_decref(w->tokens);
        w->tokens = json_object();
    }
    *out = TAKE(w);
    return STATUS_OK;
}

status weights_open(weights **out, const char *folder)
{
    return open_part(out, folder, FOLDER_WHOLE);
}

status weights_open_names(weights **out, const char *folder)
{
    return open_part(out, folder, FOLDER_HEADERS);
}

bool weights_leave_biases(weights *w)
{
    bool biased = w->shape.router_bias_rate > 0 && !shape_has(&w->shape, TRAIT_BIASED);
    if (!biased)
        return false;
    w->shape.router_bias_rate = 0;
    names_free(w->names, w->count);
    free(w->by_name);
    list_names(w);
    return true;
}

void weights_close(weights *w)
{
    if (!w)
        return;
    sharded_close(w->files);
    checkpoint_close(w->checkpoint);
    config_free(&w->config);
    json_decref(w->tokens);
    names_free(w->names, w->count);
    free(w->by_name);
    free(w->stored);
    free(w->folder);
    free(w);
}

bool weights_is_huggingface(const weights *w)
{
    return w->files != NULL;
}

const char *weights_folder(const weights *w)
{
    return w->folder;
}

char *weights_identity(const weights *w)
{
    enum { SAMPLED = 64, SAMPLE_BYTES = 64 };
    if (w->checkpoint)
        return checkpoint_identity(w->checkpoint);
    bits sum = {0};
    int count = sharded_count(w->files), every = count / SAMPLED + 1;
    for (int i = 0; i < count; i++) {
        const sharded_tensor *at = sharded_at(w->files, i);
        const safetensors_tensor *t = at->tensor;
        bits_add(&sum, t->name, (int64_t)strlen(t->name));
        bits_add(&sum, &t->bytes, sizeof t->bytes);
        if (i % every == 0)
            bits_add(&sum, sharded_data(at), t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES);
    }
    return must_format("%d tensors of a Hugging Face folder (sum %016llx)", count, (unsigned long long)bits_end(&sum));
}

const model_shape *weights_shape(const weights *w)
{
    return &w->shape;
}

const char *weights_config(const weights *w)
{
    return w->checkpoint ? json_string_value(json_object_get(checkpoint_meta(w->checkpoint), "config")) : NULL;
}

const json_t *weights_tokens(const weights *w)
{
    return w->tokens;
}

int weights_files(const weights *w)
{
    return w->files ? sharded_files(w->files) : 0;
}

int weights_count(const weights *w)
{
    return w->count;
}

const names_tensor *weights_at(const weights *w, int i)
{
    MUST(i >= 0 && i < w->count, "tensor %d of %d", i, w->count);
    return &w->names[i];
}

dtype weights_type(const weights *w, int i)
{
    const char *name = weights_at(w, i)->name;
    if (w->files && w->stored[i].scales)
        return DTYPE_BF16;
    return w->files ? w->stored[i].in->tensor->type : checkpoint_find(w->checkpoint, MODEL, name)->type;
}

static status read_file(const weights *w, const stored_at *at, const rectangle *of, const box_memory *to)
{
    const sharded_tensor *t = at->in;
    const int64_t *start = of->part.start, *size = of->part.size;
    int64_t first = 0, last = 0, element = dtype_bytes(t->tensor->type);
    box_memory from = {.type = t->tensor->type};
    if (box_volume(of->dims, size) == 0)
        return STATUS_OK;
    for (int d = 0; d < of->dims; d++)
        MUST(start[d] >= 0 && start[d] <= of->global[d] - size[d], "%s: rectangle beyond its shape", of->name);
    box_row_major(from.stride, of->dims, of->global);
    first = last = at->first * from.stride[0];
    for (int d = 0; d < of->dims; d++) {
        first += start[d] * from.stride[d];
        last += (start[d] + size[d] - 1) * from.stride[d];
    }
    int64_t bytes = (last + 1 - first) * element;
    /* Each advice costs a look at all the pages of a tensor: for many small ones advises once per AHEAD_BYTES. */
    int64_t at_byte = t->tensor->offset + first * element;
    bool crosses = at_byte / AHEAD_BYTES != (at_byte + bytes) / AHEAD_BYTES;
    sharded_expect(t, first * element, bytes + (crosses ? AHEAD_BYTES : 0));
    from.data = (char *)(uintptr_t)sharded_data(t) + first * element;
    bool finite = box_all_finite(&from, of->dims, size);
    box_convert(to, &from, of->dims, size);
    sharded_forget(t, first * element, bytes);
    if (!finite)
        return status_fail(STATUS_FAILED, "%s: tensor %s has values that are not finite (NaN or infinity)", w->folder,
                           of->name);
    return to->type == from.type || box_all_finite(to, of->dims, size)
               ? STATUS_OK
               : status_fail(STATUS_FAILED, "%s: tensor %s has values beyond the range of %s", w->folder, of->name,
                             dtype_name(to->type));
}

static status read_mxfp4(weights *w, const stored_at *at, const rectangle *of, const box_memory *to)
{
    const int64_t *shape = at->scales->tensor->shape, *start = of->part.start, *size = of->part.size;
    const mxfp4_matrices from = {.blocks = sharded_data(at->in),
                                 .scales = sharded_data(at->scales),
                                 .out = shape[1],
                                 .in = shape[2] * MXFP4_GROUP};
    if (!w->said_mxfp4)
        log_warn("%s: weights of experts are mxfp4: they are dequantised, and saved and exported as they then are, in "
                 "bf16 or wider",
                 w->folder);
    w->said_mxfp4 = true;
    AUTO_FREE float *values = must_alloc((unsigned long)(size[0] * size[1] + 1) * sizeof *values);
    box_memory read = {.data = values, .type = DTYPE_FP32};
    box_row_major(read.stride, 2, size);
    mxfp4_read(values, &from, start[0], size[0], start[1], size[1]);
    box_convert(to, &read, 2, size);
    return box_all_finite(&read, 2, size) && box_all_finite(to, 2, size)
               ? STATUS_OK
               : status_fail(STATUS_FAILED, "%s: tensor %s has values beyond the range of %s", w->folder,
                             at->in->tensor->name, dtype_name(to->type));
}

/* True if it is the router's bias of a layer, in this architecture. */
static bool is_bias(const weights *w, const char *name)
{
    const char *format = names_format(w->shape.architecture, SLOT_ROUTER_BIAS),
               *end = format ? strstr(format, "%d") : NULL;
    size_t length = strlen(name), tail = end ? strlen(end) - 2 : 0;
    return tail > 0 && length > tail && strcmp(name + length - tail, end + 2) == 0;
}

status weights_read(void *context, const rectangle *of, const box_memory *to)
{
    weights *w = context;
    int i = find_tensor(w, of->name), dims = of->dims;
    if (i < 0 && is_bias(w, of->name)) {
        AUTO_FREE float *zeros = must_calloc((unsigned long)box_volume(dims, of->part.size) + 1, sizeof *zeros);
        box_memory from = {.data = zeros, .type = DTYPE_FP32};
        box_row_major(from.stride, dims, of->part.size);
        box_convert(to, &from, dims, of->part.size);
        return STATUS_OK;
    }
    if (i < 0)
        return status_fail(STATUS_FAILED, "%s: tensor %s is missing: is this another model's?", w->folder, of->name);
    MUST(dims == 1 || dims == 2, "%s has %d dimensions", of->name, dims);
    TRY(check_shape(w->folder, of->name, w->names[i].dims, w->names[i].shape, dims, of->global));
    if (w->files && w->stored[i].scales)
        return read_mxfp4(w, &w->stored[i], of, to);
    if (w->files)
        return read_file(w, &w->stored[i], of, to);
    const manifest_tensor *master = checkpoint_find(w->checkpoint, MASTER, of->name);
    bool precise = master && dtype_bytes(to->type) >= dtype_bytes(master->type);
    return checkpoint_read(w->checkpoint, precise ? MASTER : MODEL, of, to);
}

/* ---- the tokenizer ---- */

tokenizer_begin weights_begin(const weights *w)
{
    tokenizer_begin begin = w->checkpoint ? TOKENIZER_BEGIN_UNKNOWN : TOKENIZER_BEGIN_OWN;
    const json_t *meta = w->checkpoint ? checkpoint_meta(w->checkpoint) : NULL;
    (void)tokenizer_begin_find(&begin, json_string_value(json_object_get(meta, "document_begin")));
    return begin;
}

static status open_tokenizer(tokenizer **out, const weights *w)
{
    /* run/checkpoints/step-00000100: beside the weights, or with the run */
    static const char *const above[] = {"", "/..", "/../.."};
    for (int i = 0; i < (w->checkpoint ? 3 : 1); i++) {
        AUTO_FREE char *folder = must_format("%s%s", w->folder, above[i]);
        if (tokenizer_files_is_in(folder))
            return tokenizer_files_open(out, folder);
    }
    if (w->checkpoint && w->config.data.tokenizer)
        return tokenizer_files_open(out, w->config.data.tokenizer);
    if (w->checkpoint && w->config.data.train.count && tokenizer_files_is_beside(w->config.data.train.item[0].path))
        return tokenizer_files_open_beside(out, w->config.data.train.item[0].path);
    return status_fail(STATUS_FAILED, "%s has no tokenizer: put tokenizer.json or tokenizer.model there", w->folder);
}

status weights_tokenizer(tokenizer **out, const weights *w, const char *spec, tokenizer_begin begin)
{
    TRY(spec ? tokenizer_files_open(out, spec) : open_tokenizer(out, w));
    tokenizer_begin_with(*out, begin ? begin : weights_begin(w));
    return STATUS_OK;
}

/* ---- sizes from the model's files ---- */

/* Takes the size from the tokenizer that made, or will make, the data. */
static status take_vocabulary(config *c)
{
    const char *prefix = c->data.tokenizer ? NULL : c->data.train.item[0].path;
    AUTO(tokenizer) *t = NULL;
    status s = STATUS_OK;
    if (c->data.tokenizer)
        s = tokenizer_files_open(&t, c->data.tokenizer);
    else if (tokenizer_files_is_beside(prefix))
        s = tokenizer_files_open_beside(&t, prefix);
    if (s != STATUS_OK)
        return status_context(s, "model.vocab_size from the tokenizer");
    AUTO_FREE char *index = must_format("%s.idx", prefix ? prefix : "");
    if (!t && !atomic_exists(index)) /* neither tokenizer nor data: report the more likely mistake */
        return status_fail(STATUS_USAGE,
                           "data.train: there is no data set %s (%s.bin and .idx), beside which a tokenizer would tell "
                           "model.vocab_size: phalanx tokenize --output %s makes both, or set model.vocab_size",
                           prefix, prefix, prefix);
    if (t)
        c->model.shape.vocab_size = tokenizer_vocab_size(t);
    return config_check(c);
}

status weights_configure(config *c)
{
    if (config_wants_vocabulary(c))
        return take_vocabulary(c);
    if (!config_wants_shape(c))
        return STATUS_OK;
    model_shape shape;
    if (c->model.config) {
        TRY(read_config_json(&shape, NULL, c->model.config));
    } else {
        AUTO(weights) *w = NULL;
        TRY(weights_open_names(&w, c->model.from));
        shape = w->shape;
    }
    config_take_shape(c, &shape);
    TRY(config_check(c));
    return c->model.upcycle && !c->model.config ? parts_check_dense(&c->model.shape, &shape, c->model.from) : STATUS_OK;
}
