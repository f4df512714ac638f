/* Which op is being launched, and what its kernels touch. The linker leads the op table's cuda_NAME through the functions
 * here (--wrap), and the shim asks before each launch. */
#include "kernels/cuda/cuda.h"
#include "tests/standin/standin.h"

static const op *current;
static const run_context *current_context;

extern void (*shim_before_launch)(const char *name, void *stream);

const op *standin_op(void)
{
    return current;
}

static void before_launch(const char *name, void *stream)
{
    int queue = standin_stream(stream, name);
    if (!current)
        standin_fail("kernel %s is launched by no op", name);
    standin_tick(queue);
    standin_take(queue, 1);
    char *arena = current_context->arena;
    for (int i = 0; i < OP_MAX_IN; i++)
        standin_access_tensor(queue, current->in[i], arena, false, current->label);
    for (int i = 0; i < OP_MAX_OUT; i++)
        standin_access_tensor(queue, current->out[i], arena, true, current->label);
    standin_access_tensor(queue, current->scratch, arena, true, current->label);
}

static void begin(const op *o, const run_context *r)
{
    shim_before_launch = before_launch;
    current = o;
    current_context = r;
}

#define OP(name, ...)                                                                                                  \
    void __real_cuda_##name(const op *o, const run_context *r);                                                        \
    void __wrap_cuda_##name(const op *o, const run_context *r);                                                        \
    void __wrap_cuda_##name(const op *o, const run_context *r)                                                         \
    {                                                                                                                  \
        begin(o, r);                                                                                                   \
        __real_cuda_##name(o, r);                                                                                      \
        current = NULL;                                                                                                \
    }
#include "kernels/ops.def"
#undef OP
