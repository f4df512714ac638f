/* The folder a test may write to: made under $TMPDIR (else /dev/shm, else /tmp), removed whole. Returned strings and
 * bytes are the caller's. */
#pragma once

#include <stdint.h>

/* cmocka setup and teardown: *state is the folder's path (char *). */
int workfolder_setup(void **state);
int workfolder_teardown(void **state);

/* "folder/name" */
char *workfolder_path(const char *folder, const char *name);
/* All bytes of a file, and a 0 after them; fails the test if it cannot be read. */
uint8_t *workfolder_read(const char *path, int64_t *bytes);
void workfolder_write(const char *path, const void *data, int64_t bytes);
/* Fails the test unless the last status message holds `part` and is one line. */
void workfolder_message_has(const char *part);
