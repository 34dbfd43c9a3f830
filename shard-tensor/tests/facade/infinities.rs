//! Infinities, NaN, and numbers whose squares overflow: values and gradients, on one rank as on three.

use ndarray::arr1;
use shard_tensor::{Interpolation, LossReduction, Placements, Result, ShardTensor, launch, shard};

/// What a program finds on one rank and on three, which is the same.
fn on_one_and_three(
    line: &[f32],
    f: impl Fn(&ShardTensor) -> Result<ShardTensor> + Sync,
) -> Vec<f32> {
    let found = [1, 3].map(|ranks| {
        let found = launch(ranks, |ctx| {
            let x = ctx.mesh_of(ranks)?.distribute(&arr1(line), shard(0))?;
            let y = f(&x)?.to_array::<f32>()?;
            Ok(y.into_iter().collect::<Vec<f32>>())
        });
        found.unwrap().swap_remove(0)
    });
    let [one, three] = found;
    assert!(alike(&one, &three), "{one:?} and {three:?} of {line:?}");
    one
}

fn alike(found: &[f32], exact: &[f32]) -> bool {
    let same = |(a, b): (&f32, &f32)| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 * b.abs()
    };
    found.len() == exact.len() && found.iter().zip(exact).all(same)
}

/// The gradient of the sum of what a function gives.
fn slope(line: &[f32], f: impl Fn(&ShardTensor) -> Result<ShardTensor> + Sync) -> Vec<f32> {
    on_one_and_three(line, |x| {
        let x = x.requires_grad()?;
        let gradients = f(&x)?.sum_all()?.backward()?;
        Ok(gradients.get(&x)?.expect("a gradient"))
    })
}

macro_rules! assert_alike {
    ($found:expr, $exact:expr) => {
        let (found, exact): (Vec<f32>, Vec<f32>) = ($found, $exact.to_vec());
        assert!(alike(&found, &exact), "{found:?}, not {exact:?}");
    };
}

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

#[test]
fn gradients_of_products_that_overflow_or_hold_zeros_and_infinities() {
    let of = |line: &[f32]| slope(line, |x| x.prod(0, false));
    assert_alike!(of(&[1e15, 1e15, 1e15]), [1e30; 3].map(|_: f32| INF));
    assert_alike!(of(&[2.0, 3.0, -4.0]), [-12.0, -8.0, 6.0]);
    assert_alike!(of(&[0.0, 3.0, -4.0]), [-12.0, 0.0, 0.0]);
    assert_alike!(of(&[0.0, 3.0, 0.0]), [0.0; 3]);
    assert_alike!(of(&[INF, 3.0, -4.0]), [-12.0, -INF, INF]);
    assert_alike!(of(&[-INF, 3.0, INF]), [INF, -INF, -INF]);
    assert_alike!(of(&[NAN, 3.0, 2.0]), [NAN; 3]);
}

/// PyTorch's numbers: a product with two zeros changes with neither alone, but with both.
#[test]
fn products_with_zeros_have_second_derivatives() {
    type Function = fn(&ShardTensor) -> Result<ShardTensor>;
    let bend = |line: &[f32], f: Function| {
        on_one_and_three(line, |x| {
            let x = x.requires_grad()?;
            let slope = f(&x)?.sum_all()?.grad(&[&x], true)?.remove(0);
            let counted = x.mesh().arange(5, shard(0))?.add_scalar(1.0)?;
            let total = slope.expect("a gradient").mul(&counted)?.sum_all()?;
            Ok(total.grad(&[&x], false)?.remove(0).expect("a second one"))
        })
    };
    let (prod, cumprod): (Function, Function) = (|x| x.prod(0, false), |x| x.cumprod(0));
    let two = [2.0, 0.0, 3.0, 0.0, 5.0];
    assert_alike!(bend(&two, prod), [0.0, 120.0, 0.0, 60.0, 0.0]);
    assert_alike!(bend(&two, cumprod), [8.0, 154.0, 4.0, 72.0, 0.0]);
    let one = [2.0, 3.0, 0.0, 1.0, 5.0];
    assert_alike!(bend(&one, prod), [45.0, 30.0, 185.0, 90.0, 18.0]);
    let three = [0.0, 3.0, 0.0, 0.0, 5.0];
    assert_alike!(bend(&three, prod), [0.0; 5]);
    assert_alike!(bend(&three, cumprod), [11.0, 1.0, 3.0, 0.0, 0.0]);
}

