#include "engine/state/weights/weights_copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/checkpoint/manifest.h"
#include "engine/system/mapping.h"
#include "engine/system/reading.h"
#include "engine/system/worker.h"
#include "engine/files/safetensors.h"
#include "engine/files/sharded.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/parts.h"

#define SHARD_BYTES 5000000000LL /* where transformers cuts */
#define CHUNK_BYTES (8 << 20)    /* bytes of one buffer */
#define CHUNKS      3            /* one being read into, one being written, one between */

/* Files of a model that are neither weights nor config.json. */
static const char *const companions[] = {"tokenizer.json",          "tokenizer.model",   "tokenizer.bytes",
                                         "tokenizer_config.json",   "vocab.json",        "merges.txt",
                                         "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
                                         "generation_config.json"};

enum { COMPANIONS = sizeof companions / sizeof *companions };

enum { MOST_COPIES = 2 };

typedef struct copy {
    weights *from;
    const weights_copy_options *options;
    char *folder; /* temporary */
    int held;     /* its descriptor, locked; -1: none */
    int64_t done, total;
    safetensors_tensor *tensors; /* [count] as they will be stored, in the model's order, and then copies */
    int *source;                 /* [count] index of the source weight of each */
    int count;
    char *copied[MOST_COPIES]; /* names of copies */
    int *first;                /* [shards + 1] tensors of each file */
    int shards;
    manifest *manifest; /* manifest of a checkpoint */
    json_t *map;        /* weight_map of an index */
} copy;

static int64_t bytes_of(const safetensors_tensor *t)
{
    return box_volume(t->dims, t->shape) * dtype_bytes(t->type);
}

/* ---- a reading and a writing thread ---- */

/* A ring of buffers: the reader fills the next one while the writer empties the previous ones. */
typedef struct ring {
    copy *c;
    const int *order; /* tensors of this file, in the file's order */
    int first, tensors;
    worker worker; /* stopped when the writer has failed */
    char *buffer[CHUNKS];
    int64_t bytes[CHUNKS];
    int64_t filled, emptied; /* number of chunks */
    status read;
    char *message; /* message of a failed read: messages are kept per thread */
} ring;

static void advance_counter(ring *r, int64_t *counter)
{
    WORKER_HELD(&r->worker);
    ++*counter;
    worker_tell(&r->worker);
}

/* Reads as many rows as fit a buffer; a wider row is cut into columns. */
static status read_tensor(ring *r, const names_tensor *t, dtype type)
{
    int64_t element = dtype_bytes(type), room = CHUNK_BYTES / element;
    int64_t rows = t->dims == 2 ? t->shape[0] : 1, columns = t->shape[t->dims - 1];
    int64_t wide = columns < room ? columns : room, high = room / wide;
    for (int64_t row = 0; row < rows; row += high)
        for (int64_t column = 0; column < columns; column += wide) {
            int64_t height = rows - row < high ? rows - row : high,
                    width = columns - column < wide ? columns - column : wide;
            rectangle of = box_whole(t->name, t->dims, t->shape);
            of.part = t->dims == 2 ? (box){{row, column}, {height, width}} : (box){{column}, {width}};
            worker_lock(&r->worker);
            while (r->filled - r->emptied == CHUNKS && worker_wait(&r->worker))
                continue;
            worker_unlock(&r->worker);
            if (atomic_load(&r->worker.stop))
                return status_fail(STATUS_FAILED, "stopped");
            int slot = (int)(r->filled % CHUNKS);
            TRY(weights_read(r->c->from, &of, &(box_memory){r->buffer[slot], type, {t->dims == 2 ? width : 1, 1}}));
            r->bytes[slot] = height * width * element;
            advance_counter(r, &r->filled);
        }
    return STATUS_OK;
}

static void read_all(void *context)
{
    ring *r = context;
    status s = STATUS_OK;
    for (int k = 0; k < r->tensors && s == STATUS_OK; k++) {
        int i = r->first + r->order[k];
        s = read_tensor(r, weights_at(r->c->from, r->c->source[i]), r->c->tensors[i].type);
    }
    WORKER_HELD(&r->worker);
    r->read = s;
    r->message = s == STATUS_OK ? NULL : must_strdup(status_message());
    worker_tell(&r->worker);
}

