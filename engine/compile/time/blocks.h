/* How many blocks, one a multiprocessor, the kernels of a GPU's communicators have.
 *
 * While a transfer travels, or a message's kernel waits for its peer, its blocks keep their multiprocessors from what
 * computes beside it. More blocks end a transfer earlier, until its links are full. A communicator along an axis within
 * a stage has the number whose price is least: what is waited for, and what the occupied multiprocessors would have
 * computed. When a message begins hangs on another stage: those have the number, of two, four or eight, with which the
 * schedule ends first, as if all stages were like this one. What stages do together (a divided head's sums) is waited
 * for by all of them and has as many as fill its links.
 * The run says it to the library when it opens the groups (`comm_use`), `plan` says it of every rank it lists.
 */
#pragma once

#include "engine/compile/model/groups.h"
#include "engine/compile/time/profile.h"
#include "parallel/schedule/schedule.h"

enum { BLOCKS_COUNTS = 8 };

/* How many times as long the ops of a program take beside so many occupied multiprocessors, which products notice by
 * whole waves of tiles. */
typedef struct blocks_slowdown {
    double of[BLOCKS_COUNTS]; /* at the numbers of blocks.c; all 1 where nothing is occupied */
} blocks_slowdown;

void blocks_measure(blocks_slowdown *out, const profile *p, const program *list);
/* Between the numbers that were measured it is linear. */
double blocks_slower(const blocks_slowdown *s, int blocks);
/* Writes use.blocks of every row that `list`, a training step of rank at->rank, asks something of; 0: the library's own
 * number, also where the host moves messages. Rows that share a communicator have the most of them. `s`: the step's
 * schedule, by which messages between stages are priced; NULL: they have the most that they may. `slower`: what
 * blocks_measure says of the same; NULL: it is asked. */
void blocks_choose(groups *g, const profile *p, const grid *at, const program *list, const schedule *s,
                   const blocks_slowdown *slower);
/* How many the communicator of `o` has, 0 where the host moves messages. */
int blocks_of(const groups *g, const profile *p, const op *o, int me);
