#include "tests/jobs/plans.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/compile.h"
#include "engine/compile/model/tokens.h"
#include "memory/log.h"
#include "tests/jobs/runs.h"
#include "tests/parallel/schedule/least.h"

__attribute__((format(printf, 2, 3))) static void blame(plans_verdict *v, const char *format, ...)
{
    if (v->wrong)
        return;
    v->wrong = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(v->what, sizeof v->what, format, arguments);
    va_end(arguments);
}

static int64_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
}

/* All members of one collective together send the least that is possible. */
static void check_least(plans_verdict *v, const program *p, int index)
{
    const op *ops[COMM_SEGMENTS], *o = p->ops[index];
    int together = collective_bundle(ops, p, index);
    if (op_has(o, OP_MESSAGE) || together == 0)
        return;
    int64_t *counts = must_alloc((unsigned long)o->where.group_size * sizeof *counts), sum = 0;
    comm_shape s = collective_together(counts, ops, together);
    for (s.me = 0; s.me < s.members; s.me++)
        sum += comm_expected_bytes(&s);
    if (sum != least_bytes(&s))
        blame(v, "%s: %lld bytes are sent where %lld would do", o->label, (long long)sum, (long long)least_bytes(&s));
    free(counts);
}

/* What a rank counted along each axis, under `key`, and what its programs say. */
static void check_traffic(plans_verdict *v, const json_t *said, const char *key, const int64_t *planned, int rank)
{
    for (axis a = 0; a < AXIS_COUNT; a++) {
        if (!axis_has_messages(a))
            continue;
        int64_t counted = integer(json_object_get(said, key), axis_name(a));
        if (counted != planned[a])
            blame(v, "rank %d: %s along %s is %lld, of its programs %lld", rank, key, axis_name(a), (long long)counted,
                  (long long)planned[a]);
    }
}

typedef struct planned_traffic {
    int64_t sent[AXIS_COUNT], messages[AXIS_COUNT];
} planned_traffic;

static void add_traffic(plans_verdict *v, planned_traffic *t, const program *p, int64_t plays)
{
    for (int i = 0; i < p->count; i++) {
        const op *o = p->ops[i];
        if (!op_communicates(o))
            continue;
        int64_t scratch, bytes, count;
        collective_measure(&scratch, &bytes, &count, p, i);
        t->sent[o->where.axis] += plays * bytes;
        t->messages[o->where.axis] += plays * count;
        check_least(v, p, i);
    }
}

/* `plays`: of each bucket, where there are several. */
static void check_rank(plans_verdict *v, const compiled *c, const json_t *said, const json_t *plays, int rank,
                       int steps)
{
    planned_traffic t = {0};
    int buckets = compile_buckets(&c->options);
    if ((int)json_array_size(plays) != (buckets > 1 ? buckets : 0))
        blame(v, "the summary has plays of %d rungs, and there are %d", (int)json_array_size(plays), buckets);
    for (int bucket = 0; bucket < buckets; bucket++)
        add_traffic(v, &t, &compile_program_of(c, c->options.microbatches, bucket)->list,
                    buckets > 1 ? json_integer_value(json_array_get(plays, (size_t)bucket)) : steps);
    check_traffic(v, said, "bytes_sent", t.sent, rank);
    check_traffic(v, said, "messages_sent", t.messages, rank);
    int64_t arena = integer(said, "arena_bytes"), used = integer(said, "arena_used_bytes");
    if (arena != c->arena_bytes)
        blame(v, "rank %d has an arena of %lld bytes, its plan %lld", rank, (long long)arena,
              (long long)c->arena_bytes);
    if (used > arena || used <= arena - COMPILE_ALIGNMENT)
        blame(v, "rank %d uses %lld bytes of an arena of %lld", rank, (long long)used, (long long)arena);
    double ratio = (double)c->training.transient_bytes / (double)c->training.lower_bound;
    v->ratio = ratio > v->ratio ? ratio : v->ratio;
    v->dropped = c->dropped > v->dropped ? c->dropped : v->dropped;
}

plans_verdict plans_compare(const char *folder, int ranks, int steps)
{
    plans_verdict v = {0};
    char *path = must_format("%s/config.yaml", folder);
    config c;
    json_t *summary = runs_read_summary(folder);
    json_t *list = json_object_get(summary, "ranks");
    if (config_load(&c, path, 0, NULL) != STATUS_OK || (int)json_array_size(list) != ranks) {
        blame(&v, "no configuration, or no summary of %d ranks", ranks);
        free(path);
        json_decref(summary);
        return v;
    }
    for (int rank = 0; rank < ranks; rank++) {
        grid g;
        compile_options options;
        compiled plan = {0};
        status s = config_make_grid(&g, &c, ranks, rank);
        if (s == STATUS_OK)
            s = compile_options_from(&options, &c, &g, &cpu_backend, c.train.threads);
        options.evaluate = c.data.validation.count > 0 && c.evaluate.every > 0;
        if (s == STATUS_OK)
            s = compile(&plan, &options);
        if (s == STATUS_OK)
            check_rank(&v, &plan, json_array_get(list, (size_t)rank), json_object_get(summary, "plays"), rank, steps);
        else
            blame(&v, "%s", status_message());
        compile_free(&plan);
    }
    config_free(&c);
    free(path);
    json_decref(summary);
    return v;
}
