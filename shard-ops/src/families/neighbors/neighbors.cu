// Neighbour search. T: the type of coordinates and distances; DIM: coordinates of a point; TILE: points of a tile.
//
// Compiled without fused operations: squared distances are sum (x_d - y_d)^2 in the order of dims, each operation rounded, and
// equal the host's bit for bit. So do neighbours, ordered by (squared distance, global index), and gradients, summed in the
// same order.
struct Neighbors {
    View queries, points;            // (n, DIM)
    View first, second, third;       // distances, indices and counts, or what stands for them
    View g;                          // the cotangent of the distances
    View by_points;                  // (points, DIM)
    View query_clouds, point_clouds; // which cloud each is of, if by_cloud
    Positions query_at, point_at;
    u64 distances, indices;          // of rows of k: squared distances of T, and indices
    u64 offsets, starts;             // where each query's hits of a block begin, and where they go
    u64 by_queries;                  // gradients of the queries, rows of DIM
    f64 limit;                       // no point counts that is farther, by squared distance
    i64 k, bounded, by_cloud, is_part;
};

#define SOME(n) ((n) > 0 ? (n) : 1)
#define MISSING 0x7fffffffffffffffll
#define NOTHING T(at_bits<f64>(0x7ff8000000000000ull))
#define SQUARED ((T*)p.distances)
#define INDEX ((i64*)p.indices)

// Whether a point comes before another: it is nearer, or as near with a lower index; NaN is farthest.
DEVICE bool precedes(T a, i64 i, T b, i64 j) {
    if (a < b) return true;
    if (a > b) return false;
    const bool no_a = a != a, no_b = b != b;
    return no_a == no_b ? i < j : no_b;
}

// Inserts a point into an ordered row, if it belongs there.
DEVICE void offer(T* row, i64* index, i64 k, T d, i64 i) {
    i64 place = k - 1;
    if (!precedes(d, i, row[place], index[place])) return;
    for (; place > 0 && precedes(d, i, row[place - 1], index[place - 1]); place--) {
        row[place] = row[place - 1];
        index[place] = index[place - 1];
    }
    row[place] = d;
    index[place] = i;
}

DEVICE T coordinate(const View& v, i64 i, i64 d) { return element<T>(v, i * v.strides[0] + d * v.strides[1]); }

DEVICE i64 cloud_of(const View& clouds, i64 i) { return element<i64>(clouds, i * clouds.strides[0]); }

DEVICE T squared(const Neighbors& p, i64 query, i64 point) {
    T sum = 0;
    for (i32 d = 0; d < DIM; d++) {
        const T apart = coordinate(p.queries, query, d) - coordinate(p.points, point, d);
        sum = sum + apart * apart;
    }
    return sum;
}

KERNEL(start, Neighbors) {
    const i64 n = p.queries.shape[0] * p.k;
    for (i64 i = first_thread(); i < n; i += threads()) {
        SQUARED[i] = NOTHING;
        INDEX[i] = MISSING;
    }
}

// A thread has a query; tiles of points stream past.
BLOCK_KERNEL(fold, Neighbors) {
    SHARED(T, tile, SOME(TILE * DIM));
    SHARED(i64, clouds, TILE);
    const i64 query = (i64)blockIdx.x * blockDim.x + threadIdx.x, n = p.points.shape[0];
    const bool mine = query < p.queries.shape[0];
    T at_query[SOME(DIM)];
    const i64 own = mine && p.by_cloud ? cloud_of(p.query_clouds, query) : 0;
    if (mine)
        for (i32 d = 0; d < DIM; d++) at_query[d] = coordinate(p.queries, query, d);
    T* row = SQUARED + query * p.k;
    i64* index = INDEX + query * p.k;
    for (i64 first = 0; first < n; first += TILE) {
        const i64 count = n - first < TILE ? n - first : TILE;
        for (i64 e = threadIdx.x; e < count * DIM; e += blockDim.x) tile[e] = coordinate(p.points, first + e / SOME(DIM), e % SOME(DIM));
        if (p.by_cloud)
            for (i64 j = threadIdx.x; j < count; j += blockDim.x) clouds[j] = cloud_of(p.point_clouds, first + j);
        SYNC();
        if (mine)
            for (i64 j = 0; j < count; j++) {
                if (p.by_cloud && clouds[j] != own) continue;
                T sum = 0;
                for (i32 d = 0; d < DIM; d++) {
                    const T apart = at_query[d] - tile[j * DIM + d];
                    sum = sum + apart * apart;
                }
                // NaN is within no radius.
                if (!p.bounded || sum <= (T)p.limit) offer(row, index, p.k, sum, at(p.point_at, first + j));
            }
        SYNC();
    }
}

