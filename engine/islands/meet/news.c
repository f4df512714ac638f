#include "engine/islands/meet/news.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

typedef struct known {
    bool ever, here;
    char name[ROSTER_NAME], id[MANIFEST_RUN];
    double gone; /* since when it is not here */
} known;

struct news {
    int own;
    news_say *say;
    void *context;
    bool looked;
    known slot[ROSTER_SLOTS];
};

news *news_open(int own, news_say *say, void *context)
{
    news *n = must_calloc(1, sizeof *n);
    n->own = own;
    n->say = say;
    n->context = context;
    return n;
}

void news_close(news *n)
{
    free(n);
}

__attribute__((format(printf, 2, 3))) static void tell(const news *n, const char *format, ...)
{
    char line[NEWS_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    n->say(n->context, line);
}

/* The outer step: islands that gossip have no merge in common. */
static void say_when(char *out, size_t bytes, const roster *r, int slot)
{
    if (r->merge >= 0)
        snprintf(out, bytes, "after merge %lld", (long long)r->merge);
    else
        snprintf(out, bytes, "after its step %lld", (long long)r->member[slot].state_step);
}

static void tell_gone(news *n, const roster *r, int slot, double now, int lease)
{
    known *k = &n->slot[slot];
    char when[48];
    say_when(when, sizeof when, r, slot);
    if (!strcmp(r->member[slot].left, k->id))
        tell(n, "islands: %s (slot %d) left %s", k->name, slot, when);
    else
        tell(n, "islands: %s (slot %d) is away %s: it has given no sign of life for %d s", k->name, slot, when, lease);
    k->here = false;
    k->gone = now;
}

static void tell_came(news *n, const roster *r, int slot, double now)
{
    known *k = &n->slot[slot];
    const roster_member *m = &r->member[slot];
    char when[48];
    say_when(when, sizeof when, r, slot);
    if (!k->ever || strcmp(k->name, m->name) != 0)
        tell(n, "islands: %s (slot %d) joined %s", m->name, slot, when);
    else
        tell(n, "islands: %s (slot %d) is back %s%s, %.0f s after it had gone", m->name, slot, when,
             strcmp(k->id, m->id) != 0 ? ", started again" : "", now - k->gone);
}

static void remember(known *k, const roster_member *m)
{
    k->ever = k->here = true;
    memcpy(k->name, m->name, sizeof k->name);
    memcpy(k->id, m->id, sizeof k->id);
}

static void tell_first(news *n, const roster *r)
{
    char names[NEWS_LINE / 2] = "";
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        const roster_member *m = &r->member[s];
        size_t used = strlen(names);
        if (s == n->own || !m->here)
            continue;
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", m->name);
        remember(&n->slot[s], m);
    }
    tell(n, "islands: at work beside this one: %s", *names ? names : "none yet");
    n->looked = true;
}

void news_look(news *n, const roster *r, double now, int lease)
{
    if (!n->looked) {
        tell_first(n, r);
        return;
    }
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        const roster_member *m = &r->member[s];
        known *k = &n->slot[s];
        bool other = strcmp(k->id, m->id) != 0; /* its process: one may go and the next come between two looks */
        if (s == n->own)
            continue;
        if (k->here && (!m->here || other))
            tell_gone(n, r, s, now, lease);
        if (m->here && !k->here) {
            tell_came(n, r, s, now);
            remember(k, m);
        }
    }
}