static status write_tensor(ring *r, safetensors_writer *w, uint32_t *crc, int64_t bytes)
{
    copy *c = r->c;
    *crc = 0;
    for (int64_t done = 0; done < bytes;) {
        /* The next full buffer; -1 if reading failed. */
        worker_lock(&r->worker);
        while (r->filled == r->emptied && r->read == STATUS_OK)
            worker_wait(&r->worker);
        int slot = r->filled > r->emptied ? (int)(r->emptied % CHUNKS) : -1;
        worker_unlock(&r->worker);
        if (slot < 0)
            return status_fail(r->read, "%s", r->message);
        if (c->manifest)
            *crc = crc32c(*crc, r->buffer[slot], r->bytes[slot]);
        TRY(safetensors_writer_data(w, r->buffer[slot], r->bytes[slot]));
        done += r->bytes[slot];
        c->done += r->bytes[slot];
        advance_counter(r, &r->emptied);
        if (c->options->progress)
            TRY(c->options->progress(c->options->context, c->done, c->total));
    }
    return STATUS_OK;
}

/* ---- one file ---- */

/* Notes the location of a written tensor for the index or the manifest. */
static status note_at(copy *c, const safetensors_tensor *t, const char *file, int shard, int64_t offset, uint32_t crc)
{
    json_object_set_new(c->map, t->name, json_string(file));
    if (!c->manifest)
        return STATUS_OK;
    char section[] = "model";
    manifest_tensor of = {.section = section, .name = (char *)(uintptr_t)t->name, .type = t->type, .dims = t->dims};
    manifest_piece piece = {.file = shard, .offset = offset, .crc32c = crc, .bytes = bytes_of(t)};
    for (int d = 0; d < t->dims; d++)
        of.global[d] = piece.part.size[d] = t->shape[d];
    return manifest_add_piece(c->manifest, &of, &piece);
}

static status write_tensors(copy *c, ring *r, safetensors_writer *w, const char *file, int shard)
{
    for (int k = 0; k < r->tensors; k++) {
        int i = r->order[k];
        const safetensors_tensor *t = &c->tensors[r->first + i];
        uint32_t crc;
        TRY(write_tensor(r, w, &crc, bytes_of(t)));
        TRY(note_at(c, t, file, shard, safetensors_writer_offset(w, i), crc));
    }
    return STATUS_OK;
}

static status copy_shard(copy *c, safetensors_writer *w, const char *file, int shard)
{
    ring r = {.c = c,
              .order = safetensors_writer_order(w),
              .first = c->first[shard],
              .tensors = c->first[shard + 1] - c->first[shard]};
    worker_init(&r.worker);
    for (int i = 0; i < CHUNKS; i++)
        r.buffer[i] = must_alloc(CHUNK_BYTES);
    MUST(worker_start(&r.worker, read_all, &r, "reads weights") == STATUS_OK, "%s", status_message());
    status s = write_tensors(c, &r, w, file, shard);
    worker_close(&r.worker);
    for (int i = 0; i < CHUNKS; i++)
        free(r.buffer[i]);
    free(r.message);
    return s;
}

static status write_shard(copy *c, int shard)
{
    AUTO_FREE char *name = c->options->format == WEIGHTS_PHALANX ? must_format("model-%05d.safetensors", shard)
                           : c->shards == 1                      ? must_strdup(SHARDED_FILE)
                                            : must_format("model-%05d-of-%05d.safetensors", shard + 1, c->shards);
    AUTO_FREE char *path = must_format("%s/%s", c->folder, name);
    json_auto_t *metadata = json_pack("{s:s}", "format", "pt"); /* Hugging Face's loaders require it */
    AUTO(safetensors_writer) *w = NULL;
    TRY(safetensors_writer_open(&w, path, c->tensors + c->first[shard], c->first[shard + 1] - c->first[shard],
                                metadata));
    TRY(copy_shard(c, w, name, shard));
    manifest_file file = {.has_crc32c = true};
    safetensors_writer_sum(w, &file.bytes, &file.crc32c);
    TRY(safetensors_writer_close(TAKE(w)));
    if (c->manifest) {
        file.name = TAKE(name);
        manifest_add_file(c->manifest, &file);
    }
    return STATUS_OK;
}

