//! L-BFGS against PyTorch's numbers (`xtests/data/optimizers.json`), on many layouts.

use crate::common::read;
use crate::optimizing::{BIAS, Case, WEIGHT, cases, fixture, numbers, tensor};
use crate::training::close;
use serde_json::Value;
use shard_tensor::Stateful;
use shard_tensor::optim::Lbfgs;
use shard_tensor::prelude::*;

/// As in the script.
fn optimizers(parameters: &nn::Parameters) -> Result<Vec<(&'static str, Lbfgs)>> {
    let of = |rate| Lbfgs::new(parameters.clone(), rate);
    Ok(vec![
        ("plain", of(0.2)?.iterations(6).history(2)),
        ("searched", of(1.0)?.iterations(8).history(3).strong_wolfe()),
        ("far", of(40.0)?.iterations(5).history(4).strong_wolfe()),
        ("few", of(25.0)?.iterations(9).evaluations(4).strong_wolfe()),
        (
            "done",
            (of(1.0)?.iterations(60).history(20).strong_wolfe()).tolerances(0.2, 1e-9),
        ),
    ])
}

/// A curve through points, and wells.
struct Fit {
    points: ShardTensor,
    heights: ShardTensor,
}

impl Fit {
    /// With the points divided where the slopes of a case are.
    fn new(case: &Case, mesh: &Mesh, all: &Value) -> Result<Self> {
        let points = numbers(&all["slopes"][2][WEIGHT]);
        let heights = &numbers(&all["slopes"][0][BIAS])[..4];
        Ok(Self {
            points: tensor(mesh, &[4, 3], &case.slopes, &points)?,
            heights: tensor(mesh, &[4], &replicate().into(), heights)?,
        })
    }

    fn loss(&self, weight: &ShardTensor, bias: Option<&ShardTensor>) -> Result<ShardTensor> {
        let found = self.points.linear(weight, None)?.tanh()?.sum(1, false)?;
        let wells = weight.square()?.sub_scalar(1.0)?.square()?.sum_all()?;
        let loss = found.mse_loss(&self.heights)? + wells * 0.05;
        Ok(match bias {
            Some(bias) => {
                let waves = weight.sum_all()?.mul(&bias.sin()?)?;
                loss + bias.square()?.add(&waves)?.sum_all()? * 0.1
            }
            None => loss,
        })
    }
}

/// Every loss that is asked for, what steps return, and where they end.
#[test]
fn steps_along_directions_of_lbfgs_are_pytorchs() {
    let all = fixture();
    for case in cases() {
        let fitted = case.run(|_, mesh| {
            let fit = Fit::new(&case, mesh, &all)?;
            let mut found = vec![];
            for which in 0..5 {
                let parameters = case.parameters(mesh, &all)?;
                let (name, mut lbfgs) = optimizers(&parameters)?.remove(which);
                let [(_, weight), (_, bias)] = &parameters[..] else {
                    unreachable!("there are two")
                };
                let (mut losses, mut counts) = (vec![], vec![]);
                for step in 0..3 {
                    let first = losses.len();
                    let before = lbfgs.step(|| {
                        let loss = fit.loss(weight, (step != 1).then_some(bias))?;
                        losses.push(loss.item()?);
                        Ok(loss)
                    })?;
                    assert_eq!(before, losses[first]);
                    counts.push(losses.len());
                }
                found.push((name, losses, counts, read(weight)?, read(bias)?));
            }
            Ok(found)
        });
        assert!(fitted.iter().all(|f| f == &fitted[0]), "equal to the bit");
        for (name, losses, counts, weight, bias) in &fitted[0] {
            let expected = &all["lbfgs"][name];
            let times = numbers(&expected["counts"]);
            assert!(
                counts.iter().zip(times).all(|(&n, m)| n as f64 == m),
                "{name}: {counts:?}"
            );
            // Each step multiplies what rounding left of the last ones.
            close(losses, &numbers(&expected["losses"]), 1e-7);
            close(weight, &numbers(&expected["end"][WEIGHT]), 1e-7);
            close(bias, &numbers(&expected["end"][BIAS]), 1e-7);
        }
    }
}

