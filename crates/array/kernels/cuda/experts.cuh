// Products of a row of weights with activations, sixteen numbers a lane at a time. Owns one form a format: which sixteen
// numbers are a unit, how they are loaded, and what they bring to the sum. Refuses what `number` of `format.cuh` is for:
// formats that few files have.
//
// Codes become floats by their place in a half that is not normal: a code of up to ten bits there is `code / UP`, to the
// bit. What is common to a unit, its scale and what is taken from each code, is applied to sums.
#pragma once
#include "common.cuh"
#include "format.cuh"

constexpr float UP = 16777216.0f;

// Both halves of a word.
DEVICE float2 halves(u32 pair) {
    float2 x;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(x.x), "=f"(x.y) : "r"(pair));
    return x;
}

// Eight codes of four bits, from the lowest on, each `/ UP`.
DEVICE void nibbles(u32 word, float (&to)[8]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        float2 pair = halves(word >> (4 * i) & 0x000f000f);
        to[i] = pair.x;
        to[i + 4] = pair.y;
    }
}

// Four codes of a byte each, `/ UP`.
DEVICE float4 bytes(u32 word) {
    float2 a = halves(__byte_perm(word, 0, 0x4140)), b = halves(__byte_perm(word, 0, 0x4342));
    return make_float4(a.x, a.y, b.x, b.y);
}

DEVICE float dot4(float4 x, float a, float b, float c, float d, float sum = 0.0f) {
    return fmaf(x.w, d, fmaf(x.z, c, fmaf(x.y, b, fmaf(x.x, a, sum))));
}

DEVICE u32 word_at(const u8* at) { return __ldg((const u32*)at); }
DEVICE uint4 words_at(const u8* at) { return __ldg((const uint4*)at); }
DEVICE u32 half_at(const u8* at) { return __ldg((const u16*)at); }

// Words at any address. No word is read that has none of their bytes.
template <u32 N>
struct Loose {
    u32 words[N + 1], shift;

    DEVICE void load(const u8* at) {
        shift = ((u32)(u64)at & 3) * 8;
        const u32* from = (const u32*)((u64)at & ~3ull);
#pragma unroll
        for (u32 i = 0; i < N; i++) words[i] = __ldg(from + i);
        words[N] = shift ? __ldg(from + N) : 0;
    }
    DEVICE u32 word(u32 i) const { return __funnelshift_r(words[i], words[i + 1], shift); }
};

// The activations of a unit, in fours as its form has them.
struct Sixteen {
    float4 x[4];

    DEVICE float sum(u32 i) const { return x[i].x + x[i].y + (x[i].z + x[i].w); }
    DEVICE float sum() const { return sum(0) + sum(1) + (sum(2) + sum(3)); }
};

// A form has `load` of unit `u` of a row, `dot` with activations, `column`: where the fours of a unit stand, and how many
// units a lane has under way. These forms have their fours one after the other.
struct InOrder {
    static constexpr u32 UNITS = 1;
    DEVICE static u32 column(u32 u, u32 i) { return 16 * u + 4 * i; }
};

struct FormF32 : InOrder {
    uint4 w[4];

    DEVICE void load(const u8* row, u32 u) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) w[i] = words_at(row + 64 * u + 16 * i);
    }
    DEVICE float dot(const Sixteen& s) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            sum = dot4(s.x[i], __uint_as_float(w[i].x), __uint_as_float(w[i].y), __uint_as_float(w[i].z),
                       __uint_as_float(w[i].w), sum);
        }
        return sum;
    }
};

// Pairs of numbers in eight words.
template <class Pair>
DEVICE float dot_pairs(const uint4 (&w)[2], const Sixteen& s, Pair pair) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        float2 a = pair(w[i].x), b = pair(w[i].y), c = pair(w[i].z), d = pair(w[i].w);
        sum = dot4(s.x[2 * i], a.x, a.y, b.x, b.y, sum);
        sum = dot4(s.x[2 * i + 1], c.x, c.y, d.x, d.y, sum);
    }
    return sum;
}

struct Form16 : InOrder {
    uint4 w[2];

