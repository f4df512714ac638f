/* Messages between ranks of different islands: a request for a slice of a unit, and the reply that holds it.
 *
 * A message is a header of WIRE_HEADER bytes, little-endian, and, of a reply, the data. Nothing in it is believed:
 * wire_read checks the length, the version, the fingerprint of the run and every field's range before anything is used,
 * and allocates nothing.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { WIRE_VERSION = 1, WIRE_HEADER = 64, WIRE_SLICE = 32768, WIRE_MESSAGE = WIRE_HEADER + WIRE_SLICE };

typedef enum wire_kind {
    WIRE_CHANGE,    /* an island's encoded change, offered for a merge */
    WIRE_REFERENCE, /* outer state as of a merge, fp32 */
    WIRE_MOMENTUM,
    WIRE_KINDS
} wire_kind;

typedef struct wire_message {
    wire_kind kind;
    bool reply, there; /* of a reply: is what was asked for there? */
    uint64_t nonce;    /* of the asker, echoed: what was not asked for is refused */
    uint64_t number;   /* of the request under its nonce, echoed */
    int64_t merge;     /* for which it is offered; after which the state is */
    int64_t offer;     /* of WIRE_CHANGE: the step that the offer was made after */
    int32_t unit;
    int64_t first; /* byte of the unit's encoding */
    int32_t bytes; /* asked for, or that follow */
} wire_message;

/* `out` has WIRE_HEADER bytes. */
void wire_write(uint8_t *out, const wire_message *m, uint64_t fingerprint);
/* On success the data of a reply begin at in + WIRE_HEADER and are m->bytes long. */
status wire_read(wire_message *m, const uint8_t *in, int64_t length, uint64_t fingerprint);
