/* Products of the forward pass in parts, each of which travels while the next is computed. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Products before and after those transfers of the forward pass, in the order of their launches, in parts. */
void order_parts_cut(compiled_program *out, const program *bare);
