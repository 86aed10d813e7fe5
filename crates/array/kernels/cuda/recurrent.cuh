// What kernels share that take tokens one after the other through a record: where a row's tokens come from, copies of
// them into shared memory ahead of their use, and columns of a record in registers. Knows no operation.
#pragma once
#include "common.cuh"

// Where a row stands: the twin of `Row` in `cpu/record.rs`. Its tokens are counted from the first in its log on; the
// first `confirmed` go into the record, which counts as zeros if nothing was put into it.
struct RowTokens {
    u32 slot, logged, start, confirmed, all, first;

    DEVICE RowTokens(const Step& step, u32 row)
        : slot(step.slot(row)),
          logged(step.logged(row)),
          start(step.past(row) - logged),
          confirmed(step.confirmed(row)),
          all(logged + step.count(row)),
          first(step.first(row)) {}

    DEVICE bool fresh() const { return start == 0; }
    // The first token that goes into the log.
    DEVICE u32 unconfirmed() const { return max(confirmed, logged); }
    // The place of token `i` in the step; there is none for those in the log.
    DEVICE u32 token(u32 i) const { return first + i - logged; }
    // What token `i` brings as `x`, which lies at `at` of a token in the log.
    DEVICE const float* input(const State& state, const Mat& x, u32 i, u32 at) const {
        return i < logged ? state.log(slot, i) + at : x.row(token(i));
    }
};

// --- copies into shared memory behind the threads' backs

DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

DEVICE void copy_later_16(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}

DEVICE void copy_later_4(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}

// The copies since the last end are a group, which may be empty.
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All of this thread's groups but the last are there.
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// A warp copies `n` numbers. `to` is a multiple of 16 bytes.
DEVICE void copy_later(float* to, const float* from, u32 n) {
    u32 lane = threadIdx.x % WARP;
    if ((u64)from % 16 == 0 && n % 4 == 0) {
        for (u32 i = 4 * lane; i < n; i += 4 * WARP) copy_later_16(to + i, from + i);
    } else {
        for (u32 i = lane; i < n; i += WARP) copy_later_4(to + i, from + i);
    }
}

// --- columns of a matrix `[rows, cols]` in registers

// Columns that a warp has: `COLUMNS` in `recurrent.rs`.
constexpr u32 COLUMNS = 16;
// Lanes beside each other in a row have four columns each; as many lanes share columns as there are such groups of rows.
constexpr u32 BESIDE = COLUMNS / 4;
constexpr u32 SHARING = WARP / BESIDE;

// Up to `SHARING * R` rows of the columns of a warp: register `j` of a lane has row `row_of(j)`.
template <u32 R>
struct Tile {
    float m[R][4];

    // The first of four rows in a row, for registers `4 * j..`.
    DEVICE static u32 rows_from(u32 j) { return 4 * (SHARING * j + threadIdx.x % WARP / BESIDE); }
    DEVICE static u32 row_of(u32 j) { return rows_from(j / 4) + j % 4; }
    // The first of the lane's columns, of those of the warp.
    DEVICE static u32 column() { return threadIdx.x % BESIDE * 4; }

    DEVICE void clear() {
#pragma unroll
        for (u32 j = 0; j < R; j++) m[j][0] = m[j][1] = m[j][2] = m[j][3] = 0.0f;
    }

    // `at` is the lane's first column in row 0; it has `n` columns there, at most 4. What lies beyond is 0.
    DEVICE void load(const float* at, u32 rows, u32 stride, u32 n) {
        bool whole = n == 4 && stride % 4 == 0 && (u64)at % 16 == 0;
#pragma unroll
        for (u32 j = 0; j < R; j++) {
            const float* from = at + (u64)row_of(j) * stride;
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row_of(j) < rows) {
                if (whole) {
                    x = load4(from);
                } else {
                    if (n > 0) x.x = from[0];
                    if (n > 1) x.y = from[1];
                    if (n > 2) x.z = from[2];
                    if (n > 3) x.w = from[3];
                }
            }
            m[j][0] = x.x, m[j][1] = x.y, m[j][2] = x.z, m[j][3] = x.w;
        }
    }

    DEVICE void store(float* at, u32 rows, u32 stride, u32 n) const {
        // Addresses are made here and not ahead of the loop over tokens, where they would take up registers.
        asm volatile("" : "+r"(stride));
        bool whole = n == 4 && stride % 4 == 0 && (u64)at % 16 == 0;
#pragma unroll
        for (u32 j = 0; j < R; j++) {
            float* to = at + (u64)row_of(j) * stride;
            if (row_of(j) < rows) {
                if (whole) {
                    *(float4*)to = make_float4(m[j][0], m[j][1], m[j][2], m[j][3]);
                } else {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) {
                        if (c < n) to[c] = m[j][c];
                    }
                }
            }
        }
    }
};

// Halves a list of `N` sums: of two lanes that differ in bit `bit`, the one without it gets the first half, the other one
// the second, each with the sums of both lanes.
template <u32 N>
DEVICE void halve(float* sums, u32 bit) {
    bool second = threadIdx.x & bit;
#pragma unroll
    for (u32 i = 0; i < N / 2; i++) {
        float give = second ? sums[i] : sums[i + N / 2], keep = second ? sums[i + N / 2] : sums[i];
        sums[i] = keep + __shfl_xor_sync(ALL, give, bit);
    }
}

// The sum over the lanes that share columns.
DEVICE float sum_of_sharing(float x) {
#pragma unroll
    for (u32 bit = BESIDE; bit < WARP; bit *= 2) x += __shfl_xor_sync(ALL, x, bit);
    return x;
}

// The columns of a head that a block has.
struct Part {
    u32 head, start, cols, n;

    // Of `all` columns of the head.
    DEVICE explicit Part(u32 all)
        : head(blockIdx.y),
          start(blockIdx.x * (blockDim.x / WARP * COLUMNS)),
          cols(blockDim.x / WARP * COLUMNS),
          n(min(cols, all - start)) {}

    // The first column of this warp, of those of the head.
    DEVICE u32 of_warp() const { return start + threadIdx.x / WARP * COLUMNS; }
};

// The columns of a lane in the record `[rows, all]` of a head of a row, from its first token to its last.
template <u32 R>
struct Held {
    Tile<R> tile;
    float* at;
    u32 rows, all, mine;

    DEVICE Held(const State& state, const RowTokens& row, const Part& part, u32 rows, u32 all)
        : rows(rows), all(all) {
        u32 column = part.of_warp() + Tile<R>::column();
        mine = column < all ? min(4u, all - column) : 0;
        at = state.numbers(row.slot) + (u64)part.head * rows * all + column;
        if (row.fresh()) {
            tile.clear();
        } else {
            tile.load(at, rows, all, mine);
        }
    }

    DEVICE void store() const { tile.store(at, rows, all, mine); }
};

// Zeros for both chunks in shared memory, if a token has fewer numbers than there is room for.
DEVICE void clear_chunks(float* chunks, u32 numbers, bool has_gaps) {
    if (!has_gaps) return;
    for (u32 i = threadIdx.x; i < numbers; i += blockDim.x) chunks[i] = 0.0f;
    __syncthreads();
}
