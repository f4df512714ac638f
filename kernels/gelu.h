/* The constants of GELU's approximation (1606.08415), gelu(x) = x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715
 * x^3), which host and device share. What kernels are compared with (tests/oracle/, tools/bench/self_check_math.c)
 * states them in its own way. Plain C that is also C++ and CUDA.
 */
#pragma once

#define GELU_ROOT  0.797884560802865356f /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f
