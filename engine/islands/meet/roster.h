/* The islands of a run, read from etcd at one moment: the members, their offers, the changes they hold, and the last
 * merge.
 *
 * Keys, under PREFIX/ (membership_turn.c writes them; those marked * vanish with their island's lease):
 *     fingerprint                 hash of the configuration that islands must share
 *     name/SLOT                   the island that had the slot last
 *     member/SLOT *               {id, name, key, ranks, endpoints, ready, taking, merge, history, step, updates}
 *     left/SLOT                   {id}: the last island that left the slot by itself; others' leases run out
 *     offer/SLOT *                {merge, history, offer, tokens, updates, fragment, parting}: a change to fetch; and
 *                                 {undo}: its island wants the merge before undone
 *     have/SLOT *                 {merge, slots}: the slots with changes that it holds whole
 *     server *                    as member/SLOT: the job that holds the model, of topology server
 *     turn/SLOT                   an id: written anew where a decision had no answer, so that it is not carried out
 *                                 later; the server's SLOT is 64
 *     head                        {merge, step, updates, parts: [{slot, offer, tokens, name}]}: the last merge and its
 *                                 islands; and {undoes}: the merge before, which it undoes; and {history, from,
 *                                 base}: see below
 * A server answers one offer with each writing of `head`. Its parts are the last answer to every slot, with {merge, id,
 * refused}: `id` of the offer, drawn by the island, `merge` the one that took it, or the last one when it was refused.
 * A merge is one transaction on `head`, which holds only if head, the offers and the decider's turn are unchanged since
 * it read them: so there is one sequence of merges, and adding to it takes write access to etcd. If the last merges are
 * lost with the islands that had them, an island writes an earlier head; an etcd that is forked, or set back, takes a
 * number twice. So each merge begins a history, which has an id that its decider draws: it comes after number `base` of
 * the history `from`. A number that two histories use names two states. Former versions wrote a history of 0, or one
 * for many merges; with 0, numbers alone are compared. Values are never assumed to be
 * well-formed, and counts are at most 2^56.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/checkpoint/manifest.h"
#include "engine/islands/wire/keys.h"

/* One more member than slots: the server. */
enum { ROSTER_SLOTS = 64, ROSTER_SERVER = ROSTER_SLOTS, ROSTER_MEMBERS, ROSTER_NAME = 64 };

typedef struct roster_member {
    bool here, ready; /* here: alive, and with a trusted key */
    bool taking;      /* not ready: fetching the last merge's state, and merges wait for it */
    char name[ROSTER_NAME], key[KEYS_TEXT];
    char id[MANIFEST_RUN], left[MANIFEST_RUN]; /* process id; id of the last process that left by itself */
    int ranks;
    int64_t merge, history;            /* its state is the one after this merge */
    int64_t state_step, state_updates; /* step and updates of that state */
    const json_t *endpoints;           /* owned by the roster */
    bool offers;
    int64_t offer_merge, offer_history, offer, tokens, updates, offer_revision, offer_id;
    int fragment;
    bool parting; /* leaves after this merge */
    bool undo;    /* wants the previous merge undone */
    int64_t have_merge;
    uint64_t have; /* bit s: holds the change of slot s; 0: has not reported */
} roster_member;

/* A server's reason to refuse an offer. */
typedef enum roster_refusal {
    ROSTER_TAKEN,
    ROSTER_STALE,      /* its base is older than outer.staleness */
    ROSTER_UNSOUND,    /* not finite, or cannot be fetched */
    ROSTER_IMPOSSIBLE, /* its base is a merge that never happened */
    ROSTER_REFUSALS
} roster_refusal;

typedef struct roster_part {
    int slot;
    char name[ROSTER_NAME]; /* unset in a server's head */
    int64_t offer, tokens;
    int64_t merge, id; /* set in a server's head */
    roster_refusal refusal;
} roster_part;

typedef struct roster {
    bool reached;                /* etcd has answered; else this is its last answer */
    bool evicted;                /* another island has our slot */
    int64_t settled;             /* includes our writes up to this number */
    int64_t merge, revision;     /* head's; merge -1: no head yet */
    int64_t history, from, base; /* head's history, which began after merge `base` of history `from` */
    int64_t step, updates;
    int64_t undoes; /* the merge that this one undoes, outer.undo; 0: a merge of changes */
    int parts;
    roster_part part[ROSTER_SLOTS]; /* parts of the last merge, by slot */
    roster_member member[ROSTER_MEMBERS];
    json_t *root;
} roster;

/* Reads a roster from membership_roster's text; `trusted` NULL: trusts every key. */
status roster_read(roster *out, const char *text, const keys *trusted);
/* Reads it from the pairs, which the caller keeps alive as long as the roster. */
void roster_read_pairs(roster *out, const json_t *pairs, const keys *trusted);
/* Reads `head` alone; members stay unchanged. */
void roster_read_head(roster *out, const json_t *value, int64_t revision);
/* Copies etcd_read's pairs without the first `prefix` bytes of their keys, which all of them have. Parses values that
 * are JSON, and no deeper than the islands' own; others stay text. The caller frees the array. */
json_t *roster_pairs(const json_t *raw, size_t prefix);
void roster_free(roster *r);
/* Returns a rank's endpoint; NULL: no such rank, or it states none. */
const char *roster_endpoint(const roster *r, int slot, int rank);

/* True if a state after `merge` of `history` is in the last merge's line: its ancestor or its descendant. If not, its
 * merges were given up. */
bool roster_is_in_line(const roster *r, int64_t merge, int64_t history);

/* Return the slots here or ready, as bits. */
uint64_t roster_here(const roster *r);
uint64_t roster_ready(const roster *r);
/* Returns the slots ready and offering for this merge. */
uint64_t roster_offers(const roster *r, int64_t merge);
/* Returns the slots that merge `merge` would take now: reporting islands, if every reporting island holds their change;
 * 0: none, too few, or only islands that leave. *all: every ready island has reported, except refused slots. */
uint64_t roster_takes(bool *all, const roster *r, int64_t merge, int least, uint64_t refused);

/* Reports changes of the other islands, a line each: one joined, left, is away (its lease has run out: killed, frozen
 * or cut off), or is back, and after which outer step. Compares the roster with the previous one. */

enum { NEWS_LINE = 256 }; /* limit of a line, bytes */

typedef struct news news;
typedef void news_say(void *context, const char *line);

/* `own`: the slot to leave out. */
news *news_open(int own, news_say *say, void *context);
void news_close(news *n); /* NULL is accepted */
/* `now` in seconds, of any clock; `lease`: seconds without a sign of life until an island is given up. */
void news_look(news *n, const roster *r, double now, int lease);
