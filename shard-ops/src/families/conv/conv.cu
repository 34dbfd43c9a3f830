// Convolution, its gradient by the input and by the weight. T: the type of what is read; W: that of the arithmetic; R: that of what is
// written and of the bias. x, y: (N, C, spatial); w: (O, C / groups, kernel).
struct Conv { View x, w, y; u64 bias; i64 groups; Window window; };

KERNEL(forward, Conv) {
    const i64 n = numel(p.y), ci = p.w.shape[1], per = p.y.shape[1] / p.groups;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index o = index_of(p.y, i);
        const i64 co = o.at[1], c0 = co / per * ci;
        W sum = 0;
        for (i64 c = 0; c < ci; c++)
            for (i64 a = 0; a < p.w.shape[2]; a++) {
                const i64 i0 = meets(p.window, 0, o.at[2], a);
                if (!inside(i0, p.x.shape[2])) continue;
                for (i64 b = 0; b < p.w.shape[3]; b++) {
                    const i64 i1 = meets(p.window, 1, o.at[3], b);
                    if (!inside(i1, p.x.shape[3])) continue;
                    for (i64 k = 0; k < p.w.shape[4]; k++) {
                        const i64 i2 = meets(p.window, 2, o.at[4], k);
                        if (!inside(i2, p.x.shape[4])) continue;
                        sum += widen(element<T>(p.w, place5(p.w, co, c, a, b, k))) * widen(element<T>(p.x, place5(p.x, o.at[0], c0 + c, i0, i1, i2)));
                    }
                }
            }
        if (p.bias) sum += widen(((const R*)p.bias)[co]);
        element<R>(p.y, place5(p.y, o.at[0], co, o.at[2], o.at[3], o.at[4])) = As<R>::of(sum);
    }
}

// Adds the bias, which a library leaves out of y: one number for `length` elements in a row.
struct Bias { View y; u64 bias; i64 channels, length; };
KERNEL(add_bias, Bias) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 row = over(i, p.length), channel = row - over(row, p.channels) * p.channels;
        R& y = element<R>(p.y, place(p.y, i));
        y = As<R>::of(widen(y) + widen(((const R*)p.bias)[channel]));
    }
}
// Where y lies in one line, and several elements are read and written at once that have one channel.
KERNEL(add_bias_line, Bias) {
    const i32 some = 16 / sizeof(R);
    typedef Pack<R, 16 / sizeof(R)> Grain;
    const i64 n = numel(p.y) / some, length = p.length / some;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 row = over(i, length), channel = row - over(row, p.channels) * p.channels;
        const W bias = widen(((const R*)p.bias)[channel]);
        Grain y = element<Grain>(p.y, i);
        for (i32 k = 0; k < some; k++) y.at[k] = As<R>::of(widen(y.at[k]) + bias);
        element<Grain>(p.y, i) = y;
    }
}

// dx from dy: each input looks up the outputs that read it.
KERNEL(input_grad, Conv) {
    const i64 n = numel(p.x), ci = p.w.shape[1], per = p.w.shape[0] / p.groups;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index at = index_of(p.x, i);
        const i64 group = ci ? at.at[1] / ci : 0, c = at.at[1] - group * ci;
        W sum = 0;
        for (i64 o = group * per; o < (group + 1) * per; o++)
            for (i64 a = 0; a < p.w.shape[2]; a++) {
                const i64 o0 = met_by(p.window, 0, at.at[2], a, p.y.shape[2]);
                if (o0 < 0) continue;
                for (i64 b = 0; b < p.w.shape[3]; b++) {
                    const i64 o1 = met_by(p.window, 1, at.at[3], b, p.y.shape[3]);
                    if (o1 < 0) continue;
                    for (i64 k = 0; k < p.w.shape[4]; k++) {
                        const i64 o2 = met_by(p.window, 2, at.at[4], k, p.y.shape[4]);
                        if (o2 < 0) continue;
                        sum += widen(element<T>(p.w, place5(p.w, o, c, a, b, k))) * widen(element<T>(p.y, place5(p.y, at.at[0], o, o0, o1, o2)));
                    }
                }
            }
        element<R>(p.x, place5(p.x, at.at[0], at.at[1], at.at[2], at.at[3], at.at[4])) = As<R>::of(sum);
    }
}

// dw: a block of threads per element; its threads divide samples and outputs among themselves.
BLOCK_KERNEL(weight_grad, Conv) {
    const u32 t = threadIdx.x;
    const i64 n = numel(p.w), per = p.groups ? p.w.shape[0] / p.groups : 1;
    const i64 spatial = p.y.shape[2] * p.y.shape[3] * p.y.shape[4], count = p.y.shape[0] * spatial;
    for (i64 e = blockIdx.x; e < n; e += gridDim.x) {
        const Index w = index_of(p.w, e);
        const i64 c = w.at[0] / per * p.w.shape[1] + w.at[1];
        W sum = 0;
        for (i64 i = t; i < count; i += blockDim.x) {
            const i64 sample = over(i, spatial);
            i64 rest = i - sample * spatial;
            const i64 q = over(rest, p.y.shape[4]), o2 = rest - q * p.y.shape[4];
            const i64 o0 = over(q, p.y.shape[3]), o1 = q - o0 * p.y.shape[3];
            const i64 i0 = meets(p.window, 0, o0, w.at[2]), i1 = meets(p.window, 1, o1, w.at[3]), i2 = meets(p.window, 2, o2, w.at[4]);
            if (inside(i0, p.x.shape[2]) && inside(i1, p.x.shape[3]) && inside(i2, p.x.shape[4]))
                sum += widen(element<T>(p.y, place5(p.y, sample, w.at[0], o0, o1, o2))) * widen(element<T>(p.x, place5(p.x, sample, c, i0, i1, i2)));
        }
        sum = team_sum(sum);
        if (t == 0) element<R>(p.w, place5(p.w, w.at[0], w.at[1], w.at[2], w.at[3], w.at[4])) = As<R>::of(sum);
    }
}
