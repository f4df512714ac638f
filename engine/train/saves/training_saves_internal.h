/* What a run's saves know, behind their functions. */
#pragma once

#include "engine/checkpoint/checkpoint_place.h"
#include "engine/mirror/mirror.h"
#include "engine/state/nodes/node_copies.h"
#include "engine/state/save/exporter.h"
#include "engine/state/save/saver.h"
#include "engine/train/saves/training_saves.h"

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
    exporter *exporter;               /* rank 0's; NULL: checkpoint.export is not set */
    char *extra_name, *extra_choices; /* names of the files that go with a checkpoint */
    char *exports;                    /* the folder */
    training_mirroring mirroring;
    training_branch branch;
};
