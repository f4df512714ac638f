#include "engine/config/config_table.h"

#include <stdint.h>
#include <string.h>

#include "engine/config/nearest.h"
#include "kernels/compress.h"
#include "kernels/record/storage.h"
#include "memory/log.h"
#include "memory/scope.h"

#define AT(member) offsetof(config, member)
/* Upper limits of integers: a range is doubles, which are exact up to 2^53. */
#define ANY    9007199254740992.0
#define INTMAX 2147483647.0

/* The order of the words is the order of the enumeration. */
static const char *const architectures[] = {
#define ARCHITECTURE(name, word, ...) word,
#include "models/architectures.def"
    NULL};
static const char *const widths[] = {
#define KEPT_true(word) word,
#define KEPT_false(word)
#define PRECISION(name, word, compute, master, product, cotangent, peak, rounded, scales, kept) KEPT_##kept(word)
#include "kernels/table/precision.def"
#undef KEPT_false
#undef KEPT_true
    NULL};
static const char *const devices[] = {"cpu", "cuda", "auto", NULL};
static const char *const optimizers[] = {
#define OPTIMIZER(name, ...) #name,
#include "engine/config/optimizers.def"
    NULL};
static const char *const adjusts[] = {"original", "match_rms_adamw", NULL};
static const char *const rates[] = {"constant", "linear", "cosine", "wsd", "inverse_sqrt", NULL};
static const char *const log_formats[] = {"plain", "json", NULL};
static const char *const export_formats[] = {"huggingface", NULL};
static const char *const orders[] = {"auto", "none", "launches", "products", "halves", "parts", NULL};
static const char *const gathers[] = {"auto", "latent", "keys", NULL};
static const char *const dispatches[] = {"auto", "gather", "slots", NULL};
static const char *const vocabularies[] = {"ends", "stages", NULL};
static const char *const balances[] = {"halves", "documents", NULL};
static const char *const router_overs[] = {"sequence", "layer", "batch", "pooled", NULL};
static const char *const whens[] = {"step", "micro_batch", NULL};
static const char *const offloads[] = {"none", "optimizer", NULL};
static const char *const outer_rules[] = {"average", "nesterov", NULL};
static const char *const outer_topologies[] = {"all", "gossip", "server", NULL};
static const char *const outer_weights[] = {"tokens", "equal", NULL};
static const char *const outer_robusts[] = {"none", "clip", "median", "trimmed", NULL};
static const char *const recomputes[] = {"none", "selective", "full", NULL};

