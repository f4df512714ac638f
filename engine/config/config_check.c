/* Checks the rules between keys of a configuration, each with the message that a user reads when it is broken. The
 * messages name keys, not lines, since two or more lines break a rule together. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/compress.h"
#include "memory/log.h"
#include "engine/config/config.h"

static status check_required(const config *c)
{
    const model_shape *s = &c->model.shape;
    const char *missing = !s->layers        ? "model.layers"
                          : !s->hidden_size ? "model.hidden_size"
                          : !s->heads       ? "model.heads"
                          : !s->vocab_size  ? "model.vocab_size"
                                            : NULL;
    if (missing && !s->vocab_size && (c->data.tokenizer || c->data.train.count > 0) && s->layers && s->hidden_size &&
        s->heads)
        return status_fail(STATUS_USAGE,
                           "model.vocab_size is not given, and there is no tokenizer beside data.train to tell it: "
                           "set it, or data.tokenizer");
    if (missing)
        return status_fail(STATUS_USAGE, "%s is not given: name a model.preset, a model.config or every size", missing);
    return shape_check(s);
}

/* Does not print the value: it may hold a secret. */
static status check_mirror(const config *c)
{
    static const char scheme[] = "s3://";
    const char *url = c->checkpoint.mirror;
    size_t begin = strlen(scheme), bucket = 0;
    if (!url)
        return STATUS_OK;
    if (strncmp(url, scheme, begin) == 0)
        bucket = strcspn(url + begin, "/@:?");
    if (bucket > 0 && (!url[begin + bucket] || url[begin + bucket] == '/'))
        return STATUS_OK;
    return status_fail(
        STATUS_USAGE, "checkpoint.mirror is not of the form s3://BUCKET/PREFIX: credentials and the endpoint are taken "
                      "from AWS's environment variables and files (phalanx help recovery)");
}

static status check_training(const config *c)
{
    if (c->train.sequence > c->model.shape.max_sequence)
        return status_fail(STATUS_USAGE,
                           "train.sequence %" PRId64 " exceeds model.max_sequence %" PRId64
                           ": lower the first or raise the second",
                           c->train.sequence, c->model.shape.max_sequence);
    if (c->train.global_batch % c->train.micro_batch)
        return status_fail(STATUS_USAGE, "train.global_batch %d is not a multiple of train.micro_batch %d: change one",
                           c->train.global_batch, c->train.micro_batch);
    if (c->profile.stop < c->profile.start)
        return status_fail(STATUS_USAGE, "profile.stop %" PRId64 " comes before profile.start %" PRId64,
                           c->profile.stop, c->profile.start);
    if (c->run.trace.count && (c->run.trace.count != 2 || c->run.trace.item[1] < c->run.trace.item[0]))
        return status_fail(STATUS_USAGE, "run.trace is the first and the last step to trace, as [10, 12]");
    if (c->run.verify_every > 0 && batch_ramp_stages(c) > 1)
        return status_fail(STATUS_USAGE, "run.verify_every watches the steps of one batch size: leave it out while "
                                         "train.batch_ramp grows the batch");
    if (c->parallel.schedule == SCHEDULE_AUTO && batch_ramp_stages(c) > 1)
        return status_fail(STATUS_USAGE,
                           "parallel.schedule auto finds the order of one number of micro-batches: name a "
                           "schedule while train.batch_ramp grows the batch");
    if (c->debug.gradients && c->debug.at_step > c->train.steps)
        return status_fail(STATUS_USAGE, "debug.at_step %" PRId64 " is never reached: train.steps is %" PRId64,
                           c->debug.at_step, c->train.steps);
    return STATUS_OK;
}

static status check_learning_rate(const config *c)
{
    if (c->optimizer.min_lr > c->optimizer.lr)
        return status_fail(STATUS_USAGE, "optimizer.min_lr %g exceeds optimizer.lr %g: lower the first",
                           c->optimizer.min_lr, c->optimizer.lr);
    double decay = c->optimizer.decay_fraction * (double)c->train.steps;
    if (c->optimizer.schedule == LEARNING_RATE_WSD && (double)c->optimizer.warmup + decay > (double)c->train.steps)
        return status_fail(STATUS_USAGE,
                           "optimizer.warmup %" PRId64 " and the last %g of the steps (optimizer.decay_fraction) "
                           "overlap in %" PRId64 " train.steps: lower one",
                           c->optimizer.warmup, c->optimizer.decay_fraction, c->train.steps);
    return STATUS_OK;
}

