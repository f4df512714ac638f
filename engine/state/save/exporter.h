/* Hugging Face folders made of a run's checkpoints, beside its training: a thread reads a published checkpoint, of
 * whatever layout, and writes EXPORTS/step-XXXXXXXX, which is there whole or not at all; then EXPORTS/latest names it.
 *
 * A checkpoint that waits to be exported is spared by pruning. Unlike a saver an exporter takes memory while it works:
 * the manifest, and the few buffers of weights_copy. Opaque; the caller's until exporter_close.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

typedef struct exporter exporter;

typedef struct exporter_options {
    const char *checkpoints, *exports; /* folders, which outlive the exporter */
    /* README.md of the export of a step, the exporter's to free. On its thread. */
    char *(*card)(void *context, int64_t step);
    /* What has become of an export: NULL, or why there is none. On its thread. */
    void (*tell)(void *context, const char *name, double seconds, const char *failure);
    void *context;
} exporter_options;

/* Removes what an exporter that was killed has left. */
status exporter_open(exporter **out, const exporter_options *options);
/* A checkpoint that is published: "step-00000100". An export of that name is replaced. */
void exporter_add(exporter *e, const char *name);
/* The same, unless there is an export of it. */
status exporter_add_missing(exporter *e, const char *name);
/* Does the checkpoint wait to be exported? Any thread. */
bool exporter_holds(exporter *e, const char *name);
/* Until all are exported, or have failed. */
void exporter_wait(exporter *e);
/* Gives up what is under way, of which nothing is left. NULL is accepted. */
void exporter_close(exporter *e);
