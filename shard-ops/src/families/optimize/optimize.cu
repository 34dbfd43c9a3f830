// Steps of optimizers. T: the type; ADAMW or SGD.
struct Step { u64 p, g, m, v, new_p, new_m, new_v; i64 count, first; f64 a, b, c, d, e, f; };

#define ELEMENT(name) ((const T*)p.name)[i]

KERNEL(step, Step) {
    for (i64 i = first_thread(); i < p.count; i += threads()) {
        T x = ELEMENT(p), g = ELEMENT(g), m = ELEMENT(m);
#ifdef ADAMW
        // a: what stays; b, c: betas; d: size; e: root; f: eps.
        T v = ELEMENT(v);
        x = x * (T)p.a;
        m = m + (g - m) * (T)(1.0 - p.b);
        v = v * (T)p.c + (T)(1.0 - p.c) * g * g;
        x = x - (T)p.d * (m / (sqrt(v) / (T)p.e + (T)p.f));
        ((T*)p.new_v)[i] = v;
#else
        // a: rate; b: momentum; c: decay.
        g = g + (T)p.c * x;
        m = p.first ? g : (T)p.b * m + g;
        x = x - (T)p.a * (p.b == 0 ? g : m);
#endif
        ((T*)p.new_p)[i] = x;
        ((T*)p.new_m)[i] = m;
    }
}
