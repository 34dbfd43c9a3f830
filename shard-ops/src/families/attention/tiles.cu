// Attention and its gradient by a GPU's units for matrices, of operands that were packed as parts (tiles.cuh), for finite numbers
// up to a size. MASKED, SEGMENTED: as `masked` and `segmented`; DROPS: whether there is dropout; KERNEL_OF: which kernel is compiled.
//
// A warp has 16 rows, which are queries, or keys in the gradient of these, and goes through tiles of the other side (Dao,
// "FlashAttention-2", 2023). Logits, weights and their gradients stay in registers.

#define PARTS tiles::Parts<T>::count
// Parts of what is computed here: as exact as the sums, or enough for a type of 16 bits.
#define MADE (PARTS == 3 ? 3 : 2)
#define WHOLE(n, of) (((n) + (of) - 1) / (of) * (of))
#define DIMS WHOLE(DIM, 16)
#define VDIMS WHOLE(VDIM, 16)
// Rows of a block, and its threads.
#define ROWS 64
#define BLOCK 128
// Whether the registers of a thread are enough for more blocks than two to be at work side by side.
#define SMALL (PARTS == 1 && DIMS + VDIMS <= 128 && !DROPS)
#define LOG2E 1.4426950408889634

// The most rows of a tile, by bytes of a row, beside `taken` bytes in the memory of a block.
#define ROOM (48 * 1024 - 512)
DEVICE constexpr i32 most_rows(i32 most, i32 row, i32 taken) { return most > 16 && most * row + taken > ROOM ? most_rows(most / 2, row, taken) : most; }
#define BYTES(width) (((width) + 8) * PARTS * 2)

// A packed operand: rows of zeros fill up its heads, and columns of zeros its rows.
struct Packed { const u16* first; i64 behind; };
DEVICE Packed packed(u64 parts, const View& v, i32 width, i64 b, i64 h) {
    const i64 rows = WHOLE(v.shape[2], ROWS);
    Packed to = {(const u16*)parts + (b * v.shape[1] + h) * rows * width, v.shape[0] * v.shape[1] * rows * width};
    return to;
}

#if KERNEL_OF == 0
// A thread packs eight numbers of a row. blockIdx.z tells the operand.
KERNEL(pack, Attention) {
    const View v = blockIdx.z == 0 ? p.q : blockIdx.z == 1 ? p.k : blockIdx.z == 2 ? p.v : blockIdx.z == 3 ? p.dout : p.out;
    const i32 width = blockIdx.z < 2 ? DIM : VDIM, chunks = WHOLE(width, 16) / 8;
    const i64 rows = WHOLE(v.shape[2], ROWS), all = v.shape[0] * v.shape[1] * rows;
    u32* to = (u32*)p.parts[blockIdx.z];
    bool fit = true;
    for (i64 i = first_thread(); i < all * chunks; i += threads()) {
        const i64 line = over(i, chunks), head = over(line, rows), b = over(head, v.shape[1]), r = line - head * rows;
        const i32 first = (i32)(i - line * chunks) * 8;
        f32 x[8];
        for (i32 d = 0; d < 8; d++) x[d] = 0;
        if (r < v.shape[2]) {
            const i64 at = place4(v, b, head - b * v.shape[1], r);
            for (i32 d = 0; d < 8; d++) if (first + d < width) {
                x[d] = widen(element<T>(v, at + (first + d) * v.strides[3]));
                fit = fit && fabs(x[d]) <= MOST_OF_PARTS;
            }
        }
        u32 words[PARTS][4];
        for (i32 d = 0; d < 4; d++) tiles::split<PARTS>(x[2 * d], x[2 * d + 1], words[0] + d, 4);
        for (i32 part = 0; part < PARTS; part++) {
            u128* line = (u128*)(to + part * all * chunks * 4 + i * 4);
            line->lo = words[part][0] | (u64)words[part][1] << 32;
            line->hi = words[part][2] | (u64)words[part][3] << 32;
        }
    }
    if (!fit) *(u32*)p.apart = 1;
}
#endif

