/* The rules of the optimizer's update in float64: see reference.h. */
#include "tests/oracle/reference.h"

#include <math.h>

#include "kernels/host_device.h"

/* What one element of an update reads and writes, and the numbers that all elements share. */
typedef struct element {
    double g, *weight, *master, *state[2]; /* g: the gradient times the factor, or the direction */
    const op *o;
    const step_scalars *s;
} element;

/* `rule` on every element of an op: gradient, scalars, control -> weight, master, states. */
static void each(const op *o, const run_context *r, void (*rule)(element *e))
{
    const tensor *gradient = o->in[0];
    const double *control = reference_row(o->in[2], r, 0);
    element e = {.o = o, .s = tensor_at(o->in[1], r->arena)};
    for (int64_t i = 0; i < gradient->shape[0] && control[CONTROL_SKIP] == 0; i++)
        for (int64_t j = 0; j < reference_width(gradient); j++) {
            e.g = reference_row(gradient, r, i)[j] * (o->kind == OP_muon ? 1 : control[CONTROL_FACTOR]);
            e.weight = o->out[0] ? &reference_row(o->out[0], r, i)[j] : NULL;
            e.master = &reference_row(o->out[1], r, i)[j];
            for (int k = 0; k < 2; k++)
                e.state[k] = o->out[2 + k] ? &reference_row(o->out[2 + k], r, i)[j] : NULL;
            rule(&e);
            if (o->in[3])
                *e.master *= *reference_row(o->in[3], r, i);
            if (e.weight && o->kind != OP_muon_momentum)
                *e.weight = *e.master;
        }
}

static double decay(const element *e)
{
    return e->o->at.update.decay ? e->s->weight_decay : 0;
}

static void adamw(element *e)
{
    const step_scalars *s = e->s;
    double beta1 = s->beta1, beta2 = s->beta2, *m = e->state[0], *v = e->state[1];
    *m = beta1 * *m + (1 - beta1) * e->g;
    *v = beta2 * *v + (1 - beta2) * e->g * e->g;
    double m_hat = *m / (1 - pow(beta1, (double)s->updates)), v_hat = *v / (1 - pow(beta2, (double)s->updates));
    *e->master -= (double)s->lr * (m_hat / (sqrt(v_hat) + (double)s->epsilon) + decay(e) * *e->master);
}

void reference_adamw(const op *o, const run_context *r)
{
    each(o, r, adamw);
}

static void lion(element *e)
{
    double beta1 = e->s->beta1, beta2 = e->s->beta2, *m = e->state[0];
    double direction = beta1 * *m + (1 - beta1) * e->g, sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
    *e->master -= (double)e->s->lr * (sign + decay(e) * *e->master);
    *m = beta2 * *m + (1 - beta2) * e->g;
}

void reference_lion(const op *o, const run_context *r)
{
    each(o, r, lion);
}

static void sgd(element *e)
{
    double momentum = e->s->momentum, *m = e->state[0];
    *m = momentum * *m + e->g;
    *e->master -= (double)e->s->lr * (e->o->at.update.nesterov ? e->g + momentum * *m : *m);
}

void reference_sgd(const op *o, const run_context *r)
{
    each(o, r, sgd);
}

/* Its x and m stand where others have weight and master. */
static void muon_momentum(element *e)
{
    double momentum = e->s->momentum, *x = e->weight, *m = e->master;
    *m += (1 - momentum) * (e->g - *m);
    *x = e->o->at.update.nesterov ? e->g + momentum * (*m - e->g) : *m;
}

void reference_muon_momentum(const op *o, const run_context *r)
{
    for (int64_t i = 0; i < o->out[0]->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(o->out[0]); j++)
            reference_row(o->out[0], r, i)[j] = 0;
    each(o, r, muon_momentum);
}

void reference_muon_scale(const op *o, const run_context *r)
{
    const tensor *gram = o->in[0];
    double trace = 0;
    for (int64_t i = 0; i < gram->shape[0]; i++)
        trace += reference_row(gram, r, i)[i];
    double scale = 1 / fmax(sqrt(trace), (double)o->at.update.epsilon);
    for (int64_t i = 0; i < gram->shape[0]; i++)
        for (int64_t j = 0; j < gram->shape[1]; j++)
            reference_row(o->out[0], r, i)[j] = reference_row(gram, r, i)[j] * scale * scale;
    *reference_row(o->out[1], r, 0) = scale;
}

void reference_muon_polynomial(const op *o, const run_context *r)
{
    double scale = o->in[2] ? *reference_row(o->in[2], r, 0) : 1;
    for (int64_t i = 0; i < o->in[0]->shape[0]; i++)
        for (int64_t j = 0; j < o->in[0]->shape[1]; j++) {
            double value = MUON_B * reference_row(o->in[0], r, i)[j] + MUON_C * reference_row(o->in[1], r, i)[j];
            reference_row(o->out[0], r, i)[j] = scale * (value + (i == j ? MUON_A : 0));
        }
}

static void muon(element *e)
{
    double lr = e->s->muon_lr;
    *e->master = (1 - lr * decay(e)) * *e->master - lr * (double)e->o->at.update.scale * e->g;
}

void reference_muon(const op *o, const run_context *r)
{
    each(o, r, muon);
}
