#include "memory/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Writes three significant digits and the unit in which the number is below `step`. */
static const char *scaled(char out[UNITS_TEXT], double value, double step, const char *const *unit, int units)
{
    int i = 0;
    while (i < units - 1 && fabs(value) >= step * 0.9995) {
        value /= step;
        i++;
    }
    int decimals = i == 0 ? 0 : fabs(value) < 9.995 ? 2 : fabs(value) < 99.95 ? 1 : 0;
    snprintf(out, UNITS_TEXT, "%.*f%s", decimals, value, unit[i]);
    return out;
}

const char *units_bytes(char out[UNITS_TEXT], double bytes)
{
    static const char *const unit[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
    return scaled(out, bytes, 1024, unit, 6);
}

const char *units_count(char out[UNITS_TEXT], double count)
{
    static const char *const unit[] = {"", "k", "M", "B", "T"};
    return scaled(out, count, 1000, unit, 5);
}

static const char *in_words(char out[UNITS_TEXT], double value, double step, const char *const *unit)
{
    const char *const *first = unit;
    for (; value >= step && unit[1]; unit++)
        value /= step;
    snprintf(out, UNITS_TEXT, "%.*f%s", unit > first, value, *unit);
    return out;
}

const char *units_bytes_in_words(char out[UNITS_TEXT], double bytes)
{
    static const char *const unit[] = {" bytes", " KiB", " MiB", " GiB", " TiB", NULL};
    return in_words(out, bytes, 1024, unit);
}

const char *units_count_in_words(char out[UNITS_TEXT], double count)
{
    static const char *const unit[] = {"", " thousand", " million", " billion", NULL};
    return in_words(out, count, 1000, unit);
}

const char *units_duration(char out[UNITS_TEXT], double seconds)
{
    bool known = seconds >= 0 && seconds < 1e10;
    int64_t s = known ? llround(seconds) : 0;
    if (!known)
        snprintf(out, UNITS_TEXT, "?");
    else if (seconds < 9.95)
        snprintf(out, UNITS_TEXT, "%.1fs", seconds);
    else if (s < 60)
        snprintf(out, UNITS_TEXT, "%" PRId64 "s", s);
    else if (s < 3600)
        snprintf(out, UNITS_TEXT, "%" PRId64 ":%02d", s / 60, (int)(s % 60));
    else if (s < 86400)
        snprintf(out, UNITS_TEXT, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(out, UNITS_TEXT, "%" PRId64 "d %02d:%02d", s / 86400, (int)(s / 3600 % 24), (int)(s / 60 % 60));
    return out;
}
