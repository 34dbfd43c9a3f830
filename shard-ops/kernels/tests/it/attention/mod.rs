//! Attention against the textbook formulas in double precision, over random shapes, masks, splits and orders.

mod by_unit;
mod case;

use crate::testing::{Rng, assert_close};
use case::{Answer, Case, dropped, split};
use half::{bf16, f16};
use shard_device::Bool;
use shard_kernels::attention::*;
use shard_kernels::{Positions, Real, View, ViewMut};

/// For single precision. Logits are sums of at most 20 products below 1.2 in magnitude, so they are off by at most about 20
/// rounding errors (2e-6), and so are probabilities. Outputs are weighted means, and gradients are sums of at most 300 such
/// terms of mixed signs.
const TOLERANCE: f64 = 2e-5;

fn compare<E: Stored>(got: &Answer, expected: &Answer, tolerance: f64) {
    let results = [
        (&got.out, &expected.out),
        (&got.lse, &expected.lse),
        (&got.dv, &expected.dv),
        (&got.dk, &expected.dk),
        (&got.dq, &expected.dq),
        (&got.dbias, &expected.dbias),
    ];
    for (got, expected) in results {
        let got: Vec<E::Acc> = got.iter().map(|&x| E::Acc::of(x)).collect();
        assert_close(&got, expected, tolerance);
    }
}

#[test]
fn random_problems_in_random_blocks_match_the_formulas() {
    let mut rng = Rng::new(17);
    for round in 0..300 {
        let most = if round % 10 == 0 { 300 } else { 40 };
        let case = Case::random(&mut rng, most);
        let blocks = split(&mut rng, case.keys);
        let expected = case.answer();
        let strided = round % 2 == 0;
        compare::<f64>(&case.folded::<f64>(&blocks, strided), &expected, TOLERANCE);
        compare::<f32>(&case.folded::<f32>(&blocks, strided), &expected, TOLERANCE);
    }
}

/// Half precision computes in f32: only inputs and results are rounded. With exact inputs the result is off by one rounding
/// (2^-11, 2^-8), and gradients also by the rounding of the saved output.
#[test]
fn half_precision_is_rounded_at_the_edges_only() {
    let mut rng = Rng::new(5);
    for _ in 0..40 {
        let mut case = Case::random(&mut rng, 40);
        let coarse = |x: &mut Vec<f64>| x.iter_mut().for_each(|x| *x = (*x * 64.0).round() / 64.0);
        for x in [&mut case.q, &mut case.k, &mut case.v, &mut case.dout] {
            coarse(x);
        }
        if let Some((_, bias)) = &mut case.bias {
            coarse(bias);
        }
        let (blocks, expected) = (split(&mut rng, case.keys), case.answer());
        compare::<f16>(&case.folded::<f16>(&blocks, true), &expected, 4.0 / 2048.0);
        compare::<bf16>(&case.folded::<bf16>(&blocks, false), &expected, 4.0 / 256.0);
    }
}

#[test]
fn gradients_match_finite_differences() {
    let mut rng = Rng::new(23);
    for _ in 0..6 {
        let case = Case::random(&mut rng, 7);
        let blocks = split(&mut rng, case.keys);
        let loss = |case: &Case| -> f64 {
            case.folded::<f64>(&blocks, false)
                .out
                .iter()
                .zip(&case.dout)
                .map(|(o, d)| o * d)
                .sum()
        };
        let grads = case.folded::<f64>(&blocks, false);
        type Field = fn(&mut Case) -> &mut Vec<f64>;
        let fields: [(Field, &Vec<f64>); 3] = [
            (|c| &mut c.q, &grads.dq),
            (|c| &mut c.k, &grads.dk),
            (|c| &mut c.v, &grads.dv),
        ];
        for (field, grad) in fields {
            for (i, grad) in grad.iter().enumerate().step_by(3) {
                let at = |step: f64| {
                    let mut moved = case.clone();
                    field(&mut moved)[i] += step;
                    loss(&moved)
                };
                let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!(
                    (numeric - grad).abs() < 1e-8,
                    "{i}: {grad}, by differences {numeric}"
                );
            }
        }
    }
}

