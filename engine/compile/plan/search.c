#include "engine/compile/compile_find.h"
#include "engine/compile/plan/search.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "engine/compile/model/storage.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/schedule_make.h"

/* Error of estimates, as a factor: a layout is left out if its estimate is this much worse than the best that was
 * played, and not tried if it would take this much more than the memory. */
static const double SLACK_SECONDS = 1.03, SLACK_BYTES = 1.02;

enum { MOST_CHUNKS = 16, MOST_TOKENS = 1 << 17, ROUND = 4 };

/* ---- all layouts ------------------------------------------------------------------------------------------------- */

typedef struct list {
    search_layout *items;
    int count, room;
} list;

static void add_layout(list *all, search_layout l, const search_terms *t)
{
    static const recompute kinds[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    config c = search_configuration(t->config, &l, 0);
    grid g;
    c.memory.recompute = RECOMPUTE_NONE;
    if (config_check(&c) != STATUS_OK || config_make_grid(&g, &c, t->ranks, 0) != STATUS_OK)
        return;
    for (int i = 0; i < 4; i++) {
        if (all->count == all->room) {
            all->room = all->room ? 2 * all->room : 1024;
            all->items = must_realloc(all->items, (unsigned long)all->room * sizeof *all->items);
        }
        l.recompute = kinds[i % 3];
        l.budgeted = i == 3;
        all->items[all->count++] = l;
    }
}

static void add_schedules(list *all, search_layout l, const search_terms *t)
{
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        int needed = schedule_kind_chunks((schedule_kind)kind);
        const int stages = l.of.size[GRID_PIPELINE], chunks = l.of.virtual_stages;
        /* each list of actions by one of its names */
        if ((int)schedule_kind_of(schedule_kind_over((schedule_kind)kind, stages), chunks) != kind ||
            (needed && needed != chunks))
            continue;
        grid g = search_grid(&l);
        bool finds = stages > 1 && kind == (int)schedule_kind_of(SCHEDULE_1F1B, chunks); /* next: the same estimate */
        for (int found = 0; found <= finds; found++) {
            l.of.schedule = found ? SCHEDULE_AUTO : (schedule_kind)kind;
            for (int divided = 0; divided <= (stages > 1); divided++) {
                l.of.vocabulary = divided ? CONFIG_VOCABULARY_STAGES : CONFIG_VOCABULARY_ENDS;
                for (l.of.zero = 0; l.of.zero < (grid_group_size(&g, AXIS_GRADIENT) > 1 ? STORAGE_LEVELS : 1);
                     l.of.zero++)
                    add_layout(all, l, t);
            }
        }
    }
}

/* Adds the micro-batches and chunks of a layout with all sizes given. */
static void add_batches(list *all, search_layout l, const search_terms *t)
{
    int layers = t->config->model.shape.layers, stages = l.of.size[GRID_PIPELINE];
    /* one sample may be of any length; several are of no more than MOST_TOKENS */
    for (l.micro_batch = 1; search_microbatches(t->config, &l) > 0 &&
                            (l.micro_batch == 1 || l.micro_batch * t->config->train.sequence <= MOST_TOKENS);
         l.micro_batch *= 2)
        for (l.of.virtual_stages = 1; l.of.virtual_stages <= MOST_CHUNKS && l.of.virtual_stages * stages <= layers;
             l.of.virtual_stages++)
            if (stages > 1 || l.of.virtual_stages == 1)
                add_schedules(all, l, t);
}

/* Fewer tokens of a sample than this are no rank's alone: the messages of keys are waited for by too little work. */
enum { LEAST_CONTEXT = 4096 };

/* Returns the most useful ranks along a coordinate: ranks that divide a layer's weights wait for each other, and stay
 * on a node; the keys of long samples are worth a way between nodes (2407.21783 has 16 ranks of 8,192 tokens).
 * Coordinates that divide samples: none until the number of remaining ranks is known. */
