// What carries a record of a few numbers for each channel from token to token: convolution, decays; and the logs.
// The definitions are in `cpu/reference.rs`.
//
// A thread has a channel of a slice of a row's tokens. Slice 0 has those of the log, and alone touches record and log.
#include "recurrent.cuh"

// Positions after which a running sum starts again: `SUM_BLOCK` in `op/mod.rs`.
constexpr u32 SUM_BLOCK = 64;
// Tokens that a thread loads before it works on them.
constexpr u32 AHEAD = 8;
// The fewest tokens of the step that a slice has, no fewer than a convolution looks back.
constexpr u32 SLICE = 32;

// What one channel of tokens `i..` brings, 0 from token `to` on.
DEVICE void load_ahead(
    float (&x)[AHEAD], const RowTokens& row, const State& state, const Mat& from, u32 i, u32 to,
    u32 j
) {
#pragma unroll
    for (u32 a = 0; a < AHEAD; a++) {
        x[a] = i + a < to ? row.input(state, from, i + a, 0)[j] : 0.0f;
    }
}

// Puts what unconfirmed tokens bring to one channel into the log. Comes last: what it overwrites is read no more.
DEVICE void log_channel(const RowTokens& row, const State& state, const Mat& x, u32 j) {
    for (u32 i = row.unconfirmed(); i < row.all; i++) {
        state.log(row.slot, i - row.confirmed)[j] = x.row(row.token(i))[j];
    }
}

// --- convolution: the record is `[K - 1, cols]`, oldest first

struct Conv {
    Mat x;
    Vec taps, bias;
    Map f;
    State state;
    Mat out;
};

template <u32 K>
DEVICE void conv_slice(const Conv& c, const RowTokens& row, u32 j) {
    u32 cols = c.x.cols, slice = blockIdx.z, count = row.all - row.logged;
    u32 len = max(SLICE, (count + gridDim.z - 1) / gridDim.z);
    u32 from = slice == 0 ? 0 : row.logged + slice * len;
    u32 to = min(row.all, row.logged + (slice + 1) * len);
    if (from >= to) return;
    float* record = c.state.numbers(row.slot) + j;
    // The last K inputs, from the oldest to the newest.
    float taps[K], last[K];
#pragma unroll
    for (u32 a = 0; a < K; a++) taps[a] = c.taps.at[a * cols + j];
#pragma unroll
    for (u32 a = 1; a < K; a++) {
        if (slice > 0) {
            last[a] = c.x.row(row.token(from - K + a))[j];
        } else {
            last[a] = row.fresh() ? 0.0f : record[(a - 1) * cols];
        }
    }
    float bias = c.bias.at ? c.bias.at[j] : 0.0f;
    for (u32 i = from; i < to; i += AHEAD) {
        float x[AHEAD];
        load_ahead(x, row, c.state, c.x, i, to, j);
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            if (i + a >= to) break;
#pragma unroll
            for (u32 b = 1; b < K; b++) last[b - 1] = last[b];
            last[K - 1] = x[a];
            float sum = 0.0f;
#pragma unroll
            for (u32 b = 0; b < K; b++) sum += last[b] * taps[b];
            if (i + a >= row.logged) c.out.row(row.token(i + a))[j] = map(c.f, sum + bias);
        }
    }
    if (slice > 0) return;
    // An entry is an older one of the record, which was not overwritten yet, or an input.
    for (u32 a = 0; a + 1 < K && row.confirmed > 0; a++) {
        u32 old = row.confirmed + a;
        float kept;
        if (old + 1 >= K) {
            kept = row.input(c.state, c.x, old + 1 - K, 0)[j];
        } else {
            kept = row.fresh() ? 0.0f : record[old * cols];
        }
        record[a * cols] = kept;
    }
    log_channel(row, c.state, c.x, j);
}

KERNEL conv(Step step, Mat x, Vec taps, Vec bias, Map f, State state, Mat out) {
    u32 j = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= step.rows() || j >= x.cols) return;
    RowTokens row(step, blockIdx.y);
    Conv c{x, taps, bias, f, state, out};
    switch (taps.len / x.cols) {
        case 1: return conv_slice<1>(c, row, j);
        case 2: return conv_slice<2>(c, row, j);
        case 3: return conv_slice<3>(c, row, j);
        case 4: return conv_slice<4>(c, row, j);
        case 5: return conv_slice<5>(c, row, j);
        case 6: return conv_slice<6>(c, row, j);
        case 7: return conv_slice<7>(c, row, j);
        default: return conv_slice<8>(c, row, j);
    }
}

