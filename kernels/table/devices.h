/* The table of devices (devices.def): each device's limits, by its data sheet.
 *
 * Prices of plans, choices that weigh computing against memory, and the MFU of a run all read these rows and no other
 * figures of a device. Rows are constants.
 */
#pragma once

/* The peaks that products of one type or another can reach. */
typedef enum peak_kind {
#define PEAK(name, ...) PEAK_##name,
#include "kernels/table/devices.def"
    PEAK_COUNT
} peak_kind;

/* The words of rows, as help lists them, and the word of the default device. */
#define DEVICES_WORDS   "a100, h100, h200, b200, cpu"
#define DEVICES_ASSUMED "h100"

typedef struct devices_row {
    const char *word, *gpu;  /* "h100"; "NVIDIA H100" */
    int processors;          /* multiprocessors; 0: it is a CPU */
    double peak[PEAK_COUNT]; /* FLOP/s */
    double memory, node;     /* bytes/s of its memory; to other ranks of a node */
    double balance;          /* stated, or 0 */
} devices_row;

/* The row of a word, or NULL. */
const devices_row *devices_named(const char *word);
/* The row of a GPU by the name that its driver gives, or NULL: it is not in the table. */
const devices_row *devices_of_gpu(const char *name);
/* Converts a row to its place in the table, for other ranks, and back; -1: NULL. */
int devices_number(const devices_row *d);
const devices_row *devices_numbered(int number);
/* FLOP/s of a device with this number of multiprocessors, in proportion to the row's; 0 without a row. */
void devices_peaks(double peak[PEAK_COUNT], const devices_row *d, int processors);
/* FLOPs of products in the time that a byte of memory traffic takes, and that a byte sent to another rank of the node
 * takes. */
double devices_balance(const devices_row *d, peak_kind peak);
double devices_balance_sent(const devices_row *d, peak_kind peak);
