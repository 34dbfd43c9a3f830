// Coordinates: what they read of a plane, and affine maps of them. T: the type. As grid.rs of the host kernels.
struct Grid {
    u64 grid, weight, index, theta;
    i64 count, places;                // places of all maps, and of one
    i64 spatial, taps;                // dims of the plane, and taps along each
    i64 mode, edge, aligned, in_elements, absent;  // 0 nearest, 1 linear, 2 cubic; 0 zeros, 1 border, 2 reflection
    i64 plane[3], start[3], shape[3]; // missing dims in front
    i64 orders[3];                    // how often weights are differentiated by each coordinate
};

#define AT(name, type, i) ((type*)p.name)[i]

// What is read along a dim, how it is weighed, and derivatives of that.
struct Taps { i64 index[4]; f64 weight[4], slope[4], bend[4], twist[4]; };

// Where a position comes to lie that is beyond the ends; `per` is multiplied by how fast it moves there.
DEVICE f64 clipped(f64 at, f64 n, f64* per) {
    if (at <= 0) { *per = 0; return 0; }
    if (at >= n - 1) { *per = 0; return n - 1; }
    return at;
}
DEVICE f64 at_edge(const Grid& p, f64 at, f64 n, f64* per) {
    if (p.edge == 0) return at;
    if (p.edge == 1) return clipped(at, n, per);
    const f64 low = p.aligned ? 0 : -0.5, span = p.aligned ? n - 1 : n;
    if (span == 0) { *per = 0; return 0; }
    f64 from = at - low;
    if (from < 0) { from = -from; *per = -*per; }
    const f64 flips = floor(from / span), rest = from - flips * span;
    if (flips - 2 * floor(flips / 2) == 0) return clipped(rest + low, n, per);
    *per = -*per;
    return clipped(span - rest + low, n, per);
}

// The second and third derivative of keys_cubic.
DEVICE void keys_bends(f64 x, f64* bend, f64* twist) {
    const f64 a = -0.75, sign = x < 0 ? -1.0 : 1.0;
    x = fabs(x);
    if (x <= 1) {
        *bend = 6 * (a + 2) * x - 2 * (a + 3);
        *twist = sign * 6 * (a + 2);
    } else if (x < 2) {
        *bend = (6 * x - 10) * a;
        *twist = sign * 6 * a;
    } else {
        *bend = *twist = 0;
    }
}

DEVICE void keys_cubic(f64 x, f64* value, f64* slope) {
    const f64 a = -0.75, sign = x < 0 ? -1.0 : 1.0;
    x = fabs(x);
    if (x <= 1) {
        *value = ((a + 2) * x - (a + 3)) * x * x + 1;
        *slope = sign * (3 * (a + 2) * x - 2 * (a + 3)) * x;
    } else if (x < 2) {
        *value = ((x - 5) * x + 8) * x * a - 4 * a;
        *slope = sign * ((3 * x - 10) * x + 8) * a;
    } else {
        *value = *slope = 0;
    }
}

DEVICE i64 inside_or(f64 i, f64 n) { return i >= 0 && i < n ? (i64)i : -1; }

// What a coordinate reads along dim d, of three; -1 for nothing.
DEVICE Taps taps_of(const Grid& p, i32 d, f64 coordinate) {
    Taps t;
    for (i32 k = 0; k < 4; k++) { t.index[k] = -1; t.weight[k] = t.slope[k] = t.bend[k] = t.twist[k] = 0; }
    const f64 n = (f64)p.plane[d];
    f64 at = p.aligned ? (coordinate + 1) / 2 * (n - 1) : ((coordinate + 1) * n - 1) / 2;
    f64 per = p.aligned ? (n - 1) / 2 : n / 2;
    if (p.in_elements) { at = coordinate; per = 1; }
    // As far from a border as matters.
    if (p.edge == 1) at = at < -4 ? -4 : at > n + 4 ? n + 4 : at;
    if (!(fabs(at) < INFINITE)) return t;
    if (p.mode == 2) {
        const f64 first = floor(at);
        for (i32 k = 0; k < 4; k++) {
            f64 unused = 1;
            keys_cubic((f64)k - 1 - (at - first), &t.weight[k], &t.slope[k]);
            keys_bends((f64)k - 1 - (at - first), &t.bend[k], &t.twist[k]);
            t.slope[k] *= -per;
            t.bend[k] *= per * per;
            t.twist[k] *= -per * per * per;
            t.index[k] = inside_or(at_edge(p, first + (f64)k - 1, n, &unused), n);
        }
        return t;
    }
    at = at_edge(p, at, n, &per);
    if (p.mode == 0) {
        t.index[0] = inside_or(rint(at), n);
        t.weight[0] = 1;
        return t;
    }
    const f64 first = floor(at);
    t.index[0] = inside_or(first, n);
    t.index[1] = inside_or(first + 1, n);
    t.weight[0] = first + 1 - at;
    t.weight[1] = at - first;
    t.slope[0] = -per;
    t.slope[1] = per;
    return t;
}

