// Products of matrices, tile by tile. T: the operands' type; W: that of the arithmetic, without a sign where they are integers; R: the result's and the bias's; TILE: a tile's side, whose square is the number of threads of a block.

// Batches are numbered in row-major order of y's leading dims. Views have rows and columns last, and are transposed already.
struct MatMul { View a, b, y, bias; i64 batches, m, n, k, biased; };

BLOCK_KERNEL(matmul, MatMul) {
    SHARED(W, left, TILE * TILE);
    SHARED(W, right, TILE * TILE);
    const i64 r = threadIdx.x / TILE, c = threadIdx.x % TILE;
    const i64 row = (i64)blockIdx.y * TILE + r, column = (i64)blockIdx.x * TILE + c;
    const i32 last = (i32)p.y.ndim - 1;
    for (i64 batch = blockIdx.z; batch < p.batches; batch += gridDim.z) {
        i64 a = 0, b = 0, y = 0, rest = batch;
        for (i32 d = last - 2; d >= 0; d--) {
            i64 q = over(rest, p.y.shape[d]), i = rest - q * p.y.shape[d];
            a += i * p.a.strides[d];
            b += i * p.b.strides[d];
            y += i * p.y.strides[d];
            rest = q;
        }
        W sum = 0;
        for (i64 k0 = 0; k0 < p.k; k0 += TILE) {
            left[threadIdx.x] = row < p.m && k0 + c < p.k
                ? widen(element<T>(p.a, a + row * p.a.strides[last - 1] + (k0 + c) * p.a.strides[last])) : W(0);
            right[threadIdx.x] = k0 + r < p.k && column < p.n
                ? widen(element<T>(p.b, b + (k0 + r) * p.b.strides[last - 1] + column * p.b.strides[last])) : W(0);
            SYNC();
            for (i64 k = 0; k < TILE; k++) sum += left[r * TILE + k] * right[k * TILE + c];
            SYNC();
        }
        if (row < p.m && column < p.n) {
            if (p.biased) sum += widen(element<R>(p.bias, column * p.bias.strides[0]));
            element<R>(p.y, y + row * p.y.strides[last - 1] + column * p.y.strides[last]) = As<R>::of(sum);
        }
    }
}