    DEVICE void load(const u8* row, u32 u) {
        w[0] = words_at(row + 32 * u);
        w[1] = words_at(row + 32 * u + 16);
    }
};

struct FormF16 : Form16 {
    DEVICE float dot(const Sixteen& s) const {
        return dot_pairs(w, s, [](u32 pair) { return halves(pair); });
    }
};

struct FormBF16 : Form16 {
    DEVICE float dot(const Sixteen& s) const {
        return dot_pairs(w, s, [](u32 pair) {
            return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
        });
    }
};

// `AFFINE` of four or eight bits with scales in halves.
template <u32 BITS, u32 GROUP>
struct FormAffine : InOrder {
    static constexpr u32 UNITS = 2, BYTES = 4 + GROUP * BITS / 8, WORDS = BITS / 2;
    u32 head, w[WORDS];

    DEVICE void load(const u8* row, u32 u) {
        const u8* b = row + u / (GROUP / 16) * BYTES;
        head = word_at(b);
#pragma unroll
        for (u32 i = 0; i < WORDS; i++) w[i] = word_at(b + 4 + 4 * (u % (GROUP / 16) * WORDS + i));
    }
    DEVICE float dot(const Sixteen& s) const {
        float sum = 0.0f;
        if (BITS == 4) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float n[8];
                nibbles(w[i], n);
                sum = dot4(s.x[2 * i], n[0], n[1], n[2], n[3], sum);
                sum = dot4(s.x[2 * i + 1], n[4], n[5], n[6], n[7], sum);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                float4 n = bytes(w[i % WORDS]);
                sum = dot4(s.x[i], n.x, n.y, n.z, n.w, sum);
            }
        }
        float2 scale = halves(head);
        return fmaf(scale.x * UP, sum, scale.y * s.sum());
    }
};

// Blocks of 32 whose halves are in low and in high nibbles: a unit has eight bytes of them.
struct Split {
    static constexpr u32 UNITS = 1;
    DEVICE static u32 column(u32 u, u32 i) { return u / 2 * 32 + u % 2 * 8 + i / 2 * 16 + i % 2 * 4; }
};

// What two words of eight numbers bring to `x`: every second one, from the first on or (`HIGH`) from the second on.
template <u32 HIGH>
DEVICE float dot_half(const float (&m)[8], const float (&n)[8], const Sixteen& s, float sum = 0.0f) {
    sum = dot4(s.x[2 * HIGH], m[HIGH], m[HIGH + 2], m[HIGH + 4], m[HIGH + 6], sum);
    return dot4(s.x[2 * HIGH + 1], n[HIGH], n[HIGH + 2], n[HIGH + 4], n[HIGH + 6], sum);
}

DEVICE float dot_split(u32 a, u32 b, const Sixteen& s) {
    float m[8], n[8];
    nibbles(a, m);
    nibbles(b, n);
    return dot_half<1>(m, n, s, dot_half<0>(m, n, s));
}

struct FormQ4_0 : Split {
    static constexpr u32 UNITS = 2;
    Loose<2> w;
    u32 head;

    DEVICE void load(const u8* row, u32 u) {
        const u8* b = row + u / 2 * 18;
        head = half_at(b);
        w.load(b + 2 + u % 2 * 8);
    }
    DEVICE float dot(const Sixteen& s) const {
        return f16((u16)head) * fmaf(UP, dot_split(w.word(0), w.word(1), s), -8.0f * s.sum());
    }
};

struct FormQ4_1 : Split {
    u32 head, w[2];

    DEVICE void load(const u8* row, u32 u) {
        const u8* b = row + u / 2 * 20;
        head = word_at(b);
        w[0] = word_at(b + 4 + u % 2 * 8);
        w[1] = word_at(b + 8 + u % 2 * 8);
    }
    DEVICE float dot(const Sixteen& s) const {
        float2 scale = halves(head);
        return fmaf(scale.x * UP, dot_split(w[0], w[1], s), scale.y * s.sum());
    }
};

struct FormMXFP4 : Split {
    static constexpr u32 UNITS = 2;
    Loose<2> w;
    u32 head;

