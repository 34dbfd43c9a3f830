//! Pooling against plain loops, gradients against the adjoint identity, splits against the whole.

use crate::conv::flat;
use crate::testing::{Rng, assert_close, naive_index};
use shard_kernels::conv::Taps;
use shard_kernels::pool::{
    Divisor, Plane, adaptive_max_pool, avg_pool, avg_pool_grad, gather_at, max_pool, max_pool_grad,
};
use shard_kernels::{Real, View, ViewMut};

struct Case {
    x: Vec<usize>,
    y: Vec<usize>,
    kernel: Vec<usize>,
    window: Taps,
}

impl Case {
    fn random(rng: &mut Rng) -> Self {
        let nd = rng.within(1, 3);
        let lead = [rng.within(0, 3).min(2), rng.within(1, 3)];
        let (mut x, mut y, mut kernel) = (lead.to_vec(), lead.to_vec(), vec![]);
        let (mut stride, mut dilation, mut origin) = (vec![], vec![], vec![]);
        for d in 0..nd {
            x.push(rng.within(0, 8));
            kernel.push(rng.within(1, 3));
            stride.push(rng.within(1, 4));
            dilation.push(rng.within(1, 2));
            origin.push(-(rng.within(0, 2) as isize));
            y.push((x[d + 2] / stride[d] + 2).saturating_sub(rng.within(0, 2)));
        }
        Self {
            x,
            y,
            kernel,
            window: Taps::new(&stride, &dilation, &origin),
        }
    }

    /// Input indexes of the window of output `o`, in window order.
    fn inputs(&self, taps: &[Vec<usize>], o: &[usize]) -> Vec<Vec<usize>> {
        let inside = |k: &Vec<usize>| {
            let mut i = Vec::with_capacity(o.len());
            i.extend_from_slice(&o[..2]);
            for d in 0..k.len() {
                let p = (o[d + 2] * self.window.stride[d] + k[d] * self.window.dilation[d])
                    as isize
                    + self.window.origin[d];
                i.push(usize::try_from(p).ok().filter(|p| *p < self.x[d + 2])?);
            }
            Some(i)
        };
        taps.iter().filter_map(inside).collect()
    }

    fn counts(&self, rng: &mut Rng) -> Vec<Vec<usize>> {
        self.y[2..]
            .iter()
            .map(|&n| (0..n).map(|_| rng.within(1, 4)).collect())
            .collect()
    }
}

fn size(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn random_max<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..150 {
        let case = Case::random(&mut rng);
        // Few distinct values, so that ties are common.
        let x: Vec<T> = (0..size(&case.x))
            .map(|_| T::of(rng.within(0, 4) as f64))
            .collect();
        let plane = Plane::new(&vec![0; case.kernel.len()], &case.x[2..]);
        let (mut y, mut index) = (vec![T::nan(); size(&case.y)], vec![-7i64; size(&case.y)]);
        let xv = View::contiguous(&x, &case.x);
        let (mut yv, mut iv) = (
            ViewMut::contiguous(&mut y, &case.y),
            ViewMut::contiguous(&mut index, &case.y),
        );
        max_pool(&xv, &mut yv, &mut iv, &case.kernel, &case.window, &plane);
        let dy = rng.vec::<T>(y.len());
        let mut dx_exact = vec![0.0; x.len()];
        let taps = naive_index(&case.kernel);
        for (o, at) in naive_index(&case.y).iter().enumerate() {
            let mut best = (f64::NEG_INFINITY, -1);
            for i in case.inputs(&taps, at) {
                let v = xv.get(&i).wide();
                if v > best.0 {
                    best = (v, flat(&case.x[2..], &i[2..]) as i64);
                }
            }
            assert_eq!((y[o].wide(), index[o]), best);
            if best.1 >= 0 {
                dx_exact[flat(&case.x[..2], &at[..2]) * size(&case.x[2..]) + best.1 as usize] +=
                    dy[o].wide();
            }
        }
        let mut dx = vec![T::nan(); x.len()];
        let (dyv, iv) = (
            View::contiguous(&dy, &case.y),
            View::contiguous(&index, &case.y),
        );
        max_pool_grad(
            &dyv,
            &iv,
            &mut ViewMut::contiguous(&mut dx, &case.x),
            &plane,
        );
        assert_close(&dx, &dx_exact, 1e-5);
        let mut again = vec![T::nan(); y.len()];
        gather_at(
            &xv,
            &iv,
            &mut ViewMut::contiguous(&mut again, &case.y),
            &plane,
        );
        for (a, (y, i)) in again.iter().zip(y.iter().zip(&index)) {
            assert_eq!(*a, if *i < 0 { T::zero() } else { *y });
        }
    }
}

