/* Data flow between actions: the chunks that feed an action, and the stages that take part.
 *
 * Between neighbouring chunks of layers there are messages: activations down the model, cotangents back. Where the
 * vocabulary is divided over the stages (schedule.shared), every stage has a part of the head and of the embedding, and
 * all stages meet five times for each micro-batch: to sum the embedding onto the first stage, to share the last layer's
 * output, to gather the statistics of the logits, and to bring the cotangents of both back (2411.05288, extended to the
 * embedding).
 *
 * Where the chunk with the last layers reads the embedding of the next tokens (schedule.next_tokens), that comes in the
 * same meeting, and its cotangent goes back in the same one: a chunk on another stage takes or makes them in a second
 * part of its action. It decides no order, since the first layers' forward comes before the last layers', and their
 * backward after it. exchange_taken(), exchange_made() and exchange_makers_of() leave it out; exchange_maker() and
 * exchange_taker() include it.
 */
#pragma once

#include "parallel/schedule/schedule.h"

typedef enum exchange_kind {
    EXCHANGE_ACTIVATION, /* goes to the next chunk of layers */
    EXCHANGE_COTANGENT,  /* goes to the previous one */
    EXCHANGE_EMBEDDING,  /* parts of every stage, summed onto the first */
    EXCHANGE_HIDDEN,     /* the last layer's output, to all stages */
    EXCHANGE_STATISTICS, /* every stage's logits' statistics, to all */
    EXCHANGE_HIDDEN_COTANGENT,
    EXCHANGE_EMBEDDING_COTANGENT,
    EXCHANGES
} exchange_kind;

/* "activation", "cotangent", ... */
const char *exchange_name(int kind);

/* True if all stages take part. */
static inline bool exchange_meets(int kind)
{
    return kind > EXCHANGE_COTANGENT;
}

/* The kind of exchange that an action takes, or makes; -1: none. Also between chunks of one stage. */
int exchange_taken(const schedule *s, int stage, action a);
int exchange_made(const schedule *s, int stage, action a);

/* The chunks that make an action's input: forwards (or else backwards) of the global chunks [first, first + count). */
typedef struct exchange_makers {
    int first, count;
    bool forward;
} exchange_makers;

exchange_makers exchange_makers_of(const schedule *s, int stage, action a);

/* The chunk of this stage (a global number) with the action that makes a part of a meeting, and the one with the action
 * that takes it; -1: none of this stage. */
int exchange_maker(bool *forward, const schedule *s, int kind, int stage);
int exchange_taker(bool *forward, const schedule *s, int kind, int stage);
