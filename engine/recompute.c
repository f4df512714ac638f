#include "engine/recompute.h"

status recompute_compile(compiled *c)
{
    return compile_training(&c->training, c, c->options.recompute, NULL, false);
}
