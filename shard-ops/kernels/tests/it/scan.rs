use shard_kernels::scan::*;
use shard_kernels::{View, ViewMut};

use crate::testing::{Rng, naive_index};

/// Lines of a shape: for each place of the other dims, the indices along the dim.
fn lines(shape: &[usize], dim: usize) -> Vec<Vec<Vec<usize>>> {
    let mut outer = shape.to_vec();
    outer.remove(dim);
    let line = |at: &Vec<usize>| {
        let of = |i| {
            let mut at = at.clone();
            at.insert(dim, i);
            at
        };
        (0..shape[dim]).map(of).collect()
    };
    naive_index(&outer).iter().map(line).collect()
}

/// Random views of one to three dims, a dim, and where to cut it.
fn views(seed: u64, mut test: impl FnMut(&mut Rng, Vec<usize>, Vec<usize>, usize, usize)) {
    let mut rng = Rng::new(seed);
    for _ in 0..60 {
        let nd = rng.within(1, 3);
        let shape: Vec<usize> = (0..nd).map(|_| rng.within(0, 7)).collect();
        let mut order: Vec<usize> = (0..nd).collect();
        for i in (1..nd).rev() {
            order.swap(i, rng.within(0, i));
        }
        let dim = rng.within(0, nd - 1);
        let cut = rng.within(0, shape[order[dim]]);
        test(&mut rng, shape, order, dim, cut);
    }
}

/// The parts of a view before and after a cut.
fn parts<'a, T>(x: &View<'a, T>, dim: usize, cut: usize) -> [View<'a, T>; 2] {
    let (mut start, mut first) = (vec![0; x.ndim()], x.shape().to_vec());
    let mut rest = first.clone();
    (first[dim], start[dim], rest[dim]) = (cut, cut, rest[dim] - cut);
    [
        x.sub_box(&vec![0; x.ndim()], &first),
        x.sub_box(&start, &rest),
    ]
}

#[test]
fn running_values_go_on_from_part_to_part() {
    views(1, |rng, shape, order, dim, cut| {
        let numbers: Vec<i32> = (0..shape.iter().product())
            .map(|_| rng.within(0, 6) as i32 - 3)
            .collect();
        let x = View::contiguous(&numbers, &shape).permute(&order);
        let floating: Vec<f64> = numbers.iter().map(|&x| f64::from(x)).collect();
        let f = View::contiguous(&floating, &shape).permute(&order);
        let all = lines(x.shape(), dim);
        for backwards in [false, true] {
            for op in [Scan::Sum, Scan::Prod, Scan::LogSumExp] {
                let mut pieces = parts(&f, dim, cut);
                let mut whole_pieces = parts(&x, dim, cut);
                if backwards {
                    pieces.reverse();
                    whole_pieces.reverse();
                }
                let mut states = vec![op.float_identity(); all.len()];
                let mut whole_states = vec![op.whole_identity(); all.len()];
                let mut found = vec![Vec::new(); all.len()];
                for (f, x) in pieces.iter().zip(&whole_pieces) {
                    let mut y = vec![f64::NAN; f.len()];
                    let shape = f.shape().to_vec();
                    floats(op, backwards, f, dim, &mut states.clone(), None);
                    let to = &mut ViewMut::contiguous(&mut y, &shape);
                    floats(op, backwards, f, dim, &mut states, Some(to));
                    let mut z = vec![0; f.len()];
                    if op != Scan::LogSumExp {
                        let to = &mut ViewMut::contiguous(&mut z, &shape);
                        whole(op, backwards, x, dim, &mut whole_states, Some(to));
                        let same = y.iter().zip(&z).all(|(&y, &z)| y == z as f64);
                        assert!(same, "{op:?}: {y:?} and {z:?}");
                    }
                    let y = View::contiguous(&y, &shape);
                    let mut part = lines(&shape, dim);
                    for (line, found) in part.iter_mut().zip(&mut found) {
                        if backwards {
                            line.reverse();
                        }
                        found.extend(line.iter().map(|at| y.get(at)));
                    }
                }
                for (line, (found, state)) in all.iter().zip(found.iter().zip(&states)) {
                    let mut line: Vec<f64> = line.iter().map(|at| f.get(at)).collect();
                    if backwards {
                        line.reverse();
                    }
                    for (i, found) in found.iter().enumerate() {
                        let expected = match op {
                            Scan::Sum => line[..=i].iter().sum::<f64>(),
                            Scan::Prod => line[..=i].iter().product(),
                            Scan::LogSumExp => line[..=i].iter().map(|x| x.exp()).sum::<f64>().ln(),
                        };
                        assert!(
                            (found - expected).abs() < 1e-12,
                            "{op:?} at {i} of {line:?}"
                        );
                    }
                    assert_eq!(*state, *found.last().unwrap_or(&op.float_identity()));
                }
            }
        }
    });
}

