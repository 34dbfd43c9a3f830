// Sorting along a dim: runs by themselves, and a stretch of what they are merged to. T: the type; DESCENDING: largest first.
//
// A line has `n` elements `after` apart; lines are numbered with the dims before the sorted one outermost. Order is by value, NaN behind all
// numbers, then by index: no two elements are equal.
struct Sort {
    u64 values, indices, to_values, to_indices, ends;
    i64 runs, lines, n, after, start, width, from, held;
    u64 to_ends;      // where the runs end in what is written,
    i64 first, to_n;  // how many elements of each are, and how long a line of that is
    u64 cuts, read_values, read_indices;  // the parts of runs that a stretch is made of, and what was read of others
};

DEVICE bool less(T a, T b) { return a < b || (b != b && a == a); }
DEVICE bool before(T a, i64 i, T b, i64 j) {
#ifdef DESCENDING
    if (less(b, a)) return true;
    if (less(a, b)) return false;
#else
    if (less(a, b)) return true;
    if (less(b, a)) return false;
#endif
    return i < j;
}

// Where element `i` of a line of `n` lies.
DEVICE i64 at(const Sort& p, i64 line, i64 n, i64 i) {
    const i64 row = over(line, p.after);
    return (row * n + i) * p.after + line - row * p.after;
}

// The first of `low..high` of a sorted stretch of a line that does not stand before an element.
DEVICE i64 count(const Sort& p, i64 line, i64 low, i64 high, T value, i64 index) {
    const i64 first = low;
    while (low < high) {
        const i64 middle = low + (high - low) / 2, o = at(p, line, p.n, middle);
        if (before(((const T*)p.values)[o], ((const i64*)p.indices)[o], value, index)) low = middle + 1;
        else high = middle;
    }
    return low - first;
}

DEVICE i64 start_of(const Sort& p, i64 run) { return run == 0 ? 0 : ((const i64*)p.ends)[run - 1]; }
DEVICE i64 end_of(const Sort& p, i64 run) { return ((const i64*)p.ends)[run]; }
// The run that has an element.
DEVICE i64 run_of(const Sort& p, i64 i) {
    i64 low = 0, high = p.runs - 1;
    while (low < high) {
        const i64 middle = (low + high) / 2;
        if (end_of(p, middle) <= i) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Where element `place` of a run is written, if it is.
DEVICE bool kept(const Sort& p, i64 line, i64 run, i64 place, i64& to) {
    if (place >= p.first) return false;
    to = at(p, line, p.to_n, (run == 0 ? 0 : ((const i64*)p.to_ends)[run - 1]) + place);
    return true;
}

// Elements and their indices, before the first pass.
KERNEL(begin, Sort) {
    for (i64 k = first_thread(); k < p.lines * p.n; k += threads()) {
        const i64 line = over(k, p.n), i = k - line * p.n, run = run_of(p, i);
        i64 to;
        if (!kept(p, line, run, i - start_of(p, run), to)) continue;
        ((T*)p.to_values)[to] = ((const T*)p.values)[at(p, line, p.n, i)];
        ((i64*)p.to_indices)[to] = p.start + i;
    }
}

// Stretches of `width` within each run, each of them sorted, are merged in pairs.
KERNEL(pass, Sort) {
    for (i64 k = first_thread(); k < p.lines * p.n; k += threads()) {
        const i64 line = over(k, p.n), i = k - line * p.n, o = at(p, line, p.n, i);
        const i64 run = run_of(p, i), start = start_of(p, run), end = end_of(p, run);
        const i64 part = over(i - start, p.width), other = start + (part ^ 1) * p.width;
        i64 low = other < end ? other : end, high = other + p.width < end ? other + p.width : end;
        const T value = ((const T*)p.values)[o];
        const i64 index = ((const i64*)p.indices)[o];
        const i64 place = (part & ~1ll) * p.width + (i - start - part * p.width) + count(p, line, low, high, value, index);
        i64 to;
        if (!kept(p, line, run, place, to)) continue;
        ((T*)p.to_values)[to] = value;
        ((i64*)p.to_indices)[to] = index;
    }
}

// All runs merged: those of `from .. from + held`.
KERNEL(merge, Sort) {
    for (i64 k = first_thread(); k < p.lines * p.n; k += threads()) {
        const i64 line = over(k, p.n), i = k - line * p.n, o = at(p, line, p.n, i);
        const i64 run = run_of(p, i);
        const T value = ((const T*)p.values)[o];
        const i64 index = ((const i64*)p.indices)[o];
        i64 place = i - start_of(p, run);
        for (i64 r = 0; r < p.runs; r++)
            if (r != run) place += count(p, line, start_of(p, r), end_of(p, r), value, index);
        if (place < p.from || place >= p.from + p.held) continue;
        const i64 to = at(p, line, p.held, place - p.from);
        ((T*)p.to_values)[to] = value;
        ((i64*)p.to_indices)[to] = index;
    }
}

// The part of a run that a stretch is made of, on a line.
struct Part { const i64* cut; i64 line; };
DEVICE Part part_of(const Sort& p, i64 run, i64 line) {
    Part part;
    part.cut = (const i64*)p.cuts + 3 * (run * p.lines + line);
    part.line = line;
    return part;
}
DEVICE i64 length(const Part& part) { return part.cut[1] - part.cut[0]; }

// An element of a part: of this rank's own run, or as it was read.
DEVICE void element(const Sort& p, const Part& part, i64 i, T& value, i64& index) {
    if (part.cut[2] < 0) {
        const i64 o = at(p, part.line, p.n, part.cut[0] + i);
        value = ((const T*)p.values)[o];
        index = ((const i64*)p.indices)[o];
    } else {
        value = ((const T*)p.read_values)[part.cut[2] + i];
        index = ((const i64*)p.read_indices)[part.cut[2] + i];
    }
}

// How many elements of a part stand before an element.
DEVICE i64 count_part(const Sort& p, const Part& part, T value, i64 index) {
    i64 low = 0, high = length(part);
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        T v;
        i64 j;
        element(p, part, middle, v, j);
        if (before(v, j, value, index)) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The parts of runs merged: on each line they are as many elements as the stretch has.
KERNEL(merge_parts, Sort) {
    for (i64 k = first_thread(); k < p.lines * p.held; k += threads()) {
        const i64 line = over(k, p.held);
        i64 run = 0, place = k - line * p.held;
        for (; run + 1 < p.runs && place >= length(part_of(p, run, line)); run++) place -= length(part_of(p, run, line));
        T value;
        i64 index;
        element(p, part_of(p, run, line), place, value, index);
        for (i64 r = 0; r < p.runs; r++)
            if (r != run) place += count_part(p, part_of(p, r, line), value, index);
        const i64 to = at(p, line, p.held, place);
        ((T*)p.to_values)[to] = value;
        ((i64*)p.to_indices)[to] = index;
    }
}
