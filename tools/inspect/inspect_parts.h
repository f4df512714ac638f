/* The parts of phalanx inspect, one file for each kind of thing.
 *
 * What a path holds is gathered into one JSON object, which is the caller's; --json prints it as it is, and else a
 * function of the kind lays it out for a person: so both always say the same.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"
#include "memory/units.h"

typedef struct inspect_request {
    const char *path;
    bool json, verify;
    int64_t samples, ids; /* documents shown, token ids of each */
} inspect_request;

status inspect_gather_checkpoint(json_t **out, const inspect_request *r);
status inspect_gather_safetensors(json_t **out, const inspect_request *r);
status inspect_gather_data(json_t **out, const inspect_request *r);
status inspect_gather_run(json_t **out, const inspect_request *r);
status inspect_gather_config(json_t **out, const inspect_request *r);
/* Sets *out where the folder is refused, too: it then has a member `refused`, the message. */
status inspect_gather_huggingface(json_t **out, const inspect_request *r);
void inspect_print_checkpoint(const json_t *object);
void inspect_print_safetensors(const json_t *object);
void inspect_print_data(const json_t *object);
void inspect_print_run(const json_t *object);
void inspect_print_config(const json_t *object);
void inspect_print_huggingface(const json_t *object);

/* {"kind": kind, "path": path} */
json_t *inspect_object(const char *kind, const char *path);
/* A member of an object; 0 or NULL if it is not there. */
int64_t inspect_get(const json_t *object, const char *key);
const char *inspect_text(const json_t *object, const char *key);
/* ", of which 12.9 billion compute a token" of an object with `parameters` and `active_parameters`; "" where all do. */
const char *inspect_active(char out[64], const json_t *object);
bool inspect_ends_with(const char *text, const char *end);
bool inspect_has(const char *folder, const char *name);
