/* libFuzzer on the small files that a run's folder, a job or a model's folder holds. The first byte chooses the reader;
 * whatever the file says, it is refused in one line or gives values that can be used. */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/host/causes.h"
#include "engine/run/choices.h"
#include "engine/config/config.h"
#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "engine/files/sharded.h"
#include "engine/train/report/report.h"
#include "engine/train/rank/train_meta.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/supervise/hosts.h"
#include "tools/report/report_run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64];

/* The file `name` of the folder; its path, which the next call overwrites. */
static const char *file(const char *name, const uint8_t *data, size_t size)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    MUST(f && fwrite(data, 1, size, f) == size && fclose(f) == 0, "cannot write %s", path);
    return path;
}

static void refused(void)
{
    MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
}

static void read_incidents(const uint8_t *data, size_t size)
{
    size_t metrics = size / 2;
    file("metrics.jsonl", data, metrics);
    file("incidents.jsonl", data + metrics, size - metrics);
    causes memory = {0};
    cause c = causes_read(folder, 0, "");
    int64_t progress = causes_progress(folder);
    for (int i = 0; i < 3; i++)
        MUST(causes_weigh(&memory, &c, true, progress).wait >= 0, "less than no time");
}

static void read_hosts(const uint8_t *data, size_t size)
{
    hosts h, again;
    const char *path = file("hosts", data, size);
    if (hosts_read(&h, path) != STATUS_OK) {
        refused();
        return;
    }
    int slots = hosts_slots(&h);
    MUST(slots > 0, "%d slots", slots);
    MUST(hosts_write(&h, path, slots) == STATUS_OK && hosts_read(&again, path) == STATUS_OK, "own file refused: %s",
         status_message());
    MUST(hosts_slots(&again) == slots, "%d slots became %d", slots, hosts_slots(&again));
    hosts_free(&again);
    hosts_free(&h);
}

static void read_choices(const uint8_t *data, size_t size)
{
    choices c = {0}, again = {0};
    const char *path = file("tuning.json", data, size);
    if (choices_read(&c, path) != STATUS_OK)
        refused();
    else {
        MUST(choices_write(&c, path) == STATUS_OK && choices_read(&again, path) == STATUS_OK, "own file refused: %s",
             status_message());
        AUTO_FREE char *one = choices_text(&c), *other = choices_text(&again);
        MUST(!strcmp(one, other), "%s became %s", one, other);
    }
    choices_free(&again);
    choices_free(&c);
}

static void read_meta(const uint8_t *data, size_t size)
{
    static config saved;
    static const char text[] = "model: {preset: llama-15m}\ndata: {train: x}\ntrain: {steps: 10, global_batch: 4}\n";
    training_position m;
    if (!saved.train.steps)
        MUST(config_parse(&saved, "fuzz", text, sizeof text - 1, 0, NULL) == STATUS_OK, "%s", status_message());
    json_t *meta = json_loadb((const char *)data, size, 0, NULL);
    if (!meta)
        return;
    if (train_meta_read(&m, meta, &saved, "fuzz") != STATUS_OK)
        refused();
    else {
        MUST(m.step >= 0 && m.samples >= 0 && m.updates >= 0 && m.updates <= m.step && m.stage_step <= m.step &&
                 m.past.omissions <= TRAIN_OMISSIONS,
             "step %lld, %lld updates, %lld samples", (long long)m.step, (long long)m.updates, (long long)m.samples);
        MUST(train_past_omitted(&m.past) >= 0, "less than no samples are left out");
    }
    json_decref(meta);
}

static void read_run(const uint8_t *data, size_t size)
{
    json_t *page;
    file("metrics.jsonl", data, size);
    file("incidents.jsonl", data, size);
    file("summary.json", data, size);
    (void)report_ending(folder, "0123");
    if (report_run_read(&page, folder, 50) != STATUS_OK)
        refused();
    else
        json_decref(page);
}

static void read_sharded(const uint8_t *data, size_t size)
{
    sharded *s;
    file(SHARDED_INDEX, data, size);
    if (sharded_open(&s, folder) != STATUS_OK)
        refused();
    else
        sharded_close(s);
}

static void read_lock(const uint8_t *data, size_t size)
{
    const char *path = file("lock", data, size);
    lock_sight seen = {0};
    (void)lock_watch(&seen, path, 1);
    lock_retire(path, seen.id);
}

static void remove_folder(void)
{
    (void)atomic_remove(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const readers[])(const uint8_t *data, size_t size) = {
        read_incidents, read_hosts, read_choices, read_meta, read_run, read_sharded, read_lock};
    if (size < 1)
        return 0;
    if (!*folder) {
        snprintf(folder, sizeof folder, "/dev/shm/phalanx-fuzz-XXXXXX");
        MUST(mkdtemp(folder), "cannot make a folder in /dev/shm");
        atexit(remove_folder);
    }
    readers[data[0] % (sizeof readers / sizeof *readers)](data + 1, size - 1);
    return 0;
}
