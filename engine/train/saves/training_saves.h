/* What a run leaves on the disk and in an object store, and where it begins: checkpoints, exports, the mirror, an
 * earlier run moved aside, a branch of its own history. */
#pragma once

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/checkpoint/checkpoint_place.h"
#include "engine/mirror/mirror.h"
#include "engine/state/nodes/node_copies.h"
#include "engine/state/save/saver.h"
#include "engine/train/rank/training.h"

/* The mirror of the checkpoints in an object store, under checkpoint.mirror; rank 0's. */
typedef struct training_mirroring {
    mirror *thread;          /* NULL before training_upload_open, and on other ranks */
    char id[MANIFEST_RUN];   /* of the run over all its starts; "": it has none */
    bool held;               /* this start has written that it holds the mirror */
    checkpoint_place newest; /* in the mirror where the run began; step -1: it is not known */
    mirror_facts facts;      /* at the last look */
} training_mirroring;

/* Where the run is in its own history, which it may have gone back in. */
typedef struct training_branch {
    checkpoint_place loaded; /* of the checkpoint that was loaded last */
    checkpoint_place now;    /* rank 0's: its branch, and those before; the step is the one that it began with */
} training_branch;

/* Checkpoints, on the disk and in the memory of nodes. */
struct training_saves {
    saver *saver;                     /* NULL before training_save_open */
    bool refused;                     /* a state: a value of it is not finite */
    node_copies *copies;              /* in the memory of nodes; NULL before training_restore */
    struct exporter *exporter;        /* rank 0's; NULL: checkpoint.export is not set */
    char *extra_name, *extra_choices; /* names of the files that go with a checkpoint */
    char *origin, *back; /* checkpoints: which this process began from, and which it goes back to; or NULL */
    training_mirroring mirroring;
    training_branch branch;
};

/* train_checkpoint.c */
training_saves *training_saves_make(void);
/* Gives up what is under way, but for the shares of a checkpoint; before the executor and the islands. */
void training_saves_close(training_saves *s);

/* Seconds that training has waited for saves since this was last asked. */
double training_saves_stall(training *t);

/* Once a run, before its first step: refuses where a copy of the state is asked for and does not fit. */
status training_save_open(training *t);
/* Begins to save what this step has left; a save that is still under way is waited for. The last one of a run is waited
 * for and must succeed; any other is looked after by training_save_advance, and if it fails the run goes on. */
status training_save(training *t, bool last);
/* The same into the memory of this node and a neighbour's. */
status training_save_in_memory(training *t);
/* What all ranks have said of their saver_progress; fails where a state was not saved since it is not finite.
 * Collective. */
status training_save_advance(training *t, bool any_working, bool any_failed);
/* Waits for the save under way, if there is one. Collective. */
status training_save_finish(training *t);
/* Every parameter's gradient of the step just played, under debug.gradients. */
status training_dump_gradients(training *t);

/* train_restore.c */
/* The latest checkpoint that is whole, or the one checkpoint.resume names, or initial weights (drawn, or
 * model.from's). */
status training_restore(training *t);

/* Undoes the steps since the checkpoint `back`, or since the run began. Collective, between steps. */
status training_go_back(training *t);

/* By rank 0, while the run begins. What the run's folder has to go on from is asked here alone; what a
 * mirror or the memory of nodes has must be newer. */
typedef struct training_found {
    checkpoint_offers offers; /* of the folder, with those that have been undone */
    checkpoint_place place;   /* of the first of them; step -1: there is none */
    int64_t named;            /* the step of the first, or of `saved`, by its name; -1: there is neither, INT64_MAX: a
                                 name of somebody's own, and nothing is newer */
    char *saved;              /* the last that the run has saved, as events.jsonl says; NULL: none */
    bool went_back;           /* a person has let the folder name an earlier one than that */
} training_found;

status training_find(training_found *out, const training *t);
void training_found_free(training_found *f);
/* train_mirror.c: nothing, without checkpoint.mirror or an s3:// path in checkpoint.resume. Collective.
 *
 * While the run begins, in its folder; again, with `aside`, when an earlier run has been moved aside. Whose the mirror
 * is is settled, and what is newer in it is fetched. */
status training_mirror_begin(training *t, bool aside);

/* After training_save_open. Not collective. */
status training_upload_open(training *t);
/* Between steps: what has become of uploads. */
void training_upload_look(training *t);
/* Waits for the last upload, so long at most as a save may take, a minute where the run was asked to stop. */
void training_upload_finish(training *t, bool stopped);

/* train_export.c: nothing, where checkpoint.export is not set. By rank 0. */
/* Refuses a model that has no config.json; begins with what an earlier start has not come to. */
status training_export_open(training *t);
/* A checkpoint is published. */
void training_export_saved(training *t, int64_t step, const char *name);
/* Does it wait to be exported? Any thread. */
bool training_export_holds(const training *t, const char *name);
void training_export_finish(training *t); /* waits until all are exported, or have failed */
/* Gives up what is under way, of which nothing is left. NULL is accepted. */
void training_export_close(struct exporter *e);
