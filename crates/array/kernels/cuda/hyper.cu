// Hyper-connections: a few residual streams, mixed before and after each half of a block. The definitions are in
// `cpu/hyper.rs`.
#include "common.cuh"

// The most streams: `MOST_STREAMS` in `op/shape.rs`.
constexpr u32 MOST = 8;

// A sum over the eight lanes of a row of the square.
DEVICE float row_sum(float x) {
    for (u32 bit = 1; bit < MOST; bit *= 2) x += __shfl_xor_sync(ALL, x, bit);
    return x;
}

DEVICE float row_max(float x) {
    for (u32 bit = 1; bit < MOST; bit *= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, bit));
    return x;
}

// Up to 8 x 8 numbers of a warp: lane `l` has column `l % 8` of rows `l / 8` and `l / 8 + 4`. What lies beyond `n` is 0.
struct Square {
    float m[2];
    bool has[2];

    DEVICE void divide_rows(float eps) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float sum = row_sum(m[half]) + eps;
            if (has[half]) m[half] /= sum;
        }
    }

    DEVICE void divide_columns(float eps) {
        float sum = m[0] + m[1];
        for (u32 bit = MOST; bit < WARP; bit *= 2) sum += __shfl_xor_sync(ALL, sum, bit);
        sum += eps;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (has[half]) m[half] /= sum;
        }
    }
};

// A warp has a row.
KERNEL hyper_weights(Step step, Mat z, Vec scale, Vec base, u32 n, u32 iters, float eps, Mat out) {
    u32 i = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (i >= out.live(step)) return;
    const float* from = z.row(i);
    float* to = out.row(i);
    if (lane < n) to[lane] = sigmoid(from[lane] * scale.at[0] + base.at[lane]) + eps;
    if (z.cols == n) return;
    if (lane < n) {
        to[n + lane] = 2.0f * sigmoid(from[n + lane] * scale.at[1] + base.at[n + lane]);
    }
    const float least = -infinity();
    u32 column = lane % MOST, places[2];
    Square square;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 j = lane / MOST + 4 * half, at = 2 * n + j * n + column;
        bool has = j < n && column < n;
        float x = has ? from[at] * scale.at[2] + base.at[at] : least;
        float most = row_max(x);
        float e = has ? expf(x - most) : 0.0f, sum = row_sum(e);
        square.m[half] = has ? e / sum + eps : 0.0f;
        square.has[half] = has;
        places[half] = at;
    }
    square.divide_columns(eps);
    for (u32 turn = 1; turn < iters; turn++) {
        square.divide_rows(eps);
        square.divide_columns(eps);
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        if (square.has[half]) to[places[half]] = square.m[half];
    }
}

// A thread has a column of a row.
KERNEL hyper_in(Step step, Mat streams, Mat weights, Mat out) {
    u32 i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x, n = weights.cols;
    if (i >= out.live(step) || j >= out.cols) return;
    const float *from = streams.row(i) + j, *w = weights.row(i);
    float sum = 0.0f;
    for (u32 s = 0; s < n; s++) sum += w[s] * from[(u64)s * out.cols];
    out.row(i)[j] = sum;
}

// A thread has a column of all streams of a row.
KERNEL hyper_out(Step step, Mat streams, Mat y, Mat weights, Mat out) {
    u32 i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x, cols = y.cols;
    if (i >= out.live(step) || j >= cols) return;
    u32 n = out.cols / cols;
    const float *from = streams.row(i) + j, *w = weights.row(i);
    float* to = out.row(i) + j;
    float x[MOST], own = y.row(i)[j];
#pragma unroll
    for (u32 s = 0; s < MOST; s++) x[s] = s < n ? from[(u64)s * cols] : 0.0f;
    for (u32 k = 0; k < n; k++) {
        float sum = w[k] * own;
#pragma unroll
        for (u32 s = 0; s < MOST; s++) {
            if (s < n) sum += w[n + s * n + k] * x[s];
        }
        to[(u64)k * cols] = sum;
    }
}
