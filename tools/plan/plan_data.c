#include "tools/plan/plan_parts.h"

#include <stdlib.h>

#include "engine/config/config.h"
#include "engine/data/samples.h"
#include "engine/run/batch.h"
#include "memory/log.h"

static void keep_silent(void *context, const char *words)
{
    (void)context;
    (void)words;
}

static status open_samples(samples **out, const config *c, stored *from)
{
    TRY(samples_open(out, &c->data.train, from, c->train.sequence, c->model.shape.vocab_size, c->data.shuffle,
                     (uint64_t)c->train.seed));
    if (c->data.skip_bad)
        samples_leave_out(*out, keep_silent, NULL);
    if (c->outer.every > 0) /* an island learns its slot when it joins: assume the first */
        samples_interleave(*out, 0, c->outer.slots);
    return STATUS_OK;
}

static void take_most(double *most, double value)
{
    *most = value > *most ? value : *most;
}

static status measure_steps(plan_data *out, const config *c, const compile_options *o, const samples *s)
{
    compile_options balanced = *o;
    if (o->document_mask)
        balanced.layout.balance = CONFIG_BALANCE_DOCUMENTS;
    int64_t first = 0;
    for (int step = 0; step < out->count; step++) {
        int batch = batch_ramp_samples(c, batch_ramp_stage_of(c, step));
        batch_facts of;
        TRY(batch_measure(&of, &balanced, s, first, config_microbatches(&o->grid, o->micro_batch, batch)));
        first += batch;
        plan_data_step *at = &out->steps[step];
        *at = (plan_data_step){of.imbalance_of_zigzag, o->document_mask ? of.imbalance : 0};
        out->mean.zigzag += at->zigzag;
        out->mean.documents += at->documents;
        take_most(&out->most.zigzag, at->zigzag);
        take_most(&out->most.documents, at->documents);
    }
    out->mean.zigzag /= out->count;
    out->mean.documents /= out->count;
    return STATUS_OK;
}

status plan_data_predict(plan_data *out, const config *c, const compile_options *o, int batches)
{
    samples *s = NULL;
    *out = (plan_data){0};
    if (o->grid.size[GRID_CONTEXT] == 1)
        return status_fail(STATUS_USAGE, "--data predicts how equal the work of context ranks is, and parallel.context "
                                         "is 1: set it, or leave out --data");
    stored *from = stored_open(c, 1);
    status got = open_samples(&s, c, from);
    if (got == STATUS_OK) {
        out->count = batches < c->train.steps ? batches : (int)c->train.steps;
        out->steps = must_calloc((unsigned long)out->count, sizeof *out->steps);
        got = measure_steps(out, c, o, s);
    }
    samples_close(s);
    stored_close(from);
    if (got != STATUS_OK)
        plan_data_free(out);
    return got;
}

void plan_data_free(plan_data *d)
{
    free(d->steps);
    *d = (plan_data){0};
}

static void print_balance(FILE *out, const char *name, double mean, double most, bool chosen)
{
    fprintf(out, "                  %-9s  %.3f x their mean, %.3f x in the worst step%s\n", name, mean, most,
            chosen ? "   <- this configuration" : "");
}

void plan_data_print(FILE *out, const plan_data *d, const config *c)
{
    bool documents = c->parallel.balance == CONFIG_BALANCE_DOCUMENTS;
    fprintf(out,
            "\ncontext work      the first %d global batches of %s%s, the first data rank's part: of the context\n",
            d->count, c->data.train.item[0].path, c->data.train.count > 1 ? " and the others" : "");
    fputs("                  ranks, the one with most attends to\n", out);
    print_balance(out, "halves", d->mean.zigzag, d->most.zigzag, !documents);
    if (d->mean.documents > 0)
        print_balance(out, "documents", d->mean.documents, d->most.documents, documents);
    else
        fputs("                  as no documents are masked (data.document_mask)\n", out);
}

static json_t *json_of(const plan_data_step *s)
{
    return json_pack("{s:f, s:o}", "halves", s->zigzag, "documents",
                     s->documents > 0 ? json_real(s->documents) : json_null());
}

void plan_data_facts(fact_writer *out, const plan_data *d, const config *c)
{
    json_t *steps = json_array();
    for (int i = 0; i < d->count; i++)
        json_array_append_new(steps, json_of(&d->steps[i]));
    json_auto_t *all =
        json_pack("{s:s, s:i, s:o, s:o, s:o}", "balance", config_word(c, "parallel.context_balance"), "batches",
                  d->count, "mean", json_of(&d->mean), "most", json_of(&d->most), "steps", steps);
    FACTS(out, FACT("\n context_imbalance", all));
}
