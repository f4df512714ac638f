#include "engine/host/causes.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/host/incident_log.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Jobs in a row without progress, and the same trouble in a row, after which a person is needed; seconds between starts
 * double from one to the last. */
enum { FRUITLESS = 8, SAME = 3, SAME_DATA = 2, LONGEST_WAIT = 64 };

/* Returns NULL if it does not exist. Dies without memory: a restart loop could not be detected then. */
static FILE *open_in(const char *folder, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    FILE *f = reading_stream(path);
    MUST(f || errno != ENOMEM, "%s: out of host memory", path);
    return f;
}

int64_t causes_position(const char *folder)
{
    struct stat info;
    AUTO_FREE char *path = must_format("%s/" INCIDENTS_FILE, folder);
    return stat(path, &info) == 0 ? (int64_t)info.st_size : 0;
}

static cause parse_cause(const json_t *line)
{
    const char *verdict = json_string_value(json_object_get(line, "verdict"));
    const char *host = json_string_value(json_object_get(line, "host"));
    const char *words = json_string_value(json_object_get(line, "words"));
    const json_t *rank = json_object_get(line, "rank"), *step = json_object_get(line, "step");
    int which = 0;
    while (which < INCIDENT_VERDICTS && !(verdict && !strcmp(incident_verdict_name((incident_verdict)which), verdict)))
        which++;
    cause c = {.known = which < INCIDENT_VERDICTS && json_is_true(json_object_get(line, "ends")),
               .verdict = which < INCIDENT_VERDICTS ? (incident_verdict)which : INCIDENT_DEAD,
               .rank = json_is_integer(rank) ? (int)json_integer_value(rank) : -1,
               .step = json_is_integer(step) ? (int64_t)json_integer_value(step) : -1};
    snprintf(c.host, sizeof c.host, "%s", host ? host : "");
    snprintf(c.words, sizeof c.words, "%s", words ? words : "");
    log_make_printable(c.host);
    log_make_printable(c.words);
    return c;
}

/* Returns how informative a verdict is. */
static int verdict_weight(const cause *c)
{
    static const int weights[INCIDENT_VERDICTS] = {
        [INCIDENT_LINK] = 1,    [INCIDENT_DEAD] = 2, [INCIDENT_FROZEN] = 3,  [INCIDENT_SLOW] = 2,
        [INCIDENT_STORAGE] = 4, [INCIDENT_DATA] = 5, [INCIDENT_NUMBERS] = 5, [INCIDENT_REFUSED] = 2};
    return c->known ? weights[c->verdict] : 0;
}

static bool is_of(const json_t *line, const char *run)
{
    const char *whose = json_string_value(json_object_get(line, "run"));
    return !*run || (whose && strcmp(whose, run) == 0);
}

cause causes_read(const char *folder, int64_t position, const char *run)
{
    cause most = {.rank = -1, .step = -1};
    AUTO_FREE char *text = NULL;
    size_t capacity = 0;
    AUTO(FILE) *f = open_in(folder, INCIDENTS_FILE);
    if (f && fseek(f, (long)position, SEEK_SET) == 0)
        while (getline(&text, &capacity, f) > 0) {
            json_auto_t *line = json_loads(text, 0, NULL);
            cause c = parse_cause(line);
            if (line && is_of(line, run) && verdict_weight(&c) > verdict_weight(&most))
                most = c;
        }
    MUST(!f || feof(f) || errno != ENOMEM, "%s/" INCIDENTS_FILE ": out of host memory", folder);
    return most;
}

bool causes_began(const char *folder, const char *run)
{
    AUTO_FREE char *text = NULL, *key = must_format("\"run\": \"%s\"", run);
    size_t capacity = 0;
    bool began = false;
    AUTO(FILE) *f = open_in(folder, "events.jsonl");
    while (f && !began && getline(&text, &capacity, f) > 0)
        began = strstr(text, key);
    return began;
}

bool causes_saved(const char *folder, const char *run)
{
    char name[64] = "";
    AUTO(FILE) *f = open_in(folder, "checkpoints/latest");
    bool known = f && fscanf(f, "%63[-a-z0-9]", name) == 1;
    AUTO_FREE char *path = must_format("%s/checkpoints/%s/manifest.json", folder, name);
    json_auto_t *root = known ? json_load_file(path, 0, NULL) : NULL;
    return root && is_of(root, run);
}

/* ---- progress ---- */

/* Returns the number after `key` in the last complete line that begins with it; -1: none. */
static int64_t last_number(const char *folder, const char *name, const char *key)
{
    enum { TAIL = 8192 };
    char tail[TAIL + 1];
    long long number = -1;
    AUTO(FILE) *f = open_in(folder, name);
    if (f && fseek(f, 0, SEEK_END) == 0) {
        long end = ftell(f), from = end > TAIL ? end - TAIL : 0;
        size_t got = fseek(f, from, SEEK_SET) == 0 ? fread(tail, 1, TAIL, f) : 0;
        tail[got] = 0;
        for (char *at = tail, *next; (next = strchr(at, '\n')); at = next + 1) {
            const char *found = strstr(at, key);
            if (found && found < next)
                (void)sscanf(found + strlen(key), "%lld", &number);
        }
    }
    return (int64_t)number;
}

int64_t causes_progress(const char *folder)
{
    int64_t step = last_number(folder, "metrics.jsonl", "{\"step\": ");
    long long saved = 0;
    if (step < 0)
        step = last_number(folder, "merges.jsonl", "{\"merge\":");
    if (step >= 0)
        return step;
    AUTO(FILE) *f = open_in(folder, "checkpoints/latest");
    return f && fscanf(f, "step-%lld", &saved) == 1 ? saved : 0;
}

/* ---- advice ---- */

causes_advice causes_weigh(causes *k, const cause *why, bool began, int64_t progress)
{
    bool further = began && progress > k->best;
    bool data = why->known && (why->verdict == INCIDENT_DATA || why->verdict == INCIDENT_NUMBERS);
    k->fruitless = further ? 0 : k->fruitless + 1;
    k->unbegun = began ? 0 : k->unbegun + 1;
    k->best = further ? progress : k->best;
    const cause *last = &k->last;
    bool same = last->known && why->known && last->verdict == why->verdict && last->step == why->step &&
                last->rank == why->rank && strcmp(last->host, why->host) == 0 &&
                (last->verdict != INCIDENT_REFUSED || strcmp(last->words, why->words) == 0);
    k->same = same && (data || !further) ? k->same + 1 : 1;
    k->last = *why;
    causes_advice a = {.wait = k->fruitless > 0 ? 1 : 0};
    for (int i = 1; i < k->fruitless && a.wait < LONGEST_WAIT; i++)
        a.wait *= 2;
    if (data && k->same >= SAME_DATA)
        a.give_up =
            "the same trouble with data or numbers at the same step again: starting once more would bring it again";
    else if (k->same >= SAME)
        a.give_up = "the same trouble at the same step three times in a row";
    else if (k->unbegun >= FRUITLESS)
        a.give_up = "of eight starts in a row no rank has begun (a script in the command must pass its arguments on)";
    else if (k->fruitless >= FRUITLESS)
        a.give_up = "eight starts in a row have not come further than those before";
    return a;
}