// Merges the rows of parts of the points: first and second are (parts, queries, k).
KERNEL(merge, Neighbors) {
    const i64 n = p.first.shape[1];
    for (i64 i = first_thread(); i < n; i += threads())
        for (i64 part = 0; part < p.first.shape[0]; part++)
            for (i64 j = 0; j < p.k; j++) {
                const T d = element<T>(p.first, part * p.first.strides[0] + i * p.first.strides[1] + j * p.first.strides[2]);
                offer(SQUARED + i * p.k, INDEX + i * p.k, p.k, d,
                      element<i64>(p.second, part * p.second.strides[0] + i * p.second.strides[1] + j * p.second.strides[2]));
            }
}

// Writes distances and indices to first and second; for a part of the points, values that merge without rounding.
KERNEL(finish, Neighbors) {
    const i64 n = numel(p.first);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const bool none = INDEX[i] == MISSING;
        T d = SQUARED[i];
        if (!p.is_part) d = none ? T(INFINITE) : (T)sqrt(d);
        element<T>(p.first, place(p.first, i)) = d;
        element<i64>(p.second, place(p.second, i)) = none && !p.is_part ? -1 : INDEX[i];
    }
}

// Writes to third how many entries of each row are points.
KERNEL(count, Neighbors) {
    const i64 n = p.third.shape[0];
    for (i64 i = first_thread(); i < n; i += threads()) {
        i64 count = 0;
        for (i64 j = 0; j < p.k; j++) count += INDEX[i * p.k + j] != MISSING;
        element<i64>(p.third, i * p.third.strides[0]) = count;
    }
}

// Whether a query meets a point, and that is within the limit.
DEVICE bool hits_point(const Neighbors& p, i64 query, i64 point, T distance) {
    return distance <= (T)p.limit && (!p.by_cloud || cloud_of(p.query_clouds, query) == cloud_of(p.point_clouds, point));
}

// Writes to offsets, one after the other, how many points of a block are within the limit of each query.
KERNEL(count_hits, Neighbors) {
    const i64 n = p.queries.shape[0];
    for (i64 i = first_thread(); i < n; i += threads()) {
        i64 count = 0;
        for (i64 j = 0; j < p.points.shape[0]; j++) count += hits_point(p, i, j, squared(p, i, j));
        ((i64*)p.offsets)[i] = count;
    }
}

// Writes those points, each query's from its offset on.
KERNEL(hits, Neighbors) {
    const i64 n = p.queries.shape[0];
    for (i64 i = first_thread(); i < n; i += threads()) {
        i64 to = ((const i64*)p.offsets)[i];
        for (i64 j = 0; j < p.points.shape[0]; j++) {
            const T d = squared(p, i, j);
            if (hits_point(p, i, j, d)) {
                SQUARED[to] = d;
                INDEX[to++] = at(p.point_at, j);
            }
        }
    }
}

// Writes a block's hits to first and second as distances and (query, point), each query's from its start on.
KERNEL(place_hits, Neighbors) {
    const i64* offsets = (const i64*)p.offsets;
    for (i64 i = first_thread(); i < p.k; i += threads()) {
        i64 to = ((const i64*)p.starts)[i];
        for (i64 from = offsets[i]; from < offsets[i + 1]; from++, to++) {
            element<T>(p.first, to * p.first.strides[0]) = (T)sqrt(SQUARED[from]);
            element<i64>(p.second, to * p.second.strides[0]) = at(p.query_at, i);
            element<i64>(p.second, to * p.second.strides[0] + p.second.strides[1]) = INDEX[from];
        }
    }
}

#define POINT(i) element<i64>(p.second, (i) * p.second.strides[0] + p.second.strides[1])
#define HIT(i) element<T>(p.first, (i) * p.first.strides[0])
DEVICE void swap_hits(const Neighbors& p, i64 a, i64 b) {
    const i64 point = POINT(a);
    const T d = HIT(a);
    POINT(a) = POINT(b);
    HIT(a) = HIT(b);
    POINT(b) = point;
    HIT(b) = d;
}
// Moves the entry of a heap that begins at `low` down to its place.
DEVICE void sink(const Neighbors& p, i64 low, i64 root, i64 count) {
    for (i64 child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && POINT(low + child) < POINT(low + child + 1)) child++;
        if (POINT(low + root) >= POINT(low + child)) return;
        swap_hits(p, low + root, low + child);
    }
}
// Sorts each query's pairs by point, after several blocks; queries' rows begin at offsets.
KERNEL(sort_hits, Neighbors) {
    const i64* offsets = (const i64*)p.offsets;
    for (i64 i = first_thread(); i < p.k; i += threads()) {
        const i64 low = offsets[i], count = offsets[i + 1] - low;
        for (i64 root = count / 2 - 1; root >= 0; root--) sink(p, low, root, count);
        for (i64 end = count - 1; end > 0; end--) {
            swap_hits(p, low, low + end);
            sink(p, low, 0, end);
        }
    }
}

