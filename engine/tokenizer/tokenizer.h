/* Converts text to token ids and back, by any tokenizer.
 *
 * A tokenizer is one of: the 256 bytes and an end of document; a SentencePiece model; a Hugging Face tokenizer.json of
 * BPE, byte-level or with byte fallback. It is immutable once open and shared by threads, each of which brings its own
 * tokenizer_scratch; the caller owns both. Malformed UTF-8 is encoded as if each malformed part were U+FFFD (not by the
 * byte tokenizer, which is lossless).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffer.h"
#include "memory/scope.h"
#include "memory/status.h"

typedef struct tokenizer tokenizer;
typedef struct tokenizer_scratch tokenizer_scratch;

/* The contents of a tokenizer's file and of the tokenizer_config.json beside it; lengths 0: there is none. The
 * configuration names bos, eos and pad of a tokenizer.json, and of others the beginning of a text (add_bos_token). */
typedef struct tokenizer_source {
    const char *file;
    int64_t length;
    const char *config;
    int64_t config_length;
} tokenizer_source;

/* Opens a tokenizer, recognised by the file's content. The bytes are copied; `name` is for messages. Files are opened
 * and saved by engine/data/tokenizer_files.h. */
status tokenizer_open(tokenizer **out, const tokenizer_source *source, const char *name);
tokenizer *tokenizer_open_bytes(void); /* the 256 bytes */
void tokenizer_close(tokenizer *t);
AUTO_CLOSES(tokenizer, tokenizer_close)

/* Return its source, valid until tokenizer_close, and the suffix of its file, tokenizer.SUFFIX. */
tokenizer_source tokenizer_made_from(const tokenizer *t);
const char *tokenizer_suffix(const tokenizer *t);
extern const char *const tokenizer_suffixes[]; /* all suffixes, in the order in which a folder is searched; NULL ends */

tokenizer_scratch *tokenizer_scratch_open(const tokenizer *t);
void tokenizer_scratch_close(tokenizer_scratch *s);
AUTO_CLOSES(tokenizer_scratch, tokenizer_scratch_close)
int64_t tokenizer_scratch_repaired(const tokenizer_scratch *s); /* malformed texts so far */

/* The token before a document's first one in training, with which a prompt begins. A data set records the one that
 * tokenize wrote (tokenizer_files_begin), a checkpoint the one that its training saw: documents lie end to end, so that
 * by default the end of one begins the next. data.document_mask hides the document before and its end, but no begin
 * token. */
typedef enum tokenizer_begin {
    TOKENIZER_BEGIN_UNKNOWN, /* not recorded: as the tokenizer's own files frame a text */
    TOKENIZER_BEGIN_NOTHING,
    TOKENIZER_BEGIN_END,   /* end_of_document */
    TOKENIZER_BEGIN_TOKEN, /* bos, which tokenize --begin writes */
    TOKENIZER_BEGIN_OWN,   /* known to be as the tokenizer's own files say: a Hugging Face model's */
    TOKENIZER_BEGINS
} tokenizer_begin;
extern const char
    *const tokenizer_begin_words[]; /* indexed by tokenizer_begin: words of files and options; NULL ends */
/* Finds a word of them but "unknown"; NULL and others give false. */
bool tokenizer_begin_find(tokenizer_begin *out, const char *word);

/* Makes that token the frame of TOKENIZER_FRAME and bos; UNKNOWN and OWN change nothing. Called once. */
void tokenizer_begin_with(tokenizer *t, tokenizer_begin begin);
tokenizer_begin tokenizer_begins_with(const tokenizer *t);
/* True if that is another frame than its own files put around a text. */
bool tokenizer_is_reframed(const tokenizer *t);

enum {
    TOKENIZER_PLAIN = 1, /* names such as "<|endoftext|>" in the text stay text; else they become their ids */
    TOKENIZER_FRAME = 2, /* puts the frame around a text: its beginning, or the post-processor's template */
};

/* Appends the ids of a text. */
status tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, buffer_ids *out, const char *text, int64_t length,
                        int flags);

/* Appends the bytes of the ids. They are whole characters only if the ids are whole texts. */
void tokenizer_decode(const tokenizer *t, buffer *out, const int32_t *ids, int64_t count, bool skip_special);

/* State of decoding id by id; starts as {0}. */
typedef struct tokenizer_stream {
    bool started; /* a byte has been written */
    int waiting;  /* bytes of a character that is not complete yet */
    char bytes[4];
} tokenizer_stream;

/* Appends the next id's text, whole characters only: well-formed UTF-8 with U+FFFD for malformed parts. */
void tokenizer_stream_next(const tokenizer *t, tokenizer_stream *d, buffer *out, int32_t id, bool skip_special);
/* Appends U+FFFD if the text ends within a character. */
void tokenizer_stream_end(tokenizer_stream *d, buffer *out);

/* Returns its SentencePiece model, or NULL. */
const struct sentencepiece_model *tokenizer_model(const tokenizer *t);

/* True if its tokenizer_config.json says that names of special tokens in a text are text (split_special_tokens). */
bool tokenizer_splits_special(const tokenizer *t);

const char *tokenizer_kind(const tokenizer *t);   /* "bytes", "SentencePiece" or "BPE" */
int32_t tokenizer_vocab_size(const tokenizer *t); /* the largest id + 1 */
/* Returns the largest id + 1 of a data set of texts without names of special tokens. */
int32_t tokenizer_data_size(const tokenizer *t);
/* Ids of special tokens; -1: none. */
typedef struct tokenizer_ids {
    int32_t bos, eos, pad, unknown; /* eos ends a generated text */
    int32_t end_of_document;        /* separates documents */
} tokenizer_ids;
const tokenizer_ids *tokenizer_ids_of(const tokenizer *t);
/* Returns the bytes of one token (of a special token: its name); "" and length 0 for an id without one. */
const char *tokenizer_token(const tokenizer *t, int64_t *length, int32_t id);
bool tokenizer_equal(const tokenizer *a, const tokenizer *b); /* made from the same bytes */
bool tokenizer_is_special(const tokenizer *t, int32_t id);
/* Returns the id of the token with these bytes, special ones first; -1: none. */
int32_t tokenizer_find(const tokenizer *t, const char *bytes, int64_t length);
