/* Running the models and layouts of tests/jobs/layouts.h in a work folder, and judging a layout by one rank's run:
 * promise 2.
 *
 * In the folder `top` lie the data (prefix "data"), MODEL.yaml and the run one-MODEL of each model, and whatever runs a
 * playlist names. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "tests/jobs/layouts.h"

#define PARITY_LOSS 1e-4

/* cmocka setup: the work folder, the data, and each model trained on one rank with build/phalanx; those in 16 bits only
 * if `rounded`. */
int parity_setup(void **state, bool rounded);
char *parity_model_folder(const char *top, const char *model);

/* A playlist in `top`: open, one line a layout (`before`: "" or a mutant's "@WORD "; frees `folder`), fclose, play. */
FILE *parity_open_list(const char *top, const char *name);
void parity_put_line(FILE *list, const char *top, const char *before, const layouts_row *row, char *folder);
void parity_play(const char *top, const char *program_name, int ranks, const char *playlist, int count);

typedef struct parity_outcome {
    double gradient, loss, norm;
    char tensor[128]; /* whose gradient is worst, or a bias of experts that is not the same bit for bit */
    int biases;       /* that are */
    bool good;
} parity_outcome;

/* Gradients of step 1 (as a share of the allowance), losses and norms of all steps, relative. */
parity_outcome parity_compare(const char *folder, const char *one);
/* bf16: `gradient` is the distance to the fp32 run `exact` as a multiple of one rank's. */
parity_outcome parity_compare_rounded(const char *folder, const char *one, const char *exact);
