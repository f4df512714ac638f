/* How large are honest changes? Each island counts once, by the norm of its change that was merged last, so that one
 * that sends many small ones does not decide what is large.
 *
 * Islands are told apart by their keys, since one with a good key can claim several slots and names: the slots of one
 * key count together, by their median. Where all islands share one key, slots are told apart instead.
 *
 *     three or more are known: the median    two: the larger    one: what is usual for itself alone, unless it is the
 *     judge's own
 */
#pragma once

#include <stdbool.h>

#include "engine/islands/wire/keys.h"
#include "engine/islands/meet/roster.h"

typedef struct norms {
    struct {
        bool known;
        double norm; /* of the slot's change that was merged last */
        char key[KEYS_TEXT];
    } of[ROSTER_SLOTS];
} norms;

/* The change of the slot, from an island with this public key, is merged. */
void norms_note(norms *n, int slot, const char *key, double norm);
/* What is usual beside a change of the slot, for an island in slot `self`, or for one without a slot, -1; 0: not
 * known. */
double norms_usual(const norms *n, int slot, int self);
