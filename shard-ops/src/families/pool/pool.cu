// Pooling. T: the type. x: the input side, y: the output side, index: of the output side, all (N, C, three spatial dims).
//
// start: where x begins in the global plane; plane: the extents of that plane. Divisors of means come from the global geometry.
struct Pool {
    View x, y, index;
    Window window;
    i64 start[3], plane[3];
    i64 out_start[3], pad[3];
    i64 outputs[3];   // extents of the global output, for adaptive windows
    f64 fixed;        // the divisor, or 0 for counts
    i64 include_pad;
};

DEVICE i64 flat(const Pool& p, i64 i0, i64 i1, i64 i2) {
    return ((i0 + p.start[0]) * p.plane[1] + i1 + p.start[1]) * p.plane[2] + i2 + p.start[2];
}
// Whether a local position lies in x and in the global plane.
DEVICE bool valid(const Pool& p, i32 d, i64 i) { return inside(i, p.x.shape[2 + d]) && inside(i + p.start[d], p.plane[d]); }

KERNEL(max_pool, Pool) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index o = index_of(p.y, i);
        T best = T(-INFINITE);
        i64 where = -1;
        for (i64 a = 0; a < p.window.kernel[0]; a++)
            for (i64 b = 0; b < p.window.kernel[1]; b++)
                for (i64 k = 0; k < p.window.kernel[2]; k++) {
                    const i64 i0 = meets(p.window, 0, o.at[2], a), i1 = meets(p.window, 1, o.at[3], b), i2 = meets(p.window, 2, o.at[4], k);
                    if (!valid(p, 0, i0) || !valid(p, 1, i1) || !valid(p, 2, i2)) continue;
                    const T v = element<T>(p.x, place5(p.x, o.at[0], o.at[1], i0, i1, i2));
                    // Among equal elements the first wins; NaN wins over numbers.
                    if (v > best || v != v || where < 0) { best = v; where = flat(p, i0, i1, i2); }
                }
        element<T>(p.y, place5(p.y, o.at[0], o.at[1], o.at[2], o.at[3], o.at[4])) = best;
        element<i64>(p.index, place5(p.index, o.at[0], o.at[1], o.at[2], o.at[3], o.at[4])) = where;
    }
}

// The first input, in x, that an output of y sees by an adaptive window, and the one behind the last.
DEVICE i64 first_seen(const Pool& p, i32 d, i64 o) { return (o + p.out_start[d]) * p.plane[d] / p.outputs[d] - p.start[d]; }
DEVICE i64 end_seen(const Pool& p, i32 d, i64 o) {
    return ((o + p.out_start[d] + 1) * p.plane[d] + p.outputs[d] - 1) / p.outputs[d] - p.start[d];
}

KERNEL(adaptive_max_pool, Pool) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index o = index_of(p.y, i);
        T best = T(-INFINITE);
        i64 where = -1;
        for (i64 i0 = first_seen(p, 0, o.at[2]); i0 < end_seen(p, 0, o.at[2]); i0++)
            for (i64 i1 = first_seen(p, 1, o.at[3]); i1 < end_seen(p, 1, o.at[3]); i1++)
                for (i64 i2 = first_seen(p, 2, o.at[4]); i2 < end_seen(p, 2, o.at[4]); i2++) {
                    const T v = element<T>(p.x, place5(p.x, o.at[0], o.at[1], i0, i1, i2));
                    if (v > best || v != v || where < 0) { best = v; where = flat(p, i0, i1, i2); }
                }
        element<T>(p.y, place5(p.y, o.at[0], o.at[1], o.at[2], o.at[3], o.at[4])) = best;
        element<i64>(p.index, place5(p.index, o.at[0], o.at[1], o.at[2], o.at[3], o.at[4])) = where;
    }
}

// The first output in y that sees an input of x by an adaptive window, and the one behind the last.
DEVICE i64 first_seeing(const Pool& p, i32 d, i64 i) {
    const i64 o = (i + p.start[d]) * p.outputs[d] / p.plane[d] - p.out_start[d];
    return o > 0 ? o : 0;
}
DEVICE i64 end_seeing(const Pool& p, i32 d, i64 i) {
    const i64 o = ((i + p.start[d] + 1) * p.outputs[d] + p.plane[d] - 1) / p.plane[d] - p.out_start[d];
    return o < p.y.shape[2 + d] ? o : p.y.shape[2 + d];
}

// x is dx, y is dy.
KERNEL(adaptive_max_pool_grad, Pool) {
    const i64 n = numel(p.x);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index at = index_of(p.x, i);
        const i64 own = flat(p, at.at[2], at.at[3], at.at[4]);
        T sum = 0;
        for (i64 o0 = first_seeing(p, 0, at.at[2]); o0 < end_seeing(p, 0, at.at[2]); o0++)
            for (i64 o1 = first_seeing(p, 1, at.at[3]); o1 < end_seeing(p, 1, at.at[3]); o1++)
                for (i64 o2 = first_seeing(p, 2, at.at[4]); o2 < end_seeing(p, 2, at.at[4]); o2++)
                    if (element<i64>(p.index, place5(p.index, at.at[0], at.at[1], o0, o1, o2)) == own)
                        sum += element<T>(p.y, place5(p.y, at.at[0], at.at[1], o0, o1, o2));
        element<T>(p.x, place5(p.x, at.at[0], at.at[1], at.at[2], at.at[3], at.at[4])) = sum;
    }
}

