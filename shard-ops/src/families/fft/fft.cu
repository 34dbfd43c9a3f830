// Fourier transforms from their definition, and products of complex numbers. T: the type.

// Lines of x and y are along dim `dim`; the last dim of complex numbers is cut off the views, `ix` and `iy` are the steps to
// imaginary parts. READS, WRITES: whether x and y are complex; SIGN: of the angle; DOUBLED, HALF: see the host's kernel.
struct Transform { View x, y; i64 dim, n, ix, iy; f64 scale; };

// The view without its last dim if complex, the library's lines, and the numbers in one of these; `imaginary`: the step to
// imaginary parts in the view.
struct Lines { View view, lines; i64 dim, n, width, imaginary; f64 scale; };

// A frequency other than its own mirror image.
DEVICE bool stands_for_two(i64 k, i64 n) { return k != 0 && 2 * k != n; }

// The offset of a line: its position in all dims but `dim`.
DEVICE i64 line_offset(const View& view, i64 dim, i64 line) {
    i64 offset = 0;
    for (i32 d = (i32)view.ndim - 1; d >= 0; d--) {
        if (d == dim) continue;
        const i64 q = over(line, view.shape[d]);
        offset += (line - q * view.shape[d]) * view.strides[d];
        line = q;
    }
    return offset;
}

#ifdef READS
// Lines as the library takes them: cut or padded with zeros. The library counts a frequency of half a line for itself and its mirror
// image; where it is to count once, half of it is handed over.
KERNEL(pack, Lines) {
    const i64 width = p.width, extent = p.view.shape[p.dim], step = p.view.strides[p.dim];
    i64 lines = 1;
    for (i32 d = 0; d < (i32)p.view.ndim; d++) lines *= d == p.dim ? 1 : p.view.shape[d];
    for (i64 i = first_thread(); i < lines * width; i += threads()) {
        const i64 line = over(i, width), j = i - line * width;
        const bool given = j < extent;
        const i64 at = given ? line_offset(p.view, p.dim, line) + j * step : 0;
        const T by = HALF && !DOUBLED && stands_for_two(j, p.n) ? (T)0.5 : (T)1;
        const T re = given ? by * element<T>(p.view, at) : (T)0;
        if (READS) {
            const T im = given && !(HALF && !stands_for_two(j, p.n)) ? by * element<T>(p.view, at + p.imaginary) : (T)0;
            element<T>(p.lines, 2 * i) = re;
            element<T>(p.lines, 2 * i + 1) = im;
        } else {
            element<T>(p.lines, i) = re;
        }
    }
}

// The library's results scaled to where they belong; what the transform does not have is zero.
KERNEL(unpack, Lines) {
    const i64 count = numel(p.view), extent = p.view.shape[p.dim], step = p.view.strides[p.dim];
    for (i64 i = first_thread(); i < count; i += threads()) {
        const i64 line = over(i, extent), k = i - line * extent;
        const i64 to = line_offset(p.view, p.dim, line) + k * step, from = line * p.width + k;
        const bool exists = k < p.width;
        T scale = exists ? (T)p.scale : (T)0;
        if (!HALF && DOUBLED && stands_for_two(k, p.n)) scale = scale + scale;
        if (WRITES) {
            element<T>(p.view, to) = exists ? element<T>(p.lines, 2 * from) * scale : (T)0;
            element<T>(p.view, to + p.imaginary) = exists ? element<T>(p.lines, 2 * from + 1) * scale : (T)0;
        } else {
            element<T>(p.view, to) = exists ? element<T>(p.lines, from) * scale : (T)0;
        }
    }
}

KERNEL(transform, Transform) {
    const i64 count = numel(p.y), n = p.n, width = HALF ? n / 2 + 1 : n;
    const i64 step = p.x.strides[p.dim], given = p.x.shape[p.dim] < width ? p.x.shape[p.dim] : width;
    for (i64 i = first_thread(); i < count; i += threads()) {
        // The line of x, and the index along it.
        i64 rest = i, from = 0, to = 0, k = 0;
        for (i32 d = (i32)p.y.ndim - 1; d >= 0; d--) {
            const i64 q = over(rest, p.y.shape[d]), at = rest - q * p.y.shape[d];
            to += at * p.y.strides[d];
            if (d == p.dim) k = at;
            else from += at * p.x.strides[d];
            rest = q;
        }
        T re = 0, im = 0;
        const bool exists = k < (WRITES && !READS ? n / 2 + 1 : n);
        for (i64 j = 0; exists && j < given; j++) {
            const T turn = (T)((j * k) % n) / (T)n;
            const T angle = (T)(SIGN * 6.283185307179586476925) * turn, c = cos(angle), s = sin(angle);
            const T a = element<T>(p.x, from + j * step);
            T b = READS ? element<T>(p.x, from + j * step + p.ix) : (T)0;
            T by = 1;
            if (HALF) {
                if (!stands_for_two(j, n)) b = 0;
                else if (DOUBLED) by = 2;
            }
            re += by * (a * c - b * s);
            if (WRITES) im += by * (a * s + b * c);
        }
        T scale = (T)p.scale;
        if (!HALF && DOUBLED && stands_for_two(k, n)) scale = scale + scale;
        element<T>(p.y, to) = re * scale;
        if (WRITES) element<T>(p.y, to + p.iy) = im * scale;
    }
}
#endif

// Views without the last dim.
struct Product { View a, b, y; i64 ia, ib, iy, conjugate_a, conjugate_b; };

KERNEL(complex_mul, Product) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 at = place(p.a, i), bt = place(p.b, i), yt = place(p.y, i);
        const T a = element<T>(p.a, at), b = element<T>(p.b, bt);
        const T ai = element<T>(p.a, at + p.ia) * (p.conjugate_a ? (T)-1 : (T)1);
        const T bi = element<T>(p.b, bt + p.ib) * (p.conjugate_b ? (T)-1 : (T)1);
        element<T>(p.y, yt) = a * b - ai * bi;
        element<T>(p.y, yt + p.iy) = a * bi + ai * b;
    }
}
