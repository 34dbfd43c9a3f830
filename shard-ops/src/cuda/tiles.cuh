// Products of small matrices by a GPU's units for matrices, which multiply numbers of bf16 and sum in f32.
//
// Other numbers are sums of parts that are numbers of bf16, each the nearest to what those before leave: two stand for a number
// of f16 exactly, three for one of f32 (as on the host: see parts.rs). Of two sums the products of parts are formed that matter.
//
// The lanes of a warp hold a matrix together. Of 16 x 8 sums, lane l has those of rows l / 4 and l / 4 + 8, and of columns
// 2 (l % 4) and the next. Two such matrices side by side are, as pairs of bf16, what the unit takes on its left: what was
// computed is multiplied on without a way through memory. All lanes of a block call these functions together.

// A kernel for blocks of THREADS, of which so many share a multiprocessor: that limits its registers.
#ifdef EMULATED
#define TILE_KERNEL(name, Params, THREADS, BLOCKS) BLOCK_KERNEL(name, Params)
#define CALLED inline
#else
// A long function that is not written out in each of its many places.
#define CALLED __device__ __noinline__
#define TILE_KERNEL(name, Params, THREADS, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) name(const __grid_constant__ Params p)
#endif

namespace tiles {

// Sums of 16 x 8: rows l / 4 (first two) and l / 4 + 8.
struct Sums { f32 at[4]; };
// A left operand of 16 x 16, or two right operands of 16 x 8: pairs of bf16.
struct Pairs { u32 at[4]; };

// The parts of a stored number.
template <class E> struct Parts { static const i32 count = 0; };
template <> struct Parts<bf16> { static const i32 count = 1; };
template <> struct Parts<f16> { static const i32 count = 2; };
template <> struct Parts<f32> { static const i32 count = 3; };

// Numbers up to this size have parts, and no sum of products of some of them, and of gradients made of those, is infinite.
#define MOST_OF_PARTS 1073741824.0f

DEVICE i32 lane() { return (i32)(threadIdx.x % 32); }
DEVICE i32 warp() { return (i32)(threadIdx.x / 32); }

#ifdef EMULATED
// What the lanes of a block show each other. There are two, so that one wait is enough: nobody writes what another still reads.
struct Shown { u32 at[1024][8]; };
static thread_local Shown shown[2];
static thread_local u32 turns[1024];
inline u32 (*show(const u32* what, i32 count))[8] {
    const u32 me = threadIdx.x;
    Shown& now = shown[turns[me]++ % 2];
    for (i32 i = 0; i < count; i++) now.at[me][i] = what[i];
    SYNC();
    return &now.at[me - me % 32];
}
inline f32 half_of(u32 pair, i32 k) { return from_bits(k % 2 ? pair & 0xffff0000u : pair << 16); }

inline void multiply(Sums& sums, const Pairs& left, u32 low, u32 high) {
    const u32 mine[6] = {left.at[0], left.at[1], left.at[2], left.at[3], low, high};
    const u32 (*all)[8] = show(mine, 6);
    for (i32 i = 0; i < 4; i++) {
        const i32 row = lane() / 4 + i / 2 * 8, col = lane() % 4 * 2 + i % 2;
        f32 sum = 0;
        for (i32 k = 0; k < 16; k++) {
            const u32 a = all[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], b = all[col * 4 + k % 8 / 2][4 + k / 8];
            sum += half_of(a, k) * half_of(b, k);
        }
        sums.at[i] += sum;
    }
}
inline u32 two(const u16* at, i64 apart) { return at[0] | (u32)at[apart] << 16; }
inline Pairs left(const u16* tile, i32 apart) {
    Pairs to;
    for (i32 i = 0; i < 4; i++) to.at[i] = two(tile + (lane() / 4 + i % 2 * 8) * apart + lane() % 4 * 2 + i / 2 * 8, 1);
    return to;
}
inline Pairs right(const u16* tile, i32 apart) {
    Pairs to;
    for (i32 i = 0; i < 4; i++) to.at[i] = two(tile + (lane() / 4 + i / 2 * 8) * apart + lane() % 4 * 2 + i % 2 * 8, 1);
    return to;
}
inline Pairs right_turned(const u16* tile, i32 apart) {
    Pairs to;
    for (i32 i = 0; i < 4; i++) to.at[i] = two(tile + (lane() % 4 * 2 + i % 2 * 8) * apart + lane() / 4 + i / 2 * 8, apart);
    return to;
}
inline u32 nearest(f32 x, f32 y) { return As<bf16>::of(x).bits | (u32)As<bf16>::of(y).bits << 16; }
inline f32 power2(f32 x) { return exp2(x); }
inline f32 larger(f32 x, f32 y) { return x > y || y != y ? x : y; }
inline f32 from_lane(f32 x, i32 other) {
    const u32 mine = bits_of(x);
    return from_bits(show(&mine, 1)[lane() ^ other][0]);
}
inline void bring(void* to, const void* from) { memcpy(to, from, 16); }
inline void arrived() {}
inline void meet() {}
#else
DEVICE void multiply(Sums& sums, const Pairs& left, u32 low, u32 high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums.at[0]), "+f"(sums.at[1]), "+f"(sums.at[2]), "+f"(sums.at[3])
        : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "r"(low), "r"(high));
}
// Loads four matrices of 8 x 8, of which each lane names a row.
DEVICE Pairs load(const u16* row) {
    Pairs to;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
    return to;
}
DEVICE Pairs load_turned(const u16* row) {
    Pairs to;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
    return to;
}
// A left operand from a tile in shared memory whose rows begin `apart` numbers apart.
DEVICE Pairs left(const u16* tile, i32 apart) { return load(tile + lane() % 16 * apart + lane() / 16 * 8); }
// Two right operands: the tile's first 16 rows are their columns.
DEVICE Pairs right(const u16* tile, i32 apart) { return load(tile + (lane() % 8 + lane() / 16 * 8) * apart + lane() / 8 % 2 * 8); }
// Two right operands: the tile's first 16 columns are their columns.
DEVICE Pairs right_turned(const u16* tile, i32 apart) { return load_turned(tile + lane() % 16 * apart + lane() / 16 * 8); }
// The nearest pair of bf16.
DEVICE u32 nearest(f32 x, f32 y) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}
DEVICE f32 power2(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE f32 larger(f32 x, f32 y) { return fmaxf(x, y); }
DEVICE f32 from_lane(f32 x, i32 other) { return __shfl_xor_sync(0xffffffffu, x, other); }
// Starts to copy 16 bytes to shared memory; all copies of a thread are there after `arrived`.
DEVICE void bring(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
DEVICE void arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// The lanes of a warp go on together, as the unit demands, wherever each of them was.
DEVICE void meet() { __syncwarp(); }
#endif

// A left operand from rows that lie anywhere.
DEVICE Pairs left_far(const u16* rows, i32 apart) {
    Pairs to;
    rows += lane() / 4 * apart + lane() % 4 * 2;
    #pragma unroll
    for (i32 i = 0; i < 4; i++) to.at[i] = *(const u32*)(rows + i % 2 * 8 * apart + i / 2 * 8);
    return to;
}

// Over the four lanes that have a row of sums.
DEVICE f32 row_most(f32 x) {
    x = larger(x, from_lane(x, 1));
    return larger(x, from_lane(x, 2));
}
DEVICE f32 row_sum(f32 x) {
    x += from_lane(x, 1);
    return x + from_lane(x, 2);
}

// The parts of two numbers, those of each part `apart` words behind those of the one before.
template <i32 COUNT> DEVICE void split(f32 x, f32 y, u32* to, i32 apart) {
    for (i32 part = 0; part < COUNT; part++) {
        const u32 pair = nearest(x, y);
        to[part * apart] = pair;
        x -= from_bits(pair << 16);
        y -= from_bits(pair & 0xffff0000u);
    }
}

// A tile of ROWS rows of WIDTH numbers of COUNT parts in shared memory. Rows are apart such that eight of them, at the same
// column, lie in different banks.
template <i32 ROWS, i32 WIDTH, i32 COUNT> struct Tile {
    static const i32 apart = WIDTH + 8, part = ROWS * apart, words = part * COUNT / 8;
    // Starts to copy dense rows of memory, whose parts lie `behind` numbers behind each other. All threads of a block of THREADS.
    template <i32 THREADS> static DEVICE void bring(u16* to, const u16* from, i64 behind) {
        const i32 chunks = WIDTH / 8;
        for (i32 part = 0; part < COUNT; part++)
            for (i32 e = (i32)threadIdx.x; e < ROWS * chunks; e += THREADS)
                tiles::bring(to + part * Tile::part + e / chunks * apart + e % chunks * 8, from + part * behind + e * 8);
    }
};

// Where a warp keeps the 16 rows of WIDTH numbers of COUNT parts that it multiplies all tiles by.
template <i32 WIDTH, i32 COUNT> struct InRegisters {
    Pairs at[COUNT][WIDTH / 16];
    DEVICE InRegisters(const u16* rows, i64 behind) {
        #pragma unroll
        for (i32 part = 0; part < COUNT; part++)
            #pragma unroll
            for (i32 step = 0; step < WIDTH / 16; step++) at[part][step] = left_far(rows + part * behind + step * 16, WIDTH);
    }
    DEVICE Pairs operator()(i32 part, i32 step) const { return at[part][step]; }
};
template <i32 WIDTH> struct InMemory {
    const u16* rows;
    i64 behind;
    DEVICE Pairs operator()(i32 part, i32 step) const { return left_far(rows + part * behind + step * 16, WIDTH); }
};
template <i32 APART, i32 BEHIND> struct InShared {
    const u16* rows;
    DEVICE Pairs operator()(i32 part, i32 step) const { return left(rows + part * BEHIND + step * 16, APART); }
};

// Lines that tiles are multiplied by: two right operands, from line `n` on. Of a tile in shared memory, or from anywhere.
template <i32 APART, i32 BEHIND> struct Lines {
    const u16* tile;
    DEVICE Pairs operator()(i32 part, i32 n, i32 step) const { return right(tile + part * BEHIND + n * APART + step * 16, APART); }
};
template <i32 WIDTH> struct FarLines {
    const u16* rows;
    i64 behind;
    DEVICE Pairs operator()(i32 part, i32 n, i32 step) const {
        Pairs to;
        const u16* at = rows + part * behind + (n + lane() / 4) * WIDTH + step * 16 + lane() % 4 * 2;
        #pragma unroll
        for (i32 i = 0; i < 4; i++) to.at[i] = *(const u32*)(at + i / 2 * 8 * WIDTH + i % 2 * 8);
        return to;
    }
};

// Whether the product of these parts matters, of parts of which so many are enough.
#define MATTERS(i, j, enough) ((i) + (j) < (enough))

// The products of 16 rows, of which left(part, step) gives 16 columns, with STRIPS x 8 lines. Large products and small ones are
// summed apart: the unit cuts off what it sums. Products are summed in the same order if LINES_FIRST and the operands change
// places, so that both gradients find the same sums.
template <i32 STRIPS, i32 STEPS, i32 COUNT, bool LINES_FIRST, class L, class R>
DEVICE void by_lines(Sums* to, const L& left, const R& lines) {
    #pragma unroll
    for (i32 n = 0; n < STRIPS; n += 2) {
        Sums large[2] = {}, small[2] = {};
        #pragma unroll
        for (i32 step = 0; step < STEPS; step++) {
            Pairs a[COUNT], right[COUNT];
            #pragma unroll
            for (i32 part = 0; part < COUNT; part++) { a[part] = left(part, step); right[part] = lines(part, n * 8, step); }
            #pragma unroll
            for (i32 u = COUNT - 1; u >= 0; u--)
                #pragma unroll
                for (i32 w = COUNT - 1; w >= 0; w--) {
                    if (!MATTERS(u, w, 3)) continue;
                    const i32 i = LINES_FIRST ? w : u, j = LINES_FIRST ? u : w;
                    Sums* sums = u + w ? small : large;
                    multiply(sums[0], a[i], right[j].at[0], right[j].at[1]);
                    multiply(sums[1], a[i], right[j].at[2], right[j].at[3]);
                }
        }
        #pragma unroll
        for (i32 i = 0; i < 8; i++) to[n + i / 4].at[i % 4] = COUNT > 1 ? large[i / 4].at[i % 4] + small[i / 4].at[i % 4] : large[i / 4].at[i % 4];
    }
}

// What was computed, as left operands of MADE parts for STEPS x 16 columns.
template <i32 STEPS, i32 MADE> struct Made {
    Pairs at[MADE][STEPS];
    DEVICE Made(const Sums* from) {
        meet();
        #pragma unroll
        for (i32 step = 0; step < STEPS; step++)
            #pragma unroll
            for (i32 i = 0; i < 4; i++) {
                const f32* pair = from[2 * step + i / 2].at + i % 2 * 2;
                u32 parts[MADE];
                split<MADE>(pair[0], pair[1], parts, 1);
                #pragma unroll
                for (i32 part = 0; part < MADE; part++) at[part][step].at[i] = parts[part];
            }
    }
};

// Adds products of what was computed with the columns of a tile's first STEPS x 16 rows: to STRIPS x 8 of them.
template <i32 STRIPS, i32 STEPS, i32 MADE, i32 COUNT, i32 APART, i32 BEHIND>
DEVICE void by_columns(Sums* to, const Made<STEPS, MADE>& made, const u16* tile) {
    #pragma unroll
    for (i32 n = 0; n < STRIPS; n += 2) {
        Sums large[2] = {}, small[2] = {};
        #pragma unroll
        for (i32 step = 0; step < STEPS; step++) {
            Pairs right[COUNT];
            #pragma unroll
            for (i32 j = 0; j < COUNT; j++) right[j] = right_turned(tile + j * BEHIND + step * 16 * APART + n * 8, APART);
            #pragma unroll
            for (i32 i = MADE - 1; i >= 0; i--)
                #pragma unroll
                for (i32 j = COUNT - 1; j >= 0; j--) {
                    if (!MATTERS(i, j, MADE > COUNT ? MADE : COUNT)) continue;
                    Sums* sums = COUNT < 3 ? to + n : i + j ? small : large;
                    multiply(sums[0], made.at[i][step], right[j].at[0], right[j].at[1]);
                    multiply(sums[1], made.at[i][step], right[j].at[2], right[j].at[3]);
                }
        }
        if (COUNT == 3)
            #pragma unroll
            for (i32 i = 0; i < 8; i++) to[n + i / 4].at[i % 4] += large[i / 4].at[i % 4] + small[i / 4].at[i % 4];
    }
}
}  // namespace tiles
