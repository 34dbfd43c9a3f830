use half::{bf16, f16};
use num_traits::Float;
use shard_kernels::attention::Stored;
use shard_kernels::fused::*;
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::Unary;
use shard_kernels::{Real, View, ViewMut};

use crate::testing::{Rng, naive_index};

const fn binary(kind: Binary, a: usize, b: usize) -> FormulaStep {
    FormulaStep::Binary { kind, of: [a, b] }
}

/// Of `x` and of the two parts of `y`: `[x y0, y1 where x < 0.25 and -x elsewhere]`, two parts, and `x y0 - 0.25`.
fn formula() -> Formula {
    use FormulaStep::{Below, Input, Map, Number};
    let steps = vec![
        Input(0),
        Input(1),
        Input(2),
        Number(0.25),
        binary(Binary::Mul, 0, 1),
        Map {
            map: Unary::Neg,
            order: 0,
            of: 0,
        },
        Below([0, 3, 2, 5]),
        binary(Binary::Sub, 4, 3),
    ];
    Formula::new(steps, vec![1, 2], vec![vec![4, 6], vec![7]])
}

/// Rows that are blocks by themselves and short ones, operands and results in steps, and an operand that broadcasts. Results are rounded once.
fn all<T: Stored + PartialEq>() {
    let mut rng = Rng::new(7);
    let numbers = |rng: &mut Rng, n: usize| -> Vec<T> {
        rng.vec::<T::Acc>(n).into_iter().map(T::narrow).collect()
    };
    for round in 0..60 {
        let (rows, n, behind) = (rng.within(0, 9), rng.within(1, 700), round % 2);
        let with = |parts: usize| match behind {
            0 => [rows, n, parts],
            _ => [rows, parts, n],
        };
        // Every second row of twice as many, or one number for each row, or for all.
        let memory = numbers(&mut rng, 2 * rows * n + 1);
        let strides = match round % 6 {
            0 => [0, 0],
            3 => [2 * n as isize, 0],
            _ => [2 * n as isize, 1],
        };
        let x = View::new(&memory, 1, &[rows, n], &strides);
        let y = numbers(&mut rng, 2 * rows * n);
        let y = View::contiguous(&y, &with(2));
        let nan = T::narrow(T::Acc::nan());
        let (mut first, mut second) = (vec![nan; 2 * rows * n], vec![nan; rows * n]);
        let mut outs = [
            ViewMut::contiguous(&mut first, &with(2)),
            ViewMut::contiguous(&mut second, &[n, rows]).permute(&[1, 0]),
        ];
        fused(&formula(), behind, &[x.clone(), y.clone()], &mut outs);
        let (first, second) = (
            View::contiguous(&first, &with(2)),
            View::contiguous(&second, &[n, rows]),
        );
        for at in naive_index(&[rows, n]) {
            let part = |view: &View<'_, T>, part: usize| match behind {
                0 => view.get(&[at[0], at[1], part]),
                _ => view.get(&[at[0], part, at[1]]),
            };
            let (x, quarter) = (x.get(&at).widen(), T::Acc::of(0.25));
            let product = x * part(&y, 0).widen();
            let chosen = if x < quarter { part(&y, 1).widen() } else { -x };
            let expected = [product, chosen, product - quarter].map(T::narrow);
            let got = [
                part(&first, 0),
                part(&first, 1),
                second.get(&[at[1], at[0]]),
            ];
            assert_eq!(got, expected, "{at:?} of {rows} x {n}");
        }
    }
}

#[test]
fn a_formula_is_its_steps_one_after_the_other() {
    all::<f32>();
    all::<f64>();
    all::<bf16>();
    all::<f16>();
}

#[test]
fn nobody_is_below_a_number_that_is_none() {
    let below = Formula::new(
        (0..4)
            .map(FormulaStep::Input)
            .chain([FormulaStep::Below([0, 1, 2, 3])])
            .collect(),
        vec![1; 4],
        vec![vec![4]],
    );
    let (a, b, x, y) = (
        [f64::NAN, 0.0, -0.0],
        [0.0, f64::NAN, 0.0],
        [1.0; 3],
        [2.0, 3.0, 4.0],
    );
    let mut out = [0.0; 3];
    fused(
        &below,
        0,
        &[&a, &b, &x, &y].map(|x| View::line(x)),
        &mut [ViewMut::line(&mut out)],
    );
    assert_eq!(out, y);
}