/* ---- files stored with the weights ---- */

static status put_text(const copy *c, const char *name, const char *text)
{
    AUTO_FREE char *path = must_format("%s/%s", c->folder, name);
    return atomic_replace(path, text, (int64_t)strlen(text));
}

/* Returns the special tokens that came with the weights, or else the tokenizer's. */
static json_t *special_tokens(const weights *w)
{
    json_t *tokens = json_deep_copy(weights_tokens(w));
    AUTO(tokenizer) *t = NULL;
    if (json_object_size(tokens) || weights_is_huggingface(w) ||
        weights_tokenizer(&t, w, NULL, TOKENIZER_BEGIN_UNKNOWN) != STATUS_OK)
        return tokens;
    const int32_t id[] = {tokenizer_ids_of(t)->bos, tokenizer_ids_of(t)->eos, tokenizer_ids_of(t)->pad};
    for (int i = 0; huggingface_token_keys[i]; i++)
        if (id[i] >= 0 && id[i] < weights_shape(w)->vocab_size)
            json_object_set_new(tokens, huggingface_token_keys[i], json_integer(id[i]));
    return tokens;
}

/* Writes config.json, and the index of several files. */
static status write_huggingface(const copy *c)
{
    AUTO_FREE char *text = NULL, *body = NULL, *lines = NULL;
    json_auto_t *tokens = special_tokens(c->from), *index = NULL;
    TRY(huggingface_text(&text, weights_shape(c->from), c->tensors[0].type, tokens));
    TRY(put_text(c, "config.json", text));
    if (c->shards == 1)
        return STATUS_OK;
    index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)c->total, "weight_map", c->map);
    body = json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS);
    lines = must_format("%s\n", body);
    return put_text(c, SHARDED_INDEX, lines);
}

/* Makes a configuration of this shape, all other keys at their defaults. */
static status default_config(char **out, const model_shape *shape)
{
    char from[] = "model.from=.", *override[] = {from};
    RELEASED_BY(config_free) config c = {0};
    TRY(config_load(&c, NULL, 1, override));
    config_take_shape(&c, shape);
    free(c.model.from);
    c.model.from = NULL;
    TRY(config_check(&c));
    *out = config_text(&c);
    return STATUS_OK;
}

/* Adds a companion file to the manifest, since it may be damaged like the weights. */
static status note_companion(const copy *c, const char *name)
{
    RELEASED_BY(mapping_close) mapping file = {0};
    AUTO_FREE char *path = must_format("%s/%s", c->folder, name);
    TRY(mapping_open(&file, path));
    manifest_file entry = {
        .name = must_strdup(name), .bytes = file.bytes, .crc32c = crc32c(0, file.data, file.bytes), .has_crc32c = true};
    manifest_add_file(c->manifest, &entry);
    return STATUS_OK;
}

static int is_companion(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');
    return entry->d_name[0] != '.' && !(end && !strcmp(end, ".safetensors"));
}