/// As in PyTorch, a norm that is NaN is not above a bound.
#[test]
fn what_has_no_norm_is_not_scaled_down() {
    let scaled = on_one_and_three(&[NAN, 2.0, 3.0, 4.0], |x| {
        x.reshape([2, 2])?.renorm(2.0, 0, 1.0)
    });
    assert_alike!(scaled, [NAN, 2.0, 0.6, 0.8]);
}

#[test]
fn extremes_with_nan_have_no_gradient_that_is_a_number() {
    assert_alike!(slope(&[1.0, NAN, 3.0], |x| x.amax(0, false)), [NAN; 3]);
    assert_alike!(slope(&[1.0, NAN, 3.0], |x| x.amin(0, false)), [NAN; 3]);
    assert_alike!(
        slope(&[3.0, INF, INF], |x| x.amax(0, false)),
        [0.0, 0.5, 0.5]
    );
    assert_alike!(
        slope(&[3.0, 1.0, 2.0], |x| x.amin(0, false)),
        [0.0, 1.0, 0.0]
    );
}

#[test]
fn between_an_infinity_and_a_number_lies_the_infinity() {
    let of = |line: &[f32], q: f64, how| on_one_and_three(line, |x| x.quantile(&[q], 0, how));
    let (linear, midpoint) = (Interpolation::Linear, Interpolation::Midpoint);
    assert_alike!(of(&[INF, -INF, 0.0, INF], 0.25, linear), [-INF]);
    assert_alike!(of(&[0.0, -INF], 0.25, linear), [-INF]);
    assert_alike!(of(&[0.0, -INF], 0.75, linear), [-INF]);
    assert_alike!(of(&[0.0, INF], 0.25, linear), [INF]);
    assert_alike!(of(&[-INF, 0.0], 0.5, midpoint), [-INF]);
    assert_alike!(of(&[INF, INF, 1.0, INF], 0.5, linear), [INF]);
    assert_alike!(of(&[-INF, INF], 0.5, linear), [NAN]);
    assert_alike!(of(&[1.0, 2.0, 4.0], 0.625, linear), [2.5]);
    let slopes = slope(&[1.0, 2.0, 4.0], |x| x.quantile(&[0.625], 0, linear));
    assert_alike!(slopes, [0.0, 0.75, 0.25]);
    let lerp = |a: f64, b: f64, weight: f64| {
        let [by_tensor, by_number] = [false, true].map(|by_number| {
            on_one_and_three(&[weight as f32], move |w| {
                let full = |x| w.mesh().full([1], x, Placements::replicated());
                match by_number {
                    true => full(a)?.lerp(&full(b)?, weight),
                    false => full(a)?.lerp(&full(b)?, w),
                }
            })
        });
        assert_eq!(by_number, by_tensor);
        by_number
    };
    let inf = f64::INFINITY;
    assert_alike!(lerp(-inf, -3.0, 0.7), [-INF]);
    assert_alike!(lerp(-3.0, -inf, 0.3), [-INF]);
    assert_alike!(lerp(2.0, 6.0, 0.25), [3.0]);
    assert_alike!(lerp(2.0, 6.0, 0.75), [5.0]);
    assert_alike!(lerp(2.0, 6.0, -1.0), [-2.0]);
    // At its end it is there.
    assert_alike!(lerp(1e8, 1.0, 1.0), [1.0]);
    let slopes = slope(&[0.25, 0.75], |w| {
        let full = |x| w.mesh().full([2], x, Placements::replicated());
        full(2.0)?.lerp(&full(6.0)?, w)
    });
    assert_alike!(slopes, [4.0, 4.0]);
}

