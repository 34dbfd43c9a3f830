// Scans along a dim. Each line has a state, which begins with the totals of the parts before and joins element after element.
//
// KIND: what is scanned, VALUES, EXTREMES, RUNS or a RECURRENCE. T: the type of elements; W: the one that values are joined in; R: the result's.
// JOIN(a, b): how values are joined, START: what changes nothing. Truth values are bytes.

#define VALUES 0
#define EXTREMES 1
#define RUNS 2
#define RECURRENCE 3

// Lines begin at the elements of `lines` and go on by `step`; `count` elements each, the first at position `first` of the dim. Totals of part
// k of a line lie `k` of their own steps further; `parts` lists those that come before, in order. A recurrence has its factors for an index,
// and may have first states, `begin`.
struct Scan {
    View x, index, y, at;
    View total, more, begin;
    u64 parts;
    i64 before, count, first, backwards;
    i64 x_step, index_step, y_step, at_step, total_step, more_step;
};

#if KIND == VALUES
// Of any type, since a text with whole numbers must compile too, for which there is no exponential.
template <class V> DEVICE V log_add_exp(V a, V b) {
    const V low = a < b ? a : b, high = a < b ? b : a;
    return low == high && (low - low != 0) ? low : high + log1p(exp(low - high));
}
#ifdef TRUTHS
#define LIFT(x) ((x) != 0 ? W(1) : W(0))
#else
#define LIFT(x) ((W)(x))
#endif
struct State { W value; };
DEVICE State none() { State s = {START}; return s; }
DEVICE State then(State a, State b) { State s = {JOIN(a.value, b.value)}; return s; }
DEVICE State lifted(const Scan& p, i64 x, i64, i64) { State s = {LIFT(element<T>(p.x, x))}; return s; }
DEVICE State before(const Scan& p, i64 at, i64) { State s = {element<W>(p.total, at)}; return s; }
DEVICE void written(const Scan& p, i64 y, i64, State, State now, i64) { element<R>(p.y, y) = (R)now.value; }
DEVICE void left(const Scan& p, i64 y, i64, State s) { element<W>(p.y, y) = s.value; }
#elif KIND == EXTREMES
struct State { T value; i64 index; };
DEVICE State none() { State s = {T(0), -1}; return s; }
#ifdef TRUTHS
#define NUMBER(x) ((x) != 0)
#else
#define NUMBER(x) (x)
#endif
DEVICE State then(State a, State b) {
    const bool takes = a.index < 0 || b.value != b.value || (a.value == a.value && WINS(NUMBER(b.value), NUMBER(a.value)));
    return b.index >= 0 && takes ? b : a;
}
DEVICE State lifted(const Scan& p, i64 x, i64, i64 position) { State s = {element<T>(p.x, x), position}; return s; }
DEVICE State before(const Scan& p, i64 at, i64 more) { State s = {element<T>(p.total, at), element<i64>(p.more, more)}; return s; }
DEVICE void written(const Scan& p, i64 y, i64 at, State, State now, i64) {
    element<T>(p.y, y) = now.value;
    element<i64>(p.at, at) = now.index;
}
DEVICE void left(const Scan& p, i64 y, i64 at, State s) { element<T>(p.y, y) = s.value; element<i64>(p.at, at) = s.index; }
#elif KIND == RECURRENCE
// The product of the factors, and what is made of nothing, which is the state itself behind a first one.
struct State { f64 factor, value; };
DEVICE State none() { State s = {1.0, 0.0}; return s; }
// Factors that overflow make nothing of nothing.
DEVICE State then(State a, State b) {
    State s = {a.factor * b.factor, a.value == 0.0 ? b.value : b.factor * a.value + b.value};
    return s;
}
DEVICE State before(const Scan& p, i64 at, i64 more) { State s = {element<f64>(p.more, more), element<f64>(p.total, at)}; return s; }
DEVICE void left(const Scan& p, i64 y, i64 at, State s) { element<f64>(p.y, y) = s.value; element<f64>(p.at, at) = s.factor; }
#else
struct State { f64 value; i64 ended; };
DEVICE State none() { State s = {0.0, 0}; return s; }
DEVICE State then(State a, State b) { State s = {b.ended ? b.value : a.value + b.value, a.ended | b.ended}; return s; }
DEVICE State lifted(const Scan& p, i64 x, i64 index, i64 position) {
    const bool ends = element<i64>(p.index, index) == position;
    State s = {ends ? 0.0 : (f64)element<T>(p.x, x), ends};
    return s;
}
DEVICE State before(const Scan& p, i64 at, i64 more) { State s = {element<f64>(p.total, at), element<i64>(p.more, more)}; return s; }
DEVICE void written(const Scan& p, i64 y, i64, State was, State now, i64 x) {
    // What a run comes to is known where it ends: at an element that joined nothing to the state.
    element<T>(p.y, y) = (T)(now.ended == 2 ? was.value + (f64)element<T>(p.x, x) : 0.0);
}
DEVICE void left(const Scan& p, i64 y, i64 at, State s) { element<f64>(p.y, y) = s.value; element<i64>(p.at, at) = s.ended != 0; }
#endif