/// What was put down goes on as it would have, also from before a first step; and a frozen parameter stays where it is.
#[test]
fn lbfgs_goes_on_from_a_state() {
    let all = fixture();
    for case in cases() {
        case.run(|_, mesh| {
            let fit = Fit::new(&case, mesh, &all)?;
            let trained = |put_down: bool| {
                let parameters = case.parameters(mesh, &all)?;
                let [(_, weight), (_, bias)] = &parameters[..] else {
                    unreachable!("there are two")
                };
                let make = || {
                    let lbfgs = Lbfgs::new(parameters.clone(), 1.0)?;
                    Ok::<_, Error>(lbfgs.iterations(4).history(3).strong_wolfe())
                };
                let mut lbfgs = make()?;
                for step in 0..3 {
                    if put_down {
                        let state = lbfgs.state()?;
                        assert_eq!(state.tensors.len(), 2 * (2 + 2 * 3));
                        assert!(state.tensors.iter().all(|(name, t)| {
                            let p = if name.ends_with(BIAS) { bias } else { weight };
                            t.layout() == p.layout()
                        }));
                        lbfgs = make()?;
                        lbfgs.load_state(&state)?;
                    }
                    bias.set_requires_grad(step != 1)?;
                    let before = (read(weight)?, read(bias)?);
                    lbfgs.step(|| fit.loss(weight, Some(bias)))?;
                    assert_eq!(before.1 == read(bias)?, step == 1);
                    assert_ne!(before.0, read(weight)?);
                }
                Ok::<_, Error>((read(weight)?, read(bias)?))
            };
            assert_eq!(trained(false)?, trained(true)?);
            Ok(())
        });
    }
}

/// An iteration sums all its products at once, however much it remembers.
#[test]
fn rounds_of_lbfgs_do_not_grow_with_what_it_remembers() {
    let rounds = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let scale = mesh.from_fn([7], shard(0), |i| 1.0 + 3.0 * i[0] as f64)?;
        let of = |history: usize| {
            let w = mesh.ones([7], shard(0))?.requires_grad()?;
            let lbfgs = Lbfgs::new(vec![("w".to_owned(), w.clone())], 0.1)?;
            let mut lbfgs = lbfgs.iterations(12).history(history).tolerances(0.0, 0.0);
            let before = ctx.ledger().snapshot();
            let mut asked = 0;
            lbfgs.step(|| {
                asked += 1;
                scale.mul(&w)?.square()?.sum_all()
            })?;
            let moved = ctx.ledger().since(&before);
            let sums = moved.ops.iter().find(|(op, _)| *op == "all_reduce");
            Ok::<_, Error>((asked, sums.map_or(0, |(_, count)| count.rounds)))
        };
        Ok([of(2)?, of(12)?])
    });
    let [few, many] = rounds.unwrap().remove(0);
    assert_eq!(few, many);
    let (asked, rounds) = many;
    // Three of an iteration, and two of each loss: its value, and where its gradient begins.
    assert!(asked == 12 && rounds <= 5 * asked + 1, "{rounds}");
}

#[test]
fn lbfgs_refuses_what_it_cannot_take_a_step_with() {
    for ranks in [1, 2] {
        let told = launch(ranks, |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let w = mesh.ones([3], shard(0))?;
            let named = |w: &ShardTensor| vec![("w".to_owned(), w.clone())];
            let none = Lbfgs::new(named(&w), 1.0).unwrap_err().to_string();
            let w = w.requires_grad()?;
            let rate = Lbfgs::new(named(&w), -1.0).unwrap_err().to_string();
            let mut lbfgs = Lbfgs::new(named(&w), 1.0)?.strong_wolfe();
            for wrong in [f64::NAN, f64::INFINITY] {
                assert!(Lbfgs::new(named(&w), wrong).is_err());
                lbfgs.set_learning_rate(wrong);
                let told = lbfgs.step(|| w.square()?.sum_all()).unwrap_err();
                assert!(told.to_string().contains("learning rate"), "{told}");
            }
            lbfgs.set_learning_rate(1.0);
            let endless = lbfgs.clone().history(usize::MAX).state().unwrap_err();
            assert!(endless.to_string().contains("history"), "{endless}");
            let lost = lbfgs.step(|| w.square()?.matmul(&mesh.ones([2], replicate())?));
            let lost = lost.unwrap_err().to_string();
            // A loss that is NaN everywhere but at the start keeps it there, and ends.
            let start = w.to_array::<f32>()?;
            let mut is_first = true;
            lbfgs.step(|| {
                let loss = w.square()?.sum_all()?;
                let factor = if std::mem::take(&mut is_first) {
                    1.0
                } else {
                    f64::NAN
                };
                loss.mul_scalar(factor)
            })?;
            let end = w.to_array::<f32>()?;
            assert_eq!(end, start);
            Ok([none, rate, lost])
        });
        let told = told.unwrap().remove(0);
        assert!(told[0].contains("requires_grad"), "{}", told[0]);
        assert!(
            told[1].contains("learning rate of 0 or more"),
            "{}",
            told[1]
        );
        assert!(told[2].contains("matmul"), "{}", told[2]);
    }
}

