/* Flash attention, backward, without atomics: one kernel makes dq, going through keys for a block of queries; another
 * makes dk and dv, going through the queries (of all heads that share the keys) for a block of keys. Both recompute the
 * probabilities p = exp(s - lse). With delta = sum(dy y) of a query (2307.08691, algorithm 2):
 *     dv = p^T dy,   ds = p (dy v^T - delta),   dq = scale ds k,   dk = scale ds^T q
 * With a cap, of which s = cap t, t = tanh(scale q k / cap), ds has a factor 1 - t^2.
 */
#include "kernels/cuda/flash.cuh"

/* Operands of both kernels that the forward pass does not have. */
template <typename T> struct grad_in {
    flash_rows<T> dq, dk, dv;
    flash_rows<const T> dy;
    const float *delta; /* [heads, tokens] */
};

/* dynamic shared memory: q[M], dy[M], then STAGES times k[N], v[N]; grid (query blocks of a run, heads, runs). With two
 * stages the next tile is copied while this one is read. */
template <typename T, int D, int E, int MT, int N, int STAGES, bool CAP>
KERNEL(FLASH_THREADS, 1)
flash_grad_q(grad_in<T> g, flash_in<T> in)
{
    constexpr int M = FLASH_WARPS * 16 * MT, STAGE = N * (STRIDE<D> + STRIDE<E>);
    SHARED_DYNAMIC(dynamic);
    T *q_tile = reinterpret_cast<T *>(dynamic), *dy_tile = q_tile + M * STRIDE<D>, *kv_tiles = dy_tile + M * STRIDE<E>;
    int lane = (int)threadIdx.x % WARP, a_row = (int)threadIdx.x / WARP * 16 * MT, pair = lane % 4 * 2;
    int head = (int)blockIdx.y, kv_head = heads_read(head, in.heads, in.kv_heads);
    flash_run of = in.run_at((int32_t)blockIdx.z);
    int32_t first = (int32_t)(gridDim.x - 1 - blockIdx.x) * M;
    int32_t end = first + M < in.run ? first + M : in.run, keys_end = in.keys_end(of, end - 1);
    int32_t key = in.lowest(of, first) / N * N, low_last = in.lowest(of, end - 1);
    const T *k = in.k.at(of.keys, kv_head, D), *v = in.v.at(of.keys, kv_head, E);
    float scale = exponent_of<CAP>(in) * LOG2_E;
    float out[MT][D / 8][4] = {}, lse_2[MT][2], del[MT][2], factor[MT][2];
    int32_t low[MT][2];
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int half = 0; half < 2; half++)
    {
        int32_t query = first + a_row + m * 16 + half * 8 + lane / 4;
        bool valid = query < end;
        lse_2[m][half] = valid ? in.lse_of((int32_t)blockIdx.z, head)[query] * LOG2_E : INFINITY;
        del[m][half] = valid ? g.delta[head * in.tokens + of.row + query] : 0.0f;
        low[m][half] = valid ? in.lowest(of, query) : 0;
        factor[m][half] = in.scale;
    }
    fetch_tile<D, M>(q_tile, in.q.at(of.row, head, D), in.q.pitch, first, end);
    fetch_tile<E, M>(dy_tile, g.dy.at(of.row, head, E), g.dy.pitch, first, end);
    fetch_tile<D, N>(kv_tiles, k, in.k.pitch, key, keys_end);
    fetch_tile<E, N>(kv_tiles + N * STRIDE<D>, v, in.v.pitch, key, keys_end);
    copy_commit();
    for (int stage = 0; key < keys_end; key += N, stage ^= STAGES - 1) {
        T *k_tile = kv_tiles + stage * STAGE, *v_tile = k_tile + N * STRIDE<D>;
        T *next = kv_tiles + (stage ^ (STAGES - 1)) * STAGE;
        copy_wait<0>();
        block_barrier(); /* this stage has been copied, and no thread reads the other any more */
        if (STAGES == 2 && key + N < keys_end) {
            fetch_tile<D, N>(next, k, in.k.pitch, key + N, keys_end);
            fetch_tile<E, N>(next + N * STRIDE<D>, v, in.v.pitch, key + N, keys_end);
        }
        copy_commit();
        float score[MT][N / 8][4] = {}, slope[MT][N / 8][4] = {};
        multiply_rows<D, N, MT>(score, q_tile, a_row, k_tile);
        multiply_rows<E, N, MT>(slope, dy_tile, a_row, v_tile);
        bool edge = key + N > in.keys_end(of, first) || key < low_last;
        UNROLL for (int m = 0; m < MT; m++) UNROLL for (int n = 0; n < N / 8; n++) UNROLL for (int i = 0; i < 4; i++)
        {
            int half = i / 2;
            int32_t at = key + n * 8 + pair + i % 2;
            int32_t query = of.shift + first + a_row + m * 16 + half * 8 + lane / 4;
            float s = CAP ? short_tanh(score[m][n][i] * (in.scale / in.cap)) : score[m][n][i];
            float p = fast_exp2(s * scale - lse_2[m][half]);
            if (edge && !token_sees(query, low[m][half], at))
                p = 0;
            score[m][n][i] = p * (slope[m][n][i] - del[m][half]) * (CAP ? 1.0f - s * s : 1.0f);
        }
        multiply_columns<D, N, MT>(out, score, k_tile);
        if (STAGES == 1 && key + N < keys_end) {
            block_barrier(); /* no thread reads the only stage any more */
            fetch_tile<D, N>(next, k, in.k.pitch, key + N, keys_end);
            fetch_tile<E, N>(next + N * STRIDE<D>, v, in.v.pitch, key + N, keys_end);
            copy_commit();
        }
    }
    copy_wait<0>();
    write_rows<D, MT>(g.dq.at(of.row, head, D), g.dq.pitch, first, end, q_tile, a_row, out, factor);
}

