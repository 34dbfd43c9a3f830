// Norms: moments of cells, normalisation, and the parts of its derivative. S: the stored type; T: that of the arithmetic; R: the result's.
//
// A cell is `length` elements. Groups: channels of one sample; each channel has `inner` elements and a weight.
// Last: the last dims of a row; each element has a weight. Across: a channel of all samples, which has a weight.
struct Norm {
    u64 x, stats, dy, sums, weight, bias, y, units;
    u64 rstd, found;              // of every cell; what each part of a cell, or of a weight's elements, came to, part by part
    i64 cells, length, inner;     // elements of a channel, or of a row
    i64 groups, channels, rows;   // groups and channels of a sample, samples; 0, 0, rows; 0, channels, samples
    i64 across;                   // whether cells are channels of all samples
    i64 about_zero;               // whether moments are about zero, and no mean is taken off
    i64 apart;                    // from the sums of a weight, at `y` and `units`, to those of the next
    i64 parts;                    // of a cell, or of a weight's elements
    f64 eps;
};

#define AT(name, type, i) ((type*)p.name)[i]
#define READ(name, i) widen(AT(name, S, i))

struct Moments { f64 count, mean, squares; };
DEVICE Moments pooled(Moments s, Moments t) {
    if (t.count == 0) return s;
    if (s.count == 0) return t;
    const f64 d = t.mean - s.mean, n = s.count + t.count;
    if (d - d != 0) {
        // Means that are not finite, or as large as numbers get.
        const f64 mean = s.mean * (s.count / n) + t.mean * (t.count / n);
        Moments far = {n, mean, s.squares + t.squares + (mean - mean == 0 ? d * d : d - d)};
        return far;
    }
    Moments all = {n, s.mean + d * (t.count / n), s.squares + t.squares + d * d * (s.count * t.count / n)};
    return all;
}
struct Sums { f64 a, b; };
DEVICE Sums both(Sums s, Sums t) { Sums all = {s.a + t.a, s.b + t.b}; return all; }

DEVICE f64 rstd_of(const Norm& p, i64 cell) { return AT(rstd, f64, cell); }
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
    return p.groups ? (cell - over(cell, p.groups) * p.groups) * over(p.channels, p.groups) + over(at, p.inner) : at;
}

DEVICE i64 begin(const Norm& p, i64 n, i64 part) { return p.parts > 1 ? n * part / p.parts : n * part; }

KERNEL(rstds, Norm) {
    for (i64 cell = first_thread(); cell < p.cells; cell += threads())
        AT(rstd, f64, cell) = 1.0 / sqrt(AT(stats, f64, 3 * cell + 2) / AT(stats, f64, 3 * cell) + p.eps);
}

// (count, mean, sum of squared deviations) of every part of a cell, in two passes.
BLOCK_KERNEL(moments, Norm) {
    for (i64 item = first_team(); item < p.cells * p.parts; item += teams()) {
        const i64 part = over(item, p.cells), cell = item - part * p.cells;
        const i64 from = begin(p, p.length, part), to = begin(p, p.length, part + 1);
        const f64 count = (f64)(to - from);
        f64 mean = 0;
        if (!p.about_zero) {
            f64 sum = 0;
            for (i64 i = from + member(); i < to; i += members()) sum += (f64)READ(x, element_of(p, cell, i));
            mean = to > from ? team_sum(sum) / count : 0;
            if (mean - mean != 0) {
                // The sum may be too large where the mean is not.
                sum = 0;
                for (i64 i = from + member(); i < to; i += members()) sum += (f64)READ(x, element_of(p, cell, i)) / count;
                mean = team_sum(sum);
            }
        }
        Sums found = {0, 0};
        for (i64 i = from + member(); i < to; i += members()) {
            const f64 d = (f64)READ(x, element_of(p, cell, i)) - mean;
            found.a += d * d;
            found.b += d;
        }
        found = over_team(found, [](Sums s, Sums t) { return both(s, t); });
        if (member() == 0) {
            // Corrects for the rounding of the mean, after which the deviations do not quite sum to zero.
            const f64 squares = p.about_zero || found.a - found.a != 0 ? found.a : to > from ? found.a - found.b * found.b / count : 0;
            const Moments all = {count, mean, squares};
            (p.parts > 1 ? &AT(found, Moments, item) : &AT(y, Moments, cell))[0] = all;
        }
    }
}

BLOCK_KERNEL(joined_moments, Norm) {
    for (i64 cell = first_team(); cell < p.cells; cell += teams()) {
        Moments all = {0, 0, 0};
        for (i64 k = member(); k < p.parts; k += members()) all = pooled(all, AT(found, Moments, k * p.cells + cell));
        all = over_team(all, [](Moments s, Moments t) { return pooled(s, t); });
        if (member() == 0) AT(y, Moments, cell) = all;
    }
}

KERNEL(normalise, Norm) {
    const i64 n = p.cells * p.length;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 cell = cell_of(p, i), w = weight_of(p, cell, p.across ? 0 : i - cell * p.length);
        const T gain = p.weight ? READ(weight, w) : T(1), shift = p.bias ? READ(bias, w) : T(0);
        AT(y, R, i) = As<R>::of((READ(x, i) - (T)mean_of(p, cell)) * ((T)rstd_of(p, cell) * gain) + shift);
    }
}

