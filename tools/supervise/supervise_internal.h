/* What the files of `phalanx supervise` share: supervise.c (the starts, and what to do between two; start there) and
 * supervise_attend.c (one job, until it ends). */
#pragma once

#include <sys/types.h>

#include "engine/config/config.h"
#include "engine/system/lock.h"
#include "engine/host/causes.h"
#include "tools/supervise/hosts.h"
#include "tools/supervise/supervise_command.h"

/* A holder of the folder on another machine is dead when its lock has not beaten for so long. */
#define SUPERVISE_LEASE 30.0

typedef struct supervisor {
    supervise_command command;
    config config;
    hosts hosts; /* none: a job of fixed size */
    bool elastic;
    int64_t restarts; /* allowed */
    char *output, *list, *lock;
    lock *own;    /* one supervisor, one folder; NULL: run.lock is off */
    off_t copied; /* of the output, to our own */
    causes memory;

    /* the job at hand */
    char id[INCIDENT_RUN]; /* of its start */
    pid_t child;           /* 0: a job that was at work already */
    lock_sight sight;      /* of that one's lock */
    int ranks, data;
    int64_t position; /* of its incidents */
    bool begun;       /* a rank has been heard of */
    double over;      /* when it was seen to be over; 0: it goes on */
    double heard;     /* when it last wrote something */
    int64_t size;     /* of what it writes */
    double running;   /* when none of its processes was last seen stopped */
    double frozen;    /* for so many seconds one had been when the job was ended; 0: it was not ended for that */
    double asked;     /* when it was last asked to stop; 0: it has not been */
    bool unreachable; /* it cannot be asked, or ended, from here */

    /* what it took */
    bool own_files; /* a start of ours has made the run what it is: from now on it goes on from its own checkpoints */
    int64_t started;
    double failed; /* when the last job was seen to have failed; 0: the run goes on by now */
    int64_t failed_step;
} supervisor;

/* supervise_attend.c */
/* The job, until it ends, however, or another supervisor has taken it over: nothing of it is left. Its exit status. */
int supervise_attend(supervisor *s);
/* Does somebody else supervise this folder by now? */
bool supervise_is_evicted(const supervisor *s);
/* What is left of the job's output, to our own, as long as its reader takes some within `seconds`. */
void supervise_finish_output(supervisor *s, double seconds);
bool supervise_is_server(const supervisor *s);
int64_t supervise_bytes(const char *folder, const char *name);
