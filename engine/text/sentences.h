/* What a SentencePiece model is trained on: the lines of all documents, long ones in parts.
 *
 * sentences_next is a sentencepiece_next. A failure to read ends the sentences; sentences_result tells it afterwards.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/documents.h"
#include "memory/status.h"

typedef struct sentences sentences;

/* The documents stay the caller's. `skip_bad`: pass over records that documents_text() fails at. */
sentences *sentences_open(documents *d, bool skip_bad);
void sentences_close(sentences *s);
bool sentences_next(void *s, const char **text, int64_t *length);
status sentences_result(const sentences *s);
int64_t sentences_bytes(const sentences *s); /* of text so far */
