/* Working memory that a library may have, where more of it is faster: attention's backward pass on a device
 * (op_attributes.workspace). It gets what the step leaves free where such ops run, and a little more where no budget
 * says how much there is; timing then decides whether the library is used.
 */
#pragma once

#include "engine/compile/model/compiled.h"

/* Bytes that every such op of a placed training program can have; 0 where none would take more than it has. */
int64_t workspace_room(const compiled *c);
/* The largest working memory of any such op of the training program. */
int64_t workspace_taken(const compiled *c);
