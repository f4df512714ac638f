/* Devices that this program was not linked with: a shared object beside the executable. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/device.h"
#include "memory/machine.h"
#include "memory/scope.h"

/* dlerror()'s sentence begins with the library that is missing: a dependency, when the file itself is there. */
static status open_object(void **out, const char *path, const char *name)
{
    if (access(path, R_OK) != 0)
        return status_fail(STATUS_USAGE,
                           "device=%s: %s is not there: this build plays programs on the CPU only; build it with "
                           "the CUDA toolkit (make %s), or use device=cpu",
                           name, path, name);
    *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*out)
        return status_fail(STATUS_FAILED, "device=%s: %s cannot be loaded: %s", name, path, dlerror());
    return STATUS_OK;
}

status device_load(const device_interface **out, const char *name)
{
    char symbol[64];
    snprintf(symbol, sizeof symbol, "device_%s", name);
    const device_interface *found = dlsym(RTLD_DEFAULT, symbol);
    AUTO_FREE char *path = machine_object(name);
    if (!found) {
        void *object = NULL;
        TRY(open_object(&object, path, name));
        if (!(found = dlsym(object, symbol)))
            return status_fail(STATUS_FAILED, "device=%s: %s has no %s", name, path, symbol);
    }
    if (found->version != DEVICE_VERSION)
        return status_fail(STATUS_FAILED, "device=%s: %s is of another build (interface %d, not %d): build it again",
                           name, path, found->version, DEVICE_VERSION);
    *out = found;
    return STATUS_OK;
}

status device_find(const device_interface **out, const char *name)
{
    const device_interface *found = NULL;
    TRY(device_load(&found, name));
    TRY(found->available());
    *out = found;
    return STATUS_OK;
}
