#include "tools/supervise/supervise_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

static const char SIZE_KEY[] = "parallel.data=";

status supervise_command_open(supervise_command *out, int count, char *const *words)
{
    *out = (supervise_command){.words = words, .count = count};
    for (int i = 1; i + 1 < count; i++) {
        bool job = strcmp(words[i], "train") == 0 || strcmp(words[i], "server") == 0;
        if (!job || !strstr(words[i - 1], "phalanx"))
            continue;
        out->job = words[i];
        out->config = i + 1;
    }
    return out->config
               ? STATUS_OK
               : status_fail(STATUS_USAGE, "the command must hold `phalanx train CONFIG.yaml`, or `phalanx server "
                                           "CONFIG.yaml`, as words of their own: supervise -- mpirun ... phalanx "
                                           "train CONFIG.yaml ...");
}

bool supervise_command_sized(const supervise_command *k)
{
    for (int i = 0; i < k->count; i++)
        if (strstr(k->words[i], "{ranks}") || strstr(k->words[i], "{hosts}"))
            return true;
    return false;
}

/* Every `name` in a word becomes `value`; frees the word. */
static char *replace(char *word, const char *name, const char *value)
{
    for (char *at = word; (at = strstr(at, name));) {
        char *next = must_format("%.*s%s%s", (int)(at - word), word, value, at + strlen(name));
        at = next + (at - word) + strlen(value);
        free(word);
        word = next;
    }
    return word;
}

char **supervise_command_expand(const supervise_command *k, int ranks, const char *hosts, int data)
{
    char number[16], **words = must_calloc((unsigned long)k->count + 2, sizeof *words);
    int count = 0;
    snprintf(number, sizeof number, "%d", ranks);
    for (int i = 0; i < k->count; i++) {
        if (data > 0 && i > k->config && strncmp(k->words[i], SIZE_KEY, sizeof SIZE_KEY - 1) == 0)
            continue;
        words[count] = replace(must_strdup(k->words[i]), "{ranks}", number);
        words[count] = replace(words[count], "{hosts}", hosts);
        count++;
    }
    if (data > 0)
        words[count] = must_format("%s%d", SIZE_KEY, data);
    return words;
}

void supervise_command_free_words(char **words)
{
    for (int i = 0; words[i]; i++)
        free(words[i]);
    free(words);
}
