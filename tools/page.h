/* A page or a script with its data: a file of the source tree in which JSON replaces a mark. */
#pragma once

#include <jansson.h>

#include "memory/status.h"

/* Writes `frame` to `path` (engine/files/output.h) with the data where `mark` is. */
status page_write(const char *path, const char *frame, const char *mark, const json_t *data);

/* Embeds a file of the source tree in the program: `name`, all its bytes and a 0 after them. The path starts at the top
 * of the tree, where compilers run; the Makefile makes the object depend on the file. */
#define EMBED(name, path)                                                                                              \
    __asm__(".pushsection .rodata\n.globl " #name "\n" #name ":\n.incbin \"" path "\"\n.byte 0\n.popsection\n");       \
    extern const char name[]