// The least and the greatest position of some rows.
struct Span { i64 least, most; };
DEVICE Span span(const Positions& positions, i64 first, i64 rows, i64 all) {
    Span s = {at(positions, first), at(positions, (first + rows < all ? first + rows : all) - 1)};
    return s;
}
// The first of `count` numbers that is so, if all after it are.
template <class F> DEVICE i32 first_of(i32 count, F is) {
    i32 low = 0, high = count;
    while (low < high) {
        const i32 middle = low + (high - low) / 2;
        if (is(middle)) high = middle;
        else low = middle + 1;
    }
    return low;
}
// The rows in whose tiles some pair is seen, and those in whose tiles all pairs are: positions ascend, so both are intervals.
struct Seen { i32 from, to, all_from, all_to; };
// Of tiles of `rows` of `count` rows, by rows at `mine`. Those others are keys, or queries, which keys see the other way round.
DEVICE Seen seen(const Attention& p, bool keys, i32 rows, i32 count, Span mine) {
    const Positions& others = keys ? p.keys : p.queries;
    const i64 far = 1ll << 62, low = keys ? p.low : p.high > far ? -far : -p.high, high = keys ? p.high : p.low < -far ? far : -p.low;
    const i32 tiles = (count + rows - 1) / rows;
    const auto least = [&](i32 i) { return at(others, i * rows); };
    const auto most = [&](i32 i) { return at(others, (i * rows + rows < count ? i * rows + rows : count) - 1); };
    Seen s;
    s.from = rows * first_of(tiles, [&](i32 i) { return most(i) - mine.least >= low; });
    s.to = rows * first_of(tiles, [&](i32 i) { return least(i) - mine.most > high; });
    s.all_from = rows * first_of(tiles, [&](i32 i) { return least(i) - mine.most >= low; });
    s.all_to = rows * first_of(tiles, [&](i32 i) { return most(i) - mine.least > high; });
    return s;
}

// The logit of a pair of which the product is known, in units of 1 / UNIT; -inf where the key is hidden. A mask is added to what
// is scaled: it may be too large to be scaled itself.
#define UNIT (MASKED == 2 ? (f32)LOG2E : (f32)(p.scale * LOG2E))
#define IN_UNITS(t) (MASKED == 2 ? (t) : (t) * (f32)(1 / p.scale))
#define OF_UNITS(t) (MASKED == 2 ? (t) : (t) * (f32)p.scale)
DEVICE f32 masked_product(const Attention& p, i64 b, i64 h, i64 r, i64 j, f32 product) {
    if (r >= p.q.shape[2] || j >= p.k.shape[2]) return (f32)-INFINITE;
    const i64 away = at(p.keys, j) - at(p.queries, r);
    if (away < p.low || away > p.high) return (f32)-INFINITE;
#if SEGMENTED
    if (of_two_segments(p, b, r, j)) return (f32)-INFINITE;
#endif
#if MASKED
    const i64 m = b * p.mask.strides[0] + h * p.mask.strides[1] + r * p.mask.strides[2] + j * p.mask.strides[3];
#if MASKED == 1
    if (!element<b8>(p.mask, m).byte) return (f32)-INFINITE;
#else
    return product * (f32)p.scale + widen(element<T>(p.mask, m));
#endif
#endif
    return product;
}
// 2^(UNIT (x - base)), where `scaled` is UNIT base.
DEVICE f32 weight(f32 x, f32 base, f32 scaled, f32 unit) { return MASKED == 2 ? tiles::power2((x - base) * unit) : tiles::power2(x * unit - scaled); }

#if DROPS
CALLED f32 factor_of(const Attention& p, i32 b, i32 h, i32 r, i32 j) {
    return r < p.q.shape[2] && j < p.k.shape[2] ? factor(p, b, h, at(p.queries, r), j) : 1;
}
#endif

