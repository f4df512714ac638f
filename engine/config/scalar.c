#include "engine/config/scalar.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- numbers ------------------------------------------------------------------------------------------------------ */

bool scalar_integer(const char *text, int64_t *out)
{
    if (!text || !text[strspn(text, "+-")] || strspn(text, "0123456789+-") != strlen(text))
        return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*end || end == text || errno)
        return false;
    *out = value;
    return true;
}

bool scalar_number(const char *text, double *out)
{
    if (!text || !*text || strspn(text, "0123456789+-.eE") != strlen(text))
        return false;
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || !isfinite(value))
        return false;
    *out = value;
    return true;
}

static const struct {
    const char *name;
    double bytes;
} units[] = {
    {"TiB", 1099511627776.0},
    {"GiB", 1073741824.0},
    {"MiB", 1048576.0},
    {"KiB", 1024.0},
    {"TB", 1e12},
    {"GB", 1e9},
    {"MB", 1e6},
    {"KB", 1e3},
    {"B", 1},
};
enum { UNITS = sizeof units / sizeof *units, BINARY_UNITS = 4 };

bool scalar_size(const char *text, int64_t *out)
{
    char number[32];
    size_t digits = text ? strspn(text, "0123456789.") : 0;
    if (!digits || digits >= sizeof number)
        return false;
    memcpy(number, text, digits);
    number[digits] = 0;
    const char *unit = text + digits + strspn(text + digits, " ");
    double scale = *unit ? 0 : 1, value;
    for (int i = 0; i < UNITS; i++)
        if (strcasecmp(unit, units[i].name) == 0)
            scale = units[i].bytes;
    if (scale == 0 || !scalar_number(number, &value) || value * scale > 9007199254740992.0)
        return false;
    *out = llround(value * scale);
    return true;
}

void scalar_print_size(FILE *out, int64_t value)
{
    for (int i = 0; i < BINARY_UNITS; i++)
        if (value && value % (int64_t)units[i].bytes == 0) {
            fprintf(out, "%" PRId64 "%s", value / (int64_t)units[i].bytes, units[i].name);
            return;
        }
    fprintf(out, "%" PRId64, value);
}

void scalar_print_number(FILE *out, double value)
{
    char text[48];
    for (int digits = value == floor(value) && fabs(value) < 1e15 ? 15 : 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    int mantissa = (int)strcspn(text, "e");
    bool point = text[mantissa] && !memchr(text, '.', (size_t)mantissa);
    fprintf(out, "%.*s%s%s", mantissa, text, point ? ".0" : "", text + mantissa);
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Length of the UTF-8 sequence at text and its code point. The text came through libyaml, which checked it; a stray
 * byte is taken for itself. */
static int decode_utf8(const unsigned char *text, unsigned *point)
{
    int length = *text >= 0xF0 ? 4 : *text >= 0xE0 ? 3 : *text >= 0xC0 ? 2 : 1;
    *point = length == 1 ? *text : *text & (0xFFu >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) {
            *point = *text;
            return 1;
        }
        *point = *point << 6 | (text[i] & 0x3F);
    }
    return length;
}

/* True for characters that YAML allows unescaped between double quotes ("printable", less quote, backslash, breaks). */
static bool is_printable(unsigned point)
{
    if (point < 0xA0)
        return point >= 0x20 && point < 0x7F && point != '"' && point != '\\';
    if (point == 0x2028 || point == 0x2029 || point == 0xFEFF)
        return false;
    return point < 0xD800 || (point >= 0xE000 && point <= 0xFFFD) || point >= 0x10000;
}

/* Text that is itself without quotes, here and in other YAML libraries. */
static bool is_plain(const char *text)
{
    static const char simple[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-";
    static const char *const taken[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (strcasecmp(text, taken[i]) == 0)
            return false;
    return (isalpha((unsigned char)*text) || *text == '/') && !text[strspn(text, simple)];
}

void scalar_print_text(FILE *out, const char *text)
{
    if (!text || is_plain(text)) {
        fputs(text ? text : "null", out);
        return;
    }
    fputc('"', out);
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        unsigned point;
        int length = decode_utf8(at, &point);
        if (is_printable(point))
            fwrite(at, 1, (size_t)length, out);
        else
            fprintf(out, "\\U%08X", point);
        at += length;
    }
    fputc('"', out);
}
