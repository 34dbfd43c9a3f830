// One of two by a mask. T: a type of as many bytes as an element, which are all that counts.

struct Select { View mask, a, b, y; };
KERNEL(select, Select) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const bool first = element<u8>(p.mask, place(p.mask, i)) != 0;
        element<T>(p.y, place(p.y, i)) = first ? element<T>(p.a, place(p.a, i)) : element<T>(p.b, place(p.b, i));
    }
}

struct Fill { View mask, x, y; u64 value; i64 filled; };
KERNEL(masked_fill, Fill) {
    const i64 n = numel(p.y);
    const T value = at_bits<T>(p.value);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const bool fill = (element<u8>(p.mask, place(p.mask, i)) != 0) == (p.filled != 0);
        element<T>(p.y, place(p.y, i)) = fill ? value : element<T>(p.x, place(p.x, i));
    }
}
