// Rows multiplied each with the matrix that its key names, tile by tile. T: the operands' type; W: that of the arithmetic; R: the results'; TILE: a tile's side, whose square is the number of threads of a block.

// Keys from `own` on name ghosts, negative ones nothing. Of sums, `order` has the rows by key, and `starts` where those of each key begin.
struct Products {
    View x, y, table, ghosts;        // rows and results, or both rows of sums; matrices
    u64 keys, order, starts;
    i64 own, ghost_count, rows, n, k, goes_on;
};

#ifdef PRODUCT
BLOCK_KERNEL(multiply_each, Products) {
    SHARED(W, left, TILE * TILE);
    SHARED(W, right, TILE * TILE);
    SHARED(i64, keys, TILE);
    const i64 r = threadIdx.x / TILE, c = threadIdx.x % TILE;
    for (i64 columns = blockIdx.x; columns * TILE < p.n; columns += gridDim.x)
    for (i64 tile = blockIdx.y; tile * TILE < p.rows; tile += gridDim.y) {
        const i64 row = tile * TILE + r, column = columns * TILE + c;
        if (c == 0) keys[r] = row < p.rows ? ((const i64*)p.keys)[row] : -1;
        SYNC();
        W result = 0;
        // Each key of the tile once, where it stands first. Most tiles have one.
        for (i32 first = 0; first < TILE; first++) {
            const i64 key = keys[first];
            bool is_new = key >= 0;
            for (i32 before = 0; before < first && is_new; before++) is_new = keys[before] != key;
            if (!is_new) continue;
            const View& from = key < p.own ? p.table : p.ghosts;
            const i64 at = (key < p.own ? key : key - p.own) * from.strides[0];
            W sum = 0;
            for (i64 k0 = 0; k0 < p.k; k0 += TILE) {
                left[threadIdx.x] = row < p.rows && k0 + c < p.k
                    ? widen(element<T>(p.x, row * p.x.strides[0] + (k0 + c) * p.x.strides[1])) : W(0);
                right[threadIdx.x] = k0 + r < p.k && column < p.n
                    ? widen(element<T>(from, at + (k0 + r) * from.strides[1] + column * from.strides[2])) : W(0);
                SYNC();
                for (i64 k = 0; k < TILE; k++) sum += left[r * TILE + k] * right[k * TILE + c];
                SYNC();
            }
            if (keys[r] == key) result = sum;
        }
        if (row < p.rows && column < p.n)
            element<R>(p.y, row * p.y.strides[0] + column * p.y.strides[1]) = As<R>::of(result);
        SYNC();
    }
}
#endif

#ifdef SUMS
BLOCK_KERNEL(outer_each, Products) {
    SHARED(W, left, TILE * TILE);
    SHARED(W, right, TILE * TILE);
    const i64 r = threadIdx.x / TILE, c = threadIdx.x % TILE;
    const i64* starts = (const i64*)p.starts;
    const i64* order = (const i64*)p.order;
    for (i64 key = blockIdx.z; key < p.own + p.ghost_count; key += gridDim.z)
    for (i64 lines = blockIdx.y; lines * TILE < p.k; lines += gridDim.y)
    for (i64 columns = blockIdx.x; columns * TILE < p.n; columns += gridDim.x) {
        const i64 line = lines * TILE + r, column = columns * TILE + c;
        const i64 end = starts[key + 1];
        W sum = 0;
        for (i64 t0 = starts[key]; t0 < end; t0 += TILE) {
            // Of `left` a line is one of the result, of `right` a row.
            left[threadIdx.x] = t0 + c < end && line < p.k
                ? widen(element<T>(p.x, order[t0 + c] * p.x.strides[0] + line * p.x.strides[1])) : W(0);
            right[threadIdx.x] = t0 + r < end && column < p.n
                ? widen(element<T>(p.y, order[t0 + r] * p.y.strides[0] + column * p.y.strides[1])) : W(0);
            SYNC();
            for (i64 t = 0; t < TILE; t++) sum += left[r * TILE + t] * right[t * TILE + c];
            SYNC();
        }
        if (line < p.k && column < p.n) {
            const bool away = key >= p.own;
            const View& into = away ? p.ghosts : p.table;
            R& to = element<R>(into, (away ? key - p.own : key) * into.strides[0] + line * into.strides[1] + column * into.strides[2]);
            to = As<R>::of(!away && p.goes_on ? widen(to) + sum : sum);
        }
    }
}
#endif