static int64_t limit_along(int coordinate, const search_terms *t)
{
    switch (axis_coordinates[coordinate].divides) {
    case AXIS_DIVIDES_TOKENS:
        return t->config->train.sequence / LEAST_CONTEXT;
    case AXIS_DIVIDES_WEIGHTS:
        return t->prices->node_ranks;
    case AXIS_DIVIDES_LAYERS:
        return t->config->model.shape.layers;
    case AXIS_DIVIDES_SAMPLES:
        break;
    }
    return 1;
}

static int most_along(int coordinate, const search_terms *t)
{
    int64_t most = limit_along(coordinate, t);
    most = most > 1 ? most : 1;
    return (int)(most < t->ranks ? most : t->ranks);
}

/* Adds all sizes from a coordinate on, which are 1 in `l`; the remaining ranks divide the samples. Where ranks divide
 * weights, tokens between blocks are divided or not. */
static void add_sizes(list *all, search_layout l, const search_terms *t, int from)
{
    int *size = l.of.size;
    if (from == GRID_AXES) {
        size[GRID_DATA] = (int)(t->ranks / grid_ranks_of(size));
        /* Blocks of ranks that divide experts: whole ones of a stage, each rank with as many experts. */
        int experts = t->config->model.shape.experts, stage = t->ranks / l.of.size[GRID_PIPELINE];
        int most = experts < stage ? experts : stage;
        for (l.of.expert = 1; l.of.expert == 1 || l.of.expert <= most; l.of.expert++)
            if (stage % l.of.expert == 0 && experts % l.of.expert == 0)
                add_batches(all, l, t);
        return;
    }
    for (size[from] = 1; size[from] <= most_along(from, t); size[from]++) {
        if (t->ranks % grid_ranks_of(size) ||
            config_check_sizes(&t->config->model.shape, size, 1, t->config->train.sequence) != STATUS_OK)
            continue;
        bool divided = size[from] > 1 && axis_coordinates[from].divides == AXIS_DIVIDES_WEIGHTS;
        for (int sequence = 0; sequence <= divided; sequence++) {
            l.of.sequence = divided ? sequence : l.of.sequence;
            add_sizes(all, l, t, from + 1);
        }
    }
}

int search_all(search_layout **out, const search_terms *t)
{
    list all = {0};
    search_layout l = {.of = t->config->parallel};
    grid_single(l.of.size);
    add_sizes(&all, l, t, 0);
    *out = all.items;
    return all.count;
}

/* ---- estimates --------------------------------------------------------------------------------------------------- */

/* Returns the arena's room beside this many communicators: only programs know the number of communicators, and the size
 * of graphs, and only the best layouts have programs. */
static int64_t room_beside(const search_terms *t, int communicators)
{
    return t->memory - (t->prices->capacity > 0 ? reserve_bytes(t->prices->reserve, communicators, 0) : 0);
}

/* Returns the least room. Stages have several communicators; else there is one per axis along which layers communicate,
 * one for the gradients and one for the grid, which are the same if layers have none. */
int64_t search_budget(const search_terms *t, const search_layout *l)
{
    const int64_t mebibyte = 1 << 20;
    grid g = search_grid(l);
    int of_layers = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        of_layers += axis_within_layers((axis)a) && grid_group_size(&g, (axis)a) > 1;
    int64_t room = room_beside(t, g.size[GRID_PIPELINE] > 1 ? RESERVE_ROWS : of_layers > 0 ? of_layers + 2 : 1);
    return room - room % mebibyte;
}

/* Estimates with a budget: interpolates between keeping everything and nothing, by the bytes that do not fit. */
static bool estimate_budget(search_estimate *e, search_layout *l, double room, double enough)
{
    search_layout none = *l, full = *l;
    none.recompute = RECOMPUTE_NONE;
    full.recompute = RECOMPUTE_FULL;
    if (!search_estimate_layout(e, &none, enough) || !search_estimate_layout(e, &full, 1e300))
        return false;
    double share = none.bytes > full.bytes ? (none.bytes - room) / (none.bytes - full.bytes) : 1;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    l->seconds = none.seconds + share * (full.seconds - none.seconds);
    l->idle = none.idle + share * (full.idle - none.idle);
    l->bytes = full.bytes > room ? full.bytes : room;
    return share > 0; /* else it is the layout that keeps everything */
}

