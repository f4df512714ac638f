#include "engine/train/report/report.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "engine/islands/islands.h"
#include "engine/mirror/mirror.h"
#include "engine/system/atomic.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/outlet.h"
#include "memory/scope.h"

double report_time(void)
{
    return clock_of(CLOCK_REALTIME);
}

/* --- for people --------------------------------------------------------------------------------------------------- */

static void header_memory(FILE *out, const report_run *run)
{
    const struct {
        const char *name;
        int64_t bytes;
    } classes[] = {{"weights", run->memory.weights},
                   {"gradients", run->memory.gradients},
                   {"optimizer", run->memory.optimizer},
                   {"kept", run->memory.kept},
                   {"temporary", run->memory.temporary}};
    fprintf(out, "  memory      %s planned", BYTES_TEXT(run->arena_bytes));
    if (run->lower_bound_bytes > 0)
        fprintf(out, ", %.3f x the lower bound", (double)run->arena_bytes / (double)run->lower_bound_bytes);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        fprintf(out, "%s%s %s", i ? ", " : "\n              ", classes[i].name, BYTES_TEXT(classes[i].bytes));
    fputc('\n', out);
}

void report_header(FILE *out, const report_run *run)
{
    fprintf(out, "  model       %s\n  parameters  %" PRId64 " (%s)\n", run->model, run->parameters,
            COUNT_TEXT(run->parameters));
    fprintf(out, "  device      %s, %s\n", run->device, run->precision);
    if (run->layout)
        fprintf(out, "  layout      %s\n", run->layout);
    header_memory(out, run);
    fprintf(out, "  training    %" PRId64 " steps of %s tokens: %s tokens\n", run->steps,
            COUNT_TEXT(run->tokens_per_step), COUNT_TEXT(run->tokens));
    if (run->expert_room > 0)
        fprintf(out,
                "  experts     a rank has room for %" PRId64
                " rows of a layer and micro-batch; what is beyond is dropped\n",
                run->expert_room);
    double flops = run->flops_per_token * (double)run->tokens_per_step;
    if (flops < 1e9)
        fprintf(out, "  work        %.2g GFLOP a step", flops / 1e9);
    else
        fprintf(out, "  work        %s GFLOP a step", COUNT_TEXT(flops / 1e9));
    if (run->peak_flops > 0)
        fprintf(out, ", %.3g TFLOP/s peak for the MFU", run->peak_flops / 1e12);
    fprintf(out, "\n  run folder  %s\n", run->folder);
    fflush(out);
}

void report_columns(FILE *out)
{
    fprintf(out, "%13s %9s %9s %9s %9s %9s %6s %10s %9s\n", "step", "loss", "norm", "lr", "tokens/s", "TFLOP/s", "MFU",
            "memory", "ETA");
    fflush(out);
}

/* --- for programs ------------------------------------------------------------------------------------------------- */

enum { JSON_FLAGS = JSON_REAL_PRECISION(9) | JSON_PRESERVE_ORDER };

