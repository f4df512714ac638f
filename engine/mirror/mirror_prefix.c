#include "engine/mirror/mirror_prefix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_TEXT = 16 << 10, MOST_FOLDERS = 10000, MOST_FILES = 1000000 };

#define FORMAT "phalanx mirror"

/* ---- names ------------------------------------------------------------------------------------------------------ */

status mirror_prefix_make(mirror_prefix *out, const char *url)
{
    AUTO_FREE char *bucket = NULL, *key = NULL;
    TRY(object_split(&bucket, &key, url));
    size_t length = strlen(key);
    while (length > 0 && key[length - 1] == '/')
        key[--length] = 0;
    const char *slash = *key ? "/" : "";
    *out =
        (mirror_prefix){.url = must_format("s3://%s%s%s", bucket, slash, key), .root = must_format("%s%s", key, slash)};
    out->bucket = TAKE(bucket);
    return STATUS_OK;
}

void mirror_prefix_free(mirror_prefix *p)
{
    free(p->url);
    free(p->bucket);
    free(p->root);
    *p = (mirror_prefix){0};
}

char *mirror_prefix_key(const mirror_prefix *p, const char *name, const char *file)
{
    return file ? must_format("%s%s/%s", p->root, name, file) : must_format("%s%s", p->root, name);
}

/* Parses the step and the number within that step: 1 for a name without one. */
static bool take_name(int64_t *step, int64_t *turn, const char *name)
{
    static const char digits[] = "0123456789", begin[] = "step-";
    const char *at = name + strlen(begin);
    size_t count = strncmp(name, begin, strlen(begin)) == 0 ? strspn(at, digits) : 0;
    if (count < 1 || count > 18)
        return false;
    *step = strtoll(at, NULL, 10);
    *turn = 1;
    at += count;
    if (!*at)
        return true;
    count = *at == '-' ? strspn(at + 1, digits) : 0;
    if (count < 1 || count > 9 || at[1 + count])
        return false;
    *turn = strtoll(at + 1, NULL, 10);
    return true;
}

int64_t mirror_prefix_step(const char *name)
{
    int64_t step, turn;
    return take_name(&step, &turn, name) ? step : -1;
}

/* ---- small objects ---------------------------------------------------------------------------------------------- */

static status get_text(char **out, object_store *s, const mirror_prefix *p, const char *name)
{
    int64_t bytes;
    AUTO_FREE char *key = mirror_prefix_key(p, name, NULL);
    return object_read_whole(out, &bytes, s, key, MOST_TEXT);
}

static status put_text(object_store *s, const mirror_prefix *p, const char *name, const char *text)
{
    AUTO_FREE char *key = mirror_prefix_key(p, name, NULL);
    return object_put(s, key, text, (int64_t)strlen(text));
}

static void cut_line(char *text)
{
    text[strcspn(text, "\r\n")] = 0;
}

/* ---- owner ------------------------------------------------------------------------------------------------------- */

static status take_owner(mirror_owner *out, const mirror_prefix *p, const char *text)
{
    json_auto_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *id = json_string_value(json_object_get(root, "run"));
    const char *folder = json_string_value(json_object_get(root, "folder"));
    bool good = format && strcmp(format, FORMAT) == 0 && manifest_is_run(id) && folder;
    if (good) {
        snprintf(out->run, sizeof out->run, "%s", id);
        out->folder = must_strdup(folder);
        log_make_printable(out->folder);
    }
    return good ? STATUS_OK
                : status_fail(STATUS_FAILED,
                              "%s/run does not say whose mirror this is: give the run another prefix "
                              "(checkpoint.mirror)",
                              p->url);
}

void mirror_owner_free(mirror_owner *o)
{
    free(o->folder);
}

status mirror_prefix_owner(mirror_owner *out, object_store *s, const mirror_prefix *p)
{
    AUTO_FREE char *text = NULL;
    *out = (mirror_owner){0};
    TRY(get_text(&text, s, p, "run"));
    return text ? take_owner(out, p, text) : STATUS_OK;
}

status mirror_prefix_claim(object_store *s, const mirror_prefix *p, const mirror_owner *mine)
{
    json_auto_t *root = /* contains the id, so equal bytes are this run's */
        json_pack("{s:s,s:i,s:s,s:s}", "format", FORMAT, "version", 1, "run", mine->run, "folder", mine->folder);
    MUST(root, "a folder's name that is not UTF-8, or out of host memory");
    AUTO_FREE char *text = json_dumps(root, JSON_COMPACT), *key = mirror_prefix_key(p, "run", NULL);
    RELEASED_BY(mirror_owner_free) mirror_owner other = {0};
    bool made = false;
    TRY(object_put_new(&made, s, key, text, (int64_t)strlen(text)));
    if (made)
        return STATUS_OK;
    TRY(mirror_prefix_owner(&other, s, p));
    if (strcmp(other.run, mine->run) == 0)
        return STATUS_OK;
    return status_fail(STATUS_FAILED,
                       "%s is the mirror of another run (%s, of run.folder %s), which has just begun: give this "
                       "run another prefix (checkpoint.mirror)",
                       p->url, *other.run ? other.run : "?", other.folder ? other.folder : "?");
}

status mirror_prefix_hold(object_store *s, const mirror_prefix *p, const char *id)
{
    return put_text(s, p, "holder", id);
}