#if KERNEL_OF == 1
TILE_KERNEL(fold_tiles, Attention, BLOCK, SMALL ? 4 : 2) {
    if (*(const u32*)p.apart) return;
    constexpr i32 tile = most_rows(PARTS == 3 || SMALL ? 32 : 64, BYTES(DIMS) + BYTES(VDIMS), 0);
    typedef tiles::Tile<tile, DIMS, PARTS> Keys;
    typedef tiles::Tile<tile, VDIMS, PARTS> Values;
    SHARED(u128, room, Keys::words + Values::words);
    u16 *keys = (u16*)room, *values = (u16*)(room + Keys::words);
    // The last queries come first: they see most keys, if not all see all.
    const i32 b = (i32)blockIdx.z, h = (i32)blockIdx.y, group = h / (i32)GROUP, n = (i32)p.q.shape[2], count = (i32)p.k.shape[2];
    const i32 top = (i32)(gridDim.x - 1 - blockIdx.x) * ROWS, r0 = top + tiles::warp() * 16 + tiles::lane() / 4;
    const i32 col = tiles::lane() % 4 * 2;
    const f32 unit = UNIT;
    SHARED(Seen, shared, 1);
    if (threadIdx.x == 0) *shared = seen(p, true, tile, count, span(p.queries, top, ROWS, n));
    SYNC();
    const Packed from = packed(p.parts[0], p.q, DIMS, b, h), k = packed(p.parts[1], p.k, DIMS, b, group), v = packed(p.parts[2], p.v, VDIMS, b, group);

    const tiles::InRegisters<DIMS, PARTS> q(from.first + (i64)(r0 - tiles::lane() / 4) * DIMS, from.behind);
    tiles::Sums o[VDIMS / 8];
    f32 m[2], s[2];
    #pragma unroll
    for (i32 half = 0; half < 2; half++) {
        const i32 r = r0 + half * 8;
        const i64 row = (b * p.q.shape[1] + h) * n + r;
        m[half] = r < n ? IN_UNITS(ROW(max, row)) : (f32)-INFINITE;
        // Each lane sums its own columns.
        s[half] = r < n && col == 0 ? ROW(sum, row) : 0;
        #pragma unroll
        for (i32 i = 0; i < VDIMS / 4; i++) {
            const i32 d = i / 2 * 8 + col + i % 2;
            o[i / 2].at[half * 2 + i % 2] = r < n && d < VDIM ? ROW(acc, row * VDIM + d) : 0;
        }
    }

    i32 first = shared->from;
    if (first < shared->to) Keys::template bring<BLOCK>(keys, k.first + (i64)first * DIMS, k.behind);
    while (first < shared->to) {
        tiles::arrived();
        SYNC();
        Values::template bring<BLOCK>(values, v.first + (i64)first * VDIMS, v.behind);
        tiles::Sums x[tile / 8];
        tiles::by_lines<tile / 8, DIMS / 16, PARTS, false>(x, q, tiles::Lines<Keys::apart, Keys::part>{keys});
        if (MASKED || SEGMENTED || first + tile > count || first < shared->all_from || first >= shared->all_to)
            #pragma unroll
            for (i32 i = 0; i < tile / 2; i++) {
                f32& at = x[i / 4].at[i % 4];
                at = masked_product(p, b, h, r0 + i % 4 / 2 * 8, first + i / 4 * 8 + col + i % 2, at);
            }
        #pragma unroll
        for (i32 half = 0; half < 2; half++) {
            f32 most = m[half];
            #pragma unroll
            for (i32 i = 0; i < tile / 4; i++) most = tiles::larger(most, x[i / 2].at[half * 2 + i % 2]);
            most = tiles::row_most(most);
            // A row that has seen no key yet has any base.
            const f32 base = most == (f32)-INFINITE ? 0 : most, scaled = base * unit, shrink = weight(m[half], base, scaled, unit);
            m[half] = most;
            s[half] *= shrink;
            #pragma unroll
            for (i32 i = 0; i < VDIMS / 4; i++) o[i / 2].at[half * 2 + i % 2] *= shrink;
            #pragma unroll
            for (i32 i = 0; i < tile / 4; i++) {
                f32& at = x[i / 2].at[half * 2 + i % 2];
                at = weight(at, base, scaled, unit);
                s[half] += at;
#if DROPS
                const i32 r = r0 + half * 8, j = first + i / 2 * 8 + col + i % 2;
                if (at != 0) at *= factor_of(p, b, h, r, j);
#endif
            }
        }
        const tiles::Made<tile / 16, MADE> made(x);
        const i32 after = first + tile;
        tiles::arrived();
        SYNC();
        if (after < shared->to) Keys::template bring<BLOCK>(keys, k.first + (i64)after * DIMS, k.behind);
        tiles::by_columns<VDIMS / 8, tile / 16, MADE, PARTS, Values::apart, Values::part>(o, made, values);
        first = after;
    }
    #pragma unroll
    for (i32 half = 0; half < 2; half++) {
        const i32 r = r0 + half * 8;
        const i64 row = (b * p.q.shape[1] + h) * n + r;
        const f32 sum = tiles::row_sum(s[half]);
        if (r >= n) continue;
        if (col == 0) { ROW(max, row) = OF_UNITS(m[half]); ROW(sum, row) = sum; }
        #pragma unroll
        for (i32 i = 0; i < VDIMS / 4; i++) {
            const i32 d = i / 2 * 8 + col + i % 2;
            if (d < VDIM) ROW(acc, row * VDIM + d) = o[i / 2].at[half * 2 + i % 2];
        }
    }
}
#endif

