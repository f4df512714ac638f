/* The configuration of a run: one struct and one table of keys (config_table.c), from which reading, defaults, help,
 * the effective configuration and the comparison on resume all follow. A config owns its strings and lists: config_load
 * fills it, config_free empties it. Strings that were not given and have no default are NULL. Values are plain: this
 * module knows no device, tokenizer or checkpoint. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/table/precision.h"
#include "kernels/record/recompute.h"
#include "memory/status.h"
#include "layers/balance.h"
#include "models/shape.h"
#include "parallel/comm/grid.h"
#include "parallel/schedule/schedule.h"

/* The learning rate of every step: a pure function of the step, so that resuming needs no state. */
typedef enum learning_rate_kind {
    LEARNING_RATE_CONSTANT,
    LEARNING_RATE_LINEAR,
    LEARNING_RATE_COSINE,
    LEARNING_RATE_WSD,
    LEARNING_RATE_INVERSE_SQRT,
} learning_rate_kind;

typedef struct learning_rate {
    learning_rate_kind kind;
    double peak;           /* lr */
    double floor;          /* min_lr: the rate of the decaying schedules at the last step */
    double decay_fraction; /* WSD: the share of all steps, at the end, in which the rate falls linearly */
    int64_t warmup;        /* steps; the rate is peak * t / warmup for t <= warmup */
    int64_t steps;
} learning_rate;

/* step counts from 1. Beyond `steps` the rate stays at its last value (inverse_sqrt and constant just go on). */
double learning_rate_at(const learning_rate *schedule, int64_t step);

typedef enum config_device { CONFIG_CPU, CONFIG_CUDA, CONFIG_AUTO } config_device;
typedef enum config_optimizer {
#define OPTIMIZER(name, ...) CONFIG_OPTIMIZER_##name,
#include "engine/config/optimizers.def"
} config_optimizer;
typedef enum config_adjust { CONFIG_ADJUST_ORIGINAL, CONFIG_ADJUST_RMS } config_adjust;
typedef enum config_offload { CONFIG_OFFLOAD_NONE, CONFIG_OFFLOAD_OPTIMIZER } config_offload;
typedef enum config_log_format { CONFIG_LOG_PLAIN, CONFIG_LOG_JSON } config_log_format;
typedef enum config_outer { CONFIG_OUTER_AVERAGE, CONFIG_OUTER_NESTEROV } config_outer;
typedef enum config_outer_topology { CONFIG_OUTER_ALL, CONFIG_OUTER_GOSSIP, CONFIG_OUTER_SERVER } config_outer_topology;
typedef enum config_robust {
    CONFIG_ROBUST_NONE,
    CONFIG_ROBUST_CLIP,
    CONFIG_ROBUST_MEDIAN,
    CONFIG_ROBUST_TRIMMED
} config_robust;
typedef enum config_outer_weights { CONFIG_OUTER_TOKENS, CONFIG_OUTER_EQUAL } config_outer_weights;
typedef enum config_order {
    CONFIG_ORDER_AUTO, /* parts on a device, products on the CPU, which promises the same bits */
    CONFIG_ORDER_NONE,
    CONFIG_ORDER_LAUNCHES,
    CONFIG_ORDER_PRODUCTS,
    CONFIG_ORDER_HALVES,
    CONFIG_ORDER_PARTS,
} config_order; /* which transfers overlap which ops */
/* Balance of a sample's tokens among the ranks that divide them: zig-zag shards (halves), or by documents. */
typedef enum config_balance { CONFIG_BALANCE_ZIGZAG, CONFIG_BALANCE_DOCUMENTS } config_balance;
/* How tokens come to experts that ranks divide: by price, all of a block gathered, or each where it goes. */
typedef enum config_gather { CONFIG_GATHER_AUTO, CONFIG_GATHER_LATENT, CONFIG_GATHER_KEYS } config_gather;
typedef enum config_dispatch { CONFIG_DISPATCH_AUTO, CONFIG_DISPATCH_GATHER, CONFIG_DISPATCH_SLOTS } config_dispatch;
typedef enum config_vocabulary { CONFIG_VOCABULARY_ENDS, CONFIG_VOCABULARY_STAGES } config_vocabulary;
typedef enum config_when { CONFIG_EACH_STEP, CONFIG_EACH_MICRO_BATCH } config_when; /* zero_gather, zero_reduce */

/* Data sets to blend: samples are drawn in proportion to the weights, which need not sum to one. */
typedef struct config_source {
    char *path; /* prefix of .bin and .idx */
    double weight;
} config_source;

