// Attention as a fold over blocks of keys, and its gradient, for any numbers. KEYS: keys of a tile.
//
// A thread has a query and streams tiles of keys and values past it: of each row only one logit exists at a time.

// Copies a tile of rows, of WIDTH elements each, to memory that all threads of the block share.
#define BRING(tile, view, WIDTH, b, h, first, count)                                                         \
    for (i64 e = threadIdx.x; e < (count) * WIDTH; e += blockDim.x)                                           \
        tile[e] = widen(element<T>(view, place4(view, b, h, (first) + e / SOME(WIDTH)) + e % SOME(WIDTH) * view.strides[3]));

// Kernels of tiles and these are both launched, and all but one leave at once.
#define LEAVE_TO_TILES if (p.apart && !*(const u32*)p.apart) return

KERNEL(start, Attention) {
    if (p.apart && first_thread() == 0) *(u32*)p.apart = 0;
    const i64 rows = p.q.shape[0] * p.q.shape[1] * p.q.shape[2];
    for (i64 i = first_thread(); i < rows; i += threads()) {
        ROW(max, i) = A(-INFINITE);
        ROW(sum, i) = 0;
    }
    for (i64 i = first_thread(); i < rows * VDIM; i += threads()) ROW(acc, i) = 0;
}

BLOCK_KERNEL(fold, Attention) {
    LEAVE_TO_TILES;
    SHARED(A, keys, SOME(KEYS * DIM));
    SHARED(A, values, SOME(KEYS * VDIM));
    const i64 b = blockIdx.z, h = blockIdx.y, r = (i64)blockIdx.x * blockDim.x + threadIdx.x, n = p.q.shape[2];
    const bool mine = r < n;
    const i64 row = (b * p.q.shape[1] + h) * n + r, kv = h / GROUP, query = mine ? at(p.queries, r) : 0;
    A q[SOME(DIM)], o[SOME(VDIM)], m = 0, s = 0;
    if (mine) {
        for (i32 d = 0; d < DIM; d++) q[d] = widen(element<T>(p.q, place4(p.q, b, h, r) + d * p.q.strides[3]));
        for (i32 d = 0; d < VDIM; d++) o[d] = ROW(acc, row * VDIM + d);
        m = ROW(max, row);
        s = ROW(sum, row);
    }
    for (i64 first = 0; first < p.k.shape[2]; first += KEYS) {
        const i64 count = p.k.shape[2] - first < KEYS ? p.k.shape[2] - first : KEYS;
        BRING(keys, p.k, DIM, b, kv, first, count);
        BRING(values, p.v, VDIM, b, kv, first, count);
        SYNC();
        for (i64 j = 0; mine && j < count; j++) {
            A product = 0;
            for (i32 d = 0; d < DIM; d++) product += q[d] * keys[j * DIM + d];
            const A t = logit(p, b, h, r, first + j, query, product);
            if (t == A(-INFINITE)) continue;
            if (t > m) {
                const A shrink = exp(m - t);
                s *= shrink;
                for (i32 d = 0; d < VDIM; d++) o[d] *= shrink;
                m = t;
            }
            const A e = exp(t - m);
            s += e;
            const A f = e * factor(p, b, h, query, first + j);
            for (i32 d = 0; d < VDIM; d++) o[d] += f * values[j * VDIM + d];
        }
        SYNC();
    }
    if (mine) {
        for (i32 d = 0; d < VDIM; d++) ROW(acc, row * VDIM + d) = o[d];
        ROW(max, row) = m;
        ROW(sum, row) = s;
    }
}

// Writes the output, in OUT, and the logarithm of the sum of exponentials. Queries that saw no key get zeros and -inf.
KERNEL(finish, Attention) {
    const i64 n = p.q.shape[2], heads = p.q.shape[1], rows = p.q.shape[0] * heads * n;
    for (i64 row = first_thread(); row < rows; row += threads()) {
        const A s = ROW(sum, row);
        ROW(lse, row) = s == 0 ? A(-INFINITE) : ROW(max, row) + log(s);
    }
    // A thread per element, so that neighbours write side by side.
    for (i64 i = first_thread(); i < rows * VDIM; i += threads()) {
        const i64 row = over(i, SOME(VDIM)), head = over(row, n), b = over(head, heads), d = i - row * VDIM;
        const A s = ROW(sum, row), inverse = s == 0 ? A(0) : A(1) / s;
        const i64 to = place4(p.out, b, head - b * heads, row - head * n) + d * p.out.strides[3];
        element<OUT>(p.out, to) = As<OUT>::of(ROW(acc, i) * inverse);
    }
}

