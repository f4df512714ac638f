/* Who exchanges with whom when islands gossip: of those who are there, groups drawn anew for every exchange (NoLoCo,
 * 2506.10911).
 *
 * A pure function of the run, the exchange and who is there, so that islands who see the same islands draw the same
 * groups without a word.
 */
#pragma once

#include <stdint.h>

/* Bits of the slots of the group that `slot`, itself among them, has at exchange `number`. Groups have `size` islands;
 * what is left over joins the last group if it is a single island, else it is a smaller group. */
uint64_t groups_draw(uint64_t among, int slot, int size, uint64_t seed, int64_t number);
