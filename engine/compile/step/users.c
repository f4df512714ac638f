#include "engine/compile/step/users.h"

#include <stdlib.h>

#include "memory/log.h"

/* A storage's touches: positions of ops in ascending order, `write` those that write it. */
typedef struct storage_users {
    const tensor *root; /* NULL: the place is free */
    int count, filled, writes, writes_filled;
    int *at, *write;
} storage_users;

struct users {
    const program *of;
    storage_users *table; /* of `size` places, a power of two */
    unsigned long size;
    int *positions; /* of all */
};

/* The tensor whose bytes `t` has in the end. */
static const tensor *root_of(const tensor *t)
{
    while (t->base)
        t = t->base;
    return t;
}

/* Parameters that share a weight have a tensor each: persistent tensors have addresses by now. */
static bool same_bytes(const tensor *a, const tensor *b)
{
    return a == b || (a->address >= 0 && a->address == b->address && tensor_bytes(a) == tensor_bytes(b));
}

static unsigned long hash_of(const tensor *root)
{
    unsigned long key = root->address >= 0 ? (unsigned long)root->address : (unsigned long)root >> 4;
    return key * 0x9E3779B97F4A7C15ul >> 20;
}

/* The place of a tensor's storage, which is taken where it was free. */
static storage_users *place_of(const users *u, const tensor *t)
{
    const tensor *root = root_of(t);
    unsigned long i = hash_of(root) & (u->size - 1);
    while (u->table[i].root && !same_bytes(u->table[i].root, root))
        i = (i + 1) & (u->size - 1);
    u->table[i].root = root;
    return &u->table[i];
}

static void count_touch(const users *u, const tensor *t, bool writes)
{
    if (!t)
        return;
    storage_users *s = place_of(u, t);
    s->count++;
    s->writes += writes;
}

static void add_touch(const users *u, const tensor *t, bool writes, int at)
{
    if (!t)
        return;
    storage_users *s = place_of(u, t);
    s->at[s->filled++] = at;
    if (writes)
        s->write[s->writes_filled++] = at;
}

static unsigned long operands_of(const program *p)
{
    unsigned long operands = 0;
    for (int i = 0; i < p->count; i++) {
        for (int k = 0; k < OP_MAX_IN; k++)
            operands += p->ops[i]->in[k] != NULL;
        for (int k = 0; k < OP_MAX_OUT; k++)
            operands += p->ops[i]->out[k] != NULL;
    }
    return operands;
}

static void divide_positions(users *u)
{
    int *next = u->positions;
    for (unsigned long i = 0; i < u->size; i++) {
        storage_users *s = &u->table[i];
        s->at = next;
        s->write = next + s->count;
        next = s->write + s->writes;
    }
}

users *users_open(const program *p)
{
    users *u = must_alloc(sizeof *u);
    unsigned long operands = operands_of(p), size = 64;
    while (size < 2 * operands)
        size *= 2;
    *u = (users){.of = p,
                 .table = must_calloc(size, sizeof *u->table),
                 .size = size,
                 .positions = must_alloc((2 * operands + 1) * sizeof *u->positions)};
    for (int i = 0; i < p->count; i++) {
        for (int k = 0; k < OP_MAX_IN; k++)
            count_touch(u, p->ops[i]->in[k], false);
        for (int k = 0; k < OP_MAX_OUT; k++)
            count_touch(u, p->ops[i]->out[k], true);
    }
    divide_positions(u);
    for (int i = 0; i < p->count; i++) {
        for (int k = 0; k < OP_MAX_IN; k++)
            add_touch(u, p->ops[i]->in[k], false, i);
        for (int k = 0; k < OP_MAX_OUT; k++)
            add_touch(u, p->ops[i]->out[k], true, i);
    }
    return u;
}

void users_close(users *u)
{
    free(u->positions);
    free(u->table);
    free(u);
}

/* The first of these ascending positions behind `at`, or `none`. */
static int first_behind(const int *positions, int count, int at, int none)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (positions[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low < count ? positions[low] : none;
}

int users_first(const users *u, int at)
{
    const op *o = u->of->ops[at];
    int first = u->of->count;
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (o->out[k]) {
            const storage_users *s = place_of(u, o->out[k]);
            int user = first_behind(s->at, s->count, at, first);
            first = user < first ? user : first;
        }
    for (int k = 0; k < OP_MAX_IN; k++)
        if (o->in[k]) {
            const storage_users *s = place_of(u, o->in[k]);
            int writer = first_behind(s->write, s->writes, at, first);
            first = writer < first ? writer : first;
        }
    return first;
}
