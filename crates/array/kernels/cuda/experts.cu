// Mixtures of experts: products of rows with the matrices that a router has chosen for them. First the plain kernels,
// which read weights of any format number by number.
#include "common.cuh"
#include "experts.cuh"
#include "format.cuh"

// The expert of rank `rank` of row `i`.
DEVICE u32 expert_of(const Mat& routing, u32 i, u32 rank, u32 experts) {
    return min((u32)routing.row(i)[routing.cols / 2 + rank], experts - 1);
}

// `x . row n of expert e`; a warp's lanes have every 32nd column.
DEVICE float plain_dot(const float* x, const Matrix& w, u32 e, u32 n) {
    const u8* row = w.row(e, n);
    float sum = 0.0f;
    for (u32 k = threadIdx.x % WARP; k < w.cols; k += WARP) sum += number(w.format, row, k) * x[k];
    return warp_sum(sum);
}

// `f(x G_e^T, x U_e^T)`: a warp has a number of one rank of a row.
KERNEL experts_up(Step step, Mat x, Mat routing, Matrix gate, Matrix up, Vec gate_bias, Vec up_bias, Glu f, Mat out) {
    u32 t = blockIdx.y, rank = blockIdx.z, n = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (t >= out.live(step) || n >= up.rows) return;
    u32 e = expert_of(routing, t, rank, up.experts), at = e * up.rows + n;
    float u = plain_dot(x.row(t), up, e, n);
    if (up_bias.at) u += up_bias.at[at];
    if (gate.at) {
        float g = plain_dot(x.row(t), gate, e, n);
        u = glu(f, gate_bias.at ? g + gate_bias.at[at] : g, u);
    } else {
        u = map(f.map, u);
    }
    if (threadIdx.x % WARP == 0) out.row(t)[rank * up.rows + n] = u;
}

// `sum over ranks of weight * (x_rank D_e^T + bias_e)`: a warp has a number of a row.
KERNEL experts_down(Step step, Mat x, Mat routing, Matrix down, Vec bias, Mat out) {
    u32 t = blockIdx.y, n = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (t >= out.live(step) || n >= down.rows) return;
    float sum = 0.0f;
    for (u32 rank = 0; rank < routing.cols / 2; rank++) {
        u32 e = expert_of(routing, t, rank, down.experts);
        float y = plain_dot(x.row(t) + (u64)rank * down.cols, down, e, n);
        sum += routing.row(t)[rank] * (bias.at ? y + bias.at[e * down.rows + n] : y);
    }
    if (threadIdx.x % WARP == 0) out.row(t)[n] = sum;
}

// --- the same for formats that have a form, where `x` and weights lie on 16 bytes

// So many threads, and blocks of them: few registers, so that enough warps wait for memory.
extern "C" __global__ void __launch_bounds__(128, 7) experts_up_forms(Step, Mat, Mat, Matrix, Matrix, Vec, Vec, Glu, Mat);
extern "C" __global__ void __launch_bounds__(256, 3) experts_down_forms(Step, Mat, Mat, Matrix, Vec, Mat);

// `experts_up`: a warp has two numbers of one rank of a row, or four without a gate.
KERNEL experts_up_forms(Step step, Mat x, Mat routing, Matrix gate, Matrix up, Vec gate_bias, Vec up_bias, Glu f,
                        Mat out) {
    bool gated = gate.at;
    u32 t = blockIdx.z, rank = blockIdx.y, lane = threadIdx.x % WARP, some = gated ? 2 : 4;
    u32 first = (blockIdx.x * blockDim.x + threadIdx.x) / WARP * some;
    if (t >= out.live(step) || first >= up.rows) return;
    u32 e = expert_of(routing, t, rank, up.experts);
    const u8* rows[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 n = min(first + i % some, up.rows - 1);
        rows[i] = gated && i < 2 ? gate.row(e, n) : up.row(e, n);
    }
    float sums[4] = {};
    dot_rows(up.format, rows, x.row(t), up.cols / 16, sums);
    // Of gates in the lower lanes, of what they let through in the upper ones.
    float sum = sum_of_four(sums), other = __shfl_xor_sync(ALL, sum, 16);
    u32 n = first + lane / 8, at = e * up.rows + n;
    if (lane % 8 != 0 || lane / 8 >= some || n >= up.rows) return;
    float* to = out.row(t) + (u64)rank * up.rows + n;
    if (gated) {
        if (gate_bias.at) sum += gate_bias.at[at];
        if (up_bias.at) other += up_bias.at[at];
        *to = glu(f, sum, other);
    } else {
        *to = map(f.map, up_bias.at ? sum + up_bias.at[at] : sum);
    }
}

extern __shared__ float brought[];

// `experts_down`: a block has four numbers of a row, a warp one rank after the other of them. What each rank brings is
// added in order.
KERNEL experts_down_forms(Step step, Mat x, Mat routing, Matrix down, Vec bias, Mat out) {
    u32 t = blockIdx.y, first = blockIdx.x * 4, ranks = routing.cols / 2, lane = threadIdx.x % WARP;
    if (t >= out.live(step)) return;
    for (u32 rank = threadIdx.x / WARP; rank < ranks; rank += blockDim.x / WARP) {
        u32 e = expert_of(routing, t, rank, down.experts);
        const u8* rows[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) rows[i] = down.row(e, min(first + i, down.rows - 1));
        float sums[4] = {};
        const float* from = x.row(t) + (u64)rank * down.cols;
        dot_rows(down.format, rows, from, down.cols / 16, sums);
        float sum = sum_of_four(sums);
        u32 n = min(first + lane / 8, down.rows - 1);
        if (bias.at) sum += bias.at[e * down.rows + n];
        if (lane % 8 == 0) brought[4 * rank + lane / 8] = routing.row(t)[rank] * sum;
    }
    __syncthreads();
    u32 n = first + threadIdx.x;
    if (threadIdx.x >= 4 || n >= down.rows) return;
    float sum = 0.0f;
    for (u32 rank = 0; rank < ranks; rank++) sum += brought[4 * rank + threadIdx.x];
    out.row(t)[n] = sum;
}