static bool is_found(const search_layout *l)
{
    return l->of.schedule == SCHEDULE_AUTO;
}

/* Sorts by estimate; schedules to be found come last. */
static int by_estimate(const void *a, const void *b)
{
    const search_layout *x = a, *y = b;
    if (is_found(x) != is_found(y))
        return is_found(x) ? 1 : -1;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* A layout and its lower bound of time, known before its schedule is simulated. */
typedef struct candidate {
    int index;
    double least;
} candidate;

/* Neighbours in the list, of which many share a schedule, stay neighbours. */
static int by_least(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->least != y->least)
        return x->least < y->least ? -1 : 1;
    return x->index - y->index;
}

static candidate *list_candidates(search_estimate *e, const search_layout *layouts, int count)
{
    candidate *all = must_alloc((unsigned long)(count + 1) * sizeof *all);
    for (int i = 0; i < count; i++) {
        search_layout l = layouts[i];
        l.recompute = l.budgeted ? RECOMPUTE_NONE : l.recompute;
        all[i] = (candidate){i, search_estimate_least(e, &l)};
    }
    qsort(all, (size_t)count, sizeof *all, by_least);
    return all;
}

/* Estimates the layouts not ruled out by their work alone: may[i] says of each whether it may fit; *least: the one that
 * needs least memory. */
static void estimate_candidates(bool *may, search_layout *layouts, int count, search_layout *least,
                                const search_terms *t, search_estimate *e)
{
    AUTO_FREE candidate *all = list_candidates(e, layouts, count);
    double best = 1e300, smallest = 1e300;
    for (int i = 0; i < count && all[i].least <= best * SLACK_SECONDS * SLACK_SECONDS; i++) {
        search_layout *l = &layouts[all[i].index];
        int communicators = 0; /* one for each coordinate leaves most room */
        for (int k = 0; k < GRID_AXES; k++)
            communicators += l->of.size[k] > 1;
        double room = (double)room_beside(t, communicators), enough = best * SLACK_SECONDS * SLACK_SECONDS;
        bool known = l->budgeted ? estimate_budget(e, l, (double)search_budget(t, l), enough)
                                 : search_estimate_layout(e, l, enough);
        if (!known)
            continue;
        if (l->bytes < smallest && !is_found(l)) {
            smallest = l->bytes;
            *least = *l;
        }
        may[all[i].index] = l->bytes <= room * SLACK_BYTES;
        best = l->bytes <= room && l->seconds < best && !is_found(l) ? l->seconds : best;
    }
}

/* Estimates, and sorts the layouts that may fit, the best first; *least: the one that needs least memory. */
static int estimate_layouts(search_layout *layouts, int count, search_layout *least, const search_terms *t)
{
    search_estimate *e = search_estimate_open(t->config, t->prices, t->backend, t->law);
    AUTO_FREE bool *may = must_calloc((unsigned long)count + 1, sizeof *may);
    int kept = 0;
    search_estimate_prepare(e, layouts, count);
    estimate_candidates(may, layouts, count, least, t, e);
    for (int i = 0; i < count; i++)
        if (may[i])
            layouts[kept++] = layouts[i];
    search_estimate_close(e);
    if (kept > 0)
        qsort(layouts, (size_t)kept, sizeof *layouts, by_estimate);
    return kept;
}

/* ---- exact ------------------------------------------------------------------------------------------------------- */

static void take_result(search_result *out, const plan *p, const search_terms *t)
{
    const plan_rank *most = plan_neediest(p);
    out->seconds = p->step_seconds;
    out->mfu = p->mfu;
    out->bubble = p->timing.bubble;
    for (int i = 0; i < p->timing.count; i++)
        out->compute += p->timing.ranks[i].compute / p->timing.count;
    for (int a = 0; a < AXIS_COUNT; a++)
        out->exposed[a] = p->timing.exposed[a];
    out->arena = most->arena;
    out->beside = t->prices->capacity > 0 ? plan_rank_beside(most, t->prices->reserve) : 0;
    out->fits = out->arena + out->beside <= t->memory;
}

