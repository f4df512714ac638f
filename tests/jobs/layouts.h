/* The parity matrix: small models of every architecture, and the layouts in which they are trained.
 *
 * A layout of one rank is the model's own run, to which the others are compared. Rows are plain data; the texts that
 * layouts_* return are the caller's.
 */
#pragma once

#include "engine/config/config.h"

typedef struct layouts_model {
    const char *name;
    const char *keys;  /* of the section `model`, as YAML flow */
    const char *extra; /* overrides beside it, or "" */
    const char *exact; /* bf16, fp16: the name of the same model in fp32; else NULL */
} layouts_model;

/* The letters of the pipeline's schedules. */
enum layouts_schedule {
    GPIPE = 'g',
    ONE_F_ONE_B = '1',
    INTERLEAVED = 'i',
    ZERO_BUBBLE = 'z',
    ZB_H2 = '2',
    ZB_V = 'v',
    V_HALF = 'h',
    V_MIN = 'm',
    FOUND = 'a'
};

typedef struct layouts_row {
    const char *model;
    int tensor, context, pipeline, data;
    int micro_batch;    /* of 12 sequences a step */
    char schedule;      /* layouts_schedule; 0: none, one stage */
    int virtual_stages; /* 0: 1 */
    int zero;
    const char *more; /* further overrides, or "" */
    char group;       /* rows of one letter must agree bit for bit; 0: none */
} layouts_row;

/* Of memory.budget: half of what recomputing everything saves. parity_put_line() asks `phalanx plan` for the bytes,
 * since what the machine's libraries want of scratch is part of them. */
#define LAYOUTS_HALF "half"

enum { LAYOUTS_STEPS = 3, LAYOUTS_BATCH = 12, LAYOUTS_SEQUENCE = 32, LAYOUTS_VOCABULARY = 131 };

int layouts_models(void);
const layouts_model *layouts_model_at(int index);
const layouts_model *layouts_model_of(const char *name);
int layouts_count(void);
const layouts_row *layouts_at(int index);
int layouts_ranks(const layouts_row *row);
/* takes[i]: row i runs in this process's ring (tests/cover.h); with each row of a group, the first of the group, to
 * which it is compared. `takes` has layouts_count() elements. */
void layouts_take(bool *takes);
/* The first row of the row's group, or the row itself where it has none. */
int layouts_first_of_group(int index);

/* The configuration file of a model, for data at the prefix `data`. */
char *layouts_yaml(const layouts_model *model, const char *data);
/* "parallel.tensor=2 parallel.pipeline=2 ...": what the row adds to its model's file. */
char *layouts_overrides(const layouts_row *row);
/* "llama tensor 2 pipeline 2 (zb-h1) data 1, ..." in one line */
char *layouts_title(const layouts_row *row);
