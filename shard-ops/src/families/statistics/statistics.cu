// States of cells, and the derivative of some. T: the type of elements; R: that of their cotangents; W: that of the numbers of a state; KIND: which state.
//
// 0: (count, mean, M2); 1: (maximum, sum of exponentials); 2, 3: (largest or smallest element, index), with NONE, END for nothing.
// Of several `parts` of a cell's elements, `found` has the states, for all cells part by part.
struct Statistics { View cells, along, numbers; u64 y, found; i64 first, parts; };

DEVICE bool no_number(W a) { return a != a; }

#if KIND == 0
#define WIDTH 3
struct State { W a, b, c; };
DEVICE State nothing() { State s = {0, 0, 0}; return s; }
// Infinity has no deviation from itself.
template <class X> DEVICE State lift(X x, i64) { State s = {1, (W)x, (W)x - (W)x}; return s; }
DEVICE State join(State s, State t) {
    if (t.a == 0) return s;
    if (s.a == 0) return t;
    const W d = t.b - s.b, n = s.a + t.a;
    if (d - d != 0) {
        // Means that are not finite, or as large as numbers get.
        const W all = s.b * (s.a / n) + t.b * (t.a / n);
        State r = {n, all, s.c + t.c + (all - all == 0 ? d * d : d - d)};
        return r;
    }
    State r = {n, s.b + d * (t.a / n), s.c + t.c + d * d * (s.a * t.a / n)};
    return r;
}
#elif KIND == 1
#define WIDTH 2
struct State { W a, b; };
DEVICE State nothing() { State s = {-INFINITE, 0}; return s; }
template <class X> DEVICE State lift(X x, i64) { State s = {(W)x, 1}; return s; }
DEVICE State join(State s, State t) {
    const W m = no_number(s.a) || s.a > t.a ? s.a : t.a;
    State r = {m, (s.a == m ? s.b : s.b * exp(s.a - m)) + (t.a == m ? t.b : t.b * exp(t.a - m))};
    return r;
}
#else
#define WIDTH 2
struct State { W a, b; };
DEVICE State nothing() { State s = {NONE, END}; return s; }
template <class X> DEVICE State lift(X x, i64 index) { State s = {(W)x, (W)index}; return s; }
DEVICE State join(State s, State t) {
    const bool first = s.b <= t.b;
    if (no_number(s.a) || no_number(t.a)) {
        if (no_number(s.a) && no_number(t.a)) return first ? s : t;
        return no_number(s.a) ? s : t;
    }
    if (s.a == t.a) return first ? s : t;
#if KIND == 2
    return s.a > t.a ? s : t;
#else
    return s.a < t.a ? s : t;
#endif
}
#endif

DEVICE void put(W* y, State s) {
    y[0] = s.a;
    y[1] = s.b;
#if WIDTH == 3
    y[2] = s.c;
#endif
}
DEVICE void put(const Statistics& p, i64 n, i64 c, i64 part, State s) {
    if (p.parts > 1) ((State*)p.found)[part * n + c] = s;
    else put((W*)p.y + c * WIDTH, s);
}
DEVICE i64 begin(const Statistics& p, i64 m, i64 part) { return p.parts > 1 ? m * part / p.parts : m * part; }
DEVICE State state_of(const Statistics& p, i64 base, i64 i) {
    return lift(widen(element<T>(p.cells, base + place(p.along, i))), p.first + place(p.numbers, i));
}

// A thread per part of a cell: where there are many cells side by side.
KERNEL(columns, Statistics) {
    const i64 n = numel(p.cells), m = numel(p.along);
    for (i64 at = first_thread(); at < n * p.parts; at += threads()) {
        const i64 part = over(at, n), c = at - part * n, base = place(p.cells, c), end = begin(p, m, part + 1);
        State s = nothing();
        for (i64 i = begin(p, m, part); i < end; i++) s = join(s, state_of(p, base, i));
        put(p, n, c, part, s);
    }
}

// A team per part of a cell: members take every so many elements, and join. The order is the same in every run.
BLOCK_KERNEL(cells, Statistics) {
    const i64 n = numel(p.cells), m = numel(p.along);
    for (i64 at = first_team(); at < n * p.parts; at += teams()) {
        const i64 part = over(at, n), c = at - part * n, base = place(p.cells, c), end = begin(p, m, part + 1);
        State s = nothing();
        for (i64 i = begin(p, m, part) + member(); i < end; i += members()) s = join(s, state_of(p, base, i));
        s = over_team(s, [](State a, State b) { return join(a, b); });
        if (member() == 0) put(p, n, c, part, s);
    }
}

// A team per cell, of whose parts something was found.
BLOCK_KERNEL(joined, Statistics) {
    const i64 n = numel(p.cells);
    for (i64 c = first_team(); c < n; c += teams()) {
        State s = nothing();
        for (i64 k = member(); k < p.parts; k += members()) s = join(s, ((const State*)p.found)[k * n + c]);
        s = over_team(s, [](State a, State b) { return join(a, b); });
        if (member() == 0) put((W*)p.y + c * WIDTH, s);
    }
}

// Cotangents of states as those of elements. `states` and `dy` have the dims of `x`, with steps of 0 along those of cells.
struct StatesGrad { View x, states, dy, y; };
#if KIND < 2
KERNEL(states_grad, StatesGrad) {
    for (i64 i = first_thread(); i < numel(p.y); i += threads()) {
        const i64 s = place(p.states, i), g = place(p.dy, i);
        const W x = (W)widen(element<T>(p.x, place(p.x, i)));
#if KIND == 0
        const W y = 2 * element<W>(p.dy, g + 2) * (x - element<W>(p.states, s + 1)) + element<W>(p.dy, g + 1) / element<W>(p.states, s);
#else
        const W y = element<W>(p.dy, g + 1) * exp(x - element<W>(p.states, s));
#endif
        element<R>(p.y, place(p.y, i)) = As<R>::of(y);
    }
}
#endif