/// Zigzag blocks and striped runs of a causal problem give what one block gives.
#[test]
fn causal_blocks_need_not_be_intervals() {
    let mut rng = Rng::new(3);
    let mut case = Case::random(&mut rng, 10);
    (
        case.queries,
        case.keys,
        case.batch,
        case.kv_heads,
        case.group,
    ) = (256, 256, 1, 1, 2);
    (case.query_at, case.key_at) = ((0..256).collect(), (0..256).collect());
    (case.allow, case.bias, case.dropped, case.band) = (None, None, None, Band::causal());
    case.q = (0..2 * 256 * case.dim).map(|_| rng.unit()).collect();
    case.k = (0..256 * case.dim).map(|_| rng.unit()).collect();
    case.v = (0..256 * case.value_dim).map(|_| rng.unit()).collect();
    case.dout = (0..2 * 256 * case.value_dim).map(|_| rng.unit()).collect();
    let expected = case.answer();
    let zigzag: Vec<Vec<usize>> = (0..4)
        .map(|r| {
            (r * 32..r * 32 + 32)
                .chain((7 - r) * 32..(8 - r) * 32)
                .collect()
        })
        .collect();
    compare::<f64>(&case.folded::<f64>(&zigzag, false), &expected, TOLERANCE);

    let o_shape = [1, 2, 256, case.value_dim];
    let queries = Queries::new(
        View::contiguous(&case.q, &[1, 2, 256, case.dim]),
        Positions::from(0),
    )
    .scale(case.scale)
    .band(case.band);
    let mut merged = AttentionState::new([1, 2, 256], case.value_dim);
    for stripe in 0..4usize {
        let keys: Vec<usize> = (stripe..256).step_by(4).collect();
        let part = case.part::<f64>(&keys, false);
        let positions = Positions::Run {
            start: stripe as i64,
            step: 4,
        };
        let block = KeyBlock::new(part.k.view(), part.v.view(), positions);
        let mut state = AttentionState::new([1, 2, 256], case.value_dim);
        state.fold(&queries, &block);
        let parts = state.into_parts();
        merged.merge(&AttentionState::from_parts(
            [1, 2, 256],
            case.value_dim,
            parts,
        ));
    }
    let (mut out, mut lse) = (vec![0.0; expected.out.len()], vec![0.0; 512]);
    merged.finish(&mut ViewMut::contiguous(&mut out, &o_shape), &mut lse);
    assert_close(&out, &expected.out, TOLERANCE);
    assert_close(&lse, &expected.lse, TOLERANCE);
}

/// A summed mask gradient is the sum of the full one.
#[test]
fn mask_gradients_sum_where_the_mask_repeats() {
    let mut rng = Rng::new(29);
    for _ in 0..30 {
        let case = Case::random(&mut rng, 30);
        let expected = case.answer();
        let pairs = case.pairs();
        let shape = pairs.map(|n| if rng.within(0, 1) == 0 { 1 } else { n });
        let shape = &shape[shape.iter().position(|&n| n > 1).unwrap_or(3)..];
        let all: Vec<usize> = (0..case.keys).collect();
        let part = case.part::<f64>(&all, false);
        let [o, q] =
            [case.value_dim, case.dim].map(|d| [case.batch, case.heads(), case.queries, d]);
        let rate = case.dropped.unwrap_or(0.0);
        let drop = DropWhere {
            rate,
            dropped: |b, h, q, k| dropped(b, h, q, k, rate),
        };
        let queries = Queries::new(
            View::contiguous(&case.q, &q),
            Positions::List(&case.query_at),
        );
        let mut queries = case.of_segments(queries.scale(case.scale).band(case.band));
        if case.dropped.is_some() {
            queries = queries.dropout(&drop);
        }
        let out = View::contiguous(&expected.out, &o);
        let mut grad = AttentionGrad::new(
            View::contiguous(&case.dout, &o),
            &out,
            &expected.lse,
            case.dim,
        );
        let (mut dk, mut dv) = (vec![0.0; case.k.len()], vec![0.0; case.v.len()]);
        let mut sums = vec![0.0; shape.iter().product()];
        let kv = |d| [case.batch, case.kv_heads, case.keys, d];
        let mut grads = BlockGrad {
            dk: ViewMut::contiguous(&mut dk, &kv(case.dim)),
            dv: ViewMut::contiguous(&mut dv, &kv(case.value_dim)),
            dbias: Some(ViewMut::contiguous(&mut sums, shape)),
        };
        grad.fold(&queries, &part.block(), &mut grads);
        let mut by_hand = vec![0.0; sums.len()];
        let strides = shard_kernels::view::row_major(shape);
        for (i, x) in expected.dbias.iter().enumerate() {
            let mut rest = i;
            let mut at = 0;
            for d in (0..4).rev() {
                let index = rest % pairs[d];
                rest /= pairs[d];
                if let Some(d) = (d + shape.len()).checked_sub(4)
                    && shape[d] > 1
                {
                    at += index * strides[d] as usize;
                }
            }
            by_hand[at] += x;
        }
        assert_close(&sums, &by_hand, TOLERANCE);
    }
}

