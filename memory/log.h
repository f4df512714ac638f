/* What the program says to a person, and how it dies.
 *
 * The logger is the one piece of global mutable state: which rank speaks, and the sentence that says what the rank is
 * doing (step, action, op), which a fatal error prints. Information is printed by rank 0 only; warnings and errors by
 * every rank that has them, with the rank in front when there is more than one.
 */
#pragma once

#include <stdbool.h>

void log_set_rank(int rank, int ranks);
int log_rank(void);

/* Install the function that describes what this rank is doing ("step 12, forward 3 of chunk 0, op layer 3/mlp/down");
 * it writes at most `bytes` into `out` and is called from a fatal error only. NULL removes it. */
void log_set_where(void (*where)(char *out, int bytes, void *context), void *context);
/* What it says just now, or nothing; for whoever else reports a fatal error. */
void log_where(char *out, int bytes);
/* Called once, with the error's sentence, before the process dies of a fatal error (to tell the peers); NULL removes
 * it. */
void log_set_last_words(void (*last_words)(void *context, const char *words), void *context);

void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* stdout, rank 0 */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* stderr */
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2))); /* stderr */

/* Control characters, of C1 and of UTF-8 that a terminal would obey too, become question marks: what somebody else has
 * written is shown to people. In place. */
void log_make_printable(char *text);
/* Has it a control character, a line's end among them? */
bool log_has_control(const char *text);

_Noreturn void log_die(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* An invariant: if `condition` does not hold the process prints rank, position, file:line and the message, and
 * aborts. */
#define MUST(condition, ...)                                                                                           \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            log_die(__FILE__, __LINE__, #condition, __VA_ARGS__);                                                      \
    } while (0)

/* malloc/calloc/realloc that die when host memory is exhausted; for set-up, never within a step. */
void *must_alloc(unsigned long bytes) __attribute__((returns_nonnull));
void *must_calloc(unsigned long count, unsigned long bytes) __attribute__((returns_nonnull));
void *must_realloc(void *old, unsigned long bytes) __attribute__((returns_nonnull));
char *must_strdup(const char *text) __attribute__((returns_nonnull));
/* printf into a fresh string */
char *must_format(const char *format, ...) __attribute__((format(printf, 1, 2), returns_nonnull));
/* A fresh string of what the statement writes to FILE *out: MUST_PRINT(out, config_print(out, c)) */
#define MUST_PRINT(out, statement)                                                                                     \
    __extension__({                                                                                                    \
        char *printed_ = (void *)0;                                                                                    \
        size_t bytes_;                                                                                                 \
        FILE *out = open_memstream(&printed_, &bytes_);                                                                \
        MUST(out, "out of host memory");                                                                               \
        statement;                                                                                                     \
        MUST(fclose(out) == 0, "out of host memory");                                                                  \
        printed_;                                                                                                      \
    })