    DEVICE void load(const u8* row, u32 u) {
        const u8* b = row + u / 2 * 17;
        head = __ldg(b);
        w.load(b + 1 + u % 2 * 8);
    }
    // Sign, exponent and mantissa of a nibble at the places where a half has them: `2^-14` of its number.
    DEVICE static void numbers(u32 word, float (&to)[8]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 size = i < 3 ? word << (9 - 4 * i) : word >> 3;
            float2 pair = halves((word << (12 - 4 * i) & 0x80008000) | (size & 0x0e000e00));
            to[i] = pair.x;
            to[i + 4] = pair.y;
        }
    }
    DEVICE float dot(const Sixteen& s) const {
        float m[8], n[8];
        numbers(w.word(0), m);
        numbers(w.word(1), n);
        return e8m0(head) * (dot_half<1>(m, n, s, dot_half<0>(m, n, s)) * 16384.0f);
    }
};

struct FormQ8_0 : InOrder {
    static constexpr u32 UNITS = 2;
    Loose<4> w;
    u32 head;

    DEVICE void load(const u8* row, u32 u) {
        const u8* b = row + u / 2 * 34;
        head = half_at(b);
        w.load(b + 2 + u % 2 * 16);
    }
    DEVICE float dot(const Sixteen& s) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float4 n = bytes(w.word(i) ^ 0x80808080);
            sum = dot4(s.x[i], n.x, n.y, n.z, n.w, sum);
        }
        return f16((u16)head) * fmaf(UP, sum, -128.0f * s.sum());
    }
};

// Eight bytes: low nibbles are of one 32 of the block, high ones of the next.
struct FormQ4_K {
    static constexpr u32 UNITS = 1;
    uint4 head;
    u32 w[2], part;

    DEVICE static u32 column(u32 u, u32 i) {
        return u / 16 * 256 + u / 4 % 4 * 64 + i / 2 * 32 + u % 4 * 8 + i % 2 * 4;
    }
    DEVICE void load(const u8* row, u32 u) {
        const u8* b = row + u / 16 * 144;
        part = u / 4 % 4;
        head = words_at(b);
        w[0] = word_at(b + 16 + u % 16 * 8);
        w[1] = word_at(b + 20 + u % 16 * 8);
    }
    DEVICE float dot(const Sixteen& s) const {
        float m[8], n[8];
        nibbles(w[0], m);
        nibbles(w[1], n);
        float low = dot_half<0>(m, n, s), high = dot_half<1>(m, n, s);
        // Scales and mins of six bits, two at a time.
        u32 at = part % 2 * 16, a = head.y >> at, b = head.z >> at, c = head.w >> at;
        u32 scales = part < 2 ? a & 0x3f3f : (c & 0x0f0f) | (a >> 2 & 0x3030);
        u32 mins = part < 2 ? b & 0x3f3f : (c >> 4 & 0x0f0f) | (b >> 2 & 0x3030);
        float2 scale = halves(__byte_perm(scales, 0, 0x4140)), min = halves(__byte_perm(mins, 0, 0x4140));
        float2 d = halves(head.x);
        float above = fmaf(scale.x, low, scale.y * high);
        float below = fmaf(min.x, s.sum(0) + s.sum(1), min.y * (s.sum(2) + s.sum(3)));
        return fmaf(d.x * UP * UP, above, -(d.y * UP) * below);
    }
};

// Four numbers of each quarter of half a block.
struct FormQ6_K {
    static constexpr u32 UNITS = 1;
    Loose<1> low[2], high;
    Loose<2> scales;
    u32 head, at;

