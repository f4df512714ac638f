/* Byte pair encoding of one pre-token: which pairs of tokens merge, in which order, into what.
 *
 * The rule: of all neighbouring pairs that can merge take the one of the lowest rank, of equals the leftmost; repeat
 * until none can. A merges is filled once and then read by any number of threads, each with its own merges_scratch.
 */
#pragma once

#include <stdint.h>

#include "engine/text/buffer.h"

typedef struct merges merges;
typedef struct merges_scratch merges_scratch;

merges *merges_open(int64_t expected);
void merges_close(merges *m);
/* left + right become `merged`; a later entry for the same pair replaces an earlier one. */
void merges_add(merges *m, int32_t left, int32_t right, uint32_t rank, int32_t merged);

merges_scratch *merges_scratch_open(void);
void merges_scratch_close(merges_scratch *s);

/* Append the tokens to which ids[count] merge. count < 2^31. */
void merges_apply(const merges *m, merges_scratch *s, buffer_ids *out, const int32_t *ids, int64_t count);
