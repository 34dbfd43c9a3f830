// The call of attention that all its kernels take. T: the stored type; A: the type of the arithmetic; DIM, VDIM: elements of a
// key and of a value.

struct Attention {
    View q, k, v;            // (batch, heads, queries, DIM), (batch, kv heads, keys, DIM or VDIM)
    View mask;               // broadcast to (batch, heads, queries, keys)
    View out, dout;          // (batch, heads, queries, VDIM)
    View dk, dv, dmask;      // of A
    View of_queries, of_keys; // segments, broadcast to (batch, queries) and (batch, keys)
    u64 max, sum, acc, lse, delta, dq;  // of A, rows in row-major order
    u64 parts[5];            // of q, k, v, dout and out, as they are packed for the kernels of tiles; or 0
    u64 apart;               // a u32: not 0 if numbers have no parts, so that the kernels of tiles leave the call to these
    Positions queries, keys, batches, heads;
    i64 low, high;           // a query sees keys with low <= key - query <= high
    i64 masked;              // 0: no mask, 1: which count, 2: added
    i64 segmented;           // whether a query sees the keys of its own segment alone
    i64 dropping, least, all_heads, all_queries, all_keys;
    Stream stream;
    f64 scale, kept;
};

// An array has at least one element.
#define SOME(n) ((n) > 0 ? (n) : 1)
#define GROUP (p.q.shape[1] / p.k.shape[1])
#define ROW(name, i) ((A*)p.name)[i]

// Whether a query and a key are of two segments.
DEVICE bool of_two_segments(const Attention& p, i64 b, i64 r, i64 j) {
    return element<i64>(p.of_queries, b * p.of_queries.strides[0] + r * p.of_queries.strides[1]) != element<i64>(p.of_keys, b * p.of_keys.strides[0] + j * p.of_keys.strides[1]);
}
// The scaled and masked logit of a pair, from its product; -inf where the key is hidden.
DEVICE A logit(const Attention& p, i64 b, i64 h, i64 r, i64 j, i64 query, A product) {
    const i64 away = at(p.keys, j) - query;
    if (away < p.low || away > p.high) return A(-INFINITE);
    if (p.segmented && of_two_segments(p, b, r, j)) return A(-INFINITE);
    A t = product * (A)p.scale;
    if (p.masked) {
        const i64 m = b * p.mask.strides[0] + h * p.mask.strides[1] + r * p.mask.strides[2] + j * p.mask.strides[3];
        if (p.masked == 1) { if (!element<b8>(p.mask, m).byte) return A(-INFINITE); }
        else t += widen(element<T>(p.mask, m));
    }
    return t;
}
// The probability of a pair, recomputed; 0 for queries that see no key.
DEVICE A probability(A t, A lse) { return lse == A(-INFINITE) || t == A(-INFINITE) ? A(0) : exp(t - lse); }
// The factor of a probability: 0 if it is dropped.
DEVICE A factor(const Attention& p, i64 b, i64 h, i64 query, i64 j) {
    if (!p.dropping) return A(1);
    const u64 row = ((u64)at(p.batches, b) * (u64)p.all_heads + (u64)at(p.heads, h)) * (u64)p.all_queries + (u64)query;
    const u64 place = row * (u64)p.all_keys + (u64)at(p.keys, j);
    return words(p.stream, place / 4).at[place % 4] >= (u32)p.least ? (A)(1.0 / p.kept) : A(0);
}
DEVICE i64 place4(const View& v, i64 b, i64 h, i64 r) { return b * v.strides[0] + h * v.strides[1] + r * v.strides[2]; }
