//! Attention in `bf16` and `f32` by a unit for products of tiles, beside the textbook's formulas and beside vectors of `f32`.

use super::case::{Case, Part, dropped, single};
use crate::testing::{Rng, assert_close};
use half::bf16;
use shard_kernels::attention::inside::Tiled;
use shard_kernels::attention::*;
use shard_kernels::gemm::Emulated;
use shard_kernels::{Positions, Real, View, ViewMut};

/// Weights are right to 2^-16 here, and results are means of values below 1, or sums of at most 300 products below 1 of mixed signs.
const TOLERANCE: f64 = 6e-5;

/// In `f32` products are as by vectors.
const TOLERANCE_OF_SINGLE: f64 = 2e-6;

/// A random problem in numbers that are exact in `bf16`. Rows that see one key alone and drop from it have no cotangent: what rounds their result
/// is all of their logit's gradient, unless its weight is 1 to the last bit.
fn coarse(rng: &mut Rng, most: usize) -> Case {
    let mut case = Case::random(rng, most);
    for x in [&mut case.q, &mut case.k, &mut case.v, &mut case.dout] {
        x.iter_mut().for_each(|x| *x = (*x * 64.0).round() / 64.0);
    }
    if let Some((_, bias)) = &mut case.bias {
        bias.iter_mut()
            .for_each(|x| *x = (*x * 64.0).round() / 64.0);
    }
    if case.dropped.is_some() {
        let seen = case.answer().seen;
        for (dout, seen) in case.dout.chunks_exact_mut(case.value_dim).zip(seen) {
            if seen == 1 {
                dout.fill(0.0);
            }
        }
    }
    case
}

/// A problem's queries and cotangent in an element type.
struct Rows<E> {
    q: Vec<E>,
    dout: Vec<E>,
}

impl<E: Stored<Acc = f32>> Rows<E> {
    fn new(case: &Case) -> Self {
        let of = |x: &[f64]| x.iter().map(|&x| E::narrow(x as f32)).collect();
        Self {
            q: of(&case.q),
            dout: of(&case.dout),
        }
    }

    fn queries<'a>(
        &'a self,
        case: &'a Case,
        dropout: Option<&'a dyn DropoutMask>,
    ) -> Queries<'a, E> {
        let shape = [case.batch, case.heads(), case.queries, case.dim];
        let q = View::contiguous(&self.q, &shape);
        let queries = case.of_segments(
            Queries::new(q, Positions::List(&case.query_at))
                .scale(case.scale)
                .band(case.band),
        );
        match dropout {
            Some(dropout) => queries.dropout(dropout),
            None => queries,
        }
    }
}

/// Gradients: of the queries, keys, values and the additive mask.
type Grads = [Vec<f32>; 4];

/// Folds a block of all keys.
fn grads<E: Stored<Acc = f32>>(
    case: &Case,
    rows: &Rows<E>,
    dropout: Option<&dyn DropoutMask>,
    (out, lse): (&[f32], &[f32]),
    fold: impl Fn(&mut AttentionGrad<'_, E>, &Queries<'_, E>, &KeyBlock<'_, E>, &mut BlockGrad<'_, f32>),
) -> Grads {
    let all: Vec<usize> = (0..case.keys).collect();
    let part: Part<E> = case.part(&all, false);
    let out: Vec<E> = out.iter().map(|&x| E::narrow(x)).collect();
    let shape = [case.batch, case.heads(), case.queries, case.value_dim];
    let dout = View::contiguous(&rows.dout, &shape);
    let mut grad = AttentionGrad::new(dout, &View::contiguous(&out, &shape), lse, case.dim);
    let zeros = |shape: &[usize]| vec![0.0f32; shape.iter().product()];
    let [kd, vd] = [case.dim, case.value_dim].map(|d| [case.batch, case.kv_heads, case.keys, d]);
    let (mut dk, mut dv, mut dbias) = (zeros(&kd), zeros(&vd), zeros(&case.pairs()));
    let mut block = BlockGrad {
        dk: ViewMut::contiguous(&mut dk, &kd),
        dv: ViewMut::contiguous(&mut dv, &vd),
        dbias: Some(ViewMut::contiguous(&mut dbias, &case.pairs())),
    };
    fold(
        &mut grad,
        &rows.queries(case, dropout),
        &part.block(),
        &mut block,
    );
    let shape = [case.batch, case.heads(), case.queries, case.dim];
    let mut dq = zeros(&shape);
    grad.finish::<f32>(&mut ViewMut::contiguous(&mut dq, &shape));
    [dq, dk, dv, dbias]
}

