use shard_kernels::pointwise::Binary;
use shard_kernels::whole::*;
use shard_kernels::{View, ViewMut};

use shard_device::Bool;

fn apply<T: Whole>(op: Binary, a: &[T], b: &[T]) -> Vec<T> {
    let mut out = vec![T::default(); a.len()];
    let [a, b] = [a, b].map(|x| View::contiguous(x, &[x.len()]));
    let n = out.len();
    binary(op, &a, &b, &mut ViewMut::contiguous(&mut out, &[n]));
    out
}

/// Every pair of bytes, and of bytes as signed numbers, against the definition in wider numbers.
#[test]
fn arithmetic_wraps_and_division_rounds_down() {
    for a in 0..=255_u8 {
        for b in 0..=255_u8 {
            let (x, y) = (i64::from(a), i64::from(b));
            let of = |op| apply(op, &[a], &[b])[0];
            assert_eq!(of(Binary::Add), (x + y).rem_euclid(256) as u8);
            assert_eq!(of(Binary::Sub), (x - y).rem_euclid(256) as u8);
            assert_eq!(of(Binary::Mul), (x * y).rem_euclid(256) as u8);
            assert_eq!(of(Binary::FloorDiv), x.checked_div(y).unwrap_or(0) as u8);
            assert_eq!(of(Binary::Remainder), x.checked_rem(y).unwrap_or(0) as u8);
            assert_eq!(of(Binary::Fmod), x.checked_rem(y).unwrap_or(0) as u8);
            assert_eq!(of(Binary::Shl), if y < 8 { a << b } else { 0 });
            assert_eq!(of(Binary::Shr), if y < 8 { a >> b } else { 0 });
            assert_eq!(of(Binary::Pow), a.wrapping_pow(u32::from(b)));
            let (x, y) = (x - 128, y - 128);
            let of = |op| apply(op, &[x as i32], &[y as i32])[0];
            let floor = if y == 0 {
                0.0
            } else {
                (x as f64 / y as f64).floor()
            };
            assert_eq!(f64::from(of(Binary::FloorDiv)), floor, "{x} / {y}");
            let rest = if y == 0 { 0 } else { x - floor as i64 * y };
            assert_eq!(i64::from(of(Binary::Remainder)), rest, "{x} % {y}");
        }
    }
}

#[test]
fn numbers_at_the_ends_of_their_types_are_as_in_pytorch() {
    let (least, most) = (i64::MIN, i64::MAX);
    assert_eq!(apply(Binary::Add, &[most, least], &[1, -1]), [least, most]);
    assert_eq!(apply(Binary::Mul, &[most, least], &[2, -1]), [-2, least]);
    assert_eq!(apply(Binary::FloorDiv, &[least, 5], &[-1, 0]), [least, 0]);
    assert_eq!(apply(Binary::Remainder, &[least, 5], &[-1, 0]), [0, 0]);
    assert_eq!(
        apply(Binary::Fmod, &[least, 5, -7], &[-1, 0, 4]),
        [0, 0, -3]
    );
    let (base, exponent) = ([2, -1, -1, 1, 3, 0, 7], [-1, -3, -4, -9, 41, 0, 0]);
    let power = 3_i64.wrapping_pow(41);
    assert_eq!(
        apply(Binary::Pow, &base, &exponent),
        [0, -1, 1, 1, power, 1, 1]
    );
    let (a, by) = ([-8, 8, -8, 8, 1], [1, -1, 64, 70, 63]);
    assert_eq!(apply(Binary::Shr, &a, &by), [-4, 0, -1, 0, 0]);
    assert_eq!(apply(Binary::Shl, &a, &by), [-16, 0, 0, 0, least]);
    assert_eq!(apply(Binary::Maximum, &[least, 3], &[0, -3]), [0, 3]);
    assert_eq!(apply(Binary::BitXor, &[6_i32, -1], &[3, -1]), [5, 0]);
}

