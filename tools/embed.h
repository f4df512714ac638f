/* A file of the source tree in the program: `name`, all its bytes and a 0 after them. The path is that from the top of
 * the tree, where compilers run; the Makefile makes the object depend on the file. */
#pragma once

#define EMBED(name, path)                                                                                              \
    __asm__(".pushsection .rodata\n.globl " #name "\n" #name ":\n.incbin \"" path "\"\n.byte 0\n.popsection\n");       \
    extern const char name[]
