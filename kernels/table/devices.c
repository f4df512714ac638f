#include "kernels/table/devices.h"

#include <stddef.h>
#include <string.h>

static const devices_row rows[] = {
#define PEAKS(...)                                                                                                     \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define DEVICE(...) {__VA_ARGS__},
#include "kernels/table/devices.def"
#undef PEAKS
};

enum { ROWS = sizeof rows / sizeof *rows };

/* The share of its peak that a device reaches in products, where no measurement exists. */
static const double REACHED = 0.7;

const devices_row *devices_named(const char *word)
{
    for (int i = 0; i < ROWS; i++)
        if (rows[i].word && !strcmp(rows[i].word, word))
            return &rows[i];
    return NULL;
}

const devices_row *devices_of_gpu(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (rows[i].gpu && !strncmp(name, rows[i].gpu, strlen(rows[i].gpu)))
            return &rows[i];
    return NULL;
}

int devices_number(const devices_row *d)
{
    return d ? (int)(d - rows) : -1;
}

const devices_row *devices_numbered(int number)
{
    return number >= 0 && number < ROWS ? &rows[number] : NULL;
}

void devices_peaks(double peak[PEAK_COUNT], const devices_row *d, int processors)
{
    for (int i = 0; i < PEAK_COUNT; i++)
        peak[i] = d ? d->peak[i] * processors / d->processors : 0;
}

double devices_balance(const devices_row *d, peak_kind peak)
{
    return d->balance > 0 ? d->balance : REACHED * d->peak[peak] / d->memory;
}

double devices_balance_sent(const devices_row *d, peak_kind peak)
{
    return devices_balance(d, peak) * d->memory / d->node;
}
