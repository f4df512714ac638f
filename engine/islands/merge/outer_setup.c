/* The outer loop's set-up: units, planned memory, what checkpoints hold. */
#include "engine/islands/islands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/meet/address.h"
#include "engine/islands/merge/privacy.h"
#include "engine/islands/merge/outer_internal.h"
#include "engine/state/rank/state.h"
#include "memory/arena.h"
#include "memory/log.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* What a rank's outer state takes, in the order in which it lies in the arena. */
typedef struct layout {
    int64_t elements, largest; /* of the rank's units; of any unit */
    int64_t coded;             /* bytes of its largest fragment's encoding */
    int64_t products;          /* bytes of what outer.robust makes of that fragment's units */
    int64_t bytes;
} layout;

enum { ALIGNMENT = 64 };

/* What a job keeps of every element, and of how many islands encoded fragments, its own among them: everybody's of
 * everybody's; with a server, that has the momentum, and islands have only their own. */
typedef struct part_of_job {
    bool rest, momentum, error;
    int undo; /* of outer.undo: the reference, and the momentum if there is one */
    int encoded;
    int scratch; /* [largest] */
    int each;    /* likewise: changes that are combined by coordinate */
} part_of_job;

static int64_t aligned(int64_t bytes)
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
    l.bytes = (1 + part.rest + part.momentum + part.error + part.undo) * aligned(4 * l.elements) +
              (part.scratch + part.each) * aligned(4 * l.largest) + part.encoded * aligned(l.coded) +
              aligned(l.products);
    return l;
}

/* A request and a reply's header for each slice of a unit. */
static int64_t on_the_wire(int64_t bytes)
{
    return bytes + (bytes + WIRE_SLICE - 1) / WIRE_SLICE * 2 * WIRE_HEADER;
}

/* With a server, an island sends it its change and receives the model, in fp32. */
static void plan_server(islands_plan *p, const config *c, const unit *units, int *owner, int count)
{
    if (c->outer.topology != CONFIG_OUTER_SERVER)
        return;
    units_own(owner, units, count, c->outer.fragments, 1);
    p->server_arena = lay_out(c, true, units, owner, count, 0).bytes;
    for (int u = 0; u < count; u++)
        p->model += on_the_wire(4 * units[u].elements);
}

islands_plan islands_plan_of(const config *c, int ranks, double step_seconds, double bits_a_second)
{
    int tensor_count, count;
    int64_t fragment[64] = {0};
    islands_plan p = {.queued = TRANSPORT_QUEUED};
    compress_method method = method_of(c);
    names_tensor *tensors = names_list(&tensor_count, &c->model.shape);
    unit *units = units_list(&count, tensors, tensor_count, c->outer.fragments);
    int *owner = must_alloc((unsigned long)count * sizeof *owner);
    units_own(owner, units, count, c->outer.fragments, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        int64_t bytes = lay_out(c, false, units, owner, count, rank).bytes;
        p.arena = bytes > p.arena ? bytes : p.arena;
    }
    plan_server(&p, c, units, owner, count);
    for (int u = 0; u < count; u++)
        fragment[units[u].fragment] += on_the_wire(compress_bytes(&method, units[u].elements));
    bool server = c->outer.topology == CONFIG_OUTER_SERVER;
    int others = server ? 1 : c->outer.topology == CONFIG_OUTER_GOSSIP ? c->outer.group - 1 : c->outer.slots - 1;
    double all = c->outer.every * step_seconds, hidden = c->outer.delay * step_seconds, waits = 0;
    for (int f = 0; f < c->outer.fragments; f++) {
        double seconds = (double)(fragment[f] * others + p.model) * 8 / bits_a_second;
        p.change += fragment[f];
        p.seconds += seconds;
        waits += seconds > hidden ? seconds - hidden : 0; /* a merge's transfer hides behind outer.delay steps */
    }
    p.sent = p.change * others;
    p.received = server ? p.model : p.sent;
    p.computing = all / (all + waits);
    if (c->outer.noise > 0)
        p.epsilon = privacy_epsilon((int64_t)c->train.steps / c->outer.every * c->outer.fragments, c->outer.noise,
                                    ISLANDS_DELTA);
    free(owner);
    free(units);
    names_free(tensors, tensor_count);
    return p;
}

static void *take(char **at, int64_t bytes)
{
    char *here = *at;
    *at += aligned(bytes);
    return here;
}