typedef struct config_sources {
    int count;
    config_source *item;
} config_sources;

typedef struct config_integers {
    int count;
    int *item;
} config_integers;

enum { CONFIG_MAX_KEYS = 256 };

/* How a run is laid out over ranks: as the file has it, as it is compiled (compile_options), and as a search tries
 * it. */
typedef struct config_layout {
    int size[GRID_AXES]; /* ranks along each coordinate; data 0: all remaining ranks */
    int virtual_stages;  /* chunks of a stage, as config_virtual_stages() reads it */
    schedule_kind schedule;
    char *schedule_for; /* SCHEDULE_AUTO: a profile, as profile_open() takes it */
    bool sequence;
    config_order order;
    int expert; /* ranks that divide a layer's experts: a block of one stage's ranks */
    config_dispatch expert_dispatch;
    int zero;
    config_vocabulary vocabulary; /* its stages: the first and the last, or all a part each */
    config_balance balance;       /* balance of context ranks */
    config_gather context_gather;
    config_when zero_gather, zero_reduce;
    config_integers layers_per_stage; /* one number per chunk in model order; empty: divided automatically */
    int64_t bucket;                   /* bytes of gradients reduced together */
    int compress;                     /* compress_kind, of gradients between data ranks */
    double density;                   /* kept share; topk and dct only */
} config_layout;

typedef struct config {
    struct {
        model_shape shape;
        layer_balance router_over; /* scope of the loss that balances experts */
        char *preset;
        char *from;   /* folder of weights, read by the caller that resolves it */
        bool upcycle; /* the weights come from a dense model (engine/state/weights/weights_copy.h) */
        char *config; /* a Hugging Face config.json, likewise */
    } model;
    struct {
        config_sources train, validation;
        char *tokenizer; /* file kept beside the checkpoints, for generate and eval */
        bool shuffle, document_mask;
        bool skip_bad;      /* samples that hold an id outside the vocabulary do not count, and do not stop the run */
        bool allow_changed; /* a resumed run may go on with other bytes at the same paths */
        char *cache;        /* folder for blocks of data sets in an object store; NULL: the user's */
        int64_t cache_size; /* limit of the cache in bytes */
    } data;
    struct {
        int64_t steps, sequence;
        int micro_batch;            /* sequences per rank and micro-batch */
        int global_batch;           /* sequences per optimizer step over all ranks; with a ramp, at its end */
        config_integers batch_ramp; /* step, batch, step, batch, ... (batch_ramp_samples()) */
        precision_kind precision;
        config_device device;
        bool tf32;          /* GPU: fp32 products may round their operands */
        bool deterministic; /* GPU: the same bits each time */
        bool tune;          /* choices of the device are made by timing */
        bool cuda_graph;    /* GPU: a step is enqueued as a whole */
        int64_t seed;
        int max_skipped; /* steps in a row without finite gradients that stop the run */
        int threads;     /* per rank; 0: the cores divided by the ranks of this host */
        double loss_scale;
        int loss_scale_window; /* good steps after which the scale doubles */
    } train;                   /* train.dropout is model.shape.dropout */
    struct {
        config_optimizer name;
        learning_rate_kind schedule;
        double lr, min_lr, decay_fraction;
        int64_t warmup;
        double beta1, beta2, epsilon, weight_decay;
        double momentum;
        bool nesterov;
        double muon_lr;               /* peak for Muon's matrices; lr is the other parameters' */
        precision_kind state, master; /* stored in their compute types */
        config_adjust muon_adjust;
        double qk_clip; /* muon: the max logit beyond which queries and keys shrink; 0: none */
        double clip;    /* largest gradient norm; 0: no clipping */
    } optimizer;
    config_layout parallel;
    struct {
        recompute recompute;
        int64_t budget; /* bytes of the arena; 0: none */
        config_offload offload;
        int64_t window; /* bytes of the arena that offloaded values pass through */
    } memory;
    struct {
        int every; /* optimizer steps between merges of a fragment; 0: no islands */
        config_outer optimizer;
        int compress; /* compress_kind */
        double lr, momentum, density, error_decay, mix, clip, noise;
        config_outer_weights weights;
        config_outer_topology topology;
        config_robust robust; /* against hostile islands */
        bool undo;            /* a merge after which losses jump */
        int group;            /* islands of an exchange, of gossip */
        int staleness;        /* merges, of a change, at most; of a server */
        int fragments, delay;
        int slots, slot, min_islands; /* slot -1: any */
        bool private_data;            /* samples are not divided between slots */
        double timeout, bandwidth;    /* seconds; bits a second, 0: no limit */
        config_sources rendezvous;    /* addresses of etcd */
        char *run, *island, *keys, *address, *credentials;
    } outer;
    struct {
        int every, keep;                     /* 0: only at the end; 0: all */
        int keep_every;                      /* 0: none is kept for ever */
        char *resume;                        /* "auto", "never", a folder, or s3://... */
        bool restart_data, restart_schedule; /* a new stage begins with the data, or the schedule, from the start */
        bool fallback;                       /* fall back to an older one if the latest is damaged */
        bool asynchronous;                   /* written while the run trains */
        int export_every, export_format;     /* steps; 0: no export */
        int memory_every;                    /* steps between copies in the memory of nodes; 0: none */
        char *mirror;                        /* "s3://BUCKET/PREFIX"; NULL: none */
    } checkpoint;
    struct {
        int every, batches; /* 0: never */
    } evaluate;
    struct {
        char *folder;
        int log_every, loads_every;
        config_log_format log_format;
        bool tensorboard;
        char *mlflow, *mlflow_experiment, *mlflow_name;
        int resource_seconds; /* 0: hosts are not sampled */
        bool lock;            /* no second run in the folder */
        int hang_seconds, silent_seconds, setup_seconds, evaluation_seconds, load_seconds, save_seconds;
        int exit_when_stopped;
        int verify_every; /* steps; 0: never */
        bool first_steps;
        int hash_every;    /* steps; 0: never */
        double slow_ratio; /* a rank that computes so much longer than the median is named; 0: none is */
        struct {
            double zscore; /* 0: no check */
            bool rewind;   /* go back to the last checkpoint and skip the data since then */
        } spike;
        config_integers trace; /* the first and the last step that are traced; empty: none */
    } run;
    struct {
        char *gradients; /* folder */
        int64_t at_step;
    } debug;
    struct {
        int64_t start, stop; /* steps, both included; 0: no profile */
    } profile;
    bool given[CONFIG_MAX_KEYS]; /* [row of the table]: set by the user, not filled in */
} config;

