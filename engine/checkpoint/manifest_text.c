/* The manifest as text, in parts that need no memory of their own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/manifest.h"
#include "memory/log.h"
#include "memory/scope.h"

/* One value, which is taken. */
static status put(direct *out, json_t *value)
{
    AUTO_FREE char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_decref(value);
    MUST(text, "a text that is not UTF-8, or out of host memory");
    return direct_write(out, text, (int64_t)strlen(text), NULL);
}

static json_t *numbers(const int64_t *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

status manifest_text_head(direct *out, int ranks, const char *run, json_t *meta)
{
    TRY(direct_print(out, "{\"format\":\"" MANIFEST_FORMAT "\",\"version\":%d,\"ranks\":%d,", MANIFEST_VERSION, ranks));
    TRY(*run ? direct_print(out, "\"run\":\"%s\",\n", run) : direct_print(out, "\n"));
    if (meta) {
        TRY(direct_print(out, "\"meta\":"));
        TRY(put(out, json_incref(meta)));
        TRY(direct_print(out, ",\n"));
    }
    return direct_print(out, "\"files\":[");
}

status manifest_text_file(direct *out, const manifest_file *file, bool first)
{
    json_t *entry = json_pack("{s:s, s:I}", "name", file->name, "bytes", (json_int_t)file->bytes);
    if (file->has_crc32c)
        json_object_set_new(entry, "crc32c", json_sprintf("%08x", file->crc32c));
    TRY(direct_print(out, first ? "\n" : ",\n"));
    return put(out, entry);
}

status manifest_text_tensor(direct *out, const manifest_tensor *t, bool first)
{
    TRY(direct_print(out, first ? "\n],\n\"tensors\":[\n" : ",\n"));
    TRY(direct_print(out, "{\"section\":\"%s\",\"name\":", t->section));
    TRY(put(out, json_string(t->name)));
    TRY(direct_print(out, ",\"dtype\":\"%s\",\"shape\":", dtype_name(t->type)));
    TRY(put(out, numbers(t->global, t->dims)));
    TRY(direct_print(out, ",\"pieces\":["));
    for (int k = 0; k < t->count; k++) {
        const manifest_piece *p = &t->pieces[k];
        TRY(direct_print(out, "%s\n  ", k ? "," : ""));
        TRY(put(out, json_pack("{s:o, s:o, s:i, s:I, s:I, s:o}", "start", numbers(p->part.start, t->dims), "size",
                               numbers(p->part.size, t->dims), "file", p->file, "offset", (json_int_t)p->offset,
                               "bytes", (json_int_t)p->bytes, "crc32c", json_sprintf("%08x", p->crc32c))));
    }
    return direct_print(out, "]}");
}

status manifest_text_end(direct *out)
{
    TRY(direct_print(out, "\n],\n"));
    return direct_print(out, MANIFEST_TAIL, out->crc32c);
}

static status put_all(direct *out, const manifest *m)
{
    TRY(manifest_text_head(out, m->ranks, m->run, m->meta));
    for (int i = 0; i < m->file_count; i++)
        TRY(manifest_text_file(out, &m->files[i], i == 0));
    if (m->tensor_count == 0)
        TRY(direct_print(out, "\n],\n\"tensors\":["));
    for (int i = 0; i < m->tensor_count; i++)
        TRY(manifest_text_tensor(out, &m->tensors[i], i == 0));
    return manifest_text_end(out);
}

status manifest_write(const manifest *m, const char *path)
{
    enum { BUFFER_BYTES = 256 << 10 };
    direct out;
    AUTO_FREE char *temporary = must_format("%s.tmp", path), *buffer = aligned_alloc(DIRECT_ALIGNMENT, BUFFER_BYTES);
    MUST(buffer, "out of host memory");
    status s = direct_open(&out, temporary, buffer, BUFFER_BYTES);
    if (s == STATUS_OK) {
        s = put_all(&out, m);
        s = direct_close(&out, s);
        if (s == STATUS_OK)
            s = atomic_rename(temporary, path);
        if (s != STATUS_OK) {
            AUTO_FREE char *message = must_strdup(status_message());
            (void)atomic_remove(temporary);
            (void)status_fail(s, "%s", message);
        }
    }
    return s;
}
