// The vocabulary of CUDA for a host compiler: tests of kernels run on this where there is no GPU.
//
// A launch runs block after block. In a KERNEL the threads of a block run one after the other; in a BLOCK_KERNEL, whose
// threads wait for each other, each is a fiber and SYNC() goes on to the next.
#define EMULATED 1
// No header of C++: they take as long to compile as a kernel.
#include <stddef.h>
#include <string.h>
#include <ucontext.h>

struct Dim3 { unsigned x, y, z; };
static thread_local Dim3 threadIdx, blockIdx, blockDim, gridDim;
// Of both precisions.
#define OF_ONE(name)                                               \
    inline double name(double x) { return __builtin_##name(x); }   \
    inline float name(float x) { return __builtin_##name##f(x); }
#define OF_TWO(name)                                                              \
    inline double name(double x, double y) { return __builtin_##name(x, y); }     \
    inline float name(float x, float y) { return __builtin_##name##f(x, y); }
OF_ONE(exp) OF_ONE(log) OF_ONE(sqrt) OF_ONE(fabs) OF_ONE(tanh) OF_ONE(erf) OF_ONE(floor) OF_ONE(ceil) OF_ONE(sin)
OF_ONE(cos) OF_ONE(log1p) OF_ONE(expm1) OF_ONE(rint) OF_ONE(trunc) OF_ONE(tan) OF_ONE(cbrt) OF_ONE(asin) OF_ONE(acos)
OF_ONE(atan) OF_ONE(sinh) OF_ONE(cosh) OF_ONE(asinh) OF_ONE(acosh) OF_ONE(atanh) OF_ONE(exp2) OF_ONE(log2) OF_ONE(log10)
OF_ONE(erfc) OF_ONE(lgamma) OF_TWO(pow) OF_TWO(atan2) OF_TWO(hypot) OF_TWO(fmod) OF_TWO(copysign)
OF_TWO(nextafter)
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double frexp(double x, int* power) { return __builtin_frexp(x, power); }
inline float frexp(float x, int* power) { return __builtin_frexpf(x, power); }
inline double jn(int n, double x) { return __builtin_jn(n, x); }
inline double yn(int n, double x) { return __builtin_yn(n, x); }
template <typename T> inline bool isnan(T x) { return __builtin_isnan(x); }
template <typename T> inline bool isinf(T x) { return __builtin_isinf(x); }
// As the host's.
inline double erfinv(double x) {
    const double size = fabs(x), pi = 3.14159265358979323846, a = 0.147;
    if (!(size < 1)) return size == 1 ? x * __builtin_huge_val() : __builtin_nan("");
    const double l = log1p(-x * x), b = 2 / (pi * a) + 0.5 * l, first = sqrt(b * b - l / a) - b;
    double y = first > 0 ? sqrt(first) : 0;
    for (int i = 0; i < 3; i++) {
        const double error = size < 0.5 ? erf(y) - size : (1 - size) - erfc(y);
        y -= error / (2 / sqrt(pi) * exp(-y * y) + y * error);
    }
    return copysign(y, x);
}
inline float erfinv(float x) { return (float)erfinv((double)x); }

#define DEVICE inline
#define SHARED(T, name, count) static thread_local T name[count]

namespace emulated {
static const size_t STACK = 1 << 16;

// Of one launch after the other. Their memory is the host's, which gives it back when its thread ends.
struct Fibers {
    ucontext_t home;
    // Of each thread of a block, which has a stack.
    ucontext_t* threads;
    char* done;
    char* stacks;
    unsigned now;
    void (*body)(const void*);
    const void* params;

    void place_in(void* room, unsigned count) {
        stacks = (char*)room;
        threads = (ucontext_t*)(stacks + count * STACK);
        done = (char*)(threads + count);
    }
};
static thread_local Fibers fibers;

inline void place(unsigned t) {
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
}
inline void enter() {
    fibers.body(fibers.params);
    fibers.done[fibers.now] = 1;
    swapcontext(&fibers.threads[fibers.now], &fibers.home);
}
inline void sync() { swapcontext(&fibers.threads[fibers.now], &fibers.home); }

// Memory of this thread's, of as many bytes at least.
typedef void* (*Room)(size_t);

inline void run(
    const unsigned* grid, const unsigned* block, const void* params, Room room, bool waits, void (*body)(const void*)
) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    unsigned count = block[0] * block[1] * block[2];
    if (waits) {
        fibers.place_in(room(count * (STACK + sizeof(ucontext_t) + 1)), count);
        fibers.body = body;
        fibers.params = params;
    }
    for (unsigned z = 0; z < grid[2]; z++) for (unsigned y = 0; y < grid[1]; y++) for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        if (!waits) {
            for (unsigned t = 0; t < count; t++) { place(t); body(params); }
            continue;
        }
        memset(fibers.done, 0, count);
        for (unsigned t = 0; t < count; t++) {
            getcontext(&fibers.threads[t]);
            fibers.threads[t].uc_stack.ss_sp = fibers.stacks + t * STACK;
            fibers.threads[t].uc_stack.ss_size = STACK;
            fibers.threads[t].uc_link = nullptr;
            makecontext(&fibers.threads[t], enter, 0);
        }
        // Every round takes each thread from one SYNC() to the next.
        for (bool alive = true; alive;) {
            alive = false;
            for (unsigned t = 0; t < count; t++) {
                if (fibers.done[t]) continue;
                fibers.now = t;
                place(t);
                swapcontext(&fibers.home, &fibers.threads[t]);
                alive |= !fibers.done[t];
            }
        }
    }
}
}  // namespace emulated

#define SYNC() emulated::sync()
#define EMULATED_KERNEL(name, Params, waits)                                                             \
    static void name##_body(const Params& p);                                                            \
    extern "C" size_t size_##name() { return sizeof(Params); }                                           \
    extern "C" void launch_##name(                                                                       \
        const unsigned* grid, const unsigned* block, const void* params, emulated::Room room             \
    ) {                                                                                                  \
        auto body = [](const void* p) { name##_body(*(const Params*)p); };                               \
        emulated::run(grid, block, params, room, waits, body);                                           \
    }                                                                                                    \
    static void name##_body(const Params& p)
#define KERNEL(name, Params) EMULATED_KERNEL(name, Params, false)
#define BLOCK_KERNEL(name, Params) EMULATED_KERNEL(name, Params, true)
