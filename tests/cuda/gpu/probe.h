/* A device to which single ops are given, and times between events on its queue: what probes.c is written on. A probe
 * owns the device and the tensors that it has made, which last until probe_clear().
 */
#pragma once

#include "kernels/device.h"

enum { PROBE_TENSORS = 64, PROBE_HOST = 4096 }; /* bytes of host memory before what is copied */
#define PROBE_COPIED ((int64_t)256 << 20)       /* bytes, the most each way */

typedef struct probe {
    const device_interface *on;
    device *d;
    int64_t arena_bytes, used;
    int64_t workspace, workspace_bytes; /* for calls of libraries; before everything else */
    tensor tensors[PROBE_TENSORS];
    int count, wanted; /* keys that the device has asked about before */
    bool small, failed;
    const op *any; /* an op that computes, for stamps */
    struct {
        int64_t x, w, y, floats, bytes; /* addresses */
    } fp8;
} probe;

/* false: there is no device */
bool probe_open(probe *out, bool small);
void probe_close(probe *p);
/* Tensors made so far are gone. */
void probe_clear(probe *p);
/* [rows, columns], or [rows] where columns is 0. */
tensor *probe_tensor(probe *p, dtype type, int64_t rows, int64_t columns);
/* Gives the op its scratch and what the device prepares. */
void probe_prepare(probe *p, op *o);
/* The choices of the ops that have been prepared are timed. */
void probe_finish(probe *p);
/* Tensors become random numbers in [-1, 1), whole numbers zeros. */
void probe_fill(probe *p);
/* These bytes of the arena become `value`. */
void probe_set(probe *p, int64_t at, int64_t bytes, int value);
/* Around what is launched: seconds by events on the queue that computes, waited for. */
void probe_begin(probe *p, const op *o);
double probe_end(probe *p, const op *o);
/* Seconds of one launch, the mean of as many as take a third of a second. */
double probe_seconds(probe *p, const op *o);
/* A function of cuBLASLt's, as loaded by the device or linked; NULL: it has none of that name. */
void *probe_symbol(const char *name);
