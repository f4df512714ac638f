/* phalanx inspect CONFIG.yaml: describes a configuration before any planning. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/config/config.h"
#include "engine/state/weights/weights.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/parts.h"
#include "tools/inspect/inspect_parts.h"

static status add_key(void *keys, const char *key, const char *value)
{
    json_object_set_new(keys, key, json_string(value));
    return STATUS_OK;
}

status inspect_gather_config(json_t **out, const inspect_request *r)
{
    RELEASED_BY(config_free) config c = {0};
    TRY(config_load(&c, r->path, 0, NULL));
    TRY(weights_configure(&c));
    json_auto_t *object = inspect_object("configuration", r->path), *keys = json_object();
    TRY(config_each(&c, add_key, keys));
    json_object_set_new(object, "parameters", json_integer(parts_parameters(&c.model.shape)));
    json_object_set_new(object, "active_parameters", json_integer(parts_active_parameters(&c.model.shape)));
    json_object_set_new(object, "tokens_per_step", json_integer(config_step_tokens(&c)));
    json_object_set(object, "keys", keys);
    *out = TAKE(object);
    return STATUS_OK;
}

static const char *key_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(json_object_get(object, "keys"), key));
}

void inspect_print_config(const json_t *object)
{
    char active[64];
    int64_t each = inspect_get(object, "tokens_per_step");
    printf("configuration %s\n", inspect_text(object, "path"));
    printf("  model: %s, %s layers of width %s, %s parameters%s\n", key_of(object, "model.architecture"),
           key_of(object, "model.layers"), key_of(object, "model.hidden_size"),
           COUNT_IN_WORDS(inspect_get(object, "parameters")), inspect_active(active, object));
    printf("  training: %s steps of %s tokens, %s, on %s\n", key_of(object, "train.steps"), COUNT_IN_WORDS(each),
           key_of(object, "train.precision"), key_of(object, "train.device"));
    /* Shows the ranks that share a model; the job's remaining factor is data-parallel. */
    int size[GRID_AXES];
    char words[GRID_WORDS];
    for (int i = 0; i < GRID_AXES; i++) {
        AUTO_FREE char *key = must_format("parallel.%s", axis_coordinates[i].name);
        size[i] = atoi(key_of(object, key));
    }
    grid_words(words, size, grid_shown(size) & ~(1u << GRID_DATA), ", ", NULL);
    printf("  layout: %s, zero %s\n", words, key_of(object, "parallel.zero"));
    printf("  data: %s\n  run: %s\n", key_of(object, "data.train"), key_of(object, "run.folder"));
    printf("phalanx plan %s says what it needs; --json here prints every key\n", inspect_text(object, "path"));
}