// The taps of a place along three dims; a missing dim has one tap.
struct Product { Taps along[3]; i64 each[3]; i64 all; };
DEVICE Product product_of(const Grid& p, i64 place) {
    Product x;
    x.all = 1;
    for (i32 d = 0; d < 3; d++) {
        if (d < 3 - p.spatial) {
            x.each[d] = 1;
            x.along[d].index[0] = 0;
            x.along[d].weight[0] = 1;
            x.along[d].slope[0] = x.along[d].bend[0] = x.along[d].twist[0] = 0;
            continue;
        }
        x.each[d] = p.taps;
        x.all *= p.taps;
        x.along[d] = taps_of(p, d, (f64)AT(grid, T, place * p.spatial + 2 - d));
    }
    return x;
}

KERNEL(grid_taps, Grid) {
    for (i64 place = first_thread(); place < p.count; place += threads()) {
        const Product x = product_of(p, place);
        for (i64 k = 0; k < x.all; k++) {
            f64 weight = 1;
            i64 flat = 0, rest = x.all, from = k;
            for (i32 d = 0; d < 3; d++) {
                rest /= x.each[d];
                const i64 tap = from / rest;
                from -= tap * rest;
                weight *= x.along[d].weight[tap];
                flat = flat < 0 || x.along[d].index[tap] < 0 ? -1 : flat * p.plane[d] + x.along[d].index[tap];
            }
            AT(weight, T, place * x.all + k) = (T)weight;
            AT(index, i64, place * x.all + k) = flat < 0 ? p.absent : flat;
        }
    }
}

DEVICE f64 weight_after(const Taps& t, i64 order, i64 tap) {
    return order == 0 ? t.weight[tap] : order == 1 ? t.slope[tap] : order == 2 ? t.bend[tap] : order == 3 ? t.twist[tap] : 0.0;
}

// weight: those of grid_taps, differentiated.
KERNEL(grid_taps_after, Grid) {
    for (i64 place = first_thread(); place < p.count; place += threads()) {
        const Product x = product_of(p, place);
        for (i64 k = 0; k < x.all; k++) {
            f64 weight = 1;
            i64 rest = x.all, from = k;
            for (i32 d = 0; d < 3; d++) {
                rest /= x.each[d];
                const i64 tap = from / rest;
                from -= tap * rest;
                weight *= weight_after(x.along[d], p.orders[d], tap);
            }
            AT(weight, T, place * x.all + k) = (T)weight;
        }
    }
}

// weight: its gradient; theta: that of the coordinates.
KERNEL(grid_taps_grad, Grid) {
    for (i64 place = first_thread(); place < p.count; place += threads()) {
        const Product x = product_of(p, place);
        f64 sums[3] = {0, 0, 0};
        for (i64 k = 0; k < x.all; k++) {
            f64 slope[3] = {1, 1, 1};
            i64 rest = x.all, from = k;
            for (i32 d = 0; d < 3; d++) {
                rest /= x.each[d];
                const i64 tap = from / rest;
                from -= tap * rest;
                for (i32 j = 0; j < 3; j++) slope[j] *= j == d ? x.along[d].slope[tap] : x.along[d].weight[tap];
            }
            for (i32 j = 0; j < 3; j++) sums[j] += (f64)AT(weight, T, place * x.all + k) * slope[j];
        }
        for (i32 d = 3 - (i32)p.spatial; d < 3; d++) AT(theta, T, place * p.spatial + 2 - d) = (T)sums[d];
    }
}

// Coordinate number j of a place of the box, or 1 behind the last.
DEVICE f64 base_of(const Grid& p, i64 place, i64 j) {
    if (j == p.spatial) return 1;
    i64 i = 0;
    for (i32 d = 2; d >= 2 - j; d--) {
        const i64 q = over(place, p.shape[d]);
        i = place - q * p.shape[d] + p.start[d];
        place = q;
    }
    const f64 n = (f64)p.plane[2 - j];
    if (p.plane[2 - j] <= 1) return 0;
    return p.aligned ? 2 * (f64)i / (n - 1) - 1 : (2 * (f64)i + 1) / n - 1;
}

KERNEL(affine_grid, Grid) {
    for (i64 i = first_thread(); i < p.count; i += threads()) {
        const i64 map = i / p.places, place = i - map * p.places, wide = p.spatial + 1;
        for (i64 row = 0; row < p.spatial; row++) {
            f64 sum = 0;
            for (i64 j = 0; j < wide; j++) sum += (f64)AT(theta, T, (map * p.spatial + row) * wide + j) * base_of(p, place, j);
            AT(grid, T, i * p.spatial + row) = (T)sum;
        }
    }
}

// A block for each number of theta.
BLOCK_KERNEL(affine_adjoint, Grid) {
    SHARED(f64, sums, 1024);
    const u32 t = threadIdx.x;
    const i64 wide = p.spatial + 1, row = blockIdx.x / wide, j = blockIdx.x % wide;
    const i64 map = row / p.spatial;
    f64 sum = 0;
    for (i64 place = t; place < p.places; place += blockDim.x)
        sum += (f64)AT(grid, T, (map * p.places + place) * p.spatial + row % p.spatial) * base_of(p, place, j);
    sums[t] = sum;
    SYNC();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];
        SYNC();
    }
    if (t == 0) AT(theta, T, blockIdx.x) = (T)sums[0];
}
