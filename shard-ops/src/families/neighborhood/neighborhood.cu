// Neighbourhood attention. T: the stored type; A: the type of the arithmetic; DIM, VDIM: elements of a key and of a value; SITES:
// spatial dims.
//
// Queries are (batch, SITES dims, heads, DIM). The keys that a query sees, and the queries that see a key, are a product of
// ranges along each dim: `near` has, per index of a dim, where the range begins and its length; its indices are `step` apart.
struct Neighborhood {
    View q, k, v, out, dout;
    View lse, delta, dq, dk, dv;  // of A
    u64 near[AXES - 3];
    i64 step[AXES - 3];
    f64 scale;
};

#define SOME(n) ((n) > 0 ? (n) : 1)
#define GROUP (p.q.shape[SITES + 1] / SOME(p.k.shape[SITES + 1]))

// A batch entry, a site and a head.
struct Row { i64 at[SITES + 2]; };

DEVICE i64 rows_of(const View& v) {
    i64 n = 1;
    for (i32 d = 0; d < SITES + 2; d++) n *= v.shape[d];
    return n;
}
DEVICE Row row_of(const View& v, i64 index) {
    Row row;
    for (i32 d = SITES + 1; d >= 0; d--) {
        const i64 rest = over(index, v.shape[d]);
        row.at[d] = index - rest * v.shape[d];
        index = rest;
    }
    return row;
}
DEVICE i64 place_of(const View& v, const Row& row) {
    i64 place = 0;
    for (i32 d = 0; d < SITES + 2; d++) place += row.at[d] * v.strides[d];
    return place;
}

// How many sites are near a row's site.
DEVICE i64 seen_from(const Neighborhood& p, const Row& row) {
    i64 n = 1;
    for (i32 d = 0; d < SITES; d++) n *= ((const i64*)p.near[d])[2 * row.at[1 + d] + 1];
    return n;
}
// Goes to the one of these sites with a number.
DEVICE void go(const Neighborhood& p, const Row& from, i64 index, Row& to) {
    for (i32 d = SITES - 1; d >= 0; d--) {
        const i64* near = (const i64*)p.near[d] + 2 * from.at[1 + d];
        const i64 rest = over(index, near[1]);
        to.at[1 + d] = near[0] + (index - rest * near[1]) * p.step[d];
        index = rest;
    }
}

#define AT(view, place, d) widen(element<T>(view, (place) + (d) * view.strides[SITES + 2]))
#define SUM_AT(view, place, d) element<A>(view, (place) + (d) * view.strides[SITES + 2])

KERNEL(attend, Neighborhood) {
    const i64 n = rows_of(p.q);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Row row = row_of(p.q, i);
        const i64 seen = seen_from(p, row), query = place_of(p.q, row);
        Row key = row;
        key.at[SITES + 1] /= GROUP;
        A q[SOME(DIM)], o[SOME(VDIM)], max = A(-INFINITE), sum = 0;
        for (i32 d = 0; d < DIM; d++) q[d] = AT(p.q, query, d) * (A)p.scale;
        for (i32 d = 0; d < VDIM; d++) o[d] = 0;
        for (i64 s = 0; s < seen; s++) {
            go(p, row, s, key);
            const i64 at_key = place_of(p.k, key), at_value = place_of(p.v, key);
            A logit = 0;
            for (i32 d = 0; d < DIM; d++) logit += q[d] * AT(p.k, at_key, d);
            if (logit > max) {
                const A less = exp(max - logit);
                for (i32 d = 0; d < VDIM; d++) o[d] *= less;
                sum *= less;
                max = logit;
            }
            const A weight = exp(logit - max);
            sum += weight;
            for (i32 d = 0; d < VDIM; d++) o[d] += weight * AT(p.v, at_value, d);
        }
        const i64 out = place_of(p.out, row);
        for (i32 d = 0; d < VDIM; d++) element<T>(p.out, out + d * p.out.strides[SITES + 2]) = As<T>::of(seen ? o[d] / sum : A(0));
        element<A>(p.lse, place_of(p.lse, row)) = seen ? max + log(sum) : A(-INFINITE);
    }
}