#define ROW(key, type, member, fallback, low, high, words, resume, otherwise, doc)                                     \
    {                                                                                                                  \
        key, CONFIG_TYPE_##type, AT(member), fallback, low, high, words, (CONFIG_##resume) & ~CONFIG_BY_RANK,          \
            ((CONFIG_##resume) & CONFIG_BY_RANK) != 0, otherwise, doc                                                  \
    }
/* A key is its member's name, except in rows of _AT. */
#define INT_AT(key, member, fallback, low, high, resume, doc)                                                          \
    ROW(key, INT, member, fallback, low, high, NULL, resume, NULL, doc)
#define INT(key, ...)                               INT_AT(#key, key, __VA_ARGS__)
#define LONG(key, fallback, low, high, resume, doc) ROW(#key, LONG, key, fallback, low, high, NULL, resume, NULL, doc)
#define SIZE(key, fallback, resume, doc)            ROW(#key, SIZE, key, fallback, 0, ANY, NULL, resume, NULL, doc)
#define NUMBER_AT(key, member, fallback, low, high, resume, doc)                                                       \
    ROW(key, NUMBER, member, fallback, low, high, NULL, resume, NULL, doc)
#define NUMBER(key, ...)                 NUMBER_AT(#key, key, __VA_ARGS__)
#define BOOL(key, fallback, resume, doc) ROW(#key, BOOL, key, fallback, 0, 1, NULL, resume, NULL, doc)
#define WORD_AT(key, member, words, fallback, resume, doc)                                                             \
    ROW(key, WORD, member, fallback, 0, 0, words, resume, NULL, doc)
#define WORD(key, ...)                     WORD_AT(#key, key, __VA_ARGS__)
#define STRING(key, fallback, resume, doc) ROW(#key, STRING, key, fallback, 0, 0, NULL, resume, "none", doc)
/* A default that follows from other keys (config_load.c), described by `otherwise`. */
#define DERIVED_AT(key, kind, member, low, high, words, resume, otherwise, doc)                                        \
    ROW(key, kind, member, NULL, low, high, words, resume, otherwise, doc)
#define DERIVED(kind, key, ...) DERIVED_AT(#key, kind, key, __VA_ARGS__)

/* A row of models/sizes.def. Whole numbers are as large as their type here; shape_check() limits them further. */
#define MOST_INT(high)    INTMAX
#define MOST_LONG(high)   ANY
#define MOST_NUMBER(high) high
#define MOST_BOOL(high)   high
#define MODEL_SIZE(kind, member, low, high, of, fill, resume, otherwise, doc)                                          \
    DERIVED_AT("model." #member, kind, model.shape.member, low, MOST_##kind(high), NULL, resume, otherwise, doc),

static const config_row rows[] = {
    /* clang-format off */
    ROW("model.preset", PRESET, model.preset, NULL, 0, 0, NULL, SILENT, "none",
        "ready-made sizes by name; keys beside it override it"),
    DERIVED_AT("model.architecture", WORD, model.shape.architecture, 0, 0, architectures, FIXED, "llama",
        "family of the decoder"),
#include "models/sizes.def"
    DERIVED_AT("model.rope_scaling.kind", WORD, model.shape.rope_scaling.kind, 0, 0, shape_rope_words, STAGE, "llama3",
        "how: llama3, linear, dynamic (as long as nothing is longer than max_sequence: not at all), yarn or longrope"),
    DERIVED_AT("model.rope_scaling.short_factor", FACTORS, model.shape.rope_scaling.short_factor, 1e-6, 1e6, NULL,
        STAGE, "none", "of longrope: what each frequency is divided by where the run's sequences are at most "
        "original_max_sequence long"),
    DERIVED_AT("model.rope_scaling.long_factor", FACTORS, model.shape.rope_scaling.long_factor, 1e-6, 1e6, NULL, STAGE,
        "none",
        "of longrope: the same where they are longer, prompt and continuation together when text is generated"),
    WORD_AT("model.router_loss_over", model.router_over, router_overs, "sequence", STAGE, "over what it takes loads "
        "and probabilities: each sample; a layer's tokens of a micro-batch; batch, loads of a layer's tokens of the "
        "step's micro-batches so far on all data ranks (2501.11873), probabilities of this one's; pooled, those of "
        "all layers, as transformers does"),
    STRING(model.from, NULL, SILENT | CONFIG_BY_RANK,
        "folder, or s3://, to take the weights (and the sizes) from: Hugging Face's or a checkpoint"),
    BOOL(model.upcycle, "false", SILENT,
        "model.from is a dense model: each expert begins as a copy of its mlp, routers are drawn"),
    STRING(model.config, NULL, SILENT | CONFIG_BY_RANK, "Hugging Face config.json to take the sizes from"),

    DERIVED(SOURCES, data.train, 0, 0, NULL, STAGE | CONFIG_BY_RANK, "none",
        "prefix of .bin/.idx, or a list of prefixes or {path, weight}; s3://BUCKET/PREFIX is in an object store"),
    DERIVED(SOURCES, data.validation, 0, 0, NULL, CHANGES | CONFIG_BY_RANK, "none", "the same for evaluation"),
    STRING(data.tokenizer, NULL, CHANGES | CONFIG_BY_RANK, "tokenizer file to keep with the checkpoints"),
    BOOL(data.shuffle, "true", FIXED, "draw samples in a random order that depends on the seed only"),
    BOOL(data.document_mask, "false", STAGE, "no attention across documents, positions restart"),
    BOOL(data.skip_bad, "false", CHANGES,
        "leave out samples that hold an id outside the vocabulary, instead of stopping"),
    BOOL(data.allow_changed, "false", SILENT,
        "resume although a data set is not the one that the checkpoint was made with"),
    DERIVED(STRING, data.cache, 0, 0, NULL, SILENT | CONFIG_BY_RANK, "$XDG_CACHE_HOME/phalanx/blocks, or ~/.cache",
        "folder on local disk for what is read of s3:// prefixes; jobs may share it"),
    SIZE(data.cache_size, "100GiB", SILENT | CONFIG_BY_RANK, "bytes that data.cache may take; what was not used for longest goes"),

    LONG(train.steps, "1000", 1, ANY, CHANGES, "optimizer steps"),
    DERIVED(LONG, train.sequence, 1, ANY, NULL, STAGE, "1024, or model.max_sequence if that is less",
        "tokens a sequence"),
    INT(train.micro_batch, "4", 1, INTMAX, CHANGES, "sequences per rank and micro-batch"),
    DERIVED(INT, train.global_batch, 1, INTMAX, NULL, STAGE, "32, or the last of train.batch_ramp",
        "sequences per optimizer step over all ranks"),
    DERIVED(PAIRS, train.batch_ramp, 0, INTMAX, NULL, STAGE, "none", "[[step, batch], ...]: so many sequences from "
        "that step on, counted from 0 (from its first step, where a new stage brings another ramp), rising up to "
        "global_batch"),
    DERIVED(WORD, train.precision, 0, 0, precision_words, CHANGES, "bf16; fp32 on a CPU without bf16 instructions",
        "of weights and activations; sums are fp32"),
    LONG(train.seed, "1", 0, ANY, FIXED, "of initial weights, data order and dropout"),
    WORD(train.device, devices, "auto", CHANGES, "where to run; auto: cuda where there is one"),
    BOOL(train.deterministic, "true", CHANGES, "on a GPU, the same bits in every run, where all ranks run one build (others "
        "are warned of); false: attention's backward pass may sum in any order, where that is faster"),
    BOOL(train.tf32, "false", CHANGES, "on a GPU, fp32 products may round their operands to tf32"),
    BOOL(train.tune, "true", CHANGES, "on a GPU, time algorithms once a run, and keep the fastest in its tuning.json"),
    BOOL(train.cuda_graph, "false", CHANGES,
        "on a GPU, enqueue a step as one CUDA graph from its third on, evaluation likewise"),
    NUMBER_AT("train.dropout", model.shape.dropout, "0", 0, 1, CHANGES,
        "probability, after embeddings and residual branches"),
    INT(train.max_skipped, "10", 1, INTMAX, CHANGES, "stop after this many steps in a row without finite gradients, "
        "or without a sample that is left (data.skip_bad)"),
    INT(train.threads, "0", 0, 4096, CHANGES | CONFIG_BY_RANK, "CPU threads a rank; 0: cores / ranks of this host"),
    NUMBER(train.loss_scale, "65536", 1, 4294967296.0, CHANGES, "initial loss scale in fp16; halves on overflow"),
    INT(train.loss_scale_window, "1000", 1, INTMAX, CHANGES, "good steps after which the loss scale doubles"),

    WORD(optimizer.name, optimizers, "adamw", FIXED, "the update rule; muon: adamw for all but the blocks' matrices"),
    NUMBER(optimizer.lr, "3e-4", 0, 1e3, CHANGES, "peak learning rate"),
    NUMBER(optimizer.min_lr, "0", 0, 1e3, CHANGES, "learning rate that decaying schedules reach"),
    WORD(optimizer.schedule, rates, "cosine", CHANGES, "of the learning rate, after the warm-up"),
    LONG(optimizer.warmup, "0", 0, ANY, CHANGES, "steps in which the learning rate rises from 0"),
    NUMBER(optimizer.decay_fraction, "0.2", 0, 1, CHANGES, "wsd: share of the steps, at the end, in which it falls"),
    NUMBER(optimizer.beta1, "0.9", 0, 0.9999999, CHANGES, "adamw, lion: decay of the mean of gradients"),
    NUMBER(optimizer.beta2, "0.95", 0, 0.9999999, CHANGES,
        "adamw: decay of the mean of their squares; lion: of the momentum"),
    NUMBER(optimizer.epsilon, "1e-8", 0, 1, CHANGES, "added to the root of the latter"),
    NUMBER(optimizer.weight_decay, "0.1", 0, 1e3, CHANGES, "decoupled, on matrices and embeddings; sgd has none"),
    NUMBER(optimizer.momentum, "0.95", 0, 0.9999999, CHANGES,
        "sgd, muon: decay of the sum (muon: the mean) of gradients"),
    BOOL(optimizer.nesterov, "true", CHANGES, "sgd, muon: Nesterov's momentum"),
    DERIVED(NUMBER, optimizer.muon_lr, 0, 1e3, NULL, CHANGES, "lr",
        "muon: peak learning rate of the blocks' matrices; adamw updates the rest with lr"),
    WORD(optimizer.muon_adjust, adjusts, "original", CHANGES,
        "muon: rate by a matrix's shape [a, b]: sqrt(max(1, a / b)), or 0.2 sqrt(max(a, b))"),
    NUMBER(optimizer.qk_clip, "0", 0, 1e6, CHANGES, "muon: after an update, weights of heads whose largest score of "
        "attention in the step was above it shrink so that it is reached (QK-clip; 100 is the published value); 0: "
        "none"),
    WORD(optimizer.state, widths, "fp32", CHANGES, "type of the optimizer's state; bf16 is rounded stochastically"),
    WORD(optimizer.master, widths, "fp32", CHANGES,
        "type of the weights that updates add to; bf16: no copy beside the bf16 weights, rounded stochastically"),
    NUMBER(optimizer.clip, "1", 0, 1e18, CHANGES, "largest norm of the gradient; 0: no clipping"),

    INT_AT("parallel.tensor", parallel.size[GRID_TENSOR], "1", 1, 65536, CHANGES, "ranks that share each layer"),
    INT_AT("parallel.context", parallel.size[GRID_CONTEXT], "1", 1, 65536, CHANGES,
        "ranks that share a sample's tokens; 2 x context divides train.sequence"),
    WORD_AT("parallel.context_balance", parallel.balance, balances, "halves", CHANGES, "what context ranks have of a "
        "sample: halves, zig-zag shards; documents, blocks of equal work under data.document_mask"),
    INT(parallel.expert, "1", 1, 65536, CHANGES,
        "ranks that divide a layer's experts; divides tensor x context x data"),
    WORD(parallel.context_gather, gathers, "auto", CHANGES, "what context ranks gather of the others where attention "
        "is latent: latent, from which each makes all keys and values; keys, with values; auto, the one that the "
        "device's prices say is faster"),
    WORD(parallel.expert_dispatch, dispatches, "auto", CHANGES, "how tokens come to experts that ranks divide: "
        "gather, all tokens of a block to each of its ranks; slots, each to the ranks of its experts; auto, the one "
        "that the device's prices say is faster"),
    INT_AT("parallel.pipeline", parallel.size[GRID_PIPELINE], "1", 1, 65536, CHANGES, "ranks that share the depth"),
    INT(parallel.virtual_stages, "1", 1, 65536, CHANGES, "runs of layers a pipeline rank holds"),
    INT_AT("parallel.data", parallel.size[GRID_DATA], "0", 0, INTMAX, CHANGES,
        "ranks that divide the samples; 0: what is left of the ranks; else it is checked"),
    WORD(parallel.schedule, schedule_names, "1f1b", CHANGES,
        "order of the pipeline's work; 1f1b with virtual_stages is interleaved; auto finds one"),
    STRING(parallel.schedule_for, DEVICES_ASSUMED, CHANGES, "schedule auto: the device whose prices it is found "
        "with, on whatever it runs: " DEVICES_WORDS " or a file of phalanx bench --profile"),
    BOOL(parallel.sequence, "true", CHANGES, "split norms and residuals by token over the tensor ranks"),
    INT(parallel.zero, "1", 0, STORAGE_LEVELS - 1, CHANGES,
        "shard over the data ranks: 1 optimizer, 2 + gradients, 3 + weights"),
    WORD(parallel.vocabulary, vocabularies, "ends", CHANGES,
        "which stages have the embedding and the head: ends, the first and the last; stages, each a part"),
    WORD(parallel.zero_gather, whens, "step", CHANGES, "how often zero 3 gathers weights"),
    WORD(parallel.zero_reduce, whens, "step", CHANGES, "how often zero 2 and 3 reduce gradients"),
    WORD(parallel.order, orders, "auto", CHANGES, "hides transfers, as memory.budget allows: early launches; and "
        "products beside them; in halves for more of them; the forward pass's products in parts; auto: parts on a "
        "GPU, products on the CPU"),
    DERIVED(INTEGERS, parallel.layers_per_stage, 0, INTMAX, NULL, CHANGES, "balanced",
        "layers of each run, in order of the model; the first and the last may have none"),
    SIZE(parallel.bucket, "32MiB", CHANGES, "gradients that are reduced together, once a step"),
    WORD(parallel.compress, compress_words, "none", CHANGES, "how gradients are sent between data ranks, for slow "
        "networks; what is lost is kept for the next step; with zero 0 and 1"),
    NUMBER(parallel.density, "0.02", 1e-4, 1, CHANGES,
        "topk, dct: share of the elements (dct: of the frequencies of each 64) that is sent"),

    WORD(memory.recompute, recomputes, "none", CHANGES, "what the backward pass computes again"),
    SIZE(memory.budget, "0", CHANGES, "bytes a rank may use; recomputes what must be; 0: no budget"),
    WORD(memory.offload, offloads, "none", CHANGES,
        "optimizer: on a GPU, states and masters of matrices are in pinned host memory, and updates fetch them"),
    SIZE(memory.window, "256MiB", CHANGES, "bytes of the GPU's memory that they pass through"),

    INT(outer.every, "0", 0, INTMAX, CHANGES, "steps between merges with other islands; 0: this job is no island"),
    WORD(outer.optimizer, outer_rules, "nesterov", CHANGES,
        "of the outer step: nesterov (DiLoCo) or the average of the changes"),
    DERIVED(NUMBER, outer.lr, 0, 1e3, NULL, CHANGES, "0.7; 0.35 for server; 1 for average", "outer learning rate"),
    DERIVED(NUMBER, outer.momentum, 0, 0.9999999, NULL, CHANGES, "0.9; 0.5 for gossip and server",
        "nesterov: outer momentum"),
    WORD(outer.topology, outer_topologies, "all", CHANGES, "who merges: all islands; small groups drawn anew each "
        "time (NoLoCo); or each by itself, with a server (phalanx server)"),
    INT(outer.staleness, "8", 1, INTMAX, CHANGES,
        "server: merges since an island took the model, beyond which its change is refused"),
    INT(outer.group, "2", 2, 64, CHANGES, "gossip: islands of a group"),
    INT(outer.fragments, "1", 1, 64, CHANGES,
        "parts of the model that are merged in turn, spread over outer.every steps"),
    INT(outer.delay, "0", 0, INTMAX, CHANGES,
        "steps between taking a change and applying the merge: it travels meanwhile"),
    NUMBER(outer.mix, "0", 0, 1, CHANGES, "share of an island's own weights that is kept when a merge is applied"),
    WORD(outer.compress, compress_words, "none", CHANGES,
        "how changes are sent; what is lost is kept for the next merge"),
    NUMBER(outer.density, "0.02", 1e-4, 1, CHANGES,
        "topk, dct: share of the elements (dct: of the frequencies of each 64) that is sent"),
    NUMBER(outer.error_decay, "1", 0, 1, CHANGES, "of what was kept, at each merge"),
    NUMBER(outer.clip, "0", 0, 1e30, CHANGES, "norm of an island's change of a fragment, at most; 0: any"),
    NUMBER(outer.noise, "0", 0, 1e6, CHANGES, "normal noise in each sent change, in outer.clip: differential privacy "
        "of the island (plan prints its epsilon)"),
    WORD(outer.weights, outer_weights, "tokens", CHANGES, "of islands in a merge"),
    WORD(outer.robust, outer_robusts, "none", CHANGES, "against hostile islands: clip changes to their median norm; "
        "or, topology all and dense changes, the median of each element, or its trimmed mean over changes that agree"),
    BOOL(outer.undo, "false", CHANGES, "topology all: keep the state before a merge, and go back to it when the loss "
        "of most islands jumps with the first step after (run.spike.zscore); up to 8 bytes a parameter of host memory"),
    DERIVED(ADDRESSES, outer.rendezvous, 0, 0, NULL, SILENT | CONFIG_BY_RANK, "none", "nodes of etcd: http[s]://HOST:2379, or a list"),
    STRING(outer.credentials, NULL, SILENT | CONFIG_BY_RANK,
        "file of mode 600 with etcd's USER:PASSWORD; else that of the environment, PHALANX_ETCD_CREDENTIALS"),
    STRING(outer.run, "run", SILENT, "name of the run in etcd: islands of one run merge"),
    DERIVED(STRING, outer.island, 0, 0, NULL, SILENT, "the last part of run.folder", "name of this island"),
    STRING(outer.keys, NULL, SILENT | CONFIG_BY_RANK, "folder of this island's keys and those it trusts (phalanx keys)"),
    STRING(outer.address, NULL, SILENT | CONFIG_BY_RANK, "of this node, as other islands reach it; else that towards outer.rendezvous"),
    INT(outer.slots, "2", 1, 64, CHANGES, "islands at most; samples are divided between so many"),
    INT(outer.slot, "-1", -1, 63, SILENT, "this island's; -1: the one it had, or a free one"),
    BOOL(outer.private_data, "false", CHANGES, "every island has data of its own: all of its samples are its own"),
    INT(outer.min_islands, "1", 1, 64, CHANGES, "fewer do not merge, but train on"),
    NUMBER(outer.timeout, "60", 1, 1e6, SILENT, "seconds that a merge waits for islands"),
    NUMBER(outer.bandwidth, "0", 0, 1e15, SILENT, "bits a second that an island sends at most; 0: no limit"),

    INT(checkpoint.every, "100", 0, INTMAX, CHANGES, "steps; 0: at the end only"),
    INT(checkpoint.keep, "2", 0, INTMAX, CHANGES, "newest checkpoints kept; 0: all"),
    INT(checkpoint.keep_every, "0", 0, INTMAX, CHANGES,
        "checkpoints of multiples of so many steps are kept for ever; 0: none"),
    STRING(checkpoint.resume, "auto", SILENT, "auto: from the latest, if any; never: an earlier run is moved aside; "
        "or a checkpoint's or another run's folder, or s3://BUCKET/PREFIX, to begin from"),
    BOOL(checkpoint.restart_data, "false", SILENT,
        "a run that begins from another's checkpoint takes the data from their first sample, though they are the same"),
    BOOL(checkpoint.restart_schedule, "false", SILENT,
        "its learning rate warms up and decays anew, over the steps that are left; the optimizer's state goes on"),
    BOOL(checkpoint.fallback, "true", SILENT, "resume from the checkpoint before if the latest is damaged, and say so"),
    BOOL(checkpoint.asynchronous, "true", SILENT, "write checkpoints while the run trains, from a copy in host memory"),
    INT_AT("checkpoint.export.every", checkpoint.export_every, "0", 0, INTMAX, SILENT, "steps between exports, "
        "beside training, into run.folder/exports, and one at the end; each is a checkpoint, too; all are kept; 0: "
        "none"),
    WORD_AT("checkpoint.export.format", checkpoint.export_format, export_formats, "huggingface", SILENT,
        "of exports: a folder that transformers loads, with a model card"),
    INT(checkpoint.memory_every, "0", 0, INTMAX, SILENT,
        "steps between copies of the state in the memory of each node and a neighbour, for a restart; 0: none"),
    STRING(checkpoint.mirror, NULL, SILENT, "s3://BUCKET/PREFIX: each checkpoint is uploaded there beside training, "
        "and a run that has lost its folder goes on from there"),

    INT(evaluate.every, "100", 0, INTMAX, CHANGES, "steps; 0: never"),
    INT(evaluate.batches, "20", 1, INTMAX, CHANGES, "global batches an evaluation"),

    STRING(run.folder, "runs/phalanx", SILENT, "where everything the run writes goes"),
    INT(run.log_every, "1", 1, INTMAX, SILENT, "steps between lines on the screen"),
    WORD(run.log_format, log_formats, "plain", SILENT,
        "of what is printed: plain lines; or json, an object a line, with time, level, rank, and message or metrics"),
    INT(run.loads_every, "100", 0, INTMAX, SILENT,
        "steps between lines of run.folder/loads.jsonl, the tokens of each expert, and one of the last step; 0: none"),
    BOOL(run.tensorboard, "true", SILENT, "write TensorBoard events"),
    INT(run.resource_seconds, "10", 0, INTMAX, SILENT,
        "seconds between lines about each host's cores, memory, disks, network and GPUs; 0: none"),
    STRING(run.mlflow, NULL, SILENT, "http[s]://HOST:PORT of an MLflow server, which gets metrics while the run "
        "trains; logs in as the environment says: MLFLOW_TRACKING_USERNAME and _PASSWORD, or MLFLOW_TRACKING_TOKEN"),
    STRING(run.mlflow_experiment, "phalanx", SILENT, "name of the experiment there"),
    DERIVED(STRING, run.mlflow_name, 0, 0, NULL, SILENT, "the last part of run.folder", "name of the run there"),
    BOOL(run.lock, "true", SILENT, "refuse to run in a folder where another run is at work"),
    INT(run.hang_seconds, "600", 1, INTMAX, SILENT, "a step without progress for so long: say where and stop"),
    INT(run.exit_when_stopped, "75", 0, 125, SILENT,
        "exit status after a signal stopped the run and it was saved; not 1 or 2"),
    INT(run.verify_every, "0", 0, INTMAX, SILENT,
        "steps between verifications: state, messages, replicas, a micro-batch played twice; 0: never"),
    BOOL(run.first_steps, "true", SILENT,
        "after three updates, warn of weights with a gradient of zero or that no update changes"),
    INT(run.hash_every, "0", 0, INTMAX, SILENT,
        "steps between hashes of all weights in metrics.jsonl, equal in layouts that promise equal bits; 0: none"),
    NUMBER(run.slow_ratio, "1.1", 0, 1e6, SILENT,
        "a rank that computes so many times longer than the median is named; 0: none is"),
    NUMBER(run.spike.zscore, "0", 0, 1e6, CHANGES,
        "a loss or norm so many deviations above those before is a spike, which is said; 0: none is"),
    BOOL(run.spike.rewind, "false", CHANGES,
        "after a spike: back to the last checkpoint, and on without the data since then"),
    DERIVED(INTEGERS, run.trace, 1, INTMAX, NULL, SILENT, "none",
        "[first, last] step whose ops and messages are timed, into run.folder/trace"),
    INT(run.silent_seconds, "60", 1, INTMAX, SILENT,
        "a rank that does not answer for so long (or run.hang_seconds): the same"),
    INT(run.setup_seconds, "900", 1, INTMAX, SILENT, "the same for the start, the set-up and the end of a run"),
    INT(run.evaluation_seconds, "600", 1, INTMAX, SILENT, "the same for an evaluation"),
    INT(run.load_seconds, "1800", 1, INTMAX, SILENT, "the same for reading a checkpoint or weights"),
    INT(run.save_seconds, "1800", 1, INTMAX, SILENT,
        "the same for writing a checkpoint; slow storage is warned of after a minute, with rank and path"),

    STRING(debug.gradients, NULL, SILENT, "folder to write all gradients of one step to"),
    LONG(debug.at_step, "1", 1, ANY, SILENT, "that step"),

    LONG(profile.start, "0", 0, ANY, SILENT, "first step under the profiler; 0: none"),
    LONG(profile.stop, "0", 0, ANY, SILENT, "last step under the profiler"),
    /* clang-format on */
};

enum { ROWS = sizeof rows / sizeof *rows };
_Static_assert((int)ROWS <= (int)CONFIG_MAX_KEYS, "config.given has a place for every row");
_Static_assert(sizeof(precision_kind) == sizeof(int), "words are stored as int");

int config_table_rows(void)
{
    return ROWS;
}

const config_row *config_table_row(int index)
{
    return &rows[index];
}

int config_table_find(const char *key)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].key, key) == 0)
            return i;
    return -1;
}

