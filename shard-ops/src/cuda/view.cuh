// Boxes of memory. As `CudaView` in view.rs.
#define AXES 8
struct View { u64 data; i64 ndim; i64 shape[AXES]; i64 strides[AXES]; };

DEVICE i64 numel(const View& v) {
    i64 n = 1;
    for (i32 d = 0; d < v.ndim; d++) n *= v.shape[d];
    return n;
}

// index / extent, in 32 bits where that is enough, because it is several times faster.
DEVICE i64 over(i64 index, i64 extent) {
    return ((index | extent) >> 32) == 0 ? (i64)((u32)index / (u32)extent) : index / extent;
}

// The place of the element with this number in row-major order, which is one of the view's.
DEVICE i64 place(const View& v, i64 index) {
    i64 at = 0;
    for (i32 d = (i32)v.ndim - 1; d > 0; d--) {
        i64 rest = over(index, v.shape[d]);
        at += (index - rest * v.shape[d]) * v.strides[d];
        index = rest;
    }
    return at + index * v.strides[0];
}

template <class E> DEVICE E& element(const View& v, i64 at) { return ((E*)v.data)[at]; }

#define INFINITE at_bits<f64>(0x7ff0000000000000ull)
