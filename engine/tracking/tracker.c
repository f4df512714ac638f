#include "engine/tracking/tracker.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "engine/system/reading.h"
#include "engine/system/worker.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

/* MLflow takes 1,000 metrics, 100 parameters of 6,000 characters, and 100 tags of 5,000 at a time; a line of metrics
 * has some dozens. After a timeout, requests become smaller. */
enum {
    CHUNK = 64 << 10,
    MOST_METRICS = 900,
    FEWEST_METRICS = 50,
    MOST_PARAMETERS = 40,
    MOST_VALUE = 500,
    ID = 33,
    MOST_POINTS = 1 << 20,
    MOST_NAME = 200
};
static const double EVERY = 1, FIRST_PAUSE = 1, LAST_PAUSE = 2, LONGEST_PAUSE = 60; /* seconds */
static const char tag_of_id[] = "phalanx.id";

/* A line's kind; lines of one kind come once a step, in ascending order. */
typedef enum line_kind { LINE_STEP, LINE_EVALUATION, LINE_ISLANDS, LINE_KINDS } line_kind;

static const struct {
    const char *key, *prefix; /* key of the line's value; prefix of the kind's names on the server */
} kinds[LINE_KINDS] = {[LINE_STEP] = {"loss", ""},
                       [LINE_EVALUATION] = {"eval_loss", "eval/"},
                       [LINE_ISLANDS] = {"islands_disagreement", "islands/"}};

/* A line's kind, step and value; the value shows whether a repeated step gave the same result. */
typedef struct line_point {
    line_kind kind;
    int64_t step;
    double value; /* NAN: null or missing */
} line_point;

/* Points of lines that were dropped from metrics.jsonl: a run may repeat them. */
typedef struct line_points {
    line_point *item;
    int count;
} line_points;

struct tracker {
    tracker_options options; /* its texts are copies */
    char *metrics;           /* path of the file */
    char id[ID];
    json_t *parameters, *tags; /* [{key, value}] */

    /* used by the thread */
    mlflow_rest *rest;
    char experiment[MLFLOW_REST_ID], run[MLFLOW_REST_ID];
    bool known; /* the run is known, has its parameters, and is running again */
    int64_t last[LINE_KINDS];
    double pause;
    bool failing, saw_end;
    char *text;  /* [CHUNK] read from the file */
    size_t most; /* limit of metrics in a request */

    /* shared by both threads, under the lock */
    worker worker;
    bool ends, over; /* ends: the file is complete; over: the server knows, or refused */
    mlflow_rest_state end;
    int64_t ended;      /* milliseconds since 1970 */
    int64_t at;         /* bytes of the file already handled */
    int64_t generation; /* counts drops of lines from the file */
    bool held;
    int64_t base; /* lines up to this step are the same as in earlier starts */
    line_points dropped;
    tracker_counts counts;
};

/* ---- points of lines --------------------------------------------------------------------------------------------- */

