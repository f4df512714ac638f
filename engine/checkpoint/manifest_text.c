/* The manifest as text, in parts that need no memory of their own. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "engine/checkpoint/manifest.h"
#include "memory/log.h"

__attribute__((format(printf, 2, 3))) static status put(direct *out, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    MUST(length >= 0 && length < (int)sizeof text, "%d bytes at once", length);
    return direct_write(out, text, length, NULL);
}

/* Names have no control characters: two characters are to be escaped. */
static status put_string(direct *out, const char *text)
{
    TRY(put(out, "\""));
    for (size_t plain; *text; text += plain + (text[plain] != 0)) {
        plain = strcspn(text, "\"\\");
        TRY(direct_write(out, text, (int64_t)plain, NULL));
        if (text[plain])
            TRY(put(out, "\\%c", text[plain]));
    }
    return put(out, "\"");
}

static status put_numbers(direct *out, const int64_t *values, int count)
{
    TRY(put(out, "["));
    for (int i = 0; i < count; i++)
        TRY(put(out, "%s%lld", i ? "," : "", (long long)values[i]));
    return put(out, "]");
}

status manifest_text_head(direct *out, int ranks, const char *run, json_t *meta)
{
    TRY(put(out, "{\"format\":\"" MANIFEST_FORMAT "\",\"version\":%d,\"ranks\":%d,", MANIFEST_VERSION, ranks));
    TRY(*run ? put(out, "\"run\":\"%s\",\n", run) : put(out, "\n"));
    if (meta) {
        char *text = json_dumps(meta, JSON_COMPACT | JSON_REAL_PRECISION(17));
        MUST(text, "a text that is not UTF-8, or out of host memory");
        status s = put(out, "\"meta\":");
        if (s == STATUS_OK)
            s = direct_write(out, text, (int64_t)strlen(text), NULL);
        free(text);
        TRY(s);
        TRY(put(out, ",\n"));
    }
    return put(out, "\"files\":[");
}

status manifest_text_file(direct *out, const manifest_file *file, bool first)
{
    TRY(put(out, first ? "\n{\"name\":" : ",\n{\"name\":"));
    TRY(put_string(out, file->name));
    TRY(put(out, ",\"bytes\":%lld", (long long)file->bytes));
    return file->has_crc32c ? put(out, ",\"crc32c\":\"%08x\"}", file->crc32c) : put(out, "}");
}

status manifest_text_tensor(direct *out, const manifest_tensor *t, bool first)
{
    TRY(put(out, first ? "\n],\n\"tensors\":[\n" : ",\n"));
    TRY(put(out, "{\"section\":\"%s\",\"name\":", t->section));
    TRY(put_string(out, t->name));
    TRY(put(out, ",\"dtype\":\"%s\",\"shape\":", dtype_name(t->type)));
    TRY(put_numbers(out, t->global, t->dims));
    TRY(put(out, ",\"pieces\":["));
    for (int k = 0; k < t->count; k++) {
        const manifest_piece *p = &t->pieces[k];
        TRY(put(out, "%s\n  {\"start\":", k ? "," : ""));
        TRY(put_numbers(out, p->part.start, t->dims));
        TRY(put(out, ",\"size\":"));
        TRY(put_numbers(out, p->part.size, t->dims));
        TRY(put(out, ",\"file\":%d,\"offset\":%lld,\"bytes\":%lld,\"crc32c\":\"%08x\"}", p->file, (long long)p->offset,
                (long long)p->bytes, p->crc32c));
    }
    return put(out, "]}");
}

status manifest_text_end(direct *out)
{
    TRY(put(out, "\n],\n"));
    return put(out, MANIFEST_TAIL, out->crc32c);
}

static status put_all(direct *out, const manifest *m)
{
    TRY(manifest_text_head(out, m->ranks, m->run, m->meta));
    for (int i = 0; i < m->file_count; i++)
        TRY(manifest_text_file(out, &m->files[i], i == 0));
    if (m->tensor_count == 0)
        TRY(put(out, "\n],\n\"tensors\":["));
    for (int i = 0; i < m->tensor_count; i++)
        TRY(manifest_text_tensor(out, &m->tensors[i], i == 0));
    return manifest_text_end(out);
}

status manifest_write(const manifest *m, const char *path)
{
    enum { BUFFER_BYTES = 256 << 10 };
    direct out;
    char *temporary = must_format("%s.tmp", path), *buffer = aligned_alloc(DIRECT_ALIGNMENT, BUFFER_BYTES);
    MUST(buffer, "out of host memory");
    status s = direct_open(&out, temporary, buffer, BUFFER_BYTES);
    if (s == STATUS_OK) {
        s = put_all(&out, m);
        s = direct_close(&out, s);
        if (s == STATUS_OK)
            s = atomic_rename(temporary, path);
        if (s != STATUS_OK) {
            char *message = must_strdup(status_message());
            (void)atomic_remove(temporary);
            (void)status_fail(s, "%s", message);
            free(message);
        }
    }
    free(buffer);
    free(temporary);
    return s;
}