// x is dx, y is dy. Outputs are visited in their own order, which is the reverse order of kernel indexes.
KERNEL(max_pool_grad, Pool) {
    const i64 n = numel(p.x);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index at = index_of(p.x, i);
        const i64 own = flat(p, at.at[2], at.at[3], at.at[4]);
        T sum = 0;
        for (i64 a = p.window.kernel[0] - 1; a >= 0; a--) {
            const i64 o0 = met_by(p.window, 0, at.at[2], a, p.y.shape[2]);
            if (o0 < 0) continue;
            for (i64 b = p.window.kernel[1] - 1; b >= 0; b--) {
                const i64 o1 = met_by(p.window, 1, at.at[3], b, p.y.shape[3]);
                if (o1 < 0) continue;
                for (i64 k = p.window.kernel[2] - 1; k >= 0; k--) {
                    const i64 o2 = met_by(p.window, 2, at.at[4], k, p.y.shape[4]);
                    if (o2 >= 0 && element<i64>(p.index, place5(p.index, at.at[0], at.at[1], o0, o1, o2)) == own)
                        sum += element<T>(p.y, place5(p.y, at.at[0], at.at[1], o0, o1, o2));
                }
            }
        }
        element<T>(p.x, place5(p.x, at.at[0], at.at[1], at.at[2], at.at[3], at.at[4])) = sum;
    }
}

// y = x at the index; 0 if the index is not in x.
KERNEL(pick, Pool) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index o = index_of(p.y, i);
        const i64 where = element<i64>(p.index, place5(p.index, o.at[0], o.at[1], o.at[2], o.at[3], o.at[4]));
        T v = 0;
        if (where >= 0) {
            const i64 q = where / p.plane[2], i2 = where - q * p.plane[2] - p.start[2];
            const i64 i0 = q / p.plane[1] - p.start[0], i1 = q % p.plane[1] - p.start[1];
            if (inside(i0, p.x.shape[2]) && inside(i1, p.x.shape[3]) && inside(i2, p.x.shape[4]))
                v = element<T>(p.x, place5(p.x, o.at[0], o.at[1], i0, i1, i2));
        }
        element<T>(p.y, place5(p.y, o.at[0], o.at[1], o.at[2], o.at[3], o.at[4])) = v;
    }
}

DEVICE T divisor(const Pool& p, i64 o0, i64 o1, i64 o2) {
    if (p.fixed != 0) return (T)p.fixed;
    const i64 o[3] = {o0, o1, o2};
    f64 count = 1;
    for (i32 d = 0; d < 3; d++) {
        i64 low = (p.out_start[d] + o[d]) * p.window.stride[d] - p.pad[d];
        i64 high = low + p.window.kernel[d] < p.plane[d] + p.pad[d] ? low + p.window.kernel[d] : p.plane[d] + p.pad[d];
        if (!p.include_pad) { low = low > 0 ? low : 0; high = high < p.plane[d] ? high : p.plane[d]; }
        count *= (f64)(high > low ? high - low : 0);
    }
    return (T)count;
}

KERNEL(avg_pool, Pool) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index o = index_of(p.y, i);
        // Every 64 positions the sum is added to a total in f64, so that sums of large windows lose no digits.
        T sum = 0;
        f64 total = 0;
        i64 position = 0;
        for (i64 a = 0; a < p.window.kernel[0]; a++)
            for (i64 b = 0; b < p.window.kernel[1]; b++)
                for (i64 k = 0; k < p.window.kernel[2]; k++, position++) {
                    if (position > 0 && position % 64 == 0) { total += (f64)sum; sum = 0; }
                    const i64 i0 = meets(p.window, 0, o.at[2], a), i1 = meets(p.window, 1, o.at[3], b), i2 = meets(p.window, 2, o.at[4], k);
                    if (inside(i0, p.x.shape[2]) && inside(i1, p.x.shape[3]) && inside(i2, p.x.shape[4]))
                        sum += element<T>(p.x, place5(p.x, o.at[0], o.at[1], i0, i1, i2));
                }
        if (position > 64) sum = (T)(total + (f64)sum);
        element<T>(p.y, place5(p.y, o.at[0], o.at[1], o.at[2], o.at[3], o.at[4])) = sum / divisor(p, o.at[2], o.at[3], o.at[4]);
    }
}

KERNEL(avg_pool_grad, Pool) {
    const i64 n = numel(p.x);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index at = index_of(p.x, i);
        T sum = 0;
        for (i64 a = p.window.kernel[0] - 1; a >= 0; a--) {
            const i64 o0 = met_by(p.window, 0, at.at[2], a, p.y.shape[2]);
            if (o0 < 0) continue;
            for (i64 b = p.window.kernel[1] - 1; b >= 0; b--) {
                const i64 o1 = met_by(p.window, 1, at.at[3], b, p.y.shape[3]);
                if (o1 < 0) continue;
                for (i64 k = p.window.kernel[2] - 1; k >= 0; k--) {
                    const i64 o2 = met_by(p.window, 2, at.at[4], k, p.y.shape[4]);
                    if (o2 >= 0) sum += element<T>(p.y, place5(p.y, at.at[0], at.at[1], o0, o1, o2)) / divisor(p, o0, o1, o2);
                }
            }
        }
        element<T>(p.x, place5(p.x, at.at[0], at.at[1], at.at[2], at.at[3], at.at[4])) = sum;
    }
}
