// Steps of optimizers. T: the type; SGD (and MOMENTUM), ADAM (and AMSGRAD), NADAM, RADAM, ADAMAX, LION, RMS_PROP (and MOMENTUM,
// CENTERED), ADAGRAD, ADADELTA, RPROP, ASGD or AVERAGE. n: the update's numbers.
struct Step { u64 p, g, s, t, u, new_p, new_s, new_t, new_u; i64 count; f64 n[8]; };

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
#if defined(NADAM) || defined(RADAM)
        // What stays, decay, two betas.
        T m = ELEMENT(s), v = ELEMENT(t);
        g = g + (T)p.n[1] * x;
        m = m + (g - m) * (T)(1.0 - p.n[2]);
        v = v * (T)p.n[3] + (T)(1.0 - p.n[3]) * g * g;
        ELEMENT(new_s) = m;
        ELEMENT(new_t) = v;
#endif
#ifdef NADAM
        // Sizes along the gradient and its mean, root, eps.
        x = x * (T)p.n[0] - ((T)p.n[4] * g + (T)p.n[5] * m) / (sqrt(v) / (T)p.n[6] + (T)p.n[7]);
#endif
#ifdef RADAM
        // Size, eps, whether there is a denominator.
        x = x * (T)p.n[0] - (T)p.n[4] * (p.n[6] != 0 ? m / (sqrt(v) + (T)p.n[5]) : m);
#endif
#ifdef ADAMAX
        // Size, decay, two betas, eps.
        T m = ELEMENT(s), most = ELEMENT(t);
        g = g + (T)p.n[1] * x;
        m = m + (g - m) * (T)(1.0 - p.n[2]);
        T own = (g < 0 ? -g : g) + (T)p.n[4];
        most = (T)p.n[3] * most;
        most = most != most || most > own ? most : own;
        ELEMENT(new_s) = m;
        ELEMENT(new_t) = most;
        x = x - (T)p.n[0] * (m / most);
#endif
#ifdef RMS_PROP
        // Rate, how slowly means forget, decay, eps, momentum.
        T v = ELEMENT(s);
        g = g + (T)p.n[2] * x;
        v = v * (T)p.n[1] + (T)(1.0 - p.n[1]) * g * g;
        ELEMENT(new_s) = v;
#ifdef CENTERED
#ifdef MOMENTUM
        T mean = ELEMENT(u);
#else
        T mean = ELEMENT(t);
#endif
        mean = mean + (g - mean) * (T)(1.0 - p.n[1]);
#ifdef MOMENTUM
        ELEMENT(new_u) = mean;
#else
        ELEMENT(new_t) = mean;
#endif
        v = v - mean * mean;
        v = v < 0 ? T(0) : v;
#endif
        g = g / (sqrt(v) + (T)p.n[3]);
#ifdef MOMENTUM
        g = (T)p.n[4] * ELEMENT(t) + g;
        ELEMENT(new_t) = g;
#endif
        x = x - (T)p.n[0] * g;
#endif
#ifdef ADAGRAD
        // Rate, decay, eps.
        g = g + (T)p.n[1] * x;
        T sum = ELEMENT(s) + g * g;
        ELEMENT(new_s) = sum;
        x = x - (T)p.n[0] * (g / (sqrt(sum) + (T)p.n[2]));
#endif
#ifdef ADADELTA
        // The share of a step, how slowly means forget, decay, eps.
        T v = ELEMENT(s), steps = ELEMENT(t);
        g = g + (T)p.n[2] * x;
        v = v * (T)p.n[1] + (T)(1.0 - p.n[1]) * g * g;
        g = sqrt(steps + (T)p.n[3]) / sqrt(v + (T)p.n[3]) * g;
        ELEMENT(new_s) = v;
        ELEMENT(new_t) = steps * (T)p.n[1] + (T)(1.0 - p.n[1]) * g * g;
        x = x - (T)p.n[0] * g;
#endif
#ifdef LION
        // Rate, what stays, two betas.
        T m = ELEMENT(s), d = m * (T)p.n[2] + g * (T)(1.0 - p.n[2]);
        ELEMENT(new_s) = m * (T)p.n[3] + g * (T)(1.0 - p.n[3]);
        x = x * (T)p.n[1] - (T)p.n[0] * (d > 0 ? T(1) : d < 0 ? T(-1) : d);
#endif
#ifdef RPROP
        // Rate, factors where a sign has turned and where it stayed, least size, largest, whether it is the first step.
        T turn = g * ELEMENT(s), size = p.n[5] != 0 ? (T)p.n[0] : ELEMENT(t);
        size = size * (turn > 0 ? (T)p.n[2] : turn < 0 ? (T)p.n[1] : T(1) + turn);
        size = size < (T)p.n[3] ? (T)p.n[3] : size;
        size = size > (T)p.n[4] ? (T)p.n[4] : size;
        g = turn < 0 ? T(0) : g;
        ELEMENT(new_s) = g;
        ELEMENT(new_t) = size;
        x = x - (g > 0 ? T(1) : g < 0 ? T(-1) : g) * size;
#endif
#ifdef ASGD
        // Size, what stays, decay, the parameter's share in the mean.
        x = x * (T)p.n[1] - (T)p.n[0] * (g + (T)p.n[2] * x);
        T mean = ELEMENT(s);
        ELEMENT(new_s) = p.n[3] == 1 ? x : mean + (x - mean) * (T)p.n[3];
#endif
#ifdef AVERAGE
        // How much stays.
        x = x + (T)(1.0 - p.n[0]) * (g - x);
#endif
        ELEMENT(new_p) = x;
    }
}
