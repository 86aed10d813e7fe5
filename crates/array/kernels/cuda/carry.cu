// What tokens leave to later steps: rows copied into a state and out of it.
#include "common.cuh"

KERNEL carry(Step step, Mat x, State state) {
    u32 i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= x.live(step) || j >= x.cols || i >= state.units) return;
    state.numbers(i)[j] = x.row(i)[j];
}

KERNEL carried(Step step, State state, Mat out) {
    u32 i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= out.live(step) || j >= out.cols) return;
    u32 row = step.row(i), unit = step.carried(row) + i - step.first(row);
    if (unit < state.units) out.row(i)[j] = state.numbers(unit)[j];
}