static bool is_known(const search *among, const search_layout *l)
{
    bool known = false;
    for (int i = 0; among && i < among->count; i++)
        known |= search_same(&among->results[i].layout, l);
    return known;
}

static status plan_layout(search_result *out, const search_terms *t, const search_layout *l, const search *known)
{
    config c = search_configuration(t->config, l, search_budget(t, l));
    grid g;
    compile_options o;
    RELEASED_BY(schedule_free) schedule found = {0};
    RELEASED_BY(plan_free) plan p = {0};
    *out = (search_result){.layout = *l};
    TRY(config_make_grid(&g, &c, t->ranks, 0));
    TRY(compile_options_from(&o, &c, &g, t->backend, 1));
    o.evaluate = c.data.validation.count > 0 && c.evaluate.every > 0;
    o.higher = HIGHER_SHORT;
    if (is_found(l)) { /* often a named schedule: then the layout is that one's, which may be known already */
        TRY(compile_find(&found, &o));
        o.found = &found;
        out->layout.of.schedule = schedule_kind_of(found.kind, l->of.virtual_stages);
        if (is_known(known, &out->layout))
            return status_fail(STATUS_USAGE, "a schedule was found that is known already");
    }
    profile prices = *t->prices;
    load_outcome load = {0};
    if (t->law)
        load_expect(&load, t->law, &o);
    prices.load = load.slowest;
    TRY(plan_make_step(&p, &o, &prices, false));
    take_result(out, &p, t);
    out->replays = load.replays;
    out->seconds *= 1 + load.replays;
    out->mfu /= 1 + load.replays;
    return STATUS_OK;
}

status search_exact(search_result *out, const search_terms *t, const search_layout *l)
{
    return plan_layout(out, t, l, NULL);
}

static int by_seconds(const void *a, const void *b)
{
    const search_result *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return by_estimate(&x->layout, &y->layout);
}

/* Layouts with estimates off for the same reasons, as their links carry the same; `ratio` is the least error of the
 * played ones. */
typedef struct family {
    int size[GRID_AXES]; /* but for the number of other samples */
    int expert;
    int kind;     /* schedule, with or without a divided vocabulary, with or without a budget */
    double ratio; /* least seconds played / estimated; 0: none was */
    int of_round;
} family;

enum { SAME_FAMILY = 2 };

/* The layouts to try, in this order: by their estimates, corrected by the family's played times, and at most
 * SAME_FAMILY of a family in a round; each round is followed by its misfits again, with a budget: bytes that the order
 * holds, unknown to estimates, are then given up, or made room for. Layouts that would keep everything are tried with a
 * budget at once: where it fits, the program is the same. */
typedef struct tries {
    const search_layout *layouts;
    bool *taken;
    int count;
    search_layout *budgeted; /* tried, or to be: from `next` on */
    int budgeted_count, next;
    family *families;
    int family_count, *family_at; /* [count]: of each layout */
} tries;

static int family_of(tries *t, const search_layout *l)
{
    bool budgeted = l->budgeted || l->recompute == RECOMPUTE_NONE; /* which is tried so */
    family f = {.expert = l->of.expert,
                .kind = ((int)l->of.schedule * 2 + search_divides_vocabulary(l)) * 2 + budgeted};
    for (int i = 0; i < GRID_AXES; i++)
        f.size[i] = axis_coordinates[i].divides == AXIS_DIVIDES_SAMPLES ? 1 : l->of.size[i];
    int i = 0;
    for (; i < t->family_count; i++)
        if (t->families[i].kind == f.kind && t->families[i].expert == f.expert &&
            !memcmp(t->families[i].size, f.size, sizeof f.size))
            return i;
    t->families = must_realloc(t->families, (unsigned long)++t->family_count * sizeof *t->families);
    t->families[i] = f;
    return i;
}

static double corrected_seconds(const tries *t, int layout)
{
    double ratio = t->families[t->family_at[layout]].ratio, seconds = t->layouts[layout].seconds;
    return ratio > 0 ? seconds * ratio : seconds;
}

