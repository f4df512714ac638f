/* Base64 (RFC 4648, with padding): bytes as text, as HTTP's logins and checksums, etcd's keys and values and
 * tokenizers' character maps have them. */
#pragma once

#include <stddef.h>

/* A fresh string. */
char *base64_encode(const char *data, size_t bytes);
/* What a text stands for, up to the first padding, as a fresh string of *bytes (where that is not NULL); NULL stands
 * for nothing. A character that is no digit counts as 0: whoever reads what a peer wrote checks what comes out. */
char *base64_decode(const char *in, size_t *bytes);
