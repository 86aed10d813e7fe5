// Softmax attention over paged states. What a token sees is cut into tiles of 32 places; the tiles of all tokens under
// all pieces (some query heads of one key head) stand in one line, and each block of threads has an equal stretch of it.
// So many short rows and one long one fill the device alike, and at most the first and the last piece of a stretch are
// parts of a whole, which `attention_merge` puts together, in order. The definition is in `cpu/attention/plain.rs`.
#include "common.cuh"
#include "attention.cuh"

constexpr u32 THREADS = 128, WARPS = THREADS / WARP;
// Columns of values that a thread has at most: those of `MOST` in `attention.rs` over the threads.
constexpr u32 OWN = 8;
// A place that is not seen, and one whose block is missing: what it holds counts as no number.
constexpr u32 HIDDEN = ALL, MISSING = ALL - 1;

// One attention, as `attention.rs` lays it out. `values`, `entries`, `list` and `sinks` are null where there are none.
struct Attention {
    State keys, values, entries;
    Mat q, list, out;
    Vec sinks;
    // Parts of results: weighted values `[2 * blocks, together, columns]`; of each the largest score and the sum.
    float *parts, *sums;
    // Tiles of a stretch, then the tiles before each token, and of all.
    u32* work;
    // Numbers of a value; columns of a piece; positions of a unit of the list or of an entry.
    u32 values_dim, columns, every;
    // Query heads of a key head; of a piece; pieces of a key head, of heads and of columns.
    u32 per_key, together, chunks, slices;
    // 0 for none.
    u32 window;
    float scale, softcap;

    DEVICE u32 pieces() const { return keys.heads * chunks * slices; }
};

// What a token sees: tiles of positions, then of entries. Where positions are `listed`, they and those after the last
// whole unit are gathered into tiles; else tiles are the blocks from that of the `first` position on.
struct View {
    u32 t, row, pos, first, whole, listed, near, tiles;
    bool gathered;
};

DEVICE u32 tiles_of(u32 n) { return (n + BLOCK - 1) / BLOCK; }

DEVICE View view(const Step& step, const Attention& a, u32 t) {
    View v;
    v.t = t;
    v.row = step.row(t);
    v.pos = step.position(t);
    v.first = a.window != 0 && v.pos + 1 > a.window ? v.pos + 1 - a.window : 0;
    v.whole = (v.pos + 1) / a.every;
    u32 units = a.list.at ? min(v.whole, a.list.cols) : v.whole;
    v.gathered = a.list.at && !a.entries.at;
    v.listed = units * a.every;
    v.near = v.gathered ? tiles_of(v.listed + (v.pos + 1) % a.every) : v.pos / BLOCK - v.first / BLOCK + 1;
    v.tiles = v.near + (a.entries.at ? tiles_of(units) : 0);
    return v;
}

// A place of a tile: its block, and where it is in it.
struct Place {
    u32 block, at;
    bool entry;
};

DEVICE Place place(const Step& step, const Attention& a, const View& v, u32 tile, u32 lane) {
    Place p = {HIDDEN, 0, tile >= v.near};
    const u32* list = (const u32*)(a.list.at ? a.list.row(v.t) : nullptr);
    u32 n;
    bool seen;
    if (p.entry) {
        n = (tile - v.near) * BLOCK + lane;
        if (list) n = n < a.list.cols ? list[n] : ALL;
        seen = n < v.whole;
    } else if (v.gathered) {
        u32 i = tile * BLOCK + lane, unit = i < v.listed ? list[i / a.every] : v.whole;
        n = i < v.listed ? unit * a.every + i % a.every : v.whole * a.every + i - v.listed;
        seen = (i >= v.listed || unit < v.whole) && n >= v.first && n <= v.pos;
    } else {
        n = (v.first / BLOCK + tile) * BLOCK + lane;
        seen = n >= v.first && n <= v.pos;
    }
    if (!seen) return p;
    const State& state = p.entry ? a.entries : a.keys;
    p.block = step.block(state.table, v.row, n / BLOCK);
    p.at = n % BLOCK;
    bool there = p.block < state.units;
    if (there && !p.entry && a.values.at) there = p.block < a.values.units;
    if (!there) p.block = MISSING;
    return p;
}