#[test]
fn of_equal_extremes_the_last_is_found_and_nan_stays() {
    let x = [1.0_f32, 3.0, 3.0, 2.0, f32::NAN, 5.0, f32::NAN, 0.0];
    let mut states = [Extreme::none()];
    let (mut values, mut indices) = ([9.0; 8], [9; 8]);
    let out = (
        &mut ViewMut::contiguous(&mut values, &[8]),
        &mut ViewMut::contiguous(&mut indices, &[8]),
    );
    extremes(
        true,
        &View::contiguous(&x, &[8]),
        0,
        100,
        &mut states,
        Some(out),
    );
    assert_eq!(indices, [100, 101, 102, 102, 104, 104, 106, 106]);
    assert_eq!(values[..4], [1.0, 3.0, 3.0, 3.0]);
    assert!(values[4..].iter().all(|v| v.is_nan()));
    assert_eq!(states[0].index, 106);
    let mut small = [Extreme::none()];
    extremes(
        false,
        &View::contiguous(&x[..4], &[4]),
        0,
        0,
        &mut small,
        None,
    );
    assert_eq!(
        small,
        [Extreme {
            value: 1.0,
            index: 0
        }]
    );
    // Parts are joined as elements are.
    let none = Extreme::none();
    assert_eq!(none.then(small[0], true), small[0]);
    assert_eq!(small[0].then(none, true), small[0]);
}

#[test]
fn runs_are_summed_where_they_begin() {
    let x = [1.0_f64, 2.0, 4.0, 8.0, 16.0, 32.0];
    let index = [0_i64, 0, 2, 2, 2, 5];
    let mut y = [9.0; 6];
    let mut states = [RunSum::default()];
    // In two parts, the later first.
    for (from, to) in [(3, 6), (0, 3)] {
        let n = to - from;
        let x = View::contiguous(&x[from..to], &[n]);
        let index = View::contiguous(&index[from..to], &[n]);
        let mut total = [RunSum::default()];
        runs(&x, &index, 0, from as i64, &mut total, None);
        let after = states[0].then(total[0]);
        let y = &mut ViewMut::contiguous(&mut y[from..to], &[n]);
        runs(&x, &index, 0, from as i64, &mut states, Some(y));
        assert_eq!(states, [after]);
    }
    assert_eq!(y, [3.0, 0.0, 28.0, 0.0, 0.0, 32.0]);
}

/// Lines that are runs, as many as go side by side and some more, of whole blocks and with a rest.
#[test]
fn lines_side_by_side_are_what_each_is_alone() {
    for (lines, len) in [(8, 4), (8, 11), (17, 9), (9, 3)] {
        let x: Vec<f32> = (0..lines * len).map(|i| (i * 37 % 101) as f32).collect();
        for backwards in [false, true] {
            let (mut y, mut states) = (vec![0.0; x.len()], vec![0.5; lines]);
            let shape = [lines, len];
            let (from, to) = (
                View::contiguous(&x, &shape),
                &mut ViewMut::contiguous(&mut y, &shape),
            );
            floats(Scan::Sum, backwards, &from, 1, &mut states, Some(to));
            for (l, (x, y)) in x.chunks(len).zip(y.chunks(len)).enumerate() {
                for (i, y) in y.iter().enumerate() {
                    let terms = if backwards { &x[i..] } else { &x[..=i] };
                    assert_eq!(*y, 0.5 + terms.iter().sum::<f32>(), "line {l}, {i}");
                }
                assert_eq!(states[l], 0.5 + f64::from(x.iter().sum::<f32>()));
            }
        }
    }
}

