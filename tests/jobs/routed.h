/* A small Mixtral whose routers send tokens where a test wants them, as a Hugging Face folder that a run starts from,
 * and data whose steps have such tokens.
 *
 * A token is of class A or B, by its id. Two columns of the embedding tell routers so in every layer: one is the
 * class's sign, one is the same for all. Nothing but training writes to them.
 */
#pragma once

#include <stdbool.h>

enum { ROUTED_EXPERTS = 4, ROUTED_SEQUENCE = 32, ROUTED_BATCH = 8, ROUTED_VOCABULARY = 64 };

typedef enum routed_to {
    ROUTED_ANYWHERE,      /* as noise has it */
    ROUTED_TO_ONE_EXPERT, /* of the second rank of two */
    ROUTED_TO_ONE_RANK,   /* both experts of the second */
    ROUTED_BY_CLASS,      /* A to both experts of the first rank, B to those of the second */
} routed_to;

/* `active`: experts of a token. `mute`: attention adds nothing. */
void routed_write(const char *folder, routed_to to, int layers, int active, bool mute);

/* Batches of ROUTED_BATCH samples, unshuffled, one a letter of `pattern`: a, b, or m of both classes. */
void routed_write_data(const char *prefix, const char *pattern);

/* The loss of the first batch on a plain model of one layer without attention, in float64: of the assignments to the
 * experts of each of `ranks`, in the order of (expert, token, choice), only `room` count. *dropped: how many do not. */
double routed_loss(int *dropped, const char *folder, const char *data, int ranks, int room);
