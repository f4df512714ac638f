/* What etcd says about the islands of a run, read at one moment: who is there, what they offer and hold, and the last
 * merge.
 *
 * Keys, under PREFIX/ (membership_turn.c writes them; those marked * vanish with their island's lease):
 *     fingerprint                 of the configuration that islands must share
 *     name/SLOT                   the island that had the slot last
 *     member/SLOT *               {id, name, key, ranks, endpoints, ready, taking, merge, history, step, updates}
 *     left/SLOT                   {id}: of the island that left the slot by itself last; others are lost with their
 *                                 lease
 *     offer/SLOT *                {merge, history, offer, tokens, updates, fragment, parting}: a change to be had; and
 *                                 {undo}: its island wants the merge before undone
 *     have/SLOT *                 {merge, slots}: whose changes it holds, all of them whole
 *     server *                    as member/SLOT: the job that holds the model, of topology server
 *     turn/SLOT                   an id: written anew where a decision had no answer, so that it is not carried out
 *                                 later; the server's SLOT is 64
 *     head                        {merge, step, updates, parts: [{slot, offer, tokens, name}]}: the last merge and who
 *                                 took part; and {undoes}: the merge before, which it undoes; and {history, from,
 *                                 base}: see below
 * A server answers one offer with each writing of `head`. Its parts are the last answer to every slot, with {merge, id,
 * refused}: `id` of the offer, drawn by the island, `merge` the one that took it, or the last one when it was refused.
 * A merge is one transaction on `head`, which holds only if head, the offers and the decider's turn are what it read:
 * so there is one sequence of merges, and whoever cannot write to etcd cannot add to it. Where the last merges are lost
 * with whoever had them, an island that writes an earlier head begins a history, which has an id that it draws: its
 * first merge comes after number `base` of the history `from`. So a number that two histories use names two states. A
 * history of 0 is one that a former version wrote, and then numbers alone are compared. Nothing that is read is
 * believed to be well-formed, and counts are at most 2^56.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/checkpoint/manifest.h"
#include "engine/islands/wire/keys.h"

/* Of the members, one more than slots: the server's. */
enum { ROSTER_SLOTS = 64, ROSTER_SERVER = ROSTER_SLOTS, ROSTER_MEMBERS, ROSTER_NAME = 64 };

typedef struct roster_member {
    bool here, ready; /* here: alive, and its key is trusted */
    bool taking;      /* not ready: it is fetching the last merge's state, and merges wait for it */
    char name[ROSTER_NAME], key[KEYS_TEXT];
    char id[MANIFEST_RUN], left[MANIFEST_RUN]; /* of its process; of the last one that left by itself */
    int ranks;
    int64_t merge, history;            /* its state is that after this merge */
    int64_t state_step, state_updates; /* of that state */
    const json_t *endpoints;           /* the roster's */
    bool offers;
    int64_t offer_merge, offer_history, offer, tokens, updates, offer_revision, offer_id;
    int fragment;
    bool parting; /* it leaves after this merge */
    bool undo;    /* it wants the merge before undone */
    int64_t have_merge;
    uint64_t have; /* bit s: holds the change of slot s; 0: has said nothing */
} roster_member;

/* Why a server has refused an offer. */
typedef enum roster_refusal {
    ROSTER_TAKEN,
    ROSTER_STALE,      /* its base is older than outer.staleness */
    ROSTER_UNSOUND,    /* it is not finite, or cannot be fetched */
    ROSTER_IMPOSSIBLE, /* its base is a merge that has not been */
    ROSTER_REFUSALS
} roster_refusal;

typedef struct roster_part {
    int slot;
    char name[ROSTER_NAME]; /* not in a server's */
    int64_t offer, tokens;
    int64_t merge, id; /* of a server's */
    roster_refusal refusal;
} roster_part;

typedef struct roster {
    bool reached;                /* etcd has answered; else what it said last */
    bool evicted;                /* another island has our slot */
    int64_t settled;             /* what we wrote up to this number is in it */
    int64_t merge, revision;     /* of head; merge -1: there is none yet */
    int64_t history, from, base; /* of head: its history, which began after merge `base` of the history `from` */
    int64_t step, updates;
    int64_t undoes; /* the merge that this one undoes, outer.undo; 0: it is one of changes */
    int parts;
    roster_part part[ROSTER_SLOTS]; /* of the last merge, by slot */
    roster_member member[ROSTER_MEMBERS];
    json_t *root;
} roster;

/* From membership_roster's text; `trusted` NULL: every key is. */
status roster_read(roster *out, const char *text, const keys *trusted);
/* The same of the pairs alone, which stay the caller's: as long as he has them. */
void roster_read_pairs(roster *out, const json_t *pairs, const keys *trusted);
/* The same of what `head` holds alone: no member is touched. */
void roster_read_head(roster *out, const json_t *value, int64_t revision);
/* Pairs as etcd_read gives them, without the first `prefix` bytes of their keys, which all of them have. Values that
 * are JSON, and no deeper than what islands write, are parsed; others stay text. The array is the caller's. */
json_t *roster_pairs(const json_t *raw, size_t prefix);
void roster_free(roster *r);
/* NULL: it has no such rank, or says none. */
const char *roster_endpoint(const roster *r, int slot, int rank);

/* Is a state after `merge` of `history` in the line of the last merge: one that it has come from, or that has come from
 * it? If not, it is of merges that were given up. */
bool roster_is_in_line(const roster *r, int64_t merge, int64_t history);

/* Bits of the slots. */
uint64_t roster_here(const roster *r);
uint64_t roster_ready(const roster *r);
/* Ready, and offering for this merge. */
uint64_t roster_offers(const roster *r, int64_t merge);
/* The slots that merge `merge` would take, if it were decided now: whose change every island that reports holds, and
 * that report; 0: none, too few, or only islands that leave. *all: everybody who is ready has reported, but for the
 * slots that nobody need wait for. */
uint64_t roster_takes(bool *all, const roster *r, int64_t merge, int least, uint64_t refused);

/* What becomes of the other islands, a line each: who joined, left, is away (its lease has run out: killed, frozen or
 * cut off), or is back, and after which outer step. Told by comparing what etcd says at one moment with what it said
 * before.
 */

enum { NEWS_LINE = 256 }; /* bytes of a line, at most */

typedef struct news news;
typedef void news_say(void *context, const char *line);

/* `own`: the slot that is not told of. */
news *news_open(int own, news_say *say, void *context);
void news_close(news *n); /* NULL is accepted */
/* `now` in seconds, of any clock; `lease`: seconds without a sign of life after which an island is given up. */
void news_look(news *n, const roster *r, double now, int lease);
