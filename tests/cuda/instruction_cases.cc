/* The checks of single instructions that the self-check plays: right on the shim, and wrong where a bit is. */
#include "tests/cuda/check.h"

namespace
{
void one(int which)
{
    unsigned char in[LAUNCH_CHECK_BYTES];
    launch_check_input(which, in);
    array from = bytes_of(in, sizeof in);
    array to(BYTES, sizeof in);
    run_ok(launch_check_name(which), launch_check(nullptr, which, to.to(), from.to()));
    to.get();
    vector<unsigned char> out(sizeof in);
    for (size_t i = 0; i < out.size(); i++)
        out[i] = (unsigned char)to.value[i];
    check(launch_check_name(which), launch_check_error(which, out.data(), in) <= 1e-6);
    out[2] ^= 0x10; /* the first value's third byte */
    check("a wrong bit is seen", !(launch_check_error(which, out.data(), in) <= 1e-6));
}

void instructions()
{
    for (int which = 0; which < LAUNCH_CHECKS; which++)
        one(which);
}
} // namespace

const vector<test_case> instruction_cases = {{"instructions", instructions}};
