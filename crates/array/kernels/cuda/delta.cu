// The gated delta rule. The definition is in `cpu/reference.rs`.
//
// A block has some columns of the state `[dk, dv]` of one head of one row, a warp 16 of them: they stay in registers from
// the first token to the last, are read once and written once. Keys, queries, values, decays and betas come through
// shared memory, some tokens ahead of their use.
//
// A token takes one round of sums over `dk`, since `M^T q` of the new state is `M^T q + d (k q)` of the decayed one.
#include "recurrent.cuh"

struct Delta {
    Mat q, k, v, decay, beta;
    State state;
    Mat out;
    u32 hk, hv, dk, dv, chunk, zero;
};

// Where the numbers of a token lie in shared memory: key, query and, where each row of the state has one, decays, with
// zeros behind the last; values of the block's columns; beta, and the decay where a head has one.
template <u32 R, bool BY_ROW>
struct Staged {
    static constexpr u32 ROWS = SHARING * R, QUERY = ROWS, DECAYS = 2 * ROWS;
    static constexpr u32 VALUES = (BY_ROW ? 3 : 2) * ROWS;

    u32 beta, decay, size;

    DEVICE explicit Staged(u32 cols) : beta(VALUES + cols), decay(beta + 1), size(beta + 4) {}
};

// Copies tokens `from..` of a chunk; a warp has every so many-th.
template <u32 R, bool BY_ROW>
DEVICE void stage(
    const Delta& a, const RowTokens& row, const Part& part, Staged<R, BY_ROW> at, float* to,
    u32 from
) {
    u32 warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    u32 keys = a.hk * a.dk, values = a.hv * a.dv, h = part.head, kh = h / (a.hv / a.hk);
    u32 end = min(row.all, from + a.chunk);
    for (u32 i = from + warp; i < end; i += warps) {
        float* token = to + (i - from) * at.size;
        const float* k = row.input(a.state, a.k, i, 0) + kh * a.dk;
        const float* v = row.input(a.state, a.v, i, keys);
        const float* decay = row.input(a.state, a.decay, i, keys + values);
        const float* beta = row.input(a.state, a.beta, i, keys + values + a.decay.cols);
        // Queries of tokens in the log are gone, and their results are not wanted.
        const float* q = i < row.logged ? k : a.q.row(row.token(i)) + kh * a.dk;
        copy_later(token, k, a.dk);
        copy_later(token + at.QUERY, q, a.dk);
        copy_later(token + at.VALUES, v + h * a.dv + part.start, part.n);
        copy_later(token + at.beta, beta + h, 1);
        if (BY_ROW) {
            copy_later(token + at.DECAYS, decay + h * a.dk, a.dk);
        } else {
            copy_later(token + at.decay, decay + h, 1);
        }
    }
}

// Which column of a warp a lane gets the sums of.
DEVICE u32 column_of_sum() { return threadIdx.x % BESIDE * 4 + threadIdx.x % 16 / BESIDE; }

// One token through the columns of a warp. Returns in the second half of its lanes a result each, of column
// `column_of_sum()`.
template <u32 R, bool BY_ROW>
DEVICE float delta_token(Tile<R>& tile, const float* token, const Staged<R, BY_ROW>& at, u32 warp) {
    u32 lane = threadIdx.x % WARP;
    float of_head = BY_ROW ? 1.0f : token[at.decay];
    // Of the decayed columns the products with the key, then those with the query; and of key and query.
    float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, kq = 0.0f;
#pragma unroll
    for (u32 j = 0; j < R / 4; j++) {
        u32 i = Tile<R>::rows_from(j);
        float k[4], q[4], decay[4] = {of_head, of_head, of_head, of_head};
        *(float4*)k = load4(token + i);
        *(float4*)q = load4(token + at.QUERY + i);
        if (BY_ROW) *(float4*)decay = load4(token + at.DECAYS + i);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            kq += k[e] * q[e];
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                float m = tile.m[4 * j + e][c] * decay[e];
                tile.m[4 * j + e][c] = m;
                sums[c] += m * k[e];
                sums[4 + c] += m * q[e];
            }
        }
    }
    halve<8>(sums, 16);
    halve<4>(sums, 8);
    halve<2>(sums, 4);
    kq = sum_of_sharing(kq);
    // The first half of the lanes has products with the key, the second half those with the query.
    float v = token[at.VALUES + warp * COLUMNS + column_of_sum()];
    float d = token[at.beta] * (v - sums[0]);
    float y = sums[0] + kq * __shfl_sync(ALL, d, lane % 16);
    float of_column[4];
#pragma unroll
    for (u32 c = 0; c < 4; c++) of_column[c] = __shfl_sync(ALL, d, BESIDE * c + lane % BESIDE);
#pragma unroll
    for (u32 j = 0; j < R / 4; j++) {
        float k[4];
        *(float4*)k = load4(token + Tile<R>::rows_from(j));
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) tile.m[4 * j + e][c] += k[e] * of_column[c];
        }
    }
    return y;
}

template <u32 R, bool BY_ROW>
DEVICE void delta_row(const Delta& a, const RowTokens& row) {
    extern __shared__ float4 shared[];
    const Part part(a.dv);
    const Staged<R, BY_ROW> at(part.cols);
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float* const chunks = (float*)shared;
    const u32 size = a.chunk * at.size;
    clear_chunks(chunks, 2 * size, a.dk < at.ROWS || part.n < part.cols);
    stage(a, row, part, at, chunks, 0);
    end_copies();

    Held<R> held(a.state, row, part, a.dk, a.dv);
    u32 result = part.of_warp() + column_of_sum();
    bool has_result = lane >= 16 && result < a.dv;
    for (u32 from = 0, now = 0; from < row.all; from += a.chunk, now = size - now) {
        if (from + a.chunk < row.all) stage(a, row, part, at, chunks + size - now, from + a.chunk);
        end_copies();
        wait_for_copies();
        __syncthreads();
        u32 end = min(row.all, from + a.chunk);
        for (u32 i = from; i < end; i++) {
            float y = delta_token(held.tile, chunks + now + (i - from) * at.size, at, warp);
            if (has_result && i >= row.logged) {
                a.out.row(row.token(i))[part.head * a.dv + result] = y;
            }
            if (i + 1 == row.confirmed) held.store();
        }
        __syncthreads();
    }
}

template <u32 R>
DEVICE void delta(const Step& step, const Delta& a) {
    if (blockIdx.z >= step.rows()) return;
    RowTokens row(step, blockIdx.z);
    if (a.decay.cols == a.hv) {
        delta_row<R, false>(a, row);
    } else {
        delta_row<R, true>(a, row);
    }
}

// Keys of at most so many numbers.
KERNEL delta_32(Step step, Delta a) { delta<4>(step, a); }
KERNEL delta_64(Step step, Delta a) { delta<8>(step, a); }
KERNEL delta_128(Step step, Delta a) { delta<16>(step, a); }
KERNEL delta_256(Step step, Delta a) { delta<32>(step, a); }
