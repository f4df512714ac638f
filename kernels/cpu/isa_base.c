/* The inner loops for any processor. */
#define ISA_TABLE isa_base
#define ISA_NAME  "base"
#include "kernels/cpu/isa_body.h"
