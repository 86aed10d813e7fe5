// How numbers of paged states are read: the twin of `Layout::number` of `stored.rs`. Owns no kernel.
#pragma once
#include "common.cuh"

// One head of one block: its codes, then its scales.
struct Page {
    const u8* at;
    u32 stored, dim, keys;

    DEVICE u32 codes() const { return stored == 4 ? (dim + 1) / 2 : dim; }
    DEVICE u32 width() const { return stored == 0 ? 4 : stored <= 2 ? 2 : 1; }
    DEVICE u32 parameters() const {
        u32 groups = (dim + 31) / 32;
        return stored <= 2 ? 0 : stored == 3 ? groups : 2 * groups;
    }
    DEVICE u32 bytes() const { return BLOCK * (codes() * width() + 2 * parameters()); }
    DEVICE u32 place(u32 n, u32 i, u32 token) const { return keys ? i * BLOCK + token : token * n + i; }
    // Scale or least number `i` of a token.
    DEVICE float parameter(u32 i, u32 token) const {
        const u16* from = (const u16*)(at + BLOCK * codes() * width());
        return bf16(from[place(parameters(), i, token)]);
    }
    // Number `d` of a token.
    DEVICE float number(u32 d, u32 token) const {
        switch (stored) {
            case 0: return ((const float*)at)[place(dim, d, token)];
            case 1: return f16(((const u16*)at)[place(dim, d, token)]);
            case 2: return bf16(((const u16*)at)[place(dim, d, token)]);
            case 3: return __fmul_rn((float)(i8)at[place(dim, d, token)], parameter(d / 32, token));
            default: {
                u32 code = at[place(codes(), d / 2, token)] >> (d % 2 * 4) & 15, g = d / 32 * 2;
                float scale = parameter(g, token), low = parameter(g + 1, token);
                return __fadd_rn(__fmul_rn((float)code, scale), low);
            }
        }
    }
};

DEVICE Page page(const State& state, u32 block, u32 head) {
    Page page = {state.piece(block), state.stored, state.dim, state.keys};
    page.at += (u64)head * page.bytes();
    return page;
}
