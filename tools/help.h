/* phalanx help: the one command that knows of the others. */
#pragma once

#include <stdio.h>

#define HELP_SUMMARY "what to know, by topic: layout, memory, multi-node, data, troubleshooting, columns"

/* As tools.h's. */
int help_main(int argc, char **argv);
/* The commands, help among them, a line each. */
void help_commands(FILE *out);