/* Returns the best remaining layout of a family with fewer than SAME_FAMILY in the round; -1: none. */
static int best_left(const tries *t, double enough)
{
    int best = -1;
    for (int i = 0; i < t->count && t->layouts[i].seconds <= enough; i++)
        if (!t->taken[i] && t->families[t->family_at[i]].of_round < SAME_FAMILY &&
            (best < 0 || corrected_seconds(t, i) < corrected_seconds(t, best)))
            best = i;
    return best;
}

/* Adds the layout with a budget, unless that has been tried. */
static void try_budgeted(tries *t, const search_layout *of)
{
    search_layout l = *of;
    l.recompute = RECOMPUTE_NONE;
    l.budgeted = true;
    for (int i = 0; i < t->budgeted_count; i++)
        if (search_same(&t->budgeted[i], &l))
            return;
    t->budgeted = must_realloc(t->budgeted, (unsigned long)(t->budgeted_count + 1) * sizeof *t->budgeted);
    t->budgeted[t->budgeted_count++] = l;
}

/* Takes the next layouts, at most `room`, none with an estimate certainly worse than `best`. */
static int next_round(search_layout *out, tries *t, int room, double best)
{
    int n = 0;
    for (int i = 0; i < t->family_count; i++)
        t->families[i].of_round = 0;
    while (n < room) {
        if (t->next < t->budgeted_count) {
            out[n++] = t->budgeted[t->next++];
            continue;
        }
        int i = best_left(t, best * SLACK_SECONDS);
        if (i < 0 && n > 0)
            break;
        for (int k = 0; i < 0 && k < t->family_count; k++)
            t->families[k].of_round = 0; /* no others are left */
        i = i < 0 ? best_left(t, best * SLACK_SECONDS) : i;
        if (i < 0)
            break;
        t->taken[i] = true;
        t->families[t->family_at[i]].of_round++;
        if (t->layouts[i].recompute == RECOMPUTE_NONE)
            try_budgeted(t, &t->layouts[i]);
        else
            out[n++] = t->layouts[i];
    }
    return n;
}

