/* Event files: read back by an independent parser of records and protobuf, which must notice damage. */
#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "engine/files/tensorboard.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

typedef struct scalar {
    double wall_time;
    int64_t step;
    char tag[64], version[32];
    bool starts; /* a session */
    float value;
} scalar;

typedef struct reader {
    const uint8_t *at, *end;
    bool wrong;
} reader;

static uint64_t take(reader *r, int bytes)
{
    uint64_t value = 0;
    if (r->end - r->at < bytes) {
        r->wrong = true;
        return 0;
    }
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)r->at[i] << 8 * i;
    r->at += bytes;
    return value;
}

static uint64_t take_varint(reader *r)
{
    uint64_t value = 0, byte = 0x80;
    for (int shift = 0; byte & 0x80 && shift < 64 && !r->wrong; shift += 7) {
        byte = take(r, 1);
        value |= (byte & 0x7f) << shift;
    }
    return value;
}

static reader take_part(reader *r)
{
    uint64_t bytes = take_varint(r);
    if (bytes > (uint64_t)(r->end - r->at)) {
        r->wrong = true;
        bytes = 0;
    }
    reader part = {r->at, r->at + bytes, r->wrong};
    r->at += bytes;
    return part;
}

static void take_text(reader *r, char *out, size_t room)
{
    reader part = take_part(r);
    size_t bytes = (size_t)(part.end - part.at);
    r->wrong = r->wrong || bytes >= room;
    if (!r->wrong)
        memcpy(out, part.at, bytes);
}

static void parse_value(reader r, scalar *s, bool *wrong)
{
    while (r.at < r.end && !r.wrong) {
        uint64_t key = take_varint(&r);
        uint32_t bits;
        if (key == (1 << 3 | 2))
            take_text(&r, s->tag, sizeof s->tag);
        else if (key == (2 << 3 | 5)) {
            bits = (uint32_t)take(&r, 4);
            memcpy(&s->value, &bits, 4);
        } else
            r.wrong = true;
    }
    *wrong = *wrong || r.wrong;
}

/* One event into one scalar a value (or one without tag); returns how many. */
static int parse_event(reader r, scalar *out, bool *wrong)
{
    scalar head = {0};
    int count = 0;
    while (r.at < r.end && !r.wrong) {
        uint64_t key = take_varint(&r), bits;
        if (key == (1 << 3 | 1)) {
            bits = take(&r, 8);
            memcpy(&head.wall_time, &bits, 8);
        } else if (key == (2 << 3 | 0))
            head.step = (int64_t)take_varint(&r);
        else if (key == (3 << 3 | 2))
            take_text(&r, head.version, sizeof head.version);
        else if (key == (5 << 3 | 2)) {
            reader summary = take_part(&r);
            while (summary.at < summary.end && !summary.wrong) {
                summary.wrong = take_varint(&summary) != (1 << 3 | 2) || summary.wrong;
                out[count] = head;
                parse_value(take_part(&summary), &out[count++], &summary.wrong);
            }
            r.wrong = r.wrong || summary.wrong;
        } else if (key == (7 << 3 | 2)) {
            reader session = take_part(&r);
            head.starts = take_varint(&session) == (1 << 3 | 0) && take_varint(&session) == 1;
        } else
            r.wrong = true;
    }
    if (count == 0)
        out[count++] = head;
    *wrong = *wrong || r.wrong;
    return count;
}

static uint32_t unmask(uint32_t masked)
{
    uint32_t rotated = masked - 0xa282ead8u;
    return rotated << 15 | rotated >> 17;
}

/* The scalars of a file, at most 16; -1 if any record is damaged. */
static int parse(const uint8_t *data, int64_t bytes, scalar *out)
{
    reader r = {data, data + bytes, false};
    int count = 0;
    while (r.at < r.end && !r.wrong && count < 16) {
        const uint8_t *head = r.at;
        uint64_t length = take(&r, 8);
        uint32_t crc = (uint32_t)take(&r, 4);
        if (r.wrong || crc32c_software(0, head, 8) != unmask(crc) || length > (uint64_t)(r.end - r.at))
            return -1;
        reader event = {r.at, r.at + length, false};
        r.at += length;
        crc = (uint32_t)take(&r, 4);
        if (r.wrong || crc32c_software(0, event.at, (int64_t)length) != unmask(crc))
            return -1;
        count += parse_event(event, out + count, &r.wrong);
    }
    return r.wrong ? -1 : count;
}

/* The newest event file, and how many there are: their names begin with the second in which they were made. */
static char *newest(int *count, const char *folder)
{
    struct dirent **found;
    *count = 0;
    int entries = scandir(folder, &found, NULL, alphasort);
    char *path = NULL;
    for (int i = 0; i < entries; i++) {
        if (!strncmp(found[i]->d_name, "events.out.tfevents.", 20)) {
            free(path);
            path = workfolder_path(folder, found[i]->d_name);
            ++*count;
        }
        free(found[i]);
    }
    free(found);
    assert_non_null(path);
    return path;
}

