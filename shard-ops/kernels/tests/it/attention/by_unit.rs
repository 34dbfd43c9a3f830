//! Attention in `bf16` by a unit for products of tiles, beside the textbook's formulas and beside vectors of `f32`.

use super::case::{Case, Part, dropped};
use crate::testing::{Rng, assert_close};
use half::bf16;
use shard_kernels::attention::*;
use shard_kernels::{Positions, Real, View, ViewMut};

/// Weights are right to 2^-16 here, and results are means of values below 1, or sums of at most 300 products below 1 of mixed signs.
const TOLERANCE: f64 = 6e-5;

/// A random problem in numbers that are exact in `bf16`.
fn coarse(rng: &mut Rng, most: usize) -> Case {
    let mut case = Case::random(rng, most);
    for x in [&mut case.q, &mut case.k, &mut case.v, &mut case.dout] {
        x.iter_mut().for_each(|x| *x = (*x * 64.0).round() / 64.0);
    }
    if let Some((_, bias)) = &mut case.bias {
        bias.iter_mut()
            .for_each(|x| *x = (*x * 64.0).round() / 64.0);
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

    fn queries<'a>(&'a self, case: &'a Case, dropout: Option<&'a dyn Dropout>) -> Queries<'a, E> {
        let shape = [case.batch, case.heads(), case.queries, case.dim];
        let q = View::contiguous(&self.q, &shape);
        let queries = Queries::new(q, Positions::List(&case.query_at))
            .scale(case.scale)
            .band(case.band);
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
    dropout: Option<&dyn Dropout>,
    (out, lse): (&[bf16], &[f32]),
    fold: impl Fn(&mut AttentionGrad<'_, E>, &Queries<'_, E>, &Block<'_, E>, &mut BlockGrad<'_, f32>),
) -> Grads {
    let all: Vec<usize> = (0..case.keys).collect();
    let part: Part<E> = case.part(&all, false);
    let out: Vec<E> = out.iter().map(|x| E::narrow(x.to_f32())).collect();
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
        let dropout = case.dropped.map(|_| &drop as &dyn Dropout);
        let (halves, singles) = (Rows::<bf16>::new(&case), Rows::<f32>::new(&case));
        let all: Vec<usize> = (0..case.keys).collect();
        let (part, queries) = (
            case.part::<bf16>(&all, false),
            halves.queries(&case, dropout),
        );
        let empty =
            || AttentionState::new([case.batch, case.heads(), case.queries], case.value_dim);

        let mut state = empty();
        assert!(inside::fold_emulated(&mut state, &queries, &part.block()));
        let (out, lse) = finished(&case, &state);
        let expected = case.answer();
        let single = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        assert_close(&out, &expected.out, TOLERANCE);
        assert_close(&lse, &expected.lse, TOLERANCE);
        let mut real = empty();
        if inside::fold_by_processor(&mut real, &queries, &part.block()).is_some() {
            assert!(state == real, "the unit and its emulation differ");
        }

        // From a result that is rounded, as results are saved.
        let lse = single(&expected.lse);
        let out: Vec<bf16> = expected.out.iter().map(|&x| bf16::from_f64(x)).collect();
        let by_unit = grads(&case, &halves, dropout, (&out, &lse), |grad, q, k, to| {
            assert!(inside::fold_grad_emulated(grad, q, k, to));
        });
        let by_vectors = grads(&case, &singles, dropout, (&out, &lse), |grad, q, k, to| {
            grad.fold(q, k, to);
        });
        for (got, expected) in by_unit.iter().zip(&by_vectors) {
            let expected: Vec<f64> = expected.iter().map(|x| x.wide()).collect();
            assert_close(got, &expected, TOLERANCE);
        }
    }
}

/// Heads that are large enough for a unit, by whatever this processor has: the same call in `bf16` and in `f32`, of the same numbers.
#[test]
fn large_heads_in_halves_match_those_in_single_precision() {
    let mut rng = Rng::new(43);
    let mut case = coarse(&mut rng, 40);
    let n = |count: usize, rng: &mut Rng| -> Vec<f64> {
        let number = |_| (rng.unit() * 64.0).round() / 64.0;
        (0..count).map(number).collect()
    };
    (
        case.batch,
        case.kv_heads,
        case.group,
        case.queries,
        case.keys,
    ) = (1, 2, 2, 93, 170);
    (case.dim, case.value_dim) = (40, 33);
    (case.query_at, case.key_at) = ((0..93).map(|i| i + 77).collect(), (0..170).collect());
    (case.allow, case.bias, case.dropped, case.band) = (None, None, None, Band::causal());
    (case.q, case.dout) = (n(4 * 93 * 40, &mut rng), n(4 * 93 * 33, &mut rng));
    (case.k, case.v) = (n(2 * 170 * 40, &mut rng), n(2 * 170 * 33, &mut rng));

    fn folded<E: Stored<Acc = f32>>(case: &Case, rows: &Rows<E>) -> (Vec<f32>, Vec<f32>) {
        let all: Vec<usize> = (0..case.keys).collect();
        let mut state = AttentionState::new([1, 4, case.queries], case.value_dim);
        let part: Part<E> = case.part(&all, false);
        state.fold(&rows.queries(case, None), &part.block());
        finished(case, &state)
    }
    let (halves, singles) = (Rows::<bf16>::new(&case), Rows::<f32>::new(&case));
    let ((out, lse), (out_single, lse_single)) = (folded(&case, &halves), folded(&case, &singles));
    let wide = |x: &[f32]| x.iter().map(|x| x.wide()).collect::<Vec<f64>>();
    assert_close(&out, &wide(&out_single), TOLERANCE);
    assert_close(&lse, &wide(&lse_single), TOLERANCE);

    let saved: Vec<bf16> = out.iter().map(|&x| bf16::from_f32(x)).collect();
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

/// The rows of one head, `queries` and keys alike.
fn one_head(n: usize, q: &[bf16], v: &[bf16], fold: Fold) -> Vec<f32> {
    let shape = [1, 1, n, 1];
    let [q, v] = [q, v].map(|x| View::contiguous(x, &shape));
    let queries = Queries::new(q.clone(), Positions::from(0));
    let mut state = AttentionState::new([1, 1, n], 1);
    fold(&mut state, &queries, &Block::new(q, v, Positions::from(0)));
    let mut out = vec![0.0; n];
    state.finish::<f32>(
        &mut ViewMut::contiguous(&mut out, &shape),
        &mut vec![0.0; n],
    );
    out
}

type Fold = fn(&mut AttentionState<f32>, &Queries<'_, bf16>, &Block<'_, bf16>);

/// What is infinite, no number or near the largest one comes out as vectors leave it.
#[test]
fn values_that_parts_do_not_stand_for_are_left_to_vectors() {
    let by_unit: Fold = |state, q, k| assert!(inside::fold_emulated(state, q, k));
    let by_vectors: Fold = |state, q, k| state.fold(q, k);
    let q: Vec<bf16> = (0..5).map(|i| bf16::from_f32(i as f32)).collect();
    for odd in [f32::INFINITY, f32::NAN, f32::MAX / 4.0, -f32::INFINITY] {
        let v: Vec<bf16> = [1.0, 2.0, odd, 3.0, 4.0].map(bf16::from_f32).to_vec();
        let (got, expected) = (
            one_head(5, &q, &v, by_unit),
            one_head(5, &q, &v, by_vectors),
        );
        for (got, expected) in got.iter().zip(&expected) {
            let same = got == expected || got.is_nan() && expected.is_nan();
            assert!(same, "{odd}: {got}, by vectors {expected}");
        }
    }
}
