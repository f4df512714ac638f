/* The run's saved state on disk and in an object store, and where it begins: checkpoints, exports, the mirror, an
 * earlier run moved aside, a branch of its own history. */
#pragma once

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/checkpoint/checkpoint_place.h"
#include "engine/mirror/mirror.h"
#include "engine/state/nodes/node_copies.h"
#include "engine/state/save/saver.h"
#include "engine/train/rank/training.h"

/* Rank 0's mirror of the checkpoints in an object store, under checkpoint.mirror. */
typedef struct training_mirroring {
    mirror *thread;          /* NULL before training_upload_open, and on other ranks */
    char id[MANIFEST_RUN];   /* id of the run over all its starts; "": none */
    bool held;               /* this start has written that it holds the mirror */
    checkpoint_place newest; /* newest in the mirror at the start of the run; step -1: unknown */
    mirror_facts facts;      /* facts as last polled */
} training_mirroring;

/* The run's position in its own history, in which it may have gone back. */
typedef struct training_branch {
    checkpoint_place loaded; /* place of the last checkpoint loaded */
    checkpoint_place now;    /* rank 0's: its branch and the previous ones; the step is where the branch began */
} training_branch;

/* Checkpoints, on disk and in the memory of nodes. */
struct training_saves {
    saver *saver;                     /* NULL before training_save_open */
    bool refused;                     /* a state was not saved because a value is not finite */
    node_copies *copies;              /* copies in the memory of nodes; NULL before training_restore */
    struct exporter *exporter;        /* rank 0's; NULL: checkpoint.export is off */
    char *extra_name, *extra_choices; /* names of extra files of a checkpoint */
    char *origin, *back;              /* checkpoints this process began from, and goes back to; or NULL */
    training_mirroring mirroring;
    training_branch branch;
};

/* train_checkpoint.c */
training_saves *training_saves_make(void);
/* Cancels all work but writing a checkpoint's shares; call before closing the executor and the islands. */
void training_saves_close(training_saves *s);

/* Returns the seconds that training has waited for saves since the last call. */
double training_saves_stall(training *t);

/* Runs once before the first step: fails if a requested copy of the state does not fit. */
status training_save_open(training *t);
/* Starts to save the state after this step, to the run's checkpoints, or `in_memory` of this node and a neighbour's;
 * waits for a save in progress. The last save of a run is waited for and must succeed; training_save_advance drives any
 * other, and the run continues if it fails. */
status training_save(training *t, bool in_memory, bool last);
/* Advances the save by all ranks' saver_progress; fails if a state was not saved because it is not finite.
 * Collective. */
status training_save_advance(training *t, bool any_working, bool any_failed);
/* Waits for the save in progress, if any. Collective. */
status training_save_finish(training *t);
/* Writes every parameter's gradient of the last step, under debug.gradients. */
status training_dump_gradients(training *t);

/* train_restore.c */
/* Loads the latest complete checkpoint, or the one that checkpoint.resume names, or initial weights (drawn, or
 * model.from's). */
status training_restore(training *t);

/* Undoes the steps since the checkpoint `back`, or since the run began. Collective, between steps. */
status training_go_back(training *t);

/* Checkpoints that rank 0 finds when the run begins: the only look-up of the run's folder; a mirror's or the nodes'
 * memory's must be newer to be used. */
typedef struct training_found {
    checkpoint_offers offers; /* offers of the folder, without undone ones */
    checkpoint_place place;   /* place of the first offer; step -1: none */
    int64_t named;            /* step of the first offer or of `saved`, from its name; -1: neither, INT64_MAX: a
                               * custom name, which counts as the newest */
    int64_t mirrored;         /* step of the last checkpoint that the run mirrored, from events.jsonl; -1: none */
    char *saved;              /* last checkpoint that the run saved, from events.jsonl; NULL: none */
    bool went_back;           /* the user made the folder name an earlier one than that */
} training_found;

status training_find(training_found *out, const training *t);
void training_found_free(training_found *f);
/* train_mirror.c: no-ops without checkpoint.mirror or an s3:// path in checkpoint.resume. Collective.
 *
 * Runs while the run begins, in its folder; again, with `aside`, after an earlier run was moved aside. Determines the
 * mirror's owner and fetches newer checkpoints. */
status training_mirror_begin(training *t, bool aside);

/* Requires training_save_open. Not collective. */
status training_upload_open(training *t);
/* Polls finished uploads between steps. */
void training_upload_look(training *t);
/* Waits for the last upload, at most as long as a save may take; a minute if the run was asked to stop. */
void training_upload_finish(training *t, bool stopped);

/* train_export.c: no-ops unless checkpoint.export is set. Rank 0 only. */
/* Fails for a model that has no config.json; starts with exports that an earlier start left undone. */
status training_export_open(training *t);
/* Queues an export of a published checkpoint. */
void training_export_saved(training *t, int64_t step, const char *name);
/* True if the checkpoint waits to be exported. Any thread. */
bool training_export_holds(const training *t, const char *name);
void training_export_finish(training *t); /* waits until all are exported or have failed */
/* Cancels the export in progress and removes its files. Accepts NULL. */
void training_export_close(struct exporter *e);