fn finished(case: &Case, state: &AttentionState<f32>) -> (Vec<f32>, Vec<f32>) {
    let shape = [case.batch, case.heads(), case.queries, case.value_dim];
    let mut out = vec![9.0; shape.iter().product()];
    let mut lse = vec![9.0; shape[..3].iter().product()];
    state.finish::<f32>(&mut ViewMut::contiguous(&mut out, &shape), &mut lse);
    (out, lse)
}

/// All of them, over all ways in which tiles are cut, masked and dropped from; and what the processor's unit computes is the same to the bit.
#[test]
fn random_problems_by_a_unit_match_the_formulas() {
    let mut rng = Rng::new(41);
    for round in 0..24 {
        let case = coarse(&mut rng, if round % 4 == 0 { 150 } else { 50 });
        let rate = case.dropped.unwrap_or(0.0);
        let drop = DropWhere {
            rate,
            dropped: |b, h, q, k| dropped(b, h, q, k, rate),
        };
        let dropout = case.dropped.map(|_| &drop as &dyn DropoutMask);
        assert_folds::<bf16>(&case, dropout, TOLERANCE);
        assert_grads::<bf16>(&case, dropout, TOLERANCE);
    }
}

/// The same in `f32`, whose result is as exact as by vectors.
#[test]
fn random_problems_in_single_precision_by_a_unit_match_the_formulas() {
    let mut rng = Rng::new(47);
    for round in 0..24 {
        let case = Case::random(&mut rng, if round % 4 == 0 { 150 } else { 50 });
        let rate = case.dropped.unwrap_or(0.0);
        let drop = DropWhere {
            rate,
            dropped: |b, h, q, k| dropped(b, h, q, k, rate),
        };
        let dropout = case.dropped.map(|_| &drop as &dyn DropoutMask);
        assert_folds::<f32>(&case, dropout, TOLERANCE_OF_SINGLE);
        assert_grads::<f32>(&case, dropout, TOLERANCE_OF_SINGLE);
    }
}

/// Gradients by emulated units, and by vectors of `f32`.
fn assert_grads<E: Tiled>(case: &Case, dropout: Option<&dyn DropoutMask>, tolerance: f64) {
    let expected = case.answer();
    // From a result that is rounded, as results are saved.
    let lse: Vec<f32> = expected.lse.iter().map(|&x| x as f32).collect();
    let rounded = |x: &f64| E::narrow(*x as f32).widen();
    let out: Vec<f32> = expected.out.iter().map(rounded).collect();
    let (rows, singles) = (Rows::<E>::new(case), Rows::<f32>::new(case));
    let by_vectors = grads(case, &singles, dropout, (&out, &lse), |grad, q, k, to| {
        grad.fold(q, k, to);
    });
    for unit in Emulated::ALL {
        let by_unit = grads(case, &rows, dropout, (&out, &lse), |grad, q, k, to| {
            assert!(inside::fold_grad_emulated(unit, grad, q, k, to));
        });
        for (got, expected) in by_unit.iter().zip(&by_vectors) {
            let expected: Vec<f64> = expected.iter().map(|x| x.wide()).collect();
            assert_close(got, &expected, tolerance);
        }
    }
}