static status note_companions(const copy *c)
{
    struct dirent **entries;
    int count = scandir(c->folder, &entries, is_companion, alphasort);
    status s = count < 0 ? status_fail(STATUS_FAILED, "cannot list %s: %s", c->folder, strerror(errno)) : STATUS_OK;
    for (int i = 0; i < count; i++) {
        if (s == STATUS_OK)
            s = note_companion(c, entries[i]->d_name);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return s;
}

static status write_manifest(const copy *c)
{
    AUTO_FREE char *text = NULL;
    TRY(note_companions(c));
    if (weights_config(c->from))
        text = must_strdup(weights_config(c->from));
    else
        TRY(default_config(&text, weights_shape(c->from)));
    c->manifest->meta =
        json_pack("{s:I, s:s, s:O}", "step", (json_int_t)0, "config", text, "tokens", weights_tokens(c->from));
    MUST(c->manifest->meta, "out of host memory");
    if (weights_begin(c->from))
        json_object_set_new(c->manifest->meta, "document_begin",
                            json_string(tokenizer_begin_words[weights_begin(c->from)]));
    AUTO_FREE char *path = must_format("%s/manifest.json", c->folder);
    TRY(manifest_check(c->manifest, path));
    return manifest_write(c->manifest, path);
}

static status copy_companion(bool *copied, const copy *c, const char *name)
{
    AUTO_FREE char *from = must_format("%s/%s", weights_folder(c->from), name),
                   *to = must_format("%s/%s", c->folder, name);
    RELEASED_BY(mapping_close) mapping file = {0};
    *copied = atomic_exists(from);
    if (!*copied)
        return STATUS_OK;
    TRY(mapping_open(&file, from));
    return atomic_replace(to, file.data, file.bytes);
}

static status copy_companions(const copy *c)
{
    bool tokenizer_copied = false, copied;
    for (int i = 0; i < COMPANIONS; i++) {
        TRY(copy_companion(&copied, c, companions[i]));
        tokenizer_copied = tokenizer_copied || (copied && i < 3);
    }
    AUTO(tokenizer) *t = NULL;
    if (weights_tokenizer(&t, c->from, NULL, TOKENIZER_BEGIN_UNKNOWN) != STATUS_OK)
        /* Weights without a tokenizer, or with an unknown one, are still a complete model. */
        return STATUS_OK;
    if (!tokenizer_copied && !weights_is_huggingface(c->from))
        TRY(tokenizer_files_save(t, c->folder));
    if (c->manifest)
        return STATUS_OK;
    json_auto_t *tokens = special_tokens(c->from);
    return tokenizer_export(t, c->folder, weights_shape(c->from), tokens);
}

/* ---- the whole folder ---- */

/* Returns how a tensor is stored: with a dimension of experts if Hugging Face's files have one. */
static safetensors_tensor stored_as(const copy *c, int i)
{
    const names_tensor *n = weights_at(c->from, i);
    safetensors_tensor t = {.name = n->name, .dims = n->dims, .shape = {n->shape[0], n->shape[1]}};
    if (!c->manifest)
        t.dims = names_file_shape(t.shape, n);
    bool keep = c->options->type == WEIGHTS_KEEP || parts_row_of(n->slot)->divided == PARTS_COUNTED;
    t.type = keep ? weights_type(c->from, i) : (dtype)c->options->type;
    return t;
}

/* Lists the model's tensors, and in a Hugging Face folder the copies that its MTP module has. */
static void list_tensors(copy *c)
{
    const model_shape *s = weights_shape(c->from);
    const int own = weights_count(c->from);
    char name[NAMES_BYTES];
    parts_slot slot;
    c->tensors = must_calloc((unsigned long)own + MOST_COPIES, sizeof *c->tensors);
    c->source = must_calloc((unsigned long)own + MOST_COPIES, sizeof *c->source);
    for (c->count = 0; c->count < own; c->count++) {
        c->source[c->count] = c->count;
        c->tensors[c->count] = stored_as(c, c->count);
    }
    for (int i = 0; !c->manifest && names_copy_of(name, &slot, s, i); i++, c->count++) {
        MUST(i < MOST_COPIES, "%s: too many copies", name);
        for (c->source[c->count] = 0; weights_at(c->from, c->source[c->count])->slot != slot;)
            c->source[c->count]++;
        c->tensors[c->count] = stored_as(c, c->source[c->count]);
        c->tensors[c->count].name = c->copied[i] = must_strdup(name);
    }
}

static void plan_shards(copy *c)
{
    int64_t limit = c->options->shard_bytes > 0 ? c->options->shard_bytes : SHARD_BYTES, bytes = 0;
    list_tensors(c);
    c->first = must_calloc((unsigned long)c->count + 1, sizeof *c->first);
    for (int i = 0; i < c->count; i++) {
        const safetensors_tensor *t = &c->tensors[i];
        int64_t size = bytes_of(t);
        if (bytes > 0 && bytes + size > limit) {
            c->first[++c->shards] = i;
            bytes = 0;
        }
        bytes += size;
        c->total += size;
    }
    c->first[++c->shards] = c->count;
}

static bool is_model(const char *folder)
{
    AUTO_FREE char *config_json = must_format("%s/config.json", folder),
                   *manifest_json = must_format("%s/manifest.json", folder);
    return atomic_exists(config_json) || atomic_exists(manifest_json);
}

static status check_target(const char *to, bool replace)
{
    RELEASED_BY(reading_names_free) reading_names entries = {0};
    bool there;
    TRY(atomic_look(&there, to));
    if (!there || (reading_folder(&entries, to) == STATUS_OK && entries.there && entries.count == 0))
        return STATUS_OK;
    if (replace)
        return is_model(to) ? STATUS_OK
                            : status_fail(STATUS_FAILED, "%s is there and holds no model: it is not replaced", to);
    return status_fail(STATUS_FAILED, "%s is there already: name another folder, or replace it with --force", to);
}

/* Renames the new folder to its name; an old folder of that name is removed after that. */
static status take_name(const char *from, const char *to, bool replace)
{
    if (!replace || !is_model(to))
        return atomic_rename(from, to);
    AUTO_FREE char *old = must_format("%s.old", to);
    TRY(atomic_remove(old));
    TRY(atomic_rename(to, old));
    status s = atomic_rename(from, to);
    if (s != STATUS_OK)
        (void)rename(old, to);
    return s == STATUS_OK ? atomic_remove(old) : s;
}

/* Locks the temporary folder against processes that make the same one, as several ranks of mpirun would. */
static status hold_folder(copy *c)
{
    int before = c->held;
    c->held = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (before >= 0)
        close(before);
    if (c->held >= 0 && flock(c->held, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return status_fail(STATUS_FAILED,
                           "%s is being written by another process: such a copy is made by one process, without mpirun",
                           c->folder);
    return STATUS_OK;
}

static status write_folder(copy *c)
{
    for (int i = 0; i < c->shards; i++)
        TRY(write_shard(c, i));
    TRY(copy_companions(c));
    TRY(c->manifest ? write_manifest(c) : write_huggingface(c));
    if (c->options->card)
        TRY(put_text(c, "README.md", c->options->card));
    return atomic_sync_folder(c->folder);
}

static void free_copy(copy *c)
{
    if (c->held >= 0)
        close(c->held);
    manifest_free(c->manifest);
    json_decref(c->map);
    free(c->tensors);
    free(c->source);
    for (int i = 0; i < MOST_COPIES; i++)
        free(c->copied[i]);
    free(c->first);
    free(c->folder);
}

status weights_copy(weights *from, const char *to, const weights_copy_options *options)
{
    size_t length = strlen(to);
    while (length > 1 && to[length - 1] == '/')
        length--;
    AUTO_FREE char *target = must_format("%.*s", (int)length, to), *unused = NULL, *message = NULL;
    RELEASED_BY(free_copy)
    copy c = {
        .from = from, .options = options, .folder = must_format("%s.tmp", target), .map = json_object(), .held = -1};
    if (options->format == WEIGHTS_PHALANX)
        c.manifest = manifest_make(1);
    else if (weights_leave_biases(from))
        log_warn("%s: a folder of a %s model has no bias of its experts' choice (model.router_bias_rate): it is left "
                 "out, and others may be chosen",
                 to, shape_traits_of(weights_shape(from)->architecture)->name);
    plan_shards(&c);
    TRY(check_target(target, options->replace));
    if (!c.manifest) /* rejects a model that config.json cannot describe before the long work */
        TRY(huggingface_text(&unused, weights_shape(from), c.tensors[0].type, NULL));
    TRY(hold_folder(&c)); /* a leftover of an interrupted copy */
    TRY(atomic_remove(c.folder));
    TRY(atomic_make_folders(c.folder));
    TRY(hold_folder(&c));
    status s = write_folder(&c);
    if (s == STATUS_OK && options->progress)
        s = options->progress(options->context, c.done, c.total);
    if (s == STATUS_OK)
        s = take_name(c.folder, target, options->replace);
    if (s == STATUS_OK || s == STATUS_LOST)
        return s;
    message = must_strdup(status_message());
    (void)atomic_remove(c.folder);
    return status_fail(s, "%s", message);
}

/* ---- upcycling of a dense model ---- */

struct upcycle {
    weights *from;
    model_shape shape;
    names_tensor *names; /* [count] of the model with experts, by name */
    int count;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const names_tensor *)a)->name, ((const names_tensor *)b)->name);
}