static char *write_events(const char *folder)
{
    tensorboard *t;
    assert_int_equal(tensorboard_open(&t, folder, 1, 1700000000.25, NULL), STATUS_OK);
    int files;
    char *path = newest(&files, folder);
    assert_non_null(strstr(path, "/events.out.tfevents.1700000000."));
    const tensorboard_value two[] = {{"train/loss", 2.5}, {"train/lr", 3e-4}}, one = {"evaluate/loss", NAN};
    assert_int_equal(tensorboard_write(t, two, 2, 1, 1700000001), STATUS_OK);
    assert_int_equal(tensorboard_write(t, &one, 1, 1LL << 40, 1700000002), STATUS_OK);
    int64_t bytes; /* before closing: every write is flushed */
    scalar out[20];
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    assert_int_equal(parse(data, bytes, out), 4);
    tensorboard_close(t);
    return path;
}

TEST(what_is_written_is_read_by_the_format_s_rules)
{
    AUTO_FREE char *folder = workfolder_path(*state, "events"), *path = write_events(folder);
    int64_t bytes;
    scalar out[20];
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    assert_int_equal(parse(data, bytes, out), 4);
    assert_string_equal(out[0].version, "brain.Event:2");
    assert_true(out[0].wall_time == 1700000000.25);
    assert_string_equal(out[1].tag, "train/loss");
    assert_true(out[1].value == 2.5f && out[1].step == 1 && out[1].wall_time == 1700000001);
    assert_string_equal(out[2].tag, "train/lr");
    assert_true(out[2].value == 3e-4f && out[2].step == 1);
    assert_true(isnan(out[3].value) && out[3].step == 1LL << 40);
}

TEST(the_parser_notices_every_flipped_bit)
{
    AUTO_FREE char *folder = workfolder_path(*state, "flips"), *path = write_events(folder);
    int64_t bytes;
    scalar out[20];
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    for (int64_t i = 0; i < bytes * 8; i++) {
        data[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_int_equal(parse(data, bytes, out), -1);
        data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}

/* A run that goes on writes into the same file, and tells readers from which step on they are to forget; a torn end is
 * cut off. */
TEST(a_resumed_run_goes_on_in_the_same_file)
{
    AUTO_FREE char *folder = workfolder_path(*state, "resumed"), *path = write_events(folder);
    int64_t bytes;
    for (int torn = 0; torn < 40; torn += 13) {
        uint8_t *data = workfolder_read(path, &bytes);
        AUTO_FREE uint8_t *longer = realloc(data, (size_t)bytes + 64);
        memset(longer + bytes, 0x11, (size_t)torn);
        workfolder_write(path, longer, bytes + torn);
        tensorboard *t;
        assert_int_equal(tensorboard_open(&t, folder, 7, 1700000500, NULL), STATUS_OK);
        int files;
        free(newest(&files, folder));
        assert_int_equal(files, 1);
        tensorboard_close(t);
    }
    scalar out[20];
    uint8_t *data = workfolder_read(path, &bytes);
    assert_int_equal(parse(data, bytes, out), 8);
    for (int i = 4; i < 8; i++)
        assert_true(out[i].starts && out[i].step == 7 && !out[i - 4].starts);
    free(data);
    workfolder_write(path, "damaged from its beginning", 26); /* then another is made */
    tensorboard *t;
    assert_int_equal(tensorboard_open(&t, folder, 7, 1700009999, NULL), STATUS_OK);
    int files;
    AUTO_FREE char *another = newest(&files, folder);
    assert_int_equal(files, 2);
    assert_string_not_equal(another, path);
    tensorboard_close(t);
}

/* A byte that is damaged in the middle takes no later event with it: they stay, and another file is begun. */
TEST(damage_before_the_end_removes_nothing)
{
    AUTO_FREE char *folder = workfolder_path(*state, "middle"), *path = write_events(folder);
    int64_t bytes, after;
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    data[bytes / 2] ^= 1;
    workfolder_write(path, data, bytes);
    tensorboard *t;
    assert_int_equal(tensorboard_open(&t, folder, 7, 1700009999, NULL), STATUS_OK);
    tensorboard_close(t);
    AUTO_FREE uint8_t *now = workfolder_read(path, &after);
    assert_int_equal(after, bytes);
    assert_memory_equal(now, data, (size_t)bytes);
    int files;
    free(newest(&files, folder));
    assert_int_equal(files, 2);
}

TEST(a_folder_that_cannot_be_made_is_named)
{
    AUTO_FREE char *file = workfolder_path(*state, "file"), *folder = workfolder_path(file, "below");
    tensorboard *t = NULL;
    workfolder_write(file, "x", 1);
    assert_int_equal(tensorboard_open(&t, folder, 1, 0, NULL), STATUS_FAILED);
    workfolder_message_has(file);
    assert_null(t);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