fn random_avg<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for round in 0..150 {
        let case = Case::random(&mut rng);
        let (x, dy) = (rng.vec::<T>(size(&case.x)), rng.vec::<T>(size(&case.y)));
        let counts = case.counts(&mut rng);
        let divisor = if round % 4 == 0 {
            Divisor::Fixed(2.5)
        } else {
            Divisor::Counts(&counts)
        };
        let by = |at: &[usize]| match divisor {
            Divisor::Fixed(v) => v,
            Divisor::Counts(_) => at[2..]
                .iter()
                .zip(&counts)
                .map(|(o, c)| c[*o] as f64)
                .product(),
        };
        let xv = View::contiguous(&x, &case.x);
        let (mut y_exact, mut dx_exact) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        let taps = naive_index(&case.kernel);
        for (o, at) in naive_index(&case.y).iter().enumerate() {
            for i in case.inputs(&taps, at) {
                y_exact[o] += xv.get(&i).wide() / by(at);
                dx_exact[flat(&case.x, &i)] += dy[o].wide() / by(at);
            }
        }
        let (mut y, mut dx) = (vec![T::nan(); dy.len()], vec![T::nan(); x.len()]);
        avg_pool(
            &xv,
            &mut ViewMut::contiguous(&mut y, &case.y),
            &case.kernel,
            &case.window,
            divisor,
        );
        let (dyv, mut dxv) = (
            View::contiguous(&dy, &case.y),
            ViewMut::contiguous(&mut dx, &case.x),
        );
        avg_pool_grad(&dyv, &mut dxv, &case.kernel, &case.window, divisor);
        assert_close(&y, &y_exact, 1e-5);
        assert_close(&dx, &dx_exact, 1e-5);
    }
}

#[test]
fn max_pools_match_plain_loops() {
    random_max::<f64>(1);
    random_max::<f32>(2);
}

#[test]
fn avg_pools_match_plain_loops() {
    random_avg::<f64>(3);
    random_avg::<f32>(4);
}

/// Windows of equal extents are those of the other kernel; NaN wins; a slab gives its part.
#[test]
fn adaptive_windows_match_sliding_ones() {
    let mut rng = Rng::new(9);
    let (shape, out) = ([2, 2, 6, 9], [2, 2, 3, 3]);
    let mut x = rng.vec::<f64>(size(&shape));
    x[17] = f64::NAN;
    let whole = View::contiguous(&x, &shape);
    let sliding = {
        let (mut y, mut index) = (vec![0.0; size(&out)], vec![0i64; size(&out)]);
        max_pool(
            &whole,
            &mut ViewMut::contiguous(&mut y, &out),
            &mut ViewMut::contiguous(&mut index, &out),
            &[2, 3],
            &Taps::new(&[2, 3], &[1, 1], &[0, 0]),
            &Plane::new(&[0, 0], &shape[2..]),
        );
        (y, index)
    };
    let adaptive = |x: &View<'_, f64>, out: &[usize], windows: &[Vec<_>], start: isize| {
        let (mut y, mut index) = (vec![0.0; size(out)], vec![0i64; size(out)]);
        adaptive_max_pool(
            x,
            &mut ViewMut::contiguous(&mut y, out),
            &mut ViewMut::contiguous(&mut index, out),
            windows,
            &Plane::new(&[start, 0], &shape[2..]),
        );
        (y, index)
    };
    let columns = vec![0..3, 3..6, 6..9];
    let (y, index) = adaptive(&whole, &out, &[vec![0..2, 2..4, 4..6], columns.clone()], 0);
    assert_eq!(index, sliding.1);
    assert!(
        y.iter()
            .zip(&sliding.0)
            .all(|(a, b)| a == b || a.is_nan() && b.is_nan())
    );
    let slab = whole.sub_box(&[0, 0, 2, 0], &[2, 2, 4, 9]);
    let (_, part) = adaptive(&slab, &[2, 2, 2, 3], &[vec![0..2, 2..4], columns], 2);
    let expected = View::contiguous(&index, &out).sub_box(&[0, 0, 1, 0], &[2, 2, 2, 3]);
    assert_eq!(part, expected.to_vec());
}

