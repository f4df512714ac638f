#include "engine/text/documents.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/unicode.h"
#include "memory/log.h"

#define LONGEST 4000 /* bytes; the library skips sentences above 4192 */

struct sentences {
    documents *documents;
    bool skip_bad;
    buffer bytes, scratch, repaired;
    int64_t at; /* offset in `repaired` */
    int64_t total;
    status result;
    char *message;
};

sentences *sentences_open(documents *d, bool skip_bad)
{
    sentences *s = must_calloc(1, sizeof *s);
    s->documents = d;
    s->skip_bad = skip_bad;
    return s;
}

void sentences_close(sentences *s)
{
    if (!s)
        return;
    buffer_free(&s->bytes);
    buffer_free(&s->scratch);
    buffer_free(&s->repaired);
    free(s->message);
    free(s);
}

/* Puts the next document's text, well-formed, into `repaired`; leaves it empty for a skipped bad record. */
static status next_document(sentences *s, bool *more)
{
    documents_raw raw;
    const char *text;
    int64_t length;
    s->bytes.length = s->repaired.length = s->at = 0;
    TRY(documents_next(s->documents, &s->bytes, &raw, more));
    if (!*more)
        return STATUS_OK;
    status found = documents_text(s->documents, &text, &length, &s->scratch, s->bytes.bytes, &raw);
    if (found != STATUS_OK)
        return s->skip_bad ? STATUS_OK : found;
    unicode_repair(&s->repaired, text, length);
    s->total += length;
    return STATUS_OK;
}

/* Finds the cut of a line that is too long: before its last space within reach, else between two characters. */
static int64_t cut_of(const char *line)
{
    int64_t cut = LONGEST;
    while (cut > LONGEST / 2 && line[cut] != ' ')
        cut--;
    if (line[cut] == ' ')
        return cut;
    cut = LONGEST;
    while (((uint8_t)line[cut] & 0xC0) == 0x80)
        cut--;
    return cut;
}

bool sentences_next(void *context, const char **text, int64_t *length)
{
    sentences *s = context;
    for (;;) {
        while (s->at >= s->repaired.length) {
            bool more = false;
            s->result = next_document(s, &more);
            if (s->result != STATUS_OK)
                s->message = must_strdup(status_message());
            if (!more || s->result != STATUS_OK)
                return false;
        }
        const char *line = s->repaired.bytes + s->at;
        int64_t left = s->repaired.length - s->at;
        const char *end = memchr(line, '\n', (size_t)left);
        int64_t whole = end ? end - line : left;
        bool cut = whole > LONGEST;
        *text = line;
        *length = cut ? cut_of(line) : whole;
        s->at += *length + (cut ? 0 : 1);
        if (*length > 0)
            return true;
    }
}

status sentences_result(const sentences *s)
{
    return s->result == STATUS_OK ? STATUS_OK : status_fail(s->result, "%s", s->message);
}

int64_t sentences_bytes(const sentences *s)
{
    return s->total;
}
