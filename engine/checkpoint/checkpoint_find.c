#include "engine/checkpoint/checkpoint_find.h"

#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/mapping.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

static status look_for_manifest(bool *there, const char *folder)
{
    AUTO_FREE char *path = must_format("%s/manifest.json", folder);
    return atomic_look(there, path);
}

/* Reads the name in FOLDER/latest, which the caller frees; NULL if there is certainly no such file. */
static status read_latest(char **out, const char *folder)
{
    RELEASED_BY(mapping_close) mapping file = {0};
    bool there;
    AUTO_FREE char *path = must_format("%s/latest", folder);
    *out = NULL;
    TRY(atomic_look(&there, path));
    if (!there)
        return STATUS_OK;
    TRY(mapping_open(&file, path));
    int64_t length = file.bytes;
    while (length > 0 && (file.data[length - 1] == '\n' || file.data[length - 1] == ' '))
        length--;
    bool good = length > 0 && length < 256 && file.data[0] != '.';
    for (int64_t i = 0; i < length && good; i++)
        good = file.data[i] > 0x20 && file.data[i] < 0x7f && file.data[i] != '/';
    if (!good)
        return status_fail(STATUS_FAILED, "%s does not hold the name of a checkpoint: write one of its folder into it",
                           path);
    *out = must_format("%.*s", (int)length, (const char *)file.data);
    return STATUS_OK;
}

/* Finds the whole checkpoint of that name: there, or under its older name if replacing it was interrupted; else
 * NULL. */
static status whole_folder(char **out, const char *folder, const char *name)
{
    bool whole;
    *out = must_format("%s/%s", folder, name);
    status s = look_for_manifest(&whole, *out);
    if (s == STATUS_OK && !whole) {
        free(*out);
        *out = must_format("%s/.old-%s", folder, name);
        s = look_for_manifest(&whole, *out);
    }
    if (s != STATUS_OK || !whole) {
        free(*out);
        *out = NULL;
    }
    return s;
}

/* ---- one ---- */

/* Finds the checkpoint that FOLDER/latest, which exists, names. */
static status resolve_latest(char **out, const char *folder)
{
    AUTO_FREE char *name = NULL;
    TRY(read_latest(&name, folder));
    TRY(name ? whole_folder(out, folder, name) : STATUS_OK);
    if (!name || !*out)
        return status_fail(STATUS_FAILED,
                           "%s/latest names %s, but %s/%s/manifest.json does not exist: name another checkpoint",
                           folder, name ? name : "nothing", folder, name ? name : "");
    return STATUS_OK;
}

status checkpoint_resolve(char **out, const char *path)
{
    AUTO_FREE char *latest = must_format("%s/latest", path), *checkpoints = must_format("%s/checkpoints", path);
    AUTO_FREE char *below = must_format("%s/latest", checkpoints);
    bool there = false;
    TRY(look_for_manifest(&there, path));
    if (there) {
        *out = must_strdup(path);
        return STATUS_OK;
    }
    TRY(atomic_look(&there, latest));
    if (there)
        return resolve_latest(out, path);
    TRY(atomic_look(&there, below));
    if (there)
        return resolve_latest(out, checkpoints);
    return status_fail(STATUS_FAILED,
                       "%s holds no checkpoint: neither manifest.json, latest nor checkpoints/latest is there", path);
}

static status is_within(bool *within, const char *there, const char *folder)
{
    AUTO_FREE char *mine = NULL;
    TRY(reading_real_path(&mine, folder));
    size_t length = mine ? strlen(mine) : 0;
    *within = mine && strncmp(there, mine, length) == 0 && (there[length] == '/' || !there[length]);
    return STATUS_OK;
}

status checkpoint_is_of_run(bool *within, const char *path, const char *run_folder)
{
    AUTO_FREE char *there = NULL, *checkpoints = must_format("%s/checkpoints", run_folder);
    AUTO_FREE char *origin = must_format("%s/" CHECKPOINT_ORIGIN, run_folder);
    bool others = false;
    *within = false;
    TRY(reading_real_path(&there, path));
    if (!there)
        return STATUS_OK;
    TRY(is_within(within, there, run_folder));
    if (!*within)
        TRY(is_within(within, there, checkpoints));
    TRY(is_within(&others, there, origin));
    *within = *within && !others;
    return STATUS_OK;
}

/* ---- all ---- */

#define STEP "step-"
#define OLD  ".old-"

/* Returns 100 for step-00000100, and -1 for any other name. */
static int64_t step_of(const char *name)
{
    const char *digits = name + strlen(STEP);
    if (strncmp(name, STEP, strlen(STEP)) != 0)
        return -1;
    size_t count = strspn(digits, "0123456789");
    return count > 0 && count < 19 && !digits[count] ? strtoll(digits, NULL, 10) : -1;
}

