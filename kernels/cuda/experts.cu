/* Routing: a warp chooses the experts of a token; assignments are counted, and numbered, in chunks of a warp; a block
 * copies a token to its rows, or adds them up. All orders are deterministic. */
#include "kernels/cuda/vector.cuh"

static constexpr int THREADS = 128, WARPS = THREADS / WARP, NONE = 1 << 30;
static_assert((int)ROUTING_ACTIVE <= WARP, "a lane for each of a token's experts");

/* dlogits may be logits or addend, which may be absent */
struct launch_route_grad {
    launch_matrix dlogits, logits, addend;
    const float *dweights, *weights;
    const int32_t *experts;
};

struct launch_row_ids {
    const int32_t *row_ids;  /* [tokens, active] */
    const float *weights;   /* the same, or NULL: 1 */
    const int32_t *offsets; /* [experts + 1]; of dispatch */
    int64_t tokens, active, experts;
    int64_t slots; /* of dispatch: runs of rows, run i filled up from offsets[i + 1] on; 0: one */
};

/* ---- choice ---------------------------------------------------------------------------------------------------- */

/* Values of candidates i WARP + lane, i < PER, and a bit for each that has been taken. */
template <int PER> struct candidates {
    float value[PER];
    uint32_t gone;
};

/* Takes the best candidate left in [first, end), the first among equals, and gives it to every lane. */
template <int PER> DEVICE int take_best(candidates<PER> &of, float &value, int first, int end)
{
    int lane = (int)threadIdx.x % WARP, id = NONE;
    value = -INFINITY;
    UNROLL for (int i = 0; i < PER; i++)
    {
        int candidate = i * WARP + lane;
        bool better = id == NONE || of.value[i] > value;
        if (!(of.gone >> i & 1) && candidate >= first && candidate < end && better) {
            value = of.value[i];
            id = candidate;
        }
    }
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
    {
        float other = warp_xor(value, mask);
        int other_id = warp_xor(id, mask);
        if (other > value || (other == value && other_id < id)) {
            value = other;
            id = other_id;
        }
    }
    UNROLL for (int i = 0; i < PER; i++) of.gone |= (uint32_t)(i * WARP + lane == id) << i;
    return id;
}

/* Gives every lane the value of candidate `id`. */
template <int PER> DEVICE float value_of(const float (&value)[PER], int id)
{
    int lane = (int)threadIdx.x % WARP;
    float found = 0;
    UNROLL for (int i = 0; i < PER; i++) found = i * WARP + lane == id ? value[i] : found;
    return warp_from(found, id % WARP);
}

/* Computes scores in fp32; 0 beyond the last expert. */
template <typename T, int PER> DEVICE void scores(float (&score)[PER], const T *logits, int experts, bool sigmoid)
{
    int lane = (int)threadIdx.x % WARP;
    float largest = -INFINITY, sum = 0;
    UNROLL for (int i = 0; i < PER; i++)
    {
        int expert = i * WARP + lane;
        score[i] = expert < experts ? to_float(logits[expert]) : -INFINITY;
        largest = fmaxf(largest, score[i]);
    }
    largest = warp_largest(largest);
    UNROLL for (int i = 0; i < PER; i++)
    {
        bool real = i * WARP + lane < experts;
        float power = sigmoid ? expf(-score[i]) : expf(score[i] - largest);
        score[i] = !real ? 0.0f : sigmoid ? 1.0f / (1.0f + power) : power;
        sum += score[i];
    }
    float factor = sigmoid ? 1.0f : 1.0f / warp_sum(sum);
    UNROLL for (int i = 0; i < PER; i++) score[i] *= factor;
}

/* Keeps only the experts of the best groups. */
template <int PER> DEVICE void keep_groups(candidates<PER> &of, const op_routing &as)
{
    int lane = (int)threadIdx.x % WARP, size = as.experts / as.groups;
    candidates<PER> group = {{}, ~0u}, left = of;
    for (int g = 0; g < as.groups; g++) {
        float sum = 0, value;
        for (int k = 0; k < as.group_best; k++) {
            take_best(left, value, g * size, (g + 1) * size);
            sum += value;
        }
        UNROLL for (int i = 0; i < PER; i++) if (i * WARP + lane == g)
        {
            group.value[i] = sum;
            group.gone &= ~(1u << i);
        }
    }
    uint32_t kept = 0;
    for (int k = 0; k < as.groups_kept; k++) {
        float value;
        int g = take_best(group, value, 0, as.groups);
        UNROLL for (int i = 0; i < PER; i++)
        {
            int expert = i * WARP + lane;
            kept |= (uint32_t)(expert >= g * size && expert < (g + 1) * size) << i;
        }
    }
    of.gone |= ~kept;
}

