/* Damage drawn at random to the files of a checkpoint, alone and together: what is loaded is right to the last bit or
 * refused, and verifying sees all of it. DAMAGES=N SEED=S draws others; `make faults` does. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/checkpoint/savers.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { FILES = 7, FEW = 1000 };

static const char *const names[FILES] = {"manifest.json",
                                         "model-00000.safetensors",
                                         "model-00001.safetensors",
                                         "master-00000.safetensors",
                                         "master-00001.safetensors",
                                         "moment1-00000.safetensors",
                                         "moment1-00001.safetensors"};

/* A file in memory, and as it is to be on the disk; `there` false: it is not. */
typedef struct file {
    uint8_t *whole, *other, *now; /* `other`: of another save, in the same layout */
    int64_t bytes, other_bytes, now_bytes;
    bool there;
} file;

static uint64_t draw(uint64_t *random, uint64_t below)
{
    *random ^= *random << 13; /* xorshift64 */
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random % below;
}

static void flip_bit(file *f, uint64_t *random)
{
    f->now[draw(random, (uint64_t)f->now_bytes)] ^= (uint8_t)(1u << draw(random, 8));
}

/* A sector that was never written. */
static void clear_run(file *f, uint64_t *random)
{
    int64_t at = (int64_t)draw(random, (uint64_t)f->now_bytes), length = 1 + (int64_t)draw(random, 512);
    memset(f->now + at, 0, (size_t)(length < f->now_bytes - at ? length : f->now_bytes - at));
}

static void cut_off(file *f, uint64_t *random)
{
    f->now_bytes = (int64_t)draw(random, (uint64_t)f->now_bytes);
}

static void make_longer(file *f, uint64_t *random)
{
    for (int64_t more = 1 + (int64_t)draw(random, 64); more > 0; more--)
        f->now[f->now_bytes++] = (uint8_t)draw(random, 256);
}

/* Two runs of bytes change places. */
static void swap_runs(file *f, uint64_t *random)
{
    int64_t length = 1 + (int64_t)draw(random, 32), a, b;
    if (f->now_bytes < 2 * length)
        return;
    a = (int64_t)draw(random, (uint64_t)(f->now_bytes - length + 1));
    b = (int64_t)draw(random, (uint64_t)(f->now_bytes - length + 1));
    for (int64_t i = 0; i < length; i++) {
        uint8_t byte = f->now[a + i];
        f->now[a + i] = f->now[b + i];
        f->now[b + i] = byte;
    }
}

static void lose(file *f, uint64_t *random)
{
    (void)random;
    f->there = false;
}

/* A stale read: the same file of another save, or its tail. */
static void mix_up(file *f, uint64_t *random)
{
    int64_t from = draw(random, 2) ? 0 : (int64_t)draw(random, (uint64_t)f->other_bytes);
    if (f->other_bytes <= f->now_bytes)
        memcpy(f->now + from, f->other + from, (size_t)(f->other_bytes - from));
}

typedef void damage(file *f, uint64_t *random);

static const struct {
    const char *name;
    damage *apply;
} kinds[] = {{"a bit flips", flip_bit},  {"a run of zeros", clear_run},     {"cut off", cut_off},
             {"longer", make_longer},    {"runs change places", swap_runs}, {"lost", lose},
             {"of another save", mix_up}};

enum { KINDS = sizeof kinds / sizeof *kinds };

static void read_files(file *files, const char *folder, const char *other)
{
    for (int i = 0; i < FILES; i++) {
        AUTO_FREE char *path = must_format("%s/step-00000001/%s", folder, names[i]);
        AUTO_FREE char *second = must_format("%s/step-00000001/%s", other, names[i]);
        files[i].whole = workfolder_read(path, &files[i].bytes);
        files[i].other = workfolder_read(second, &files[i].other_bytes);
        files[i].now = must_alloc((unsigned long)files[i].bytes + 128);
    }
}

static void restore(file *f)
{
    memcpy(f->now, f->whole, (size_t)f->bytes);
    f->now_bytes = f->bytes;
    f->there = true;
}

static void write_file(const char *folder, int which, const file *f)
{
    AUTO_FREE char *path = must_format("%s/step-00000001/%s", folder, names[which]);
    if (f->there)
        workfolder_write(path, f->now, f->now_bytes);
    else
        assert_int_equal(unlink(path), 0);
}

static bool is_whole(const file *f)
{
    return f->there && f->now_bytes == f->bytes && memcmp(f->now, f->whole, (size_t)f->bytes) == 0;
}

static bool verifies(const char *folder)
{
    checkpoint *c = NULL;
    bool good = checkpoint_open(&c, folder) == STATUS_OK && checkpoint_verify(c) == STATUS_OK;
    checkpoint_close(c);
    return good;
}

TEST(damage_is_never_loaded_silently)
{
    const char *wanted = getenv("DAMAGES"), *seed = getenv("SEED");
    uint64_t random = (uint64_t)(seed && *seed ? atoll(seed) : 1) * 0x9E3779B97F4A7C15u + 1;
    int count = wanted && atoi(wanted) > 0 ? atoi(wanted) : FEW, refused[KINDS] = {0}, right[KINDS] = {0};
    AUTO_FREE char *folder = workfolder_path(*state, "one"), *other = workfolder_path(*state, "two");
    file files[FILES] = {0};
    assert_int_equal(savers_write(folder, "step-00000001", 1, (savers_layout){2, 0, false}), STATUS_OK);
    assert_int_equal(savers_write(other, "step-00000001", 2, (savers_layout){2, 0, false}), STATUS_OK);
    read_files(files, folder, other);
    for (int n = 0; n < count; n++) {
        int which = 0, kind = 0, hits = draw(&random, 4) ? 1 : 2 + (int)draw(&random, 2);
        for (int i = 0; i < FILES; i++)
            restore(&files[i]);
        for (int i = 0; i < hits; i++) {
            which = (int)draw(&random, FILES);
            kind = (int)draw(&random, KINDS);
            if (files[which].there && files[which].now_bytes > 0 && files[which].now_bytes <= files[which].bytes)
                kinds[kind].apply(&files[which], &random);
        }
        bool whole = true;
        for (int i = 0; i < FILES; i++)
            if (!is_whole(&files[i])) {
                whole = false;
                write_file(folder, i, &files[i]);
            }
        int found = savers_identify(folder);
        if (found != 1 && found != -1)
            fail_msg("damage %d (%s, %s): loaded as %d", n, kinds[kind].name, names[which], found);
        if (verifies(folder) != whole)
            fail_msg("damage %d (%s, %s): verifying says %s", n, kinds[kind].name, names[which],
                     whole ? "damaged" : "whole");
        refused[kind] += found == -1;
        right[kind] += found == 1;
        for (int i = 0; i < FILES; i++)
            if (!is_whole(&files[i])) {
                restore(&files[i]);
                write_file(folder, i, &files[i]);
            }
    }
    printf("%d damages, 0 loaded wrong\n%-20s %8s %12s\n", count, "kind (the last one)", "refused", "still right");
    for (int k = 0; k < KINDS; k++)
        printf("%-20s %8d %12d\n", kinds[k].name, refused[k], right[k]);
    for (int i = 0; i < FILES; i++) {
        free(files[i].whole);
        free(files[i].other);
        free(files[i].now);
    }
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