/* Reads the file (NULL: defaults only), then the overrides ("section.key=value"), then fills in the keys not given. The
 * message of a failure names file:line or "argument N" (from 1), the key, the expected value, and the nearest valid
 * key. On success `out` must be freed. Ends with config_check unless config_wants_shape or config_wants_vocabulary. */
status config_load(config *out, const char *path, int overrides, char *const *override);

/* Same as config_load, for a text that a program has written (a checkpoint's, a run's): it may include no file and name
 * no variable of the environment (config_read_text()). `name` is the file in messages. */
status config_parse(config *out, const char *name, const char *text, size_t bytes, int overrides,
                    char *const *override);
/* Reads a user's text in memory as config_load reads the file `name`. */
status config_parse_users(config *out, const char *name, const char *text, size_t bytes);

/* True if the sizes are to come from model.config or model.from: the caller reads that file and calls
 * config_take_shape, which keeps every size that was given explicitly, and then config_check. */
bool config_wants_shape(const config *c);
void config_take_shape(config *c, const model_shape *shape);
/* True if only the vocabulary's size is missing, which a tokenizer may tell: set it, then config_check. */
bool config_wants_vocabulary(const config *c);

/* Checks the rules between keys; a failure is one line that says how to fix it. */
status config_check(const config *c);
/* The first checks c->parallel, the second the sizes that every layout must satisfy, configured or not. Fail with
 * STATUS_USAGE and one line. */
status config_check_layout(const config *c);
status config_check_sizes(const model_shape *shape, const int size[GRID_AXES], int virtual_stages, int64_t sequence);
/* Checks the rules that depend on the number of ranks and lays the ranks out: the grid as `rank` sees it. `ranks` 0:
 * the ranks of c->parallel, one along data unless it says more. */
status config_make_grid(grid *out, const config *c, int ranks, int rank);
/* Finds the layout's blocks of ranks that divide a layer's experts. */
void config_set_expert_blocks(grid *out, const config_layout *l);
/* Samples that all ranks together compute in one micro-batch; micro-batches that each rank computes for `samples`. */
int64_t config_samples_together(const grid *g, int64_t micro_batch);
int config_microbatches(const grid *g, int micro_batch, int samples);
/* Tokens of a step over all ranks; with a ramp, at its end. */
int64_t config_step_tokens(const config *c);
/* Chunks of layers of each stage; one stage alone has 1. */
int config_virtual_stages(const config_layout *l);
/* True if each of `stages` stages has a part of the vocabulary. */
bool config_divides_vocabulary(const config_layout *l, int stages);
/* True if the layouts are equal. Words and lists are compared by their address. */
bool config_layout_same(const config_layout *a, const config_layout *b);

