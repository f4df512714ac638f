/* A schedule turned into each rank's steps: launch a receive, wait, compute, launch a send, or its part of an exchange
 * of all stages (exchange.h).
 *
 * Between two ranks there is one channel in each direction, and its messages match in order: no tags. All launches of
 * a rank are in one total order, in which it must perform them. The caller owns the lowering and frees it with
 * lowering_free.
 *
 * Why this cannot deadlock, even if a rank's communication is one serial queue and a message passes only when it heads
 * the queues of both its ranks: all messages of the pipeline are put into one global order, by the end of the action
 * that makes them in a simulation of the schedule, and each rank launches its messages in that order. An action waits
 * only for messages made before it began, so those come before any message it makes. Take the first message of the
 * global order that has not passed: all before it have, so the action that makes it has run, no message precedes it in
 * either queue, and all steps of its receiver before launching the receive wait only for messages before it. So it
 * passes. Waiting for a send just before a later send is launched delays only messages that are later in the order. A
 * meeting of all stages is a message that is made when the last part of it is: its launches follow the rank's own part.
 * The same holds where actions contain collectives that are in the same queue (tensor parallelism, reductions of
 * gradients): a collective in front of an action was launched before it, so it is earlier in the order than the
 * action's messages, and has passed. lowering_check() proves the same by replay, without this argument.
 */
#pragma once

#include "parallel/schedule/exchange.h"
#include "parallel/schedule/simulate.h"

typedef enum lowering_kind {
    LOWERING_COMPUTE,
    LOWERING_RECEIVE,  /* launch: the buffer must be there from here on */
    LOWERING_SEND,     /* launch: the buffer must stay untouched until the step that waits for it */
    LOWERING_EXCHANGE, /* launch of a meeting: both */
    LOWERING_WAIT,
    LOWERING_KINDS
} lowering_kind;

typedef struct lowering_step {
    uint8_t kind;    /* lowering_kind */
    uint8_t payload; /* exchange_kind; of communication */
    int16_t peer;    /* the other stage of a message; -1 for compute and meetings */
    /* Compute: the action. Receive: its taker. Send: its maker. Meeting: its taker here, or else the maker of its part.
     * Wait: as its launch */
    action action;
    int32_t launch; /* index in this stage's launch order; wait: its launch's; -1 for compute */
    int32_t pair;   /* launch: the step that waits for it; wait: the step that launched it; -1 for compute */
} lowering_step;

typedef struct lowering {
    int stages;
    lowering_step **steps; /* [stages][counts[stage]] */
    int *counts;           /* [stages] */
    int *launches;         /* [stages]: number of receives, sends and meetings */
} lowering;

typedef struct lowering_options {
    /* A receive is launched in time for its message: before the action that is running at its stage when the message is
     * made (in the simulation), and this many actions earlier still, in case the run is not like the simulation. Each
     * costs a buffer held meanwhile. The launch order may move it. */
    int lookahead;
    /* Sends in flight on one channel: a send is waited for just before the send `sends_under_way` later on its channel,
     * or at the end of the list. At least 1. Likewise meetings of one kind without a taker here. */
    int sends_under_way;
} lowering_options;

#define LOWERING_DEFAULTS ((lowering_options){.lookahead = 1, .sends_under_way = 1})

/* Lowers timing->schedule, which passes schedule_check. Neighbouring chunks of one stage need no communication: the
 * next chunk finds the result in place. `timing` is a simulation in which forwards and backwards take time. Any is
 * correct, and all ranks must use the same; with costs near the true ones a message seldom waits for another that was
 * put before it. */
status lowering_make(lowering *out, const simulation *timing, lowering_options options);
void lowering_free(lowering *l);

/* "receive", "send", ... */
const char *lowering_kind_name(int kind);

/* Checks by replay that the lowered lists of all stages end with every message received.
 *
 * The replay is the strictest reading of communication: each rank's is one serial queue in launch order, a message
 * passes only when its send heads the sender's queue while its receive heads the receiver's (rendezvous), a meeting
 * when it heads the queues of all stages, and every action has collectives of its own in the same queue, among ranks
 * with the same lists: it ends only when all launched before it has passed. Anything that passes here also passes where
 * ranks buffer or overlap more, as NCCL does: there a communicator is such a queue, kernels of several communicators
 * are started (not ended) in launch order, or in a graph on older drivers ended in it. It is independent of the making
 * of the lists.
 */

/* STATUS_OK if
 * - each stage computes exactly the schedule's actions, in its order;
 * - launches are numbered in the order of the list, each is waited for exactly once, later, and a send is launched
 *   after the action that makes it and every receive is waited for before the action that takes it, a meeting likewise
 *   on each stage;
 * - the message that meets a receive on its channel, in order, is the one the receive is for;
 * - every action that needs a message of another stage has received it, once, and no message is left;
 * - all stages reach the end of their lists. */
status lowering_check(const lowering *l, const schedule *s);
