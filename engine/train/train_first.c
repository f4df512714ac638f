/* Checks once, after the third update of fresh optimizer states (run.first_steps), that every weight is trained: it has
 * a gradient, and the update changes its bits. first_steps.json gets the gradient's norm by family of weights. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/state/rank/state.h"
#include "engine/system/atomic.h"
#include "engine/train/report/training_report.h"
#include "engine/train/training_loop.h"
#include "kernels/philox.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"

enum {
    FIRST_UPDATES = 3,
    SAMPLES = 32,  /* elements of a piece of a weight, compared before and after the update */
    FAMILIES = 96, /* families that a rank tells of */
    SUSPECTS = 16, /* weights that a rank tells of */
    NAMED = 4,     /* weights that a warning names */
    NAME = 112,
};

/* A piece of a weight with elements that had a gradient in the update before, and their bits then. */
typedef struct noted {
    checkpoint_piece gradient, weight;
    int count;
    int64_t at[SAMPLES];
    uint32_t bits[SAMPLES];
} noted;

struct training_first {
    noted *piece;
    int count;
};

typedef struct family {
    char name[NAME]; /* the weights' with * for their numbers */
    double squares, weights, elements;
} family;

/* A weight of which a rank's pieces had no gradient, or have not changed. */
typedef struct suspect {
    char name[NAME];
    bool changed_not; /* it had a gradient */
} suspect;

/* One rank's findings. */
typedef struct findings {
    int families, suspects, more, experts, idle_experts;
    family family[FAMILIES];
    suspect suspect[SUSPECTS];
} findings;

void training_first_close(training *t)
{
    if (t->first)
        free(t->first->piece);
    free(t->first);
    t->first = NULL;
}

static void *borrow(const checkpoint_piece *p)
{
    return p->source.borrow(p->source.context, p->at.data, checkpoint_extent(p));
}

static void give_back(const checkpoint_piece *p, void *data)
{
    p->source.give_back(p->source.context, data, p->at.data, checkpoint_extent(p));
}

static uint32_t bits_at(const checkpoint_piece *p, const void *data, int64_t at)
{
    int64_t bytes = dtype_bytes(p->at.type);
    uint32_t bits = 0;
    memcpy(&bits, (const char *)data + at * bytes, (size_t)bytes);
    return bits;
}

/* ---- before the update ------------------------------------------------------------------------------------------- */

/* Notes elements of runs that are `apart` runs apart, as many of each as make SAMPLES. */
static void note_elements(noted *n, const float *gradient, int64_t runs, int64_t apart)
{
    int64_t each = 1 + SAMPLES / (runs / apart + 1);
    for (int64_t i = 0; i < runs; i += apart) {
        box_run r = box_run_at(&n->gradient.of, &n->gradient.at, i);
        int64_t taken = 0;
        for (int64_t k = 0; k < r.count && taken < each && n->count < SAMPLES; k++)
            if (gradient[r.at + k * r.stride] != 0) {
                n->at[n->count++] = r.at + k * r.stride;
                taken++;
            }
    }
}

static void note_piece(noted *n)
{
    int64_t runs = box_runs(&n->gradient.of, &n->gradient.at), apart = runs > SAMPLES ? runs / SAMPLES : 1;
    void *gradient = borrow(&n->gradient), *weight = borrow(&n->weight);
    note_elements(n, gradient, runs, apart);
    if (n->count == 0 && apart > 1)
        note_elements(n, gradient, runs, 1);
    for (int i = 0; i < n->count; i++)
        n->bits[i] = bits_at(&n->weight, weight, n->at[i]);
    give_back(&n->weight, weight);
    give_back(&n->gradient, gradient);
}

/* Two pieces of the same elements have the same strides: those of their parameter. */
static const checkpoint_piece *find_like(const checkpoint_piece *all, int count, const checkpoint_piece *p)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(all[i].of.name, p->of.name) && !memcmp(&all[i].of.part, &p->of.part, sizeof p->of.part) &&
            !memcmp(all[i].at.stride, p->at.stride, sizeof p->at.stride))
            return &all[i];
    return NULL;
}