// The factor of a pair's contribution to the gradient, g (q - p) / |q - p|; zero where the two coincide.
DEVICE T share(T g, T distance) { return distance == 0 ? T(0) : g / distance; }

// Tables: first has distances and second has indices, (queries, k), below 0 for none.
KERNEL(table_queries, Neighbors) {
    const i64 n = p.queries.shape[0];
    for (i64 i = first_thread(); i < n; i += threads())
        for (i64 j = 0; j < p.second.shape[1]; j++) {
            const i64 index = element<i64>(p.second, i * p.second.strides[0] + j * p.second.strides[1]);
            const i64 point = index < 0 ? -1 : find(p.point_at, p.points.shape[0], index);
            if (point < 0) continue;
            const T distance = coordinate(p.first, i, j), scale = share(coordinate(p.g, i, j), distance);
            if (distance == 0) continue;
            for (i32 d = 0; d < DIM; d++)
                ((T*)p.by_queries)[i * DIM + d] += scale * (coordinate(p.queries, i, d) - coordinate(p.points, point, d));
        }
}

KERNEL(table_points, Neighbors) {
    const i64 n = p.points.shape[0];
    for (i64 point = first_thread(); point < n; point += threads()) {
        const i64 own = at(p.point_at, point);
        T sum[SOME(DIM)];
        for (i32 d = 0; d < DIM; d++) sum[d] = 0;
        for (i64 i = 0; i < p.second.shape[0]; i++)
            for (i64 j = 0; j < p.second.shape[1]; j++) {
                if (element<i64>(p.second, i * p.second.strides[0] + j * p.second.strides[1]) != own) continue;
                const T distance = coordinate(p.first, i, j), scale = share(coordinate(p.g, i, j), distance);
                if (distance == 0) continue;
                for (i32 d = 0; d < DIM; d++) sum[d] -= scale * (coordinate(p.queries, i, d) - coordinate(p.points, point, d));
            }
        for (i32 d = 0; d < DIM; d++) element<T>(p.by_points, point * p.by_points.strides[0] + d * p.by_points.strides[1]) = sum[d];
    }
}

// Pairs: second has (query, point), ascending, and first has their distances.
#define QUERY(e) element<i64>(p.second, (e) * p.second.strides[0])
KERNEL(pairs_queries, Neighbors) {
    const i64 n = p.queries.shape[0], pairs = p.second.shape[0];
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 own = at(p.query_at, i);
        i64 low = 0, high = pairs;
        while (low < high) {
            const i64 middle = low + (high - low) / 2;
            if (QUERY(middle) < own) low = middle + 1;
            else high = middle;
        }
        for (; low < pairs && QUERY(low) == own; low++) {
            const i64 point = find(p.point_at, p.points.shape[0], POINT(low));
            const T distance = HIT(low), scale = share(element<T>(p.g, low * p.g.strides[0]), distance);
            if (point < 0 || distance == 0) continue;
            for (i32 d = 0; d < DIM; d++)
                ((T*)p.by_queries)[i * DIM + d] += scale * (coordinate(p.queries, i, d) - coordinate(p.points, point, d));
        }
    }
}

KERNEL(pairs_points, Neighbors) {
    const i64 n = p.points.shape[0];
    for (i64 point = first_thread(); point < n; point += threads()) {
        const i64 own = at(p.point_at, point);
        T sum[SOME(DIM)];
        for (i32 d = 0; d < DIM; d++) sum[d] = 0;
        for (i64 e = 0; e < p.second.shape[0]; e++) {
            if (POINT(e) != own) continue;
            const i64 i = find(p.query_at, p.queries.shape[0], QUERY(e));
            const T distance = HIT(e), scale = share(element<T>(p.g, e * p.g.strides[0]), distance);
            if (i < 0 || distance == 0) continue;
            for (i32 d = 0; d < DIM; d++) sum[d] -= scale * (coordinate(p.queries, i, d) - coordinate(p.points, point, d));
        }
        for (i32 d = 0; d < DIM; d++) element<T>(p.by_points, point * p.by_points.strides[0] + d * p.by_points.strides[1]) = sum[d];
    }
}

