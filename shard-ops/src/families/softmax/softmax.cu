// Softmax given the pairs (maximum, sum of exponentials) of cells, and its derivative. T: the type; LOG: its logarithm.
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
