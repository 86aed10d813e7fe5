// What the bytes of a weight mean, number by number: the twin of `quant.rs` on the device. Owns no kernel; refuses to be
// fast.
#pragma once
#include "common.cuh"
#include "grids.cuh"

// The numbers of formats, as `weights.rs` gives them.
enum Kind : u32 {
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S,
    IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, AFFINE, FP4, FP8,
};

struct Format {
    u32 kind, bits, group, wide, block_len, block_bytes;
};

// A matrix, or a stack of them, row-major.
struct Matrix {
    const u8* at;
    u64 row_bytes;
    Format format;
    u32 experts, rows, cols, zero;

    DEVICE const u8* row(u32 expert, u32 i) const {
        return at + ((u64)expert * rows + i) * row_bytes;
    }
};

// The first point of each grid: `quant/lattice.rs`.
constexpr u32 GRID_IQ2_XXS = 0, GRID_IQ2_XS = 256, GRID_IQ2_S = 768, GRID_IQ1 = 1792, GRID_IQ3_XXS = 3840,
              GRID_IQ3_S = 4096;

__device__ const i8 E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
__device__ const i8 IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Product and sum are rounded each.
DEVICE float scaled(float scale, float level) { return __fmul_rn(scale, level); }
DEVICE float scaled(float scale, float level, float min) {
    return __fadd_rn(__fmul_rn(scale, level), min);
}

// Code `k` of a stream of `bits` each, from the lowest bit of each byte on.
DEVICE u32 stream(const u8* at, u32 bits, u32 k) {
    u32 bit = k * bits, pair = at[bit / 8];
    if (bit % 8 + bits > 8) pair |= (u32)at[bit / 8 + 1] << 8;
    return pair >> bit % 8 & ((1u << bits) - 1);
}

// 2^(e - 127)
DEVICE float e8m0(u32 e) { return __uint_as_float(max(e << 23, 1u << 22)); }

DEVICE float e4m3(u32 code) {
    return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * __uint_as_float((127 + 120) << 23);
}

