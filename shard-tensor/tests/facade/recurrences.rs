//! Linear recurrences along sharded dims.

use crate::scans::{self, OnMesh};
use ndarray::{arr1, arr2};
use shard_autograd::{Recorder, gradgradcheck};
use shard_ops::{Value, scan};
use shard_tensor::{
    DType, GradCheck, Launch, Placements, ReduceOp, Result, ShardTensor, launch, replicate, shard,
};

/// Layouts of a tensor of nine rows, in segments too.
fn layouts() -> Vec<OnMesh> {
    let mut all = scans::layouts();
    all.push((vec![2], || [shard(0).zigzag()].into()));
    all
}

fn factor(i: &[usize]) -> f64 {
    [0.5, -1.25, 0.0, 2.0, 0.75, 1.0, -0.5][(3 * i[0] + 2 * i[1]) % 7]
}

fn term(i: &[usize]) -> f64 {
    [1.5, -2.0, 0.25, 3.0, -0.5][(i[0] + 2 * i[1]) % 5]
}

fn first(i: &[usize]) -> f64 {
    2.5 - i[1] as f64
}

/// The recurrence by its definition, `[9, 2]`.
fn defined(factor: impl Fn(&[usize]) -> f64, starts: bool, backwards: bool) -> Vec<f64> {
    let mut found = vec![0.0; 18];
    for j in 0..2 {
        let mut h = if starts { first(&[0, j]) } else { 0.0 };
        for t in 0..9 {
            let i = if backwards { 8 - t } else { t };
            h = factor(&[i, j]) * h + term(&[i, j]);
            found[2 * i + j] = h;
        }
    }
    found
}

#[test]
fn a_recurrence_of_a_sharded_dim_is_the_single_devices() {
    // Factors of each element, of each line, of each row, and of all; and where those of a first state lie.
    type Kind = ([usize; 2], fn(&[usize]) -> f64);
    let kinds: [Kind; 4] = [
        ([9, 2], factor),
        ([1, 2], |i| factor(&[3, i[1]])),
        ([9, 1], |i| factor(&[i[0], 1])),
        ([1, 1], |_| -0.75),
    ];
    for (shape, placements) in layouts() {
        let checked = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(shape.clone())?;
                let b = mesh.from_fn([9, 2], placements(), term)?;
                let start = mesh.from_fn([1, 2], Placements::replicated(), first)?;
                for (kind, (of, factor)) in kinds.iter().enumerate() {
                    let of_all = |i: &[usize]| factor(&[i[0] % of[0], i[1] % of[1]]);
                    let mut rows = vec![replicate(); shape.len()];
                    rows[0] = shard(0);
                    for lies in [placements(), Placements::replicated(), rows.into()] {
                        if of[0] == 1 && lies != Placements::replicated() {
                            continue;
                        }
                        let a = mesh.from_fn(*of, lies, factor)?;
                        for (starts, backwards) in
                            [(false, false), (true, false), (true, true), (false, true)]
                        {
                            let start = starts.then_some(&start);
                            let h = b.linear_recurrence(&a, start, -2, backwards)?;
                            let found: Vec<f64> = h.to_array::<f64>()?.into_iter().collect();
                            let expected = defined(of_all, starts, backwards);
                            let what = format!(
                                "kind {kind} on {shape:?} {}, {starts} {backwards}",
                                a.layout()
                            );
                            for (a, b) in found.iter().zip(&expected) {
                                assert!(
                                    (a - b).abs() < 1e-12,
                                    "{what}: {found:?}, not {expected:?}"
                                );
                            }
                        }
                    }
                }
                Ok(())
            });
        checked.unwrap();
    }
}

/// The derivatives of terms, factors that are shared and not, and a first state.
#[test]
fn recurrences_have_the_slopes_of_differences() {
    for (shape, placements) in layouts().into_iter().filter(|(shape, _)| shape[0] < 9) {
        let checked = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(shape.clone())?;
                let b = mesh.from_fn([9, 2], placements(), term)?;
                let start = mesh.from_fn([1, 2], Placements::replicated(), first)?;
                let each = mesh.from_fn([9, 2], placements(), factor)?;
                let of_lines =
                    mesh.from_fn([2], Placements::replicated(), |i| 0.5 - i[0] as f64)?;
                for a in [&each, &of_lines] {
                    for backwards in [false, true] {
                        let f = |v: &[ShardTensor]| {
                            let h = v[0].linear_recurrence(&v[1], Some(&v[2]), 0, backwards)?;
                            Ok(vec![h.square()?])
                        };
                        let report = ctx.gradcheck(f, &[&b, a, &start], GradCheck::default());
                        let report =
                            report.unwrap_or_else(|e| panic!("{backwards} on {shape:?}: {e}"));
                        assert!(report.compared >= 22, "{}", report.compared);
                        let f = |tape: &Recorder, v: &[Value]| {
                            let first = Some(&v[2]);
                            Ok(vec![scan::linear_recurrence(
                                tape, &v[0], &v[1], first, 0, backwards,
                            )?])
                        };
                        let values = [b.value(), a.value(), start.value()];
                        let report = gradgradcheck(ctx.tape(), &f, &values, GradCheck::default());
                        let report =
                            report.unwrap_or_else(|e| panic!("{backwards} on {shape:?}: {e}"));
                        assert!(report.compared >= 40, "{}", report.compared);
                    }
                }
                Ok(())
            });
        checked.unwrap();
    }
}

