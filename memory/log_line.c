#include "memory/log_line.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Bytes of the UTF-8 sequence at `text`, of which `left` bytes are there; 0: it is none. */
static size_t sequence_at(const unsigned char *text, size_t left)
{
    size_t length = *text < 0x80 ? 1 : *text >= 0xF0 ? 4 : *text >= 0xE0 ? 3 : 2;
    if (length > 1 && (*text < 0xC2 || *text > 0xF4 || length > left))
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    if ((*text == 0xE0 && text[1] < 0xA0) || (*text == 0xED && text[1] >= 0xA0) || (*text == 0xF0 && text[1] < 0x90) ||
        (*text == 0xF4 && text[1] >= 0x90))
        return 0;
    return length;
}

/* The text between the quotes of a JSON string. */
static size_t escape(char *out, const char *text, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes;) {
        const unsigned char *at = (const unsigned char *)text + i;
        size_t length = sequence_at(at, bytes - i);
        if (*at == '"' || *at == '\\')
            out[used++] = '\\';
        if (length == 0 || *at == 0)
            out[used++] = '?';
        else if (*at < 0x20)
            used += (size_t)sprintf(out + used, "\\u%04x", *at);
        else
            memcpy(out + used, at, length), used += length;
        i += length ? length : 1;
    }
    return used;
}

/* "phalanx: rank 3: warning: ...": what the logger writes before its sentences, taken off; the level it means. */
static const char *take_level(const char **line, size_t *bytes, bool error)
{
    static const char name[] = "phalanx: ", warning[] = "warning: ", rank[] = "rank ";
    const char *at = *line, *end = *line + *bytes;
    if (!error || *bytes < sizeof name - 1 || memcmp(at, name, sizeof name - 1) != 0)
        return "info";
    at += sizeof name - 1;
    if ((size_t)(end - at) > sizeof rank && memcmp(at, rank, sizeof rank - 1) == 0) {
        const char *digits = at + sizeof rank - 1;
        size_t count = strspn(digits, "0123456789");
        if (count > 0 && end - digits > (long)count + 2 && digits[count] == ':' && digits[count + 1] == ' ')
            at = digits + count + 2;
    }
    bool warns = (size_t)(end - at) >= sizeof warning - 1 && memcmp(at, warning, sizeof warning - 1) == 0;
    at += warns ? sizeof warning - 1 : 0;
    *bytes = (size_t)(end - at);
    *line = at;
    return warns ? "warning" : "error";
}

static size_t write_time(char *out)
{
    struct timespec now;
    struct tm utc;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    return (size_t)sprintf(out, "{\"time\": \"%s.%03ldZ\", ", date, now.tv_nsec / 1000000);
}

size_t log_line_json(char out[LOG_LINE_JSON], const char *line, size_t bytes, bool error, int rank)
{
    static const char stamped[] = "{\"time\": \"";
    size_t used = 0;
    bytes = bytes < LOG_LINE ? bytes : LOG_LINE;
    if (bytes > sizeof stamped && memcmp(line, stamped, sizeof stamped - 1) == 0) {
        memcpy(out, line, bytes);
        out[bytes] = '\n';
        return bytes + 1;
    }
    const char *level = take_level(&line, &bytes, error);
    used += write_time(out);
    used += (size_t)sprintf(out + used, "\"level\": \"%s\", \"rank\": %d, ", level, rank);
    if (bytes > 1 && line[0] == '{' && line[bytes - 1] == '}') {
        used += (size_t)sprintf(out + used, "\"metrics\": ");
        memcpy(out + used, line, bytes);
        used += bytes;
    } else {
        for (; bytes > 0 && *line == ' '; bytes--) /* they stand under others on a screen */
            line++;
        used += (size_t)sprintf(out + used, "\"message\": \"");
        used += escape(out + used, line, bytes);
        out[used++] = '"';
    }
    out[used++] = '}';
    out[used++] = '\n';
    return used;
}
