/* Scalars for TensorBoard: an event file that its reader can follow while it grows.
 *
 * A tensorboard is one file of records in a folder, flushed at every write; it belongs to the caller until
 * tensorboard_close. A record is u64 length, u32 masked CRC32C of the length, data, u32 masked CRC32C of the data; the
 * data is a protobuf message Event, encoded by hand:
 *
 *     Event    1: double wall_time   2: int64 step   3: string file_version
 *              5: Summary summary    7: SessionLog session_log
 *     SessionLog  1: int32 status    Summary  1: repeated Value     Value  1: string tag   2: float simple_value
 */
#pragma once

#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct lock lock; /* engine/system/lock.h */
typedef struct tensorboard tensorboard;

typedef struct tensorboard_value {
    const char *tag; /* "train/loss" */
    double value;    /* written as fp32, all that the format has */
} tensorboard_value;

/* Resumes the newest event file in `folder`, and cuts off its torn end, or makes one,
 * events.out.tfevents.SECONDS.HOST.PROCESS (and the folder if need be). Readers then drop the file's steps from
 * `first_step`, the next to be written, on. wall_time: seconds since 1970. `owner`: as of lines_open. */
status tensorboard_open(tensorboard **out, const char *folder, int64_t first_step, double wall_time, lock *owner);
/* Writes one event. */
status tensorboard_write(tensorboard *t, const tensorboard_value *values, int count, int64_t step, double wall_time);
/* NULL is accepted. */
void tensorboard_close(tensorboard *t);
AUTO_CLOSES(tensorboard, tensorboard_close)