/// Steps of which later ones read any before them, and of which any are results, operands and numbers too, in short rows and in
/// long ones, whose results are written where they belong.
#[test]
fn steps_may_read_any_before_them() {
    let mut rng = Rng::new(11);
    for round in 0..200 {
        let operands = rng.within(1, 5);
        let mut steps: Vec<_> = (0..operands).map(FormulaStep::Input).collect();
        for _ in 0..rng.within(1, 40) {
            let [a, b, x, y] = [(); 4].map(|()| rng.within(0, steps.len() - 1));
            steps.push(match rng.within(0, 4) {
                0 => FormulaStep::Below([a, b, x, y]),
                1 => FormulaStep::Number(rng.within(0, 9) as f64),
                2 => FormulaStep::Map {
                    map: Unary::Neg,
                    order: 0,
                    of: a,
                },
                3 => binary(Binary::Sub, a, b),
                _ => binary(Binary::Maximum, a, b),
            });
        }
        let results: Vec<Vec<usize>> = (0..rng.within(1, 3))
            .map(|_| vec![rng.within(0, steps.len() - 1)])
            .collect();
        let n = [1, 64, 1100, 2500][round % 4];
        let operand = |i: usize| (0..n).map(|k| 1.5 - (i * n) as f64 + k as f64).collect();
        let numbers: Vec<Vec<f64>> = (0..operands).map(operand).collect();
        let formula = Formula::new(steps, vec![1; operands], results);
        let inputs: Vec<_> = numbers.iter().map(|x| View::line(x)).collect();
        let mut out = vec![f64::NAN; n * formula.results().len()];
        let mut outs: Vec<_> = out.chunks_mut(n).map(ViewMut::line).collect();
        fused(&formula, 0, &inputs, &mut outs);
        for k in [0, n / 2, n - 1] {
            let expected = by_numbers(formula.steps(), |i| numbers[i][k]);
            for (out, result) in out.chunks(n).zip(formula.results()) {
                assert_eq!(out[k], expected[result[0]], "{k} of {n}: {formula:?}");
            }
        }
    }
}

/// What each step is for some numbers.
fn by_numbers(steps: &[FormulaStep], input: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut found: Vec<f64> = Vec::new();
    for step in steps {
        found.push(match *step {
            FormulaStep::Input(i) => input(i),
            FormulaStep::Number(value) => value,
            FormulaStep::Map { of, .. } => -found[of],
            FormulaStep::Binary {
                kind: Binary::Sub,
                of: [a, b],
            } => found[a] - found[b],
            FormulaStep::Binary { of: [a, b], .. } => found[a].max(found[b]),
            FormulaStep::Below([a, b, x, y]) => match found[a] < found[b] {
                true => found[x],
                false => found[y],
            },
        });
    }
    found
}

/// Operands that are repeated along any of their dims, in any order of memory: rows that are alike are brought once, and no others.
fn repeated<T: Stored + PartialEq>() {
    let difference = Formula::new(
        vec![
            FormulaStep::Input(0),
            FormulaStep::Input(1),
            binary(Binary::Sub, 0, 1),
        ],
        vec![1, 1],
        vec![vec![2]],
    );
    let mut rng = Rng::new(23);
    for _ in 0..300 {
        let (last, most) = [(1, 12), (3, 12), (40, 4), (300, 2), (1200, 2)][rng.within(0, 4)];
        let shape = [
            rng.within(1, most),
            rng.within(1, 2 * most),
            rng.within(1, most),
            last,
        ];
        let memory: Vec<Vec<T>> = (0..2)
            .map(|_| rng.vec::<T::Acc>(shape.iter().product()))
            .map(|of| of.into_iter().map(T::narrow).collect())
            .collect();
        let mut operand = |k: usize| {
            let mut turn = [0, 1, 2, 3];
            for d in 0..3 {
                turn.swap(d, rng.within(d, 3));
            }
            let are = rng.within(0, 15);
            let turned = turn.map(|d| if are >> d & 1 == 1 { shape[d] } else { 1 });
            let mut back = [0; 4];
            for (at, d) in turn.into_iter().enumerate() {
                back[d] = at;
            }
            let len = turned.iter().product();
            let view = View::contiguous(&memory[k][..len], &turned).permute(&back);
            view.broadcast_to(&shape).expect("extents of 1 repeat")
        };
        let (x, y) = (operand(0), operand(1));
        let mut out = vec![T::narrow(T::Acc::nan()); shape.iter().product()];
        let inputs = [x.clone(), y.clone()];
        let outs = &mut [ViewMut::contiguous(&mut out, &shape)];
        fused(&difference, 0, &inputs, outs);
        for (at, got) in naive_index(&shape).into_iter().zip(out) {
            let expected = T::narrow(x.get(&at).widen() - y.get(&at).widen());
            assert_eq!(
                got,
                expected,
                "{at:?} of {shape:?}: {:?}, {:?}",
                x.strides(),
                y.strides()
            );
        }
    }
}

