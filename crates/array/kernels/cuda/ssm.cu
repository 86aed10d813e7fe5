// The selective scan. The definition is in `cpu/ssm.rs`.
//
// A block has some columns of the state `[state, dim]` of one head of one row, as in `delta.cu`.
#include "recurrent.cuh"

struct Scan {
    Mat x, b, c, dt;
    Vec neg_a, bias, skip;
    float low, high;
    State state;
    Mat out;
    u32 heads, groups, dim, rows, chunk, zero;
};

// Where the numbers of a token lie in shared memory: `b` and `c`, with zeros behind the last; the block's columns of `x`;
// dt.
template <u32 R>
struct Staged {
    static constexpr u32 ROWS = SHARING * R, C = ROWS, X = 2 * ROWS;

    u32 dt, size;

    DEVICE explicit Staged(u32 cols) : dt(X + cols), size(dt + 4) {}
};

// Copies tokens `from..` of a chunk; a warp has every so many-th.
template <u32 R>
DEVICE void stage(
    const Scan& a, const RowTokens& row, const Part& part, Staged<R> at, float* to, u32 from
) {
    u32 warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    u32 inner = a.heads * a.dim, keys = a.groups * a.rows, h = part.head;
    u32 group = h / (a.heads / a.groups) * a.rows;
    u32 end = min(row.all, from + a.chunk);
    for (u32 i = from + warp; i < end; i += warps) {
        float* token = to + (i - from) * at.size;
        const float* x = row.input(a.state, a.x, i, 0);
        const float* b = row.input(a.state, a.b, i, inner) + group;
        const float* dt = row.input(a.state, a.dt, i, inner + keys);
        // `c` of tokens in the log is gone, and their results are not wanted.
        const float* c = i < row.logged ? b : a.c.row(row.token(i)) + group;
        copy_later(token, b, a.rows);
        copy_later(token + at.C, c, a.rows);
        copy_later(token + at.X, x + h * a.dim + part.start, part.n);
        copy_later(token + at.dt, dt + h, 1);
    }
}

// What a token's dt makes of it: the step, and what is kept of the state.
struct Rates {
    float delta, keep;

    DEVICE Rates(const Scan& a, u32 h, float dt) {
        float x = dt + a.bias.at[h];
        delta = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
        // What is no number stays so.
        delta = delta < a.low ? a.low : delta > a.high ? a.high : delta;
        keep = expf(delta * a.neg_a.at[h]);
    }
};

// Which column of a warp a lane gets the sum of.
DEVICE u32 column_of_sum() { return threadIdx.x % BESIDE * 4 + threadIdx.x / 8 % 4; }

// One token through the columns of a warp. Returns in each lane the product with `c` of column `column_of_sum()`.
template <u32 R>
DEVICE float scan_token(
    Tile<R>& tile, const float* token, float delta, float keep, const float* x
) {
    float step[4], sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    *(float4*)step = load4(x);
#pragma unroll
    for (u32 c = 0; c < 4; c++) step[c] *= delta;
#pragma unroll
    for (u32 j = 0; j < R / 4; j++) {
        u32 i = Tile<R>::rows_from(j);
        float b[4], c[4];
        *(float4*)b = load4(token + i);
        *(float4*)c = load4(token + Staged<R>::C + i);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
#pragma unroll
            for (u32 col = 0; col < 4; col++) {
                float m = keep * tile.m[4 * j + e][col] + b[e] * step[col];
                tile.m[4 * j + e][col] = m;
                sums[col] += m * c[e];
            }
        }
    }
    halve<4>(sums, 16);
    halve<2>(sums, 8);
    return sums[0] + __shfl_xor_sync(ALL, sums[0], 4);
}

template <u32 R>
DEVICE void scan(const Step& step, const Scan& a) {
    extern __shared__ float4 shared[];
    if (blockIdx.z >= step.rows()) return;
    const RowTokens row(step, blockIdx.z);
    const Part part(a.dim);
    const Staged<R> at(part.cols);
    u32 lane = threadIdx.x % WARP, in_block = threadIdx.x / WARP * COLUMNS;
    float* const chunks = (float*)shared;
    const u32 size = a.chunk * at.size;
    clear_chunks(chunks, 2 * size, a.rows < at.ROWS || part.n < part.cols);
    stage(a, row, part, at, chunks, 0);
    end_copies();

    Held<R> held(a.state, row, part, a.rows, a.dim);
    u32 result = part.of_warp() + column_of_sum();
    bool has_result = (lane & 4) == 0 && result < a.dim;
    float skip = a.skip.at[part.head];
    for (u32 from = 0, now = 0; from < row.all; from += a.chunk, now = size - now) {
        if (from + a.chunk < row.all) stage(a, row, part, at, chunks + size - now, from + a.chunk);
        end_copies();
        wait_for_copies();
        __syncthreads();
        u32 end = min(row.all, from + a.chunk);
        // A lane has the rates of one token of the chunk, which has no more than there are lanes.
        u32 own = min(lane, end - from - 1);
        Rates rates(a, part.head, chunks[now + own * at.size + at.dt]);
        for (u32 i = from; i < end; i++) {
            const float* token = chunks + now + (i - from) * at.size;
            const float* x = token + at.X + in_block;
            float delta = __shfl_sync(ALL, rates.delta, i - from);
            float keep = __shfl_sync(ALL, rates.keep, i - from);
            float y = scan_token(held.tile, token, delta, keep, x + Tile<R>::column());
            if (has_result && i >= row.logged) {
                y += skip * x[column_of_sum()];
                a.out.row(row.token(i))[part.head * a.dim + result] = y;
            }
            if (i + 1 == row.confirmed) held.store();
        }
        __syncthreads();
    }
}

// States of at most so many rows.
KERNEL ssm_32(Step step, Scan a) { scan<4>(step, a); }
KERNEL ssm_64(Step step, Scan a) { scan<8>(step, a); }
KERNEL ssm_128(Step step, Scan a) { scan<16>(step, a); }
KERNEL ssm_256(Step step, Scan a) { scan<32>(step, a); }