#[test]
fn of_nothing_there_is_no_extreme_and_no_distance() {
    let found = launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.zeros([3, 0], shard(0))?;
        let orders = [f64::INFINITY, f64::NEG_INFINITY];
        let refused = orders.map(|order| x.norm(order, 1, false).err().map(|e| e.to_string()));
        let apart = [0.0, 1.0, 2.0, f64::INFINITY].map(|order| {
            let apart = x.cdist(&x, order)?.to_array::<f32>()?;
            Ok::<bool, shard_tensor::Error>(apart.len() == 9 && apart.iter().all(|d| *d == 0.0))
        });
        Ok((refused, apart.into_iter().collect::<Result<Vec<bool>>>()?))
    });
    let (refused, apart) = &found.unwrap()[0];
    for refused in refused {
        let text = refused.as_ref().expect("an error");
        assert!(text.contains("no extreme of the nothing"), "{text}");
    }
    assert_eq!(*apart, [true; 4]);
}

#[test]
fn spreads_whose_squares_are_beyond_f32() {
    let tiny = [1e-25, 2e-25, -3e-25, 1e-25];
    let std = (1.475e-49_f64 / 3.0).sqrt() as f32;
    assert_alike!(on_one_and_three(&tiny, |x| x.std(0, 1.0, false)), [std]);
    let same = [3e38_f32; 4];
    assert_alike!(on_one_and_three(&same, |x| x.var(0, 1.0, false)), [0.0]);
    let large = [0.0, 1e20, 1.0, 2.0];
    let units = on_one_and_three(&large, |x| x.rms_norm(1, None, None));
    assert_alike!(units, [0.0, 2.0, 2e-20, 4e-20]);
}

/// Values from PyTorch; its mean of a line in which numbers follow an infinity is NaN, but that of `mean` is not.
#[test]
fn means_and_roots_of_lines_with_infinities_are_numbers_where_they_can_be() {
    let mean = |line: &[f32]| on_one_and_three(line, |x| Ok(x.var_mean(0, 1.0, false)?.1));
    assert_alike!(mean(&[1.0, INF]), [INF]);
    assert_alike!(mean(&[1.0, -INF, 2.0, -INF]), [-INF]);
    assert_alike!(mean(&[1.0, -INF, 2.0, INF]), [NAN]);
    let var = |line: &[f32]| on_one_and_three(line, |x| x.var(0, 0.0, false));
    assert_alike!(var(&[1.0, INF, 2.0, 3.0]), [NAN]);
    assert_alike!(var(&[INF]), [NAN]);
    let units = |line: &[f32]| on_one_and_three(line, |x| x.rms_norm(1, None, None));
    assert_alike!(units(&[1.0, INF, -2.0, 3.0]), [0.0, NAN, 0.0, 0.0]);
    assert_alike!(units(&[INF, 1.0, -INF]), [NAN, 0.0, NAN]);
    assert_alike!(units(&[INF, 1.0, NAN]), [NAN; 3]);
}

#[test]
fn gradients_where_logarithms_and_variances_are_cut_are_those_of_torch() {
    let none = LossReduction::None;
    let bce = slope(&[0.0, 0.0, 0.5], |p| {
        let t = p
            .mesh()
            .distribute(&arr1(&[1.0_f32, 0.0, 1.0]), Placements::replicated())?;
        p.binary_cross_entropy(&t, None, none)
    });
    // For a target of 0 this is the slope, where PyTorch gives 0 at 0 alone.
    assert_alike!(bce, [-1e12, 1.0, -2.0]);
    // Half of 1 / var - apart² / var², of a variance of 0.5.
    let normal = slope(&[0.25, 0.5, 1.0], |var| {
        let full = |x| var.mesh().full([3], x, Placements::replicated());
        full(2.0)?.gaussian_nll_loss(&full(1.0)?, var, false, 0.5, none)
    });
    assert_alike!(normal, [-1.0, -1.0, 0.0]);
}

#[test]
fn what_is_multiplied_by_a_beta_of_0_does_not_count() {
    let found = on_one_and_three(&[NAN, INF, 3.0], |x| {
        let a = x.mesh().full([1, 2], 2.0, Placements::replicated())?;
        let b = x.mesh().full([2, 3], 5.0, Placements::replicated())?;
        x.unsqueeze(0)?.addmm(&a, &b, 0.0, 0.5)
    });
    assert_alike!(found, [10.0; 3]);
}
