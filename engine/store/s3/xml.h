/* The XML of a store's answers, as far as they have it: elements with text, no attributes that matter, no DTD.
 *
 * What a server says is not trusted: depth, names and texts are bounded, a DOCTYPE and what does not nest are refused.
 */
#pragma once

#include <stdint.h>

#include "memory/status.h"

/* An element has ended: `path` is the names from the root to it ("ListBucketResult/Contents/Key"), `text` its own text,
 * decoded, valid during the call. */
typedef status xml_taker(void *context, const char *path, const char *text);

/* Fails with what `take` fails with, or says at which byte the text is no XML. */
status xml_read(const char *text, int64_t bytes, xml_taker *take, void *context);