template <typename T, int PER>
KERNEL(THREADS, 4)
route_tokens(float *weights, int32_t *experts, const T *logits, int64_t pitch, const float *bias, int64_t tokens,
             op_routing as)
{
    int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP, chosen = 0;
    if (token >= tokens)
        return;
    float score[PER], sum = 0, weight = 0, value;
    candidates<PER> of = {{}, 0};
    scores(score, logits + token * pitch, as.experts, as.sigmoid);
    UNROLL for (int i = 0; i < PER; i++)
    {
        int expert = i * WARP + lane;
        float biased = bias && expert < as.experts ? score[i] + bias[expert] : score[i];
        of.value[i] = isnan(biased) ? INFINITY : biased;
    }
    if (as.groups)
        keep_groups(of, as);
    for (int j = 0; j < as.active; j++) {
        int id = take_best(of, value, 0, as.experts);
        float own = value_of(score, id);
        sum += own;
        if (lane == j) {
            chosen = id;
            weight = own;
        }
    }
    float factor = as.renormalise ? as.scale / (as.sigmoid ? sum + 1e-20f : sum) : as.scale;
    if (lane < as.active) {
        weights[token * as.active + lane] = weight * factor;
        experts[token * as.active + lane] = chosen;
    }
}

/* Lane j computes the gradient of weight j: the host's kernel has the formula. */
template <typename T, int PER> KERNEL(THREADS, 4) route_slopes(launch_route_grad in, int64_t tokens, op_routing as)
{
    int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (token >= tokens)
        return;
    const T *logits = (const T *)in.logits.at + token * in.logits.pitch;
    const T *addend = (const T *)in.addend.at + token * in.addend.pitch;
    T *dlogits = (T *)in.dlogits.at + token * in.dlogits.pitch;
    bool active = lane < as.active;
    int64_t at = token * as.active + lane;
    float weight = active ? in.weights[at] : 0.0f, slope = active ? in.dweights[at] : 0.0f, total[PER] = {};
    int expert = active ? in.experts[at] : 0;
    float dot = warp_sum(slope * weight);
    if (!as.sigmoid && !as.renormalise) {
        scores(total, logits, as.experts, false);
        UNROLL for (int i = 0; i < PER; i++) total[i] *= -dot;
    }
    slope = weight * (slope - (as.renormalise ? dot / as.scale : 0.0f));
    if (as.sigmoid)
        slope /= 1.0f + expf(to_float(logits[expert]));
    for (int j = 0; j < as.active; j++) {
        int of = warp_from(expert, j);
        float share = warp_from(slope, j);
        UNROLL for (int i = 0; i < PER; i++) total[i] += i * WARP + lane == of ? share : 0.0f;
    }
    UNROLL for (int i = 0; i < PER; i++)
    {
        int column = i * WARP + lane;
        if (column < as.experts)
            from_float(dlogits[column], total[i] + (in.addend.at ? to_float(addend[column]) : 0.0f));
    }
}

/* ---- places ---------------------------------------------------------------------------------------------------- */

static constexpr int CHUNK = 8 * WARP; /* assignments of a warp */

/* An assignment's kind, from 0 on: its expert's index on this rank, or the rank that has the expert. */
struct kinds {
    int32_t first, local; /* experts of this rank; or */
    int32_t experts;      /* that `local` ranks divide as shard_rows() says; 0: none do */
};

/* Returns -1 for another rank's. `within`: the expert's index within its rank. */
DEVICE int32_t kind_of(const kinds &k, int32_t expert, int32_t &within)
{
    within = expert - k.first;
    if (k.experts == 0)
        return within >= 0 && within < k.local ? within : -1;
    int32_t each = k.experts / k.local, more = k.experts % k.local, wide = more * (each + 1);
    bool low = expert < wide;
    int32_t size = low ? each + 1 : each, behind = low ? expert : expert - wide;
    within = behind % size;
    return behind / size + (low ? 0 : more);
}