// Code `k` of 256 of two bits, as `Q2_K`, `Q3_K` and `TQ2_0` order them.
DEVICE u32 two_bits(const u8* at, u32 k) { return at[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3; }

// Formats of 32 numbers whose low four bits are in 16 bytes: the first half in low nibbles.
DEVICE float split_nibbles(u32 kind, const u8* b, u32 k) {
    u32 head = kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : kind == Q5_1 ? 8 : kind == MXFP4 ? 1 : 2;
    u32 code = b[head + k % 16] >> (k / 16 * 4) & 15;
    if (kind == Q5_0 || kind == Q5_1) code |= (quad(b + head - 4) >> k & 1) << 4;
    switch (kind) {
        case Q4_0: return scaled(f16(word(b)), (float)((int)code - 8));
        case Q5_0: return scaled(f16(word(b)), (float)((int)code - 16));
        case IQ4_NL: return scaled(f16(word(b)), (float)IQ4[code]);
        case MXFP4: return scaled(e8m0(b[0]) * 0.5f, (float)E2M1[code]);
        default: return scaled(f16(word(b)), (float)code, f16(word(b + 2)));
    }
}

// `Q2_K`, `Q4_K` and `Q5_K`: small integer scales and mins of two floats.
DEVICE float super_min(u32 kind, const u8* b, u32 k) {
    float d, m;
    u32 code, scale, min;
    if (kind == Q2_K) {
        d = f16(word(b + 80));
        m = -f16(word(b + 82));
        code = two_bits(b + 16, k);
        scale = b[k / 16] & 15;
        min = b[k / 16] >> 4;
    } else {
        d = f16(word(b));
        m = -f16(word(b + 2));
        const u8* s = b + 4;
        u32 j = k / 32;
        if (j < 4) {
            scale = s[j] & 63;
            min = s[j + 4] & 63;
        } else {
            scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
            min = s[j + 4] >> 4 | s[j] >> 6 << 4;
        }
        const u8* low = b + (kind == Q5_K ? 48 : 16);
        code = low[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
        if (kind == Q5_K) code |= (b[16 + k % 32] >> (k / 32) & 1) << 4;
    }
    return scaled(d * (float)scale, (float)code, m * (float)min);
}

// `Q3_K`, `Q6_K` and `IQ4_XS`: small integer scales of one float.
DEVICE float super_scale(u32 kind, const u8* b, u32 k) {
    if (kind == Q3_K) {
        u32 code = two_bits(b + 32, k) | (b[k % 32] >> (k / 32) & 1) << 2, j = k / 16;
        const u8* s = b + 96;
        u32 low = s[j % 8] >> (j / 8 * 4) & 15, high = s[8 + j % 4] >> (j / 4 * 2) & 3;
        return scaled(f16(word(b + 108)) * (float)((int)(low | high << 4) - 32), (float)((int)code - 4));
    }
    if (kind == Q6_K) {
        u32 half = k / 128, quarter = k / 32 % 4;
        u32 code = (b[half * 64 + k % 64] >> (quarter / 2 * 4) & 15)
                 | (b[128 + half * 32 + k % 32] >> (quarter * 2) & 3) << 4;
        return scaled(f16(word(b + 208)) * (float)(i8)b[192 + k / 16], (float)((int)code - 32));
    }
    u32 j = k / 32, low = b[4 + j / 2] >> (j % 2 * 4) & 15, high = word(b + 2) >> (2 * j) & 3;
    u32 code = b[8 + k / 32 * 16 + k % 16] >> (k % 32 / 16 * 4) & 15;
    return scaled(f16(word(b)) * (float)((int)(low | high << 4) - 32), (float)IQ4[code]);
}

// `TQ1_0`: digits of base 3, in runs of 32, 16 and 4 bytes.
DEVICE float ternary(const u8* b, u32 k) {
    const u8* run = b;
    u32 len = 32;
    if (k >= 240) {
        run = b + 48;
        len = 4;
        k -= 240;
    } else if (k >= 160) {
        run = b + 32;
        len = 16;
        k -= 160;
    }
    u8 left = run[k % len];
    for (u32 i = 0; i < k / len; i++) left = (u8)(left * 3);
    return scaled(f16(word(b + 52)), (float)((int)((u32)left * 3 >> 8) - 1));
}

// Eight signs of seven: the last makes the count of minus signs even.
DEVICE u32 even_signs(u32 seven) {
    seven &= 127;
    return seven | (__popc(seven) & 1) << 7;
}

// `IQ1_S`: `dl (digit - 1 + step)`; what is multiplied is rounded as scale and min in eighths are.
DEVICE float iq1_s(const u8* b, u32 k) {
    u32 j = k / 32, l = k / 8 % 4, head = word(b + 34 + 2 * j);
    int dl = 2 * (head >> 12 & 7) + 1;
    bool minus = head >> 15;
    u32 point = GRIDS[GRID_IQ1 + ((head >> (3 * l) & 7) << 8 | b[2 + 4 * j + l])];
    u32 digit = point >> (2 * (k % 8)) & 3;
    if (minus) {
        digit = 2 - digit;
        dl = -dl;
    }
    float d = f16(word(b)) * 0.125f;
    return scaled(d * (float)(8 * dl), (float)digit, d * (float)(-7 * dl));
}

DEVICE float iq1_m(const u8* b, u32 k) {
    const u8* s = b + 48;
    u32 d = word(s) >> 12 | word(s + 2) >> 12 << 4 | word(s + 4) >> 12 << 8 | word(s + 6) >> 12 << 12;
    u32 i = k / 16, dl = 2 * (word(s + 2 * (i / 4)) >> (i % 4 * 3) & 7) + 1;
    u32 head = b[32 + k / 16] >> (k / 8 % 2 * 4) & 15;
    u32 point = GRIDS[GRID_IQ1 + ((head & 7) << 8 | b[k / 8])];
    int digit = point >> (2 * (k % 8)) & 3;
    // Digits -1, 0 and 1 less or plus an eighth, in eighths.
    int level = 8 * (digit - 1) + (head & 8 ? -1 : 1);
    return scaled(f16((u16)d) * 0.125f * (float)dl, (float)level);
}

// Magnitudes of `IQ2` in eighths, of `IQ3_XXS` in quarters.
__device__ const u8 IQ2_LEVELS[4] = {8, 25, 43, 0};
__device__ const u8 IQ3_LEVELS[8] = {4, 12, 20, 28, 36, 44, 52, 62};

DEVICE float iq2(u32 kind, const u8* b, u32 k) {
    u32 i = k / 8, point, signs, scale;
    if (kind == IQ2_XXS) {
        u32 j = k / 32, l = i % 4, bits = quad(b + 2 + 8 * j + 4);
        point = GRIDS[GRID_IQ2_XXS + b[2 + 8 * j + l]];
        signs = even_signs(bits >> (7 * l));
        scale = bits >> 28;
    } else if (kind == IQ2_XS) {
        u32 bits = word(b + 2 + 2 * i);
        point = GRIDS[GRID_IQ2_XS + (bits & 511)];
        signs = even_signs(bits >> 9);
        scale = b[66 + k / 32] >> (k / 16 % 2 * 4) & 15;
    } else {
        u32 high = b[66 + i / 4] >> (i % 4 * 2) & 3;
        point = GRIDS[GRID_IQ2_S + (high << 8 | b[2 + i])];
        signs = b[34 + i];
        scale = b[74 + k / 32] >> (k / 16 % 2 * 4) & 15;
    }
    float level = (float)IQ2_LEVELS[point >> (2 * (k % 8)) & 3];
    float d = f16(word(b)) * 0.125f * (float)(2 * scale + 1);
    return scaled(d, signs >> (k % 8) & 1 ? -level : level);
}

DEVICE float iq3(u32 kind, const u8* b, u32 k) {
    u32 i = k / 8, at = k / 4;
    if (kind == IQ3_XXS) {
        u32 bits = quad(b + 66 + 4 * (k / 32));
        u32 point = GRIDS[GRID_IQ3_XXS + b[2 + at]], signs = even_signs(bits >> (7 * (i % 4)));
        float level = (float)IQ3_LEVELS[point >> (k % 4 * 4) & 7];
        float d = f16(word(b)) * 0.25f * (float)(2 * (bits >> 28) + 1);
        return scaled(d, signs >> (k % 8) & 1 ? -level : level);
    }
    u32 high = b[66 + at / 8] >> (at % 8) & 1;
    u32 point = GRIDS[GRID_IQ3_S + (high << 8 | b[2 + at])];
    float level = (float)(2 * (point >> (k % 4 * 4) & 7) + 1);
    u32 scale = b[106 + k / 64] >> (k / 32 % 2 * 4) & 15;
    return scaled(f16(word(b)) * (float)(2 * scale + 1), b[74 + i] >> (k % 8) & 1 ? -level : level);
}

// `AFFINE`, `FP4` and `FP8`: a group behind its scale.
DEVICE float grouped(const Format& f, const u8* b, u32 k) {
    bool wide = f.wide || f.kind == FP8;
    float d = wide ? __uint_as_float(quad(b)) : f16(word(b));
    u32 bytes = wide ? 4 : 2;
    switch (f.kind) {
        case AFFINE: {
            float m = wide ? __uint_as_float(quad(b + 4)) : f16(word(b + 2));
            return scaled(d, (float)stream(b + 2 * bytes, f.bits, k), m);
        }
        case FP4: return scaled(d * 0.5f, (float)E2M1[stream(b + bytes, 4, k)]);
        default: return scaled(d, e4m3(b[4 + k]));
    }
}

// Number `k` of a row.
DEVICE float number(const Format& f, const u8* row, u32 k) {
    switch (f.kind) {
        case F32: return ((const float*)row)[k];
        case F16: return f16(((const u16*)row)[k]);
        case BF16: return bf16(((const u16*)row)[k]);
    }
    const u8* b = row + (u64)(k / f.block_len) * f.block_bytes;
    k %= f.block_len;
    switch (f.kind) {
        case Q4_0: case Q4_1: case Q5_0: case Q5_1: case IQ4_NL: case MXFP4: return split_nibbles(f.kind, b, k);
        case Q8_0: return scaled(f16(word(b)), (float)(i8)b[2 + k]);
        case Q2_K: case Q4_K: case Q5_K: return super_min(f.kind, b, k);
        case Q3_K: case Q6_K: case IQ4_XS: return super_scale(f.kind, b, k);
        case IQ1_S: return iq1_s(b, k);
        case IQ1_M: return iq1_m(b, k);
        case IQ2_XXS: case IQ2_XS: case IQ2_S: return iq2(f.kind, b, k);
        case IQ3_XXS: case IQ3_S: return iq3(f.kind, b, k);
        case TQ1_0: return ternary(b, k);
        case TQ2_0: return scaled(f16(word(b + 64)), (float)((int)two_bits(b, k) - 1));
        default: return grouped(f, b, k);
    }
}
