/* The checks of single instructions that the self-check plays: right on the shim, and wrong where a bit is. */
#include "tests/cuda/check.h"

namespace
{
void one(const launch_check &which)
{
    unsigned char in[LAUNCH_CHECK_BYTES] = {};
    which.give(in);
    array from = bytes_of(in, sizeof in);
    array to(BYTES, sizeof in);
    run_ok(which.name, which.launch(nullptr, to.to(), from.to()));
    to.get();
    vector<unsigned char> out(sizeof in);
    for (size_t i = 0; i < out.size(); i++)
        out[i] = (unsigned char)to.value[i];
    check(which.name, which.error(out.data(), in) <= 1e-6);
    out[2] ^= 0x10; /* the first value's third byte */
    check("a wrong bit is seen", !(which.error(out.data(), in) <= 1e-6));
}

void instructions()
{
    for (const launch_check &which : launch_checks)
        one(which);
}
} // namespace

const vector<test_case> instruction_cases = {{"instructions", instructions}};
