/* An object as a file that is read: a size, and bytes at any offset, fetched ahead of a reader that goes on.
 *
 * Blocks of 8 MiB are fetched by threads of its own, the next ones while the last one is used, and a few are kept. All
 * of it is one version of the object: if it is replaced meanwhile, reading fails; and so it does at the last block if
 * all of them have been read, and do not have the checksum that the store says. A remote is its caller's until
 * remote_close, and is read by one thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct remote remote;

/* "s3://BUCKET/KEY"; fails if there is no such object. When *stop becomes true, by any thread, reading fails soon;
 * NULL: it never does. */
status remote_open(remote **out, const char *url, const atomic_bool *stop);
void remote_close(remote *r); /* NULL is accepted */
AUTO_CLOSES(remote, remote_close)
int64_t remote_bytes(const remote *r);
/* Exactly these bytes, which lie within the object. */
status remote_read(remote *r, void *to, int64_t offset, int64_t bytes);

/* The size of an object, without opening it. */
status remote_look(int64_t *bytes, const char *url);