/// A ring may leave out blocks that no query sees: folding them changes no bit.
#[test]
fn hidden_blocks_change_nothing() {
    let mut rng = Rng::new(31);
    let numbers = rng.vec::<f32>(2 * 90 * 5);
    let q = View::contiguous(&numbers, &[1, 2, 90, 5]);
    let queries = Queries::new(q.clone(), Positions::from(100)).band(Band::causal());
    let seen = KeyBlock::new(q.clone(), q.clone(), Positions::from(50));
    let hide = [Bool::new(false)];
    let hidden = [
        KeyBlock::new(q.clone(), q.clone(), Positions::from(190)),
        KeyBlock::new(q.clone(), q.clone(), Positions::from(0))
            .allow(View::contiguous(&hide, &[1])),
        KeyBlock::new(q.clone(), q.clone(), Positions::from(0))
            .bias(View::contiguous(&[f32::NEG_INFINITY], &[1])),
    ];
    let mut plain = AttentionState::new([1, 2, 90], 5);
    plain.fold(&queries, &seen);
    for at in 0..3 {
        let mut state = AttentionState::new([1, 2, 90], 5);
        for (i, block) in hidden.iter().enumerate() {
            if i == at {
                state.fold(&queries, &seen);
            }
            state.fold(&queries, block);
        }
        state.merge(&AttentionState::new([1, 2, 90], 5));
        assert!(state == plain);
    }
}

#[test]
fn empty_extents_are_ordinary() {
    for shape in [[0, 2, 3, 4], [1, 0, 3, 4], [1, 2, 0, 4], [2, 1, 3, 0]] {
        let q = vec![1.0f32; shape.iter().product()];
        let kv = [shape[0], shape[1], 5, shape[3]];
        let k = vec![1.0f32; kv.iter().product()];
        let queries = Queries::new(View::contiguous(&q, &shape), Positions::from(0));
        let (k, v) = (View::contiguous(&k, &kv), View::contiguous(&k, &kv));
        let block = KeyBlock::new(k, v, Positions::from(0));
        let [batch, heads, rows, width] = shape;
        let mut state = AttentionState::new([batch, heads, rows], width);
        state.fold(&queries, &block);
        let (mut out, mut lse) = (q.clone(), vec![0.0; batch * heads * rows]);
        state.finish(&mut ViewMut::contiguous(&mut out, &shape), &mut lse);
        // Without dims every logit is 0, so five keys of weight 1 remain.
        assert!(width > 0 || lse.iter().all(|l| (l - 5.0f32.ln()).abs() < 1e-6));
        let out = View::contiguous(&out, &shape);
        let mut grad = AttentionGrad::new(View::contiguous(&q, &shape), &out, &lse, width);
        let (mut dk, mut dv) = (k_zeros(&kv), k_zeros(&kv));
        let mut grads = BlockGrad {
            dk: ViewMut::contiguous(&mut dk, &kv),
            dv: ViewMut::contiguous(&mut dv, &kv),
            dbias: None,
        };
        grad.fold(&queries, &block, &mut grads);
        let mut dq = q.clone();
        grad.finish(&mut ViewMut::contiguous(&mut dq, &shape));
    }
    // Without keys the result is zeros and -inf.
    let state = AttentionState::<f64>::new([1, 1, 2], 1);
    let (mut out, mut lse) = ([7.0; 2], [7.0; 2]);
    state.finish(&mut ViewMut::contiguous(&mut out, &[1, 1, 2, 1]), &mut lse);
    assert_eq!((out, lse), ([0.0; 2], [f64::NEG_INFINITY; 2]));
}

fn k_zeros(shape: &[usize]) -> Vec<f32> {
    vec![0.0; shape.iter().product()]
}

#[test]
fn nan_logits_stay_visible_and_hidden_ones_do_not() {
    let q = [1.0f64; 3];
    let k = [f64::NAN, 1.0];
    let v = [1.0f64, 3.0];
    let queries =
        Queries::new(View::contiguous(&q, &[1, 1, 3, 1]), Positions::from(-1)).band(Band::causal());
    let at = |x| View::contiguous(x, &[1, 1, 2, 1]);
    let mut state = AttentionState::new([1, 1, 3], 1);
    // Key 0 is NaN: the query at -1 sees no key, and those at 0 and 1 see this one.
    state.fold(&queries, &KeyBlock::new(at(&k), at(&v), Positions::from(0)));
    let (mut out, mut lse) = ([0.0f64; 3], [0.0f64; 3]);
    state.finish(&mut ViewMut::contiguous(&mut out, &[1, 1, 3, 1]), &mut lse);
    assert_eq!((out[0], lse[0]), (0.0, f64::NEG_INFINITY));
    assert!(out[1].is_nan() && out[2].is_nan() && lse[2].is_nan());
}
