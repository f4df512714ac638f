/* From YAML to the keys of a config: files and "section.key=value" overrides, by one walk over the document in which
 * sections are nested maps. Every key may be said once in the file and once more among the overrides. */
#pragma once

#include "engine/config/config.h"

/* Messages begin with "name:line: ". What a user wrote may include files, seen from the folder of `name`, whose keys
 * its own override, and paths in it may name variables of the environment, ${NAME}; neither holds for a `stored` text,
 * which a program wrote and anybody may have changed. $${ stands for ${ in both. */
status config_read_text(config *c, const char *name, const char *text, size_t bytes, bool stored);
/* Messages begin with "argument N: ", where N counts from 1. */
status config_read_overrides(config *c, int count, char *const *override);
/* The whole file as a fresh buffer. */
status config_read_file(char **text, size_t *bytes, const char *path);
