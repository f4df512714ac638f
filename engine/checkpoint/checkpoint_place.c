#include "engine/checkpoint/checkpoint_place.h"

#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/manifest.h"
#include "memory/log.h"
#include "memory/scope.h"

static const int64_t MOST = (int64_t)1 << 40; /* most branches or steps, more than any run reaches */

static int64_t count_of(const json_t *value)
{
    int64_t n = json_integer_value(value);
    return json_is_integer(value) && n >= 0 && n <= MOST ? n : -1;
}

void checkpoint_place_take(checkpoint_place *out, const json_t *meta)
{
    const json_t *list = json_object_get(meta, "branches");
    size_t count = json_array_size(list);
    int64_t branch = count_of(json_object_get(meta, "branch"));
    *out = (checkpoint_place){.step = count_of(json_object_get(meta, "step")), .branch = branch > 0 ? branch : 0};
    for (size_t i = 0; i < count && count <= CHECKPOINT_BRANCHES; i++) {
        const json_t *pair = json_array_get(list, i);
        checkpoint_branch b = {count_of(json_array_get(pair, 0)), count_of(json_array_get(pair, 1))};
        if (b.branch >= 0 && b.branch < out->branch && b.last >= 0)
            out->before[out->count++] = b;
    }
}

void checkpoint_place_put(json_t *meta, const checkpoint_place *p)
{
    json_auto_t *list = json_array();
    for (int i = 0; i < p->count; i++)
        json_array_append_new(list,
                              json_pack("[I, I]", (json_int_t)p->before[i].branch, (json_int_t)p->before[i].last));
    if (p->branch > 0) {
        json_object_set_new(meta, "branch", json_integer(p->branch));
        json_object_set(meta, "branches", list);
    }
}

status checkpoint_place_read(checkpoint_place *out, const char *folder)
{
    AUTO(manifest) *m = NULL;
    AUTO_FREE char *path = must_format("%s/manifest.json", folder);
    *out = (checkpoint_place){.step = -1};
    status s = manifest_read(&m, path);
    if (s == STATUS_OK)
        checkpoint_place_take(out, m->meta);
    return s;
}

bool checkpoint_place_later(const checkpoint_place *a, const checkpoint_place *b)
{
    if (a->step < 0 || b->step < 0)
        return a->step >= 0;
    return a->branch != b->branch ? a->branch > b->branch : a->step > b->step;
}

bool checkpoint_place_within(const checkpoint_place *p, const checkpoint_place *of)
{
    bool within = p->branch == of->branch && p->step <= of->step;
    for (int i = 0; i < of->count; i++)
        within |= p->branch == of->before[i].branch && p->step <= of->before[i].last;
    return within;
}

void checkpoint_place_go_back(checkpoint_place *p, int64_t newest)
{
    if (p->count == CHECKPOINT_BRANCHES)
        memmove(p->before, p->before + 1, (size_t)--p->count * sizeof *p->before);
    p->before[p->count++] = (checkpoint_branch){p->branch, p->step};
    p->branch = (newest > p->branch ? newest : p->branch) + 1;
}