// Where gradients keep a block's own operands: what its threads multiply by is in registers or, like the rest, in shared memory,
// unless it is too large, or one too many.
#define HELD (PARTS * DIMS <= 192)
#define SHARES (ROWS * BYTES(VDIMS) + 16 * (BYTES(DIMS) + BYTES(VDIMS)) <= ROOM)
typedef tiles::Tile<ROWS, VDIMS, PARTS> Own;
template <bool YES> struct Beside {
    typedef tiles::InShared<Own::apart, Own::part> type;
    static DEVICE type of(u16* room, const Packed& from, i64 top) {
        Own::template bring<BLOCK>(room, from.first + top * VDIMS, from.behind);
        type to = {room + tiles::warp() * 16 * Own::apart};
        return to;
    }
};
template <> struct Beside<false> {
    typedef tiles::InMemory<VDIMS> type;
    static DEVICE type of(u16*, const Packed& from, i64 top) {
        type to = {from.first + (top + tiles::warp() * 16) * VDIMS, from.behind};
        return to;
    }
};
template <bool YES> struct First {
    typedef tiles::InRegisters<DIMS, PARTS> type;
    static DEVICE type of(const Packed& from, i64 top) { return type(from.first + (top + tiles::warp() * 16) * DIMS, from.behind); }
};
template <> struct First<false> {
    typedef tiles::InMemory<DIMS> type;
    static DEVICE type of(const Packed& from, i64 top) {
        type to = {from.first + (top + tiles::warp() * 16) * DIMS, from.behind};
        return to;
    }
};
// The logarithm of a row's sum such that no weight is left of rows that see no key, or do not exist.
DEVICE f32 whole(const Attention& p, i64 r, i64 row) {
    const f32 lse = r < p.q.shape[2] ? ROW(lse, row) : (f32)-INFINITE;
    return lse == (f32)-INFINITE ? (f32)INFINITE : lse;
}

