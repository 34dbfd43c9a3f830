use half::bf16;
use shard_kernels::pointwise::*;
use shard_kernels::{Real, View, ViewMut};

use crate::testing::{Rng, naive_index};

fn all<T: Real>() {
    let mut rng = Rng::new(5);
    type Map = fn(f64, f64) -> f64;
    let ops: [(Binary, Map); 6] = [
        (Binary::Add, |a, b| a + b),
        (Binary::Sub, |a, b| a - b),
        (Binary::Mul, |a, b| a * b),
        (Binary::Div, |a, b| a / b),
        (Binary::Maximum, f64::max),
        (Binary::Minimum, f64::min),
    ];
    for round in 0..60 {
        let shape = [rng.within(0, 4), rng.within(1, 3), rng.within(1, 40)];
        let mask = round % 8;
        let small: Vec<usize> = (0..3)
            .map(|d| if mask >> d & 1 == 1 { 1 } else { shape[d] })
            .collect();
        let count = |s: &[usize]| s.iter().product::<usize>();
        let (a, b) = (rng.vec::<T>(count(&shape)), rng.vec::<T>(count(&small)));
        // Every third time its dims lie the other way round.
        let turned = [shape[2], shape[1], shape[0]];
        let a = match round % 3 {
            0 => View::contiguous(&a, &turned).permute(&[2, 1, 0]),
            _ => View::contiguous(&a, &shape),
        };
        let b = View::contiguous(&b, &small)
            .broadcast_to(&shape)
            .expect("broadcasts");
        for (op, exact) in ops {
            for (left, right) in [(&a, &b), (&b, &a)] {
                let mut out = vec![T::nan(); count(&shape)];
                binary(op, left, right, &mut ViewMut::contiguous(&mut out, &shape));
                for (i, at) in naive_index(&shape).iter().enumerate() {
                    let expected = T::of(exact(left.get(at).wide(), right.get(at).wide()));
                    assert!(
                        (out[i] - expected).abs() <= T::epsilon() * expected.abs(),
                        "{op:?} at {at:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn binary_maps_broadcast() {
    all::<f32>();
    all::<f64>();
}

#[test]
fn nan_wins_maximum_and_minimum() {
    let (a, b) = ([f32::NAN, 1.0, 2.0], [1.0, f32::NAN, -0.5]);
    for op in [Binary::Maximum, Binary::Minimum] {
        let mut out = [0.0; 3];
        binary(
            op,
            &View::contiguous(&a, &[3]),
            &View::contiguous(&b, &[3]),
            &mut ViewMut::contiguous(&mut out, &[3]),
        );
        assert!(out[0].is_nan() && out[1].is_nan() && !out[2].is_nan());
    }
    let mut out = [0.0; 3];
    binary(
        Binary::Pow,
        &View::contiguous(&[2.0, 9.0, 4.0], &[3]),
        &View::contiguous(&[3.0, 0.5, -1.0], &[3]),
        &mut ViewMut::contiguous(&mut out, &[3]),
    );
    assert_eq!(out, [8.0, 3.0, 0.25]);
}

#[test]
fn updates_write_strided_outputs() {
    let mut data = [0.0f64; 12];
    let x = View::contiguous(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    update(
        &mut ViewMut::contiguous(&mut data, &[3, 4]).sub_box(&[1, 1], &[2, 2]),
        &x,
        |a, x| a + 2.0 * x,
    );
    assert_eq!(
        data,
        [0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 4.0, 0.0, 0.0, 6.0, 8.0, 0.0]
    );
}

#[test]
fn quotients_are_rounded_down_and_remainders_have_the_divisors_sign() {
    // PyTorch's floor_divide and remainder; 1 / 0.1 is 10, and ten times 0.1 is more than 1.
    let a = [-7.0, 7.0, 1.0, -1.0, 5.0, 0.0, 3.0];
    let b = [2.0, -2.0, 0.1, 0.1, f64::INFINITY, -3.0, 0.0];
    let of = |op| {
        let mut out = [0.0; 7];
        let [a, b] = [&a, &b].map(|x| View::contiguous(x, &[7]));
        binary(op, &a, &b, &mut ViewMut::contiguous(&mut out, &[7]));
        out
    };
    let floor = of(Binary::FloorDiv);
    assert_eq!(floor, [-4.0, -4.0, 9.0, -10.0, 0.0, 0.0, f64::INFINITY]);
    let rest = of(Binary::Remainder);
    assert_eq!(rest[..2], [1.0, -1.0]);
    assert!((rest[2] - 0.1).abs() < 1e-15 && rest[3] < 1e-15 && rest[4] == 5.0);
    assert!(rest[6].is_nan());
}

#[test]
fn maps_in_single_precision_are_those_of_double_rounded_and_alone_what_they_are_in_lines() {
    let ends = [
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        f32::INFINITY,
        f32::NAN,
        0.0,
    ];
    let some = [
        1.0,
        0.5,
        3.0,
        0.1,
        7.25,
        1e-7,
        2.5e8,
        1e20,
        88.0,
        1_234_567.0,
    ];
    let mut rng = Rng::new(31);
    let spread = rng.vec::<f32>(40).into_iter().map(|x| x * 30.0);
    let numbers: Vec<f32> = (ends.into_iter().chain(some).chain(spread))
        .flat_map(|x| [x, -x])
        .collect();
    let (a, b): (Vec<f32>, Vec<f32>) = (numbers.iter())
        .flat_map(|a| numbers.iter().map(|b| (*a, *b)))
        .unzip();
    let n = a.len();
    let wide = [&a, &b].map(|x| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    // Of what the result may be off, and of what size.
    for (op, last_places, near_zero) in [
        (Binary::Fmod, 0.0, 0.0),
        (Binary::Remainder, 0.0, 0.0),
        (Binary::FloorDiv, 1.0, 0.0),
        (Binary::Pow, 1.0, 0.0),
        (Binary::Atan2, 0.51, 0.0),
        (Binary::Hypot, 0.51, 0.0),
        (Binary::Xlogy, 0.51, 0.0),
        (Binary::LogAddExp, 0.51, 1e-9),
        (Binary::LogAddExp2, 0.51, 1e-9),
        (Binary::Copysign, 0.0, 0.0),
        (Binary::Prelu, 0.0, 0.0),
        (Binary::Zeta, 0.51, 0.0),
        (Binary::Igamma, 0.51, 0.0),
        (Binary::Igammac, 0.51, 0.0),
    ] {
        let (mut out, mut expected) = (vec![9.0f32; n], vec![9.0f64; n]);
        binary_lines(op, &a, &b, &mut out);
        binary_lines(op, &wide[0], &wide[1], &mut expected);
        for (i, (&y, &exact)) in out.iter().zip(&expected).enumerate() {
            let (a, b) = (a[i], b[i]);
            let mut alone = [9.0];
            binary_lines(op, &[a], &[b], &mut alone);
            let is_same = alone[0].to_bits() == y.to_bits() || y.is_nan() && alone[0].is_nan();
            assert!(is_same, "{op:?} of {a} and {b}: {y}, alone {}", alone[0]);
            let near = exact as f32;
            let place = f64::from(f32::EPSILON) * exact.abs().max(f64::from(f32::MIN_POSITIVE));
            let is_right = match (near.is_finite(), near == 0.0) {
                (false, _) => near.is_nan() && y.is_nan() || near == y,
                (_, true) => y == 0.0 && y.is_sign_negative() == near.is_sign_negative(),
                _ if last_places == 0.0 => y == near,
                _ => (f64::from(y) - exact).abs() <= last_places * place + near_zero,
            };
            assert!(is_right, "{op:?} of {a} and {b}: {y}, not {exact}");
        }
    }
}

#[test]
fn lines_have_the_bits_of_views() {
    let mut rng = Rng::new(9);
    let ops = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Pow,
        Binary::Maximum,
        Binary::Minimum,
        Binary::FloorDiv,
        Binary::Remainder,
        Binary::Fmod,
        Binary::Hypot,
        Binary::Prelu,
    ];
    for n in [0, 1, 7, 16, 33, 300] {
        let (a, b) = (rng.vec::<f32>(n), rng.vec::<f32>(n));
        for op in ops {
            let (mut out, mut expected) = (vec![9.0; n], vec![8.0; n]);
            binary_lines(op, &a, &b, &mut out);
            let [a, b] = [&a, &b].map(|x| View::contiguous(x, &[n, 1]));
            let mut views = ViewMut::contiguous(&mut expected, &[n, 1]);
            binary(op, &a, &b, &mut views);
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&out), bits(&expected), "{op:?} of {n}");
        }
    }
}

#[test]
#[should_panic(expected = "lengths [3, 2, 3] differ")]
fn lines_of_other_lengths_are_refused() {
    binary_lines(Binary::Add, &[0.0; 3], &[0.0; 2], &mut [0.0_f64; 3]);
}

#[test]
fn short_rows_are_spread_over_others() {
    let mut rng = Rng::new(13);
    let shape = [6, 5, 40, 3];
    // Which dims of either operand are there: 1, 2, 4, 8 for the first to the last.
    for (left, right) in [
        (15, 9),
        (15, 8),
        (15, 11),
        (15, 13),
        (15, 7),
        (15, 10),
        (11, 13),
        (9, 14),
        (1, 14),
    ] {
        let [a, b] = [left, right].map(|dims| -> (Vec<f32>, [usize; 4]) {
            let shape = core::array::from_fn(|d| if dims >> d & 1 == 1 { shape[d] } else { 1 });
            (rng.vec(shape.iter().product()), shape)
        });
        let [a, b] = [&a, &b].map(|(numbers, own)| {
            let view = View::contiguous(numbers, own).broadcast_to(&shape);
            view.expect("broadcasts")
        });
        for (x, y) in [(&a, &b), (&b, &a)] {
            let mut out = vec![f32::NAN; shape.iter().product()];
            binary(
                Binary::Sub,
                x,
                y,
                &mut ViewMut::contiguous(&mut out, &shape),
            );
            for (i, at) in naive_index(&shape).iter().enumerate() {
                assert_eq!(out[i], x.get(at) - y.get(at), "{left} {right} at {at:?}");
            }
        }
    }
}

/// All special numbers with each other and with ordinary ones, under views that are lines, rows, columns, few to a row, and turned.
#[test]
fn numbers_of_bf16_are_those_of_f32_rounded_once() {
    let mut rng = Rng::new(21);
    let special = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::from_bits(0x0001_0000),
        1.0,
        -1.0,
    ];
    let mut numbers = |n: usize| -> Vec<bf16> {
        let drawn = |i: usize| match i % 3 {
            0 => special[rng.within(0, special.len() - 1)],
            _ => 100.0 * rng.unit() as f32 - 50.0,
        };
        (0..n).map(drawn).map(bf16::from_f32).collect()
    };
    let ops = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Maximum,
        Binary::Minimum,
        Binary::Copysign,
        Binary::Prelu,
    ];
    for (shape, small) in [
        ([1, 1, 3000], [1, 1, 3000]),
        ([1, 40, 70], [1, 1, 70]),
        ([1, 40, 70], [1, 40, 1]),
        ([3, 50, 7], [1, 50, 1]),
        ([3, 50, 7], [3, 1, 7]),
        ([0, 2, 5], [1, 2, 5]),
    ] {
        let count = |shape: &[usize; 3]| shape.iter().product::<usize>();
        let (a, b) = (numbers(count(&shape)), numbers(count(&small)));
        let turned = View::contiguous(&a, &[shape[2], shape[1], shape[0]]).permute(&[2, 1, 0]);
        let b = View::contiguous(&b, &small).broadcast_to(&shape).unwrap();
        for a in [View::contiguous(&a, &shape), turned] {
            for (x, y) in [(&a, &b), (&b, &a)] {
                for op in ops {
                    let mut got = vec![bf16::NAN; count(&shape)];
                    let mut out = ViewMut::contiguous(&mut got, &shape);
                    assert!(binary_halves(op, x, y, &mut out));
                    for (got, at) in got.iter().zip(naive_index(&shape)) {
                        let mut single = [0.0f32];
                        let [x, y] = [x, y].map(|of| [of.get(&at).to_f32()]);
                        binary_lines(op, &x, &y, &mut single);
                        let same = got.to_bits() == bf16::from_f32(single[0]).to_bits();
                        assert!(
                            same || got.is_nan() && single[0].is_nan(),
                            "{op:?} of {x:?} and {y:?}: {got}"
                        );
                    }
                }
            }
        }
    }
    let mut untouched = [bf16::ONE];
    let line = View::line(&[bf16::ZERO; 1]);
    let is_done = binary_halves(
        Binary::Pow,
        &line,
        &line,
        &mut ViewMut::line(&mut untouched),
    );
    assert_eq!((is_done, untouched), (false, [bf16::ONE]));
}
