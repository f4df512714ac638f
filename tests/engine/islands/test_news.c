/* What an island's log says of the others: each who joins, leaves, is lost or comes back is named once, with the outer
 * step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/meet/roster.h"
#include "memory/log.h"
#include "tests/test.h"

enum { OWN = 2, LEASE = 5 };

typedef struct heard {
    char text[4096];
} heard;

static void hear(void *context, const char *line)
{
    heard *h = context;
    size_t used = strlen(h->text);
    snprintf(h->text + used, sizeof h->text - used, "%s\n", line);
}

/* etcd's pairs: a list of "slot name id", of islands that are there, and the ids that have left. */
static json_t *pairs_of(const char *members, const char *left)
{
    json_t *pairs = json_array();
    int slot, end;
    char name[32], id[32], key[32];
    for (const char *at = members; sscanf(at, "%d %31s %31s%n", &slot, name, id, &end) == 3; at += end) {
        snprintf(key, sizeof key, "member/%d", slot);
        json_array_append_new(pairs, json_pack("{s:s, s:{s:s, s:s, s:s, s:i, s:[s], s:b, s:i}}", "key", key, "value",
                                               "name", name, "id", id, "key", "k", "ranks", 1, "endpoints", "tcp://",
                                               "ready", 1, "step", 40));
    }
    for (const char *at = left; sscanf(at, "%d %31s%n", &slot, id, &end) == 2; at += end) {
        snprintf(key, sizeof key, "left/%d", slot);
        json_array_append_new(pairs, json_pack("{s:s, s:{s:s}}", "key", key, "value", "id", id));
    }
    return pairs;
}

/* One look at so many seconds; merge -1: there is no head. */
static void look(news *n, double now, int merge, const char *members, const char *left)
{
    roster r;
    json_t *pairs = pairs_of(members, left);
    if (merge >= 0)
        json_array_append_new(pairs, json_pack("{s:s, s:{s:i}}", "key", "head", "value", "merge", merge));
    roster_read_pairs(&r, pairs, NULL);
    news_look(n, &r, now, LEASE);
    json_decref(pairs);
}

static void says(heard *h, const char *wanted)
{
    assert_string_equal(h->text, wanted);
    *h->text = 0;
}

TEST(every_island_that_comes_or_goes_is_named_once)
{
    heard h = {0};
    news *n = news_open(OWN, hear, &h);
    look(n, 0, 3, "0 east a 2 own o", "");
    says(&h, "islands: at work beside this one: east\n");
    look(n, 1, 3, "0 east a 1 west b 2 own o", "");
    says(&h, "islands: west (slot 1) joined after merge 3\n");
    look(n, 2, 4, "0 east a 1 west b 2 own o", "");
    says(&h, "");
    look(n, 3, 5, "0 east a 2 own o", "1 b");
    says(&h, "islands: west (slot 1) left after merge 5\n");
    look(n, 10, 6, "1 west c 2 own o", "1 b");
    says(&h, "islands: east (slot 0) is away after merge 6: it has given no sign of life for 5 s\n"
             "islands: west (slot 1) is back after merge 6, started again, 7 s after it had gone\n");
    look(n, 14, 7, "0 east a 1 west c 2 own o", "1 b");
    says(&h, "islands: east (slot 0) is back after merge 7, 4 s after it had gone\n");
    look(n, 15, 7, "0 other d 1 west c 2 own o", "0 a");
    says(&h, "islands: east (slot 0) left after merge 7\nislands: other (slot 0) joined after merge 7\n");
    news_close(n);
}

/* Between two looks one process may be lost and the next have come. */
TEST(an_island_that_is_replaced_between_looks_is_named_twice)
{
    heard h = {0};
    news *n = news_open(OWN, hear, &h);
    look(n, 0, -1, "0 east a", "");
    look(n, 6, -1, "0 east b", "");
    says(&h, "islands: at work beside this one: east\n"
             "islands: east (slot 0) is away after its step 40: it has given no sign of life for 5 s\n"
             "islands: east (slot 0) is back after its step 40, started again, 0 s after it had gone\n");
    look(n, 7, -1, "0 east b 2 own o", ""); /* it does not tell of itself */
    says(&h, "");
    news_close(n);
}

TEST_MAIN(NULL, NULL)
