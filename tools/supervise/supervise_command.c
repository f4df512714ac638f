#include "tools/supervise/supervise_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

static const char SIZE_KEY[] = "parallel.data=", RESUME_KEY[] = "checkpoint.resume=";

/* Tells whether this word is a job's configuration, as in `phalanx train CONFIG.yaml`. Under mpirun, several may be
 * parts of one job. */
static bool is_configuration(const supervise_command *k, int word)
{
    return word >= 2 && (strcmp(k->words[word - 1], "train") == 0 || strcmp(k->words[word - 1], "server") == 0) &&
           strstr(k->words[word - 2], "phalanx");
}

static bool is_open(const char *word)
{
    return strstr(word, "{ranks}") || strstr(word, "{hosts}");
}

status supervise_command_open(supervise_command *out, int count, char *const *words)
{
    *out = (supervise_command){.words = words, .count = count};
    for (int i = 2; i < count; i++)
        if (is_configuration(out, i)) {
            out->job = words[i - 1];
            out->config = i;
        }
    for (int i = out->config; out->config && i < count; i++)
        if (is_open(words[i]))
            return status_fail(
                STATUS_USAGE,
                "%s: {ranks} and {hosts} are the launcher's; the configuration and its keys are the same "
                "at every start",
                words[i]);
    return out->config
               ? STATUS_OK
               : status_fail(STATUS_USAGE, "the command must hold `phalanx train CONFIG.yaml`, or `phalanx server "
                                           "CONFIG.yaml`, as words of their own: supervise -- mpirun ... phalanx "
                                           "train CONFIG.yaml ...");
}

bool supervise_command_sized(const supervise_command *k)
{
    for (int i = 0; i < k->count; i++)
        if (is_open(k->words[i]))
            return true;
    return false;
}

/* Replaces every `name` in a word by `value`; frees the word. */
static char *replace_in_word(char *word, const char *name, const char *value)
{
    for (char *at = word; (at = strstr(at, name));) {
        char *next = must_format("%.*s%s%s", (int)(at - word), word, value, at + strlen(name));
        at = next + (at - word) + strlen(value);
        free(word);
        word = next;
    }
    return word;
}

char **supervise_command_expand(const supervise_command *k, const supervise_start *start)
{
    char number[16], **words = must_calloc(2 * (unsigned long)k->count + 3, sizeof *words);
    int count = 0;
    snprintf(number, sizeof number, "%d", start->ranks);
    for (int i = 0; i < k->count; i++) {
        const char *text = k->words[i];
        if (i >= k->config && ((start->data > 0 && strncmp(text, SIZE_KEY, sizeof SIZE_KEY - 1) == 0) ||
                               (start->resume && strncmp(text, RESUME_KEY, sizeof RESUME_KEY - 1) == 0)))
            continue; /* skips an override that this start replaces */
        words[count] = replace_in_word(must_strdup(k->words[i]), "{ranks}", number);
        words[count] = replace_in_word(words[count], "{hosts}", start->hosts);
        count++;
        if (is_configuration(k, i))
            words[count++] = must_format("--start-id=%s", start->id);
    }
    if (start->data > 0)
        words[count++] = must_format("%s%d", SIZE_KEY, start->data);
    if (start->resume)
        words[count] = must_format("%s%s", RESUME_KEY, start->resume);
    return words;
}

void supervise_command_free_words(char **words)
{
    for (int i = 0; words[i]; i++)
        free(words[i]);
    free(words);
}
