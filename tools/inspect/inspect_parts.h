/* The parts of phalanx inspect, one file for each kind of path.
 *
 * The facts about a path are gathered into one JSON object, which the caller owns; --json prints it as it is, and
 * otherwise a function of the kind lays it out for a person: so both always agree.
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
/* Sets *out also if the folder is refused: it then has a member `refused`, the message. */
status inspect_gather_huggingface(json_t **out, const inspect_request *r);
void inspect_print_checkpoint(const json_t *object);
void inspect_print_safetensors(const json_t *object);
void inspect_print_data(const json_t *object);
void inspect_print_run(const json_t *object);
void inspect_print_config(const json_t *object);
void inspect_print_huggingface(const json_t *object);

/* Returns {"kind": kind, "path": path}. */
json_t *inspect_object(const char *kind, const char *path);
/* Returns a member of an object; 0 or NULL if it is absent. */
int64_t inspect_get(const json_t *object, const char *key);
const char *inspect_text(const json_t *object, const char *key);
/* Returns ", of which 12.9 billion compute a token" from `parameters` and `active_parameters`; "" if all compute. */
const char *inspect_active(char out[64], const json_t *object);
bool inspect_ends_with(const char *text, const char *end);
bool inspect_has(const char *folder, const char *name);
