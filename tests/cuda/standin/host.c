/* What the host does while the device works, and while it does not. */
#include "engine/run/executor.h"
#include "engine/data/samples.h"
#include "tests/cuda/standin/standin.h"

status __real_samples_read(const samples *s, bool *left_out, int32_t *const into[INPUT_COUNT], int64_t index);
status __wrap_samples_read(const samples *s, bool *left_out, int32_t *const into[INPUT_COUNT], int64_t index);

status __wrap_samples_read(const samples *s, bool *left_out, int32_t *const into[INPUT_COUNT], int64_t index)
{
    bool works = false;
    const standin_clock *host = standin_clock_of(STANDIN_HOST);
    for (int i = 1; i < STANDIN_STREAMS; i++)
        works |= standin_clock_of(i)->at[i] > host->at[i];
    standin_counts.read_ahead += works;
    standin_counts.read_idle += !works;
    return __real_samples_read(s, left_out, into, index);
}

void *__real_executor_ahead(executor *e, const tensor *t);
void *__wrap_executor_ahead(executor *e, const tensor *t);

void *__wrap_executor_ahead(executor *e, const tensor *t)
{
    return standin_mutant("one block") ? executor_at(e, t) : __real_executor_ahead(e, t);
}
