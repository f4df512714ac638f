/* The manifest as text, in parts that need no memory of their own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/manifest.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Names have no control characters: two characters are to be escaped. */
static status put_string(direct *out, const char *text)
{
    TRY(direct_print(out, "\""));
    for (size_t plain; *text; text += plain + (text[plain] != 0)) {
        plain = strcspn(text, "\"\\");
        TRY(direct_write(out, text, (int64_t)plain, NULL));
        if (text[plain])
            TRY(direct_print(out, "\\%c", text[plain]));
    }
    return direct_print(out, "\"");
}

static status put_numbers(direct *out, const int64_t *values, int count)
{
    TRY(direct_print(out, "["));
    for (int i = 0; i < count; i++)
        TRY(direct_print(out, "%s%lld", i ? "," : "", (long long)values[i]));
    return direct_print(out, "]");
}

status manifest_text_head(direct *out, int ranks, const char *run, json_t *meta)
{
    TRY(direct_print(out, "{\"format\":\"" MANIFEST_FORMAT "\",\"version\":%d,\"ranks\":%d,", MANIFEST_VERSION, ranks));
    TRY(*run ? direct_print(out, "\"run\":\"%s\",\n", run) : direct_print(out, "\n"));
    if (meta) {
        AUTO_FREE char *text = json_dumps(meta, JSON_COMPACT | JSON_REAL_PRECISION(17));
        MUST(text, "a text that is not UTF-8, or out of host memory");
        status s = direct_print(out, "\"meta\":");
        if (s == STATUS_OK)
            s = direct_write(out, text, (int64_t)strlen(text), NULL);
        TRY(s);
        TRY(direct_print(out, ",\n"));
    }
    return direct_print(out, "\"files\":[");
}

status manifest_text_file(direct *out, const manifest_file *file, bool first)
{
    TRY(direct_print(out, first ? "\n{\"name\":" : ",\n{\"name\":"));
    TRY(put_string(out, file->name));
    TRY(direct_print(out, ",\"bytes\":%lld", (long long)file->bytes));
    return file->has_crc32c ? direct_print(out, ",\"crc32c\":\"%08x\"}", file->crc32c) : direct_print(out, "}");
}

status manifest_text_tensor(direct *out, const manifest_tensor *t, bool first)
{
    TRY(direct_print(out, first ? "\n],\n\"tensors\":[\n" : ",\n"));
    TRY(direct_print(out, "{\"section\":\"%s\",\"name\":", t->section));
    TRY(put_string(out, t->name));
    TRY(direct_print(out, ",\"dtype\":\"%s\",\"shape\":", dtype_name(t->type)));
    TRY(put_numbers(out, t->global, t->dims));
    TRY(direct_print(out, ",\"pieces\":["));
    for (int k = 0; k < t->count; k++) {
        const manifest_piece *p = &t->pieces[k];
        TRY(direct_print(out, "%s\n  {\"start\":", k ? "," : ""));
        TRY(put_numbers(out, p->part.start, t->dims));
        TRY(direct_print(out, ",\"size\":"));
        TRY(put_numbers(out, p->part.size, t->dims));
        TRY(direct_print(out, ",\"file\":%d,\"offset\":%lld,\"bytes\":%lld,\"crc32c\":\"%08x\"}", p->file,
                         (long long)p->offset, (long long)p->bytes, p->crc32c));
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
