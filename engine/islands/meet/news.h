/* What becomes of the other islands, a line each: who joined, left, is away (its lease has run out: killed, frozen or
 * cut off), or is back, and after which outer step. Told by comparing what etcd says at one moment with what it said
 * before.
 */
#pragma once

#include "engine/islands/meet/roster.h"

enum { NEWS_LINE = 256 }; /* bytes of a line, at most */

typedef struct news news;
typedef void news_say(void *context, const char *line);

/* `own`: the slot that is not told of. */
news *news_open(int own, news_say *say, void *context);
void news_close(news *n); /* NULL is accepted */
/* `now` in seconds, of any clock; `lease`: seconds without a sign of life after which an island is given up. */
void news_look(news *n, const roster *r, double now, int lease);
