// Elements that a condition picks. U: unsigned numbers of the elements' size; MASK: the bits that make an element not zero.
// `rows` rows of `width` elements, from global row `first` on; `x` is what is picked, or null for indices.
#define DIMS 8
struct Select {
    u64 condition, x, counts, starts, to;
    i64 rows, width, first;
    i64 ndim, shape[DIMS];
};

#ifdef COUNT
KERNEL(count, Select) {
    for (i64 row = first_thread(); row < p.rows; row += threads()) {
        i64 n = 0;
        for (i64 k = 0; k < p.width; k++) n += (((const C*)p.condition)[row * p.width + k] & (C)(MASK)) != 0;
        ((i64*)p.counts)[row] = n;
    }
}
#endif

#ifdef PLACE
KERNEL(place, Select) {
    for (i64 row = first_thread(); row < p.rows; row += threads()) {
        i64 at = ((const i64*)p.starts)[row];
        for (i64 k = 0; k < p.width; k++) {
            const i64 i = row * p.width + k;
            if ((((const C*)p.condition)[i] & (C)(MASK)) == 0) continue;
            if (p.x) ((U*)p.to)[at] = ((const U*)p.x)[i];
            else {
                i64* to = (i64*)p.to + at * p.ndim;
                i64 rest = k;
                for (i32 d = (i32)p.ndim - 1; d > 0; d--) { to[d] = rest % p.shape[d]; rest /= p.shape[d]; }
                to[0] = p.first + row;
            }
            at++;
        }
    }
}

// The other way: elements back where the condition picked them.
KERNEL(put, Select) {
    for (i64 row = first_thread(); row < p.rows; row += threads()) {
        i64 at = ((const i64*)p.starts)[row];
        for (i64 k = 0; k < p.width; k++) {
            const i64 i = row * p.width + k;
            const bool picked = (((const C*)p.condition)[i] & (C)(MASK)) != 0;
            ((U*)p.to)[i] = picked ? ((const U*)p.x)[at++] : (U)0;
        }
    }
}
#endif