status mirror_prefix_confirm(mirror_holder *out, object_store *s, const mirror_prefix *p, const char *id)
{
    AUTO_FREE char *text = NULL;
    TRY(get_text(&text, s, p, "holder"));
    if (text)
        cut_line(text);
    *out = !text ? MIRROR_VACANT : strcmp(text, id) == 0 ? MIRROR_MINE : MIRROR_OTHERS;
    return STATUS_OK;
}

/* ---- the list of checkpoints ------------------------------------------------------------------------------------ */

status mirror_prefix_latest(char out[MIRROR_NAME], object_store *s, const mirror_prefix *p)
{
    AUTO_FREE char *text = NULL;
    *out = 0;
    TRY(get_text(&text, s, p, "latest"));
    if (!text)
        return STATUS_OK;
    cut_line(text);
    bool good = strlen(text) < MIRROR_NAME && mirror_prefix_step(text) >= 0;
    if (good)
        snprintf(out, MIRROR_NAME, "%s", text);
    return good ? STATUS_OK
                : status_fail(STATUS_FAILED,
                              "%s/latest does not hold the name of a checkpoint: write one of those there "
                              "into it",
                              p->url);
}

status mirror_prefix_set_latest(object_store *s, const mirror_prefix *p, const char *name)
{
    AUTO_FREE char *line = must_format("%s\n", name);
    return put_text(s, p, "latest", line);
}

static int newest_first(const void *a, const void *b)
{
    const mirror_checkpoint *x = a, *y = b;
    int64_t step, mine = 0, others = 0;
    if (x->step != y->step)
        return x->step < y->step ? 1 : -1;
    (void)take_name(&step, &mine, x->name);
    (void)take_name(&step, &others, y->name);
    return (mine < others) - (mine > others);
}

/* Adds "PREFIX/NAME/" of a list, if it is a checkpoint's. */
static status add_entry(mirror_checkpoints *out, object_store *s, const mirror_prefix *p, const object_entry *e)
{
    mirror_checkpoint c = {.step = -1};
    size_t root = strlen(p->root), length = strlen(e->key);
    if (!e->folder || length <= root + 1 || length - root - 1 >= sizeof c.name)
        return STATUS_OK;
    memcpy(c.name, e->key + root, length - root - 1);
    c.step = mirror_prefix_step(c.name);
    if (c.step < 0)
        return STATUS_OK;
    object_facts last;
    AUTO_FREE char *key = mirror_prefix_key(p, c.name, "manifest.json");
    TRY(object_look(&last, s, key));
    c.whole = last.there; /* its manifest is written last */
    APPEND(out->item, out->count) = c;
    return STATUS_OK;
}

status mirror_prefix_list(mirror_checkpoints *out, object_store *s, const mirror_prefix *p)
{
    RELEASED_BY(object_listing_free) object_listing all = {0};
    RELEASED_BY(mirror_prefix_list_free) mirror_checkpoints found = {0};
    AUTO_FREE char *begin = must_format("%sstep-", p->root);
    *out = (mirror_checkpoints){0};
    TRY(object_list(&all, s, begin, false, MOST_FOLDERS));
    for (int64_t i = 0; i < all.count; i++)
        TRY(add_entry(&found, s, p, &all.entry[i]));
    if (found.count > 1)
        qsort(found.item, (size_t)found.count, sizeof *found.item, newest_first);
    *out = found;
    found = (mirror_checkpoints){0};
    return STATUS_OK;
}

void mirror_prefix_list_free(mirror_checkpoints *l)
{
    free(l->item);
    *l = (mirror_checkpoints){0};
}

/* ---- pruning ---------------------------------------------------------------------------------------------------- */

/* Removes the manifest first: a half-removed folder is then no checkpoint. */
static status remove_checkpoint(object_store *s, const mirror_prefix *p, const char *name)
{
    RELEASED_BY(object_listing_free) object_listing all = {0};
    AUTO_FREE char *first = mirror_prefix_key(p, name, "manifest.json"), *below = mirror_prefix_key(p, name, "");
    TRY(object_remove(s, first));
    TRY(object_list(&all, s, below, true, MOST_FILES));
    for (int64_t i = 0; i < all.count; i++)
        TRY(object_remove(s, all.entry[i].key));
    return STATUS_OK;
}

status mirror_prefix_prune(object_store *s, const mirror_prefix *p, int keep, int keep_every)
{
    char latest[MIRROR_NAME];
    RELEASED_BY(mirror_prefix_list_free) mirror_checkpoints all = {0};
    TRY(mirror_prefix_latest(latest, s, p));
    TRY(mirror_prefix_list(&all, s, p));
    int64_t last = mirror_prefix_step(latest), before = -1;
    int kept = 0;
    for (int i = 0; i < all.count; i++) {
        const mirror_checkpoint *c = &all.item[i];
        bool named = strcmp(c->name, latest) == 0, ahead = c->step > last;
        bool again = c->whole && (c->step == before || (c->step == last && !named));
        bool old = keep > 0 && kept >= keep && !(keep_every > 0 && c->step % keep_every == 0);
        if (!named && (!c->whole || again || (!ahead && old)))
            TRY(remove_checkpoint(s, p, c->name));
        kept += c->whole && !again && !ahead;
        before = c->whole ? c->step : before;
    }
    return STATUS_OK;
}
