// Windows as columns. T: the type. x: (leading dims, spatial dims), y: (leading dims, positions of a window, windows).
//
// The numbers of the window are those of the last `spatial` of its three dims.
struct Unfold { View x, y; Window window; i64 spatial; };

KERNEL(unfold, Unfold) {
    const i64 n = numel(p.y);
    const i32 s = (i32)p.spatial, lead = (i32)p.x.ndim - s;
    for (i64 i = first_thread(); i < n; i += threads()) {
        i64 at[AXES], rest = i, from = 0, to = 0;
        for (i32 d = (i32)p.y.ndim - 1; d >= 0; d--) {
            const i64 q = over(rest, p.y.shape[d]);
            at[d] = rest - q * p.y.shape[d];
            rest = q;
            to += at[d] * p.y.strides[d];
        }
        for (i32 d = 0; d < lead; d++) from += at[d] * p.x.strides[d];
        bool there = true;
        for (i32 d = 0; d < s; d++) {
            const i64 in = meets(p.window, 3 - s + d, at[lead + s + d], at[lead + d]);
            there = there && inside(in, p.x.shape[lead + d]);
            from += in * p.x.strides[lead + d];
        }
        element<T>(p.y, to) = there ? element<T>(p.x, from) : T(0);
    }
}

KERNEL(fold, Unfold) {
    const i64 n = numel(p.x);
    const i32 s = (i32)p.spatial, lead = (i32)p.x.ndim - s;
    const i64 positions = p.window.kernel[0] * p.window.kernel[1] * p.window.kernel[2];
    for (i64 i = first_thread(); i < n; i += threads()) {
        i64 at[AXES], rest = i, to = 0, from = 0;
        for (i32 d = (i32)p.x.ndim - 1; d >= 0; d--) {
            const i64 q = over(rest, p.x.shape[d]);
            at[d] = rest - q * p.x.shape[d];
            rest = q;
            to += at[d] * p.x.strides[d];
        }
        for (i32 d = 0; d < lead; d++) from += at[d] * p.y.strides[d];
        T sum = 0;
        for (i64 k = 0; k < positions; k++) {
            i64 place = from, rest = k;
            bool there = true;
            for (i32 d = s - 1; d >= 0 && there; d--) {
                const i64 extent = p.window.kernel[3 - s + d], q = rest / extent, tap = rest - q * extent;
                rest = q;
                const i64 o = met_by(p.window, 3 - s + d, at[lead + d], tap, p.y.shape[lead + s + d]);
                there = o >= 0;
                place += tap * p.y.strides[lead + d] + o * p.y.strides[lead + s + d];
            }
            if (there) sum += element<T>(p.y, place);
        }
        element<T>(p.x, to) = sum;
    }
}