/* Returns the effective configuration as a fresh string: every key, every number exact, loads to the same config. */
char *config_text(const config *c);
/* Writes the keys that all ranks of a job must have alike as facts (parallel/comm/agree.h). */
void config_write_shared(FILE *out, const config *c);

/* Compare a checkpoint's configuration with this run's. `changed` is told (key, old value, new value) for every key
 * that differs and may; a key that may not is a failure that names it. Keys that only say where to look are skipped.
 * `new_stage`: the run is another, which goes on from a checkpoint of the one before. */
status config_compare_for_resume(const config *saved, const config *now, bool new_stage,
                                 void (*changed)(void *context, const char *key, const char *old_value,
                                                 const char *new_value),
                                 void *context);

/* Visits every key and its value as text, in the order of the table; stops at the first failure. */
status config_each(const config *c, status (*each)(void *context, const char *key, const char *value), void *context);

/* Prints every key with its type, default and meaning. */
void config_help(FILE *out);
/* Prints the help of one key or of a section's keys; false if there is neither. */
bool config_help_about(FILE *out, const char *name);
/* Prints a line per key for a shell: "section.key=" and its valid words. */
void config_words(FILE *out);
/* Prints the table as a JSON schema (draft 2020-12), for editors. */
void config_schema(FILE *out);

/* "bf16", "1f1b", ...: the word for the value of an enumerated key such as "train.precision". */
const char *config_word(const config *c, const char *key);
/* Returns the word for one of the key's values, as its enumeration numbers them. */
const char *config_word_of(const char *key, int value);

/* True if the user gave the key. */
bool config_is_given(const config *c, const char *key);

/* True if both have the same value of a key. */
bool config_same(const config *a, const config *b, const char *key);

learning_rate config_learning_rate(const config *c);

void config_free(config *c);

/* The global batch of every step: a pure function of the step, so that resuming needs no state. train.batch_ramp lists
 * [step, batch]: from that step on (counted from 0) a step has `batch` samples. Without a ramp every step has
 * train.global_batch, which is also the ramp's last batch. */

/* The number of batches, at least one; the stage of step `step`; the samples of stage `stage`. */
int batch_ramp_stages(const config *c);
int batch_ramp_stage_of(const config *c, int64_t step);
int batch_ramp_samples(const config *c, int stage);
/* Samples of the steps from `first` up to `end`, which is left out; -1 if they are more than an int64_t holds. */
int64_t batch_ramp_total(const config *c, int64_t first, int64_t end);

/* A ramp begins at step 0, rises, and ends with train.global_batch. */
status batch_ramp_check(const config *c);

/* Returns, as a fresh string, the text of a user's file with the value of "section.key" replaced by `value` (YAML on
 * one line); comments, order and spacing stay. A missing key is added after the last of its section; a missing section
 * is added at the end, as section: {key: value}. STATUS_USAGE, with `name` in front, if the text is no YAML or if an
 * alias or an odd layout leaves no place for the key. */
status config_edit(char **out, const char *name, const char *text, const char *key, const char *value);

/* Rewrites the text of file `name` as a user would to say the same as `to`. Changes the keys below one of the
 * `sections` (a NULL-terminated list) in which `from`, the file as it is, differs, and each key given in `override`
 * ("section.key=value", `overrides` of them). STATUS_FAILED if the result does not read back as `to`. */
status config_rewrite(char **out, const char *name, const config *from, const config *to, const char *const *sections,
                      int overrides, char *const *override);

/* Reads the keys of a YAML text, each at most once. Messages begin with "name:line: ". A user's text may include files,
 * relative to the folder of `name`; its own keys override theirs, and its paths may name variables of the environment,
 * ${NAME}. Neither holds for a `stored` text, which a program wrote and anybody may have changed. $${ stands for ${ in
 * both. */
status config_read_text(config *c, const char *name, const char *text, size_t bytes, bool stored);
/* Reads "section.key=value", each key at most once. Messages begin with "argument N: ", where N counts from 1. */
status config_read_overrides(config *c, int count, char *const *override);
/* Reads the whole file into a fresh buffer. */
status config_read_file(char **text, size_t *bytes, const char *path);