KERNEL(clear_queries, Neighbors) {
    const i64 n = p.queries.shape[0] * DIM;
    for (i64 i = first_thread(); i < n; i += threads()) ((T*)p.by_queries)[i] = 0;
}

// Writes the queries' gradients to first.
KERNEL(store_queries, Neighbors) {
    const i64 n = numel(p.first);
    for (i64 i = first_thread(); i < n; i += threads()) element<T>(p.first, place(p.first, i)) = ((const T*)p.by_queries)[i];
}

// Farthest point sampling. Here points are stored dim by dim, (DIM, n): queries; first: the output; second, third: operands; g:
// the best.
KERNEL(unsampled, Neighbors) {
    const i64 n = p.queries.shape[1];
    for (i64 i = first_thread(); i < n; i += threads()) {
        bool finite = true;
        for (i64 d = 0; d < p.queries.shape[0]; d++) {
            const T x = coordinate(p.queries, d, i);
            finite = finite && x - x == 0;
        }
        element<T>(p.first, i * p.first.strides[0]) = finite ? T(INFINITE) : T(-1);
    }
}

KERNEL(coordinates, Neighbors) {
    const i64 dim = p.queries.shape[0], n = numel(p.first);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const f64 best = element<f64>(p.second, i / dim * p.second.strides[0] + p.second.strides[1]);
        // The index is infinite where a cloud has no point.
        const i64 held = best < 9007199254740992.0 ? find(p.point_at, p.queries.shape[1], (i64)best) : -1;
        element<T>(p.first, place(p.first, i)) = held < 0 ? T(0) : coordinate(p.queries, i % dim, held);
    }
}

KERNEL(lower, Neighbors) {
    const i64 n = p.queries.shape[1];
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 cloud = p.by_cloud ? cloud_of(p.point_clouds, i) : 0;
        T sum = 0;
        for (i64 d = 0; d < p.queries.shape[0]; d++) {
            const T apart = coordinate(p.queries, d, i) - coordinate(p.third, cloud, d);
            sum = sum + apart * apart;
        }
        const T near = element<T>(p.second, i * p.second.strides[0]);
        const bool taken = (f64)at(p.point_at, i) == element<f64>(p.g, cloud * p.g.strides[0] + p.g.strides[1]);
        element<T>(p.first, i * p.first.strides[0]) = taken ? T(-INFINITE) : sum < near ? sum : near;
    }
}

// The largest of each cloud's distances in second and its index, in f64; a block has a cloud. No distance is NaN.
BLOCK_KERNEL(best, Neighbors) {
    SHARED(f64, values, 1024);
    SHARED(f64, indices, 1024);
    const i64 cloud = blockIdx.x;
    f64 value = -INFINITE, index = INFINITE;
    for (i64 i = threadIdx.x; i < p.second.shape[0]; i += blockDim.x) {
        if (p.by_cloud && cloud_of(p.point_clouds, i) != cloud) continue;
        const T d = element<T>(p.second, i * p.second.strides[0]);
        const f64 x = (f64)d, own = (f64)at(p.point_at, i);
        if (x > value || (x == value && own < index)) { value = x; index = own; }
    }
    values[threadIdx.x] = value;
    indices[threadIdx.x] = index;
    SYNC();
    if (threadIdx.x == 0) {
        for (u32 t = 1; t < blockDim.x; t++)
            if (values[t] > value || (values[t] == value && indices[t] < index)) { value = values[t]; index = indices[t]; }
        element<f64>(p.first, cloud * p.first.strides[0]) = value;
        element<f64>(p.first, cloud * p.first.strides[0] + p.first.strides[1]) = index;
    }
}

// The lists in second without their first entries, with the best of third appended, or -1 where there is none.
KERNEL(take, Neighbors) {
    const i64 n = numel(p.first), count = p.first.shape[1];
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 cloud = i / count, j = i % count;
        i64 next = -1;
        if (j + 1 < count) next = element<i64>(p.second, cloud * p.second.strides[0] + (j + 1) * p.second.strides[1]);
        else if (element<f64>(p.third, cloud * p.third.strides[0]) > -INFINITE)
            next = (i64)element<f64>(p.third, cloud * p.third.strides[0] + p.third.strides[1]);
        element<i64>(p.first, place(p.first, i)) = next;
    }
}