// The tiles before each token and of all, into `before`; returns the tiles of a stretch. All threads take part.
DEVICE u32 share(const Step& step, const Attention& a, u32* before) {
    __shared__ u32 of_warps[WARPS];
    u32 tokens = step.tokens(), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 run = (tokens + THREADS - 1) / THREADS, from = min(threadIdx.x * run, tokens), to = min(from + run, tokens);
    u32 own = 0;
    for (u32 t = from; t < to; t++) own += view(step, a, t).tiles;
    u32 sum = own;
    for (u32 i = 1; i < WARP; i *= 2) {
        u32 other = __shfl_up_sync(ALL, sum, i);
        if (lane >= i) sum += other;
    }
    if (lane == WARP - 1) of_warps[warp] = sum;
    __syncthreads();
    sum -= own;
    for (u32 i = 0; i < warp; i++) sum += of_warps[i];
    for (u32 t = from; t < to; t++) {
        before[t] = sum;
        sum += view(step, a, t).tiles;
    }
    // Only the last thread has seen all tokens.
    if (threadIdx.x == THREADS - 1) before[tokens] = sum;
    __syncthreads();
    u64 all = (u64)before[tokens] * a.pieces();
    // At least a tile for each warp.
    return max((u32)((all + gridDim.x - 1) / gridDim.x), WARPS);
}

// The last token with no more than `n` tiles before it that sees something.
DEVICE u32 token_at(const u32* before, u32 tokens, u32 n) {
    u32 low = 0, high = tokens;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (before[middle] <= n) low = middle;
        else high = middle;
    }
    return low;
}

// Some query heads of a key head, and some columns of their values.
struct Piece {
    // The key head, the first query head, how many heads and columns there are, the first column.
    u32 head, first, count, width, column;
};

DEVICE Piece piece(const Attention& a, u32 i) {
    u32 slice = i % a.slices, chunk = i / a.slices % a.chunks, head = i / a.slices / a.chunks;
    Piece p;
    p.head = head;
    p.first = head * a.per_key + chunk * a.together;
    p.count = min(a.together, a.per_key - chunk * a.together);
    p.column = slice * a.columns;
    p.width = min(a.columns, a.values_dim - p.column);
    return p;
}

// Where the result of a head of a piece goes.
DEVICE float* result(const Attention& a, const Piece& p, u32 t, u32 h) {
    return a.out.row(t) + (u64)(p.first + h) * a.values_dim + p.column;
}

// What weighted values are multiplied with at the end, given the largest score and the sum of the weights
// `e^(score - most)`. The sink of a head is one more score.
DEVICE float last_factor(const Attention& a, u32 head, float most, float sum) {
    float sink = a.sinks.at ? a.sinks.at[head] : -infinity();
    float peak = fmaxf(most, sink);
    if (peak == -infinity()) peak = 0.0f;
    float keep = expf(most - peak), all = sum * keep + expf(sink - peak);
    return all == 0.0f ? 0.0f : keep / all;
}

// Tiles `tile..tile + count` of what a token sees, under one piece. `slot` is that of a part; `ALL` for a whole.
template <u32 HEADS>
DEVICE void stretch(const Step& step, const Attention& a, const View& v, const Piece& p, u32 tile, u32 count, u32 slot,
                    float* q) {
    __shared__ float weights[THREADS][HEADS];
    __shared__ float peaks[WARPS][HEADS];
    __shared__ u32 blocks[THREADS], places[THREADS];
    u32 dim = a.keys.dim, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads();
    const float* from = a.q.row(v.t) + (u64)p.first * dim;
    for (u32 i = threadIdx.x; i < HEADS * dim; i += THREADS) q[i] = i < p.count * dim ? from[i] : 0.0f;
    __syncthreads();
    float most[HEADS], sum[HEADS], acc[OWN][HEADS];
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        most[h] = -infinity();
        sum[h] = 0.0f;
#pragma unroll
        for (u32 c = 0; c < OWN; c++) acc[c][h] = 0.0f;
    }
    for (u32 round = 0; round < count; round += WARPS) {
        // A warp has a tile, a lane a place.
        Place own = {HIDDEN, 0, false};
        if (round + warp < count) own = place(step, a, v, tile + round + warp, lane);
        float s[HEADS];
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) s[h] = own.block == MISSING ? __int_as_float(0x7fffffff) : 0.0f;
        if (own.block < MISSING) {
            Page keys = page(own.entry ? a.entries : a.keys, own.block, p.head);
            for (u32 d = 0; d < dim; d++) {
                float k = keys.number(d, own.at);
#pragma unroll
                for (u32 h = 0; h < HEADS; h++) s[h] += q[h * dim + d] * k;
            }
        }
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            s[h] *= a.scale;
            if (a.softcap != 0.0f) s[h] = a.softcap * tanhf(s[h] / a.softcap);
            if (own.block == HIDDEN) s[h] = -infinity();
            float peak = warp_max(s[h]);
            if (lane == 0) peaks[warp][h] = peak;
        }
        blocks[threadIdx.x] = own.block;
        places[threadIdx.x] = own.at | (own.entry ? BLOCK : 0);
        __syncthreads();
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            float peak = most[h];
            for (u32 w = 0; w < WARPS; w++) peak = fmaxf(peak, peaks[w][h]);
            float base = peak == -infinity() ? 0.0f : peak, keep = expf(most[h] - base);
            float weight = own.block == HIDDEN ? 0.0f : expf(s[h] - base);
            weights[threadIdx.x][h] = weight;
            sum[h] = sum[h] * keep + weight;
            most[h] = peak;