/* `all`: gets the layouts that do not fit, to be tried with a budget; or NULL. */
static void play_round(search *out, tries *all, const search_terms *t, const search_layout *these, int count)
{
    search_result round[ROUND];
    status ok[ROUND];
    int order[ROUND];
    /* Layouts with the most stages, which take longest, go first: so threads end at about the same time. */
    for (int i = 0; i < count; i++) {
        int k = i;
        for (; k > 0 && these[order[k - 1]].of.size[GRID_PIPELINE] < these[i].of.size[GRID_PIPELINE]; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (int k = 0; k < count; k++)
        ok[order[k]] = plan_layout(&round[order[k]], t, &these[order[k]], out);
    out->results = must_realloc(out->results, (unsigned long)(out->count + count) * sizeof *out->results);
    for (int i = 0; all && i < count; i++)
        if (ok[i] == STATUS_OK && these[i].seconds > 0) {
            family *f = &all->families[family_of(all, &these[i])];
            double ratio = round[i].seconds / these[i].seconds;
            f->ratio = f->ratio > 0 && f->ratio < ratio ? f->ratio : ratio;
        }
    for (int i = 0; i < count; i++)
        if (ok[i] == STATUS_OK && round[i].fits) {
            if (!is_known(out, &round[i].layout)) /* a named schedule can have been found before its turn */
                out->results[out->count++] = round[i];
        } else if (all && !these[i].budgeted) {
            try_budgeted(all, &these[i]);
        }
    out->exact += count;
    qsort(out->results, (size_t)out->count, sizeof *out->results, by_seconds);
}

/* The number of exact programs depends on the layout that seems best, not on a clock: the same on every machine. */
static int count_programs(const search_terms *t, const search_layout *best)
{
    int64_t most = SEARCH_WORK / ((int64_t)t->config->model.shape.layers * search_microbatches(t->config, best));
    return most < SEARCH_LEAST ? SEARCH_LEAST : most > SEARCH_MOST ? SEARCH_MOST : (int)most;
}

static void log_progress(const search *s, const search_terms *t, int shown)
{
    if (t->progress)
        t->progress(t->context, s->exact, shown, s->count ? &s->results[0] : NULL);
}

/* Plays rounds of a fixed size, so that no clock decides which layouts are left out. Goes past `until` only until
 * something fits. */
static void play_named(search *out, tries *all, const search_terms *t, int until, int shown)
{
    search_layout these[ROUND];
    for (;;) {
        int left = out->count ? until - out->exact : ROUND;
        int n = next_round(these, all, left < ROUND ? left : ROUND, out->count ? out->results[0].seconds : 1e300);
        if (n <= 0)
            break;
        play_round(out, all, t, these, n);
        log_progress(out, t, shown);
    }
}

/* Where the same layout was played with other schedules, the best of them with half its bubble filled says more than an
 * estimate. */
static void estimate_again(search_layout *l, const search *played)
{
    double best = 1e300;
    for (int i = 0; i < played->count; i++) {
        const search_result *r = &played->results[i];
        double seconds = r->seconds * (1 - r->bubble / 2);
        search_layout same = r->layout;
        same.of.schedule = l->of.schedule;
        if (search_same(&same, l))
            best = seconds < best ? seconds : best;
    }
    l->seconds = best < 1e300 ? best : l->seconds;
}

/* Finds schedules last, for the layouts that may become the fastest: to find one takes as long as to play a program. A
 * layout that would keep everything is tried with a budget alone, which leaves it more room. */
static void play_found(search *out, const search_terms *t, search_layout *layouts, int count, int room, int shown)
{
    int kept = 0, at = 0;
    for (int i = 0; out->count && i < count; i++) {
        search_layout l = layouts[i];
        estimate_again(&l, out);
        if ((l.budgeted || l.recompute != RECOMPUTE_NONE) && l.seconds < out->results[0].seconds)
            layouts[kept++] = l;
    }
    if (kept > 0)
        qsort(layouts, (size_t)kept, sizeof *layouts, by_estimate);
    for (; at < kept && at < room; at += ROUND) {
        int left = kept < room ? kept - at : room - at;
        play_round(out, NULL, t, &layouts[at], left < ROUND ? left : ROUND);
        log_progress(out, t, shown);
    }
}

/* Plays named schedules first, then found ones; programs left over go back to the named ones. */
static void play_best(search *out, const search_terms *t, search_layout *layouts, int count)
{
    int named = 0;
    while (named < count && !is_found(&layouts[named]))
        named++;
    int most = t->most || !named ? t->most : count_programs(t, &layouts[0]);
    int shown = most < count ? most : count, share = most / SEARCH_FOUND; /* programs left to found schedules */
    int found = named == count ? 0 : share > 2 ? share : most > 2 ? 2 : 0;
    tries all = {.layouts = layouts, .count = named};
    all.taken = must_calloc((unsigned long)named + 1, sizeof *all.taken);
    all.family_at = must_calloc((unsigned long)named + 1, sizeof *all.family_at);
    for (int i = 0; i < named; i++)
        all.family_at[i] = family_of(&all, &layouts[i]);
    play_named(out, &all, t, most - found, shown);
    play_found(out, t, &layouts[named], count - named, found, shown);
    play_named(out, &all, t, most, shown);
    free(all.taken);
    free(all.family_at);
    free(all.families);
    free(all.budgeted);
}

status search_run(search *out, const search_terms *t)
{
    search_layout *layouts, least = {0};
    *out = (search){0};
    if (t->config->model.shape.layers < 4)
        return status_fail(STATUS_USAGE, "a search needs model.layers of at least 4");
    out->layouts = search_all(&layouts, t);
    out->within = estimate_layouts(layouts, out->layouts, &least, t);
    play_best(out, t, layouts, out->within);
    free(layouts);
    if (out->count || !least.micro_batch)
        return out->count ? STATUS_OK
                          : status_fail(STATUS_USAGE, "%d ranks have no layout of this configuration", t->ranks);
    least.budgeted = false;
    TRY(search_exact(&out->least, t, &least));
    if (out->least.fits) {
        out->results = must_realloc(out->results, sizeof *out->results);
        out->results[out->count++] = out->least;
    }
    return STATUS_OK;
}

void search_free(search *s)
{
    free(s->results);
    *s = (search){0};
}