/// A slab with its halo gives its part of the whole: values, global indexes and gradients.
#[test]
fn slabs_agree_with_the_whole() {
    let mut rng = Rng::new(5);
    let (h, w) = (11, 9);
    let x = rng.vec::<f64>(2 * h * w);
    let whole = View::contiguous(&x, &[1, 2, h, w]);
    let window = Taps::new(&[2, 1], &[1, 1], &[-1, -1]);
    let out = [1, 2, 6, 9];
    let pool = |x: &View<'_, f64>, out: &[usize; 4], window: &Taps, plane: &Plane| {
        let (mut y, mut index) = (vec![0.0; size(out)], vec![0i64; size(out)]);
        let (mut yv, mut iv) = (
            ViewMut::contiguous(&mut y, out),
            ViewMut::contiguous(&mut index, out),
        );
        max_pool(x, &mut yv, &mut iv, &[3, 3], window, plane);
        (y, index)
    };
    let (y, index) = pool(&whole, &out, &window, &Plane::new(&[0, 0], &[h, w]));

    // Output rows 2..5 and columns 4..9 need input rows 3..10 and columns 3..9.
    let slab = whole.sub_box(&[0, 0, 3, 3], &[1, 2, 7, 6]);
    let part = [1, 2, 3, 5];
    let (y_part, index_part) = pool(
        &slab,
        &part,
        &Taps::new(&[2, 1], &[1, 1], &[0, 0]),
        &Plane::new(&[3, 3], &[h, w]),
    );
    let (yv, iv) = (View::contiguous(&y, &out), View::contiguous(&index, &out));
    assert_eq!(y_part, yv.sub_box(&[0, 0, 2, 4], &part).to_vec());
    assert_eq!(index_part, iv.sub_box(&[0, 0, 2, 4], &part).to_vec());

    let dy = rng.vec::<f64>(y.len());
    let dyv = View::contiguous(&dy, &out);
    let mut dx = vec![0.0; x.len()];
    max_pool_grad(
        &dyv,
        &iv,
        &mut ViewMut::contiguous(&mut dx, &[1, 2, h, w]),
        &Plane::new(&[0, 0], &[h, w]),
    );
    let mut dx_part = vec![0.0; 2 * 4 * 3];
    let (lead, tail) = ([0, 0, 1, 0], [1, 2, 5, 9]);
    max_pool_grad(
        &dyv.sub_box(&lead, &tail),
        &iv.sub_box(&lead, &tail),
        &mut ViewMut::contiguous(&mut dx_part, &[1, 2, 4, 3]),
        &Plane::new(&[4, 2], &[h, w]),
    );
    let expected = View::contiguous(&dx, &[1, 2, h, w])
        .sub_box(&[0, 0, 4, 2], &[1, 2, 4, 3])
        .to_vec();
    assert_eq!(dx_part, expected);
}

#[test]
fn nan_wins_padding_never_does() {
    let x = [
        -5.0f32,
        f32::NAN,
        -1.0,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
    ];
    let (mut y, mut index) = ([0.0f32; 3], [0i64; 3]);
    let shape = [1, 1, 3];
    // The slab carries two elements of padding on its left that are not part of the plane.
    let padded = [100.0, 100.0, x[0], x[1], x[2], x[3], x[4]];
    max_pool(
        &View::contiguous(&padded, &[1, 1, 7]),
        &mut ViewMut::contiguous(&mut y, &shape),
        &mut ViewMut::contiguous(&mut index, &shape),
        &[3],
        &Taps::new(&[2], &[1], &[0]),
        &Plane::new(&[-2], &[5]),
    );
    assert_eq!((y[0], index[0]), (-5.0, 0));
    assert!(y[1].is_nan() && index[1] == 1);
    assert_eq!((y[2], index[2]), (-1.0, 2));
}