/// Folds all keys by emulated units, and by the processor's if there is one, which computes the same bits.
fn assert_folds<E: Tiled>(case: &Case, dropout: Option<&dyn DropoutMask>, tolerance: f64) {
    let rows = Rows::<E>::new(case);
    let all: Vec<usize> = (0..case.keys).collect();
    let (part, queries) = (case.part::<E>(&all, false), rows.queries(case, dropout));
    let empty = || AttentionState::new([case.batch, case.heads(), case.queries], case.value_dim);
    let expected = case.answer();
    for unit in Emulated::ALL {
        let (mut state, mut real) = (empty(), empty());
        assert!(inside::fold_emulated(
            unit,
            &mut state,
            &queries,
            &part.block()
        ));
        let (out, lse) = finished(case, &state);
        assert_close(&out, &expected.out, tolerance);
        assert_close(&lse, &expected.lse, tolerance);
        if unit.is_of_processor() {
            inside::fold_by_processor(&mut real, &queries, &part.block());
            assert!(state == real, "the unit and its emulation differ");
        }
    }
}

/// Heads that are large enough for a unit in `f32`, by whatever this processor has, beside the same in double precision.
#[test]
fn large_heads_in_single_precision_match_those_in_double() {
    let mut rng = Rng::new(59);
    let mut case = Case::random(&mut rng, 40);
    (case.batch, case.kv_heads, case.group) = (1, 1, 2);
    (case.queries, case.keys) = (530, 1030);
    (case.dim, case.value_dim) = (64, 70);
    (case.query_at, case.key_at) = ((0..530).map(|i| i + 500).collect(), (0..1030).collect());
    (case.allow, case.bias, case.dropped, case.band) = (None, None, None, Band::causal());
    let numbers = |count: usize, rng: &mut Rng| -> Vec<f64> {
        (0..count).map(|_| single(rng.unit())).collect()
    };
    (case.q, case.dout) = (numbers(1060 * 64, &mut rng), numbers(1060 * 70, &mut rng));
    (case.k, case.v) = (numbers(1030 * 64, &mut rng), numbers(1030 * 70, &mut rng));
    case.scale = 0.125;
    let all = [(0..case.keys).collect::<Vec<usize>>()];
    let (got, expected) = (
        case.folded::<f32>(&all, false),
        case.folded::<f64>(&all, false),
    );
    for (got, expected) in [
        (got.out, expected.out),
        (got.lse, expected.lse),
        (got.dq, expected.dq),
        (got.dk, expected.dk),
        (got.dv, expected.dv),
    ] {
        let got: Vec<f32> = got.iter().map(|&x| x as f32).collect();
        assert_close(&got, &expected, TOLERANCE_OF_SINGLE);
    }
}

/// Keys of which those of a span are packed at a time: what is put off for one is added to the gradients of its keys.
#[test]
fn keys_of_several_spans_match_the_formulas() {
    let mut rng = Rng::new(53);
    let mut case = Case::random(&mut rng, 40);
    (case.batch, case.kv_heads, case.group) = (1, 1, 1);
    (case.queries, case.keys) = (3, 1100);
    (case.dim, case.value_dim) = (256, 5);
    (case.query_at, case.key_at) = ((0..3).map(|i| i + 1050).collect(), (0..1100).collect());
    (case.allow, case.bias, case.dropped, case.band) = (None, None, None, Band::causal());
    let numbers = |count: usize, rng: &mut Rng| -> Vec<f64> {
        let number = |_| (rng.unit() * 64.0).round() / 64.0;
        (0..count).map(number).collect()
    };
    (case.q, case.dout) = (numbers(3 * 256, &mut rng), numbers(3 * 5, &mut rng));
    (case.k, case.v) = (numbers(1100 * 256, &mut rng), numbers(1100 * 5, &mut rng));
    case.scale = 0.0625;
    assert_folds::<f32>(&case, None, TOLERANCE_OF_SINGLE);
    assert_folds::<bf16>(&case, None, TOLERANCE);

    assert_grads::<f32>(&case, None, TOLERANCE_OF_SINGLE);
    assert_grads::<bf16>(&case, None, TOLERANCE);
}

