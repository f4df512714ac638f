/* Rank 0's part of a checkpoint: from the shares of all ranks to a folder that `latest` names.
 *
 * A publisher is opened once for a run and allocates nothing that grows with the model when it publishes. Its buffer is
 * the caller's (CHECKPOINT_WRITER_BUFFER bytes) and may be the writer's. One thread at a time uses it.
 */
#pragma once

#include "engine/checkpoint/checkpoint_writer.h"

typedef struct checkpoint_publisher checkpoint_publisher;

checkpoint_publisher *checkpoint_publisher_open(int ranks, const char *run, char *buffer);
void checkpoint_publisher_close(checkpoint_publisher *p);

/* After every rank's checkpoint_writer_share has succeeded. The pieces of all ranks must cover each tensor exactly
 * once. */
status checkpoint_publisher_publish(checkpoint_publisher *p, const char *folder, const char *name, json_t *meta);

/* After a failure: give the disk back. The message of the failure is kept. */
void checkpoint_clean(const char *folder, const char *name);
/* Before the first save: remove what an interrupted one has left, if the folder is there. */
status checkpoint_tidy(const char *folder);
