// What every kernel may use: the step's integers, tensors, states and functions as `arguments.rs` lays them out,
// conversions, reductions. Owns no kernel. There are no headers beside this one: NVRTC has none of the host's.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__

// Tokens in one block of a paged state.
constexpr u32 BLOCK = 32;
constexpr u32 WARP = 32;
constexpr u32 ALL = 0xffffffffu;

// --- arguments

// The block of step inputs: the fields of `inputs.rs` in their order. Counts and integers are read here, at every
// replay; room (the capacities of the plan) is fixed.
struct Step {
    const u32* words;
    u32 token_room, row_room, output_room;
    u32 widths[4];
    u32 zero;

    DEVICE u32 tokens() const { return words[0]; }
    DEVICE u32 rows() const { return words[1]; }
    DEVICE u32 outputs() const { return words[2]; }
    // The place of the step in the ring of results.
    DEVICE u32 ring() const { return words[3]; }

    DEVICE const u32* of_tokens(u32 field) const { return words + 4 + field * token_room; }
    DEVICE const u32* of_rows(u32 field) const {
        return words + 4 + 3 * token_room + field * row_room;
    }

    DEVICE u32 id(u32 t) const { return of_tokens(0)[t]; }
    DEVICE u32 position(u32 t) const { return of_tokens(1)[t]; }
    DEVICE u32 row(u32 t) const { return of_tokens(2)[t]; }

    DEVICE u32 first(u32 row) const { return of_rows(0)[row]; }
    DEVICE u32 count(u32 row) const { return of_rows(1)[row]; }
    DEVICE u32 past(u32 row) const { return of_rows(2)[row]; }
    DEVICE u32 logged(u32 row) const { return of_rows(3)[row]; }
    DEVICE u32 confirmed(u32 row) const { return of_rows(4)[row]; }
    DEVICE u32 slot(u32 row) const { return of_rows(5)[row]; }
    DEVICE float stretch(u32 row) const { return __uint_as_float(of_rows(6)[row]); }
    DEVICE u32 adapter(u32 row) const { return of_rows(7)[row]; }
    DEVICE u32 carried(u32 row) const { return of_rows(8)[row]; }

    // The token of result `o`.
    DEVICE u32 output(u32 o) const { return of_rows(9)[o]; }

    // The block that holds entries `j * BLOCK..` of a row; a number that no state has where it is missing.
    DEVICE u32 block(u32 table, u32 row, u32 j) const {
        const u32* at = of_rows(9) + output_room;
        for (u32 i = 0; i < table; i++) at += row_room * widths[i];
        return at[row * widths[table] + j % widths[table]];
    }
};

// A tensor, `[live rows, cols]`; rows are tokens, or results.
struct Mat {
    float* at;
    u32 cols, stride, outputs, zero;

    DEVICE u32 live(const Step& step) const { return outputs ? step.outputs() : step.tokens(); }
    DEVICE float* row(u32 i) const { return at + (u64)i * stride; }
    // The token that row `i` stands for.
    DEVICE u32 token(const Step& step, u32 i) const { return outputs ? step.output(i) : i; }
};

// A vector weight; null where there is none.
struct Vec {
    const float* at;
    u32 len, zero;
};

// A state: `units` pieces of `unit` bytes. In a slot a record comes first, then its log, `inputs` numbers a token.
struct State {
    u8* at;
    u64 unit;
    u32 units, table, every, stored, keys, heads, dim, record, inputs, zero;

    DEVICE u8* piece(u32 i) const { return at + i * unit; }
    DEVICE float* numbers(u32 i) const { return (float*)piece(i); }
    // What token `i` of the log of a slot has brought.
    DEVICE float* log(u32 slot, u32 i) const { return numbers(slot) + record + (u64)i * inputs; }
};

// Low-rank matrices: the rank of each slot; then a slot each, `A [rank, cols]` and `B` turned, `[rank, rows]`.
struct LowRank {
    const float* at;
    u32 slots, rank, rows, cols, header, zero;

    DEVICE u32 rank_of(u32 slot) const { return __float_as_uint(at[slot]); }
    DEVICE const float* unit(u32 slot) const {
        return at + header + (u64)slot * rank * (rows + cols);
    }
};

struct Map {
    u32 kind;
    float number;
};

struct Glu {
    u32 kind;
    float limit, alpha;
    Map map;
};

// --- numbers

DEVICE float f16(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

DEVICE u16 to_f16(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

DEVICE float bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

DEVICE u16 to_bf16(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

DEVICE u16 word(const u8* at) { return at[0] | at[1] << 8; }
DEVICE u32 quad(const u8* at) {
    return at[0] | at[1] << 8 | at[2] << 16 | (u32)at[3] << 24;
}

// 16 bytes at once; the address is a multiple of 16.
DEVICE uint4 load16(const void* at) { return *(const uint4*)at; }
DEVICE float4 load4(const float* at) { return *(const float4*)at; }

DEVICE float infinity() { return __int_as_float(0x7f800000); }

// The bits of a number, so that whole numbers compare as `total_cmp` does.
DEVICE u32 ordered(float x) {
    u32 bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

// --- functions

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float map(Map f, float x) {
    switch (f.kind) {
        case 0: return x / (1.0f + expf(-x));
        case 1: {
            float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
            return 0.5f * x * (1.0f + tanhf(inner));
        }
        case 2: return sigmoid(x);
        case 3: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
        case 4: return x * f.number;
        default: return f.number * tanhf(x / f.number);
    }
}

DEVICE float clipped(float x, float limit) { return fmaxf(fminf(x, limit), -limit); }

DEVICE float glu(Glu f, float gate, float x) {
    switch (f.kind) {
        case 0: return map(f.map, gate) * x;
        case 1: {
            float g = fminf(gate, f.limit);
            return g / (1.0f + expf(-g)) * clipped(x, f.limit);
        }
        default: {
            float g = fminf(gate, f.limit);
            return g * sigmoid(f.alpha * g) * (clipped(x, f.limit) + 1.0f);
        }
    }
}

// --- reductions; every thread gets the result

DEVICE float warp_sum(float x) {
    for (u32 i = WARP / 2; i > 0; i /= 2) x += __shfl_xor_sync(ALL, x, i);
    return x;
}

DEVICE float warp_max(float x) {
    for (u32 i = WARP / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, i));
    return x;
}

DEVICE float warp_min(float x) {
    for (u32 i = WARP / 2; i > 0; i /= 2) x = fminf(x, __shfl_xor_sync(ALL, x, i));
    return x;
}

// Over a block of whole warps in one dimension; all its threads take part.
DEVICE float block_sum(float x) {
    __shared__ float sums[WARP];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = x;
    __syncthreads();
    u32 lane = threadIdx.x % WARP;
    return warp_sum(lane < blockDim.x / WARP ? sums[lane] : 0.0f);
}

DEVICE float block_max(float x) {
    __shared__ float most[WARP];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) most[threadIdx.x / WARP] = x;
    __syncthreads();
    u32 lane = threadIdx.x % WARP;
    return warp_max(lane < blockDim.x / WARP ? most[lane] : -infinity());
}