/// Lines of many elements that change the extreme seldom or never, with equal ones and NaN among them.
#[test]
fn extremes_of_long_lines_are_found_one_after_the_other() {
    let (lines, n) = (6, 200);
    let x: Vec<f32> = (0..lines * n)
        .map(|i| match (i / n, i % n) {
            (0, k) => ((k * 37) % 101) as f32,
            (1, k) => k as f32,
            (2, k) => -(k as f32),
            (3, 70) => f32::NAN,
            (4, _) => 2.5,
            (_, k) => ((k * 7919) % 13) as f32 - 6.0,
        })
        .collect();
    for largest in [true, false] {
        let mut states = vec![Extreme::none(); lines];
        states[5] = Extreme {
            value: if largest { 100.0 } else { -100.0 },
            index: 3,
        };
        let mut expected = states.clone();
        let (mut values, mut indices) = (vec![9.0; lines * n], vec![9; lines * n]);
        let shape = [lines, n];
        let out = (
            &mut ViewMut::contiguous(&mut values, &shape),
            &mut ViewMut::contiguous(&mut indices, &shape),
        );
        let x = View::contiguous(&x, &shape);
        extremes(largest, &x, 1, 50, &mut states, Some(out));
        for (i, state) in expected.iter_mut().enumerate() {
            for k in 0..n {
                let (value, index) = (x.get(&[i, k]), 50 + k as i64);
                *state = state.then(Extreme { value, index }, largest);
                let found = (values[i * n + k], indices[i * n + k]);
                let same = found.0 == state.value || found.0.is_nan() && state.value.is_nan();
                assert!(
                    same && found.1 == state.index,
                    "{largest} {i} {k}: {found:?}"
                );
            }
            assert_eq!(states[i].index, state.index);
        }
    }
}

/// A recurrence as it is defined, of one line in the order in which it goes.
fn recurring(adjoint: bool, a: &[f64], b: &[f64], mut h: f64) -> (Vec<f64>, f64) {
    let next = |(a, b): (&f64, &f64)| {
        if adjoint {
            let y = h + b;
            h = a * y;
            y
        } else {
            h = a * h + b;
            h
        }
    };
    (a.iter().zip(b).map(next).collect(), h)
}

/// What a factor of a line is: one for each element, for each line, for each element of all lines, or the same for all.
fn factors<'a>(kind: usize, numbers: &'a [f64], shape: &[usize], dim: usize) -> View<'a, f64> {
    let mut of = shape.to_vec();
    match kind {
        0 => {}
        1 => of[dim] = 1,
        2 => of.iter_mut().enumerate().for_each(|(d, n)| {
            if d != dim {
                *n = 1;
            }
        }),
        _ => of.fill(1),
    }
    let view = View::contiguous(&numbers[..of.iter().product()], &of);
    view.broadcast_to(shape).unwrap()
}

/// Lines of every kind of memory, in two parts, with factors that are the same along lines, across them, or neither.
#[test]
fn recurrences_go_on_from_part_to_part() {
    let mut kinds = 0..;
    views(7, |rng, shape, order, dim, cut| {
        let mut numbers = || -> Vec<f64> {
            let n = shape.iter().map(|&n| n.max(1)).product();
            (0..n)
                .map(|_| rng.within(0, 8) as f64 / 4.0 - 1.0)
                .collect()
        };
        let (of_a, of_b) = (numbers(), numbers());
        let b = View::contiguous(&of_b[..shape.iter().product()], &shape).permute(&order);
        let kind = kinds.next().unwrap() % 5;
        let a = match kind {
            4 => View::contiguous(&of_a[..b.len()], &shape).permute(&order),
            _ => factors(kind, &of_a, b.shape(), dim),
        };
        check(&a, &b, dim, cut);
    });
    // Enough lines to go side by side, as runs of memory or along others.
    for (shape, dim) in [([19, 13], 1), ([13, 19], 0), ([5, 300], 0), ([9, 2], 1)] {
        let number = |i: usize| (i * 37 % 101) as f64 / 50.0 - 1.0;
        let n = shape[0] * shape[1];
        let (of_a, of_b): (Vec<_>, Vec<_>) = (0..n).map(|i| (number(i), number(i * i))).unzip();
        for kind in 0..4 {
            let a = factors(kind, &of_a, &shape, dim);
            check(&a, &View::contiguous(&of_b, &shape), dim, shape[dim] / 3);
        }
    }
}

