// States of cells, and the derivative of some. T: the type of elements; W: that of the numbers of a state; KIND: which state.
//
// 0: (count, mean, M2); 1: (maximum, sum of exponentials); 2, 3: (largest or smallest element, index), with NONE, END for nothing.
struct Statistics { View cells, along, numbers; u64 y; i64 first; };

DEVICE bool no_number(W a) { return a != a; }

#if KIND == 0
#define WIDTH 3
struct State { W a, b, c; };
DEVICE State nothing() { State s = {0, 0, 0}; return s; }
DEVICE State lift(T x, i64) { State s = {1, (W)x, 0}; return s; }
DEVICE State join(State s, State t) {
    if (t.a == 0) return s;
    if (s.a == 0) return t;
    const W d = t.b - s.b, n = s.a + t.a;
    State r = {n, s.b + d * (t.a / n), s.c + t.c + d * d * (s.a * t.a / n)};
    return r;
}
#elif KIND == 1
#define WIDTH 2
struct State { W a, b; };
DEVICE State nothing() { State s = {-INFINITE, 0}; return s; }
DEVICE State lift(T x, i64) { State s = {(W)x, 1}; return s; }
DEVICE State join(State s, State t) {
    const W m = no_number(s.a) || s.a > t.a ? s.a : t.a;
    State r = {m, (s.a == m ? s.b : s.b * exp(s.a - m)) + (t.a == m ? t.b : t.b * exp(t.a - m))};
    return r;
}
#else
#define WIDTH 2
struct State { W a, b; };
DEVICE State nothing() { State s = {NONE, END}; return s; }
DEVICE State lift(T x, i64 index) { State s = {(W)x, (W)index}; return s; }
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

DEVICE void put(const Statistics& p, i64 c, State s) {
    W* y = (W*)p.y + c * WIDTH;
    y[0] = s.a;
    y[1] = s.b;
#if WIDTH == 3
    y[2] = s.c;
#endif
}

DEVICE State state_of(const Statistics& p, i64 base, i64 i) {
    return lift(element<T>(p.cells, base + place(p.along, i)), p.first + place(p.numbers, i));
}

// A thread per cell: where there are many cells side by side.
KERNEL(columns, Statistics) {
    const i64 n = numel(p.cells), m = numel(p.along);
    for (i64 c = first_thread(); c < n; c += threads()) {
        const i64 base = place(p.cells, c);
        State s = nothing();
        for (i64 i = 0; i < m; i++) s = join(s, state_of(p, base, i));
        put(p, c, s);
    }
}

// A block per cell: threads take every so many elements, and join in pairs. The order is the same in every run.
BLOCK_KERNEL(cells, Statistics) {
    SHARED(State, part, 1024);
    const i64 n = numel(p.cells), m = numel(p.along);
    const u32 t = threadIdx.x;
    for (i64 c = blockIdx.x; c < n; c += gridDim.x) {
        const i64 base = place(p.cells, c);
        State s = nothing();
        for (i64 i = t; i < m; i += blockDim.x) s = join(s, state_of(p, base, i));
        part[t] = s;
        SYNC();
        for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
            if (t < half) part[t] = join(part[t], part[t + half]);
            SYNC();
        }
        if (t == 0) put(p, c, part[0]);
        SYNC();
    }
}

// Cotangents of states as those of elements. `states` and `dy` have the dims of `x`, with steps of 0 along those of cells.
struct StatesGrad { View x, states, dy, y; };
#if KIND < 2
KERNEL(states_grad, StatesGrad) {
    for (i64 i = first_thread(); i < numel(p.y); i += threads()) {
        const i64 s = place(p.states, i), g = place(p.dy, i);
        const W x = (W)element<T>(p.x, place(p.x, i));
#if KIND == 0
        const W y = 2 * element<W>(p.dy, g + 2) * (x - element<W>(p.states, s + 1)) + element<W>(p.dy, g + 1) / element<W>(p.states, s);
#else
        const W y = element<W>(p.dy, g + 1) * exp(x - element<W>(p.states, s));
#endif
        element<T>(p.y, place(p.y, i)) = (T)y;
    }
}
#endif