/* Refuses QK-clip, which scales weights after Muon's update, if that leaves scores unchanged or they are bounded
 * already. */
static status check_qk_clip(const config *c)
{
    const model_shape *s = &c->model.shape;
    uint64_t traits = 0;
    if (c->optimizer.qk_clip == 0)
        return STATUS_OK;
    for (int i = 0; i < shape_blocks(s); i++)
        traits |= shape_layer(s, i).traits;
    const char *why =
        traits >> TRAIT_QK_NORM & 1 || traits >> TRAIT_QK_WIDTH_NORM & 1
            ? "the model normalises queries and keys, so that their weights' size changes no score"
        : traits >> TRAIT_QKV_BIAS & 1 ? "the model adds biases to queries and keys, which would stay as they are"
        : traits >> TRAIT_SINKS & 1    ? "the model's heads have sinks, beside which scores mean another thing"
        : s->attention_cap > 0         ? "model.attention_cap bounds scores already"
                                       : NULL;
    if (c->optimizer.name != CONFIG_OPTIMIZER_muon)
        return status_fail(STATUS_USAGE,
                           "optimizer.qk_clip %g scales weights after Muon's update: set optimizer.name to muon, or "
                           "leave optimizer.qk_clip out",
                           c->optimizer.qk_clip);
    return why ? status_fail(STATUS_USAGE, "optimizer.qk_clip %g: %s; leave it out", c->optimizer.qk_clip, why)
               : STATUS_OK;
}

/* Refuses secrets in the address, which config.yaml, logs and the list of processes show. */
static status check_mlflow(const config *c)
{
    const char *address = c->run.mlflow;
    if (!address)
        return STATUS_OK;
    if (strchr(address, '@') || strchr(address, '?')) /* the message does not repeat it */
        return status_fail(STATUS_USAGE, "run.mlflow holds a user, a password or a query, which would be in the run's "
                                         "files and in the list of processes: put them into the environment, as "
                                         "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or as "
                                         "MLFLOW_TRACKING_TOKEN");
    const char *host = strstr(address, "://");
    bool web = strncmp(address, "http://", 7) == 0 || strncmp(address, "https://", 8) == 0;
    if (!web || !host[3] || strpbrk(address, " \t\r\n#\\"))
        return status_fail(STATUS_USAGE, "run.mlflow %s is no address of an MLflow server: http://HOST:5000 is one",
                           address);
    if (!*c->run.mlflow_experiment)
        return status_fail(STATUS_USAGE, "run.mlflow_experiment is empty: name an experiment");
    return STATUS_OK;
}

/* Noise requires that every sent change is clipped and noised. */
static status check_privacy(const config *c)
{
    bool gossip = c->outer.topology == CONFIG_OUTER_GOSSIP;
    if (gossip && c->outer.clip > 0)
        return status_fail(STATUS_USAGE,
                           "outer.topology gossip exchanges weights, and outer.clip is of changes: leave it out");
    if (c->outer.noise <= 0)
        return STATUS_OK;
    if (c->outer.clip <= 0)
        return status_fail(STATUS_USAGE,
                           "outer.noise is in units of outer.clip: give that, the norm of a change at most");
    return c->outer.compress
               ? status_fail(STATUS_USAGE,
                             "outer.noise needs outer.compress none: error feedback adds to a change what "
                             "outer.clip has not seen")
               : STATUS_OK;
}

/* A merge by coordinate needs every change, whole, on every island, and no single island may decide. */
static status check_robust(const config *c)
{
    const char *word = c->outer.robust == CONFIG_ROBUST_MEDIAN ? "median" : "trimmed";
    if (c->outer.robust < CONFIG_ROBUST_MEDIAN)
        return STATUS_OK;
    if (c->outer.topology != CONFIG_OUTER_ALL)
        return status_fail(STATUS_USAGE,
                           "outer.robust %s needs all changes at once: outer.topology must be all (clip works with "
                           "every topology)",
                           word);
    if (c->outer.compress == COMPRESS_TOPK || c->outer.compress == COMPRESS_DCT)
        return status_fail(STATUS_USAGE,
                           "outer.robust %s compares every element, and outer.compress topk and dct send a few: "
                           "choose none, bf16, int8 or int4",
                           word);
    return c->outer.min_islands < 4
               ? status_fail(STATUS_USAGE,
                             "outer.robust %s needs outer.min_islands of at least 4: of fewer, one hostile "
                             "island is not outvoted",
                             word)
               : STATUS_OK;
}