DEVICE void put_cell(const Norm& p, i64 cell, Sums all) {
    AT(y, f64, 2 * cell) = p.about_zero ? 0 : all.a;
    AT(y, f64, 2 * cell + 1) = all.b * rstd_of(p, cell);
}
// Per cell, the sums of w dy and of w dy x^, of parts.
BLOCK_KERNEL(cell_sums, Norm) {
    for (i64 item = first_team(); item < p.cells * p.parts; item += teams()) {
        const i64 part = over(item, p.cells), cell = item - part * p.cells, to = begin(p, p.length, part + 1);
        const f64 mean = mean_of(p, cell);
        Sums all = {0, 0};
        for (i64 i = begin(p, p.length, part) + member(); i < to; i += members()) {
            const i64 e = element_of(p, cell, i);
            const f64 g = (f64)READ(dy, e) * (p.weight ? (f64)READ(weight, weight_of(p, cell, i)) : 1.0);
            all.a += g;
            all.b += g * ((f64)READ(x, e) - mean);
        }
        all = over_team(all, [](Sums s, Sums t) { return both(s, t); });
        if (member() != 0) continue;
        if (p.parts > 1) AT(found, Sums, item) = all;
        else put_cell(p, cell, all);
    }
}

BLOCK_KERNEL(joined_cell_sums, Norm) {
    for (i64 cell = first_team(); cell < p.cells; cell += teams()) {
        Sums all = {0, 0};
        for (i64 k = member(); k < p.parts; k += members()) all = both(all, AT(found, Sums, k * p.cells + cell));
        all = over_team(all, [](Sums s, Sums t) { return both(s, t); });
        if (member() == 0) put_cell(p, cell, all);
    }
}

DEVICE i64 weights(const Norm& p) { return p.channels ? p.channels : p.inner; }
DEVICE void put_weight(const Norm& p, i64 w, Sums all) {
    AT(y, R, p.apart * w) = As<R>::of((T)all.a);
    AT(units, R, p.apart * w) = As<R>::of((T)all.b);
}
DEVICE Sums term(const Norm& p, i64 e, i64 cell) {
    const f64 g = (f64)READ(dy, e);
    const Sums one = {g, g * (((f64)READ(x, e) - mean_of(p, cell)) * rstd_of(p, cell))};
    return one;
}
// Per weight, the sums of dy and of dy x^, of parts. Weights of channels: a team each.
BLOCK_KERNEL(channel_sums, Norm) {
    const i64 n = weights(p), count = p.rows * p.inner;
    for (i64 item = first_team(); item < n * p.parts; item += teams()) {
        const i64 part = over(item, n), w = item - part * n, to = begin(p, count, part + 1);
        Sums all = {0, 0};
        for (i64 i = begin(p, count, part) + member(); i < to; i += members()) {
            const i64 sample = over(i, p.inner);
            const i64 e = (sample * p.channels + w) * p.inner + (i - sample * p.inner);
            all = both(all, term(p, e, p.across ? w : sample * p.groups + over(w, p.channels / p.groups)));
        }
        all = over_team(all, [](Sums s, Sums t) { return both(s, t); });
        if (member() != 0) continue;
        if (p.parts > 1) AT(found, Sums, item) = all;
        else put_weight(p, w, all);
    }
}
// Those of a row's elements, which lie side by side: a thread each.
KERNEL(element_sums, Norm) {
    const i64 n = p.inner;
    for (i64 item = first_thread(); item < n * p.parts; item += threads()) {
        const i64 part = over(item, n), w = item - part * n, to = begin(p, p.rows, part + 1);
        Sums all = {0, 0};
        for (i64 row = begin(p, p.rows, part); row < to; row++) all = both(all, term(p, row * n + w, row));
        if (p.parts > 1) AT(found, Sums, item) = all;
        else put_weight(p, w, all);
    }
}

BLOCK_KERNEL(joined_weight_sums, Norm) {
    const i64 n = weights(p);
    for (i64 w = first_team(); w < n; w += teams()) {
        Sums all = {0, 0};
        for (i64 k = member(); k < p.parts; k += members()) all = both(all, AT(found, Sums, k * n + w));
        all = over_team(all, [](Sums s, Sums t) { return both(s, t); });
        if (member() == 0) put_weight(p, w, all);
    }
}

KERNEL(input_grad, Norm) {
    const i64 n = p.cells * p.length;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 cell = cell_of(p, i), w = weight_of(p, cell, p.across ? 0 : i - cell * p.length);
        const f64 count = AT(stats, f64, 3 * cell);
        const T rstd = (T)rstd_of(p, cell), gain = p.weight ? READ(weight, w) : T(1);
        const T a = p.sums ? (T)(AT(sums, f64, 2 * cell) / count) : T(0), b = p.sums ? (T)(AT(sums, f64, 2 * cell + 1) / count) : T(0);
        AT(y, R, i) = As<R>::of(rstd * (gain * READ(dy, i) - a - (READ(x, i) - (T)mean_of(p, cell)) * rstd * b));
    }
}
