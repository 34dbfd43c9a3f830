// Softmax of rows, or given the pairs (maximum, sum of exponentials) of cells, and its derivative. T: the type; LOG: its logarithm.
struct Softmax { View x, pairs, y; };
struct SoftmaxGrad { View y, dy, sums, dx; };

KERNEL(softmax, Softmax) {
    for (i64 i = first_thread(); i < numel(p.y); i += threads()) {
        const i64 pair = place(p.pairs, i);
        const f64 max = element<f64>(p.pairs, pair), sum = element<f64>(p.pairs, pair + 1);
        // An infinite maximum leaves no number: infinities are subtracted, or divided by 0.
        const T d = element<T>(p.x, place(p.x, i)) - (T)max, none = (T)(max - max);
#ifdef LOG
        element<T>(p.y, place(p.y, i)) = d - (T)log(sum) + none;
#else
        element<T>(p.y, place(p.y, i)) = exp(d) * (T)(1.0 / sum) + none;
#endif
    }
}

KERNEL(softmax_grad, SoftmaxGrad) {
    for (i64 i = first_thread(); i < numel(p.dx); i += threads()) {
        const T y = element<T>(p.y, place(p.y, i)), dy = element<T>(p.dy, place(p.dy, i));
        const T sum = element<T>(p.sums, place(p.sums, i));
#ifdef LOG
        element<T>(p.dx, place(p.dx, i)) = dy - exp(y) * sum;
#else
        element<T>(p.dx, place(p.dx, i)) = y * (dy - sum);
#endif
    }
}

// Rows, and their elements. A block takes one row at a time, and joins what its threads found in pairs: the same order in every run.
struct SoftmaxRows { View x, x_along, y, y_along; };
struct SoftmaxRowsGrad { View y, y_along, dy, dy_along, dx, dx_along; };

#define JOIN(found, joined)                                                     \
    part[t] = found;                                                            \
    SYNC();                                                                     \
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {                      \
        if (t < half) { const f64 a = part[t], b = part[t + half]; part[t] = joined; } \
        SYNC();                                                                 \
    }                                                                           \
    found = part[0];                                                            \
    SYNC();

BLOCK_KERNEL(softmax_rows, SoftmaxRows) {
    SHARED(f64, part, 1024);
    const u32 t = threadIdx.x;
    const i64 n = numel(p.x_along);
    for (i64 row = blockIdx.x; row < numel(p.x); row += gridDim.x) {
        const i64 from = place(p.x, row), to = place(p.y, row);
        // NaN is not larger than anything: the sum keeps it. So it does infinities, whose differences are NaN.
        f64 max = -INFINITE, sum = 0;
        for (i64 i = t; i < n; i += blockDim.x) {
            const f64 x = (f64)element<T>(p.x, from + place(p.x_along, i));
            max = x > max ? x : max;
        }
        JOIN(max, a > b ? a : b);
        for (i64 i = t; i < n; i += blockDim.x) sum += (f64)exp(element<T>(p.x, from + place(p.x_along, i)) - (T)max);
        JOIN(sum, a + b);
        for (i64 i = t; i < n; i += blockDim.x) {
            const T d = element<T>(p.x, from + place(p.x_along, i)) - (T)max;
#ifdef LOG
            element<T>(p.y, to + place(p.y_along, i)) = d - (T)log(sum);
#else
            element<T>(p.y, to + place(p.y_along, i)) = exp(d) * (T)(1.0 / sum);
#endif
        }
    }
}

BLOCK_KERNEL(softmax_rows_grad, SoftmaxRowsGrad) {
    SHARED(f64, part, 1024);
    const u32 t = threadIdx.x;
    const i64 n = numel(p.y_along);
    for (i64 row = blockIdx.x; row < numel(p.y); row += gridDim.x) {
        const i64 at = place(p.y, row), from = place(p.dy, row), to = place(p.dx, row);
        f64 sum = 0;
        for (i64 i = t; i < n; i += blockDim.x) {
            const T dy = element<T>(p.dy, from + place(p.dy_along, i));
#ifdef LOG
            sum += (f64)dy;
#else
            sum += (f64)(element<T>(p.y, at + place(p.y_along, i)) * dy);
#endif
        }
        JOIN(sum, a + b);
        for (i64 i = t; i < n; i += blockDim.x) {
            const T y = element<T>(p.y, at + place(p.y_along, i)), dy = element<T>(p.dy, from + place(p.dy_along, i));
#ifdef LOG
            element<T>(p.dx, to + place(p.dx_along, i)) = dy - exp(y) * (T)sum;
#else
            element<T>(p.dx, to + place(p.dx_along, i)) = y * (dy - (T)sum);
#endif
        }
    }
}
