// Steps of optimizers. T: the type; SGD (and MOMENTUM), ADAM (and AMSGRAD), LION or AVERAGE. n: the update's numbers.
struct Step { u64 p, g, s, t, u, new_p, new_s, new_t, new_u; i64 count; f64 n[7]; };

#define ELEMENT(name) ((T*)p.name)[i]

KERNEL(step, Step) {
    for (i64 i = first_thread(); i < p.count; i += threads()) {
        T x = ELEMENT(p), g = ELEMENT(g);
#ifdef SGD
        // Rate, momentum, dampening, decay, whether it looks ahead, whether it is the first step.
        g = g + (T)p.n[3] * x;
#ifdef MOMENTUM
        T v = p.n[5] != 0 ? g : (T)p.n[1] * ELEMENT(s) + (T)(1.0 - p.n[2]) * g;
        ELEMENT(new_s) = v;
        g = p.n[4] != 0 ? g + (T)p.n[1] * v : v;
#endif
        x = x - (T)p.n[0] * g;
#endif
#ifdef ADAM
        // What stays, decay, two betas, size, root, eps.
        T m = ELEMENT(s), v = ELEMENT(t);
        g = g + (T)p.n[1] * x;
        m = m + (g - m) * (T)(1.0 - p.n[2]);
        v = v * (T)p.n[3] + (T)(1.0 - p.n[3]) * g * g;
        ELEMENT(new_s) = m;
        ELEMENT(new_t) = v;
#ifdef AMSGRAD
        T most = ELEMENT(u);
        v = most != most || most > v ? most : v;
        ELEMENT(new_u) = v;
#endif
        x = x * (T)p.n[0] - (T)p.n[4] * (m / (sqrt(v) / (T)p.n[5] + (T)p.n[6]));
#endif
#ifdef LION
        // Rate, what stays, two betas.
        T m = ELEMENT(s), d = m * (T)p.n[2] + g * (T)(1.0 - p.n[2]);
        ELEMENT(new_s) = m * (T)p.n[3] + g * (T)(1.0 - p.n[3]);
        x = x * (T)p.n[1] - (T)p.n[0] * (d > 0 ? T(1) : d < 0 ? T(-1) : d);
#endif
#ifdef AVERAGE
        // How much stays.
        x = x + (T)(1.0 - p.n[0]) * (g - x);
#endif
        ELEMENT(new_p) = x;
    }
}
