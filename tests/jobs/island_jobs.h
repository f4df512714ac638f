/* Islands as tests see them: an etcd of the test's own, jobs that meet there, and what they leave. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/jobs/launch.h"
#include "tests/jobs/rendezvous.h"

enum { ISLAND_JOBS_LIMIT = 300 }; /* seconds; runs take two */

/* NULL: etcd is not installed. */
extern rendezvous *island_jobs_etcd;
extern const char *island_jobs_program; /* beside the test */

/* Set-up and tear-down of a group: *state is a folder, `top`, with keys, data and run.yaml. */
int island_jobs_prepare(void **state);
int island_jobs_finish(void **state);

/* An island of a run, in the folder top/RUN-SLOT; `format`: keys of its own. */
launch *island_jobs_start(const char *top, const char *run, int slot, int ranks, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* From now on the program writes what it merges to top/RUN-merges (merges_dump.c). */
void island_jobs_record(const char *top, const char *run);
char *island_jobs_folder(const char *top, const char *run, int slot);
/* Ends well, or stopped by a signal; what it said, the caller's. */
char *island_jobs_end(launch *l);
/* How many tensors of the section are the same in the latest checkpoints. */
int island_jobs_same(const char *top, const char *run, int slot, const char *other_run, int other, const char *section);
bool island_jobs_same_losses(const char *top, const char *run, const char *other, int slot, int other_slot);
/* What the run's islands are configured for, as etcd holds it. */
uint64_t island_jobs_fingerprint(const char *run);