#[test]
fn truth_values_are_true_whatever_their_byte() {
    let odd: &[Bool] = bytemuck::cast_slice(&[0_u8, 2, 0, 4]);
    let (f, t) = (Bool::FALSE, Bool::TRUE);
    let other = [f, f, t, t];
    assert_eq!(apply(Binary::Add, odd, &other), [f, t, t, t]);
    assert_eq!(apply(Binary::Mul, odd, &other), [f, f, f, t]);
    assert_eq!(apply(Binary::BitXor, odd, &other), [f, t, t, f]);
    assert!(Bool::row(Binary::Sub).is_none() && Bool::row(Binary::Shl).is_none());
    let mut out = [t; 4];
    let [a, b] = [odd, &other].map(|x| View::contiguous(x, &[4]));
    compare(
        Compare::Eq,
        &a,
        &b,
        &mut ViewMut::contiguous(&mut out, &[4]),
    );
    assert_eq!(out, [t, f, f, t]);
}

#[test]
fn operands_may_lie_anyhow() {
    let a: Vec<i32> = (0..3 * 1031).collect();
    let b: Vec<i32> = (0..1031).rev().collect();
    let left = View::contiguous(&a, &[1031, 3]).permute(&[1, 0]);
    let right = View::contiguous(&b, &[1, 1031])
        .broadcast_to(&[3, 1031])
        .unwrap();
    let column = View::contiguous(&b[..3], &[3, 1])
        .broadcast_to(&[3, 1031])
        .unwrap();
    for (right, of) in [(right, [0, 1]), (column, [1, 0])] {
        let mut out = vec![0; 3 * 1031];
        let to = ViewMut::contiguous(&mut out, &[1031, 3]);
        binary(Binary::Sub, &left, &right, &mut to.permute(&[1, 0]));
        for (i, out) in out.iter().enumerate() {
            let (row, column) = (i % 3, i / 3);
            assert_eq!(*out, i as i32 - b[of[0] * row + of[1] * column], "{i}");
        }
        let mut out = vec![Bool::FALSE; 3 * 1031];
        let to = ViewMut::contiguous(&mut out, &[1031, 3]);
        compare(Compare::Lt, &left, &right, &mut to.permute(&[1, 0]));
        for (i, out) in out.iter().enumerate() {
            let (row, column) = (i % 3, i / 3);
            assert_eq!(out.get(), (i as i32) < b[of[0] * row + of[1] * column]);
        }
    }
}

#[test]
fn masks_choose() {
    let mask = [Bool::TRUE, Bool::FALSE, Bool::FALSE, Bool::TRUE];
    let x = [1_u8, 2, 3, 4];
    let view = View::contiguous(&x, &[2, 2]);
    let mask = View::contiguous(&mask, &[2, 2]);
    let mut out = [0; 4];
    let turned = view.permute(&[1, 0]);
    select(
        &mask,
        &view,
        &turned,
        &mut ViewMut::contiguous(&mut out, &[2, 2]),
    );
    assert_eq!(out, [1, 3, 2, 4]);
    let number = View::new(&[9], 0, &[2, 2], &[0, 0]);
    select(
        &mask,
        &view,
        &number,
        &mut ViewMut::contiguous(&mut out, &[2, 2]),
    );
    assert_eq!(out, [1, 9, 9, 4]);
}

#[test]
fn masks_choose_among_rows_and_single_elements() {
    let n = 77;
    let mask: Vec<Bool> = (0..n).map(|i| Bool::from(i * i % 5 < 2)).collect();
    let (a, b): (Vec<f32>, Vec<f32>) = (0..2 * n).map(|i| (i as f32, -1.0 - i as f32)).unzip();
    for [to_mask, to_a, to_b, first] in (0..54).map(|i| [i % 3, i / 3 % 3, i / 9 % 3, i / 27 * 2]) {
        // Where the mask is read by steps, half of it is. Its first element is true, the third is not.
        let count = if to_mask == 2 { n / 2 - 1 } else { n - 2 };
        let mask_view = View::new(&mask, first, &[count], &[to_mask as isize]);
        let (of_a, of_b) = (
            View::new(&a, 1, &[count], &[to_a as isize]),
            View::new(&b, 1, &[count], &[to_b as isize]),
        );
        let mut out = vec![0.5; count];
        let to = &mut ViewMut::contiguous(&mut out, &[count]);
        select(&mask_view, &of_a, &of_b, to);
        for (i, &out) in out.iter().enumerate() {
            let expected = match mask[first + i * to_mask].get() {
                true => a[1 + i * to_a],
                false => b[1 + i * to_b],
            };
            assert_eq!(out, expected, "{i} {to_mask} {to_a} {to_b}");
        }
    }
}
