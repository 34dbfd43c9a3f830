// Random numbers by global index. T: f32 or f64; UNIT, UNITS (of so many BITS), RANGE, WHOLE (of integers), NORMAL or KEPT. As in rng.rs, operation by operation.
struct Draw {
    u64 to;
    i64 count, ndim;
    i64 shape[AXES];   // here
    i64 strides[AXES]; // of the whole
    Positions at[AXES];
    Stream stream;
    f64 start, width, most;
};

// 53 bits, in [0, 1).
DEVICE f64 unit(u32 high, u32 low) {
    return (f64)(((u64)high << 32 | low) >> 11) * (1.0 / 9007199254740992.0);
}

DEVICE f64 number(const Draw& p, u64 index) {
#if defined(KEPT)
    return words(p.stream, index / 4).at[index % 4] >= (u32)p.width ? p.start : 0.0;
#else
    const Words w = words(p.stream, index);
#if defined(UNITS)
    return (f64)(w.at[0] >> (32 - BITS)) * (1.0 / (f64)(1 << BITS));
#elif defined(NORMAL)
    const f64 radius = sqrt(-2.0 * log(1.0 - unit(w.at[0], w.at[1])));
    return radius * cos(6.283185307179586 * unit(w.at[2], w.at[3]));
#elif defined(RANGE)
    const f64 x = p.start + p.width * unit(w.at[0], w.at[1]);
    return x < p.most ? x : p.most;
#elif defined(WHOLE)
    return p.start + floor(p.width * unit(w.at[0], w.at[1]));
#else
    return unit(w.at[0], w.at[1]);
#endif
#endif
}

KERNEL(draw, Draw) {
    for (i64 i = first_thread(); i < p.count; i += threads()) {
        i64 left = i;
        u64 index = 0;
        for (i32 d = (i32)p.ndim - 1; d >= 0; d--) {
            const i64 rest = over(left, p.shape[d]);
            index += (u64)at(p.at[d], left - rest * p.shape[d]) * (u64)p.strides[d];
            left = rest;
        }
        ((T*)p.to)[i] = (T)number(p, index);
    }
}
