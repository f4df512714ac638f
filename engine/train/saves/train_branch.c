/* A run that goes back to one of its earlier checkpoints: from then on it is another branch of its history
 * (engine/checkpoint/checkpoint_place.h). Rank 0's. */
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/reading.h"
#include "engine/train/saves/training_saves_internal.h"
#include "memory/log.h"
#include "memory/scope.h"

/* events.jsonl says which checkpoints a run has saved: the name of the last one, the caller's; NULL: none. */
static status find_saved(char **out, const training *t)
{
    AUTO_FREE char *path = must_format("%s/events.jsonl", t->folder), *text = NULL;
    int64_t bytes;
    TRY(reading_file(&text, &bytes, path));
    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        json_auto_t *event = json_loadb(line, (size_t)(end - line), 0, NULL);
        const char *what = json_string_value(json_object_get(event, "event"));
        const char *name = json_string_value(json_object_get(event, "words"));
        if (what && name && strcmp(what, "saved") == 0) {
            free(*out);
            *out = must_strdup(name);
        }
    }
    return STATUS_OK;
}

/* The step in the name of a checkpoint; -1: another name, or none. */
static int64_t step_of(const char *name)
{
    return name ? mirror_prefix_step(strncmp(name, ".old-", strlen(".old-")) ? name : name + strlen(".old-")) : -1;
}

status training_find(training_found *out, const training *t)
{
    RELEASED_BY(training_found_free) training_found f = {.place = {.step = -1}};
    TRY(checkpoint_offers_find(&f.offers, t->checkpoints));
    TRY(find_saved(&f.saved, t));
    bool any = f.offers.count > 0;
    const char *name = any ? strrchr(f.offers.folder[0], '/') + 1 : f.saved;
    int64_t step = step_of(name);
    if (any && checkpoint_place_read(&f.place, f.offers.folder[0]) != STATUS_OK)
        f.place.step = step; /* it is damaged: its name is all that can be told */
    f.named = name && step < 0 ? INT64_MAX : step;
    f.went_back = any && !f.offers.trouble && step >= 0 && step_of(f.saved) > step;
    *out = f;
    f = (training_found){0};
    return STATUS_OK;
}

void training_found_free(training_found *f)
{
    checkpoint_offers_free(&f->offers);
    free(f->saved);
}

/* What is damaged has no place: it stays, so that it is said, unless something is known to be later. */
void training_branch_sift(checkpoint_offers *offers)
{
    checkpoint_place *place = must_calloc((unsigned long)offers->count + 1, sizeof *place), *head = &place[0];
    bool went_back = false;
    for (int i = 0; i < offers->count; i++) {
        if (checkpoint_place_read(&place[i], offers->folder[i]) != STATUS_OK)
            place[i].step = -1;
        went_back |= place[i].branch > 0;
        if (place[0].step < 0 && checkpoint_place_later(&place[i], head))
            head = &place[i];
        if (i == 0 && place[0].step >= 0 && place[0].branch == 0)
            break; /* the run never went back */
    }
    int kept = 0;
    for (int i = 0; i < offers->count; i++)
        if (i == 0 || !went_back || place[i].step < 0 || checkpoint_place_within(&place[i], head))
            offers->folder[kept++] = offers->folder[i];
        else
            free(offers->folder[i]);
    offers->count = kept;
    free(place);
}

status training_branch_begin(training *t)
{
    RELEASED_BY(training_found_free) training_found here = {0};
    checkpoint_place *now = &t->saves->branch.now;
    const checkpoint_place *there = &t->saves->mirroring.newest;
    *now = (checkpoint_place){0};
    if (!t->guards.origin || t->new_stage)
        return STATUS_OK;
    TRY(training_find(&here, t));
    *now = t->saves->branch.loaded;
    bool later = checkpoint_place_later(&here.place, now), later_there = checkpoint_place_later(there, now);
    if (!here.went_back && !later && !later_there)
        return STATUS_OK;
    int64_t newest = here.place.branch;
    if (there->step >= 0 && there->branch > newest)
        newest = there->branch;
    checkpoint_place_go_back(now, newest);
    log_info("the run has been further than step %lld: what came after it is undone", (long long)t->at.step);
    return STATUS_OK;
}
