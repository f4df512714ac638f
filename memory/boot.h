/* Which machine this is: the identity of its kernel's boot, which programs in all of its containers share, and which
 * a restart changes. Those with the same one have the same monotonic clock (memory/clock.h), too. */
#pragma once

#include <stdbool.h>

enum { BOOT_BYTES = 40 };

/* Writes it, at most 36 characters, and zeros behind it. Where the kernel does not tell, returns false, and all bytes
 * are 0. */
bool boot_identity(char out[BOOT_BYTES]);
