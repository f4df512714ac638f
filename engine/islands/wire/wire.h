/* Messages between ranks of different islands: a request for a slice of a unit, and the reply that holds it.
 *
 * A message is a header of WIRE_HEADER bytes, little-endian, and, in a reply, the data. It is not trusted: wire_read
 * checks the length, the version, the fingerprint of the run and every field's range before anything is used, and
 * does not allocate.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { WIRE_VERSION = 1, WIRE_HEADER = 64, WIRE_SLICE = 32768, WIRE_MESSAGE = WIRE_HEADER + WIRE_SLICE };

typedef enum wire_kind {
    WIRE_CHANGE,    /* an island's encoded change, offered for a merge */
    WIRE_REFERENCE, /* outer state after a merge, fp32 */
    WIRE_MOMENTUM,
    WIRE_KINDS
} wire_kind;

typedef struct wire_message {
    wire_kind kind;
    bool reply, there; /* there: a reply has the requested data */
    uint64_t nonce;    /* the asker's, echoed: a reply with another is refused */
    uint64_t number;   /* the request's number under its nonce, echoed */
    int64_t merge;     /* the merge of an offer, or after which the state is */
    int64_t offer;     /* WIRE_CHANGE: step of the offer */
    int32_t unit;
    int64_t first; /* first byte within the unit's encoding */
    int32_t bytes; /* bytes requested, or that follow */
} wire_message;

/* `out` has WIRE_HEADER bytes. */
void wire_write(uint8_t *out, const wire_message *m, uint64_t fingerprint);
/* A reply's data begin at in + WIRE_HEADER and are m->bytes long, on success. */
status wire_read(wire_message *m, const uint8_t *in, int64_t length, uint64_t fingerprint);
