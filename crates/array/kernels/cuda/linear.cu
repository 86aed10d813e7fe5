// Lookups and the plain product: weights of any format, number by number.
#include "common.cuh"
#include "format.cuh"

KERNEL embed(Step step, Matrix table, float scale, Mat out) {
    u32 i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= out.live(step) || j >= out.cols) return;
    const u8* row = table.row(0, step.id(i));
    out.row(i)[j] = number(table.format, row, j) * scale;
}

// Rows of activations that a warp has at a time: `TOKENS` in `linear.rs`.
constexpr u32 TOKENS = 8;

// `x W^T + bias`, of matrix `z` of a stack with columns of its own. A warp has an output of `TOKENS` rows; its lanes
// have every 32nd column.
KERNEL linear(Step step, Mat x, Matrix w, Vec bias, Mat out) {
    u32 live = out.live(step), first = blockIdx.y * TOKENS, lane = threadIdx.x % WARP;
    u32 n = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, group = blockIdx.z;
    if (first >= live || n >= w.rows) return;
    u32 count = min(TOKENS, live - first);
    const u8* row = w.row(group, n);
    const float* from = x.row(first) + (u64)group * w.cols;
    float sums[TOKENS] = {};
    for (u32 k = lane; k < w.cols; k += WARP) {
        float weight = number(w.format, row, k);
#pragma unroll
        for (u32 t = 0; t < TOKENS; t++) {
            if (t < count) sums[t] += weight * from[(u64)t * x.stride + k];
        }
    }
#pragma unroll
    for (u32 t = 0; t < TOKENS; t++) {
        float sum = warp_sum(sums[t]);
        if (t < count && lane == 0) {
            out.row(first + t)[group * w.rows + n] = bias.at ? sum + bias.at[n] : sum;
        }
    }
}
