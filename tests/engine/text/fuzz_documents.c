/* libFuzzer on what a corpus is made of: plain text, JSON-lines, and both packed with gzip, zstd or xz. The first byte
 * chooses the format and which part is read. A file is refused in one line, or its documents lie within it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/documents.h"
#include "memory/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 1 << 20 }; /* of what was packed */

static void read_all(documents *d)
{
    buffer bytes = {0}, scratch = {0};
    for (bool more = true; more && bytes.length < MOST_BYTES;) {
        documents_raw raw;
        const char *text;
        int64_t length;
        if (documents_next(d, &bytes, &raw, &more) != STATUS_OK) {
            MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
            break;
        }
        if (!more)
            break;
        MUST(raw.offset >= 0 && raw.length >= 0 && raw.offset + raw.length <= bytes.length, "outside of its file");
        if (documents_text(d, &text, &length, &scratch, bytes.bytes + raw.offset, &raw) == STATUS_OK)
            MUST(length >= 0 && (length == 0 || memchr(text, text[length - 1], (size_t)length)), "no text");
        else
            MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
    }
    buffer_free(&scratch);
    buffer_free(&bytes);
}

static char path[64];

static void remove_file(void)
{
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (!*path) {
        snprintf(path, sizeof path, "/dev/shm/phalanx-fuzz-XXXXXX");
        int made = mkstemp(path);
        MUST(made >= 0, "cannot make a file in /dev/shm");
        close(made);
        atexit(remove_file);
    }
    FILE *f = fopen(path, "wb");
    MUST(f && fwrite(data + 1, 1, size - 1, f) == size - 1 && fclose(f) == 0, "cannot write %s", path);
    documents *d;
    documents_settings settings = {.format = (documents_format)(data[0] % 3),
                                   .separator = data[0] & 8 ? "\n\n" : NULL,
                                   .separator_length = data[0] & 8 ? 2 : 0,
                                   .part = data[0] >> 4 & 3,
                                   .parts = data[0] & 64 ? 4 : 0};
    char *input = path;
    if (documents_open(&d, &settings, &input, 1) != STATUS_OK) {
        MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
        return 0;
    }
    read_all(d);
    documents_close(d);
    return 0;
}