/// The gradients of a recurrence have their values' layouts, and are zeros where there is nothing.
#[test]
fn gradients_lie_as_their_values_and_nothing_has_zeros() {
    let checked = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        for n in [0, 1, 7] {
            let b = mesh.from_fn([n, 2], [shard(0)], term)?.requires_grad()?;
            let a = mesh.from_fn([n, 2], [shard(1)], factor)?.requires_grad()?;
            let start = mesh.from_fn([1, 2], [shard(1)], first)?.requires_grad()?;
            let h = b.linear_recurrence(&a, Some(&start), 0, false)?;
            // Of next to nothing the first state is the most there is, and stays.
            assert!(n < 3 || h.layout() == b.layout());
            let gradients = h.sum_all()?.backward()?;
            for x in [&b, &a, &start] {
                let gradient = gradients.get(x)?.unwrap();
                assert_eq!(gradient.layout(), x.layout(), "of {n} rows");
            }
            let found = gradients.get(&start)?.unwrap().to_array::<f32>()?;
            let slope = |j: usize| {
                (0..n).scan(1.0, move |product, i| {
                    *product *= factor(&[i, j]);
                    Some(*product)
                })
            };
            let expected = [slope(0).sum::<f64>() as f32, slope(1).sum::<f64>() as f32];
            assert_eq!(found, arr2(&[expected]).into_dyn(), "of {n} rows");
        }
        Ok(())
    });
    checked.unwrap();
}

/// A rank receives two numbers for each line from every other part, and of the states one row for the derivative.
#[test]
fn totals_alone_move() {
    let moved = launch(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let b = mesh.ones([1000, 3], shard(0))?;
        let a = mesh.full([1000, 3], 0.5, shard(0))?.requires_grad()?;
        let (h, forwards) = ctx.explain(|| b.linear_recurrence(&a, None, 0, false))?;
        let seed = h.ones_like()?;
        let (_, back) = ctx.explain(|| h.backward_with(&seed))?;
        Ok([forwards, back].map(|explanation| {
            let steps = explanation.steps.iter();
            let received: u64 = steps.clone().map(|s| s.received).sum();
            (received, steps.map(|s| s.op).collect::<Vec<_>>().join(" "))
        }))
    });
    for (rank, [forwards, back]) in moved.unwrap().into_iter().enumerate() {
        // Three lines of two doubles from three ranks.
        let totals = 3 * 3 * 2 * 8;
        assert_eq!(forwards.0, totals, "{}", forwards.1);
        assert_eq!(
            forwards.1,
            "scan_totals redistribute redistribute linear_recurrence"
        );
        // And a row from the rank before, which the first has not.
        let row = if rank == 0 { 0 } else { 3 * 4 };
        assert_eq!(back.0, totals + row, "{}", back.1);
        assert_eq!(
            back.1,
            "scan_totals redistribute redistribute linear_recurrence_adjoint shift mul"
        );
    }
}

/// Sums that wait: they pass where nothing else has a part in the states, and are taken where the dim is in parts.
#[test]
fn partial_terms_pass_or_are_summed() {
    let found = launch(4, |ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let a = mesh.from_fn([9, 2], Placements::replicated(), factor)?;
        let mut found = Vec::new();
        for along in [replicate(), shard(0)] {
            let quarters = |i: &[usize]| term(&i[..2]) / 4.0;
            let b = mesh.from_fn([9, 2, 4], [along, shard(2)], quarters)?;
            let waiting = b.sum([2], false)?;
            assert_eq!(waiting.layout().partial_op(), Some(ReduceOp::Sum));
            let h = waiting.linear_recurrence(&a, None, 0, false)?;
            let waits = h.layout().partial_op().is_some();
            let first = a.narrow(0, 0..1)?;
            let product = a.linear_recurrence(&waiting, Some(&first), 0, true)?;
            found.push((waits, h.to_array::<f32>()?, product.to_array::<f32>()?));
            // A first state is there once, whatever waits.
            let started = waiting.linear_recurrence(&a, Some(&first), 0, false)?;
            let summed = waiting.redistribute(replicate())?;
            let once = summed.linear_recurrence(&a, Some(&first), 0, false)?;
            assert!(started.allclose(&once, 1e-5, 1e-5, false)?);
        }
        Ok(found)
    });
    let expected = defined(factor, false, false);
    for found in found.unwrap() {
        assert_eq!([found[0].0, found[1].0], [true, false]);
        for (_, h, product) in &found {
            assert!(
                h.iter()
                    .zip(&expected)
                    .all(|(&a, b)| (f64::from(a) - b).abs() < 1e-5),
                "{h}"
            );
            assert_eq!(product, &found[0].2);
        }
    }
}

