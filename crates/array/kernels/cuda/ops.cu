// Row by row: element by element, norms, rotary positions, copies of rows. The definitions are in `cpu/reference.rs`.
#include "common.cuh"

// A thread has a column of one row; rows that no token has end here.
#define EACH_NUMBER(step, out)                       \
    u32 i = blockIdx.y;                              \
    u32 j = blockIdx.x * blockDim.x + threadIdx.x;   \
    if (i >= (out).live(step) || j >= (out).cols) return;

KERNEL add(Step step, Mat a, Mat b, Mat out) {
    EACH_NUMBER(step, out)
    out.row(i)[j] = a.row(i)[j] + b.row(i)[j];
}

KERNEL apply(Step step, Map f, Mat x, Mat out) {
    EACH_NUMBER(step, out)
    out.row(i)[j] = map(f, x.row(i)[j]);
}

// A gate of one column serves the whole row.
KERNEL gate(Step step, Glu f, Mat gate, Mat x, Mat out) {
    EACH_NUMBER(step, out)
    out.row(i)[j] = glu(f, gate.row(i)[gate.cols == 1 ? 0 : j], x.row(i)[j]);
}

KERNEL concat(Step step, Mat a, Mat b, u32 groups, Mat out) {
    EACH_NUMBER(step, out)
    u32 m = a.cols / groups, n = b.cols / groups;
    u32 g = j / (m + n), at = j % (m + n);
    out.row(i)[j] = at < m ? a.row(i)[g * m + at] : b.row(i)[g * n + at - m];
}

KERNEL take_outputs(Step step, Mat x, Mat out) {
    EACH_NUMBER(step, out)
    out.row(i)[j] = x.row(step.output(i))[j];
}

// Rows without gaps, into the ring's place of the step.
KERNEL emit(Step step, Mat x, float* first, float* second) {
    EACH_NUMBER(step, x)
    float* to = step.ring() == 0 ? first : second;
    to[(u64)i * x.cols + j] = x.row(i)[j];
}

KERNEL position_scale(Step step, float beta, u32 every, Mat out) {
    EACH_NUMBER(step, out)
    u32 whole = step.position(i) / every;
    out.row(i)[j] = 1.0f + beta * (float)log(1.0 + (double)whole);
}

// All cosines, then all sines. The angle is rounded to f32, as in the references that checkpoints were trained with.
KERNEL rope_table(Step step, Vec freq, float scale, u32 every, u32 stretch, Mat out) {
    EACH_NUMBER(step, out)
    u32 n = out.cols / 2, pair = j % n;
    float by = step.stretch(step.row(i)), f = freq.at[pair];
    if (stretch == 1 && by > 1.0f && n > 1) {
        double power = -2.0 * (double)pair / (double)(2 * n - 2);
        f = (float)((double)f * pow((double)by, power));
    } else if (stretch == 2 && by > 1.0f) {
        f = freq.at[n + pair];
    }
    float angle = __fmul_rn((float)(step.position(i) / every * every), f);
    double turn = j < n ? cos((double)angle) : sin((double)angle);
    out.row(i)[j] = (float)turn * scale;
}

// `flags`: 1 pairs are interleaved, 2 backwards.
KERNEL rope(Step step, Mat x, Mat table, u32 dim, u32 start, u32 flags, Mat out) {
    EACH_NUMBER(step, out)
    u32 n = table.cols / 2, at = j % dim;
    const float* head = x.row(i) + j / dim * dim;
    if (at < start || at >= start + 2 * n) {
        out.row(i)[j] = head[at];
        return;
    }
    head += start;
    at -= start;
    bool interleaved = flags & 1, second = interleaved ? at % 2 == 1 : at >= n;
    u32 pair = interleaved ? at / 2 : at % n;
    float a = head[interleaved ? 2 * pair : pair], b = head[interleaved ? 2 * pair + 1 : pair + n];
    float cosine = table.row(i)[pair], sine = table.row(i)[n + pair];
    if (flags & 2) sine = -sine;
    out.row(i)[j] = second ? b * cosine + a * sine : a * cosine - b * sine;
}

// --- norms: a block has a group of one row

// What the group is multiplied with: one over the root of the mean square (of the sum, if `mean` is not set).
DEVICE float inverse_root(const float* x, u32 group, float eps, bool mean) {
    float sum = 0.0f;
    for (u32 j = threadIdx.x; j < group; j += blockDim.x) sum += x[j] * x[j];
    sum = block_sum(sum);
    return 1.0f / sqrtf((mean ? sum / (float)group : sum) + eps);
}

KERNEL rms_norm(Step step, Mat x, Vec weight, u32 group, float eps, Mat out) {
    u32 i = blockIdx.y, at = blockIdx.x * group;
    if (i >= out.live(step)) return;
    const float* from = x.row(i) + at;
    float* to = out.row(i) + at;
    const float* w = weight.at + at % weight.len;
    float r = inverse_root(from, group, eps, true);
    for (u32 j = threadIdx.x; j < group; j += blockDim.x) to[j] = from[j] * r * w[j];
}

KERNEL gated_rms_norm(Step step, Mat x, Mat gate, Glu f, Vec weight, u32 group, float eps, Mat out) {
    u32 i = blockIdx.y, at = blockIdx.x * group;
    if (i >= out.live(step)) return;
    const float *from = x.row(i) + at, *gates = gate.row(i) + at;
    float* to = out.row(i) + at;
    const float* w = weight.at + at % weight.len;
    float r = inverse_root(from, group, eps, true);
    for (u32 j = threadIdx.x; j < group; j += blockDim.x) {
        to[j] = glu(f, gates[j], from[j] * r * w[j]);
    }
}

KERNEL layer_norm(Step step, Mat x, Vec weight, Vec bias, float eps, Mat out) {
    u32 i = blockIdx.y, n = weight.len, at = blockIdx.x * n;
    if (i >= out.live(step)) return;
    const float* from = x.row(i) + at;
    float* to = out.row(i) + at;
    float sum = 0.0f, squares = 0.0f;
    for (u32 j = threadIdx.x; j < n; j += blockDim.x) sum += from[j];
    float mean = block_sum(sum) / (float)n;
    for (u32 j = threadIdx.x; j < n; j += blockDim.x) {
        squares += (from[j] - mean) * (from[j] - mean);
    }
    float r = 1.0f / sqrtf(block_sum(squares) / (float)n + eps);
    for (u32 j = threadIdx.x; j < n; j += blockDim.x) {
        to[j] = (from[j] - mean) * r * weight.at[j] + bias.at[j];
    }
}

KERNEL unit_norm(Step step, Mat x, u32 group, float eps, float scale, Mat out) {
    u32 i = blockIdx.y, at = blockIdx.x * group;
    if (i >= out.live(step)) return;
    const float* from = x.row(i) + at;
    float* to = out.row(i) + at;
    float r = inverse_root(from, group, eps, false);
    for (u32 j = threadIdx.x; j < group; j += blockDim.x) to[j] = from[j] * r * scale;
}
