/* Whom to log in to etcd as. A name and a password come from a file that nobody else can read, or from the environment;
 * never from an address, whose text goes into config.yaml, manifests and logs.
 *
 * An open `credentials` is the caller's, who wipes it: it is in no configuration, and nothing prints it.
 */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

typedef struct credentials {
    char *user, *password; /* NULL: etcd asks for none */
} credentials;

/* From the file, one line USER:PASSWORD; refused if others than its owner may read it. `file` NULL: from the
 * environment, if it is there. The variable is overwritten and removed in any case: children and /proc do not show
 * it. */
status credentials_take(credentials *out, const char *file);
void credentials_wipe(credentials *c);
