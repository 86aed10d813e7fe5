// The best entries of each token by an indexer's scores. A score is one sum in one order, that of `cpu/select.rs`: a
// choice is made of bits. Of `first..` some tokens are ranked into scratch, then the best of them are taken.
#include "common.cuh"
#include "attention.cuh"

// Query heads whose products go together.
constexpr u32 HEADS = 8;

// Entries that token `t` may choose from.
DEVICE u32 visible(const Step& step, const State& keys, u32 t, u32 room) {
    return min((step.position(t) + 1) / keys.every, room);
}

// A warp has a block of entries, a lane an entry; ranks are `[tokens, room]`.
KERNEL select_rank(Step step, Mat q, Mat weights, State keys, float scale, u32 first, u32 room, u32 chosen, u32* ranks) {
    u32 t = first + blockIdx.y, lane = threadIdx.x % WARP;
    if (t >= step.tokens()) return;
    u32 count = visible(step, keys, t, room);
    if (count <= chosen) return;
    const float *queries = q.row(t), *by = weights.row(t);
    u32 warps = gridDim.x * blockDim.x / WARP;
    for (u32 j = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; j * BLOCK < count; j += warps) {
        u32 e = j * BLOCK + lane, block = step.block(keys.table, step.row(t), j);
        if (e >= count) continue;
        u32 rank = 0;
        if (block < keys.units) {
            Page entries = page(keys, block, 0);
            float score = 0.0f;
            for (u32 h = 0; h < weights.cols; h += HEADS) {
                float dots[HEADS] = {};
                for (u32 d = 0; d < keys.dim; d++) {
                    float k = entries.number(d, lane);
#pragma unroll
                    for (u32 i = 0; i < HEADS; i++) {
                        if (h + i < weights.cols) dots[i] = fmaf(k, queries[(h + i) * keys.dim + d], dots[i]);
                    }
                }
#pragma unroll
                for (u32 i = 0; i < HEADS; i++) {
                    if (h + i < weights.cols) score = fmaf(fmaxf(__fmul_rn(dots[i], scale), 0.0f), by[h + i], score);
                }
            }
            // Zeros of both signs are equal.
            rank = ordered(__fadd_rn(score, 0.0f));
        }
        ranks[(u64)blockIdx.y * room + e] = rank;
    }
}

// Of `left` that are wanted of the ranks counted by their next digit, the digit of the last, and in `left` how many of
// the ranks with this digit are wanted. Digits are in falling order; a lane has eight of them.
DEVICE u32 digit_of_last(const u32* counts, u32* left) {
    u32 lane = threadIdx.x % WARP, own = 0;
    for (u32 i = 0; i < 8; i++) own += counts[255 - 8 * lane - i];
    u32 sum = own;
    for (u32 i = 1; i < WARP; i *= 2) {
        u32 other = __shfl_up_sync(ALL, sum, i);
        if (lane >= i) sum += other;
    }
    u32 wanted = *left, before = sum - own, digit = 0;
    bool here = before < wanted && wanted <= sum;
    if (here) {
        digit = 255 - 8 * lane;
        while (before + counts[digit] < wanted) before += counts[digit--];
    }
    u32 source = __ffs(__ballot_sync(ALL, here)) - 1;
    *left = wanted - __shfl_sync(ALL, before, source);
    return __shfl_sync(ALL, digit, source);
}

// A block has a token: the digits of the rank of its last choice, then all choices in rising order.
KERNEL select_best(Step step, State keys, u32 first, u32 room, const u32* ranks, Mat out) {
    __shared__ u32 counts[256], of_warps[2][WARP], found[2];
    u32 t = first + blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (t >= step.tokens()) return;
    u32 count = visible(step, keys, t, room), *list = (u32*)out.row(t);
    if (count <= out.cols) {
        for (u32 i = threadIdx.x; i < out.cols; i += blockDim.x) list[i] = i < count ? i : ALL;
        return;
    }
    ranks += (u64)blockIdx.x * room;
    u32 last = 0, left = out.cols;
    for (u32 digit = 4; digit-- > 0;) {
        u32 shift = 8 * digit;
        for (u32 i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            u32 rank = ranks[i];
            if (digit == 3 || rank >> (shift + 8) == last >> (shift + 8)) atomicAdd(&counts[rank >> shift & 255], 1u);
        }
        __syncthreads();
        if (warp == 0) {
            u32 next = digit_of_last(counts, &left);
            if (lane == 0) {
                found[0] = last | next << shift;
                found[1] = left;
            }
        }
        __syncthreads();
        last = found[0];
        left = found[1];
    }
    // Entries with better ranks, and with the last one, before those of this round.
    u32 better = 0, equal = 0;
    for (u32 base = 0; base < count; base += blockDim.x) {
        u32 e = base + threadIdx.x, rank = e < count ? ranks[e] : 0;
        bool is_better = e < count && rank > last, is_equal = e < count && rank == last;
        u32 betters = __ballot_sync(ALL, is_better), equals = __ballot_sync(ALL, is_equal), below = (1u << lane) - 1;
        if (lane == 0) {
            of_warps[0][warp] = __popc(betters);
            of_warps[1][warp] = __popc(equals);
        }
        __syncthreads();
        u32 at = better + __popc(betters & below), rest = equal + __popc(equals & below);
        for (u32 i = 0; i < blockDim.x / WARP; i++) {
            if (i < warp) {
                at += of_warps[0][i];
                rest += of_warps[1][i];
            }
            better += of_warps[0][i];
            equal += of_warps[1][i];
        }
        // Of equals the first are taken.
        if (is_better || (is_equal && rest < left)) list[at + min(rest, left)] = e;
        __syncthreads();
    }
}