/* A stage's data of each query beside its rows. */
template <int M> struct query_facts {
    float lse_2[M], delta[M];
    int32_t low[M];
};

template <typename T, int D, int E, int M>
DEVICE void fetch_queries(T *tiles, query_facts<M> *facts, const query_walk &at, const grad_in<T> &g,
                          const flash_in<T> &in)
{
    fetch_tile<D, M>(tiles, in.q.at(at.of.row, at.head, D), in.q.pitch, at.query, in.run);
    fetch_tile<E, M>(tiles + M * STRIDE<D>, g.dy.at(at.of.row, at.head, E), g.dy.pitch, at.query, in.run);
    for (int i = (int)threadIdx.x; i < M; i += FLASH_THREADS) {
        int32_t query = at.query + i;
        bool valid = query < in.run;
        facts->lse_2[i] = valid ? in.lse_of(at.run, at.head)[query] * LOG2_E : INFINITY; /* p = 0 past the end */
        facts->delta[i] = valid ? g.delta[at.head * in.tokens + at.of.row + query] : 0.0f;
        facts->low[i] = valid ? in.lowest(at.of, query) : 0;
    }
}

/* Computes p^T of keys `key`.. against the stage's queries, the first at position `query`, from scores; ds^T from p and
 * dp. With a cap, `part` keeps p (1 - tanh^2), the factor of ds^T. */
template <int M, bool CAP>
DEVICE void probabilities(float (&score)[M / 8][4], float (&part)[CAP ? M / 8 : 1][4], const query_facts<M> *facts,
                          int32_t key, int32_t query, float scale, float factor)
{
    int pair = (int)threadIdx.x % 4 * 2;
    UNROLL for (int n = 0; n < M / 8; n++) UNROLL for (int i = 0; i < 4; i++)
    {
        int column = n * 8 + pair + i % 2;
        int32_t at = key + i / 2 * 8;
        float s = CAP ? short_tanh(score[n][i] * factor) : score[n][i];
        float p = fast_exp2(s * scale - facts->lse_2[column]);
        score[n][i] = token_sees(query + column, facts->low[column], at) ? p : 0.0f;
        if constexpr (CAP)
            part[n][i] = score[n][i] * (1.0f - s * s);
    }
}

template <int M> DEVICE void take_slopes(float (&p)[M / 8][4], const float (&dp)[M / 8][4], const query_facts<M> *facts)
{
    int pair = (int)threadIdx.x % 4 * 2;
    UNROLL for (int n = 0; n < M / 8; n++) UNROLL for (int i = 0; i < 4; i++) p[n][i] *=
        dp[n][i] - facts->delta[n * 8 + pair + i % 2];
}

template <bool FIRST, typename A, typename B> DEVICE auto &either(A &a, B &b)
{
    if constexpr (FIRST)
        return a;
    else
        return b;
}

/* dynamic shared memory: k[N], v[N], then STAGES times q[M], dy[M]; grid (key blocks, kv_heads, samples). Large heads
 * make dk and dv in two launches, their accumulators together being more than the registers hold. */
