#include "tools/arguments.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

status arguments_whole(int64_t *out, const char *option, const char *text, int64_t least, int64_t most)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        return status_fail(STATUS_USAGE, "%s %s: wanted is a whole number from %lld to %lld", option, text,
                           (long long)least, (long long)most);
    *out = value;
    return STATUS_OK;
}

status arguments_fraction(double *out, const char *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0.0 && value < 1.0))
        return status_fail(STATUS_USAGE, "%s %s: wanted is a number between 0 and 1", option, text);
    *out = value;
    return STATUS_OK;
}

status arguments_choice(int *out, const char *option, const char *text, const char *const *words)
{
    char *list = must_strdup(words[0]);
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], text) == 0) {
            free(list);
            *out = i;
            return STATUS_OK;
        }
        if (i == 0)
            continue;
        char *longer = must_format("%s, %s", list, words[i]);
        free(list);
        list = longer;
    }
    status s = status_fail(STATUS_USAGE, "%s %s: wanted is one of %s", option, text, list);
    free(list);
    return s;
}

status arguments_text(char **out, int64_t *length, const char *option, const char *text)
{
    static const char letters[] = "nrtf0\\", bytes[] = "\n\r\t\f\0\\";
    char *made = must_alloc(strlen(text) + 1);
    int64_t used = 0;
    for (const char *at = text; *at; at++) {
        if (*at != '\\') {
            made[used++] = *at;
            continue;
        }
        at++;
        const char *letter = *at ? strchr(letters, *at) : NULL;
        if (letter) {
            made[used++] = bytes[letter - letters];
        } else if (*at == 'x' && isxdigit((unsigned char)at[1]) && isxdigit((unsigned char)at[2])) {
            made[used++] = (char)strtol((char[]){at[1], at[2], 0}, NULL, 16);
            at += 2;
        } else {
            free(made);
            return status_fail(STATUS_USAGE, "%s %s: a backslash is followed by n, r, t, f, 0, xHH or another one",
                               option, text);
        }
    }
    if (used == 0) {
        free(made);
        return status_fail(STATUS_USAGE, "%s: the text is empty", option);
    }
    *out = made;
    *length = used;
    return STATUS_OK;
}

status arguments_unknown(char *const *argv, int index, int option)
{
    const char *word = index > 0 && argv[index - 1] ? argv[index - 1] : "";
    if (option == ':')
        return status_fail(STATUS_USAGE, "%s wants a value (--help explains)", word);
    return status_fail(STATUS_USAGE, "unknown option %s (--help lists them)", word);
}