static int compare_names(const void *a, const void *b)
{
    int64_t x = step_of(*(char *const *)a), y = step_of(*(char *const *)b);
    return x != y ? (x < y ? 1 : -1) : strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lists the steps of the folders "step-00000100" in a checkpoints folder, newest first, each once. The list is empty if
 * the folder is certainly not there. */
static status list_steps(reading_names *out, const char *folder)
{
    int kept = 0;
    TRY(reading_folder(out, folder));
    for (int i = 0; i < out->count; i++) {
        char *entry = out->name[i], *name = strncmp(entry, OLD, strlen(OLD)) ? entry : entry + strlen(OLD);
        memmove(entry, name, strlen(name) + 1);
        bool known = step_of(entry) < 0;
        for (int k = 0; k < kept && !known; k++)
            known = !strcmp(out->name[k], entry);
        if (known)
            free(entry);
        else
            out->name[kept++] = entry;
    }
    out->count = kept;
    if (kept > 1)
        qsort(out->name, (size_t)kept, sizeof *out->name, compare_names);
    return STATUS_OK;
}

void checkpoint_offers_free(checkpoint_offers *o)
{
    for (int i = 0; i < o->count; i++)
        free(o->folder[i]);
    free(o->folder);
    free(o->trouble);
    *o = (checkpoint_offers){0};
}

/* Adds the checkpoints of earlier steps than `latest` names; all if that is not known. A folder that cannot be read
 * offers no checkpoint, but does not prove that there is none. */
static status add_older(checkpoint_offers *o, const char *folder, const char *latest)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    TRY(list_steps(&all, folder));
    int64_t below = latest ? step_of(latest) : -1;
    for (int i = 0; i < all.count; i++) {
        char *path = NULL;
        bool same = latest && !strcmp(all.name[i], latest), older = below < 0 || step_of(all.name[i]) < below;
        if (!same && older && whole_folder(&path, folder, all.name[i]) != STATUS_OK && !o->trouble)
            o->trouble = must_strdup(status_message());
        if (path)
            APPEND(o->folder, o->count) = path;
    }
    return STATUS_OK;
}

status checkpoint_offers_find(checkpoint_offers *out, const char *folder)
{
    char *latest = NULL, *path = NULL;
    *out = (checkpoint_offers){0};
    if (read_latest(&latest, folder) != STATUS_OK || (latest && whole_folder(&path, folder, latest) != STATUS_OK))
        out->trouble = must_strdup(status_message());
    else if (latest && !path)
        out->trouble = must_format("%s/latest names %s, which is not there", folder, latest);
    if (path)
        APPEND(out->folder, out->count) = path;
    status s = add_older(out, folder, latest);
    if (path) /* stops: older ones are not needed */
        s = STATUS_OK;
    if (s == STATUS_OK && out->count > 0 && !latest && !out->trouble)
        out->trouble = must_format("%s/latest is missing", folder);
    if (s == STATUS_OK && out->count == 0 && out->trouble)
        s = status_fail(STATUS_FAILED, "%s", out->trouble);
    if (path && out->trouble) { /* the trouble of an older checkpoint */
        free(out->trouble);
        out->trouble = NULL;
    }
    free(latest);
    if (s != STATUS_OK) {
        checkpoint_offers_free(out);
        return status_context(s, "it cannot be told where to go on from (nothing was changed; "
                                 "checkpoint.resume=never begins anew)");
    }
    return STATUS_OK;
}

/* ---- pruning ---- */

/* Removes leftovers of interrupted saves of earlier steps, which could not be removed at the time, e.g. since the
 * folder had another name. */
static status remove_leftovers(const char *folder, int64_t last)
{
    static const char temporary[] = ".tmp-";
    RELEASED_BY(reading_names_free) reading_names all = {0};
    TRY(reading_folder(&all, folder));
    for (int i = 0; i < all.count; i++) {
        bool is_one = strncmp(all.name[i], temporary, strlen(temporary)) == 0;
        int64_t step = is_one ? step_of(all.name[i] + strlen(temporary)) : -1;
        if (step < 0 || step >= last)
            continue;
        AUTO_FREE char *path = must_format("%s/%s", folder, all.name[i]);
        TRY(atomic_remove(path));
    }
    return STATUS_OK;
}

status checkpoint_prune(const char *folder, int keep, int keep_every, const checkpoint_needed *needed)
{
    AUTO_FREE char *latest = NULL;
    RELEASED_BY(reading_names_free) reading_names all = {0};
    TRY(read_latest(&latest, folder));
    int64_t last = latest ? step_of(latest) : -1;
    status left = remove_leftovers(folder, last); /* leftovers that stay do not fail the pruning */
    if (keep < 1)
        return left;
    TRY(list_steps(&all, folder));
    for (int i = 0, kept = 0; i < all.count; i++) {
        int64_t step = step_of(all.name[i]);
        AUTO_FREE char *path = must_format("%s/%s", folder, all.name[i]);
        bool whole = false;
        if (step <= last)
            TRY(look_for_manifest(&whole, path));
        bool always = step == last || (keep_every > 0 && step % keep_every == 0) ||
                      (needed && needed->is(needed->context, all.name[i]));
        if (whole && kept >= keep && !always) {
            /* Renames it to a temporary name first, so that a half-removed folder is no checkpoint. */
            AUTO_FREE char *temporary = must_format("%s/.tmp-%s", folder, all.name[i]);
            TRY(atomic_remove(temporary));
            TRY(atomic_rename(path, temporary));
            TRY(atomic_remove(temporary));
        }
        kept += whole;
    }
    return left;
}

/* ---- a run that is complete ---- */

status checkpoint_name_latest(const char *folder)
{
    RELEASED_BY(checkpoint_offers_free) checkpoint_offers offers = {0};
    AUTO_FREE char *latest = NULL, *path = NULL;
    bool there;
    TRY(atomic_look(&there, folder));
    if (!there)
        return STATUS_OK;
    TRY(read_latest(&latest, folder));
    if (latest)
        TRY(whole_folder(&path, folder, latest));
    if (path)
        return STATUS_OK;
    TRY(checkpoint_offers_find(&offers, folder));
    if (offers.count == 0)
        return STATUS_OK;
    const char *name = strrchr(offers.folder[0], '/') + 1;
    AUTO_FREE char *line = must_format("%s\n", strncmp(name, OLD, strlen(OLD)) ? name : name + strlen(OLD));
    path = must_format("%s/latest", folder);
    return atomic_replace(path, line, (int64_t)strlen(line));
}
