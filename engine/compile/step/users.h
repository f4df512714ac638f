/* Which ops of a program read or write which bytes, in its order: an index, made once, of what a search through the
 * program would find. Storage is a transient tensor's own, or of persistent tensors all that have the same bytes. */
#pragma once

#include "kernels/record/program.h"

typedef struct users users;

/* Borrows the program, whose ops must not change meanwhile. */
users *users_open(const program *p);
void users_close(users *u);
/* The first op behind op `at` that must find it complete: it reads or writes what `at` writes, or writes what `at`
 * reads; the program's count, if none does. */
int users_first(const users *u, int at);
