/* Files of weights or gradients with experts or heads in the reverse order, and with more rows of the vocabulary. */
#pragma once

#include <stdbool.h>

typedef enum invariances_turn {
    INVARIANCES_EXPERTS,
    INVARIANCES_HEADS,
    INVARIANCES_EXPERTS_BUT_ROUTERS
} invariances_turn;

/* Writes the tensors of `from`, reversed, to `to`; twice gives the first file. Sizes are of the model in `folder`. */
void invariances_reverse(const char *to, const char *from, const char *folder, invariances_turn turn);
/* Writes gpt2's weights of `folder` with a last norm that gives 1 in its first column, and `more` ids that read there
 * a logit so low that none has a probability. */
void invariances_pad(const char *to, const char *folder, int more);
/* Writes the gradients of a model without these ids; false unless theirs are 0. */
bool invariances_cut(const char *to, const char *from, int more);