#pragma unroll
            for (u32 c = 0; c < OWN; c++) acc[c][h] *= keep;
        }
        __syncthreads();
        // A thread has some columns, of all places.
        u32 seen = min(count - round, WARPS) * BLOCK;
        for (u32 i = 0; i < seen; i++) {
            if (blocks[i] >= MISSING) continue;
            u32 at = places[i] % BLOCK;
            bool entry = places[i] >= BLOCK;
            const State& state = entry ? a.entries : a.values.at ? a.values : a.keys;
            Page values = page(state, blocks[i], p.head);
#pragma unroll
            for (u32 c = 0; c < OWN; c++) {
                u32 column = c * THREADS + threadIdx.x;
                if (column >= p.width) continue;
                float x = values.number(p.column + column, at);
#pragma unroll
                for (u32 h = 0; h < HEADS; h++) acc[c][h] += weights[i][h] * x;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        float all = block_sum(sum[h]);
        if (h >= p.count) continue;
        float factor = 1.0f, *to;
        if (slot == ALL) {
            factor = last_factor(a, p.first + h, most[h], all);
            to = result(a, p, v.t, h);
        } else {
            u64 part = (u64)slot * HEADS + h;
            to = a.parts + part * a.columns;
            if (threadIdx.x == 0) {
                a.sums[2 * part] = most[h];
                a.sums[2 * part + 1] = all;
            }
        }
#pragma unroll
        for (u32 c = 0; c < OWN; c++) {
            u32 column = c * THREADS + threadIdx.x;
            if (column < p.width) to[column] = acc[c][h] * factor;
        }
    }
}

// The slots of a block: one for the piece that its stretch begins with, one for the last.
DEVICE u32 slot_of(u64 block, bool begins) { return (u32)(2 * block + (begins ? 0 : 1)); }

template <u32 HEADS>
DEVICE void attend(const Step& step, const Attention& a) {
    extern __shared__ float shared[];
    float* q = shared;
    u32 *before = (u32*)(shared + HEADS * a.keys.dim), tokens = step.tokens(), pieces = a.pieces();
    u32 range = share(step, a, before);
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) a.work[0] = range;
        for (u32 t = threadIdx.x; t <= tokens; t += THREADS) a.work[1 + t] = before[t];
    }
    u64 begin = (u64)blockIdx.x * range, end = min(begin + range, (u64)before[tokens] * pieces);
    for (u64 at = begin; at < end;) {
        u32 t = token_at(before, tokens, (u32)(at / pieces));
        View v = view(step, a, t);
        u64 within = at - (u64)before[t] * pieces;
        u32 tile = (u32)(within % v.tiles), count = (u32)min((u64)(v.tiles - tile), end - at);
        u32 slot = count == v.tiles ? ALL : slot_of(blockIdx.x, at == begin);
        stretch<HEADS>(step, a, v, piece(a, (u32)(within / v.tiles)), tile, count, slot, q);
        at += count;
    }
}

// One kernel for each number of heads that a piece has room for.
KERNEL attention_1(Step step, Attention a) { attend<1>(step, a); }
KERNEL attention_2(Step step, Attention a) { attend<2>(step, a); }
KERNEL attention_4(Step step, Attention a) { attend<4>(step, a); }
KERNEL attention_8(Step step, Attention a) { attend<8>(step, a); }

// Puts the parts of a token's piece together, in the order of its tiles.
KERNEL attention_merge(Step step, Attention a) {
    u32 t = blockIdx.y;
    if (t >= step.tokens()) return;
    u32 range = a.work[0], before = a.work[1 + t], tiles = a.work[2 + t] - before;
    u64 start = (u64)before * a.pieces() + (u64)blockIdx.x * tiles;
    if (tiles == 0) return;
    u64 from = start / range, to = (start + tiles - 1) / range;
    if (from == to) return;
    Piece p = piece(a, blockIdx.x);
    for (u32 h = 0; h < p.count; h++) {
        auto part = [&](u64 block) { return (u64)slot_of(block, block > from || start % range == 0) * a.together + h; };
        float most = -infinity(), sum = 0.0f;
        for (u64 b = from; b <= to; b++) most = fmaxf(most, a.sums[2 * part(b)]);
        float base = most == -infinity() ? 0.0f : most;
        for (u64 b = from; b <= to; b++) sum += expf(a.sums[2 * part(b)] - base) * a.sums[2 * part(b) + 1];
        float factor = last_factor(a, p.first + h, most, sum);
        for (u32 column = threadIdx.x; column < p.width; column += THREADS) {
            float x = 0.0f;
            for (u64 b = from; b <= to; b++) {
                x += expf(a.sums[2 * part(b)] - base) * a.parts[part(b) * a.columns + column];
            }
            result(a, p, t, h)[column] = x * factor;
        }
    }
}