/* Every page is touched now, and not when a merge comes. */
static status open_memory(islands *o)
{
    const config *c = o->config;
    part_of_job part = part_of(c, o->holds);
    layout l = lay_out(c, o->holds, o->units.list, o->units.owner, o->units.count, comm_rank(o->world));
    TRY(arena_open(&o->memory.arena, l.bytes));
    char *at = arena_base(o->memory.arena);
    memset(at, 0, (size_t)l.bytes);
    o->units.elements = l.elements;
    o->memory.reference = take(&at, 4 * l.elements);
    o->memory.rest = part.rest ? take(&at, 4 * l.elements) : NULL;
    o->memory.momentum = part.momentum ? take(&at, 4 * l.elements) : NULL;
    o->memory.error = part.error ? take(&at, 4 * l.elements) : NULL;
    o->all.undo.reference = part.undo > 0 ? take(&at, 4 * l.elements) : NULL;
    o->all.undo.momentum = part.undo > 1 ? take(&at, 4 * l.elements) : NULL;
    o->memory.values = take(&at, 4 * l.largest);
    o->memory.other = take(&at, 4 * l.largest);
    for (int i = 0; i < part.each; i++)
        o->memory.each[i] = take(&at, 4 * l.largest);
    o->memory.products = take(&at, l.products);
    float *scratch = part.scratch > 2 ? take(&at, 4 * l.largest) : NULL;
    o->memory.out = o->holds ? NULL : take(&at, l.coded);
    for (int s = 0; s < part.encoded - !o->holds; s++)
        o->memory.in[s] = take(&at, l.coded);
    if (o->holds)
        return STATUS_OK;
    const outer_move_options move = {.compiled = o->compiled,
                                     .executor = o->executor,
                                     .world = o->world,
                                     .tensors = o->units.tensors,
                                     .units = o->units.list,
                                     .owner = o->units.owner,
                                     .count = o->units.count,
                                     .scratch = scratch};
    return outer_move_open(&o->move, &move);
}

/* The buffers of the other slots: there is none for its own. */
void outer_assign_buffers(islands *o)
{
    for (int s = o->config->outer.slots - 1; s > o->slot; s--)
        o->memory.in[s] = o->memory.in[s - 1];
    o->memory.in[o->slot] = NULL;
}

static void list_mine(islands *o)
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

/* ---- what checkpoints hold --------------------------------------------------------------------------------------- */

static const char *const sections[] = {"outer_reference", "outer_momentum", "outer_error"};

enum { SECTIONS = sizeof sections / sizeof *sections };

/* What a server holds is the model itself, for whoever reads models. */
static const char *section_name(const islands *o, int i)
{
    return o->holds && i == 0 ? STATE_MODEL : sections[i];
}

static float *section_at(const islands *o, int i)
{
    return i == 0 ? o->memory.reference : i == 1 ? o->memory.momentum : o->memory.error;
}

static checkpoint_piece piece_of(const islands *o, int section, const outer_unit *m)
{
    checkpoint_piece p = {.section = section_name(o, section)};
    units_rectangle(&p.of, &p.at, &o->units.list[m->unit], o->units.tensors, section_at(o, section) + m->at);
    return p;
}

static void list_pieces(islands *o)
{
    o->memory.pieces = must_calloc((unsigned long)(o->units.mine_count * SECTIONS) + 1, sizeof *o->memory.pieces);
    for (int i = 0; i < SECTIONS; i++)
        for (int k = 0; k < o->units.mine_count && section_at(o, i); k++)
            o->memory.pieces[o->memory.piece_count++] = piece_of(o, i, &o->units.mine[k]);
}

const checkpoint_piece *islands_pieces(int *count, const islands *o)
{
    *count = o->memory.piece_count;
    return o->memory.pieces;
}

json_t *islands_meta(const islands *o)
{
    json_t *at = json_array();
    for (int f = 0; f < o->config->outer.fragments; f++)
        json_array_append_new(at, json_integer(o->merged_at[f]));
    return json_pack("{s:I, s:I, s:I, s:i, s:o, s:i, s:I}", "releases", (json_int_t)o->releases, "merge",
                     (json_int_t)o->merge, "history", (json_int_t)o->all.history, "slot", o->slot, "merged_at", at,
                     "fragment", o->fragment, "settle_at",
                     (json_int_t)(o->stage == OUTER_MERGED ? o->offered.settle_at : 0));
}

static int64_t within(const json_t *object, const char *key, int64_t low, int64_t high)
{
    int64_t n = (int64_t)json_integer_value(json_object_get(object, key));
    return n < low ? low : n > high ? high : n;
}

