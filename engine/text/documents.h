/* The documents of a list of files, in order.
 *
 * Plain text: a file is a document, or, with a separator, each part between two of them. JSON-lines: a line is a
 * document, its text the string in one field. Files may be packed (source.h). Parquet and Arrow: a row is a document,
 * its text one column's value. Other files are refused (sniff.h). Reading and parsing are separate, so that one thread
 * reads and many parse. Documents without text are skipped. Several machines may each read a share of the same inputs:
 * part 1, part 2, ... one after the other give the whole.
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
    DOCUMENTS_TEXT, /* any file */
    DOCUMENTS_JSON_LINES,
    DOCUMENTS_FIELDS, /* Parquet or Arrow by its first bytes, else JSON-lines */
} documents_format;

typedef struct documents_settings {
    documents_format format;
    const char *field;     /* field of JSON-lines, or the column; NULL: "text" */
    const char *separator; /* separator of text; NULL: a file is a document */
    int64_t separator_length;
    /* Reads one of `parts` equal runs of the inputs' bytes: the records that begin there. A file is divided between
     * records if it is not packed and its records can be found from its middle: JSON-lines, text with a separator that
     * cannot overlap itself, and Parquet. Any other file is whole in the part where it begins. parts 0: read all. */
    int64_t part, parts; /* 0 <= part < parts */
} documents_settings;

typedef struct documents documents;

/* A document as it is in its file. */
typedef struct documents_raw {
    int64_t offset, length; /* range in the buffer that documents_next appended to */
    int64_t line;           /* line, from 1, counted in the part that is read; 0: not JSON-lines */
    int64_t row;            /* row, from 0, of Parquet or Arrow; -1: neither */
    int input;              /* index of the input */
    bool sniffed;           /* JSON-lines by content only */
    bool too_long;          /* a line that was dropped, since parsing it would take gigabytes; length is 0 */
    bool null;              /* null in Parquet or Arrow; length is 0 */
} documents_raw;

/* The inputs (paths, or "-") and the settings' strings must outlive the documents. With parts, each input must be a
 * regular file or an object. */
status documents_open(documents **out, const documents_settings *settings, char *const *inputs, int count);
void documents_close(documents *d);
AUTO_CLOSES(documents, documents_close)
/* Makes reading fail soon, even where a pipe is empty. Any thread. */
void documents_stop(documents *d);

/* Appends the next document's bytes to `bytes`; *more is false at the end. */
status documents_next(documents *d, buffer *bytes, documents_raw *raw, bool *more);
int64_t documents_consumed(const documents *d); /* bytes of the files read so far; any thread */

/* Finds the text of a document with bytes at `bytes`: within them, or made in `scratch`. Any thread. A failure concerns
 * this record only, and the next documents can be read; its message names file, line and reason. */
status documents_text(documents *d, const char **text, int64_t *length, buffer *scratch, const char *bytes,
                      const documents_raw *raw);

/* Sentences that train a SentencePiece model: the lines of all documents, long ones in parts.
 *
 * sentences_next is a sentencepiece_next. A failure to read ends the sentences; sentences_result returns it afterwards.
 */

typedef struct sentences sentences;

/* The documents stay the caller's. `skip_bad`: skip records at which documents_text() fails. */
sentences *sentences_open(documents *d, bool skip_bad);
void sentences_close(sentences *s);
bool sentences_next(void *s, const char **text, int64_t *length);
status sentences_result(const sentences *s);
int64_t sentences_bytes(const sentences *s); /* bytes of text so far */
