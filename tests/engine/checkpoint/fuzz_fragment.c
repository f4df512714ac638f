/* libFuzzer: whatever two fragments say behind right checksums, they are refused in one line, or merged to a manifest
 * that is read again and whose pieces cover their tensors. The first two bytes are the length of the first. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "engine/checkpoint/fragment.h"
#include "memory/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CAPACITY = 4 << 20 };

/* A fragment of rank `rank` with these lines. */
static char *make(int64_t *bytes, const uint8_t *lines, size_t length, int rank)
{
    char head[64];
    int used = snprintf(head, sizeof head, "fragment 1 aa step-1 %d 2\n", rank);
    char *text = must_alloc((unsigned long)used + length + 16);
    memcpy(text, head, (size_t)used);
    if (length)
        memcpy(text + used, lines, length);
    *bytes = used + (int64_t)length;
    *bytes += snprintf(text + *bytes, 16, "end %08x\n", crc32c(0, text, *bytes));
    return text;
}

/* What was merged, between a head and an end. */
static void check(direct *out)
{
    manifest *m = NULL;
    MUST(manifest_text_end(out) == STATUS_OK, "%s", status_message());
    if (manifest_parse(&m, out->buffer, out->used, "merged") != STATUS_OK || manifest_check(m, "merged") != STATUS_OK)
        MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
    manifest_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char buffer[CAPACITY] __attribute__((aligned(4096)));
    if (size < 2)
        return 0;
    size_t first = (size_t)(data[0] | data[1] << 8), rest = size - 2;
    first = first < rest ? first : rest;
    fragment all[2];
    fragment_pieces pieces = {0};
    char *text[2];
    int64_t bytes[2];
    text[0] = make(&bytes[0], data + 2, first, 0);
    text[1] = make(&bytes[1], data + 2 + first, rest - first, 1);
    for (int i = 0; i < 2; i++)
        MUST(fragment_parse(&all[i], text[i], bytes[i], "fuzz", &(fragment_owner){"aa", "step-1", i, 2}) == STATUS_OK,
             "%s", status_message());
    direct out = {.path = "nowhere", .buffer = buffer, .capacity = CAPACITY, .descriptor = -1};
    MUST(manifest_text_head(&out, 2, "aa", NULL) == STATUS_OK, "%s", status_message());
    if (fragment_merge(&out, all, 2, &pieces, "fuzz") == STATUS_OK)
        check(&out);
    else
        MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
    free(pieces.item);
    free(text[0]);
    free(text[1]);
    return 0;
}
