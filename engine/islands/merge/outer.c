/* Sets up the core: units, planned memory, sections of checkpoints, data served by the transport. */
#include "engine/islands/merge/outer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/rule.h"
#include "engine/state/rank/state.h"
#include "memory/arena.h"
#include "memory/log.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A rank's outer state, in the order of the arena. */
typedef struct layout {
    int64_t elements, largest; /* elements of the rank's units; of the largest unit */
    int64_t coded;             /* size of its largest fragment's encoding, bytes */
    int64_t products;          /* bytes of outer.robust's products of that fragment's units */
    int64_t bytes;
} layout;

enum { ALIGNMENT = 64 };

/* The state that a job keeps of every element, and the number of islands with encoded fragments in its memory, its own
 * included: all, but with a server, which keeps the momentum, an island has only its own. */
typedef struct part_of_job {
    bool rest, momentum, error;
    int undo; /* copies for outer.undo: the reference, and the momentum if there is one */
    int encoded;
    int scratch; /* [largest] */
    int each;    /* [largest]: changes to combine by coordinate */
} part_of_job;

static int64_t align_bytes(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static compress_method method_of(const config *c)
{
    return (compress_method){(compress_kind)c->outer.compress, c->outer.density};
}

static part_of_job part_of(const config *c, bool holds)
{
    bool server = c->outer.topology == CONFIG_OUTER_SERVER;
    return (part_of_job){.rest = !holds,
                         .momentum = c->outer.optimizer == CONFIG_OUTER_NESTEROV && holds == server,
                         .error = c->outer.compress != COMPRESS_NONE && !holds,
                         .undo = c->outer.undo ? 1 + (c->outer.optimizer == CONFIG_OUTER_NESTEROV) : 0,
                         .encoded = server && !holds ? 1 : c->outer.slots,
                         .scratch = holds ? 2 : 3,
                         .each = robust_by_coordinate((robust_kind)c->outer.robust) ? c->outer.slots : 0};
}

static layout lay_out(const config *c, bool holds, const unit *units, const int *owner, int count, int rank)
{
    layout l = {0};
    part_of_job part = part_of(c, holds);
    compress_method method = method_of(c);
    for (int f = 0; f < c->outer.fragments; f++) {
        int64_t coded = 0, products = 0;
        for (int u = 0; u < count; u++) {
            bool mine = owner[u] == rank && units[u].fragment == f;
            products += mine ? outer_product_count(c, c->outer.slots) * (int64_t)sizeof(double) : 0;
            l.elements += mine ? units[u].elements : 0;
            coded += mine ? compress_bytes(&method, units[u].elements) : 0;
            l.largest = units[u].elements > l.largest ? units[u].elements : l.largest;
        }
        l.coded = coded > l.coded ? coded : l.coded;
        l.products = products > l.products ? products : l.products;
    }
    l.bytes = (1 + part.rest + part.momentum + part.error + part.undo) * align_bytes(4 * l.elements) +
              (part.scratch + part.each) * align_bytes(4 * l.largest) + part.encoded * align_bytes(l.coded) +
              align_bytes(l.products);
    return l;
}

/* Counts the bytes on the wire: a request and a reply's header for each slice of a unit. */
static int64_t on_the_wire(int64_t bytes)
{
    return bytes + (bytes + WIRE_SLICE - 1) / WIRE_SLICE * 2 * WIRE_HEADER;
}

islands_plan islands_plan_of(const config *c, int ranks, double step_seconds, double bits_a_second)
{
    int tensor_count, count;
    int64_t fragment[64] = {0};
    bool server = c->outer.topology == CONFIG_OUTER_SERVER;
    islands_plan p = {.queued = TRANSPORT_QUEUED};
    compress_method method = method_of(c);
    names_tensor *tensors = names_list(&tensor_count, &c->model.shape);
    AUTO_FREE unit *units = units_list(&count, tensors, tensor_count, c->outer.fragments);
    AUTO_FREE int *owner = must_alloc((unsigned long)count * sizeof *owner);
    units_own(owner, units, count, c->outer.fragments, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        int64_t bytes = lay_out(c, false, units, owner, count, rank).bytes;
        p.arena = bytes > p.arena ? bytes : p.arena;
    }
    for (int u = 0; u < count; u++) {
        fragment[units[u].fragment] += on_the_wire(compress_bytes(&method, units[u].elements));
        p.model += server ? on_the_wire(4 * units[u].elements) : 0; /* an island receives it in fp32 */
    }
    if (server) {
        units_own(owner, units, count, c->outer.fragments, 1);
        p.server_arena = lay_out(c, true, units, owner, count, 0).bytes;
    }
    int others = server ? 1 : c->outer.topology == CONFIG_OUTER_GOSSIP ? c->outer.group - 1 : c->outer.slots - 1;
    double all = c->outer.every * step_seconds, hidden = c->outer.delay * step_seconds, waits = 0;
    for (int f = 0; f < c->outer.fragments; f++) {
        double seconds = (double)(fragment[f] * others + p.model) * 8 / bits_a_second;
        p.change += fragment[f];
        p.seconds += seconds;
        waits += seconds > hidden ? seconds - hidden : 0; /* outer.delay steps hide a merge's transfer */
    }
    p.sent = p.change * others;
    p.received = server ? p.model : p.sent;
    p.computing = all / (all + waits);
    if (c->outer.noise > 0)
        p.epsilon = privacy_epsilon((int64_t)c->train.steps / c->outer.every * c->outer.fragments, c->outer.noise,
                                    ISLANDS_DELTA);
    names_free(tensors, tensor_count);
    return p;
}

static void *take_bytes(char **at, int64_t bytes)
{
    char *here = *at;
    *at += align_bytes(bytes);
    return here;
}

/* Opens the arena and touches every page now, rather than at a merge. */
static status open_memory(outer *o, bool server)
{
    outer_memory *m = &o->memory;
    part_of_job part = part_of(o->config, server);
    layout l = lay_out(o->config, server, o->units.list, o->units.owner, o->units.count, comm_rank(o->world));
    TRY(arena_open(&m->arena, l.bytes));
    char *at = arena_base(m->arena);
    memset(at, 0, (size_t)l.bytes);
    o->units.elements = l.elements;
    m->reference = take_bytes(&at, 4 * l.elements);
    m->rest = part.rest ? take_bytes(&at, 4 * l.elements) : NULL;
    m->momentum = part.momentum ? take_bytes(&at, 4 * l.elements) : NULL;
    m->error = part.error ? take_bytes(&at, 4 * l.elements) : NULL;
    m->reference_before = part.undo > 0 ? take_bytes(&at, 4 * l.elements) : NULL;
    m->momentum_before = part.undo > 1 ? take_bytes(&at, 4 * l.elements) : NULL;
    m->values = take_bytes(&at, 4 * l.largest);
    m->other = take_bytes(&at, 4 * l.largest);
    for (int i = 0; i < part.each; i++)
        m->each[i] = take_bytes(&at, 4 * l.largest);
    m->products = take_bytes(&at, l.products);
    m->scratch = part.scratch > 2 ? take_bytes(&at, 4 * l.largest) : NULL;
    m->out = server ? NULL : take_bytes(&at, l.coded);
    for (int s = 0; s < part.encoded - !server; s++)
        m->in[s] = take_bytes(&at, l.coded);
    return STATUS_OK;
}

static void list_mine(outer *o)
{
    int64_t at = 0, coded[64] = {0};
    o->units.mine = must_calloc((unsigned long)o->units.count, sizeof *o->units.mine);
    o->units.mine_of = must_alloc((unsigned long)o->units.count * sizeof *o->units.mine_of);
    for (int u = 0; u < o->units.count; u++) {
        int f = o->units.list[u].fragment;
        o->units.mine_of[u] = -1;
        if (o->units.owner[u] != comm_rank(o->world))
            continue;
        int64_t bytes = compress_bytes(&o->method, o->units.list[u].elements);
        o->units.mine_of[u] = o->units.mine_count;
        o->units.mine[o->units.mine_count++] = (outer_unit){u, at, coded[f], bytes};
        at += o->units.list[u].elements;
        coded[f] += bytes;
    }
    o->fetches.parts =
        must_calloc((unsigned long)(o->units.mine_count * o->config->outer.slots) + 1, sizeof *o->fetches.parts);
}

rule outer_rule_of(const outer *o, const outer_unit *m)
{
    const names_tensor *t = &o->units.tensors[o->units.list[m->unit].tensor];
    return parts_row_of(t->slot)->divided == PARTS_COUNTED ? (rule){RULE_AVERAGE, 1, 0} : o->rule;
}

void outer_copy(const outer *o, float *to, const float *from)
{
    if (to && from)
        memcpy(to, from, (size_t)o->units.elements * sizeof *to);
}

/* ---- sections of checkpoints ------------------------------------------------------------------------------------- */

enum { SECTIONS = 3 };

static float *section_at(const outer *o, int i)
{
    return i == 0 ? o->memory.reference : i == 1 ? o->memory.momentum : o->memory.error;
}

status outer_read_sections(outer *o, checkpoint *from)
{
    for (int i = 0; i < o->memory.piece_count; i++) {
        const checkpoint_piece *p = &o->memory.pieces[i];
        bool there = false;
        for (int k = 0; k < checkpoint_tensors(from) && !there; k++)
            there = !strcmp(checkpoint_at(from, k)->section, p->section);
        if (there)
            TRY(checkpoint_read(from, p->section, &p->of, &p->at));
    }
    return STATUS_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Hashes all settings that islands must share (FNV-1a). */
static uint64_t fingerprint_of(const outer *o)
{
    const config *c = o->config;
    bool judges = c->outer.robust == CONFIG_ROBUST_TRIMMED; /* formerly by coordinate alone */
    AUTO_FREE char *robust = must_format(" robust %d%s", (int)c->outer.robust, judges ? " judged" : "");
    AUTO_FREE char *words = must_format(
        "%d %d %a %a %d %d %d %a %a %a %d %d %lld %lld %d %d %d %d %d %a %a%s%s", c->outer.every,
        (int)c->outer.optimizer, c->outer.lr, c->outer.momentum, c->outer.fragments, c->outer.delay,
        (int)c->outer.compress, c->outer.density, c->outer.mix, c->outer.error_decay, (int)c->outer.weights,
        c->outer.slots, (long long)c->train.seed, (long long)c->train.sequence, c->data.shuffle, c->outer.private_data,
        (int)c->outer.topology, c->outer.group, c->outer.staleness, c->outer.clip, c->outer.noise,
        c->outer.robust ? robust : "", /* runs without it keep the fingerprint that they had before */
        c->outer.undo ? " undo" : "");
    uint64_t hash = 14695981039346656037u;
    for (int i = -1; i < o->units.tensor_count; i++) {
        const char *text = i < 0 ? words : o->units.tensors[i].name;
        for (; *text; text++)
            hash = (hash ^ (uint8_t)*text) * 1099511628211u;
        for (int d = 0; i >= 0 && d < o->units.tensors[i].dims; d++)
            hash = (hash ^ (uint64_t)o->units.tensors[i].shape[d]) * 1099511628211u;
    }
    return hash;
}

/* True if the requested state is available. Gossiping islands differ, so any state will do; a server's must be no
 * older. An island with a server gives none, since the server does. */
static bool serves_state(const outer *o, int64_t merge)
{
    bool server = o->slot == ROSTER_SERVER;
    if (o->config->outer.topology == CONFIG_OUTER_GOSSIP)
        return o->serves.state >= 0;
    if (o->config->outer.topology == CONFIG_OUTER_SERVER)
        return server && merge <= o->serves.state;
    return merge == o->serves.state;
}

static const void *serve_bytes(void *context, const wire_message *m)
{
    const outer *o = context;
    if (m->unit >= o->units.count || o->units.mine_of[m->unit] < 0)
        return NULL;
    const outer_unit *u = &o->units.mine[o->units.mine_of[m->unit]];
    bool change = m->kind == WIRE_CHANGE;
    int64_t bytes = change ? u->coded_bytes : 4 * o->units.list[m->unit].elements;
    const char *base = change                      ? (const char *)o->memory.out
                       : m->kind == WIRE_REFERENCE ? (const char *)o->memory.reference
                                                   : (const char *)o->memory.momentum;
    if (!base || m->first > bytes || m->bytes > bytes - m->first)
        return NULL;
    bool there = change ? m->merge == o->serves.merge && m->offer == o->serves.offer &&
                              o->units.list[m->unit].fragment == o->serves.fragment
                        : serves_state(o, m->merge);
    return there ? base + (change ? u->coded : 4 * u->at) + m->first : NULL;
}

static status open_transport(outer *o)
{
    const config *c = o->config;
    bool pushes = c->outer.topology == CONFIG_OUTER_SERVER && o->slot != ROSTER_SERVER;
    TRY(etcd_take_login(&o->login, c->outer.credentials));
    TRY(keys_open(&o->keys, c->outer.keys));
    const transport_options options = {.keys = &o->keys,
                                       .address = c->outer.address,
                                       .towards = c->outer.rendezvous.item[0].path,
                                       .fingerprint = o->fingerprint,
                                       .bandwidth = c->outer.bandwidth / 8 / comm_ranks(o->world),
                                       .fetches = (pushes ? 1 : c->outer.slots) * OUTER_PEERS,
                                       .serve = serve_bytes,
                                       .context = o};
    return transport_open(&o->transport, &options);
}

status outer_open(outer *o, const config *c, comm *world, watchdog *w, bool server)
{
    comm_group *all = comm_world(world);
    *o = (outer){.config = c,
                 .world = world,
                 .watchdog = w,
                 .slot = server ? ROSTER_SERVER : 0,
                 .serves = {-1, -1, -1, 0},
                 .method = method_of(c),
                 .rule = {(rule_kind)c->outer.optimizer, (float)c->outer.lr, (float)c->outer.momentum}};
    o->units.tensors = names_list(&o->units.tensor_count, &c->model.shape);
    o->units.list = units_list(&o->units.count, o->units.tensors, o->units.tensor_count, c->outer.fragments);
    o->units.owner = must_alloc((unsigned long)o->units.count * sizeof *o->units.owner);
    units_own(o->units.owner, o->units.list, o->units.count, c->outer.fragments, comm_ranks(world));
    o->fingerprint = fingerprint_of(o);
    list_mine(o);
    TRY(comm_all_status(all, open_memory(o, server)));
    /* Sections in order. A server stores the model itself, for readers of models. */
    const char *const sections[SECTIONS] = {server ? STATE_MODEL : "outer_reference", "outer_momentum", "outer_error"};
    o->memory.pieces = must_calloc((unsigned long)(o->units.mine_count * SECTIONS) + 1, sizeof *o->memory.pieces);
    for (int i = 0; i < SECTIONS; i++)
        for (int k = 0; k < o->units.mine_count && section_at(o, i); k++) {
            checkpoint_piece *p = &o->memory.pieces[o->memory.piece_count++];
            const outer_unit *m = &o->units.mine[k];
            p->section = sections[i];
            units_rectangle(&p->of, &p->at, &o->units.list[m->unit], o->units.tensors, section_at(o, i) + m->at);
        }
    return comm_all_status(all, open_transport(o));
}

void outer_close(outer *o)
{
    membership_close(o->membership);
    transport_close(o->transport);
    keys_close(&o->keys);
    etcd_wipe_login(&o->login);
    roster_free(&o->roster);
    arena_close(o->memory.arena);
    names_free(o->units.tensors, o->units.tensor_count);
    free(o->units.list);
    free(o->units.owner);
    free(o->units.mine);
    free(o->units.mine_of);
    free(o->fetches.parts);
    free(o->memory.pieces);
}

islands_counts outer_counted(const outer *o)
{
    comm_group *all = comm_world(o->world);
    transport_counts mine = transport_counted(o->transport);
    islands_counts c = o->counts;
    c.sent = (int64_t)comm_all_sum(all, (double)mine.sent);
    c.received = (int64_t)comm_all_sum(all, (double)mine.received);
    c.refused = (int64_t)comm_all_sum(all, (double)(mine.refused + o->counts.refused)); /* sum over the ranks */
    return c;
}
