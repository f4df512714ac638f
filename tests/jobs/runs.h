/* Whole training runs as tests see them: the data they learn from, the files they leave, and how two of them compare.
 *
 * Everything is read from the files that a run writes (metrics.jsonl, summary.json, checkpoints, gradient dumps), as a
 * user would. Nothing here depends on cmocka: what cannot be read is a fatal error that names the file.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/jobs/launch.h"

/* A data set that a small model learns something of in a few steps: each token follows from the one before it three
 * times in four, else it is drawn. Documents of 5 to 90 tokens. The same arguments give the same data. */
void runs_write_data(const char *prefix, int vocabulary, int64_t tokens, uint64_t seed);
void runs_write_text(const char *path, const char *text);

/* In the folder `top`: a data set of so many tokens, and run.yaml, a small Llama that learns it on the CPU in fp32.
 * `train`: the section's other keys; `more`: other sections. */
void runs_write_small(const char *top, int64_t tokens, int steps, const char *train, const char *more);

enum { RUNS_MOST_STEPS = 4096, RUNS_BESIDE = 3, RUNS_LOADS = 3 };

typedef struct runs_metrics {
    int count;
    struct {
        int64_t step;
        double loss, norm, lr;
        double beside[RUNS_BESIDE]; /* losses of the MTP block and of routers; NAN: there is none */
        double loads[RUNS_LOADS];   /* how tokens fell on experts: the largest load, the dead, the entropy */
        bool skipped;
        char hash[17]; /* of the weights; "": none */
    } step[RUNS_MOST_STEPS];
    int events; /* spikes, and steps undone */
    int evaluations;
    struct {
        int64_t step;
        double loss;
    } evaluation[RUNS_MOST_STEPS];
} runs_metrics;

/* metrics.jsonl of a run's folder; a missing file has no steps. */
runs_metrics runs_read_metrics(const char *folder);
/* Largest |a - b| / |b| over the steps, of the loss and of the losses beside it that either has; infinite if they do
 * not have the same steps, or where something is not finite. */
double runs_loss_error(const runs_metrics *a, const runs_metrics *b);
double runs_norm_error(const runs_metrics *a, const runs_metrics *b);
/* The same of the loads of experts. */
double runs_loads_error(const runs_metrics *a, const runs_metrics *b);
/* Same steps, losses, norms, rates, hashes of weights and evaluations, to the last bit that the files hold. */
bool runs_same_metrics(const runs_metrics *a, const runs_metrics *b);

/* How far the gradients dumped in `folder` (gradients.safetensors) are from those in `from`. */
typedef struct runs_gradients {
    int tensors;     /* compared; 0 if the two do not hold the same names and shapes */
    double worst;    /* the largest |d| / max(1e-5 |g|, 1e-7 |all|), L2, over the tensors: at most 1 is promised */
    double relative; /* |all d| / |all g| */
    double norm;     /* |all g| */
    char name[128];  /* the tensor that is worst */
} runs_gradients;

runs_gradients runs_compare_gradients(const char *folder, const char *from);

/* Compares every tensor of every section of the latest checkpoints of two runs, bit by bit. Returns how many are equal,
 * and in `difference` what is not ("" if nothing). */
int runs_compare_checkpoints(char *difference, int bytes, const char *run, const char *other);
/* The same for the biases of experts alone. */
int runs_compare_biases(char *difference, int bytes, const char *run, const char *other);
/* The largest |a - b| / |b|, L2, of a tensor of the weights in the latest checkpoints, and its name; infinite if they
 * do not hold the same ones. */
double runs_weights_error(char *name, int bytes, const char *run, const char *other);
/* The same of another section, such as a state of the optimizer. */
double runs_section_error(char *name, int bytes, const char *run, const char *other, const char *section);
/* The same for the tensors of one section. */
int runs_compare_section(char *difference, int bytes, const char *run, const char *other, const char *section);

/* summary.json; the caller's to json_decref */
json_t *runs_read_summary(const char *folder);

/* The last whole line of a file of JSON lines, the caller's to json_decref; NULL if there is none. */
json_t *runs_last_line(const char *path);

/* phalanx's lines among the standard error of a command, of one process or of mpirun's: those that begin "phalanx:
 * ". */
int runs_error_lines(const char *text);

/* "LAUNCHER build/phalanx train ARGUMENTS", LAUNCHER being mpirun for more than one rank. The result is the
 * caller's. */
launch *runs_start(double limit, int ranks, const char *arguments);
launch_result runs_train(double limit, int ranks, const char *arguments);
/* The same where nothing may go wrong: otherwise it dies with what was said. Standard output, the caller's. */
char *runs_train_well(double limit, int ranks, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The process that is `rank` of the job that trains in `folder`, or serves from it; 0 if there is none. */
int runs_process(const char *folder, int rank);
/* Wait until the run has done `steps`; false after `seconds`. */
bool runs_wait_for_step(const char *folder, int64_t steps, double seconds);
