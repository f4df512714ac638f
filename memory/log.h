/* The logger prints the program's messages, and ends it on a fatal error.
 *
 * The logger is the one piece of global mutable state: which rank speaks, and the sentence with the rank's position
 * (step, action, op), which a fatal error prints. Information is printed by rank 0 only; warnings and errors by every
 * rank that has them, with the rank in front when there is more than one.
 */
#pragma once

#include <stdbool.h>

void log_set_rank(int rank, int ranks);
int log_rank(void);

/* Installs the function that describes the position of this rank ("step 12, forward 3 of chunk 0, op layer
 * 3/mlp/down"); it writes at most `bytes` into `out` and is called from a fatal error only. NULL removes it. */
void log_set_where(void (*where)(char *out, int bytes, void *context), void *context);
/* Writes that description, or an empty one, for other reporters of fatal errors. */
void log_where(char *out, int bytes);
/* Installs a function that is called once, with the error's sentence, before the process dies of a fatal error (to tell
 * the peers); NULL removes it. */
void log_set_last_words(void (*last_words)(void *context, const char *words), void *context);

void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* stdout, rank 0 */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* stderr */
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2))); /* stderr */

/* Replaces control characters, C1 and those in UTF-8 included, by question marks in place, before a stranger's text is
 * shown on a terminal. */
void log_make_printable(char *text);
/* True if it has a control character, such as a line's end. */
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
/* Returns the list with room for an item after its `count`: the room doubles where `count` is a power of two. */
void *must_grow(void *list, unsigned long count, unsigned long each) __attribute__((returns_nonnull));
/* The new last item of a list that grows by this alone: APPEND(a->item, a->count) = item; */
#define APPEND(list, count) (*((list) = must_grow(list, (unsigned long)(count), sizeof *(list)), &(list)[(count)++]))
/* Prints as printf into a new string. */
char *must_format(const char *format, ...) __attribute__((format(printf, 1, 2), returns_nonnull));
/* Returns a new string of the statement's output to FILE *out: MUST_PRINT(out, config_print(out, c)) */
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