/// Heads that are large enough for a unit, and those of so few rows that keys and values are read as they are stored, by whatever this processor has:
/// the same call in `bf16` and in `f32`, of the same numbers.
#[test]
fn heads_in_halves_match_those_in_single_precision() {
    // Queries of a head, heads of a group, keys, and dims of these and of values.
    for extents in [
        [93, 2, 170, 40, 33],
        [37, 1, 41, 64, 32],
        [1, 1, 170, 64, 96],
        [2, 3, 90, 48, 33],
        [1, 8, 600, 64, 64],
    ] {
        assert_halves_match(extents);
    }
}

fn assert_halves_match([queries, group, keys, dim, value_dim]: [usize; 5]) {
    let mut rng = Rng::new(43);
    let mut case = coarse(&mut rng, 40);
    let mut n = |count: usize| -> Vec<f64> {
        let number = |_| (rng.unit() * 64.0).round() / 64.0;
        (0..count).map(number).collect()
    };
    (case.batch, case.kv_heads, case.group) = (1, 2, group);
    (case.queries, case.keys) = (queries, keys);
    (case.dim, case.value_dim) = (dim, value_dim);
    let last = (keys - queries) as i64;
    case.query_at = (0..queries as i64).map(|i| i + last).collect();
    case.key_at = (0..keys as i64).collect();
    (case.allow, case.bias, case.dropped, case.band) = (None, None, None, Band::causal());
    let rows = 2 * group * queries;
    (case.q, case.dout) = (n(rows * dim), n(rows * value_dim));
    (case.k, case.v) = (n(2 * keys * dim), n(2 * keys * value_dim));

    fn folded<E: Stored<Acc = f32>>(case: &Case, rows: &Rows<E>) -> (Vec<f32>, Vec<f32>) {
        let all: Vec<usize> = (0..case.keys).collect();
        let mut state = AttentionState::new([1, case.heads(), case.queries], case.value_dim);
        let part: Part<E> = case.part(&all, false);
        state.fold(&rows.queries(case, None), &part.block());
        finished(case, &state)
    }
    let (halves, singles) = (Rows::<bf16>::new(&case), Rows::<f32>::new(&case));
    let ((out, lse), (out_single, lse_single)) = (folded(&case, &halves), folded(&case, &singles));
    let wide = |x: &[f32]| x.iter().map(|x| x.wide()).collect::<Vec<f64>>();
    assert_close(&out, &wide(&out_single), TOLERANCE);
    assert_close(&lse, &wide(&lse_single), TOLERANCE);

    let saved: Vec<f32> = (out.iter().map(|&x| bf16::from_f32(x).to_f32())).collect();
    let got = grads(&case, &halves, None, (&saved, &lse), |grad, q, k, to| {
        grad.fold(q, k, to);
    });
    let expected = grads(&case, &singles, None, (&saved, &lse), |grad, q, k, to| {
        grad.fold(q, k, to);
    });
    for (got, expected) in got.iter().zip(&expected) {
        assert_close(got, &wide(expected), TOLERANCE);
    }
}

/// Results are rounded some numbers at a time, of rows that have more as well.
#[test]
fn long_rows_are_rounded_as_each_number_is() {
    let (rows, width) = (3, 300);
    let sums = vec![1.0, 3.0, 0.75];
    let numbers: Vec<f32> = (0..rows * width).map(|i| i as f32 / 7.0 - 50.0).collect();
    let parts = [vec![0.0; rows], sums.clone(), numbers.clone()];
    let state = AttentionState::from_parts([1, 1, rows], width, parts);
    let mut out = vec![bf16::ZERO; rows * width];
    let to = &mut ViewMut::contiguous(&mut out, &[1, 1, rows, width]);
    state.finish(to, &mut vec![0.0; rows]);
    for (i, (got, x)) in out.iter().zip(numbers).enumerate() {
        assert_eq!(*got, bf16::from_f32(x * (1.0 / sums[i / width])), "{i}");
    }
}

