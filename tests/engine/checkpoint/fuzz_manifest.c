/* libFuzzer: whatever a manifest with a right checksum says, it is refused or its pieces cover their tensors once. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "engine/checkpoint/manifest.h"
#include "memory/log.h"
#include "memory/scope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_FREE char *text = must_alloc(size + 22);
    memcpy(text, data, size);
    snprintf(text + size, 22, "\"crc32c\":\"%08x\"}\n", crc32c(0, data, (int64_t)size));
    manifest *m;
    if (manifest_parse(&m, text, (int64_t)size + 21, "fuzz") != STATUS_OK ||
        (manifest_check(m, "fuzz") != STATUS_OK && (manifest_free(m), true)))
        MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
    else {
        for (int i = 0; i < m->tensor_count; i++) {
            const manifest_tensor *t = &m->tensors[i];
            int64_t volume = 0;
            for (int k = 0; k < t->count; k++) {
                volume += box_volume(t->dims, t->pieces[k].part.size);
                MUST(t->pieces[k].offset + t->pieces[k].bytes <= m->files[t->pieces[k].file].bytes, "outside its file");
            }
            MUST(volume == box_volume(t->dims, t->global), "not covered");
            MUST(manifest_find(m, t->section, t->name) == t, "not found");
        }
        manifest_free(m);
    }
    return 0;
}
