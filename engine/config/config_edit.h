/* A user's configuration file with some keys changed: comments, order and spacing stay as they were. */
#pragma once

#include "engine/config/config.h"

/* The text of a file with the value of "section.key" replaced by `value`, YAML on one line. A key that it does not have
 * goes behind the last of its section; a section that it does not have goes to the end, as section: {key: value}. A
 * fresh string. STATUS_USAGE, with `name` in front, where the text is no YAML or where an alias or an odd layout leaves
 * no place for it. */
status config_edit(char **out, const char *name, const char *text, const char *key, const char *value);

/* The text of file `name` as a user would change it to say what `to` says: of the keys below one of the `sections` (a
 * list that NULL ends) those in which `from`, the file as it is, differs, and each that is said in `override`
 * ("section.key=value", `overrides` of them). STATUS_FAILED where what comes out does not read back as `to`. */
status config_rewrite(char **out, const char *name, const config *from, const config *to, const char *const *sections,
                      int overrides, char *const *override);
