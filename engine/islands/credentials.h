/* Whom to log in to etcd as. A name and a password come from a file that nobody else can read, or from the environment;
 * never from an address, whose text goes into config.yaml, manifests and logs.
 *
 * An open `credentials` is the caller's, who wipes it: it is in no configuration, and nothing prints it.
 */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

#define CREDENTIALS_ENVIRONMENT "PHALANX_ETCD_CREDENTIALS" /* USER:PASSWORD */

/* "outer.rendezvous ... ": the end of the sentence that refuses a password in an address. */
#define CREDENTIALS_ELSEWHERE                                                                                          \
    "holds a user or a password, which would be in the run's files and in the list of processes: put USER:PASSWORD "   \
    "into a file of mode 600 and name it in outer.credentials, or into " CREDENTIALS_ENVIRONMENT

typedef struct credentials {
    char *user, *password; /* NULL: etcd asks for none */
} credentials;

/* From the file, one line USER:PASSWORD; refused if others than its owner may read it. `file` NULL: from the
 * environment, if it is there. The variable is overwritten and removed in any case: children and /proc do not show
 * it. */
status credentials_take(credentials *out, const char *file);
void credentials_wipe(credentials *c);

/* Does an address of etcd, with or without "http://" in front, hold a user or a password? */
bool credentials_in_address(const char *address);