static void put_real(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

static void put_integer(json_t *object, const char *key, int64_t value)
{
    json_object_set_new(object, key, json_integer(value));
}

static void put_text(json_t *object, const char *key, const char *value)
{
    json_object_set_new(object, key, json_string(value));
}

/* Writes a line; takes the object. Times need more digits than nine. */
static status write_line(lines *out, json_t *object, double time, bool here)
{
    AUTO_FREE char *text = json_dumps(object, JSON_FLAGS);
    text[strlen(text) - 1] = 0;
    AUTO_FREE char *line = must_format("%s, \"time\": %.3f}\n", text, time);
    json_decref(object);
    return lines_write(out, line, (int64_t)strlen(line), here);
}

static json_t *step_object(const report_step *s)
{
    json_t *line = json_object();
    put_integer(line, "step", s->step);
#define METRIC(kind, name, when, ...)                                                                                  \
    if (when)                                                                                                          \
        put_##kind(line, #name, s->name);
#include "engine/train/report/metrics.def"
    if (s->hash)
        put_text(line, "weights_hash", s->hash);
    if (s->skipped)
        json_object_set_new(line, "skipped", json_true());
    return line;
}

status report_metrics(lines *out, const report_step *s)
{
    return write_line(out, step_object(s), s->time, false);
}

static json_t *evaluation_object(const report_result *r)
{
    json_t *line = json_object(), *each = json_object();
    put_integer(line, "step", r->step);
    put_real(line, "eval_loss", r->loss);
    for (int i = 0; r->sets > 1 && i < r->sets; i++)
        put_real(each, r->name[i], r->losses[i]);
    if (r->sets > 1)
        json_object_set(line, "eval_losses", each);
    json_decref(each);
    return line;
}

status report_metrics_evaluation(lines *out, const report_result *r)
{
    return write_line(out, evaluation_object(r), r->time, false);
}

/* Prints an object on the screen if run.log_format is json: the logger adds the time. Takes the object. */
static void print_object(FILE *out, json_t *object)
{
    AUTO_FREE char *text = json_dumps(object, JSON_FLAGS);
    fprintf(out, "%s\n", text);
    fflush(out);
    json_decref(object);
}

void report_line(FILE *out, const report_step *s, bool json)
{
    if (json) {
        print_object(out, step_object(s));
        return;
    }
    char step[2 * UNITS_TEXT], mfu[UNITS_TEXT] = "-";
    snprintf(step, sizeof step, "%" PRId64 "/%" PRId64, s->step, s->steps);
    if (s->mfu >= 0)
        snprintf(mfu, sizeof mfu, "%.1f%%", 100 * s->mfu);
    fprintf(out, "%13s %9.4f %9.4g %9.3e %9s %9.4g %6s %10s %9s%s%s\n", step, s->loss, s->grad_norm, s->lr,
            COUNT_TEXT(s->tokens_per_second), s->tflops, mfu, BYTES_TEXT(s->resident_bytes),
            DURATION_TEXT(s->left_seconds), s->skipped ? "  skipped: " : "", s->skipped ? s->skipped : "");
    fflush(out);
}

void report_evaluation(FILE *out, const report_result *r, bool json)
{
    if (json) {
        print_object(out, evaluation_object(r));
        return;
    }
    fprintf(out, "%13" PRId64 " %9.4f on validation, perplexity %.4g, %s\n", r->step, r->loss, exp(r->loss),
            DURATION_TEXT(r->seconds));
    for (int i = 0; r->sets > 1 && i < r->sets; i++)
        fprintf(out, "%13s %9.4f on %s\n", "", r->losses[i], r->name[i]);
    fflush(out);
}

status report_happened(lines *out, const report_happening *what, double time)
{
    json_t *line = json_pack("{s:s, s:s, s:I}", "event", what->event, "run", what->run, "step", (json_int_t)what->step);
    if (what->words)
        put_text(line, "words", what->words);
    if (what->device)
        put_text(line, "device", what->device);
    if (what->ranks > 0)
        put_integer(line, "ranks", what->ranks);
    return write_line(out, line, time, what->here);
}

status report_metrics_disagreement(lines *out, int64_t step, double apart, double time)
{
    json_t *line = json_object();
    put_integer(line, "step", step);
    put_real(line, "islands_disagreement", apart);
    return write_line(out, line, time, false);
}

status report_metrics_event(lines *out, const report_event *e, double time)
{
    json_t *line = json_object(), *what = json_object();
    put_integer(line, "step", e->step);
    if (e->from > 0)
        put_integer(what, "from", e->from);
    if (e->words)
        put_text(what, "words", e->words);
    if (!e->words) {
        put_real(what, "loss", e->loss);
        put_real(what, "grad_norm", e->norm);
        put_real(what, "loss_zscore", e->loss_zscore);
        put_real(what, "norm_zscore", e->norm_zscore);
    }
    if (e->samples > 0) {
        put_integer(what, "first_sample", e->first_sample);
        put_integer(what, "samples", e->samples);
    }
    json_object_set_new(line, e->kind, what);
    return write_line(out, line, time, false);
}

static json_t *traffic_object(const int64_t *along)
{
    json_t *axes = json_object();
    for (int a = 0; a < AXIS_COUNT; a++)
        if (axis_has_messages((axis)a))
            put_integer(axes, axis_name((axis)a), along[a]);
    return axes;
}

static json_t *rank_object(const report_rank *r)
{
    json_t *object = json_pack("{s:i, s:s}", "rank", r->rank, "host", r->host);
    for (int i = 0; i < AXIS_COORDINATES; i++)
        put_integer(object, axis_coordinates[i].name, r->at[i]);
    put_integer(object, "arena_bytes", r->arena_bytes);
    put_integer(object, "arena_used_bytes", r->arena_used_bytes);
    put_integer(object, "peak_resident_bytes", r->peak_resident_bytes);
    put_integer(object, "copy_bytes", r->copy_bytes);
    put_integer(object, "memory_copy_bytes", r->memory_copy_bytes);
    json_object_set_new(object, "bytes_sent", traffic_object(r->bytes_sent));
    json_object_set_new(object, "messages_sent", traffic_object(r->messages_sent));
    return object;
}

double report_computing(const islands_counts *c)
{
    return c->elapsed > 0 ? 1 - c->stood / c->elapsed : 1;
}

static json_t *islands_object(const islands_counts *c)
{
    json_t *object = json_pack("{s:I, s:I, s:I, s:I, s:I}", "merges", (json_int_t)c->merges, "missed",
                               (json_int_t)c->missed, "bytes_sent", (json_int_t)c->sent, "bytes_received",
                               (json_int_t)c->received, "refused", (json_int_t)c->refused);
    put_real(object, "wait_seconds", c->waited);
    put_real(object, "stood_seconds", c->stood);
    put_real(object, "computing", report_computing(c));
    put_integer(object, "clipped", c->clipped);
    if (c->left_out > 0)
        put_integer(object, "left_out", c->left_out);
    if (c->undone > 0)
        put_integer(object, "undone", c->undone);
    if (c->releases > 0) {
        put_integer(object, "releases", c->releases);
        put_real(object, "epsilon", c->epsilon);
    }
    if (c->disagreement > 0)
        put_real(object, "disagreement", c->disagreement);
    return object;
}

report_end report_ending(const char *folder, const char *run)
{
    AUTO_FREE char *path = must_format("%s/summary.json", folder);
    json_auto_t *root = json_load_file(path, 0, NULL);
    const char *whose = json_string_value(json_object_get(root, "run"));
    const char *ended = json_string_value(json_object_get(root, "ended"));
    if (!whose || !ended || strcmp(whose, run) != 0)
        return REPORT_UNKNOWN;
    return strcmp(ended, "stopped") == 0 ? REPORT_STOPPED : REPORT_DONE;
}

status report_summary(const char *path, const report_summary_values *v)
{
    json_auto_t *root = json_object();
    json_t *ranks = json_array();
#define SUMMARY(kind, name, when, ...)                                                                                 \
    if (when)                                                                                                          \
        put_##kind(root, #name, v->name);
#include "engine/train/report/summary.def"
    if (v->buckets > 1) {
        json_t *plays = json_array();
        for (int i = 0; i < v->buckets; i++)
            json_array_append_new(plays, json_integer(v->plays[i]));
        json_object_set_new(root, "plays", plays);
    }
    if (v->tracked)
        json_object_set_new(root, "mlflow",
                            json_pack("{s:I, s:I, s:I, s:I}", "sent", (json_int_t)v->tracked->sent, "refused",
                                      (json_int_t)v->tracked->refused, "bytes_behind", (json_int_t)v->tracked->behind,
                                      "failures", (json_int_t)v->tracked->failures));
    if (v->islands)
        json_object_set_new(root, "islands", islands_object(v->islands));
    if (v->mirror)
        json_object_set_new(root, "mirror",
                            json_pack("{s:I, s:I, s:i, s:i, s:s*}", "step", (json_int_t)v->mirror->step, "behind_bytes",
                                      (json_int_t)v->mirror->behind_bytes, "uploaded", v->mirror->uploaded,
                                      "passed_over", v->mirror->passed_over, "failing",
                                      *v->mirror->why ? v->mirror->why : NULL));
    for (int i = 0; i < v->ranks; i++)
        json_array_append_new(ranks, rank_object(&v->rank[i]));
    json_object_set_new(root, "ranks", ranks);
    AUTO_FREE char *text = json_dumps(root, JSON_FLAGS | JSON_INDENT(2));
    return atomic_replace(path, text, (int64_t)strlen(text));
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

report_progress report_progress_begin(FILE *out, const char *title, double total, bool bytes)
{
    double now = clock_seconds();
    bool terminal = isatty(outlet_descriptor(out));
    return (report_progress){.out = out,
                             .terminal = terminal,
                             .title = title,
                             .bytes = bytes,
                             .total = total,
                             .begun = now,
                             .last = terminal ? now - 1 : now};
}

void report_progress_text(char *out, int bytes, const report_progress *p, double done, double now, int width)
{
    enum { BAR = 30 };
    char amount[UNITS_TEXT], rate[UNITS_TEXT], bar[BAR + 1];
    const char *(*human)(char *, double) = p->bytes ? units_bytes : units_count;
    double seconds = now - p->begun, share = p->total > 0 ? fmin(1, fmax(0, done / p->total)) : 0;
    human(amount, done);
    human(rate, seconds > 0 ? done / seconds : 0);
    int filled = (int)(share * BAR);
    for (int i = 0; i < BAR; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[BAR] = 0;
    if (p->total > 0)
        snprintf(out, (size_t)bytes, "%s %3d%% [%s] %s, %s/s, %s left", p->title, (int)(100 * share), bar, amount, rate,
                 DURATION_TEXT(share > 0 ? seconds / share - seconds : -1));
    else if (p->total < 0)
        snprintf(out, (size_t)bytes, "%s, %s", p->title, DURATION_TEXT(seconds));
    else
        snprintf(out, (size_t)bytes, "%s %s, %s/s", p->title, amount, rate);
    if (width > 0 && width < bytes)
        out[width] = 0;
}

void report_progress_update(report_progress *p, double done)
{
    double now = clock_seconds();
    if (now - p->last < (p->terminal ? 0.1 : 30))
        return;
    char text[256];
    struct winsize size;
    bool known = ioctl(outlet_descriptor(p->out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    report_progress_text(text, sizeof text, p, done, now, !p->terminal ? 0 : known ? size.ws_col - 1 : 79);
    fprintf(p->out, p->terminal ? "\r%s\033[K" : "%s\n", text);
    fflush(p->out);
    p->last = now;
    p->drawn = p->terminal;
}

void report_progress_end(report_progress *p)
{
    if (p->drawn)
        fprintf(p->out, "\r\033[K");
    fflush(p->out);
    p->drawn = false;
}
