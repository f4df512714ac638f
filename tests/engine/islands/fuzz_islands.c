/* libFuzzer: what other islands send, and what etcd may hold, is refused or has every field in range; an encoded change
 * of any bytes decodes within its arrays. The first byte says which. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/meet/etcd.h"
#include "engine/islands/meet/roster.h"
#include "engine/islands/wire/wire.h"
#include "kernels/compress.h"
#include "memory/log.h"
#include "memory/scope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_message(const uint8_t *data, size_t size)
{
    enum { FINGERPRINT = 0 };
    wire_message m;
    uint8_t again[WIRE_HEADER];
    if (wire_read(&m, data, (int64_t)size, FINGERPRINT) != STATUS_OK)
        return;
    MUST(m.kind < WIRE_KINDS && m.unit >= 0 && m.first >= 0 && m.bytes >= 0 && m.bytes <= WIRE_SLICE, "out of range");
    wire_write(again, &m, FINGERPRINT);
    MUST(memcmp(again, data, sizeof again) == 0, "a message was read as another");
}

static void read_roster(const uint8_t *data, size_t size)
{
    roster r;
    bool all;
    AUTO_FREE char *text = must_calloc(size + 1, 1);
    memcpy(text, data, size);
    status s = roster_read(&r, text, NULL);
    if (s == STATUS_OK) {
        (void)roster_takes(&all, &r, 1, 1, 0);
        (void)roster_here(&r);
        for (int i = 0; i < r.parts; i++)
            MUST(r.part[i].slot >= 0 && r.part[i].slot < ROSTER_SLOTS, "out of range");
        for (int i = 0; i < ROSTER_SLOTS; i++)
            for (int k = 0; k < r.member[i].ranks && r.member[i].here; k++)
                (void)roster_endpoint(&r, i, k);
    }
    roster_free(&r);
}

/* An answer of etcd to a request for keys, all the way to the roster, and what the log would say of it. */
static void read_answer(const uint8_t *data, size_t size)
{
    static const char prefix[] = "phalanx/r/live/";
    json_t *answer = json_loadb((const char *)data, size, 0, NULL), *pair;
    json_t *raw = etcd_pairs(answer, prefix), *pairs = roster_pairs(raw, sizeof prefix - 1);
    size_t i;
    roster r;
    json_array_foreach(raw, i, pair)
        MUST(strncmp(json_string_value(json_object_get(pair, "key")), prefix, sizeof prefix - 1) == 0,
             "a key that was not asked for");
    roster_read_pairs(&r, pairs, NULL);
    for (int s = 0; s < ROSTER_MEMBERS; s++)
        for (const char *c = r.member[s].name; *c; c++)
            MUST((unsigned char)*c >= 0x20, "a name with a control character");
    AUTO_FREE char *again = json_dumps(pairs, JSON_COMPACT), *text = must_format("{\"pairs\": %s}", again);
    status s = roster_read(&r, text, NULL); /* as the other ranks read it */
    MUST(s == STATUS_OK, "%s", status_message());
    roster_free(&r);
    json_decref(pairs);
    json_decref(raw);
    json_decref(answer);
}

static void decode(const uint8_t *data, size_t size, compress_kind kind)
{
    const compress_method m = {kind, 0.02};
    int64_t n = (int64_t)size;
    while (n > 0 && compress_bytes(&m, n) > (int64_t)size)
        n--;
    AUTO_FREE float *values = must_alloc((unsigned long)n * sizeof *values + 1);
    AUTO_FREE uint8_t *copy = must_alloc(size + 1);
    memcpy(copy, data, size);
    if (n > 0)
        (void)compress_decode(values, copy, &m, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] % 8 == 7)
        read_answer(data + 1, size - 1);
    else if (data[0] % 4 == 0)
        read_message(data + 1, size - 1);
    else if (data[0] % 4 == 1)
        read_roster(data + 1, size - 1);
    else
        decode(data + 1, size - 1, (compress_kind)(data[0] / 4 % COMPRESS_KINDS));
    return 0;
}
