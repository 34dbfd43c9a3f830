// The vocabulary of CUDA for a host compiler: tests of kernels run on this where there is no GPU.
//
// A launch runs block after block. In a KERNEL the threads of a block run one after the other; in a BLOCK_KERNEL, whose
// threads wait for each other, each is a fiber and SYNC() goes on to the next.
#define EMULATED 1
#include <cmath>
#include <cstddef>
#include <cstring>
#include <ucontext.h>
#include <vector>

struct Dim3 { unsigned x, y, z; };
static thread_local Dim3 threadIdx, blockIdx, blockDim, gridDim;
using std::exp; using std::log; using std::sqrt; using std::fabs; using std::pow; using std::tanh; using std::erf;
using std::floor; using std::ceil; using std::sin; using std::cos; using std::log1p; using std::expm1; using std::fma;
using std::isnan; using std::isinf; using std::rint; using std::trunc; using std::tan; using std::cbrt;
using std::asin; using std::acos; using std::atan; using std::sinh; using std::cosh; using std::asinh; using std::acosh; using std::atanh;
using std::exp2; using std::log2; using std::log10; using std::erfc; using std::atan2; using std::hypot; using std::fmod;
// As the host's.
inline double erfinv(double x) {
    const double size = fabs(x), pi = 3.14159265358979323846, a = 0.147;
    if (!(size < 1)) return size == 1 ? x * HUGE_VAL : NAN;
    const double l = log1p(-x * x), b = 2 / (pi * a) + 0.5 * l, first = sqrt(b * b - l / a) - b;
    double y = first > 0 ? sqrt(first) : 0;
    for (int i = 0; i < 3; i++) {
        const double error = size < 0.5 ? erf(y) - size : (1 - size) - erfc(y);
        y -= error / (2 / sqrt(pi) * exp(-y * y) + y * error);
    }
    return std::copysign(y, x);
}
inline float erfinv(float x) { return (float)erfinv((double)x); }

#define DEVICE inline
#define SHARED(T, name, count) static thread_local T name[count]

namespace emulated {
struct Fibers {
    ucontext_t home;
    std::vector<ucontext_t> threads;
    std::vector<char> done;
    std::vector<std::vector<char>> stacks;
    unsigned now = 0;
    void (*body)(const void*) = nullptr;
    const void* params = nullptr;
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

inline void run(const unsigned* grid, const unsigned* block, const void* params, bool waits, void (*body)(const void*)) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    unsigned count = block[0] * block[1] * block[2];
    if (waits) {
        fibers.threads.resize(count);
        fibers.stacks.resize(count, std::vector<char>(1 << 16));
        fibers.body = body;
        fibers.params = params;
    }
    for (unsigned z = 0; z < grid[2]; z++) for (unsigned y = 0; y < grid[1]; y++) for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        if (!waits) {
            for (unsigned t = 0; t < count; t++) { place(t); body(params); }
            continue;
        }
        fibers.done.assign(count, 0);
        for (unsigned t = 0; t < count; t++) {
            getcontext(&fibers.threads[t]);
            fibers.threads[t].uc_stack.ss_sp = fibers.stacks[t].data();
            fibers.threads[t].uc_stack.ss_size = fibers.stacks[t].size();
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
#define EMULATED_KERNEL(name, Params, waits)                                                              \
    static void name##_body(const Params& p);                                                            \
    extern "C" size_t size_##name() { return sizeof(Params); }                                           \
    extern "C" void launch_##name(const unsigned* grid, const unsigned* block, const void* params) {     \
        emulated::run(grid, block, params, waits, [](const void* p) { name##_body(*(const Params*)p); }); \
    }                                                                                                    \
    static void name##_body(const Params& p)
#define KERNEL(name, Params) EMULATED_KERNEL(name, Params, false)
#define BLOCK_KERNEL(name, Params) EMULATED_KERNEL(name, Params, true)
