// The sum of powers of magnitudes, or the largest of them. T: the type; TERM(x), JOIN(a, b) in f64.
struct Powers { u64 x, y; i64 count; f64 order; };

// Threads take every so many elements, and join in pairs. The order is the same in every run.
BLOCK_KERNEL(powers, Powers) {
    SHARED(f64, part, 1024);
    const u32 t = threadIdx.x;
    f64 sum = 0;
    for (i64 i = t; i < p.count; i += blockDim.x) {
        const f64 x = (f64)((const T*)p.x)[i], term = TERM(x);
        sum = JOIN(sum, term);
    }
    part[t] = sum;
    SYNC();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) { f64 a = part[t], b = part[t + half]; part[t] = JOIN(a, b); }
        SYNC();
    }
    if (t == 0) *(f64*)p.y = part[0];
}