// The state of a line before its first element.
DEVICE State begun(const Scan& p, i64 line) {
    State s = none();
#if KIND == RECURRENCE && defined(STARTS)
    s.value = (f64)element<T>(p.begin, place(p.begin, line));
#endif
    const i64 at = place(p.total, line), more = place(p.more, line);
    for (i64 k = 0; k < p.before; k++) {
        const i64 part = ((const i64*)p.parts)[k];
        s = then(s, before(p, at + part * p.total_step, more + part * p.more_step));
    }
    return s;
}

// Element number i of a line, in the order of the scan, joined to a state; written if there is an output per element.
DEVICE State joined(const Scan& p, State s, i64 line, i64 i, bool writes) {
    i = p.backwards ? p.count - 1 - i : i;
    const i64 x = place(p.x, line) + i * p.x_step, index = place(p.index, line) + i * p.index_step;
#if KIND == RECURRENCE
    const f64 a = (f64)element<T>(p.index, index), b = (f64)element<T>(p.x, x);
#ifdef ADJOINT
    const f64 found = s.value + b;
    s.value = a * found;
#else
    const f64 found = a * s.value + b;
    s.value = found;
#endif
    s.factor *= a;
    if (writes) element<T>(p.y, place(p.y, line) + i * p.y_step) = (T)found;
    return s;
#else
    const State one = lifted(p, x, index, p.first + i);
    State now = then(s, one);
#if KIND == RUNS
    if (writes) { State told = now; told.ended = one.ended ? 2 : 0; written(p, place(p.y, line) + i * p.y_step, 0, s, told, x); }
#else
    if (writes) written(p, place(p.y, line) + i * p.y_step, place(p.at, line) + i * p.at_step, s, now, x);
#endif
    return now;
#endif
}

// A thread per line: where there are many.
KERNEL(lines, Scan) {
    const i64 n = numel(p.x);
    for (i64 line = first_thread(); line < n; line += threads()) {
#ifdef TOTALS
        State s = none();
        for (i64 i = 0; i < p.count; i++) s = joined(p, s, line, i, false);
        left(p, place(p.y, line), place(p.at, line), s);
#else
        State s = begun(p, line);
        for (i64 i = 0; i < p.count; i++) s = joined(p, s, line, i, true);
#endif
    }
}

// A block per line: each thread has some elements in a row, joins them, and begins anew from what those before came to.
BLOCK_KERNEL(line, Scan) {
    SHARED(State, part, 1024);
    const i64 n = numel(p.x);
    const i64 each = (p.count + blockDim.x - 1) / blockDim.x, t = threadIdx.x;
    const i64 from = t * each < p.count ? t * each : p.count, to = from + each < p.count ? from + each : p.count;
    for (i64 line = blockIdx.x; line < n; line += gridDim.x) {
        State s = none();
        for (i64 i = from; i < to; i++) s = joined(p, s, line, i, false);
        part[t] = s;
        SYNC();
        if (t == 0) {
#ifdef TOTALS
            State all = none();
#else
            State all = begun(p, line);
#endif
            for (u32 k = 0; k < blockDim.x; k++) { const State own = part[k]; part[k] = all; all = then(all, own); }
#ifdef TOTALS
            left(p, place(p.y, line), place(p.at, line), all);
#endif
        }
        SYNC();
#ifndef TOTALS
        s = part[t];
        for (i64 i = from; i < to; i++) s = joined(p, s, line, i, true);
        SYNC();
#endif
    }
}
