/* Programs replayed without running them, and without asking the planner: does every op find the bytes that its
 * operands' producers wrote, and do all ranks' messages meet?
 *
 * A replay_rank is compiled step by step from the parts of compile(), so that a copy of the program as it was before
 * storage was shared and placed can be kept: what each operand *is* comes from that copy, where it lies from the plan.
 */
#pragma once

#include "engine/compile/compile.h"

enum { REPLAY_TEXT = 512 };

typedef struct replay_rank {
    compiled c;
    compiled_program p;
    int *roots; /* [ops][OP_MAX_IN + OP_MAX_OUT]: which array of values an operand belongs to; -1: none */
    int64_t *offsets, *pitches; /* likewise: where in its array the operand begins, and from row to row, in bytes */
    int root_count;
    int64_t *root_bytes;
} replay_rank;

/* The micro-batches' part of a program, as the schedule lowers it: no update, no waits for collectives. */
status replay_lower(replay_rank *out, const compile_options *o);
/* `place`: give addresses (replay_memory asks for them). `before`, unless NULL, sees the program before storage is
 * shared and addresses are given, `after` afterwards: mutants. */
status replay_compile(replay_rank *out, const compile_options *o, bool place, void (*before)(replay_rank *r),
                      void (*after)(replay_rank *r));
void replay_free(replay_rank *r);

/* true, or false and a sentence. Every read finds what was last written to that array of values, asynchronous ops'
 * operands untouched until their wait. */
bool replay_memory(char text[REPLAY_TEXT], const replay_rank *r);
/* All ranks against each other, each rank's communication one serial queue: kinds, sizes and order agree, and all
 * end. */
bool replay_messages(char text[REPLAY_TEXT], const replay_rank *ranks, int count);