#if KERNEL_OF == 2
TILE_KERNEL(grad_queries_tiles, Attention, BLOCK, SMALL ? 3 : 2) {
    if (*(const u32*)p.apart) return;
    constexpr i32 own = SHARES ? Own::words : 0, tile = most_rows(PARTS == 3 ? 32 : 64, BYTES(DIMS) + BYTES(VDIMS), own * 16);
    typedef tiles::Tile<tile, DIMS, PARTS> Keys;
    typedef tiles::Tile<tile, VDIMS, PARTS> Values;
    SHARED(u128, room, own + Keys::words + Values::words);
    u16 *keys = (u16*)(room + own), *values = (u16*)(room + own + Keys::words);
    const i32 b = (i32)blockIdx.z, h = (i32)blockIdx.y, group = h / (i32)GROUP, n = (i32)p.q.shape[2], count = (i32)p.k.shape[2];
    const i32 top = (i32)(gridDim.x - 1 - blockIdx.x) * ROWS, r0 = top + tiles::warp() * 16 + tiles::lane() / 4;
    const i32 col = tiles::lane() % 4 * 2;
    const f32 unit = UNIT;
    SHARED(Seen, shared, 1);
    if (threadIdx.x == 0) *shared = seen(p, true, tile, count, span(p.queries, top, ROWS, n));
    SYNC();
    const Packed k = packed(p.parts[1], p.k, DIMS, b, group), v = packed(p.parts[2], p.v, VDIMS, b, group);
    const auto q = First<HELD>::of(packed(p.parts[0], p.q, DIMS, b, h), top);
    const auto dout = Beside<SHARES>::of((u16*)room, packed(p.parts[3], p.dout, VDIMS, b, h), top);
    const Packed out = packed(p.parts[4], p.out, VDIMS, b, h);
    tiles::arrived();
    SYNC();
    tiles::Sums own_products[2], dq[DIMS / 8] = {};
    const tiles::FarLines<VDIMS> outs = {out.first + (i64)(r0 - tiles::lane() / 4) * VDIMS, out.behind};
    tiles::by_lines<2, VDIMS / 16, PARTS, false>(own_products, dout, outs);
    f32 lse[2], delta[2];
    #pragma unroll
    for (i32 half = 0; half < 2; half++) {
        const i32 r = r0 + half * 8;
        const i64 row = (b * p.q.shape[1] + h) * n + r;
        lse[half] = whole(p, r, row);
        // The gradient's product with the output, summed as those with values are, so that they cancel where a query has one key.
        const f32* pair = own_products[half].at + half * 2;
        delta[half] = tiles::row_sum(col != tiles::lane() / 8 * 2 ? 0 : tiles::lane() / 4 % 2 ? pair[1] : pair[0]);
        if (r < n && col == 0) ROW(delta, row) = delta[half];
    }
    for (i32 first = shared->from; first < shared->to; first += tile) {
        Keys::template bring<BLOCK>(keys, k.first + (i64)first * DIMS, k.behind);
        Values::template bring<BLOCK>(values, v.first + (i64)first * VDIMS, v.behind);
        tiles::arrived();
        SYNC();
        tiles::Sums x[tile / 8], dp[tile / 8];
        tiles::by_lines<tile / 8, DIMS / 16, PARTS, false>(x, q, tiles::Lines<Keys::apart, Keys::part>{keys});
        tiles::by_lines<tile / 8, VDIMS / 16, PARTS, false>(dp, dout, tiles::Lines<Values::apart, Values::part>{values});
        const bool checked = MASKED || SEGMENTED || first + tile > count || first < shared->all_from || first >= shared->all_to;
        #pragma unroll
        for (i32 i = 0; i < tile / 2; i++) {
            const i32 r = r0 + i % 4 / 2 * 8, j = first + i / 4 * 8 + col + i % 2;
            const i32 half = i % 4 / 2;
            f32 t = x[i / 4].at[i % 4], f = 1;
            if (checked) t = masked_product(p, b, h, r, j, t);
            f32 w = weight(t, lse[half], lse[half] * (f32)LOG2E, unit);
            // Also where a row has no numbers.
            if (checked && t == (f32)-INFINITE) w = 0;
#if DROPS
            if (w != 0) f = factor_of(p, b, h, r, j);
#endif
            const f32 ds = w * (dp[i / 4].at[i % 4] * f - delta[half]);
            x[i / 4].at[i % 4] = checked && w == 0 ? 0 : ds;
        }
        const tiles::Made<tile / 16, MADE> made(x);
        tiles::by_columns<DIMS / 8, tile / 16, MADE, PARTS, Keys::apart, Keys::part>(dq, made, keys);
        SYNC();
    }
    #pragma unroll
    for (i32 half = 0; half < 2; half++) {
        const i32 r = r0 + half * 8;
        const i64 row = (b * p.q.shape[1] + h) * n + r;
        if (r >= n) continue;
        #pragma unroll
        for (i32 i = 0; i < DIMS / 4; i++) {
            const i32 d = i / 2 * 8 + col + i % 2;
            if (d < DIM) ROW(dq, row * DIM + d) += dq[i / 2].at[half * 2 + i % 2] * (f32)p.scale;
        }
    }
}
#endif

