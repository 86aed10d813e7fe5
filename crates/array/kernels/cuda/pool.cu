// Pooling groups of tokens into entries. A group's tokens are wherever they are: in the row's record, in its log or in
// the step. The definition is in `cpu/select.rs`.
#include "recurrent.cuh"

// What is pooled. A record has the open group's `x`, then its `gate`, each `[every, cols]`; with overlap, the first
// halves of the group before alike.
struct Pooled {
    Mat x, gate;
    // `[every, cols]`
    Vec bias;
    State state;
    u32 every, overlap;

    DEVICE u32 half() const { return overlap ? x.cols / 2 : 0; }
};

// A row's tokens, its record and its log.
struct Brought : RowTokens {
    float* record;

    DEVICE Brought(const Step& step, const Pooled& p, u32 row)
        : RowTokens(step, row), record(p.state.numbers(slot)) {}

    // Where a record has column `from` of row `i` of the open group, or of the group before: `x`, or `gate`.
    DEVICE float* place(const Pooled& p, bool open, u32 i, u32 from, bool gate) const {
        u32 n = p.every, cols = open ? p.x.cols : p.half(), begin = open ? 0 : 2 * n * p.x.cols;
        return record + begin + (u64)(gate ? n + i : i) * cols + from;
    }

    // Column `from` of `x`, or of `gate`, of a token of the open group or after it; or of the group before it, of which
    // a record has the first half.
    DEVICE float number(const Pooled& p, u32 position, u32 from, bool gate) const {
        if (position < start) {
            bool open = position / p.every == start / p.every;
            return *place(p, open, position % p.every, from, gate);
        }
        return input(p.state, gate ? p.gate : p.x, position - start, gate ? p.x.cols : 0)[from];
    }
};

// A thread has a column of a token: of the last token of a group its entry, elsewhere 0.
KERNEL pool(Step step, Pooled p, Mat out) {
    u32 t = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x, n = p.every;
    if (t >= out.live(step) || column >= out.cols) return;
    u32 position = step.position(t), group = position / n;
    if ((position + 1) % n != 0) {
        out.row(t)[column] = 0.0f;
        return;
    }
    Brought brought(step, p, step.row(t));
    // The group before, and its own.
    u32 parts = p.overlap && group > 0 ? 2 : 1;
    float most = -infinity(), sum = 0.0f, pooled = 0.0f;
    for (u32 part = 0; part < parts; part++) {
        u32 from = part == 0 ? p.half() + column : column;
        for (u32 i = 0; i < n; i++) {
            float gate = brought.number(p, (group - part) * n + i, from, true);
            most = fmaxf(most, gate + p.bias.at[(u64)i * p.x.cols + from]);
        }
    }
    for (u32 part = parts; part-- > 0;) {
        u32 from = part == 0 ? p.half() + column : column;
        for (u32 i = 0; i < n; i++) {
            u32 at = (group - part) * n + i;
            float gate = brought.number(p, at, from, true) + p.bias.at[(u64)i * p.x.cols + from];
            float e = expf(gate - most);
            sum += e;
            pooled = fmaf(e, brought.number(p, at, from, false), pooled);
        }
    }
    out.row(t)[column] = pooled / sum;
}

// Brings column `from` of a part of a record forward over the confirmed tokens. The open group's rows are those of the
// last tokens, a ring.
DEVICE void confirm(const Brought& b, const Pooled& p, bool open, u32 from) {
    u32 n = p.every, end = b.start + b.confirmed;
    if (b.fresh()) {
        for (u32 i = 0; i < n; i++) *b.place(p, open, i, from, false) = *b.place(p, open, i, from, true) = 0.0f;
    }
    u32 position = max(b.start, end > n ? end - n : 0), to = end;
    if (!open) {
        to = end / n * n;
        position = to > b.start / n * n ? to - n : to;
    }
    for (; position < to; position++) {
        float x = b.number(p, position, from, false), gate = b.number(p, position, from, true);
        *b.place(p, open, position % n, from, false) = x;
        *b.place(p, open, position % n, from, true) = gate;
    }
}

// Records, then logs. A thread has a column of the entries of a row, and of what is in its record all that this column
// is made of, so nobody reads what another one writes.
KERNEL pool_keep(Step step, Pooled p) {
    u32 row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    u32 half = p.half(), cols = p.overlap ? half : p.x.cols;
    if (row >= step.rows() || column >= cols) return;
    Brought b(step, p, row);
    if (b.confirmed > 0) {
        // The group before first: its tokens may be in the ring.
        if (p.overlap) {
            confirm(b, p, false, column);
            confirm(b, p, true, half + column);
        }
        confirm(b, p, true, column);
    }
    for (u32 i = b.unconfirmed(); i < b.all; i++) {
        float *to = p.state.log(b.slot, i - b.confirmed);
        u32 t = b.token(i);
        for (u32 part = 0; part <= p.overlap; part++) {
            u32 from = part * half + column;
            to[from] = p.x.row(t)[from];
            to[p.x.cols + from] = p.gate.row(t)[from];
        }
    }
}