static status check_outer(const config *c)
{
    int each = c->outer.every / c->outer.fragments;
    if (c->outer.every == 0)
        return STATUS_OK;
    if (c->outer.every % c->outer.fragments)
        return status_fail(STATUS_USAGE, "outer.every %d is not a multiple of outer.fragments %d: change one",
                           c->outer.every, c->outer.fragments);
    if (c->outer.delay >= each)
        return status_fail(STATUS_USAGE,
                           "outer.delay %d: the next merge is due %d steps later (outer.every / fragments): lower it",
                           c->outer.delay, each);
    if (c->outer.slot >= c->outer.slots || c->outer.min_islands > c->outer.slots)
        return status_fail(STATUS_USAGE,
                           "outer.slots is %d: outer.slot counts from 0, and outer.min_islands is at most that",
                           c->outer.slots);
    TRY(check_privacy(c));
    TRY(check_robust(c));
    /* An undo needs merges of whole models that are the same on all islands. */
    if (c->outer.undo && (c->outer.topology != CONFIG_OUTER_ALL || c->outer.fragments > 1))
        return status_fail(STATUS_USAGE, "outer.undo undoes whole merges of all islands: it needs outer.topology all, "
                                         "and no outer.fragments");
    if (c->outer.undo && c->run.spike.zscore <= 0)
        return status_fail(STATUS_USAGE,
                           "outer.undo needs run.spike.zscore: what is a jump of the loss? (6 is a good start)");
    if (c->outer.topology == CONFIG_OUTER_SERVER && c->outer.fragments > 1)
        return status_fail(STATUS_USAGE,
                           "outer.topology server merges whole models, whose age it knows: leave out outer.fragments");
    if (c->outer.topology == CONFIG_OUTER_GOSSIP && c->outer.compress)
        return status_fail(
            STATUS_USAGE,
            "outer.topology gossip exchanges weights, each island having a reference of its own, and only "
            "changes can be compressed: leave out outer.compress");
    if (c->run.spike.rewind || c->run.verify_every)
        return status_fail(
            STATUS_USAGE, "%s goes back to a step before merges that other islands have: leave it off with outer.every",
            c->run.spike.rewind ? "run.spike.rewind" : "run.verify_every");
    if (!c->outer.rendezvous.count || !c->outer.keys)
        return status_fail(STATUS_USAGE,
                           "outer.every needs outer.rendezvous, where etcd is, and outer.keys (phalanx keys "
                           "FOLDER makes them)");
    return STATUS_OK;
}

status config_check(const config *c)
{
    if (c->model.upcycle && !c->model.from)
        return status_fail(STATUS_USAGE,
                           "model.upcycle copies the mlp of a dense model: name its folder in model.from");
    if (c->model.upcycle && c->model.shape.experts == 0)
        return status_fail(STATUS_USAGE, "model.upcycle makes experts of a dense model's mlp, but model.experts is 0: "
                                         "say how many, or leave model.upcycle out");
    TRY(check_mirror(c));
    TRY(check_required(c));
    TRY(check_training(c));
    TRY(batch_ramp_check(c));
    TRY(check_learning_rate(c));
    /* A master in 16 bits is the weight itself, so that its type must be the compute type. */
    if (!precision_keeps(c->train.precision, precision_compute(c->optimizer.master)))
        return status_fail(STATUS_USAGE, "optimizer.master %s needs train.precision %s, not %s: change one",
                           precision_words[c->optimizer.master], precision_words[c->optimizer.master],
                           precision_words[c->train.precision]);
    TRY(check_qk_clip(c));
    /* Exit statuses 1, 2 and a launcher's above 125 have other meanings. */
    if (c->run.exit_when_stopped == STATUS_FAILED || c->run.exit_when_stopped == STATUS_USAGE)
        return status_fail(STATUS_USAGE,
                           "run.exit_when_stopped %d is the exit status of a failure: choose 0, or 3 to 125",
                           c->run.exit_when_stopped);
    TRY(check_mlflow(c));
    TRY(check_outer(c));
    TRY(config_check_layout(c));
    if (c->run.spike.rewind && c->run.spike.zscore <= 0)
        return status_fail(STATUS_USAGE,
                           "run.spike.rewind needs run.spike.zscore: what is a spike? (6 is a good start)");
    if (c->memory.budget && c->memory.recompute != RECOMPUTE_NONE)
        return status_fail(STATUS_USAGE,
                           "memory.budget decides itself what to recompute: leave out memory.recompute %s",
                           config_word(c, "memory.recompute"));
    return STATUS_OK;
}