#if KERNEL_OF == 3
// The rows of a warp are keys, so that what is computed need not be turned; the queries of their group come in tiles.
TILE_KERNEL(grad_keys_tiles, Attention, BLOCK, SMALL ? 3 : 2) {
    if (*(const u32*)p.apart) return;
    constexpr i32 own = SHARES ? Own::words : 0, tile = most_rows(PARTS == 3 || DIMS + VDIMS > 192 ? 16 : 32, BYTES(DIMS) + BYTES(VDIMS), own * 16);
    typedef tiles::Tile<tile, DIMS, PARTS> Queries;
    typedef tiles::Tile<tile, VDIMS, PARTS> Grads;
    SHARED(u128, room, own + Queries::words + Grads::words);
    SHARED(f32, lse, tile);
    SHARED(f32, delta, tile);
    u16 *queries = (u16*)(room + own), *grads = (u16*)(room + own + Queries::words);
    const i32 b = (i32)blockIdx.z, kv = (i32)blockIdx.y, group = (i32)GROUP, n = (i32)p.q.shape[2], count = (i32)p.k.shape[2];
    const i32 top = (i32)blockIdx.x * ROWS, j0 = top + tiles::warp() * 16 + tiles::lane() / 4;
    const i32 col = tiles::lane() % 4 * 2;
    const f32 unit = UNIT;
    SHARED(Seen, shared, 1);
    if (threadIdx.x == 0) *shared = seen(p, false, tile, n, span(p.keys, top, ROWS, count));
    SYNC();
    const auto k = First<HELD>::of(packed(p.parts[1], p.k, DIMS, b, kv), top);
    const auto v = Beside<SHARES>::of((u16*)room, packed(p.parts[2], p.v, VDIMS, b, kv), top);
    tiles::Sums dk[DIMS / 8] = {}, dv[VDIMS / 8] = {};
    for (i32 h = kv * group; h < (kv + 1) * group; h++) {
        const Packed q = packed(p.parts[0], p.q, DIMS, b, h), dout = packed(p.parts[3], p.dout, VDIMS, b, h);
        for (i32 first = shared->from; first < shared->to; first += tile) {
            Queries::template bring<BLOCK>(queries, q.first + (i64)first * DIMS, q.behind);
            Grads::template bring<BLOCK>(grads, dout.first + (i64)first * VDIMS, dout.behind);
            if (threadIdx.x < tile) {
                const i32 r = first + (i32)threadIdx.x;
                const i64 row = (b * p.q.shape[1] + h) * n + r;
                lse[threadIdx.x] = whole(p, r, row);
                delta[threadIdx.x] = r < n ? ROW(delta, row) : 0;
            }
            tiles::arrived();
            SYNC();
            tiles::Sums x[tile / 8], dp[tile / 8];
            tiles::by_lines<tile / 8, DIMS / 16, PARTS, true>(x, k, tiles::Lines<Queries::apart, Queries::part>{queries});
            tiles::by_lines<tile / 8, VDIMS / 16, PARTS, true>(dp, v, tiles::Lines<Grads::apart, Grads::part>{grads});
            const bool checked = MASKED || SEGMENTED || top + ROWS > count || first < shared->all_from || first >= shared->all_to;
            #pragma unroll
            for (i32 i = 0; i < tile / 2; i++) {
                const i32 c = i / 4 * 8 + col + i % 2;
                const i32 r = first + i / 4 * 8 + col + i % 2, j = j0 + i % 4 / 2 * 8;
                f32 t = x[i / 4].at[i % 4], f = 1;
                if (checked) t = masked_product(p, b, h, r, j, t);
                f32 w = weight(t, lse[c], lse[c] * (f32)LOG2E, unit);
                if (checked && t == (f32)-INFINITE) w = 0;
#if DROPS
                if (w != 0) f = factor_of(p, b, h, r, j);
#endif
                const f32 ds = w * (dp[i / 4].at[i % 4] * f - delta[c]);
                dp[i / 4].at[i % 4] = checked && w == 0 ? 0 : ds;
                x[i / 4].at[i % 4] = w * f;
            }
            {
                const tiles::Made<tile / 16, MADE> made(x);
                tiles::by_columns<VDIMS / 8, tile / 16, MADE, PARTS, Grads::apart, Grads::part>(dv, made, grads);
            }
            {
                const tiles::Made<tile / 16, MADE> made(dp);
                tiles::by_columns<DIMS / 8, tile / 16, MADE, PARTS, Queries::apart, Queries::part>(dk, made, queries);
            }
            SYNC();
        }
    }
    #pragma unroll
    for (i32 half = 0; half < 2; half++) {
        const i32 j = j0 + half * 8;
        if (j >= count) continue;
        #pragma unroll
        for (i32 i = 0; i < DIMS / 4; i++) {
            const i32 d = i / 2 * 8 + col + i % 2;
            if (d < DIM) element<A>(p.dk, place4(p.dk, b, kv, j) + d * p.dk.strides[3]) = dk[i / 2].at[half * 2 + i % 2] * (f32)p.scale;
        }
        #pragma unroll
        for (i32 i = 0; i < VDIMS / 4; i++) {
            const i32 d = i / 2 * 8 + col + i % 2;
            if (d < VDIM) element<A>(p.dv, place4(p.dv, b, kv, j) + d * p.dv.strides[3]) = dv[i / 2].at[half * 2 + i % 2];
        }
    }
}
#endif