// --- decays: the record is `[cols, 2]`, a running sum as f32 and remainder

// What is added for a number of a channel: the twin of `DecayCurve` in `op/mod.rs`.
struct Curve {
    u32 kind;
    float low, neg_a, bias;

    DEVICE float of(float x) const {
        x += bias;
        if (kind == 0) return neg_a * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
        return low * sigmoid(-neg_a * x);
    }
};

// A running sum, brought into the form of a record after each token.
struct RunningSum {
    float high, low;

    DEVICE double joined() const { return (double)high + (double)low; }
    DEVICE void add(float x) {
        double sum = joined() + (double)x;
        high = (float)sum;
        low = (float)(sum - (double)high);
    }
};

// The decays of tokens `from..to` of a channel. `kept` becomes the sum behind the last confirmed token, if it is one of
// them; the sum before the first is `sum`.
DEVICE void decay_tokens(
    const RowTokens& row, const State& state, const Mat& x, const Curve& curve, const Mat& out,
    u32 j, u32 from, u32 to, RunningSum sum, RunningSum& kept
) {
    for (u32 i = from; i < to; i += AHEAD) {
        float g[AHEAD];
        load_ahead(g, row, state, x, i, to, j);
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) g[a] = curve.of(g[a]);
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            if (i + a >= to) break;
            if ((row.start + i + a) % SUM_BLOCK == 0) sum = RunningSum{0.0f, 0.0f};
            float before = (float)sum.joined();
            sum.add(g[a]);
            float after = (float)sum.joined();
            if (i + a + 1 == row.confirmed) kept = sum;
            if (i + a >= row.logged) out.row(row.token(i + a))[j] = expf(after - before);
        }
    }
}

// Slice 0 has the tokens up to the end of the block of positions that holds the first of the step. Of the blocks behind
// it, whose sums start at 0, each slice has every `slices`-th.
KERNEL decay(Step step, Mat x, Vec neg_a, Vec bias, u32 kind, float low, State state, Mat out) {
    u32 j = blockIdx.x * blockDim.x + threadIdx.x, slice = blockIdx.z;
    if (blockIdx.y >= step.rows() || j >= x.cols) return;
    RowTokens row(step, blockIdx.y);
    Curve curve{kind, low, neg_a.at[j], bias.at[j]};
    u32 end = ((row.start + row.logged) / SUM_BLOCK + 1) * SUM_BLOCK - row.start;
    RunningSum kept{0.0f, 0.0f};
    if (slice == 0) {
        float* record = state.numbers(row.slot) + 2 * j;
        RunningSum sum = row.fresh() ? kept : RunningSum{record[0], record[1]};
        decay_tokens(row, state, x, curve, out, j, 0, min(end, row.all), sum, kept);
        if (row.confirmed > end) {
            // Another slice has the last confirmed token. Its results are the same when they are made here.
            u32 from = end + (row.confirmed - 1 - end) / SUM_BLOCK * SUM_BLOCK;
            RunningSum zero{0.0f, 0.0f};
            decay_tokens(row, state, x, curve, out, j, from, row.confirmed, zero, kept);
        }
        if (row.confirmed > 0) record[0] = kept.high, record[1] = kept.low;
        log_channel(row, state, x, j);
    }
    for (u32 from = end + slice * SUM_BLOCK; from < row.all; from += gridDim.z * SUM_BLOCK) {
        RunningSum zero{0.0f, 0.0f};
        u32 to = min(from + SUM_BLOCK, row.all);
        decay_tokens(row, state, x, curve, out, j, from, to, zero, kept);
    }
}

// --- logs of the kernels that spread a row over several blocks

// Puts what unconfirmed tokens bring into the logs of their rows, up to four tensors side by side.
KERNEL log_inputs(Step step, Mat a, Mat b, Mat c, Mat d, State state) {
    if (blockIdx.z >= step.rows()) return;
    RowTokens row(step, blockIdx.z);
    u32 i = row.unconfirmed() + blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= row.all || j >= state.inputs) return;
    u32 t = row.token(i), at = j;
    const float* from = a.row(t);
    if (at >= a.cols) at -= a.cols, from = b.row(t);
    if (j >= a.cols && at >= b.cols) at -= b.cols, from = c.row(t);
    if (j >= a.cols + b.cols && at >= c.cols) at -= c.cols, from = d.row(t);
    state.log(row.slot, i - row.confirmed)[j] = from[at];
}