template <typename T, int D, int E, int MT, int M, int STAGES, bool MAKE_K, bool MAKE_V, bool CAP>
KERNEL(FLASH_THREADS, 1)
flash_grad_kv(grad_in<T> g, flash_in<T> in)
{
    constexpr int N = FLASH_WARPS * 16 * MT, STAGE = M * (STRIDE<D> + STRIDE<E>);
    SHARED_DYNAMIC(dynamic);
    SHARED(query_facts<M>, facts, STAGES);
    T *k_tile = reinterpret_cast<T *>(dynamic), *v_tile = k_tile + N * STRIDE<D>, *tiles = v_tile + N * STRIDE<E>;
    int lane = (int)threadIdx.x % WARP, a_row = (int)threadIdx.x / WARP * 16 * MT;
    int kv_head = (int)blockIdx.y, last_head = heads_first(kv_head + 1, in.heads, in.kv_heads);
    int64_t keys = (int64_t)blockIdx.z * in.sequence;
    int32_t first = (int32_t)blockIdx.x * N, end = first + N < in.sequence ? first + N : in.sequence;
    float scale = exponent_of<CAP>(in) * LOG2_E;
    float dk[MAKE_K ? MT : 1][D / 8][4] = {}, dv[MAKE_V ? MT : 1][E / 8][4] = {}, factor[MT][2], one[MT][2];
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int half = 0; half < 2; half++)
    {
        factor[m][half] = in.scale;
        one[m][half] = 1;
    }
    fetch_tile<D, N>(k_tile, in.k.at(keys, kv_head, D), in.k.pitch, first, end);
    fetch_tile<E, N>(v_tile, in.v.at(keys, kv_head, E), in.v.pitch, first, end);
    query_walk at =
        walk_on<M>({heads_first(kv_head, in.heads, in.kv_heads), 0, -1, {}}, in, keys, first, end, last_head);
    if (at.head < last_head)
        fetch_queries<T, D, E, M>(tiles, facts, at, g, in);
    copy_commit();
    for (int stage = 0; at.head < last_head; stage ^= STAGES - 1) {
        const T *q_tile = tiles + stage * STAGE, *dy_tile = q_tile + M * STRIDE<D>;
        copy_wait<0>();
        block_barrier(); /* this stage has been copied, and no thread reads the other any more */
        query_walk next = walk_on<M>({at.head, at.run, at.query + M, at.of}, in, keys, first, end, last_head);
        if (STAGES == 2 && next.head < last_head)
            fetch_queries<T, D, E, M>(tiles + (stage ^ 1) * STAGE, facts + (stage ^ 1), next, g, in);
        copy_commit();
        float p[MT][M / 8][4] = {}, part[CAP ? MT : 1][CAP ? M / 8 : 1][4];
        multiply_rows<D, M, MT>(p, k_tile, a_row, q_tile);
        UNROLL for (int m = 0; m < MT; m++)
            probabilities<M, CAP>(p[m], part[CAP ? m : 0], facts + stage, first + a_row + m * 16 + lane / 4,
                                  at.of.shift + at.query, scale, in.scale / in.cap);
        if constexpr (MAKE_V)
            multiply_columns<E, M, MT>(dv, p, dy_tile);
        if constexpr (MAKE_K) {
            float dp[MT][M / 8][4] = {};
            multiply_rows<E, M, MT>(dp, v_tile, a_row, dy_tile);
            auto &weight = either<CAP>(part, p);
            UNROLL for (int m = 0; m < MT; m++) take_slopes<M>(weight[m], dp[m], facts + stage);
            multiply_columns<D, M, MT>(dk, weight, q_tile);
        }
        if (STAGES == 1 && next.head < last_head) {
            block_barrier(); /* no thread reads the only stage any more */
            fetch_queries<T, D, E, M>(tiles, facts, next, g, in);
            copy_commit();
        }
        at = next;
    }
    copy_wait<0>();
    block_barrier(); /* where no query has seen these keys, they are no longer copied into the tile that is written */
    if constexpr (MAKE_K)
        write_rows<D, MT>(g.dk.at(keys, kv_head, D), g.dk.pitch, first, end, k_tile, a_row, dk, factor);
    if constexpr (MAKE_V)
        write_rows<E, MT>(g.dv.at(keys, kv_head, E), g.dv.pitch, first, end, v_tile, a_row, dv, one);
}

template <typename T> struct arguments {
    void *stream;
    grad_in<T> g;
    const launch_attention_operands *of;
};

