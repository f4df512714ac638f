#include "memory/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/outlet.h"

static struct {
    int rank, ranks;
    void (*where)(char *, int, void *);
    void *where_context;
    void (*last_words)(void *, const char *);
    void *last_words_context;
} logger = {.ranks = 1};

void log_set_rank(int rank, int ranks)
{
    logger.rank = rank;
    logger.ranks = ranks;
}

int log_rank(void)
{
    return logger.rank;
}

void log_set_where(void (*where)(char *, int, void *), void *context)
{
    logger.where = where;
    logger.where_context = context;
}

void log_where(char *out, int bytes)
{
    *out = 0;
    if (logger.where)
        logger.where(out, bytes, logger.where_context);
}

void log_set_last_words(void (*last_words)(void *, const char *), void *context)
{
    logger.last_words = last_words;
    logger.last_words_context = context;
}

void log_make_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f || (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0))
            *c = '?';
        else if (*c >= 0x80 && *c < 0xa0 && (c == (unsigned char *)text || c[-1] < 0x80)) /* no part of a character */
            *c = '?';
}

/* Formats a line, with its rank and level in front if it is not only information; returns its length. Every message
 * passes here: control characters of a stranger's text do not reach the terminal, and no line's end begins a line. */
__attribute__((format(printf, 4, 0))) static int write_line(char *line, int bytes, const char *kind, const char *format,
                                                            va_list arguments)
{
    int used = 0;
    if (kind && logger.ranks > 1)
        used = snprintf(line, (size_t)bytes, "phalanx: rank %d: %s", logger.rank, kind);
    else if (kind)
        used = snprintf(line, (size_t)bytes, "phalanx: %s", kind);
    int room = bytes - used - 1;
    int wrote = vsnprintf(line + used, (size_t)room, format, arguments);
    used += wrote < room ? wrote : room - 1;
    log_make_printable(line);
    line[used++] = '\n';
    return used;
}

/* Writes each line at once, so that lines of several ranks do not mix. */
__attribute__((format(printf, 3, 0))) static void log_line(FILE *stream, const char *kind, const char *format,
                                                           va_list arguments)
{
    char line[4096];
    int used = write_line(line, (int)sizeof line, kind, format, arguments);
    fflush(stdout);
    fwrite(line, 1, (size_t)used, stream);
    fflush(stream);
}

void log_info(const char *format, ...)
{
    if (logger.rank != 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    log_line(stdout, NULL, format, arguments);
    va_end(arguments);
}

void log_warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line(stderr, "warning: ", format, arguments);
    va_end(arguments);
}

void log_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line(stderr, "", format, arguments);
    va_end(arguments);
}

bool log_has_control(const char *text)
{
    while (*text && (unsigned char)*text >= 0x20 && *text != 0x7f)
        text++;
    return *text;
}

/* Writes an error directly: the process ends. */
static void say_last(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say_last(const char *format, ...)
{
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    outlet_last_words(line, (size_t)write_line(line, (int)sizeof line, "", format, arguments), OUTLET_LAST_SECONDS);
    va_end(arguments);
}

void log_die(const char *file, int line, const char *condition, const char *format, ...)
{
    char text[2048], where[512] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_where(where, (int)sizeof where);
    fflush(stdout);
    say_last("fatal: %s%s%s [%s:%d: %s]", text, *where ? "; at " : "", where, file, line, condition);
    void (*last_words)(void *, const char *) = logger.last_words;
    logger.last_words = NULL;
    if (last_words)
        last_words(logger.last_words_context, text);
    abort();
}

void *must_alloc(unsigned long bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    MUST(p, "out of host memory: %lu bytes", bytes);
    return p;
}

void *must_calloc(unsigned long count, unsigned long bytes)
{
    void *p = calloc(count ? count : 1, bytes ? bytes : 1);
    MUST(p, "out of host memory: %lu x %lu bytes", count, bytes);
    return p;
}

void *must_realloc(void *old, unsigned long bytes)
{
    void *p = realloc(old, bytes ? bytes : 1);
    MUST(p, "out of host memory: %lu bytes", bytes);
    return p;
}

void *must_grow(void *list, unsigned long count, unsigned long each)
{
    bool full = (count & (count - 1)) == 0;
    return full ? must_realloc(list, (count ? 2 * count : 1) * each) : list;
}

char *must_strdup(const char *text)
{
    unsigned long bytes = strlen(text) + 1;
    return memcpy(must_alloc(bytes), text, bytes);
}

char *must_format(const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    MUST(length >= 0, "bad format \"%s\"", format);
    char *text = must_alloc((unsigned long)length + 1);
    vsnprintf(text, (unsigned long)length + 1, format, again);
    va_end(again);
    return text;
}