/* Reads a line's point; false: no kind that is sent. */
static bool point_of(line_point *out, const json_t *line)
{
    const json_t *step = json_object_get(line, "step");
    for (int k = 0; json_is_integer(step) && k < LINE_KINDS; k++) {
        const json_t *value = json_object_get(line, kinds[k].key);
        if (!value)
            continue;
        *out = (line_point){(line_kind)k, json_integer_value(step),
                            json_is_number(value) ? json_number_value(value) : NAN};
        return true;
    }
    return false;
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static void add_metric(json_t *metrics, const char *name, const json_t *value, int64_t time, int64_t step)
{
    double number = json_is_number(value) ? json_number_value(value) : NAN;
    if (isfinite(number))
        json_array_append_new(metrics, json_pack("{s:s, s:f, s:I, s:I}", "key", name, "value", number, "timestamp",
                                                 (json_int_t)time, "step", (json_int_t)step));
}

/* Keeps the letters, digits, and - _ . of a data set's name, which MLflow accepts. */
static void add_set(json_t *metrics, const char *set, const json_t *value, int64_t time, int64_t step)
{
    char name[MOST_NAME];
    snprintf(name, sizeof name, "eval/%s", set);
    for (char *c = name + strlen("eval/"); *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '.')
            *c = '_';
    add_metric(metrics, name, value, time, step);
}

/* Appends {"key": NAME, "value": V, "timestamp": ms, "step": S} for each number of the line to `metrics`. */
static void add_metrics(json_t *metrics, const json_t *line, const line_point *at, const tracker_name *names, int count)
{
    const json_t *clock = json_object_get(line, "time");
    int64_t time = (int64_t)(1000 * json_number_value(clock));
    if (at->kind == LINE_STEP)
        for (int i = 0; i < count; i++)
            if (names[i].name)
                add_metric(metrics, names[i].name, json_object_get(line, names[i].key), time, at->step);
    if (at->kind == LINE_ISLANDS)
        add_metric(metrics, "islands/disagreement", json_object_get(line, kinds[at->kind].key), time, at->step);
    if (at->kind != LINE_EVALUATION)
        return;
    const char *set;
    json_t *value;
    add_metric(metrics, "eval/loss", json_object_get(line, kinds[at->kind].key), time, at->step);
    json_object_foreach(json_object_get(line, "eval_losses"), set, value) add_set(metrics, set, value, time, at->step);
}

/* Reads the last step of each kind on the server from the answer of mlflow_rest_data; -1: none. */
static void take_last(int64_t last[LINE_KINDS], const json_t *data)
{
    size_t i;
    const json_t *metric;
    for (int k = 0; k < LINE_KINDS; k++)
        last[k] = -1;
    json_array_foreach(json_object_get(data, "metrics"), i, metric)
    {
        const char *name = json_string_value(json_object_get(metric, "key"));
        const json_t *at = json_object_get(metric, "step"); /* a 64-bit integer, which a server may write as a string */
        int64_t step = json_is_string(at) ? strtoll(json_string_value(at), NULL, 10) : json_integer_value(at);
        int kind = LINE_STEP;
        for (int k = LINE_STEP + 1; name && k < LINE_KINDS; k++)
            if (strncmp(name, kinds[k].prefix, strlen(kinds[k].prefix)) == 0)
                kind = k;
        if (name && step > last[kind])
            last[kind] = step;
    }
}

/* ---- dropped lines ----------------------------------------------------------------------------------------------- */

/* Forgets points after `step`, which are older than those now read. */
static void forget_after(line_points *all, int64_t step)
{
    int kept = 0;
    for (int i = 0; i < all->count; i++)
        if (all->item[i].step <= step)
            all->item[kept++] = all->item[i];
    all->count = kept;
}

/* Adds the points of the lines of `path` after `step`, replacing earlier ones of these steps. */
static status read_dropped(line_points *out, const char *path, int64_t step)
{
    AUTO_FREE char *all = NULL;
    int64_t bytes;
    bool forgotten = false;
    line_point point;
    TRY(reading_file(&all, &bytes, path));
    for (char *text = all, *end; text && (end = memchr(text, '\n', (size_t)(all + bytes - text))); text = end + 1) {
        json_auto_t *line = json_loadb(text, (size_t)(end - text), 0, NULL);
        if (!point_of(&point, line) || point.step <= step)
            continue;
        if (!forgotten)
            forget_after(out, step);
        forgotten = true;
        if (out->count < MOST_POINTS)
            APPEND(out->item, out->count) = point;
    }
    return STATUS_OK;
}

/* True if a point of that kind, step and value is in the list. */
static bool have_point(const line_points *all, const line_point *wanted)
{
    for (int i = all->count; i-- > 0;)
        if (all->item[i].kind == wanted->kind && all->item[i].step == wanted->step)
            return all->item[i].value == wanted->value || (isnan(all->item[i].value) && isnan(wanted->value));
    return false;
}

/* ---- the run on the server --------------------------------------------------------------------------------------- */

/* Returns the server's value of a key; NULL: none. */
static const char *value_there(const json_t *list, const char *key)
{
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "key"));
        if (name && strcmp(name, key) == 0)
            return json_string_value(json_object_get(item, "value"));
    }
    return NULL;
}

/* Sends items in batches, as parameters or as tags. */
static status send_items(tracker *t, const json_t *items, bool as_tags)
{
    size_t count = json_array_size(items);
    for (size_t first = 0; first < count; first += MOST_PARAMETERS) {
        json_t *some = json_array();
        for (size_t i = first; i < count && i < first + MOST_PARAMETERS; i++)
            json_array_append(some, json_array_get(items, i));
        TRY(as_tags ? mlflow_rest_log(t->rest, t->run, NULL, NULL, some)
                    : mlflow_rest_log(t->rest, t->run, NULL, some, NULL));
    }
    return STATUS_OK;
}

