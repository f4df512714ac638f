#include "engine/store/s3/xml.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 16, MOST_PATH = 256, MOST_TEXT = 8192 };

typedef struct reader {
    const char *begin, *at, *end;
    char path[MOST_PATH];
    int depth;
    size_t from[MOST_DEPTH]; /* where in `path` the name of each depth begins */
    char text[MOST_TEXT];    /* of the innermost element, since its beginning or its last child's end */
    size_t used;
} reader;

static status wrong(const reader *r, const char *what)
{
    return status_fail(STATUS_FAILED, "the answer is no XML at byte %lld: %s", (long long)(r->at - r->begin), what);
}

static bool begins(const reader *r, const char *what)
{
    size_t length = strlen(what);
    return (size_t)(r->end - r->at) >= length && memcmp(r->at, what, length) == 0;
}

static status skip_behind(reader *r, const char *what)
{
    const char *found = memmem(r->at, (size_t)(r->end - r->at), what, strlen(what));
    if (!found)
        return wrong(r, "it ends within a mark");
    r->at = found + strlen(what);
    return STATUS_OK;
}

static status add(reader *r, char c)
{
    if (r->used + 1 >= MOST_TEXT)
        return wrong(r, "a text is too long");
    r->text[r->used++] = c;
    return STATUS_OK;
}

/* A code point in UTF-8. */
static status add_point(reader *r, unsigned long point)
{
    if (point == 0 || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
        return wrong(r, "a number that is no character");
    if (point < 0x80)
        return add(r, (char)point);
    int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static const unsigned char first[] = {0, 0xC0, 0xE0, 0xF0};
    TRY(add(r, (char)(first[more] | point >> (6 * more))));
    while (more-- > 0)
        TRY(add(r, (char)(0x80 | (point >> (6 * more) & 0x3F))));
    return STATUS_OK;
}

static status take_entity(reader *r)
{
    static const struct {
        const char *name;
        char c;
    } known[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (begins(r, known[i].name)) {
            r->at += strlen(known[i].name);
            return add(r, known[i].c);
        }
    char digits[12] = "";
    const char *end = memchr(r->at, ';', (size_t)(r->end - r->at));
    if (!begins(r, "&#") || !end || end - r->at - 2 >= (int)sizeof digits)
        return wrong(r, "an unknown entity");
    memcpy(digits, r->at + 2, (size_t)(end - r->at - 2));
    bool hex = digits[0] == 'x';
    const char *number = digits + hex;
    if (!*number || number[strspn(number, hex ? "0123456789abcdefABCDEF" : "0123456789")])
        return wrong(r, "an unknown entity");
    TRY(add_point(r, strtoul(number, NULL, hex ? 16 : 10)));
    r->at = end + 1;
    return STATUS_OK;
}

static status take_text(reader *r)
{
    while (r->at < r->end && *r->at != '<') {
        if (*r->at == '&')
            TRY(take_entity(r));
        else
            TRY(add(r, *r->at++));
    }
    return STATUS_OK;
}

/* A name is followed by attributes, which are passed over; "<name/>" is an element without text. */
static status open_element(reader *r, bool *empty)
{
    r->at++;
    size_t length = 0, used = strlen(r->path);
    while (r->at + length < r->end && !strchr(" \t\r\n/><\"'=&", r->at[length])) /* a byte 0 ends it, too */
        length++;
    if (length == 0)
        return wrong(r, "an element without a name");
    if (r->depth == MOST_DEPTH || used + length + 2 > MOST_PATH)
        return wrong(r, "too many elements within each other");
    r->from[r->depth++] = used;
    if (used > 0)
        r->path[used++] = '/';
    memcpy(r->path + used, r->at, length);
    r->path[used + length] = 0;
    r->at += length;
    char quote = 0;
    for (; r->at < r->end && (quote || *r->at != '>'); r->at++)
        if (quote ? *r->at == quote : *r->at == '"' || *r->at == '\'')
            quote = quote ? 0 : *r->at;
    if (r->at == r->end)
        return wrong(r, "it ends within a mark");
    *empty = r->at[-1] == '/';
    r->at++;
    r->used = 0;
    return STATUS_OK;
}

static status close_element(reader *r, xml_taker *take, void *context)
{
    r->text[r->used] = 0;
    if (memchr(r->text, 0, r->used))
        return wrong(r, "a byte 0");
    TRY(take(context, r->path, r->text));
    r->path[r->from[--r->depth]] = 0;
    r->used = 0;
    return STATUS_OK;
}

static status end_mark(reader *r, xml_taker *take, void *context)
{
    const char *name = r->depth ? r->path + r->from[r->depth - 1] : "";
    name += *name == '/';
    r->at += 2;
    size_t length = strlen(name);
    if (!length || !begins(r, name) || r->at + length >= r->end || !strchr(" \t\r\n>", r->at[length]))
        return wrong(r, "an element ends that is not open");
    TRY(skip_behind(r, ">"));
    return close_element(r, take, context);
}

static status take_mark(reader *r, xml_taker *take, void *context)
{
    bool empty = false;
    if (begins(r, "<?"))
        return skip_behind(r, "?>");
    if (begins(r, "<!--"))
        return skip_behind(r, "-->");
    if (begins(r, "<!"))
        return wrong(r, "a declaration");
    if (begins(r, "</"))
        return end_mark(r, take, context);
    TRY(open_element(r, &empty));
    return empty ? close_element(r, take, context) : STATUS_OK;
}

status xml_read(const char *text, int64_t bytes, xml_taker *take, void *context)
{
    reader r = {.begin = text, .at = text, .end = text + bytes};
    bool any = false;
    while (r.at < r.end) {
        if (*r.at != '<') {
            TRY(take_text(&r));
            continue;
        }
        TRY(take_mark(&r, take, context));
        any = true;
        if (r.depth == 0)
            r.used = 0;
    }
    return any && r.depth == 0 ? STATUS_OK : wrong(&r, any ? "it is cut short" : "no element");
}
