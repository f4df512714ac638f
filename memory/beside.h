/* Parts of the program that are shared objects beside it, loaded when they are wanted: a login node has no CUDA, and
 * most machines no Arrow. */
#pragma once

/* "libphalanx_NAME.so" in the folder of the running program; the caller's. */
char *beside_program(const char *name);
