/* When the executor launches every kernel for the first time (engine/run/warming.h), as the linker's --wrap tells. */
#include "engine/run/warming.h"

#include "tests/cuda/standin/standin.h"

static bool warming, warmed;

bool standin_warming(void)
{
    return warming;
}

bool standin_warmed(void)
{
    return warmed;
}

void __real_warming_play(compiled *c, const device_interface *interface, device *on);
void __wrap_warming_play(compiled *c, const device_interface *interface, device *on);
void __wrap_warming_play(compiled *c, const device_interface *interface, device *on)
{
    warming = true;
    __real_warming_play(c, interface, on);
    warming = false;
    warmed = interface != &device_cpu; /* the host of a self-check plays beside its device */
}