/* Bytes of shared memory for tiles of `own` rows, and STAGES times `others` rows. */
template <typename T, int D, int E> constexpr int tiles_bytes(int own, int others, int stages)
{
    return (own + stages * others) * (STRIDE<D> + STRIDE<E>)*(int)sizeof(T);
}

template <typename T, int D, int E, int MT, int N, int STAGES, bool CAP> static int run_q(const arguments<T> &a)
{
    constexpr int M = FLASH_WARPS * 16 * MT, shared = tiles_bytes<T, D, E>(M, N, STAGES);
    auto kernel = flash_grad_q<T, D, E, MT, N, STAGES, CAP>;
    int failed = allow_shared(kernel, shared);
    if (failed)
        return failed;
    const launch_heads &at = a.of->at;
    dim3 grid(blocks_for(a.of->run, M), (unsigned)at.heads, (unsigned)(a.of->tokens / a.of->run));
    return launch(kernel, grid, FLASH_THREADS, shared, a.stream, a.g, flash_of<T>(a.of));
}

template <typename T, int D, int E, int MT, int M, int STAGES, bool MAKE_K, bool MAKE_V, bool CAP>
static int run_kv(const arguments<T> &a)
{
    constexpr int N = FLASH_WARPS * 16 * MT, shared = tiles_bytes<T, D, E>(N, M, STAGES);
    auto kernel = flash_grad_kv<T, D, E, MT, M, STAGES, MAKE_K, MAKE_V, CAP>;
    int failed = allow_shared(kernel, shared);
    if (failed)
        return failed;
    const launch_heads &at = a.of->at;
    dim3 grid(blocks_for(at.sequence, N), (unsigned)at.kv_heads, (unsigned)(a.of->keys / at.sequence));
    return launch(kernel, grid, FLASH_THREADS, shared, a.stream, a.g, flash_of<T>(a.of));
}

/* N: keys of a tile of the dq kernel; M: queries of a tile of the dk, dv kernel. */
template <typename T, int D, int E, int MT_Q, int N, int MT_KV, int M, int STAGES, bool CAP>
static int run_all(const arguments<T> &a)
{
    int failed = run_q<T, D, E, MT_Q, N, STAGES, CAP>(a);
    if (failed)
        return failed;
    if constexpr (D <= 128) {
        return run_kv<T, D, E, MT_KV, M, STAGES, true, true, CAP>(a);
    } else {
        failed = run_kv<T, D, E, MT_KV, M, STAGES, false, true, CAP>(a);
        return failed ? failed : run_kv<T, D, E, MT_KV, M, STAGES, true, false, CAP>(a);
    }
}

template <typename T, int D, int E, int MT_Q, int N, int MT_KV, int M, int STAGES = 2>
static int run(const arguments<T> &a)
{
    return with_cap(a.of->at.cap, [&](auto capped) {
        return run_all<T, D, E, MT_Q, N, MT_KV, M, STAGES, decltype(capped)::value>(a);
    });
}

/* True if the device has the shared memory of large tiles; GPUs of 99 KiB a block do not. */
template <typename T, int D> static bool large_fit(int own, int others)
{
    return tiles_bytes<T, D, D>(own, others, 2) <= max_dynamic_shared();
}

template <typename T>
static int run_size(void *stream, const launch_attention_gradients *to, const launch_attention_operands *of)
{
    const arguments<T> a = {stream,
                            {flash_rows_of<T>(to->dq), flash_rows_of<T>(to->dk), flash_rows_of<T>(to->dv),
                             flash_rows_of<const T>(to->dy), to->scratch},
                            of};
    switch (of->at.head_size) {
    case 64:
        return run<T, 64, 64, 2, 32, 1, 64>(a);
    case 80:
        return run<T, 80, 80, 2, 32, 1, 32>(a);
    case 96:
        return run<T, 96, 96, 2, 32, 1, 32>(a);
    case 128:
        return large_fit<T, 128>(64, 64) ? run<T, 128, 128, 1, 64, 1, 32>(a) : run<T, 128, 128, 1, 32, 1, 32>(a);
    case 192:
        return run<T, 192, 128, 1, 32, 1, 32>(a);
    default:
        return large_fit<T, 256>(64, 32) ? run<T, 256, 256, 1, 32, 1, 32>(a) : run<T, 256, 256, 1, 16, 1, 16, 1>(a);
    }
}

int flash_backward(void *stream, int type, const launch_attention_gradients *to, const launch_attention_operands *of)
{
    return type == DTYPE_BF16 ? run_size<bf16>(stream, to, of) : run_size<fp16>(stream, to, of);
}