KERNEL(start_grad, Attention) {
    if (p.apart && first_thread() == 0) *(u32*)p.apart = 0;
    const i64 all = p.q.shape[0] * p.q.shape[1] * p.q.shape[2] * DIM;
    for (i64 i = first_thread(); i < all; i += threads()) ROW(dq, i) = 0;
}

// Computes D = dO . O for each row.
KERNEL(products, Attention) {
    LEAVE_TO_TILES;
    const i64 n = p.q.shape[2], rows = p.q.shape[0] * p.q.shape[1] * n;
    for (i64 row = first_thread(); row < rows; row += threads()) {
        const i64 r = row % n, h = row / n % p.q.shape[1], b = row / n / p.q.shape[1];
        A d = 0;
        for (i32 i = 0; i < VDIM; i++)
            d += widen(element<T>(p.out, place4(p.out, b, h, r) + i * p.out.strides[3])) * widen(element<T>(p.dout, place4(p.dout, b, h, r) + i * p.dout.strides[3]));
        ROW(delta, row) = d;
    }
}

// A thread per query; the keys come in tiles.
BLOCK_KERNEL(grad_queries, Attention) {
    LEAVE_TO_TILES;
    SHARED(A, keys, SOME(KEYS * DIM));
    SHARED(A, values, SOME(KEYS * VDIM));
    const i64 b = blockIdx.z, h = blockIdx.y, r = (i64)blockIdx.x * blockDim.x + threadIdx.x, n = p.q.shape[2];
    const bool mine = r < n;
    const i64 row = (b * p.q.shape[1] + h) * n + r, kv = h / GROUP, query = mine ? at(p.queries, r) : 0;
    A q[SOME(DIM)], g[SOME(DIM)], go[SOME(VDIM)], lse = 0, delta = 0;
    if (mine) {
        for (i32 d = 0; d < DIM; d++) { q[d] = widen(element<T>(p.q, place4(p.q, b, h, r) + d * p.q.strides[3])); g[d] = ROW(dq, row * DIM + d); }
        for (i32 d = 0; d < VDIM; d++) go[d] = widen(element<T>(p.dout, place4(p.dout, b, h, r) + d * p.dout.strides[3]));
        lse = ROW(lse, row);
        delta = ROW(delta, row);
    }
    for (i64 first = 0; first < p.k.shape[2]; first += KEYS) {
        const i64 count = p.k.shape[2] - first < KEYS ? p.k.shape[2] - first : KEYS;
        BRING(keys, p.k, DIM, b, kv, first, count);
        BRING(values, p.v, VDIM, b, kv, first, count);
        SYNC();
        for (i64 j = 0; mine && j < count; j++) {
            A product = 0, dp = 0;
            for (i32 d = 0; d < DIM; d++) product += q[d] * keys[j * DIM + d];
            const A w = probability(logit(p, b, h, r, first + j, query, product), lse);
            if (w == 0) continue;
            for (i32 d = 0; d < VDIM; d++) dp += go[d] * values[j * VDIM + d];
            const A ds = w * (dp * factor(p, b, h, query, first + j) - delta) * (A)p.scale;
            for (i32 d = 0; d < DIM; d++) g[d] += ds * keys[j * DIM + d];
        }
        SYNC();
    }
    if (mine) for (i32 d = 0; d < DIM; d++) ROW(dq, row * DIM + d) = g[d];
}

// A thread per key; the queries of its group come in tiles.
BLOCK_KERNEL(grad_keys, Attention) {
    LEAVE_TO_TILES;
    SHARED(A, rows, SOME(KEYS * DIM));
    SHARED(A, gos, SOME(KEYS * VDIM));
    const i64 b = blockIdx.z, kv = blockIdx.y, j = (i64)blockIdx.x * blockDim.x + threadIdx.x, n = p.q.shape[2];
    const bool mine = j < p.k.shape[2];
    A k[SOME(DIM)], v[SOME(VDIM)], gk[SOME(DIM)], gv[SOME(VDIM)];
    if (mine) {
        for (i32 d = 0; d < DIM; d++) { k[d] = widen(element<T>(p.k, place4(p.k, b, kv, j) + d * p.k.strides[3])); gk[d] = 0; }
        for (i32 d = 0; d < VDIM; d++) { v[d] = widen(element<T>(p.v, place4(p.v, b, kv, j) + d * p.v.strides[3])); gv[d] = 0; }
    }
    for (i64 h = kv * GROUP; h < (kv + 1) * GROUP; h++)
        for (i64 first = 0; first < n; first += KEYS) {
            const i64 count = n - first < KEYS ? n - first : KEYS;
            BRING(rows, p.q, DIM, b, h, first, count);
            BRING(gos, p.dout, VDIM, b, h, first, count);
            SYNC();
            for (i64 i = 0; mine && i < count; i++) {
                const i64 r = first + i, row = (b * p.q.shape[1] + h) * n + r, query = at(p.queries, r);
                A product = 0, dp = 0;
                for (i32 d = 0; d < DIM; d++) product += k[d] * rows[i * DIM + d];
                const A w = probability(logit(p, b, h, r, j, query, product), ROW(lse, row));
                if (w == 0) continue;
                for (i32 d = 0; d < VDIM; d++) dp += gos[i * VDIM + d] * v[d];
                const A f = factor(p, b, h, query, j), ds = w * (dp * f - ROW(delta, row)) * (A)p.scale;
                for (i32 d = 0; d < DIM; d++) gk[d] += ds * rows[i * DIM + d];
                for (i32 d = 0; d < VDIM; d++) gv[d] += w * f * gos[i * VDIM + d];
            }
            SYNC();
        }
    if (mine) {
        for (i32 d = 0; d < DIM; d++) element<A>(p.dk, place4(p.dk, b, kv, j) + d * p.dk.strides[3]) = gk[d];
        for (i32 d = 0; d < VDIM; d++) element<A>(p.dv, place4(p.dv, b, kv, j) + d * p.dv.strides[3]) = gv[d];
    }
}

