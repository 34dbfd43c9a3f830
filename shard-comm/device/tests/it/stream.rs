use shard_device::{DType, Monoid, Strided, kernel};

/// Bytes of a destination, and of its rows, from which on it is written past the caches; the crate asserts that they are these.
const LARGE: usize = 16 << 20;
const ROW: usize = 1 << 10;

#[test]
fn large_destinations_are_written_as_small_ones() {
    // Rows of an odd length, with gaps after them in either memory.
    let (rows, row) = (1100, 4099);
    let view = |gap: usize| {
        let steps = [(row + gap) as isize, 1];
        Strided::new(1, [rows, row][..].into(), steps[..].into())
    };
    let (sv, dv) = (view(3), view(1));
    let src: Vec<f32> = (0..1 + rows * (row + 3))
        .map(|i| (i % 9973) as f32)
        .collect();
    let mut dst = vec![-1f32; 1 + rows * (row + 1)];
    assert!(4 * dst.len() >= LARGE && 4 * row >= ROW);
    let read = bytemuck::cast_slice(&src);
    let at = |i: usize, step: usize| 1 + i * step;
    kernel::copy(
        DType::F32,
        read,
        &sv,
        DType::F32,
        bytemuck::cast_slice_mut(&mut dst),
        &dv,
    );
    for i in 0..rows {
        assert_eq!(dst[at(i, row + 1)..][..row], src[at(i, row + 3)..][..row]);
        assert_eq!(dst[at(i, row + 1) - 1], -1.0);
    }
    let terms = [(read, 1), (read, 4)];
    kernel::reduce(
        Monoid::SUM,
        DType::F32,
        &terms,
        &[row as isize, 1],
        bytemuck::cast_slice_mut(&mut dst),
        &dv,
    );
    for i in 0..rows {
        let (got, from) = (&dst[at(i, row + 1)..][..row], at(i, row));
        let sums = src[from..].iter().zip(&src[from + 3..]).map(|(a, b)| a + b);
        assert!(got.iter().copied().eq(sums.take(row)), "{i}");
        assert_eq!(dst[at(i, row + 1) - 1], -1.0);
    }
}