/// Functions along which steps are hard to find, two of them Moré's and Thuente's (1994): from too short and too long first steps the
/// search asks as often, and ends where, PyTorch's does.
#[test]
fn searches_along_hard_functions_are_pytorchs() {
    type Function = fn(&ShardTensor) -> Result<ShardTensor>;
    let steep: Function = |x| {
        let (square, slope) = (x.square()?, x.mul_scalar(-1.0)?);
        Ok(x.mul(&square)?.mul_scalar(1.0 / 3.0)? + slope + square.square()? * 0.1)
    };
    let hollow: Function = |x| x.neg()?.div(&x.square()?.add_scalar(2.0)?);
    let flat: Function = |x| {
        let x = x.add_scalar(0.004)?;
        x.square()?.square()?.mul(&x.sub_scalar(2.0)?)
    };
    let wavy: Function = |x| Ok(x.square()?.mul_scalar(0.05)? + x.mul_scalar(3.0)?.sin()?);
    // Where it starts, the rate, the evaluations, and where it ends: `torch.optim.LBFGS` with `max_iter=3, max_eval=60`.
    let runs = [
        (steep, 0.1, 1e-3, 12, 0.8649465329877772),
        (steep, 0.1, 1.0, 4, 0.8307099708603898),
        (steep, 0.1, 1e3, 18, 0.8622883996462957),
        (steep, 0.9, 0.1, 6, 0.8623047687436427),
        (steep, 0.9, 1e3, 8, 0.8622882363043768),
        (hollow, 0.1, 0.1, 6, 1.1750545438935485),
        (hollow, 0.1, 1e3, 28, 1.4148030028686882),
        (hollow, 0.9, 10.0, 7, 1.4142135630556922),
        (hollow, 0.9, 1e3, 17, 1.4129404570000137),
        (flat, 0.1, 0.1, 14, 1.5960000000009775),
        (flat, 0.1, 1e3, 21, 1.5959999878574773),
        (flat, 0.9, 0.1, 6, 1.5880947531555494),
        (flat, 0.9, 10.0, 11, 1.595999999604809),
        (flat, 0.9, 1e3, 20, 1.5959806671294994),
        (wavy, 0.1, 1e-3, 11, -0.4842479402702217),
        (wavy, 0.1, 10.0, 9, -0.4783125839746679),
        (wavy, 0.1, 1e3, 15, -0.5238863326663304),
        (wavy, 0.9, 0.1, 5, 1.5306152198125365),
        (wavy, 0.9, 10.0, 11, 3.624834550004648),
        (wavy, 0.9, 1e3, 13, 1.5534252836371074),
    ];
    for ranks in [1, 2] {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let found = runs.iter().map(|&(function, start, rate, ..)| {
                let x = mesh.full([1], start, shard(0))?.requires_grad()?;
                let lbfgs = Lbfgs::new(vec![("x".to_owned(), x.clone())], rate)?;
                let mut lbfgs = lbfgs.iterations(3).evaluations(60).strong_wolfe();
                let mut asked = 0;
                lbfgs.step(|| {
                    asked += 1;
                    function(&x)?.sum_all()
                })?;
                Ok((asked, x.sum_all()?.item()?))
            });
            found.collect::<Result<Vec<_>>>()
        });
        for (got, (_, start, rate, asked, end)) in found.unwrap().remove(0).into_iter().zip(runs) {
            let run = format!("from {start} by {rate}: {got:?}");
            assert_eq!(got.0, asked, "{run}");
            assert!((got.1 - end).abs() <= 1e-7 * end.abs(), "{run}");
        }
    }
}
