// Places of values among sorted ones, T: the type. Rows of `sorted` lie side by side, and so do those of values.
struct Search { u64 sorted, values, counts; i64 n, each, count, right; };

// NaN stands behind all numbers.
DEVICE bool before(T a, T b, bool right) {
    if (a < b) return true;
    if (a == b) return right;
    return b != b && (a == a || right);
}

KERNEL(count_before, Search) {
    for (i64 i = first_thread(); i < p.count; i += threads()) {
        const T* row = (const T*)p.sorted + over(i, p.each) * p.n;
        const T value = ((const T*)p.values)[i];
        i64 low = 0, high = p.n;
        while (low < high) {
            const i64 middle = low + (high - low) / 2;
            if (before(row[middle], value, p.right != 0)) low = middle + 1;
            else high = middle;
        }
        ((i64*)p.counts)[i] = low;
    }
}