static void note_all(training *t)
{
    AUTO_FREE checkpoint_piece *gradients = NULL, *weights = NULL;
    int gradient_count = 0, weight_count = 0;
    training_first_close(t);
    training_first *f = t->first = must_calloc(1, sizeof *f);
    state_pieces(&gradients, &gradient_count, &t->compiled, t->executor, STATE_GRADIENT, true);
    state_pieces(&weights, &weight_count, &t->compiled, t->executor, STATE_MASTER, true);
    state_pieces(&weights, &weight_count, &t->compiled, t->executor, STATE_MODEL, true);
    f->piece = must_calloc((unsigned long)gradient_count + 1, sizeof *f->piece);
    for (int i = 0; i < gradient_count; i++) {
        const checkpoint_piece *like = find_like(weights, weight_count, &gradients[i]);
        if (!like || checkpoint_extent(&gradients[i]) == 0)
            continue;
        f->piece[f->count] = (noted){.gradient = gradients[i], .weight = *like};
        note_piece(&f->piece[f->count++]);
    }
}

/* ---- after the update -------------------------------------------------------------------------------------------- */

static double sum_squares(const checkpoint_piece *p, const float *data, int threads)
{
    int64_t runs = box_runs(&p->of, &p->at);
    double sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
    for (int64_t i = 0; i < runs; i++) {
        box_run r = box_run_at(&p->of, &p->at, i);
        for (int64_t k = 0; k < r.count; k++)
            sum += (double)data[r.at + k * r.stride] * (double)data[r.at + k * r.stride];
    }
    return sum;
}

/* False if elements with a gradient in both updates all have the bits that they had. */
static bool has_changed(const noted *n, const float *gradient, const void *weight)
{
    bool judged = false;
    for (int i = 0; i < n->count; i++) {
        bool moves = gradient[n->at[i]] != 0;
        if (moves && bits_at(&n->weight, weight, n->at[i]) != n->bits[i])
            return true;
        judged |= moves;
    }
    return !judged;
}

static void add_to_family(findings *out, const char *name, double squares, double weights, double elements)
{
    char stem[NAME];
    int length = 0;
    for (const char *c = name; *c && length < NAME - 1; c++)
        if (!isdigit((unsigned char)*c))
            stem[length++] = *c;
        else if (length == 0 || stem[length - 1] != '*')
            stem[length++] = '*';
    stem[length] = 0;
    int k = 0;
    while (k < out->families && strcmp(out->family[k].name, stem) != 0)
        k++;
    if (k == FAMILIES)
        return;
    if (k == out->families)
        strcpy(out->family[out->families++].name, stem);
    out->family[k].squares += squares;
    out->family[k].weights += weights;
    out->family[k].elements += elements;
}

static void judge_piece(findings *out, const noted *n, double scale, bool updates, int threads)
{
    const rectangle *of = &n->gradient.of;
    void *gradient = borrow(&n->gradient), *weight = borrow(&n->weight);
    double squares = sum_squares(&n->gradient, gradient, threads) / (scale * scale);
    bool expert = strstr(of->name, ".experts."), zero = squares == 0,
         still = !zero && updates && !has_changed(n, gradient, weight);
    double elements = (double)box_volume(of->dims, of->part.size);
    give_back(&n->weight, weight);
    give_back(&n->gradient, gradient);
    add_to_family(out, of->name, squares, elements / (double)box_volume(of->dims, of->global), elements);
    out->experts += expert;
    out->idle_experts += expert && zero; /* no token has chosen it */
    if ((expert || !zero) && !still)
        return;
    out->more += out->suspects == SUSPECTS;
    if (out->suspects < SUSPECTS) {
        suspect *s = &out->suspect[out->suspects++];
        snprintf(s->name, sizeof s->name, "%s", of->name);
        s->changed_not = still;
    }
}

/* True if this rank's pieces of a suspect, if it has some, are suspect, too; some may have no gradient in any case. */
static bool agrees(const training_first *f, const findings *mine, const suspect *s)
{
    bool has = false;
    for (int i = 0; i < f->count && !has; i++)
        has = !strncmp(f->piece[i].gradient.of.name, s->name, NAME - 1);
    for (int i = 0; i < mine->suspects; i++)
        if (!strcmp(mine->suspect[i].name, s->name))
            return !mine->suspect[i].changed_not || s->changed_not;
    return !has;
}

