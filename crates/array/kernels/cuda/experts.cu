// Mixtures of experts: products of rows with the matrices that a router has chosen for them. Weights of any format,
// number by number.
#include "common.cuh"
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
