// Softmax of rows, or given the pairs (maximum, sum of exponentials) of cells, and its derivative. S: the stored
// type; T: that of the arithmetic; R: the result's; LOG: its logarithm.
struct Softmax { View x, pairs, y; };
struct SoftmaxGrad { View y, dy, sums, dx; };

KERNEL(softmax, Softmax) {
    for (i64 i = first_thread(); i < numel(p.y); i += threads()) {
        const i64 pair = place(p.pairs, i);
        const f64 max = element<f64>(p.pairs, pair), sum = element<f64>(p.pairs, pair + 1);
        // An infinite maximum leaves no number: infinities are subtracted, or divided by 0.
        const T d = widen(element<S>(p.x, place(p.x, i))) - (T)max, none = (T)(max - max);
#ifdef LOG
        element<R>(p.y, place(p.y, i)) = As<R>::of(d - (T)log(sum) + none);
#else
        element<R>(p.y, place(p.y, i)) = As<R>::of(exp(d) * (T)(1.0 / sum) + none);
#endif
    }
}

KERNEL(softmax_grad, SoftmaxGrad) {
    for (i64 i = first_thread(); i < numel(p.dx); i += threads()) {
        const T y = widen(element<S>(p.y, place(p.y, i))), dy = widen(element<S>(p.dy, place(p.dy, i)));
        const T sum = widen(element<S>(p.sums, place(p.sums, i)));
#ifdef LOG
        element<R>(p.dx, place(p.dx, i)) = As<R>::of(dy - exp(y) * sum);
#else
        element<R>(p.dx, place(p.dx, i)) = As<R>::of(y * (dy - sum));
#endif
    }
}

// Rows, and their elements. A team takes one row at a time. The order in which it joins is the same in every run.
struct SoftmaxRows { View x, x_along, y, y_along; };
struct SoftmaxRowsGrad { View y, y_along, dy, dy_along, dx, dx_along; };

BLOCK_KERNEL(softmax_rows, SoftmaxRows) {
    const i64 n = numel(p.x_along);
    for (i64 row = first_team(); row < numel(p.x); row += teams()) {
        const i64 from = place(p.x, row), to = place(p.y, row);
        // NaN is not larger than anything: the sum keeps it. So it does infinities, whose differences are NaN.
        T max = (T)-INFINITE;
        for (i64 i = member(); i < n; i += members()) {
            const T x = widen(element<S>(p.x, from + place(p.x_along, i)));
            max = x > max ? x : max;
        }
        max = over_team(max, [](T a, T b) { return a > b ? a : b; });
        f64 sum = 0;
        for (i64 i = member(); i < n; i += members()) sum += (f64)exp(widen(element<S>(p.x, from + place(p.x_along, i))) - max);
        sum = team_sum(sum);
#ifdef LOG
        const T scale = (T)log(sum);
#else
        const T scale = (T)(1.0 / sum);
#endif
        for (i64 i = member(); i < n; i += members()) {
            const T d = widen(element<S>(p.x, from + place(p.x_along, i))) - max;
#ifdef LOG
            element<R>(p.y, to + place(p.y_along, i)) = As<R>::of(d - scale);
#else
            element<R>(p.y, to + place(p.y_along, i)) = As<R>::of(exp(d) * scale);
#endif
        }
    }
}

BLOCK_KERNEL(softmax_rows_grad, SoftmaxRowsGrad) {
    const i64 n = numel(p.y_along);
    for (i64 row = first_team(); row < numel(p.y); row += teams()) {
        const i64 at = place(p.y, row), from = place(p.dy, row), to = place(p.dx, row);
        f64 found = 0;
        for (i64 i = member(); i < n; i += members()) {
            const T dy = widen(element<S>(p.dy, from + place(p.dy_along, i)));
#ifdef LOG
            found += (f64)dy;
#else
            found += (f64)(widen(element<S>(p.y, at + place(p.y_along, i))) * dy);
#endif
        }
        const T sum = (T)team_sum(found);
        for (i64 i = member(); i < n; i += members()) {
            const T y = widen(element<S>(p.y, at + place(p.y_along, i))), dy = widen(element<S>(p.dy, from + place(p.dy_along, i)));
#ifdef LOG
            element<R>(p.dx, to + place(p.dx_along, i)) = As<R>::of(dy - exp(y) * sum);
#else
            element<R>(p.dx, to + place(p.dx_along, i)) = As<R>::of(y * (dy - sum));
#endif
        }
    }
}
