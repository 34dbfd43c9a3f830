// Reductions of some dims. T: the type; W: the one it is reduced in, R: the result's; JOIN(a, b), LIFT(x), LOWER(w), START: the monoid.

struct Reduce { View cells, along, y; };

// A zero is above its negative: of two zeros, one of each sign sum to the one above.
DEVICE W larger(W a, W b) { return a == b && a == 0 ? a + b : a != a || a > b ? a : b; }
DEVICE W smaller(W a, W b) { return a == b && a == 0 ? -(-a - b) : a != a || a < b ? a : b; }

// A thread per cell: where there are many cells side by side.
KERNEL(columns, Reduce) {
    const i64 n = numel(p.cells), m = numel(p.along);
    for (i64 c = first_thread(); c < n; c += threads()) {
        const i64 base = place(p.cells, c);
        W sum = START;
        for (i64 i = 0; i < m; i++) {
            T x = element<T>(p.cells, base + place(p.along, i));
            sum = JOIN(sum, LIFT(x));
        }
        element<R>(p.y, place(p.y, c)) = LOWER(sum);
    }
}

// A block per cell: threads take every so many elements, and join in pairs. The order is the same in every run.
BLOCK_KERNEL(cells, Reduce) {
    SHARED(W, part, 1024);
    const i64 n = numel(p.cells), m = numel(p.along);
    const u32 t = threadIdx.x;
    for (i64 c = blockIdx.x; c < n; c += gridDim.x) {
        const i64 base = place(p.cells, c);
        W sum = START;
        for (i64 i = t; i < m; i += blockDim.x) {
            T x = element<T>(p.cells, base + place(p.along, i));
            sum = JOIN(sum, LIFT(x));
        }
        part[t] = sum;
        SYNC();
        for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
            if (t < half) { W a = part[t], b = part[t + half]; part[t] = JOIN(a, b); }
            SYNC();
        }
        if (t == 0) element<R>(p.y, place(p.y, c)) = LOWER(part[0]);
        SYNC();
    }
}
