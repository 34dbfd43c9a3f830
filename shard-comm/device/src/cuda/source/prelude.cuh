// The prelude of every kernel: types, conversions, and how a kernel is written.
//
// A kernel takes one structure by value and is written
//
//     KERNEL(name, Params) { ... p.field ... }
//
// so that the same text runs on a GPU (compiled by NVRTC) and, for tests without one, on the host (emulated.h).
// Kernels whose threads wait for each other are written BLOCK_KERNEL. No kernel may assume a block's size.

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define SHARED(T, name, count) __shared__ T name[count]
#define KERNEL(name, Params) extern "C" __global__ void name(const __grid_constant__ Params p)
#define BLOCK_KERNEL(name, Params) KERNEL(name, Params)
#define SYNC() __syncthreads()
#endif

typedef double f64;
typedef float f32;
typedef long long i64;
typedef int i32;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct b8 { u8 byte; };
struct alignas(16) u128 { u64 lo, hi; };

template <class T> DEVICE T at_bits(u64 bits) { union { u64 b; T t; } u; u.b = bits; return u.t; }
DEVICE u32 bits_of(f32 v) { union { f32 f; u32 b; } u; u.f = v; return u.b; }
DEVICE f32 from_bits(u32 b) { union { f32 f; u32 b; } u; u.b = b; return u.f; }

DEVICE f32 widen16(f16 v) {
    u32 sign = (u32)(v.bits & 0x8000u) << 16, exponent = (v.bits >> 10) & 31u, part = v.bits & 1023u;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | (part << 13));
    if (exponent) return from_bits(sign | ((exponent + 112) << 23) | (part << 13));
    f32 tiny = (f32)part * 5.9604644775390625e-8f;  // 2^-24: a subnormal's unit
    return sign ? -tiny : tiny;
}
DEVICE f32 widen16(bf16 v) { return from_bits((u32)v.bits << 16); }