static void read_meta(islands *o, const json_t *meta)
{
    const int64_t most = (int64_t)1 << 40;
    const json_t *at = json_object_get(meta, "merged_at");
    o->releases = within(meta, "releases", 0, most);
    o->merge = within(meta, "merge", 0, most);
    o->all.history = within(meta, "history", 0, INT64_MAX);
    o->hint = (int)within(meta, "slot", 0, ROSTER_SLOTS - 1);
    o->fragment = (int)within(meta, "fragment", 0, o->config->outer.fragments - 1);
    o->offered.settle_at = within(meta, "settle_at", 0, most);
    o->stage = o->offered.settle_at > 0 ? OUTER_MERGED : OUTER_IDLE;
    for (int f = 0; f < o->config->outer.fragments; f++)
        o->merged_at[f] = (int64_t)json_integer_value(json_array_get(at, (size_t)f));
    o->resumed = true;
}

static status read_section(islands *o, checkpoint *from, int section)
{
    bool there = false;
    for (int i = 0; i < checkpoint_tensors(from); i++)
        there |= !strcmp(checkpoint_at(from, i)->section, section_name(o, section));
    for (int k = 0; k < o->units.mine_count && section_at(o, section) && there; k++) {
        checkpoint_piece p = piece_of(o, section, &o->units.mine[k]);
        TRY(checkpoint_read(from, p.section, &p.of, &p.at));
    }
    return STATUS_OK;
}

status outer_read_sections(islands *o, checkpoint *from)
{
    for (int i = 0; i < SECTIONS; i++)
        TRY(read_section(o, from, i));
    return STATUS_OK;
}

