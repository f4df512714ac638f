/* What the files that play a step share: an op as it is played. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { COMPUTES, LAUNCHES, COPIES, WAITS };

struct timing_op {
    double seconds;      /* computing, or of the transfer */
    double end;          /* when the rank goes on after it */
    double launched;     /* of a launch: when it is made */
    double travels;      /* and when its transfer begins */
    double idle, behind; /* of a wait: as timing_span's */
    int request, microbatch;
    int peer; /* of a message: a stage; else -1 */
    uint8_t does, axis, upstream, phase, before;
    bool leaves, sends, last; /* its node; or copies to host memory; of several launched as one */
    bool late;                /* is launched only behind the rank's last micro-batch */
    int16_t chunk;
};
