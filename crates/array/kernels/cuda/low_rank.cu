// What adapters add: `y += B (A x)`. Rows without a pair, or with an empty one, are not touched.
#include "common.cuh"

// The slot of row `i` of a tensor, from 0 on; none (`ALL`) without a pair.
DEVICE u32 slot_of(const Step& step, const Mat& x, const LowRank& pairs, u32 i) {
    u32 adapter = step.adapter(step.row(x.token(step, i)));
    return adapter == 0 || adapter > pairs.slots ? ALL : adapter - 1;
}

// `hidden [rows, rank] = A x`, a warp for each.
KERNEL low_rank_down(Step step, Mat x, LowRank pairs, float* hidden) {
    u32 i = blockIdx.y, r = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (i >= x.live(step)) return;
    u32 slot = slot_of(step, x, pairs, i);
    if (slot == ALL || r >= min(pairs.rank_of(slot), pairs.rank)) return;
    const float *a = pairs.unit(slot) + (u64)r * pairs.cols, *from = x.row(i);
    float sum = 0.0f;
    for (u32 k = threadIdx.x % WARP; k < pairs.cols; k += WARP) sum += a[k] * from[k];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) hidden[(u64)i * pairs.rank + r] = sum;
}

// `out += B hidden`
KERNEL low_rank_up(Step step, LowRank pairs, const float* hidden, Mat out) {
    u32 i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= out.live(step) || j >= out.cols) return;
    u32 slot = slot_of(step, out, pairs, i);
    if (slot == ALL) return;
    u32 rank = min(pairs.rank_of(slot), pairs.rank);
    const float *b = pairs.unit(slot) + (u64)rank * pairs.cols, *h = hidden + (u64)i * pairs.rank;
    float sum = 0.0f;
    for (u32 r = 0; r < rank; r++) sum += b[(u64)r * pairs.rows + j] * h[r];
    if (rank > 0) out.row(i)[j] += sum;
}