status upcycle_open(upcycle **out, weights *from, const model_shape *shape)
{
    TRY(parts_check_dense(shape, weights_shape(from), weights_folder(from)));
    upcycle *u = must_calloc(1, sizeof *u);
    u->from = from;
    u->shape = *shape;
    u->names = names_list(&u->count, shape);
    qsort(u->names, (size_t)u->count, sizeof *u->names, compare_names);
    *out = u;
    return STATUS_OK;
}

void upcycle_close(upcycle *u)
{
    if (!u)
        return;
    names_free(u->names, u->count);
    free(u);
}

/* Returns the slot of the weight that has row `at` of a tensor, or of an expert's part of it; *span: its rows. */
static parts_slot slot_at(names_span *span, const upcycle *u, const names_tensor *t, int64_t at)
{
    const layer_shape layer = shape_layer(&u->shape, t->layer);
    for (parts_slot slot = t->slot; slot < SLOT_COUNT; slot++) {
        *span = names_span_of(slot, &u->shape, &layer);
        if (at >= span->first && at < span->first + span->unit)
            return slot;
    }
    MUST(false, "%s has no row %" PRId64, t->name, at);
    return SLOT_COUNT;
}

/* Reads the rows of one weight from part->start[0] on, at most all; *rows: their number. */
static status read_rows(int64_t *rows, const upcycle *u, const names_tensor *t, const box *part, const box_memory *to)
{
    const model_shape *dense = weights_shape(u->from);
    const layer_shape its = shape_layer(dense, t->layer);
    const int64_t of_expert = t->stacked ? t->shape[0] / t->stacked : t->shape[0], at = part->start[0] % of_expert;
    names_span span;
    const parts_slot slot = slot_at(&span, u, t, at), from = parts_dense_slot(slot);
    const int64_t left = span.first + span.unit - at, asked = part->size[0];
    *rows = left < asked ? left : asked;
    if (slot == SLOT_ROUTER)
        return STATUS_OK;
    names_span source = names_span_of(from, dense, &its);
    MUST(span.unit == source.unit, "%s has rows of another number", t->name);
    char name[NAMES_BYTES];
    rectangle of = {.name = names_write(name, dense->architecture, from, t->layer, -1),
                    .dims = t->dims,
                    .global = {source.rows, t->shape[1]},
                    .part = *part};
    of.part.start[0] = source.first + at - span.first;
    of.part.size[0] = *rows;
    return weights_read(u->from, &of, to);
}

status upcycle_read(void *context, const rectangle *of, const box_memory *to)
{
    const upcycle *u = context;
    const names_tensor key = {.name = (char *)(uintptr_t)of->name};
    const names_tensor *t = bsearch(&key, u->names, (size_t)u->count, sizeof key, compare_names);
    MUST(t, "%s is no tensor of the model", of->name);
    box part = of->part;
    box_memory at = *to;
    const int64_t end = of->part.start[0] + of->part.size[0];
    while (part.start[0] < end) {
        int64_t rows;
        part.size[0] = end - part.start[0];
        TRY(read_rows(&rows, u, t, &part, &at));
        part.start[0] += rows;
        at.data = (char *)at.data + rows * at.stride[0] * dtype_bytes(at.type);
    }
    return STATUS_OK;
}