    DEVICE static u32 column(u32 u, u32 i) { return u / 8 * 128 + i * 32 + u % 8 * 4; }
    DEVICE void load(const u8* row, u32 u) {
        const u8* b = row + u / 16 * 210;
        u32 half = u / 8 % 2, j = u % 8;
        low[0].load(b + half * 64 + 4 * j);
        low[1].load(b + half * 64 + 32 + 4 * j);
        high.load(b + 128 + half * 32 + 4 * j);
        scales.load(b + 192 + half * 8);
        head = half_at(b + 208);
        at = j / 4 * 8;
    }
    DEVICE float dot(const Sixteen& s) const {
        u32 bits = high.word(0);
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 lows = low[i % 2].word(0) >> (i / 2 * 4) & 0x0f0f0f0f;
            u32 highs = (i < 2 ? bits << (4 - 2 * i) : bits >> (2 * i - 4)) & 0x30303030;
            float4 n = bytes(lows | highs);
            float brought = fmaf(UP, dot4(s.x[i], n.x, n.y, n.z, n.w), -32.0f * s.sum(i));
            i8 scale = (i8)(scales.word(i / 2) >> (i % 2 * 16 + at));
            sum = fmaf((float)scale, brought, sum);
        }
        return f16((u16)head) * sum;
    }
};

// What a lane has of the products of rows with `x [16 units]`.
template <class Form, u32 ROWS>
DEVICE void dot_rows(const u8* const (&rows)[ROWS], const float* x, u32 units, float (&sums)[ROWS]) {
    u32 lane = threadIdx.x % WARP;
    // Nothing of any form is to be made ready outside of a loop around this.
    asm volatile("" : "+r"(lane));
#pragma unroll Form::UNITS
    for (u32 u = lane; u < units; u += WARP) {
        Form w[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) w[r].load(rows[r], u);
        Sixteen s;
#pragma unroll
        for (u32 i = 0; i < 4; i++) s.x[i] = load4(x + Form::column(u, i));
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) sums[r] += w[r].dot(s);
    }
}

// The same for weights of any format that has a form: `has_form` of `experts.rs` says which.
template <u32 ROWS>
DEVICE void dot_rows(const Format& f, const u8* const (&rows)[ROWS], const float* x, u32 units, float (&sums)[ROWS]) {
    switch (f.kind) {
        case F32: return dot_rows<FormF32>(rows, x, units, sums);
        case F16: return dot_rows<FormF16>(rows, x, units, sums);
        case BF16: return dot_rows<FormBF16>(rows, x, units, sums);
        case Q4_0: return dot_rows<FormQ4_0>(rows, x, units, sums);
        case Q4_1: return dot_rows<FormQ4_1>(rows, x, units, sums);
        case Q8_0: return dot_rows<FormQ8_0>(rows, x, units, sums);
        case Q4_K: return dot_rows<FormQ4_K>(rows, x, units, sums);
        case Q6_K: return dot_rows<FormQ6_K>(rows, x, units, sums);
        case MXFP4: return dot_rows<FormMXFP4>(rows, x, units, sums);
    }
    switch (f.bits << 8 | f.group) {
        case 4 << 8 | 32: return dot_rows<FormAffine<4, 32>>(rows, x, units, sums);
        case 4 << 8 | 64: return dot_rows<FormAffine<4, 64>>(rows, x, units, sums);
        case 4 << 8 | 128: return dot_rows<FormAffine<4, 128>>(rows, x, units, sums);
        case 8 << 8 | 32: return dot_rows<FormAffine<8, 32>>(rows, x, units, sums);
        case 8 << 8 | 64: return dot_rows<FormAffine<8, 64>>(rows, x, units, sums);
        case 8 << 8 | 128: return dot_rows<FormAffine<8, 128>>(rows, x, units, sums);
    }
}

// The sums over a warp of four numbers a lane: lane `l` gets that of number `l / 8`.
DEVICE float sum_of_four(const float (&x)[4]) {
    u32 lane = threadIdx.x % WARP;
    bool upper = lane & 16, odd = lane & 8;
    float a = upper ? x[2] : x[0], b = upper ? x[3] : x[1];
    a += __shfl_xor_sync(ALL, upper ? x[0] : x[2], 16);
    b += __shfl_xor_sync(ALL, upper ? x[1] : x[3], 16);
    float sum = (odd ? b : a) + __shfl_xor_sync(ALL, odd ? a : b, 8);
    for (u32 i = 4; i > 0; i /= 2) sum += __shfl_xor_sync(ALL, sum, i);
    return sum;
}