/* Advances next[e] by the assignments of kind e among `count`, 32 at a time: f(i, e, within, number) is called with
 * each. A lane counts the lanes before it with its kind; the last of them gives the total. */
template <typename F> DEVICE void number_chunk(int32_t *next, const int32_t *experts, int count, const kinds &k, F f)
{
    int lane = (int)threadIdx.x % WARP;
    for (int from = 0; from < count; from += WARP) {
        int32_t within = 0, e = from + lane < count ? kind_of(k, experts[from + lane], within) : -1;
        bool mine = e >= 0;
        int before = 0, behind = 0;
        UNROLL for (int other = 0; other < WARP; other++)
        {
            bool same = warp_from(e, other) == e;
            before += same && other < lane;
            behind += same && other > lane;
        }
        int32_t number = mine ? next[e] + before : -1;
        warp_barrier(); /* all have read */
        if (mine && behind == 0)
            next[e] = number + 1;
        warp_barrier(); /* the last have written */
        if (from + lane < count)
            f(from + lane, e, within, number);
    }
}

struct assignment {
    int32_t *row_ids, *ids, *offsets, *counts, *totals;
    const int32_t *experts;
    int64_t count, chunks, skip, rows;
    kinds of;
};

DEVICE int32_t *next_of_warp(int32_t *all)
{
    return all + (int)threadIdx.x / WARP * ROUTING_EXPERTS;
}

DEVICE int chunk_length(const assignment &a, int64_t chunk)
{
    int64_t left = a.count - chunk * CHUNK;
    return (int)(left < CHUNK ? left : CHUNK);
}

/* counts[kind, chunk] */
KERNEL(THREADS, 4) count_chunks(assignment a)
{
    SHARED(int32_t, all, WARPS * ROUTING_EXPERTS);
    int32_t *next = next_of_warp(all);
    int64_t chunk = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (chunk >= a.chunks)
        return;
    for (int e = lane; e < a.of.local; e += WARP)
        next[e] = 0;
    warp_barrier();
    number_chunk(next, a.experts + chunk * CHUNK, chunk_length(a, chunk), a.of, [](int, int32_t, int32_t, int32_t) {});
    for (int e = lane; e < a.of.local; e += WARP)
        a.counts[e * a.chunks + chunk] = next[e];
}

/* Returns the sum of the values of the lanes before this one, and in `all` the sum of all. */
DEVICE int32_t sum_before(int32_t value, int32_t &all)
{
    int lane = (int)threadIdx.x % WARP;
    int32_t sum = value;
    UNROLL for (int step = 1; step < WARP; step *= 2)
    {
        int32_t other = warp_from(sum, (lane - step) & (WARP - 1));
        sum += lane >= step ? other : 0;
    }
    all = warp_from(sum, WARP - 1);
    return sum - value;
}

/* A warp handles a kind: counts become the sums of the chunks before, totals the sum of all. */
KERNEL(THREADS, 4) scan_chunks(assignment a)
{
    int64_t expert = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (expert >= a.of.local)
        return;
    int32_t *counts = a.counts + expert * a.chunks, before = 0, all;
    for (int64_t from = 0; from < a.chunks; from += WARP) {
        int32_t count = from + lane < a.chunks ? counts[from + lane] : 0;
        int32_t sum = before + sum_before(count, all);
        if (from + lane < a.chunks)
            counts[from + lane] = sum;
        before += all;
    }
    if (lane == 0)
        a.totals[expert] = before;
}

DEVICE int32_t within(int64_t row, int64_t rows)
{
    return (int32_t)(row < 0 ? 0 : row < rows ? row : rows);
}