#[test]
fn operands_may_be_repeated() {
    repeated::<f32>();
    repeated::<bf16>();
}

/// Many strips and a rest; results that are alone, that others read, and that are operands.
fn long<T: Stored<Acc = f32> + PartialEq>(n: usize) {
    use FormulaStep::Input;
    let steps = vec![
        Input(0),
        Input(1),
        Input(2),
        binary(Binary::Sub, 1, 0),
        binary(Binary::Mul, 3, 2),
        binary(Binary::Add, 0, 4),
    ];
    let lerp = Formula::new(steps, vec![1; 3], vec![vec![5], vec![3], vec![1]]);
    let numbers = |i: usize| {
        (0..n)
            .map(|k| T::narrow(((k * (2 * i + 7)) % 61) as f32))
            .collect()
    };
    let of: Vec<Vec<T>> = (0..3).map(numbers).collect();
    let nan = T::narrow(f32::NAN);
    let (mut out, mut apart, mut b) = (vec![nan; n], vec![nan; n], vec![nan; n + 5]);
    let inputs: Vec<_> = of.iter().map(|x| View::line(x)).collect();
    // An operand is copied, to another place than that where the results before it begin.
    let copied = ViewMut::new(&mut b, 5, &[n], &[1]);
    let mut outs = [ViewMut::line(&mut out), ViewMut::line(&mut apart), copied];
    fused(&lerp, 0, &inputs, &mut outs);
    for k in 0..n {
        let [x, y, w] = [&of[0], &of[1], &of[2]].map(|x| x[k].widen());
        let got = [out[k], apart[k], b[k + 5]];
        assert_eq!(got, [x + (y - x) * w, y - x, y].map(T::narrow), "{k}");
    }
}

/// In 16 bits more than a cache is taken to hold, too.
#[test]
fn operands_may_be_long() {
    long::<f32>(40_003);
    long::<bf16>(40_003);
    long::<bf16>(700_003);
}

/// No part lies side by side.
#[test]
fn operands_may_be_long_and_apart() {
    use FormulaStep::Input;
    let n = 40_001;
    let steps = vec![
        Input(0),
        Input(1),
        Input(2),
        binary(Binary::Mul, 0, 1),
        binary(Binary::Sub, 3, 2),
    ];
    let formula = Formula::new(steps, vec![1; 3], vec![vec![4]]);
    let numbers = |i: usize| {
        (0..2 * n)
            .map(|k| ((k * (2 * i + 7)) % 61) as f32)
            .collect()
    };
    let of: Vec<Vec<f32>> = (0..3).map(numbers).collect();
    let inputs: Vec<_> = of.iter().map(|x| View::new(x, 1, &[n], &[2])).collect();
    let mut out = vec![-1.0; 2 * n];
    fused(
        &formula,
        0,
        &inputs,
        &mut [ViewMut::new(&mut out, 0, &[n], &[2])],
    );
    for k in 0..n {
        let [x, y, z] = [&of[0], &of[1], &of[2]].map(|x| x[2 * k + 1]);
        assert_eq!(out[2 * k..2 * k + 2], [x * y - z, -1.0], "{k}");
    }
}

#[test]
fn formulas_may_have_many_operands() {
    for count in [6, 7, 30, 31, 200, MOST - 1] {
        let mut steps: Vec<_> = (0..count).map(FormulaStep::Input).collect();
        for i in 1..count {
            steps.push(binary(
                Binary::Add,
                if i == 1 { 0 } else { count + i - 2 },
                i,
            ));
        }
        let last = steps.len() - 1;
        let sum = Formula::new(steps, vec![1; count], vec![vec![last]]);
        let numbers: Vec<[f32; 3]> = (0..count).map(|i| [i as f32, 1.0, -(i as f32)]).collect();
        let inputs: Vec<_> = numbers.iter().map(|x| View::line(x)).collect();
        let mut out = [0.0; 3];
        fused(&sum, 0, &inputs, &mut [ViewMut::line(&mut out)]);
        let total = (count * (count - 1) / 2) as f32;
        assert_eq!(out, [total, count as f32, -total]);
    }
}

#[test]
#[should_panic(expected = "fused: step 1 reads step 1")]
fn steps_read_what_comes_before_them() {
    Formula::new(
        vec![FormulaStep::Input(0), binary(Binary::Add, 0, 1)],
        vec![1],
        vec![vec![1]],
    );
}
