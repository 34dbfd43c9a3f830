// Norms: moments of cells, normalisation, and the parts of its derivative. T: the type.
//
// A cell is `length` elements. Groups: channels of one sample; each channel has `inner` elements and a weight.
// Last: the last dims of a row; each element has a weight. Across: a channel of all samples, which has a weight.
struct Norm {
    u64 x, stats, dy, sums, weight, bias, y, units;
    i64 cells, length, inner;     // elements of a channel, or of a row
    i64 groups, channels, rows;   // groups and channels of a sample, samples; 0, 0, rows; 0, channels, samples
    i64 across;                   // whether cells are channels of all samples
    i64 about_zero;               // whether moments are about zero, and no mean is taken off
    i64 apart;                    // from the sums of a weight, at `y` and `units`, to those of the next
    f64 eps;
};

#define AT(name, type, i) ((type*)p.name)[i]

// Joins two sums over a block, in a fixed order; thread 0 gets them.
#define JOIN_SUMS()                                                                 \
    first[t] = a; second[t] = b;                                                    \
    SYNC();                                                                         \
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {                          \
        if (t < half) { first[t] += first[t + half]; second[t] += second[t + half]; } \
        SYNC();                                                                     \
    }

DEVICE f64 rstd_of(const Norm& p, i64 cell) { return 1.0 / sqrt(AT(stats, f64, 3 * cell + 2) / AT(stats, f64, 3 * cell) + p.eps); }
DEVICE f64 mean_of(const Norm& p, i64 cell) { return AT(stats, f64, 3 * cell + 1); }
// The element with this number in a cell; the cell of an element.
DEVICE i64 element_of(const Norm& p, i64 cell, i64 at) {
    if (!p.across) return cell * p.length + at;
    const i64 sample = over(at, p.inner);
    return (sample * p.channels + cell) * p.inner + (at - sample * p.inner);
}
DEVICE i64 cell_of(const Norm& p, i64 e) { return p.across ? over(e, p.inner) % p.channels : over(e, p.length); }
// The weight of an element of a cell.
DEVICE i64 weight_of(const Norm& p, i64 cell, i64 at) {
    if (p.across) return cell;
    return p.groups ? cell % p.groups * (p.channels / p.groups) + over(at, p.inner) : at;
}

// (count, mean, sum of squared deviations) of every cell, in two passes.
BLOCK_KERNEL(moments, Norm) {
    SHARED(f64, first, 1024);
    SHARED(f64, second, 1024);
    const u32 t = threadIdx.x;
    for (i64 cell = blockIdx.x; cell < p.cells; cell += gridDim.x) {
        f64 a = 0, b = 0, mean = 0;
        if (!p.about_zero) {
            for (i64 i = t; i < p.length; i += blockDim.x) a += (f64)AT(x, T, element_of(p, cell, i));
            JOIN_SUMS();
            mean = p.length ? first[0] / (f64)p.length : 0;
            SYNC();
        }
        a = b = 0;
        for (i64 i = t; i < p.length; i += blockDim.x) { f64 d = (f64)AT(x, T, element_of(p, cell, i)) - mean; a += d * d; b += d; }
        JOIN_SUMS();
        if (t == 0) {
            AT(y, f64, 3 * cell) = (f64)p.length;
            AT(y, f64, 3 * cell + 1) = mean;
            // Corrects for the rounding of the mean, after which the deviations do not quite sum to zero.
            AT(y, f64, 3 * cell + 2) = p.length ? first[0] - (p.about_zero ? 0 : second[0] * second[0] / (f64)p.length) : 0;
        }
        SYNC();
    }
}

KERNEL(normalise, Norm) {
    const i64 n = p.cells * p.length;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 cell = cell_of(p, i), w = weight_of(p, cell, i - cell * p.length);
        const T gain = p.weight ? AT(weight, T, w) : T(1), shift = p.bias ? AT(bias, T, w) : T(0);
        AT(y, T, i) = (AT(x, T, i) - (T)mean_of(p, cell)) * ((T)rstd_of(p, cell) * gain) + shift;
    }
}

// Per cell, the sums of w dy and of w dy x^.
BLOCK_KERNEL(cell_sums, Norm) {
    SHARED(f64, first, 1024);
    SHARED(f64, second, 1024);
    const u32 t = threadIdx.x;
    for (i64 cell = blockIdx.x; cell < p.cells; cell += gridDim.x) {
        const f64 mean = mean_of(p, cell);
        f64 a = 0, b = 0;
        for (i64 i = t; i < p.length; i += blockDim.x) {
            const i64 e = element_of(p, cell, i);
            f64 g = (f64)AT(dy, T, e) * (p.weight ? (f64)AT(weight, T, weight_of(p, cell, i)) : 1.0);
            a += g;
            b += g * ((f64)AT(x, T, e) - mean);
        }
        JOIN_SUMS();
        if (t == 0) { AT(y, f64, 2 * cell) = p.about_zero ? 0 : first[0]; AT(y, f64, 2 * cell + 1) = second[0] * rstd_of(p, cell); }
        SYNC();
    }
}

// Per weight, the sums of dy and of dy x^.
BLOCK_KERNEL(weight_sums, Norm) {
    SHARED(f64, first, 1024);
    SHARED(f64, second, 1024);
    const u32 t = threadIdx.x;
    const i64 weights = p.channels ? p.channels : p.inner;
    const i64 count = p.channels ? p.rows * p.inner : p.rows;
    for (i64 w = blockIdx.x; w < weights; w += gridDim.x) {
        f64 a = 0, b = 0;
        for (i64 i = t; i < count; i += blockDim.x) {
            i64 e, cell;
            if (p.channels) {
                const i64 n = over(i, p.inner);
                e = (n * p.channels + w) * p.inner + (i - n * p.inner);
                cell = p.across ? w : n * p.groups + w / (p.channels / p.groups);
            } else {
                e = i * p.inner + w;
                cell = i;
            }
            const f64 g = (f64)AT(dy, T, e);
            a += g;
            b += g * (((f64)AT(x, T, e) - mean_of(p, cell)) * rstd_of(p, cell));
        }
        JOIN_SUMS();
        if (t == 0) { AT(y, T, p.apart * w) = (T)first[0]; AT(units, T, p.apart * w) = (T)second[0]; }
        SYNC();
    }
}

KERNEL(input_grad, Norm) {
    const i64 n = p.cells * p.length;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 cell = cell_of(p, i), w = weight_of(p, cell, i - cell * p.length);
        const f64 count = AT(stats, f64, 3 * cell);
        const T rstd = (T)rstd_of(p, cell), gain = p.weight ? AT(weight, T, w) : T(1);
        const T a = p.sums ? (T)(AT(sums, f64, 2 * cell) / count) : T(0), b = p.sums ? (T)(AT(sums, f64, 2 * cell + 1) / count) : T(0);
        AT(y, T, i) = rstd * (gain * AT(dy, T, i) - a - (AT(x, T, i) - (T)mean_of(p, cell)) * rstd * b);
    }
}