KERNEL(THREADS, 4) place_chunks(assignment a)
{
    SHARED(int32_t, all, WARPS * ROUTING_EXPERTS);
    int32_t *next = next_of_warp(all), before = 0, sum;
    int64_t chunk = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (chunk >= a.chunks)
        return;
    for (int from = 0; from < a.of.local; from += WARP) {
        int e = from + lane;
        int32_t first = before + sum_before(e < a.of.local ? a.totals[e] : 0, sum);
        if (e < a.of.local) {
            next[e] = first + a.counts[e * a.chunks + chunk];
            if (chunk == 0)
                a.offsets[e] = within(first - a.skip, a.rows);
        }
        before += sum;
    }
    if (chunk == 0 && lane == 0)
        a.offsets[a.of.local] = within(before - a.skip, a.rows);
    warp_barrier();
    int32_t *row_ids = a.row_ids + chunk * CHUNK;
    auto place_row = [&](int i, int32_t, int32_t, int32_t number) {
        int64_t row = number - a.skip;
        row_ids[i] = number >= 0 && row >= 0 && row < a.rows ? (int32_t)row : -1;
    };
    number_chunk(next, a.experts + chunk * CHUNK, chunk_length(a, chunk), a.of, place_row);
}

/* Places like place_chunks, each kind in a slot of its own; the warps share the rows that no assignment has. */
KERNEL(THREADS, 4) place_slots(assignment a)
{
    SHARED(int32_t, all, WARPS * ROUTING_EXPERTS);
    int32_t *next = next_of_warp(all);
    int64_t chunk = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, each = a.rows / a.of.local;
    int lane = (int)threadIdx.x % WARP;
    if (chunk >= a.chunks)
        return;
    for (int slot = lane; slot < a.of.local; slot += WARP) {
        next[slot] = a.counts[slot * a.chunks + chunk];
        if (chunk == 0)
            a.offsets[slot + 1] = (int32_t)(slot * each) + within(a.totals[slot] - a.skip, each);
    }
    if (chunk == 0 && lane == 0)
        a.offsets[0] = 0;
    warp_barrier();
    for (int64_t row = chunk * WARP + lane; row < a.rows; row += a.chunks * WARP)
        if (row % each >= a.totals[row / each] - a.skip)
            a.ids[row] = -1;
    int32_t *row_ids = a.row_ids + chunk * CHUNK;
    auto place_row = [&](int i, int32_t slot, int32_t id, int32_t number) {
        int64_t row = number - a.skip;
        bool has = row >= 0 && row < each;
        row_ids[i] = has ? (int32_t)(slot * each + row) : -1;
        if (has)
            a.ids[row_ids[i]] = id;
    };
    number_chunk(next, a.experts + chunk * CHUNK, chunk_length(a, chunk), a.of, place_row);
}

static constexpr int BUCKETS = CAPACITY_BUCKETS - 1;

/* Counts the assignments of each kind, by the warps of one block: counted[warp, kind]. */
DEVICE void count_kinds(int32_t *counted, const int32_t *experts, int64_t assignments, const kinds &of)
{
    int warp = (int)threadIdx.x / WARP;
    for (int i = (int)threadIdx.x; i < WARPS * ROUTING_EXPERTS; i += THREADS)
        counted[i] = 0;
    block_barrier();
    for (int64_t first = warp * CHUNK; first < assignments; first += WARPS * CHUNK) {
        int64_t left = assignments - first;
        number_chunk(counted + warp * ROUTING_EXPERTS, experts + first, (int)(left < CHUNK ? left : CHUNK), of,
                     [](int, int32_t, int32_t, int32_t) {});
    }
    block_barrier();
}

/* One block counts the assignments to this rank's experts, or of each kind; counts are exact in any order. */
KERNEL(THREADS, 1)
count_overflow(float *over, const int32_t *experts, int64_t assignments, op_capacity as, kinds of, bool add)
{
    SHARED(int32_t, counted, WARPS * ROUTING_EXPERTS);
    bool slots = of.experts > 0;
    int me = (int)threadIdx.x, parts = slots ? WARPS : THREADS, apart = slots ? ROUTING_EXPERTS : 1;
    int32_t own = 0;
    for (int64_t i = me; !slots && i < assignments; i += THREADS)
        own += experts[i] >= of.first && experts[i] < of.first + of.local;
    counted[me] = own;
    block_barrier();
    if (slots)
        count_kinds(counted, experts, assignments, of);
    if (me != 0)
        return;
    float more[BUCKETS + 1] = {};
    for (int kind = 0; kind < (slots ? of.local : 1); kind++) {
        int64_t rows = 0;
        for (int i = 0; i < parts; i++)
            rows += counted[i * apart + kind];
        for (int i = 0; i < BUCKETS; i++)
            more[i] += rows > as.room[i] ? (float)(rows - as.room[i]) : 0.0f;
        bool lacks = as.bucket < BUCKETS && rows > as.room[as.bucket];
        more[BUCKETS] = lacks ? INFINITY : more[BUCKETS];
    }
    for (int i = 0; i <= BUCKETS; i++)
        over[i] = (add ? over[i] : 0.0f) + more[i];
}

