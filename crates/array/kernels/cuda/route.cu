// Which experts serve a token, and with what weight. The definition is `reference` of `cpu/route.rs`.
#include "common.cuh"

// What logits become: 0 softmax, 1 sigmoid, 2 root of softplus.
struct Scores {
    u32 kind;
    float most, total;

    DEVICE float of(float logit) const {
        switch (kind) {
            case 0: return expf(logit - most) / total;
            case 1: return sigmoid(logit);
            default: return sqrtf(fmaxf(logit, 0.0f) + log1pf(expf(-fabsf(logit))));
        }
    }
};

// Each group of `size` keys is 1 in `kept` if it is one of the `keep` whose two best keys have the largest sum, else 0.
DEVICE void keep_groups(const float* keys, u32 size, u32 groups, u32 keep, u32* worth, u32* kept) {
    for (u32 g = threadIdx.x; g < groups; g += blockDim.x) {
        u32 first = 0, second = 0;
        float best[2] = {0.0f, 0.0f};
        for (u32 e = g * size; e < (g + 1) * size; e++) {
            u32 key = ordered(keys[e]);
            if (key > first) {
                second = first;
                best[1] = best[0];
                first = key;
                best[0] = keys[e];
            } else if (key > second) {
                second = key;
                best[1] = keys[e];
            }
        }
        worth[g] = ordered(best[0] + best[1]);
    }
    __syncthreads();
    for (u32 g = threadIdx.x; g < groups; g += blockDim.x) {
        u32 better = 0;
        for (u32 h = 0; h < groups; h++) better += worth[h] > worth[g] || (worth[h] == worth[g] && h < g);
        kept[g] = better < keep;
    }
    __syncthreads();
}

// Places of the `k` best of `n` keys, best first, the first of equals, into `best`. A key that is looked at is not 0, and
// there are enough of them. A warp first finds the best of each 32: nobody else can be among the best of all. `scratch`
// has room for two numbers for each of those.
template <class Key>
DEVICE void best_of(Key key, u32 n, u32 k, u32* scratch, u32* best) {
    u32 lane = threadIdx.x % WARP, some = min(k, WARP), count = (n + WARP - 1) / WARP * some;
    u32 *keys = scratch, *places = scratch + count;
    for (u32 piece = threadIdx.x / WARP; piece * WARP < n; piece += blockDim.x / WARP) {
        u32 e = piece * WARP + lane, own = e < n ? key(e) : 0, rank = 0;
#pragma unroll
        for (u32 i = 0; i < WARP; i++) {
            u32 other = __shfl_sync(ALL, own, i);
            rank += other > own || (other == own && i < lane);
        }
        if (rank < some) {
            keys[piece * some + rank] = own;
            places[piece * some + rank] = e;
        }
    }
    __syncthreads();
    // Of equal keys the one that stands first here has the smaller place too.
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 own = keys[i], rank = 0;
        for (u32 j = 0; j < count; j++) rank += keys[j] > own || (keys[j] == own && j < i);
        if (rank < k) best[rank] = places[i];
    }
    __syncthreads();
}

extern __shared__ u32 words[];

// A block has a row. Shared memory: a key for each expert and two numbers for each group, if there are groups; then the
// experts that are chosen, their scores, and what `best_of` wants.
KERNEL route(Step step, Mat logits, Vec bias, Vec table, Vec gain, u32 kind, u32 groups, u32 keep, u32 renormalize,
             float scale, Mat out) {
    u32 t = blockIdx.x, experts = logits.cols, k = out.cols / 2;
    if (t >= out.live(step)) return;
    const float* row = logits.row(t);
    Scores scores = {kind, 0.0f, 1.0f};
    if (kind == 0) {
        float most = -infinity(), total = 0.0f;
        for (u32 e = threadIdx.x; e < experts; e += blockDim.x) most = fmaxf(most, row[e]);
        scores.most = block_max(most);
        for (u32 e = threadIdx.x; e < experts; e += blockDim.x) total += expf(row[e] - scores.most);
        scores.total = block_sum(total);
    }
    u32 *kept = words + (groups ? experts + groups : 0), *chosen = kept + groups, *after = chosen + 2 * k;
    float *keys = (float*)words, *weights = (float*)(chosen + k);
    if (table.at) {
        const float* listed = table.at + (u64)step.id(t) * k;
        for (u32 r = threadIdx.x; r < k; r += blockDim.x) chosen[r] = min((u32)listed[r], experts - 1);
        __syncthreads();
    } else {
        // Softmax keeps the order of its logits.
        bool plain = kind == 0 && !bias.at && groups == 0;
        auto key = [&](u32 e) {
            if (plain) return row[e];
            return bias.at ? scores.of(row[e]) + bias.at[e] : scores.of(row[e]);
        };
        if (groups) {
            for (u32 e = threadIdx.x; e < experts; e += blockDim.x) keys[e] = key(e);
            __syncthreads();
            keep_groups(keys, experts / groups, groups, keep, words + experts, kept);
            auto of_kept = [&](u32 e) { return kept[e / (experts / groups)] ? max(ordered(keys[e]), 1) : 0; };
            best_of(of_kept, experts, k, after, chosen);
        } else {
            best_of([&](u32 e) { return max(ordered(key(e)), 1); }, experts, k, after, chosen);
        }
    }
    for (u32 r = threadIdx.x; r < k; r += blockDim.x) weights[r] = scores.of(row[chosen[r]]);
    __syncthreads();
    for (u32 r = threadIdx.x; r < k; r += blockDim.x) {
        float sum = 0.0f, weight = weights[r];
        if (renormalize) {
            for (u32 i = 0; i < k; i++) sum += weights[i];
            weight /= sum + 1e-20f;
        }
        weight *= scale;
        out.row(t)[r] = gain.at ? weight * gain.at[chosen[r]] : weight;
        out.row(t)[k + r] = (float)chosen[r];
    }
}