// The probability of a pair and the gradient by its logit, from the query's sums.
struct Pair { A probability, slope; };
DEVICE Pair pair(const Neighborhood& p, i64 query, i64 key, i64 value, i64 dout, A lse, A delta) {
    A logit = 0, by_probability = 0;
    for (i32 d = 0; d < DIM; d++) logit += AT(p.q, query, d) * (A)p.scale * AT(p.k, key, d);
    for (i32 d = 0; d < VDIM; d++) by_probability += AT(p.dout, dout, d) * AT(p.v, value, d);
    Pair pair;
    pair.probability = exp(logit - lse);
    pair.slope = pair.probability * (by_probability - delta);
    return pair;
}

// By the queries; also writes, per query, the sum of products of result and cotangent.
KERNEL(grad_queries, Neighborhood) {
    const i64 n = rows_of(p.q);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Row row = row_of(p.q, i);
        const i64 seen = seen_from(p, row), query = place_of(p.q, row), out = place_of(p.out, row), dout = place_of(p.dout, row);
        Row key = row;
        key.at[SITES + 1] /= GROUP;
        A delta = 0, sum[SOME(DIM)];
        for (i32 d = 0; d < VDIM; d++) delta += AT(p.out, out, d) * AT(p.dout, dout, d);
        for (i32 d = 0; d < DIM; d++) sum[d] = 0;
        const A lse = element<A>(p.lse, place_of(p.lse, row));
        for (i64 s = 0; s < seen; s++) {
            go(p, row, s, key);
            const i64 at_key = place_of(p.k, key);
            const Pair one = pair(p, query, at_key, place_of(p.v, key), dout, lse, delta);
            for (i32 d = 0; d < DIM; d++) sum[d] += one.slope * AT(p.k, at_key, d);
        }
        const i64 dq = place_of(p.dq, row);
        for (i32 d = 0; d < DIM; d++) SUM_AT(p.dq, dq, d) = sum[d] * (A)p.scale;
        element<A>(p.delta, place_of(p.delta, row)) = delta;
    }
}

// By keys and values: `near` has the queries that see a key.
KERNEL(grad_keys, Neighborhood) {
    const i64 n = rows_of(p.k), group = GROUP;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Row row = row_of(p.k, i);
        const i64 seen = seen_from(p, row), key = place_of(p.k, row), value = place_of(p.v, row);
        Row query = row;
        A by_key[SOME(DIM)], by_value[SOME(VDIM)];
        for (i32 d = 0; d < DIM; d++) by_key[d] = 0;
        for (i32 d = 0; d < VDIM; d++) by_value[d] = 0;
        for (i64 s = 0; s < seen; s++) {
            go(p, row, s, query);
            for (i64 h = 0; h < group; h++) {
                query.at[SITES + 1] = row.at[SITES + 1] * group + h;
                const i64 at_query = place_of(p.q, query), dout = place_of(p.dout, query);
                const A lse = element<A>(p.lse, place_of(p.lse, query)), delta = element<A>(p.delta, place_of(p.delta, query));
                const Pair one = pair(p, at_query, key, value, dout, lse, delta);
                for (i32 d = 0; d < DIM; d++) by_key[d] += one.slope * AT(p.q, at_query, d);
                for (i32 d = 0; d < VDIM; d++) by_value[d] += one.probability * AT(p.dout, dout, d);
            }
        }
        const i64 dk = place_of(p.dk, row), dv = place_of(p.dv, row);
        for (i32 d = 0; d < DIM; d++) SUM_AT(p.dk, dk, d) = by_key[d] * (A)p.scale;
        for (i32 d = 0; d < VDIM; d++) SUM_AT(p.dv, dv, d) = by_value[d];
    }
}