/* ---- there and back -------------------------------------------------------------------------------------------- */

/* A block sends a token; the blocks past `tokens` write the rows that no token has. Rows of `pieces` vectors. */
template <typename T, int V>
KERNEL(512, 2)
send_rows(launch_matrix rows, launch_matrix x, launch_row_ids of, int64_t pieces, int64_t row_count)
{
    T *to = (T *)rows.at;
    if ((int64_t)blockIdx.x >= of.tokens) {
        const float zero[V] = {};
        int64_t row = (of.slots ? 0 : of.offsets[of.experts]) + (int64_t)blockIdx.x - of.tokens;
        int64_t each = of.slots ? row_count / of.slots : row_count;
        for (; row < row_count; row += gridDim.x - of.tokens) {
            if (of.slots && row < of.offsets[row / each + 1])
                continue;
            for (int64_t piece = threadIdx.x; piece < pieces; piece += blockDim.x)
                store(to + row * rows.pitch + piece * V, zero);
        }
        return;
    }
    int64_t token = blockIdx.x;
    const T *from = (const T *)x.at + token * x.pitch;
    for (int64_t piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
        float value[V];
        load(value, from + piece * V);
        for (int64_t at = token * of.active; at < (token + 1) * of.active; at++) {
            if (of.row_ids[at] < 0)
                continue;
            float weight = of.weights ? of.weights[at] : 1.0f, sent[V];
            UNROLL for (int i = 0; i < V; i++) sent[i] = weight * value[i];
            store(to + of.row_ids[at] * rows.pitch + piece * V, sent);
        }
    }
}

/* A block sums a token: four of its rows are loaded at a time and added in order. With y and addend the same memory, a
 * token without rows is already there. */
template <typename T, int V>
KERNEL(512, 2)
add_rows_of_tokens(launch_matrix y, launch_matrix rows, launch_matrix addend, launch_row_ids of, int64_t pieces)
{
    constexpr int AHEAD = 4;
    int64_t token = blockIdx.x, end = (token + 1) * of.active;
    bool there = y.at == addend.at && y.pitch == addend.pitch;
    for (int64_t at = token * of.active; there && at < end; at++)
        there = of.row_ids[at] < 0;
    if (there)
        return;
    for (int64_t piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
        float sum[V] = {}, part[AHEAD][V];
        if (addend.at)
            load(sum, (const T *)addend.at + token * addend.pitch + piece * V);
        for (int64_t at = token * of.active; at < end; at += AHEAD) {
            UNROLL for (int k = 0; k < AHEAD; k++)
            {
                int32_t place = at + k < end ? of.row_ids[at + k] : -1;
                UNROLL for (int i = 0; i < V; i++) part[k][i] = 0;
                if (place >= 0)
                    load(part[k], (const T *)rows.at + place * rows.pitch + piece * V);
            }
            UNROLL for (int k = 0; k < AHEAD; k++)
            {
                bool has = at + k < end && of.row_ids[at + k] >= 0;
                float weight = has && of.weights ? of.weights[at + k] : 1.0f;
                UNROLL for (int i = 0; i < V; i++) sum[i] = has ? fmaf(weight, part[k][i], sum[i]) : sum[i];
            }
        }
        store((T *)y.at + token * y.pitch + piece * V, sum);
    }
}

