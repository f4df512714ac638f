#include "engine/store/s3/s3_internal.h"

#include <expat.h>
#include <stdbool.h>
#include <string.h>

#include "memory/log.h"

enum { MOST_DEPTH = 16, MOST_PATH = 256, MOST_TEXT = 8192 };

typedef struct reader {
    XML_Parser parser;
    xml_taker *take;
    void *context;
    status taken;      /* failure returned by `take` */
    const char *wrong; /* refused although expat would allow it */
    char path[MOST_PATH];
    int depth;
    size_t from[MOST_DEPTH]; /* start in `path` of each depth's name */
    char text[MOST_TEXT];    /* text of the innermost element, since its beginning or its last child's end */
    size_t used;
} reader;

static void refuse_xml(reader *r, const char *what)
{
    r->wrong = what;
    (void)XML_StopParser(r->parser, XML_FALSE);
}

static void on_begin(void *context, const char *name, const char **attributes)
{
    reader *r = context;
    size_t used = strlen(r->path);
    (void)attributes;
    if (r->depth == MOST_DEPTH || used + strlen(name) + 2 > MOST_PATH) {
        refuse_xml(r, "too many elements within each other");
        return;
    }
    r->from[r->depth++] = used;
    if (used > 0)
        r->path[used++] = '/';
    strcpy(r->path + used, name);
    r->used = 0;
}

static void on_text(void *context, const char *text, int bytes)
{
    reader *r = context;
    if (r->used + (size_t)bytes >= MOST_TEXT) {
        refuse_xml(r, "a text is too long");
        return;
    }
    memcpy(r->text + r->used, text, (size_t)bytes);
    r->used += (size_t)bytes;
}

/* Also called for an empty element with a refused beginning. */
static void on_end(void *context, const char *name)
{
    reader *r = context;
    (void)name;
    if (r->wrong || r->taken != STATUS_OK)
        return;
    r->text[r->used] = 0;
    r->taken = r->take(r->context, r->path, r->text);
    if (r->taken != STATUS_OK)
        (void)XML_StopParser(r->parser, XML_FALSE);
    r->path[r->from[--r->depth]] = 0;
    r->used = 0;
}

static void on_doctype(void *context, const char *name, const char *system, const char *public, int has_subset)
{
    (void)name, (void)system, (void)public, (void)has_subset;
    refuse_xml(context, "a declaration");
}

status xml_read(const char *text, int64_t bytes, xml_taker *take, void *context)
{
    reader r = {.parser = XML_ParserCreate(NULL), .take = take, .context = context};
    MUST(r.parser, "out of host memory");
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, on_begin, on_end);
    XML_SetCharacterDataHandler(r.parser, on_text);
    XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
    int64_t space = 0; /* some stores send spaces to keep a connection open */
    while (space < bytes && strchr(" \t\r\n", text[space]))
        space++;
    bool good = XML_Parse(r.parser, text + space, (int)(bytes - space), true) == XML_STATUS_OK;
    int64_t at = space + XML_GetCurrentByteIndex(r.parser);
    const char *why = r.wrong ? r.wrong : XML_ErrorString(XML_GetErrorCode(r.parser));
    XML_ParserFree(r.parser);
    if (good || r.taken != STATUS_OK)
        return r.taken;
    return status_fail(STATUS_FAILED, "the answer is no XML at byte %lld: %s", (long long)at, why);
}
