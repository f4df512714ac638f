/* A run that goes back to one of its earlier checkpoints: from then on it is another branch of its history
 * (engine/checkpoint/checkpoint_place.h). Rank 0's. */
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/reading.h"
#include "engine/train/saves/training_saves.h"
#include "memory/log.h"
#include "memory/scope.h"

status training_find_saved(char **out, const training *t)
{
    AUTO_FREE char *path = must_format("%s/events.jsonl", t->folder), *text = NULL;
    int64_t bytes;
    *out = NULL;
    status s = reading_file(&text, &bytes, path);
    for (char *line = text, *end; s == STATUS_OK && line && (end = strchr(line, '\n')); line = end + 1) {
        json_auto_t *event = json_loadb(line, (size_t)(end - line), 0, NULL);
        const char *what = json_string_value(json_object_get(event, "event"));
        const char *name = json_string_value(json_object_get(event, "words"));
        if (what && name && strcmp(what, "saved") == 0) {
            free(*out);
            *out = must_strdup(name);
        }
    }
    return s;
}

/* The step in the name of a checkpoint; -1: another name, or none. */
static int64_t step_of(const char *name)
{
    return name ? mirror_prefix_step(strncmp(name, ".old-", strlen(".old-")) ? name : name + strlen(".old-")) : -1;
}

static status look_at(checkpoint_place *out, bool *went_back, const training *t, const checkpoint_offers *offers)
{
    AUTO_FREE char *saved = NULL;
    int64_t step = step_of(strrchr(offers->folder[0], '/') + 1);
    if (checkpoint_place_read(out, offers->folder[0]) != STATUS_OK)
        out->step = step; /* it is damaged: its name is all that can be told */
    TRY(training_find_saved(&saved, t));
    *went_back = !offers->trouble && step >= 0 && step_of(saved) > step;
    return STATUS_OK;
}

status training_branch_look(checkpoint_place *out, bool *went_back, const training *t)
{
    RELEASED_BY(checkpoint_offers_free) checkpoint_offers offers = {0};
    *out = (checkpoint_place){.step = -1};
    *went_back = false;
    TRY(checkpoint_offers_find(&offers, t->checkpoints));
    return offers.count > 0 ? look_at(out, went_back, t, &offers) : STATUS_OK;
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
    checkpoint_place here, *now = &t->branch.now;
    const checkpoint_place *there = &t->mirroring.newest;
    bool went_back;
    *now = (checkpoint_place){0};
    if (!t->guards.origin || t->new_stage)
        return STATUS_OK;
    TRY(training_branch_look(&here, &went_back, t));
    *now = t->branch.loaded;
    bool later = checkpoint_place_later(&here, now), later_there = checkpoint_place_later(there, now);
    if (!went_back && !later && !later_there)
        return STATUS_OK;
    int64_t newest = here.branch;
    if (there->step >= 0 && there->branch > newest)
        newest = there->branch;
    checkpoint_place_go_back(now, newest);
    log_info("the run has been further than step %lld: what came after it is undone", (long long)t->at.step);
    return STATUS_OK;
}