bool config_table_is_section(const char *name)
{
    size_t length = strlen(name);
    if (!length)
        return true;
    for (int i = 0; i < ROWS; i++)
        if (strncmp(rows[i].key, name, length) == 0 && rows[i].key[length] == '.')
            return true;
    return false;
}

/* Sections as words of their own, so that "trian" finds "train" and "model.rope_scale" finds "model.rope_scaling". */
static const config_section sections[] = {
    {"model", "its family and sizes, a preset, another's weights to begin with"},
    {"model.rope_scaling", "how a model was made to read more tokens than it was trained on"},
    {"data", "what is read, with which tokenizer, in which order, and where it is kept"},
    {"train", "steps, batches, precision, device, what may differ from run to run"},
    {"optimizer", "its rule, the learning rate and its course, what it remembers"},
    {"parallel", "how ranks share the work: tensor, context, expert, pipeline and data"},
    {"memory", "what is computed again or moved to the host so that a step fits"},
    {"outer", "islands: several jobs that merge over slow links"},
    {"checkpoint", "how often, how many, where else, and what a run resumes from"},
    {"checkpoint.export", "Hugging Face folders made beside training"},
    {"evaluate", "how often, and how much, of data.validation"},
    {"run", "the run's folder, what it writes there, how long it waits for whom"},
    {"run.spike", "what happens when the loss jumps"},
    {"debug", "gradients written to files"},
    {"profile", "steps that a profiler of GPUs sees"}};

const config_section *config_table_section(int i)
{
    return i < (int)(sizeof sections / sizeof *sections) ? &sections[i] : NULL;
}

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

const char *config_table_nearest(const char *typed)
{
    AUTO_FREE char *key = must_strdup(typed + strspn(typed, "-"));
    for (char *dash; (dash = strchr(key, '-'));)
        *dash = '_';
    /* The right key in the wrong section is meant more often than a key that is spelt alike. */
    for (int i = 0; i < ROWS; i++)
        if (strcmp(last_part(rows[i].key), last_part(key)) == 0)
            return rows[i].key;
    const char *meant = nearest_meaning(key);
    if (meant && strchr(meant, '.')) /* else it is a value's or a command's meaning */
        return meant;
    nearest n = {.wanted = key};
    for (int i = 0; i < ROWS; i++)
        nearest_offer(&n, rows[i].key);
    for (int i = 0; config_table_section(i); i++)
        nearest_offer(&n, sections[i].name);
    return nearest_word(&n);
}