/* A block handles a token, a warp a row. */
template <typename T, int V>
KERNEL(THREADS, 8)
dot_rows_of_tokens(float *dweights, launch_matrix dy, launch_matrix rows, launch_row_ids of, int64_t pieces)
{
    int64_t token = blockIdx.x;
    int lane = (int)threadIdx.x % WARP;
    const T *from = (const T *)dy.at + token * dy.pitch;
    for (int64_t j = threadIdx.x / WARP; j < of.active; j += WARPS) {
        int32_t place = of.row_ids[token * of.active + j];
        float sum = 0;
        for (int64_t piece = lane; place >= 0 && piece < pieces; piece += WARP) {
            float a[V], b[V];
            load(a, from + piece * V);
            load(b, (const T *)rows.at + place * rows.pitch + piece * V);
            UNROLL for (int i = 0; i < V; i++) sum = fmaf(a[i], b[i], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0)
            dweights[token * of.active + j] = sum;
    }
}

/* ---- entry points ---------------------------------------------------------------------------------------------- */

void cuda_route(const op *o, const run_context *r)
{
    const tensor *logits = o->in[0];
    const op_routing &as = o->at.routing;
    if (logits->shape[0] == 0)
        return;
    cuda_launched(
        o, with_type(logits->type, [&](auto t) {
            using T = decltype(t);
            auto kernel = as.experts <= 4 * WARP ? route_tokens<T, 4> : route_tokens<T, ROUTING_EXPERTS / WARP>;
            return launch(kernel, blocks_for(logits->shape[0], WARPS), THREADS, 0, r->stream,
                          whole<float>(o, o->out[0], r), whole<int32_t>(o, o->out[1], r), data<const T>(logits, r),
                          logits->pitch, data<const float>(o->in[1], r), logits->shape[0], as);
        }));
}

void cuda_route_grad(const op *o, const run_context *r)
{
    const tensor *logits = o->in[1];
    const op_routing &as = o->at.routing;
    const launch_route_grad in = {matrix(o->out[0], r),
                                  matrix(logits, r),
                                  matrix(o->in[4], r),
                                  whole<const float>(o, o->in[0], r),
                                  whole<const float>(o, o->in[3], r),
                                  whole<const int32_t>(o, o->in[2], r)};
    if (logits->shape[0] == 0)
        return;
    cuda_launched(
        o, with_type(logits->type, [&](auto t) {
            using T = decltype(t);
            auto kernel = as.experts <= 4 * WARP ? route_slopes<T, 4> : route_slopes<T, ROUTING_EXPERTS / WARP>;
            return launch(kernel, blocks_for(logits->shape[0], WARPS), THREADS, 0, r->stream, in, logits->shape[0], as);
        }));
}

static int64_t counts_bytes(const op *o, int32_t kinds)
{
    return (divide_up(tensor_elements(o->in[0]), CHUNK) + 1) * kinds * (int64_t)sizeof(int32_t);
}

CUDA_SCRATCH(cuda_assign_scratch, counts_bytes(o, o->at.routing.local))

CUDA_SCRATCH(cuda_slots_scratch, counts_bytes(o, o->at.routing.slots))

/* Numbers the assignments of each kind by `place`; the last output has the offsets, one before them may have ids. */
template <typename Place>
static void number(const op *o, const run_context *r, kinds of, const tensor *ids, const tensor *offsets, Place place)
{
    const int64_t count = tensor_elements(o->in[0]), chunks = count > 0 ? divide_up(count, CHUNK) : 1;
    int32_t *scratch = data<int32_t>(o->scratch, r);
    assignment a = {whole<int32_t>(o, o->out[0], r),
                    whole<int32_t>(o, ids, r),
                    data<int32_t>(offsets, r),
                    scratch,
                    scratch + chunks * of.local,
                    whole<const int32_t>(o, o->in[0], r),
                    count,
                    chunks,
                    o->at.routing.skip,
                    o->at.routing.rows,
                    of};
    auto counts = count_chunks, scan = scan_chunks;
    LAUNCH(counts, blocks_for(chunks, WARPS), THREADS, 0, (cudaStream_t)r->stream, a);
    LAUNCH(scan, blocks_for(of.local, WARPS), THREADS, 0, (cudaStream_t)r->stream, a);
    cuda_launched(o, launch(place, blocks_for(chunks, WARPS), THREADS, 0, r->stream, a));
}

/* Assigns rows skip .. skip + rows - 1 to the assignments to experts first .. first + local - 1. */
void cuda_assign(const op *o, const run_context *r)
{
    const kinds of = {(int32_t)o->at.routing.first, o->at.routing.local, 0};
    if (tensor_elements(o->in[0]) == 0)
        cuda_launched(o, launch_zero(r->stream, data(o->out[1], r), (of.local + 1) * (int64_t)sizeof(int32_t)));
    else
        number(o, r, of, nullptr, o->out[1], place_chunks);
}

/* Gives a slot of rows to each of the ranks that divide all experts. */
CUDA_OP(slots, number(o, r, {0, o->at.routing.slots, o->at.routing.experts}, o->out[1], o->out[2], place_slots))

/* Adds the overflow of each capacity bucket to over [buckets + 1]; the last element becomes infinite if the program's
 * bucket overflows. */
void cuda_overflow(const op *o, const run_context *r)
{
    const op_capacity &as = o->at.capacity;
    kinds of = as.slots > 0 ? kinds{0, as.slots, as.experts} : kinds{(int32_t)as.first, as.local, 0};
    cuda_launched(o, launch(count_overflow, 1, THREADS, 0, r->stream, data<float>(o->out[0], r),
                            whole<const int32_t>(o, o->in[0], r), tensor_elements(o->in[0]), as, of,
                            o->at.accumulate != OP_WRITES));
}

/* offsets, weights: NULL where the kernel reads none */
static launch_row_ids places_of(const op *o, const run_context *r, const tensor *row_ids, const tensor *offsets,
                               const tensor *weights)
{
    return {whole<const int32_t>(o, row_ids, r),
            whole<const float>(o, weights, r),
            data<const int32_t>(offsets, r),
            row_ids->shape[0],
            row_ids->shape[1],
            offsets ? offsets->shape[0] - 1 : 0,
            o->at.routing.slots};
}

/* Checks that accesses of `vector` elements divide the rows. */
static bool divides(int vector, const launch_matrix &m)
{
    return aligned(m.at, 16) && m.pitch % vector == 0;
}

static bool divides(int, const float *)
{
    return true;
}

void cuda_dispatch(const op *o, const run_context *r)
{
    const launch_matrix rows = matrix(o->out[0], r), x = matrix(o->in[0], r);
    const int64_t count = o->out[0]->shape[0], columns = columns_of(o->out[0]), behind = count < 1024 ? count : 1024;
    const launch_row_ids of = places_of(o, r, o->in[1], o->in[2], o->in[3]);
    auto is_wide = [&](int vector) { return columns % vector == 0 && divides(vector, rows) && divides(vector, x); };
    cuda_launched(o, with_access(o->in[0]->type, is_wide, [&](auto t, auto v) {
                      return launch(send_rows<decltype(t), v()>, (unsigned)(of.tokens + behind),
                                    threads_for(columns / v()), 0, r->stream, rows, x, of, columns / v(), count);
                  }));
}

/* Launches kernel_of(T(), V()) with a block for each token, of `threads` threads; 0: as many as its `columns` want. */
template <typename K, typename... A>
static void each_token(const op *o, const run_context *r, const launch_row_ids &of, const tensor *like, unsigned threads,
                       K kernel_of, A... a)
{
    const int64_t columns = like->shape[1];
    auto is_wide = [&](int vector) { return columns % vector == 0 && (divides(vector, a) && ...); };
    cuda_launched(o, of.tokens == 0 ? 0 : with_access(like->type, is_wide, [&](auto t, auto v) {
                      const int64_t pieces = columns / v();
                      return launch(kernel_of(t, v), (unsigned)of.tokens, threads ? threads : threads_for(pieces), 0,
                                    r->stream, a..., of, pieces);
                  }));
}

/* y may be the addend, which may be absent. */
void cuda_combine(const op *o, const run_context *r)
{
    each_token(
        o, r, places_of(o, r, o->in[1], nullptr, o->in[3]), o->out[0], 0,
        [](auto t, auto v) { return add_rows_of_tokens<decltype(t), v()>; }, matrix(o->out[0], r), matrix(o->in[0], r),
        matrix(o->in[4], r));
}

void cuda_combine_dots(const op *o, const run_context *r)
{
    each_token(
        o, r, places_of(o, r, o->in[2], nullptr, nullptr), o->in[0], THREADS,
        [](auto t, auto v) { return dot_rows_of_tokens<decltype(t), v()>; }, whole<float>(o, o->out[0], r),
        matrix(o->in[0], r), matrix(o->in[1], r));
}
