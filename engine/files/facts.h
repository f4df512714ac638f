/* Facts for programs, written as JSON while they are found: facts_open() begins an object or a list, FACTS() adds a row
 * of members, facts_close() ends it. The writer adds commas and quotes.
 *
 *     fact_writer f = {.out = stdout};
 *     facts_open(&f, "", '{');
 *     FACTS(&f, FACT("ranks", p->ranks), FACT("\n seconds", p->seconds));
 *     facts_close(&f, '}');                                               {"ranks": 4,
 *                                                                          "seconds": 0.25}
 *
 * White space before a key replaces the space after a comma; a key without a name is an element of a list. Numbers have
 * the digits that tell doubles apart, unless `digits` says how many.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct fact_writer {
    FILE *out;
    int digits; /* significant digits of numbers; 0: 17 */
    bool more;  /* writes a comma before the next member */
} fact_writer;

typedef struct fact {
    const char *key;
    enum { FACT_INTEGER, FACT_REAL, FACT_TEXT, FACT_JSON } type;
    union {
        int64_t integer;
        double real;
        const char *text;
        const json_t *json; /* owned by the caller; NULL: null */
    } value;
} fact;

#define FACT_MAKER_(member, type, argument)                                                                            \
    static inline fact fact_##member(const char *key, argument value)                                                  \
    {                                                                                                                  \
        return (fact){key, type, {.member = value}};                                                                   \
    }
FACT_MAKER_(integer, FACT_INTEGER, int64_t)
FACT_MAKER_(real, FACT_REAL, double)
FACT_MAKER_(text, FACT_TEXT, const char *)
FACT_MAKER_(json, FACT_JSON, const json_t *)
static inline fact fact_bool(const char *key, bool value)
{
    return fact_json(key, json_boolean(value));
}
#define FACT(key, value)                                                                                               \
    _Generic((value), int                                                                                              \
             : fact_integer, int64_t                                                                                   \
             : fact_integer, double                                                                                    \
             : fact_real, bool                                                                                         \
             : fact_bool, char *                                                                                       \
             : fact_text, const char *                                                                                 \
             : fact_text, json_t *                                                                                     \
             : fact_json)(key, value)
#define FACTS_LIST_(...) (const fact[]){__VA_ARGS__}, sizeof((const fact[]){__VA_ARGS__}) / sizeof(fact)
#define FACTS(to, ...)   facts_write(to, FACTS_LIST_(__VA_ARGS__))
/* Writes a member that is an object of these. */
#define FACTS_OBJECT(to, key, ...)                                                                                     \
    do {                                                                                                               \
        facts_open(to, key, '{');                                                                                      \
        FACTS(to, __VA_ARGS__);                                                                                        \
        facts_close(to, '}');                                                                                          \
    } while (0)

void facts_write(fact_writer *f, const fact *list, size_t count);
/* Open and close a list or object; `bracket` is { or [, and } or ]. */
void facts_open(fact_writer *f, const char *key, char bracket);
void facts_close(fact_writer *f, char bracket);