// Round to nearest, ties to even, as the processor's own conversions.
DEVICE void narrow16(f32 v, bf16* to) {
    u32 b = bits_of(v);
    to->bits = v != v ? (u16)((b >> 16) | 0x40u) : (u16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
DEVICE void narrow16(f32 v, f16* to) {
    u32 b = bits_of(v), sign = (b >> 16) & 0x8000u, m = b & 0x7fffffffu;
    if (m > 0x7f800000u) { to->bits = (u16)(sign | 0x7e00u | ((m >> 13) & 1023u)); return; }
    if (m >= 0x477ff000u) { to->bits = (u16)(sign | 0x7c00u); return; }
    if (m < 0x38800000u) {  // subnormal: the unit is 2^-24
        // Adding 0.5 rounds to a multiple of 2^-24, and leaves it in the lowest bits.
        u32 r = bits_of(from_bits(m) + 0.5f) - 0x3f000000u;
        to->bits = (u16)(sign | r);
        return;
    }
    to->bits = (u16)(sign | ((m + 0xfffu + ((m >> 13) & 1u) - 0x38000000u) >> 13));
}

// The type that elements are computed in: f32 for 16-bit floats, the type itself otherwise.
template <class T> struct Wide { typedef T type; };
template <> struct Wide<f16> { typedef f32 type; };
template <> struct Wide<bf16> { typedef f32 type; };

template <class T> DEVICE T widen(T v) { return v; }
DEVICE f32 widen(f16 v) { return widen16(v); }
DEVICE f32 widen(bf16 v) { return widen16(v); }

// Converts between floats of any widths; doubles become 16-bit floats by way of f32.
DEVICE f64 as_f64(f64 v) { return v; }
DEVICE f64 as_f64(f32 v) { return v; }
DEVICE f64 as_f64(f16 v) { return widen16(v); }
DEVICE f64 as_f64(bf16 v) { return widen16(v); }

template <class T> struct As;
template <> struct As<f64> { static DEVICE f64 of(f64 v) { return v; } };
template <> struct As<f32> { static DEVICE f32 of(f32 v) { return v; } static DEVICE f32 of(f64 v) { return (f32)v; } };
template <> struct As<f16> {
    static DEVICE f16 of(f32 v) { f16 r; narrow16(v, &r); return r; }
    static DEVICE f16 of(f64 v) { f16 r; narrow16((f32)v, &r); return r; }
};
template <> struct As<bf16> {
    static DEVICE bf16 of(f32 v) { bf16 r; narrow16(v, &r); return r; }
    static DEVICE bf16 of(f64 v) { bf16 r; narrow16((f32)v, &r); return r; }
};
template <> struct As<i64> { static DEVICE i64 of(i64 v) { return v; } };
template <> struct As<i32> { static DEVICE i32 of(i32 v) { return v; } };
template <> struct As<u8> { static DEVICE u8 of(u8 v) { return v; } };
template <> struct As<b8> { static DEVICE b8 of(b8 v) { return v; } };

// The number of this thread among all threads of a launch.
DEVICE i64 first_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE i64 threads() { return (i64)gridDim.x * blockDim.x; }

// Lanes are threads with consecutive numbers that join what they have without waiting for the rest of their block. JOIN joins two
// values; what comes out is the same for all, and in every run.
#ifndef EMULATED
#define LANES 32
template <class V> DEVICE V of_lane(V v, u32 lane, bool away) {
    static_assert(sizeof(V) % 4 == 0, "lanes exchange words");
    union Words { V v; u32 w[sizeof(V) / 4]; DEVICE Words() {} } words;
    words.v = v;
    for (u32 i = 0; i < sizeof(V) / 4; i++)
        words.w[i] = away ? __shfl_xor_sync(0xffffffffu, words.w[i], lane) : __shfl_sync(0xffffffffu, words.w[i], lane);
    return words.v;
}
template <class V, class Join> DEVICE V over_lanes(V v, Join join) {
    for (u32 away = LANES / 2; away > 0; away /= 2) v = join(v, of_lane(v, away, true));
    // The order in which two lanes join may show in what is no number.
    return of_lane(v, 0, false);
}
template <class V, class Join> DEVICE V over_block(V v, Join join) {
    __shared__ V part[LANES];
    v = over_lanes(v, join);
    if (threadIdx.x % LANES == 0) part[threadIdx.x / LANES] = v;
    SYNC();
    V all = part[0];
    for (u32 k = 1; k < blockDim.x / LANES; k++) all = join(all, part[k]);
    SYNC();
    return all;
}
#else
#define LANES 4
template <class V, class Join> DEVICE V over_some(V v, u32 from, u32 to, Join join) {
    static thread_local V part[1024];
    part[threadIdx.x] = v;
    SYNC();
    V all = part[from];
    for (u32 k = from + 1; k < to; k++) all = join(all, part[k]);
    SYNC();
    return all;
}
template <class V, class Join> DEVICE V over_lanes(V v, Join join) {
    const u32 from = threadIdx.x / LANES * LANES;
    return over_some(v, from, from + LANES, join);
}
template <class V, class Join> DEVICE V over_block(V v, Join join) { return over_some(v, 0, blockDim.x, join); }
#endif

// A team takes an item at a time, and its members join what they found: a block, or LANES threads if BY_LANES is defined.
#ifdef BY_LANES
#define TEAM ((u32)LANES)
#define over_team over_lanes
#else
#define TEAM blockDim.x
#define over_team over_block
#endif
DEVICE i64 first_team() { return (i64)blockIdx.x * (blockDim.x / TEAM) + threadIdx.x / TEAM; }
DEVICE i64 teams() { return (i64)gridDim.x * (blockDim.x / TEAM); }
DEVICE i64 member() { return threadIdx.x % TEAM; }
DEVICE i64 members() { return TEAM; }
template <class V> DEVICE V team_sum(V v) { return over_team(v, [](V a, V b) { return a + b; }); }

// Elements side by side, which are read or written at once.
template <class E, i32 N> struct alignas(sizeof(E) * N) Pack { E at[N]; };
