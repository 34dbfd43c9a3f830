// Sums over pairs of points. T: the type; ORDER: 1, 2, or 0 for any power p. Batch dims of x, y and g are those of `to`.
struct Pairwise { View x, y, g, to; f64 p; };

DEVICE T size_of(T d) { return d < 0 ? -d : d; }
DEVICE T sign_of(T d) { return d > 0 ? T(1) : d < 0 ? T(-1) : d; }

DEVICE T counted(T d, T p) { return ORDER == 1 ? size_of(d) : ORDER == 2 ? d * d : pow(size_of(d), p); }
DEVICE T slope(T d, T p) {
    if (ORDER == 2) return d + d;
    if (ORDER == 1 || d == 0) return sign_of(d);
    return sign_of(d) * p * pow(size_of(d), p - T(1));
}

// The indices of element i of a result's last two dims, and where batches begin.
struct At { i64 row, column, x, y, g, to; };
DEVICE At at(const Pairwise& p, i64 i) {
    const i32 last = (i32)p.to.ndim - 1;
    At found = {0, 0, 0, 0, 0, 0};
    for (i32 d = last; d >= 0; d--) {
        const i64 q = over(i, p.to.shape[d]), index = i - q * p.to.shape[d];
        found.to += index * p.to.strides[d];
        if (d == last) found.column = index;
        else if (d == last - 1) found.row = index;
        else {
            found.x += index * p.x.strides[d];
            found.y += index * p.y.strides[d];
            found.g += index * p.g.strides[d];
        }
        i = q;
    }
    return found;
}

// (row, column) of the result: all coordinates of one point of x and one of y.
KERNEL(powers, Pairwise) {
    const i64 n = numel(p.to);
    const i32 last = (i32)p.to.ndim - 1;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const At here = at(p, i);
        const i64 x = here.x + here.row * p.x.strides[last - 1], y = here.y + here.column * p.y.strides[last - 1];
        T sum = 0;
        for (i64 k = 0; k < p.x.shape[last]; k++)
            sum += counted(element<T>(p.x, x + k * p.x.strides[last]) - element<T>(p.y, y + k * p.y.strides[last]), (T)p.p);
        element<T>(p.to, here.to) = sum;
    }
}

// (row, column) of the result: one coordinate of a point of x, and of all points of y.
KERNEL(slopes, Pairwise) {
    const i64 n = numel(p.to);
    const i32 last = (i32)p.to.ndim - 1;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const At here = at(p, i);
        const T a = element<T>(p.x, here.x + here.row * p.x.strides[last - 1] + here.column * p.x.strides[last]);
        const i64 y = here.y + here.column * p.y.strides[last], g = here.g + here.row * p.g.strides[last - 1];
        T sum = 0;
        for (i64 j = 0; j < p.y.shape[last - 1]; j++)
            sum += element<T>(p.g, g + j * p.g.strides[last]) * slope(a - element<T>(p.y, y + j * p.y.strides[last - 1]), (T)p.p);
        element<T>(p.to, here.to) = sum;
    }
}
