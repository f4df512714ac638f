#include "memory/boot.h"

#include <stdio.h>
#include <string.h>

#include "memory/scope.h"

bool boot_identity(char out[BOOT_BYTES])
{
    memset(out, 0, BOOT_BYTES);
    AUTO(FILE) *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && fgets(out, BOOT_BYTES, f))
        memset(out + strcspn(out, "\n"), 0, BOOT_BYTES - strcspn(out, "\n"));
    return *out;
}
