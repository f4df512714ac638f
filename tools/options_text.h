/* A command's options for other readers than a person at a terminal: a section of the manual, and words for a shell. */
#ifndef PHALANX_TOOLS_OPTIONS_TEXT_H
#define PHALANX_TOOLS_OPTIONS_TEXT_H

#include "tools/options.h"

/* In man's own language (man(7)). */
void options_text_man(FILE *out, const options_command *command);
/* A line an option: its name, and the words that may follow it. */
void options_text_words(FILE *out, const options_command *command);

#endif