/// Both forms of a recurrence, in both directions, in `f64` and in `f32`.
fn check(a: &View<'_, f64>, b: &View<'_, f64>, dim: usize, cut: usize) {
    let all = lines(b.shape(), dim);
    for (backwards, adjoint) in [(false, false), (true, true), (true, false), (false, true)] {
        let of = Recurrence { backwards, adjoint };
        let mut pieces: Vec<_> = parts(a, dim, cut)
            .into_iter()
            .zip(parts(b, dim, cut))
            .collect();
        if backwards {
            pieces.reverse();
        }
        let start = |line: usize| line as f64 / 2.0 - 0.5;
        let mut states: Vec<f64> = (0..all.len()).map(start).collect();
        let mut found = vec![Vec::new(); all.len()];
        for (a, b) in &pieces {
            let shape = b.shape().to_vec();
            let (mut y, mut small) = (vec![f64::NAN; b.len()], vec![f32::NAN; b.len()]);
            // A part is a factor and what it makes of nothing.
            let (mut of_nothing, mut product) = (vec![0.0; all.len()], vec![1.0; all.len()]);
            recurrence(of, a, b, dim, &mut of_nothing, None);
            floats(Scan::Prod, backwards, a, dim, &mut product, None);
            let joined = states.iter().zip(product.iter().zip(&of_nothing));
            let joined: Vec<f64> = joined
                .map(|(&h, (&factor, &of_nothing))| Recurrence::join(h, factor, of_nothing))
                .collect();
            let [a32, b32] = [a, b]
                .map(|of| -> Vec<f32> { of.to_vec().into_iter().map(|x| x as f32).collect() });
            let [a32, b32] = [&a32, &b32].map(|of| View::contiguous(of, &shape));
            let to = &mut ViewMut::contiguous(&mut small, &shape);
            recurrence(of, &a32, &b32, dim, &mut states.clone(), Some(to));
            let to = &mut ViewMut::contiguous(&mut y, &shape);
            recurrence(of, a, b, dim, &mut states, Some(to));
            let is_near = |a: f32, b: f64| (f64::from(a) - b).abs() <= 1e-5 * (1.0 + b.abs());
            let far = small.iter().zip(&y).find(|(a, b)| !is_near(**a, **b));
            assert!(far.is_none(), "{far:?} of {shape:?}, {of:?}");
            assert!(
                joined
                    .iter()
                    .zip(&states)
                    .all(|(a, b)| (a - b).abs() < 1e-12)
            );
            let y = View::contiguous(&y, &shape);
            for (line, found) in lines(&shape, dim).iter_mut().zip(&mut found) {
                if backwards {
                    line.reverse();
                }
                found.extend(line.iter().map(|at| y.get(at)));
            }
        }
        for (k, line) in all.iter().enumerate() {
            let of = |of: &View<'_, f64>| -> Vec<f64> {
                let mut line: Vec<f64> = line.iter().map(|at| of.get(at)).collect();
                if backwards {
                    line.reverse();
                }
                line
            };
            let expected = recurring(adjoint, &of(a), &of(b), start(k));
            assert_eq!(
                (&found[k], states[k]),
                (&expected.0, expected.1),
                "line {k}"
            );
        }
    }
}

/// Factors whose product overflows make nothing of a state that is nothing.
#[test]
fn a_state_of_nothing_stays_so_whatever_its_factors_come_to() {
    let (a, b) = ([1e200, 1e200, 1e200], [0.0; 3]);
    let [a, b] = [&a, &b].map(|of| View::contiguous(of, &[3]));
    let forwards = Recurrence {
        backwards: false,
        adjoint: false,
    };
    let (mut of_nothing, mut product) = ([0.0], [1.0]);
    recurrence(forwards, &a, &b, 0, &mut of_nothing, None);
    floats(Scan::Prod, false, &a, 0, &mut product, None);
    assert_eq!((of_nothing, product), ([0.0], [f64::INFINITY]));
    assert_eq!(Recurrence::join(0.0, product[0], of_nothing[0]), 0.0);
}
