/* Loads a config from its file and overrides: defaults, given values, derived values. */
#include "engine/config/config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/table/op.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "engine/config/config_table.h"
#include "models/presets.h"

/* --- defaults ----------------------------------------------------------------------------------------------------- */

bool config_is_given(const config *c, const char *key)
{
    int row = config_table_find(key);
    MUST(row >= 0, "no configuration key %s", key);
    return c->given[row];
}

static void set_defaults(config *c)
{
    *c = (config){.model.shape = {.architecture = SHAPE_LLAMA}};
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        if (row->fallback)
            MUST(config_value_set_text(c, row, row->fallback) == STATUS_OK, "%s: bad default: %s", row->key,
                 status_message());
    }
}

static void derive_shape(config *c)
{
    model_shape *s = &c->model.shape;
    const int spill = s->expert_spill;
    const double mtp_loss = s->mtp_loss;
    shape_fill(s);
    if (config_is_given(c, "model.expert_spill")) /* none is another thing than not given */
        s->expert_spill = spill;
    if (config_is_given(c, "model.mtp_loss"))
        s->mtp_loss = mtp_loss;
    if (!c->train.sequence)
        c->train.sequence = s->max_sequence && s->max_sequence < 1024 ? s->max_sequence : 1024;
    if (!s->max_sequence)
        s->max_sequence = c->train.sequence;
}

/* Derives the keys that were not given from other keys. */
static void derive_keys(config *c)
{
    const preset *p = c->model.preset ? presets_find(c->model.preset) : NULL;
    if (p)
        config_take_shape(c, &p->shape);
    else if (!config_is_given(c, "model.tied_embeddings"))
        c->model.shape.tied_embeddings = shape_traits_of(c->model.shape.architecture)->tied_embeddings;
    if (!p && !config_wants_shape(c))
        derive_shape(c);
    if (!config_is_given(c, "train.global_batch"))
        c->train.global_batch =
            c->train.batch_ramp.count ? c->train.batch_ramp.item[c->train.batch_ramp.count - 1] : 32;
    if (!config_is_given(c, "optimizer.muon_lr"))
        c->optimizer.muon_lr = c->optimizer.lr;
    if (!config_is_given(c, "outer.lr"))
        c->outer.lr = c->outer.optimizer == CONFIG_OUTER_AVERAGE ? 1
                      : c->outer.topology == CONFIG_OUTER_SERVER ? 0.35
                                                                 : 0.7;
    if (!config_is_given(c, "outer.momentum"))
        c->outer.momentum = c->outer.topology == CONFIG_OUTER_ALL ? 0.9 : 0.5;
    if (!config_is_given(c, "train.precision"))
        c->train.precision = precision_default(c->train.device == CONFIG_CUDA || cpu_multiplies_bf16());
}

/* --- the sizes of the model --------------------------------------------------------------------------------------- */

static bool is_shape_row(const config_row *row)
{
    size_t begin = offsetof(config, model.shape);
    return strncmp(row->key, "model.", 6) == 0 && row->offset >= begin && row->offset < begin + sizeof(model_shape);
}

/* Bytes of a field of the shape, which is int, int64_t, double, bool, an enumeration or a list of factors. */
static size_t field_bytes(const config_row *row)
{
    static const size_t bytes[CONFIG_TYPES] = {
        [CONFIG_TYPE_INT] = sizeof(int),   [CONFIG_TYPE_LONG] = sizeof(int64_t),
        [CONFIG_TYPE_WORD] = sizeof(int),  [CONFIG_TYPE_NUMBER] = sizeof(double),
        [CONFIG_TYPE_BOOL] = sizeof(bool), [CONFIG_TYPE_FACTORS] = SHAPE_ROPE_FACTORS * sizeof(double),
    };
    MUST(bytes[row->type], "%s cannot be a size of the model", row->key);
    return bytes[row->type];
}

bool config_wants_shape(const config *c)
{
    if (c->model.preset || (!c->model.from && !c->model.config))
        return false;
    for (int i = 0; i < config_table_rows(); i++)
        if (is_shape_row(config_table_row(i)) && !c->given[i])
            return true;
    return false;
}

bool config_wants_vocabulary(const config *c)
{
    const model_shape *s = &c->model.shape;
    return !c->model.preset && !c->model.from && !c->model.config && s->layers && s->hidden_size && s->heads &&
           !s->vocab_size && (c->data.tokenizer || c->data.train.count > 0);
}

/* The base's sizes that only follow from sizes which are now given follow the new ones. */
static model_shape update_base(const config *c, model_shape base)
{
    bool heads = config_is_given(c, "model.heads"), hidden = config_is_given(c, "model.hidden_size");
    if ((heads || hidden) && (int64_t)base.heads * base.head_size == base.hidden_size)
        base.head_size = 0;
    if (heads && base.kv_heads == base.heads)
        base.kv_heads = 0;
    return base;
}

void config_take_shape(config *c, const model_shape *shape)
{
    model_shape base = update_base(c, *shape);
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        if (is_shape_row(row) && !c->given[i])
            memcpy((char *)c + row->offset, (const char *)&base + row->offset - offsetof(config, model.shape),
                   field_bytes(row));
    }
    derive_shape(c);
}

/* --- load and free ------------------------------------------------------------------------------------------------ */

static status fill_in(config *c)
{
    if (c->model.preset && c->model.config)
        return status_fail(STATUS_USAGE, "model.preset and model.config both name the sizes; keep one");
    derive_keys(c);
    return config_wants_shape(c) || config_wants_vocabulary(c) ? STATUS_OK : config_check(c);
}

static status parse_config(config *out, const char *name, const char *text, size_t bytes, int overrides,
                           char *const *override, bool stored)
{
    config c;
    set_defaults(&c);
    status s = config_read_text(&c, name, text, bytes, stored);
    if (s == STATUS_OK)
        s = config_read_overrides(&c, overrides, override);
    if (s == STATUS_OK && (s = fill_in(&c)) != STATUS_OK && *name)
        s = status_context(s, "%s", name);
    if (s == STATUS_OK)
        *out = c;
    else
        config_free(&c);
    return s;
}

status config_parse(config *out, const char *name, const char *text, size_t bytes, int overrides, char *const *override)
{
    return parse_config(out, name, text, bytes, overrides, override, true);
}

status config_parse_users(config *out, const char *name, const char *text, size_t bytes)
{
    return parse_config(out, name, text, bytes, 0, NULL, false);
}

status config_load(config *out, const char *path, int overrides, char *const *override)
{
    AUTO_FREE char *text = NULL;
    size_t bytes = 0;
    if (path)
        TRY(config_read_file(&text, &bytes, path));
    return parse_config(out, path ? path : "", text ? text : "", bytes, overrides, override, false);
}

void config_free(config *c)
{
    for (int i = 0; c && i < config_table_rows(); i++)
        config_value_free(c, config_table_row(i));
}

learning_rate config_learning_rate(const config *c)
{
    return (learning_rate){.kind = c->optimizer.schedule,
                           .peak = c->optimizer.lr,
                           .floor = c->optimizer.min_lr,
                           .decay_fraction = c->optimizer.decay_fraction,
                           .warmup = c->optimizer.warmup,
                           .steps = c->train.steps};
}
