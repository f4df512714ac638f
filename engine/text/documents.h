/* The documents of a list of files, in order.
 *
 * Plain text: a file is a document, or, with a separator, each part between two of them. JSON-lines: a line is a
 * document, its text the string in one field. Files may be packed (source.h). Parquet and Arrow: a row is a document,
 * its text what one column has. What is none of these is refused (sniff.h).
 * Reading and looking into JSON are apart, so that one thread reads and many look. A document without text is passed
 * over. Several machines may each read a share of the same inputs: what part 1, part 2, ... give, one after the other,
 * is what the whole gives.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffer.h"
#include "memory/scope.h"
#include "memory/status.h"

typedef enum documents_format {
    /* Parquet or Arrow by its first bytes; JSON-lines if the first line is a JSON object or the name says so (.jsonl,
     * .ndjson, .json); else text; refused if it is none of them */
    DOCUMENTS_SNIFF,
    DOCUMENTS_TEXT, /* whatever it is */
    DOCUMENTS_JSON_LINES,
    DOCUMENTS_FIELDS, /* Parquet or Arrow by its first bytes, else JSON-lines */
} documents_format;

typedef struct documents_settings {
    documents_format format;
    const char *field;     /* of JSON-lines, or the column; NULL: "text" */
    const char *separator; /* of text; NULL: a file is a document */
    int64_t separator_length;
    /* Read one of `parts` equal runs of the inputs' bytes: the records that begin there. A file is divided between
     * records if it is not packed and its records can be told from its middle: JSON-lines, text with a separator that
     * cannot overlap itself, and Parquet. Any other file is whole in the part where it begins. parts 0: read all. */
    int64_t part, parts; /* 0 <= part < parts */
} documents_settings;

typedef struct documents documents;

/* A document as it is in its file. */
typedef struct documents_raw {
    int64_t offset, length; /* into the buffer that documents_next appended to */
    int64_t line;           /* from 1, of those that are read of the input; 0: no JSON-lines */
    int64_t row;            /* from 0, of Parquet or Arrow; -1: neither */
    int input;              /* which of the inputs */
    bool sniffed;           /* JSON-lines by content only */
    bool too_long;          /* a line that was not kept, since looking into it would take gigabytes; length is 0 */
    bool null;              /* of Parquet or Arrow; length is 0 */
} documents_raw;

/* The inputs (paths, or "-") and the settings' strings must outlive the documents. With parts, each input must be a
 * regular file or an object. */
status documents_open(documents **out, const documents_settings *settings, char *const *inputs, int count);
void documents_close(documents *d);
AUTO_CLOSES(documents, documents_close)
/* From any thread: reading fails soon, even where a pipe has nothing to read. */
void documents_stop(documents *d);

/* Append the next document's bytes to `bytes`; *more is false at the end. */
status documents_next(documents *d, buffer *bytes, documents_raw *raw, bool *more);
int64_t documents_consumed(const documents *d); /* bytes of the files read so far; any thread */

/* The text of a document whose bytes are at `bytes`: within them, or made in `scratch`. Any thread. A failure is this
 * record's alone, and the documents go on behind it; its message names file, line and reason. */
status documents_text(documents *d, const char **text, int64_t *length, buffer *scratch, const char *bytes,
                      const documents_raw *raw);

/* What a SentencePiece model is trained on: the lines of all documents, long ones in parts.
 *
 * sentences_next is a sentencepiece_next. A failure to read ends the sentences; sentences_result tells it afterwards.
 */

typedef struct sentences sentences;

/* The documents stay the caller's. `skip_bad`: pass over records that documents_text() fails at. */
sentences *sentences_open(documents *d, bool skip_bad);
void sentences_close(sentences *s);
bool sentences_next(void *s, const char **text, int64_t *length);
status sentences_result(const sentences *s);
int64_t sentences_bytes(const sentences *s); /* of text so far */