status islands_restore(islands *o, checkpoint *from)
{
    const json_t *meta = from ? json_object_get(checkpoint_meta(from), "outer") : NULL;
    status s = STATUS_OK;
    if (json_is_object(meta)) {
        read_meta(o, meta);
        s = outer_read_sections(o, from);
        return comm_all_status(comm_world(o->world), s);
    }
    for (int f = 0; f < o->config->outer.fragments; f++) /* the weights are the reference of merge 0 */
        outer_take_weights(o, f);
    return STATUS_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Of everything that islands must have alike (FNV-1a). */
static uint64_t fingerprint_of(const islands *o)
{
    const config *c = o->config;
    char *words = must_format(
        "%d %d %a %a %d %d %d %a %a %a %d %d %lld %lld %d %d %d %d %d %a %a", c->outer.every, (int)c->outer.optimizer,
        c->outer.lr, c->outer.momentum, c->outer.fragments, c->outer.delay, (int)c->outer.compress, c->outer.density,
        c->outer.mix, c->outer.error_decay, (int)c->outer.weights, c->outer.slots, (long long)c->train.seed,
        (long long)c->train.sequence, c->data.shuffle, c->outer.private_data, (int)c->outer.topology, c->outer.group,
        c->outer.staleness, c->outer.clip, c->outer.noise);
    if (c->outer.robust) { /* runs without it have the fingerprint that they have had */
        bool judges = c->outer.robust == CONFIG_ROBUST_TRIMMED; /* and not by coordinate alone, as formerly */
        char *more = must_format("%s robust %d%s", words, (int)c->outer.robust, judges ? " judged" : "");
        free(words);
        words = more;
    }
    if (c->outer.undo) {
        char *more = must_format("%s undo", words);
        free(words);
        words = more;
    }
    uint64_t hash = 14695981039346656037u;
    for (int i = -1; i < o->units.tensor_count; i++) {
        const char *text = i < 0 ? words : o->units.tensors[i].name;
        for (; *text; text++)
            hash = (hash ^ (uint8_t)*text) * 1099511628211u;
        for (int d = 0; i >= 0 && d < o->units.tensors[i].dims; d++)
            hash = (hash ^ (uint64_t)o->units.tensors[i].shape[d]) * 1099511628211u;
    }
    free(words);
    return hash;
}

static const void *serve(void *context, const wire_message *m)
{
    const islands *o = context;
    if (m->unit >= o->units.count || o->units.mine_of[m->unit] < 0)
        return NULL;
    const outer_unit *u = &o->units.mine[o->units.mine_of[m->unit]];
    bool change = m->kind == WIRE_CHANGE;
    int64_t bytes = change ? u->coded_bytes : 4 * o->units.list[m->unit].elements;
    const void *base = m->kind == WIRE_REFERENCE ? o->memory.reference : o->memory.momentum;
    if (m->first > bytes || m->bytes > bytes - m->first || (change && o->holds) ||
        (!change && (!base || outer_pushes(o))))
        return NULL;
    bool gossip = o->config->outer.topology == CONFIG_OUTER_GOSSIP; /* any state will do, as islands differ */
    if (!change)
        return (gossip && o->serves.state >= 0) || (o->holds && m->merge <= o->serves.state) ||
                       m->merge == o->serves.state
                   ? (const char *)base + 4 * u->at + m->first
                   : NULL;
    bool there = m->merge == o->serves.merge && m->offer == o->serves.offer &&
                 o->units.list[m->unit].fragment == o->serves.fragment;
    return there ? o->memory.out + u->coded + m->first : NULL;
}

static status open_transport(islands *o)
{
    char *found = NULL;
    const char *address = o->config->outer.address;
    TRY(credentials_take(&o->login, o->config->outer.credentials));
    TRY(keys_open(&o->keys, o->config->outer.keys));
    if (!address)
        TRY(address_towards(&found, o->config->outer.rendezvous.item[0].path));
    const transport_options options = {.keys = &o->keys,
                                       .address = address ? address : found,
                                       .fingerprint = o->fingerprint,
                                       .bandwidth = o->config->outer.bandwidth / 8 / comm_ranks(o->world),
                                       .fetches = (outer_pushes(o) ? 1 : o->config->outer.slots) * OUTER_PEERS,
                                       .serve = serve,
                                       .context = o};
    status s = transport_open(&o->transport, &options);
    free(found);
    return s;
}

static islands *make(const config *c, comm *world)
{
    islands *o = must_calloc(1, sizeof *o);
    o->config = c;
    o->world = world;
    o->hint = -1;
    o->serves.merge = o->serves.offer = o->serves.state = -1;
    o->method = method_of(c);
    o->rule = (rule){(rule_kind)c->outer.optimizer, (float)c->outer.lr, (float)c->outer.momentum};
    o->units.tensors = names_list(&o->units.tensor_count, &c->model.shape);
    o->units.list = units_list(&o->units.count, o->units.tensors, o->units.tensor_count, c->outer.fragments);
    o->units.owner = must_alloc((unsigned long)o->units.count * sizeof *o->units.owner);
    units_own(o->units.owner, o->units.list, o->units.count, c->outer.fragments, comm_ranks(world));
    o->fingerprint = fingerprint_of(o);
    return o;
}

static status open_either(islands **out, islands *o)
{
    comm_group *all = comm_world(o->world);
    list_mine(o);
    status s = comm_all_status(all, open_memory(o));
    if (s == STATUS_OK)
        s = comm_all_status(all, open_transport(o));
    if (s != STATUS_OK) {
        islands_close(o);
        return s;
    }
    list_pieces(o);
    *out = o;
    return STATUS_OK;
}

status islands_open(islands **out, const config *c, compiled *k, executor *e, comm *world, watchdog *w)
{
    islands *o = make(c, world);
    o->compiled = k;
    o->executor = e;
    o->watchdog = w;
    return open_either(out, o);
}

status outer_open_holder(islands **out, const config *c, comm *world, watchdog *w)
{
    islands *o = make(c, world);
    o->holds = true;
    o->watchdog = w;
    return open_either(out, o);
}

void islands_close(islands *o)
{
    if (!o)
        return;
    membership_close(o->membership);
    transport_close(o->transport);
    keys_close(&o->keys);
    credentials_wipe(&o->login);
    roster_free(&o->roster);
    outer_move_close(o->move);
    arena_close(o->memory.arena);
    names_free(o->units.tensors, o->units.tensor_count);
    free(o->units.list);
    free(o->units.owner);
    free(o->units.mine);
    free(o->units.mine_of);
    free(o->fetches.parts);
    free(o->memory.pieces);
    free(o);
}

islands_counts islands_counted(islands *o)
{
    int ranks = comm_ranks(o->world);
    transport_counts mine = transport_counted(o->transport), *all = must_alloc((unsigned long)ranks * sizeof *all);
    mine.refused += o->counts.refused; /* of what this rank has fetched */
    comm_all_gather_bytes(comm_world(o->world), all, &mine, sizeof mine);
    islands_counts c = o->counts;
    c.refused = 0;
    c.releases = o->releases;
    c.epsilon = o->releases > 0 ? privacy_epsilon(o->releases, o->config->outer.noise, ISLANDS_DELTA) : 0;
    for (int i = 0; i < ranks; i++) {
        c.sent += all[i].sent;
        c.received += all[i].received;
        c.refused += all[i].refused;
    }
    free(all);
    return c;
}
