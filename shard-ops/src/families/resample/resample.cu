// Interpolation and its adjoint: a table of (index, weight) pairs per output and spatial dim. T: the type.
//
// The rows of the three dims follow one another in `starts`; the pairs of row r are those from starts[r] to starts[r + 1].
struct Resample { View x, y; u64 starts, index, weight; i64 first[3]; };

KERNEL(resample, Resample) {
    const i64 n = numel(p.y);
    const i64* starts = (const i64*)p.starts;
    const i64* index = (const i64*)p.index;
    const f64* weight = (const f64*)p.weight;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const Index o = index_of(p.y, i);
        const i64 r0 = p.first[0] + o.at[2], r1 = p.first[1] + o.at[3], r2 = p.first[2] + o.at[4];
        T sum = 0;
        for (i64 a = starts[r0]; a < starts[r0 + 1]; a++)
            for (i64 b = starts[r1]; b < starts[r1 + 1]; b++) {
                T row = 0;
                for (i64 c = starts[r2]; c < starts[r2 + 1]; c++)
                    row += (T)weight[c] * element<T>(p.x, place5(p.x, o.at[0], o.at[1], index[a], index[b], index[c]));
                sum += (T)weight[a] * (T)weight[b] * row;
            }
        element<T>(p.y, place5(p.y, o.at[0], o.at[1], o.at[2], o.at[3], o.at[4])) = sum;
    }
}