/* Sends the parameters. They never change in MLflow: one that a later start changes becomes a tag of its name. */
static status send_parameters(tracker *t, const json_t *data)
{
    json_auto_t *fresh = json_array(), *other = json_array();
    json_t *item;
    const json_t *there = json_object_get(data, "params");
    size_t i;
    json_array_foreach(t->parameters, i, item)
    {
        const char *now = json_string_value(json_object_get(item, "value"));
        const char *then = value_there(there, json_string_value(json_object_get(item, "key")));
        if (!then)
            json_array_append(fresh, item);
        else if (now && strcmp(now, then) != 0)
            json_array_append(other, item);
    }
    json_array_foreach(t->tags, i, item) json_array_append(other, item);
    TRY(send_items(t, fresh, false));
    return send_items(t, other, true);
}

/* Finds or makes the run on the server, and reads its data. */
static status find_run(tracker *t)
{
    bool found;
    json_auto_t *data = NULL;
    t->known = false;
    TRY(mlflow_rest_experiment(t->experiment, t->rest, t->options.experiment));
    TRY(mlflow_rest_find(&found, t->run, t->rest, t->experiment, tag_of_id, t->id));
    if (!found)
        TRY(mlflow_rest_create(t->run, t->rest, t->experiment, t->options.name, t->options.began, tag_of_id, t->id));
    TRY(mlflow_rest_data(&data, t->rest, t->run));
    take_last(t->last, data);
    TRY(send_parameters(t, data));
    TRY(mlflow_rest_update(t->rest, t->run, MLFLOW_REST_RUNNING, 0));
    log_info("MLflow: %s/#/experiments/%s/runs/%s", t->options.address, t->experiment, t->run);
    t->known = true;
    return STATUS_OK;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Some lines of the file, and their metrics. */
typedef struct batch {
    json_t *metrics;
    int64_t begin, end, generation; /* byte range of the file */
    int lines;                      /* number of lines with metrics */
    int64_t last[LINE_KINDS];       /* the server's last steps, once it has the batch */
} batch;

static void add_line(tracker *t, batch *b, const char *text, size_t bytes)
{
    line_point point;
    json_auto_t *line = json_loadb(text, bytes, 0, NULL);
    if (!point_of(&point, line))
        return;
    bool late = point.step <= b->last[point.kind]; /* the server may have it, with the same value */
    if (!late || (point.step > t->base && !have_point(&t->dropped, &point))) {
        add_metrics(b->metrics, line, &point, t->options.names, t->options.name_count);
        b->lines++;
        if (point.step > b->last[point.kind])
            b->last[point.kind] = point.step;
    }
}

/* Reads the next lines of the file that fit a request; b->end is b->begin if there are none. Skips a line longer than a
 * chunk, which no run writes. */
static status read_batch(batch *b, tracker *t)
{
    char *text = t->text;
    int64_t got;
    *b = (batch){.metrics = json_array()};
    WORKER_HELD(&t->worker);
    b->begin = b->end = t->at;
    b->generation = t->generation;
    memcpy(b->last, t->last, sizeof b->last);
    status s = t->held ? STATUS_OK : reading_at(&got, text, t->metrics, t->at, CHUNK);
    int64_t there = s == STATUS_OK && !t->held && got > 0 ? got : 0;
    const char *line = text;
    for (const char *end; (end = memchr(line, '\n', (size_t)(text + there - line))); line = end + 1) {
        add_line(t, b, line, (size_t)(end - line));
        b->end = b->begin + (end + 1 - text);
        if (json_array_size(b->metrics) >= t->most)
            break;
    }
    if (there == CHUNK && b->end == b->begin)
        b->end += there;
    return s;
}

/* Marks the batch as handled, unless lines were dropped meanwhile: then its other lines are read again, and known. */
static void pass_batch(tracker *t, const batch *b, bool refused)
{
    WORKER_HELD(&t->worker);
    if (b->generation == t->generation)
        t->at = b->end;
    memcpy(t->last, b->last, sizeof t->last);
    if (refused)
        t->counts.refused += b->lines;
    else
        t->counts.sent += (int64_t)json_array_size(b->metrics);
}

/* The server took some data, even if there is more to send. */
static void note_success(tracker *t)
{
    if (t->failing)
        log_info("MLflow at %s takes metrics again", t->options.address);
    t->failing = false;
    t->pause = 0;
}

/* *more: further lines may follow. */
static status send_lines(bool *more, tracker *t)
{
    batch b;
    status s = read_batch(&b, t);
    *more = b.end > b.begin;
    bool refused = false;
    if (s == STATUS_OK && json_array_size(b.metrics) > 0) {
        s = mlflow_rest_log(t->rest, t->run, json_incref(b.metrics), NULL, NULL);
        refused = s != STATUS_OK && mlflow_rest_refused(t->rest);
        if (s == STATUS_OK)
            note_success(t);
        else if (mlflow_rest_gone(t->rest))
            t->known = false;
    }
    if (s == STATUS_OK || refused)
        pass_batch(t, &b, refused);
    t->most = s == STATUS_OK ? 2 * t->most : t->most / 2;
    t->most = t->most < FEWEST_METRICS ? FEWEST_METRICS : t->most > MOST_METRICS ? MOST_METRICS : t->most;
    json_decref(b.metrics);
    return s;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Sends all that can be sent now; after the run's end, that too. */
static status send_all(tracker *t)
{
    TRY(lock_check(t->options.owner)); /* else the lines, and the run on the server, are another start's */
    worker_lock(&t->worker);
    t->saw_end = t->ends; /* read before the file: it is complete then */
    worker_unlock(&t->worker);
    if (!t->known)
        TRY(find_run(t));
    for (bool more = true; more && !atomic_load(&t->worker.stop);)
        TRY(send_lines(&more, t));
    if (!t->saw_end || atomic_load(&t->worker.stop))
        return STATUS_OK;
    TRY(mlflow_rest_update(t->rest, t->run, t->end, t->ended));
    WORKER_HELD(&t->worker);
    t->over = true;
    worker_tell(&t->worker);
    return STATUS_OK;
}

/* Reports a failure once, and its end once. */
static void note_answer(tracker *t, status s)
{
    if (s == STATUS_LOST || atomic_load(&t->worker.stop))
        return;
    if (s == STATUS_OK) {
        note_success(t);
        return;
    }
    worker_lock(&t->worker);
    t->counts.failures++;
    worker_unlock(&t->worker);
    t->pause = t->pause > 0 ? 2 * t->pause : FIRST_PAUSE;
    t->pause = t->pause < LONGEST_PAUSE ? t->pause : LONGEST_PAUSE;
    if (!t->failing)
        log_warn("%s; the run goes on%s", status_message(),
                 mlflow_rest_refused(t->rest) ? " without what it does not take"
                                              : ", and sends its metrics when that is over");
    t->failing = true;
}

/* Waits until there may be work; false: the thread is to end. */
static bool wait_for_more(tracker *t)
{
    double pause = t->pause > 0 ? t->pause : EVERY;
    double until = clock_seconds() + (t->saw_end && pause > LAST_PAUSE ? LAST_PAUSE : pause);
    WORKER_HELD(&t->worker);
    while ((t->over || t->ends == t->saw_end) &&
           (t->over ? worker_wait(&t->worker) : worker_wait_until(&t->worker, until)))
        continue;
    return !atomic_load(&t->worker.stop);
}

static void follow_metrics(void *context)
{
    tracker *t = context;
    do
        note_answer(t, send_all(t));
    while (wait_for_more(t));
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Reads the id of FOLDER/mlflow.json; a new run writes its first start's id there. */
static status take_id(tracker *t)
{
    AUTO_FREE char *path = must_format("%s/" TRACKER_FILE, t->options.folder), *text = NULL;
    int64_t bytes;
    TRY(reading_file(&text, &bytes, path));
    json_auto_t *file = text ? json_loadb(text, (size_t)bytes, 0, NULL) : NULL;
    const char *id = json_string_value(json_object_get(file, "id"));
    if (id && strlen(id) == ID - 1 && strspn(id, "0123456789abcdef") == ID - 1) {
        memcpy(t->id, id, ID);
        return STATUS_OK;
    }
    if (text)
        return status_fail(STATUS_FAILED, "%s holds no id of a run: remove it, and the run begins anew in MLflow",
                           path);
    AUTO_FREE char *out = must_format("{\"id\": \"%s\"}\n", t->id);
    return atomic_replace(path, out, (int64_t)strlen(out));
}

static void add_item(json_t *list, const char *key, const char *value)
{
    size_t length = strnlen(value, MOST_VALUE);
    while (value[length] && length > 0 && ((unsigned char)value[length] & 0xC0) == 0x80)
        length--; /* do not split a character */
    json_t *item = json_pack("{s:s, s:s%}", "key", key, "value", value, length);
    if (item) /* NULL: not UTF-8, which MLflow rejects */
        json_array_append_new(list, item);
}

static void copy_options(tracker *t, const tracker_options *from)
{
    t->options = *from;
    t->options.folder = must_strdup(from->folder);
    t->options.address = must_strdup(from->address);
    t->options.experiment = must_strdup(from->experiment);
    t->options.name = must_strdup(from->name);
    t->options.tags = NULL;
    t->metrics = must_format("%s/metrics.jsonl", from->folder);
    t->text = must_alloc(CHUNK);
    t->most = MOST_METRICS;
    t->parameters = json_array();
    t->tags = json_array();
    for (int i = 0; i < from->tag_count; i++)
        add_item(t->tags, from->tags[i].key, from->tags[i].name);
}

status tracker_open(tracker **out, const tracker_options *options)
{
    AUTO(tracker) *t = must_calloc(1, sizeof *t);
    copy_options(t, options);
    snprintf(t->id, sizeof t->id, "%s", options->id);
    worker_init(&t->worker);
    TRY(mlflow_rest_open(&t->rest, t->options.address, t->options.login, &t->worker.stop));
    TRY(take_id(t));
    *out = TAKE(t);
    return STATUS_OK;
}

status tracker_parameter(void *t, const char *key, const char *value)
{
    add_item(((tracker *)t)->parameters, key, value);
    return STATUS_OK;
}

status tracker_hold(tracker *t, int64_t step)
{
    WORKER_HELD(&t->worker);
    t->held = true;
    t->base = step;
    return read_dropped(&t->dropped, t->metrics, step);
}

status tracker_go_on(tracker *t)
{
    bool there;
    struct stat about;
    TRY(reading_look(&there, &about, t->metrics));
    worker_lock(&t->worker);
    int64_t bytes = there ? (int64_t)about.st_size : 0;
    t->at = t->at < bytes ? t->at : bytes;
    t->generation++;
    t->held = false;
    worker_unlock(&t->worker);
    return t->worker.threads ? STATUS_OK : worker_start(&t->worker, follow_metrics, t, "speaks to MLflow");
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void tracker_end(tracker *t, mlflow_rest_state state, int64_t ended, double seconds)
{
    if (!t->worker.threads)
        return;
    double until = clock_seconds() + seconds;
    worker_lock(&t->worker);
    t->ends = true;
    t->end = state;
    t->ended = ended;
    worker_tell(&t->worker);
    while (!t->over && worker_wait_until(&t->worker, until))
        ;
    bool over = t->over;
    worker_unlock(&t->worker);
    if (!over)
        log_warn("MLflow at %s has not taken all metrics in %.3g s: the same command again sends the rest",
                 t->options.address, seconds);
}

tracker_counts tracker_counted(tracker *t)
{
    bool there;
    struct stat about;
    bool known = reading_look(&there, &about, t->metrics) == STATUS_OK && there;
    WORKER_HELD(&t->worker);
    t->counts.behind = known && about.st_size > t->at ? (int64_t)about.st_size - t->at : 0;
    return t->counts;
}

void tracker_close(tracker *t)
{
    if (!t)
        return;
    worker_close(&t->worker);
    mlflow_rest_close(t->rest);
    free(t->dropped.item);
    json_decref(t->parameters);
    json_decref(t->tags);
    free((char *)(uintptr_t)t->options.folder);
    free((char *)(uintptr_t)t->options.address);
    free((char *)(uintptr_t)t->options.experiment);
    free((char *)(uintptr_t)t->options.name);
    free(t->metrics);
    free(t->text);
    free(t);
}
