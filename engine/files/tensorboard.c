#include "engine/files/tensorboard.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/lines.h"
#include "engine/system/mapping.h"
#include "engine/system/reading.h"
#include "memory/log.h"

struct tensorboard {
    lines *records;
};

/* ---- protobuf ---- */

typedef struct message {
    uint8_t *data;
    int64_t bytes, capacity;
} message;

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 }; /* wire types */

static void append_bytes(message *m, const void *data, int64_t bytes)
{
    if (m->bytes + bytes > m->capacity) {
        m->capacity = 2 * (m->bytes + bytes);
        m->data = must_realloc(m->data, (unsigned long)m->capacity);
    }
    if (bytes > 0) /* an empty message has no address */
        memcpy(m->data + m->bytes, data, (size_t)bytes);
    m->bytes += bytes;
}

static void put_varint(message *m, uint64_t value)
{
    do {
        uint8_t byte = (uint8_t)(value & 0x7f) | (value > 0x7f ? 0x80 : 0);
        append_bytes(m, &byte, 1);
        value >>= 7;
    } while (value);
}

static void put_key(message *m, int field, int wire)
{
    put_varint(m, (uint64_t)(field << 3 | wire));
}

static void put_bytes(message *m, int field, const void *data, int64_t bytes)
{
    put_key(m, field, LENGTH);
    put_varint(m, (uint64_t)bytes);
    append_bytes(m, data, bytes);
}

static void put_double(message *m, int field, double value)
{
    put_key(m, field, FIXED64);
    append_bytes(m, &value, sizeof value);
}

/* ---- records ---- */

/* Rotates and shifts a checksum, so that a checksum of data that holds a checksum is no fixed point. */
static uint32_t mask_checksum(const void *data, int64_t bytes)
{
    uint32_t crc = crc32c(0, data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Writes a record whole; frees the event. */
static status put_record(tensorboard *t, message *event)
{
    message record = {0};
    uint64_t length = (uint64_t)event->bytes;
    uint32_t crc = mask_checksum(&length, sizeof length);
    append_bytes(&record, &length, sizeof length);
    append_bytes(&record, &crc, sizeof crc);
    append_bytes(&record, event->data, event->bytes);
    crc = mask_checksum(event->data, event->bytes);
    append_bytes(&record, &crc, sizeof crc);
    status s = lines_write(t->records, record.data, record.bytes, false);
    free(record.data);
    free(event->data);
    return s;
}

/* ---- opening ---- */

#define PREFIX "events.out.tfevents."

/* Finds the name of the newest event file, which the caller frees; NULL if there is none. Names begin with the time of
 * creation. */
static status newest_file(char **out, const char *folder)
{
    reading_names all;
    const char *newest = NULL;
    status s = reading_folder(&all, folder);
    for (int i = 0; i < all.count; i++)
        if (!strncmp(all.name[i], PREFIX, strlen(PREFIX)) && (!newest || strcmp(all.name[i], newest) > 0))
            newest = all.name[i];
    *out = newest ? must_strdup(newest) : NULL;
    reading_names_free(&all);
    return s;
}

/* Checks whether a record's length at this offset has its checksum after it. */
static bool is_length(const mapping *file, int64_t at, uint64_t *length)
{
    uint32_t crc;
    if (file->bytes - at < 16)
        return false;
    memcpy(length, file->data + at, sizeof *length);
    memcpy(&crc, file->data + at + 8, sizeof crc);
    return crc == mask_checksum(length, sizeof *length);
}

/* Counts the bytes of whole records at the file's beginning. */
static int64_t whole_records(const mapping *file)
{
    int64_t at = 0;
    for (uint64_t length; is_length(file, at, &length) && length <= (uint64_t)(file->bytes - at - 16);
         at += 16 + (int64_t)length) {
        uint32_t crc;
        memcpy(&crc, file->data + at + 12 + length, sizeof crc);
        if (crc != mask_checksum(file->data + at + 12, (int64_t)length))
            return at;
    }
    return at;
}

/* Resumes the newest file; t->records stays NULL if there is none, and a new one is to be made. */
static status go_on(tensorboard *t, const char *folder, lock *owner)
{
    mapping file;
    AUTO_FREE char *name = NULL;
    TRY(newest_file(&name, folder));
    if (!name)
        return STATUS_OK;
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    TRY(lines_own(path));
    if (mapping_open(&file, path) == STATUS_OK) {
        int64_t whole = whole_records(&file), all = file.bytes;
        uint64_t length;
        bool torn = true; /* unless records that must be kept follow a damaged one */
        for (int64_t at = whole + 1; at < all && torn; at++)
            torn = !is_length(&file, at, &length);
        mapping_close(&file);
        if (whole > 0 && torn && (whole == all || truncate(path, whole) == 0))
            (void)lines_open(&t->records, path, owner);
    }
    return STATUS_OK;
}

static status begin_file(tensorboard *t, const char *folder, double wall_time, lock *owner)
{
    char host[256] = "localhost";
    (void)gethostname(host, sizeof host - 1);
    AUTO_FREE char *path = must_format("%s/" PREFIX "%010lld.%s.%d", folder, (long long)wall_time, host, (int)getpid());
    TRY(lines_open(&t->records, path, owner));
    message event = {0};
    put_double(&event, 1, wall_time);
    put_bytes(&event, 3, "brain.Event:2", 13); /* the version that readers expect first */
    return put_record(t, &event);
}

/* Starts a session at this step: readers drop later steps of a run that was set back. */
static status start_session(tensorboard *t, int64_t first_step, double wall_time)
{
    enum { START = 1 };
    message event = {0}, session = {0};
    put_key(&session, 1, VARINT);
    put_varint(&session, START);
    put_double(&event, 1, wall_time);
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)first_step);
    put_bytes(&event, 7, session.data, session.bytes);
    free(session.data);
    return put_record(t, &event);
}

status tensorboard_open(tensorboard **out, const char *folder, int64_t first_step, double wall_time, lock *owner)
{
    TRY(atomic_make_folders(folder));
    AUTO(tensorboard) *t = must_calloc(1, sizeof *t);
    TRY(go_on(t, folder, owner));
    TRY(t->records ? start_session(t, first_step, wall_time) : begin_file(t, folder, wall_time, owner));
    *out = TAKE(t);
    return STATUS_OK;
}

status tensorboard_write(tensorboard *t, const tensorboard_value *values, int count, int64_t step, double wall_time)
{
    message event = {0}, summary = {0};
    for (int i = 0; i < count; i++) {
        message value = {0};
        put_bytes(&value, 1, values[i].tag, (int64_t)strlen(values[i].tag));
        const float number = (float)values[i].value;
        put_key(&value, 2, FIXED32);
        append_bytes(&value, &number, sizeof number);
        put_bytes(&summary, 1, value.data, value.bytes);
        free(value.data);
    }
    put_double(&event, 1, wall_time);
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.data, summary.bytes);
    free(summary.data);
    return put_record(t, &event);
}

void tensorboard_close(tensorboard *t)
{
    if (!t)
        return;
    lines_close(t->records);
    free(t);
}