/// Factors that overflow together change nothing of a state that is nothing, and what is no number stays so from its rank on.
#[test]
fn large_factors_and_nan_are_the_single_devices() {
    let found = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let a = mesh.full(9, 1e200, [shard(0)])?;
        let late = mesh.from_fn(9, [shard(0)], |i| f64::from(u8::from(i[0] == 8)))?;
        let nan = mesh.from_fn(9, [shard(0)], |i| if i[0] == 4 { f64::NAN } else { 1.0 })?;
        Ok([
            late.linear_recurrence(&a, None, 0, false)?
                .to_array::<f64>()?,
            nan.linear_recurrence(&late, None, 0, false)?
                .to_array::<f64>()?,
            late.linear_recurrence(&nan, None, 0, true)?
                .to_array::<f64>()?,
        ])
    });
    for [late, of_terms, of_factors] in found.unwrap() {
        assert_eq!(
            late,
            arr1(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]).into_dyn()
        );
        let is_nan = |of: &ndarray::ArrayD<f64>| of.iter().map(|x| x.is_nan()).collect::<Vec<_>>();
        assert_eq!(
            is_nan(&of_terms),
            [false, false, false, false, true, true, true, true, true]
        );
        assert_eq!(
            is_nan(&of_factors),
            [true, true, true, true, true, false, false, false, false]
        );
    }
}

#[test]
fn what_is_no_recurrence_is_refused_on_all_ranks() {
    let checked = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4, 3], [shard(0)])?;
        let of = |shape: &[usize]| mesh.ones(shape, Placements::replicated());
        let refused = |result: Result<ShardTensor>, with: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(with), "{error}");
        };
        refused(
            x.linear_recurrence(&x, None, 2, false),
            "name one of the result's dims",
        );
        refused(x.linear_recurrence(&x, None, -3, false), "from -2 on");
        refused(
            x.linear_recurrence(&of(&[3, 4])?, None, 0, false),
            "do not broadcast",
        );
        refused(
            x.linear_recurrence(&x, Some(&x), 0, false),
            "give one of extent 1 along the dim",
        );
        refused(
            x.linear_recurrence(&x, Some(&of(&[2])?), 0, false),
            "do not broadcast",
        );
        refused(
            x.linear_recurrence(&x.to(DType::F64)?, None, 0, false),
            "operand 1 is f64",
        );
        refused(
            x.linear_recurrence(&x, Some(&x.to(DType::F64)?.narrow(0, 0..1)?), 0, false),
            "operand 2 is f64",
        );
        let whole = x.to(DType::I64)?;
        refused(whole.linear_recurrence(&whole, None, 0, false), "i64");
        let number = mesh.ones([], replicate())?;
        refused(
            number.linear_recurrence(&number, None, 0, false),
            "name one of the result's dims",
        );
        // The group is as usable as before.
        assert_eq!(x.linear_recurrence(&x, None, 0, false)?.shape(), [4, 3]);
        Ok(())
    });
    checked.unwrap();
}

/// More lines than a GPU has blocks, few, and a long one, from a first state.
#[cfg(feature = "cuda-emulated")]
#[test]
fn gpus_have_the_same_states_and_gradients() {
    use shard_tensor::DeviceKind;
    let on = |device: DeviceKind| {
        let launch = Launch::new(2).dtype(DType::F64).device(device);
        launch.run(|ctx| {
            let mesh = ctx.mesh_of(2)?;
            let mut found = Vec::new();
            for (shape, dim, backwards) in [
                ([5, 4500], 0, false),
                ([2300, 3], 0, true),
                ([4500, 4], 1, true),
            ] {
                let mut line = shape;
                line[dim] = 1;
                let b = mesh.randn(shape, shard(dim as isize))?.requires_grad()?;
                let a = mesh.rand(shape, shard(0))?.requires_grad()?;
                let first = mesh.randn(line, replicate())?.requires_grad()?;
                let h = b.linear_recurrence(&a, Some(&first), dim, backwards)?;
                let gradients = h.square()?.sum_all()?.backward()?;
                found.push(h.to_array::<f64>()?);
                for x in [&b, &a, &first] {
                    found.push(gradients.get(x)?.unwrap().to_array::<f64>()?);
                }
            }
            Ok(found)
        })
    };
    let [here, there] =
        [DeviceKind::Host, DeviceKind::EmulatedCuda].map(|on_it| on(on_it).unwrap());
    for (a, b) in here.iter().flatten().zip(there.iter().flatten()) {
        let far = a
            .iter()
            .zip(b)
            .find(|(a, b)| (**a - **b).abs() > 1e-10 * (1.0 + a.abs()));
        assert!(far.is_none(), "{far:?}");
    }
}