static bool was_told(const findings *all, int rank, const char *name)
{
    for (int q = 0; q < rank; q++)
        for (int k = 0; k < all[q].suspects; k++)
            if (!strcmp(all[q].suspect[k].name, name))
                return true;
    return false;
}

/* Warns of weights that are suspects of one kind on all ranks that hold some of them. */
static void warn_of_suspects(training *t, const findings *all, const findings *mine, bool changed_not)
{
    int ranks = comm_ranks(t->world), count = 0, more = 0;
    AUTO_FREE char *names = must_strdup("");
    for (int r = 0; r < ranks; r++) {
        more += all[r].more;
        for (int i = 0; i < all[r].suspects; i++) {
            const suspect *s = &all[r].suspect[i];
            if (s->changed_not != changed_not || was_told(all, r, s->name) ||
                comm_all_sum(comm_world(t->world), agrees(t->first, mine, s)) < ranks)
                continue;
            AUTO_FREE char *longer = must_format("%s%s%s", names, count ? ", " : "", s->name);
            if (count++ < NAMED) {
                free(names);
                names = TAKE(longer);
            }
        }
    }
    if (count == 0 || comm_rank(t->world) > 0)
        return;
    AUTO_FREE char *others = must_format(", and %d%s other%s", count - NAMED, more > 0 ? " or more" : "",
                                         count - NAMED == 1 && more == 0 ? "" : "s");
    log_warn("step %lld: no %s %s%s%s (run.first_steps)", (long long)t->at.step,
             changed_not ? "update changes (is optimizer.lr too small for the precision of weights?)"
                         : "gradient reaches",
             names, count > NAMED ? others : "", changed_not ? "" : ": nothing trains them");
}

static status write_findings(const training *t, const findings *sum)
{
    json_t *root = json_pack("{s:I}", "step", (json_int_t)t->at.step), *list = json_object();
    for (int i = 0; i < sum->families; i++) {
        const family *f = &sum->family[i];
        json_object_set_new(list, f->name,
                            json_pack("{s:f, s:f, s:f}", "grad_norm", sqrt(f->squares), "weights", round(f->weights),
                                      "elements", f->elements));
    }
    json_object_set_new(root, "families", list);
    if (sum->experts > 0)
        json_object_set_new(root, "experts",
                            json_pack("{s:i, s:i}", "pieces", sum->experts, "without_tokens", sum->idle_experts));
    AUTO_FREE char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6)),
                   *path = must_format("%s/first_steps.json", t->folder);
    json_decref(root);
    return atomic_replace(path, text, (int64_t)strlen(text));
}

static void judge_all(training *t, double rate)
{
    int ranks = comm_ranks(t->world);
    const step_scalars *scalars = executor_at(t->executor, t->compiled.values.scalars);
    AUTO_FREE findings *all = must_calloc((unsigned long)ranks, sizeof *all), *mine = must_calloc(1, sizeof *mine);
    for (int i = 0; i < t->first->count; i++)
        judge_piece(mine, &t->first->piece[i], (double)scalars->loss_scale, rate > 0,
                    executor_context(t->executor)->threads);
    comm_all_gather_bytes(comm_world(t->world), all, mine, sizeof *mine);
    warn_of_suspects(t, all, mine, false);
    warn_of_suspects(t, all, mine, true);
    memset(mine, 0, sizeof *mine);
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < all[r].families; i++)
            add_to_family(mine, all[r].family[i].name, all[r].family[i].squares, all[r].family[i].weights,
                          all[r].family[i].elements);
        mine->experts += all[r].experts;
        mine->idle_experts += all[r].idle_experts;
    }
    if (comm_rank(t->world) == 0 && write_findings(t, mine) != STATUS_OK)
        log_warn("%s; the run goes on without it", status_message());
}

void training_watch_first(training *t, double rate, bool skipped)
{
    int64_t fresh = t->at.updates - t->at.moments;
    if (!t->config->run.first_steps || skipped || (fresh != FIRST_UPDATES - 1 && !(t->first && fresh == FIRST_UPDATES)))
        return;
    seal_open();
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step, "looking at what the first steps have trained");
    if (fresh < FIRST_UPDATES) {
        note_all(t);
    } else {
        judge_all(t, rate);
        training_first_close(t);
    }
    seal_close();
}
