/* Muon's constants, which host, device and reference share: the quintic whose slope at 0 is largest while it keeps
 * singular values near 1 (https://kellerjordan.github.io/posts/muon). Plain C that is also C++ and CUDA.
 */
#pragma once

#define MUON_A 3.4445
#define MUON_B (-4.7750)
#define MUON_C 2.0315

#define MUON_EPSILON 1e-7f /* the smallest norm that a matrix is divided by */

enum { MUON_ITERATIONS = 5 };
