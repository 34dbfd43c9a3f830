// How input, output and kernel indexes meet, per spatial dim: i = o stride + k dilation + origin. Views are (N, C, three spatial dims).
struct Window { i64 kernel[3], stride[3], dilation[3], origin[3]; };

// Five indexes of a row-major number.
struct Index { i64 at[5]; };
DEVICE Index index_of(const View& v, i64 i) {
    Index x;
    for (i32 d = 4; d >= 0; d--) { i64 q = over(i, v.shape[d]); x.at[d] = i - q * v.shape[d]; i = q; }
    return x;
}
DEVICE i64 place5(const View& v, i64 a, i64 b, i64 c, i64 d, i64 e) {
    return a * v.strides[0] + b * v.strides[1] + c * v.strides[2] + d * v.strides[3] + e * v.strides[4];
}
DEVICE i64 meets(const Window& w, i32 d, i64 o, i64 k) { return o * w.stride[d] + k * w.dilation[d] + w.origin[d]; }
// The output that an input meets through a kernel index, or -1.
DEVICE i64 met_by(const Window& w, i32 d, i64 i, i64 k, i64 extent) {
    i64 t = i - k * w.dilation[d] - w.origin[d];
    if (t < 0 || t % w.stride[d] != 0) return -1;
    i64 o = t / w.stride[d];
    return o < extent ? o : -1;
}
DEVICE bool inside(i64 i, i64 extent) { return i >= 0 && i < extent; }