/// The rows of one head, `queries` and keys alike.
fn one_head<E: Tiled>(q: &[f32], v: &[f32], fold: Fold<E>) -> Vec<f32> {
    let shape = [1, 1, q.len(), 1];
    let [q, v] = [q, v].map(|x| x.iter().map(|&x| E::narrow(x)).collect::<Vec<E>>());
    let [q, v] = [&q, &v].map(|x| View::contiguous(x, &shape));
    let queries = Queries::new(q.clone(), Positions::from(0));
    let mut state = AttentionState::new([1, 1, shape[2]], 1);
    fold(
        &mut state,
        &queries,
        &KeyBlock::new(q, v, Positions::from(0)),
    );
    let (mut out, mut lse) = (vec![0.0; shape[2]], vec![0.0; shape[2]]);
    state.finish::<f32>(&mut ViewMut::contiguous(&mut out, &shape), &mut lse);
    out.extend(lse);
    out
}

type Fold<E> = fn(&mut AttentionState<f32>, &Queries<'_, E>, &KeyBlock<'_, E>);

/// Results, and logarithms of sums, by a unit and by vectors.
fn assert_alike<E: Tiled>(q: &[f32], v: &[f32]) {
    let by_unit: Fold<E> =
        |state, q, k| assert!(inside::fold_emulated(Emulated::Tiles, state, q, k));
    let by_vectors: Fold<E> = |state, q, k| state.fold(q, k);
    let got = one_head(q, v, by_unit);
    let expected = one_head(q, v, by_vectors);
    for (got, expected) in got.iter().zip(&expected) {
        let near = (got - expected).abs() <= 4e-7 * expected.abs();
        let same = got == expected || got.is_nan() && expected.is_nan();
        assert!(
            near || same,
            "{q:?} and {v:?}: {got}, by vectors {expected}"
        );
    }
}

/// What is infinite, no number, near the largest one or near the smallest ones comes out as vectors leave it.
#[test]
fn values_that_parts_do_not_stand_for_are_left_to_vectors() {
    let (some, others) = ([0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 5.0, 3.0, 4.0]);
    for odd in [f32::INFINITY, f32::NAN, f32::MAX / 4.0, -f32::INFINITY] {
        let v = [1.0, 2.0, odd, 3.0, 4.0];
        assert_alike::<bf16>(&some, &v);
        assert_alike::<f32>(&some, &v);
        assert_alike::<f32>(&v, &others);
    }
    for small in [1.1e-30, 1.1e-36, 1.1e-40] {
        assert_alike::<f32>(&some, &others.map(|x| x * small));
        assert_alike::<f32>(&others.map(|x| x * small), &some);
    }
}

/// Vectors take over for the first keys alone, and multiply matrices by the same unit, if there is one.
#[test]
fn the_unit_is_still_there_after_vectors_took_over() {
    let (rows, keys, dim) = (128, 1024, 64);
    let number = |i: usize| bf16::from_f32(((i * 37) % 64) as f32 / 64.0);
    let mut v: Vec<bf16> = (0..keys * dim).map(number).collect();
    v[5] = bf16::INFINITY;
    let shape = |n: usize| [1, 1, n, dim];
    let queries = Queries::new(
        View::contiguous(&v[dim..][..rows * dim], &shape(rows)),
        Positions::from(0),
    );
    let k = View::contiguous(&v[dim..], &shape(keys - 1));
    let v = View::contiguous(&v[..(keys - 1) * dim], &shape(keys - 1));
    let mut state = AttentionState::new([1, 1, rows], dim);
    state.fold(&queries, &KeyBlock::new(k, v, Positions::from(0)));
    let mut out = vec![0.0; rows * dim];
    state.finish::<f32>(
        &mut ViewMut::contiguous(&mut out, &shape(rows)),
        &mut vec![0.0; rows],
    );
    for row in out.chunks_exact(dim) {
        for (j, x) in row.iter().enumerate() {
            assert!(
                if j == 5 {
                    *x == f32::INFINITY
                } else {
                    *x >= 0.0 && *x < 1.0
                },
                "{j}: {x}"
            );
        }
    }
}