// The gradient of an added mask: a thread per element, which sums over all pairs that the element was added to. `dmask` has its
// own extents.
KERNEL(grad_mask, Attention) {
    const i64 n = numel(p.dmask);
    const i64 extents[4] = {p.q.shape[0], p.q.shape[1], p.q.shape[2], p.k.shape[2]};
    for (i64 i = first_thread(); i < n; i += threads()) {
        i64 rest = i, from[4], to[4];
        for (i32 d = 3; d >= 0; d--) {
            const i64 x = rest % p.dmask.shape[d];
            rest /= p.dmask.shape[d];
            const bool wide = p.dmask.shape[d] == 1;
            from[d] = wide ? 0 : x;
            to[d] = wide ? extents[d] : x + 1;
        }
        A sum = 0;
        for (i64 b = from[0]; b < to[0]; b++) for (i64 h = from[1]; h < to[1]; h++) for (i64 r = from[2]; r < to[2]; r++) {
            const i64 row = (b * p.q.shape[1] + h) * p.q.shape[2] + r, kv = h / GROUP, query = at(p.queries, r);
            for (i64 j = from[3]; j < to[3]; j++) {
                A product = 0, dp = 0;
                for (i32 d = 0; d < DIM; d++)
                    product += widen(element<T>(p.q, place4(p.q, b, h, r) + d * p.q.strides[3])) * widen(element<T>(p.k, place4(p.k, b, kv, j) + d * p.k.strides[3]));
                const A w = probability(logit(p, b, h, r, j, query, product), ROW(lse, row));
                if (w == 0) continue;
                for (i32 d = 0; d < VDIM; d++)
                    dp += widen(element<T>(p.dout, place4(p.dout, b, h, r) + d * p.dout.strides[3])) * widen(element<T>(p.v, place4(p.v, b, kv, j) + d * p.v.strides[3]));
                sum += w * (dp * factor(p, b, h, query, j) - ROW(delta, row));
            }
        }
        const i64 where = place(p.dmask, i);
        element<A>(p.dmask, where) = ADDS ? element<A>(p.dmask, where) + sum : sum;
    }
}

// Merges several partial results into one. They lie along a first dim of `parts`: outputs in `acc`, sums in `max`.
struct Merge { u64 outs, sums, lse; View out; i64 parts, rows; };
KERNEL(merge, Merge) {
    const i64 n = p.out.shape[2], heads = p.out.shape[1];
    for (i64 row = first_thread(); row < p.rows; row += threads()) {
        const i64 r = row % n, h = row / n % heads, b = row / n / heads;
        A m = A(-INFINITE), s = 0, o[SOME(VDIM)];
        for (i64 k = 0; k < p.parts; k++) { const A l = ((const A*)p.sums)[k * p.rows + row]; if (l > m) m = l; }
        for (i32 d = 0; d < VDIM; d++) o[d] = 0;
        for (i64 k = 0; k < p.parts; k++) {
            const A l = ((const A*)p.sums)[k * p.rows + row];
            if (l == A(-INFINITE)) continue;
            const A w = exp(l - m);
            s += w;
            for (i32 d = 0; d < VDIM; d++) o[d] += w * ((const A*)p.outs)[(k * p.rows + row) * VDIM + d];
        }
        const A inverse = s == 0 ? A(0) : A(1) / s;
        for (i32 d = 0; d < VDIM; d++) element<OUT>(p.out, place4(p.out, b, h, r) + d * p.out.strides[3]) = As<OUT>::of(o[d] * inverse);
        ((A*)p.lse)[row] = s == 0 ? A(-INFINITE) : m + log(s);
    }
}
