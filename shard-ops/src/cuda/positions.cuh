// Global positions of the indices of a box: start + i step, or a list. They ascend in either case.
struct Positions { u64 list; i64 start, step; };
DEVICE i64 at(const Positions& p, i64 i) { return p.list ? ((const i64*)p.list)[i] : p.start + i * p.step; }

// Which of `count` indices has this position, or -1.
DEVICE i64 find(const Positions& p, i64 count, i64 position) {
    i64 low = 0, high = count;
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if (at(p, middle) < position) low = middle + 1;
        else high = middle;
    }
    return low < count && at(p, low) == position ? low : -1;
}
