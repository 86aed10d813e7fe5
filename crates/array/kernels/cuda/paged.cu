// What is written into paged states, in the bytes that `Layout::encode` of `stored.rs` defines: to the bit.
#include "common.cuh"

// Numbers that share a scale.
constexpr u32 GROUP = 32;

// Where one head of one block lies: its codes, then its scales.
struct Head {
    u8* at;
    u32 stored, dim, keys;

    DEVICE u32 codes() const { return stored == 4 ? (dim + 1) / 2 : dim; }
    DEVICE u32 width() const { return stored == 0 ? 4 : stored <= 2 ? 2 : 1; }
    DEVICE u32 parameters() const {
        u32 groups = (dim + GROUP - 1) / GROUP;
        return stored <= 2 ? 0 : stored == 3 ? groups : 2 * groups;
    }
    DEVICE u32 bytes() const { return BLOCK * (codes() * width() + 2 * parameters()); }
    DEVICE u32 place(u32 n, u32 i, u32 token) const { return keys ? i * BLOCK + token : token * n + i; }
    // Code `i` of a token.
    DEVICE u8* code(u32 i, u32 token) const { return at + place(codes(), i, token) * width(); }
    // Scale or least number `i` of a token.
    DEVICE u16* parameter(u32 i, u32 token) const {
        return (u16*)(at + BLOCK * codes() * width()) + place(parameters(), i, token);
    }
};

// The next bf16 that is not nearer to 0.
DEVICE float away(float x) {
    u32 bits = __float_as_uint(x);
    u32 up = bits > ALL - 0xffff ? ALL : bits + 0xffff;
    return __uint_as_float(up & 0xffff0000u);
}

// A warp encodes a group of codes, a number a lane; lanes without one have `has` false.
DEVICE void encode_group(const Head& head, u32 g, float x, bool has, u32 token) {
    u32 lane = threadIdx.x % WARP;
    bool four = head.stored == 4;
    float scale, low = 0.0f;
    if (__any_sync(ALL, has && !isfinite(x))) {
        scale = __uint_as_float(0x7fc00000);
    } else if (!four) {
        scale = away(__fdiv_rn(warp_max(has ? fabsf(x) : 0.0f), 127.0f));
    } else {
        const float most = infinity();
        float least = warp_min(has ? x : most), high = warp_max(has ? x : -most);
        low = least < 0.0f ? away(least) : __uint_as_float(__float_as_uint(least) & 0xffff0000u);
        scale = away(__fdiv_rn(__fsub_rn(high, low), 15.0f));
    }
    if (lane == 0) {
        *head.parameter(four ? 2 * g : g, token) = (u16)(__float_as_uint(scale) >> 16);
        if (four) *head.parameter(2 * g + 1, token) = (u16)(__float_as_uint(low) >> 16);
    }
    float level = rintf(__fdiv_rn(__fsub_rn(x, low), scale));
    // Where the scale is 0 or NaN the code is 0; what is out of range goes to its end.
    level = isnan(level) ? 0.0f : level;
    u32 code = four ? (u32)fminf(fmaxf(level, 0.0f), 15.0f)
                    : (u32)(u8)(i8)(int)fminf(fmaxf(level, -128.0f), 127.0f);
    if (!has) code = 0;
    if (!four) {
        if (has) *head.code(g * GROUP + lane, token) = (u8)code;
        return;
    }
    u32 beside = __shfl_down_sync(ALL, code, 1);
    if (has && lane % 2 == 0) *head.code((g * GROUP + lane) / 2, token) = (u8)(code | beside << 4);
}

// A warp has a head of a token.
KERNEL write_kv(Step step, Mat x, State state) {
    u32 t = blockIdx.y, h = blockIdx.x;
    if (t >= x.live(step)) return;
    u32 position = step.position(t);
    if ((position + 1) % state.every != 0) return;
    u32 entry = position / state.every, token = entry % BLOCK;
    u32 block = step.block(state.table, step.row(t), entry / BLOCK);
    if (block >= state.units) return;
    Head head = {state.piece(block), state.stored, state.dim, state.keys};
    head.at += (u64)h * head.bytes();
    const float* from = x.row(t) + (u64)h * state.dim;
    for (u32 g = 0; g * GROUP < state.dim; g++) {
        u32 d = g * GROUP + threadIdx.x;
        bool has = d < state.dim;
        float number = has ? from[d] : 0.0f;
        switch (state.stored) {
            case 0:
                if (has) *(float*)head.code(d, token) = number;
                break;
            case 1:
                if (has) *(u16*)head.code(d, token) = to_f16(number);
                break;
            case 2:
                if (has) *(u16*)head.code(d, token) = to_bf16(number);
                break;
            default: encode_group(head, g, number, has, token);
        }
    }
}
