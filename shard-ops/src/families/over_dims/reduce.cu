// Reductions of some dims. T: the type; W: the one it is reduced in, R: the result's; JOIN(a, b), LIFT(x), LOWER(w), START: the monoid.

// Of several `parts` of a cell's elements, `found` has what each came to, for all cells part by part.
struct Reduce { View cells, along, y; u64 found; i64 parts; };

// A zero is above its negative: of two zeros, one of each sign sum to the one above.
DEVICE W larger(W a, W b) { return a == b && a == 0 ? a + b : a != a || a > b ? a : b; }
DEVICE W smaller(W a, W b) { return a == b && a == 0 ? -(-a - b) : a != a || a < b ? a : b; }

DEVICE void put(const Reduce& p, i64 n, i64 c, i64 part, W all) {
    if (p.parts > 1) ((W*)p.found)[part * n + c] = all;
    else element<R>(p.y, place(p.y, c)) = LOWER(all);
}
DEVICE i64 begin(const Reduce& p, i64 m, i64 part) { return p.parts > 1 ? m * part / p.parts : m * part; }
DEVICE W lifted(const Reduce& p, i64 base, i64 i) { const auto x = widen(element<T>(p.cells, base + place(p.along, i))); return LIFT(x); }

// A thread per part of a cell: where there are many cells side by side.
KERNEL(columns, Reduce) {
    const i64 n = numel(p.cells), m = numel(p.along);
    for (i64 at = first_thread(); at < n * p.parts; at += threads()) {
        const i64 part = over(at, n), c = at - part * n, base = place(p.cells, c), end = begin(p, m, part + 1);
        W sum = START;
        for (i64 i = begin(p, m, part); i < end; i++) sum = JOIN(sum, lifted(p, base, i));
        put(p, n, c, part, sum);
    }
}

// A team per part of a cell: members take every so many elements, and join. The order is the same in every run.
BLOCK_KERNEL(cells, Reduce) {
    const i64 n = numel(p.cells), m = numel(p.along);
    for (i64 at = first_team(); at < n * p.parts; at += teams()) {
        const i64 part = over(at, n), c = at - part * n, base = place(p.cells, c), end = begin(p, m, part + 1);
        W sum = START;
        i64 i = begin(p, m, part) + member();
        // Several at once, so that one is not waited for before the next is asked for.
        for (; i + 3 * members() < end; i += 4 * members()) {
            W some[4];
            for (i32 k = 0; k < 4; k++) some[k] = lifted(p, base, i + k * members());
            for (i32 k = 0; k < 4; k++) sum = JOIN(sum, some[k]);
        }
        for (; i < end; i += members()) sum = JOIN(sum, lifted(p, base, i));
        sum = over_team(sum, [](W a, W b) { return (W)(JOIN(a, b)); });
        if (member() == 0) put(p, n, c, part, sum);
    }
}

// A team per cell, of whose parts something was found.
BLOCK_KERNEL(joined, Reduce) {
    const i64 n = numel(p.y);
    for (i64 c = first_team(); c < n; c += teams()) {
        W sum = START;
        for (i64 k = member(); k < p.parts; k += members()) sum = JOIN(sum, ((const W*)p.found)[k * n + c]);
        sum = over_team(sum, [](W a, W b) { return (W)(JOIN(a, b)); });
        if (member() == 0) element<R>(p.y, place(p.y, c)) = LOWER(sum);
    }
}
