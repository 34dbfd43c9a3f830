//! Optimizers, clipping, schedules and means against PyTorch's numbers (`xtests/data/optimizers.json`), on many layouts.

use crate::common::read;
use crate::training::close;
use serde_json::Value;
use shard_tensor::nn::ModelExt;
use shard_tensor::optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, AdamWOptions, Adamax, Asgd, Constant, Cosine, Ema,
    Exponential, LinearRate, Lion, LossScale, Milestones, NAdam, OneCycle, Optimizer, Plateau,
    Polynomial, RAdam, RmsProp, Rprop, Schedule, Sgd, StepDecay,
};
use shard_tensor::{
    ClipNorm, Context, DType, Error, Gradients, Launch, Mesh, Placements, Result, ShardTensor,
    StateNumber, Stateful, replicate, shard, tree,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) fn fixture() -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../xtests/data/optimizers.json"
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn numbers(of: &Value) -> Vec<f64> {
    let number = |x: &Value| x.as_f64().unwrap();
    of.as_array().unwrap().iter().map(number).collect()
}

pub(crate) const WEIGHT: &str = "body.weight";
pub(crate) const BIAS: &str = "body.bias";

/// A weight of 4 x 3 and a bias of 5 on some mesh, and how the slopes of a loss along them are divided.
pub(crate) struct Case {
    mesh: &'static [usize],
    weight: Placements,
    bias: Placements,
    pub(crate) slopes: Placements,
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |mesh, weight, bias, slopes| Case {
        mesh,
        weight,
        bias,
        slopes,
    };
    vec![
        case(
            &[1],
            replicate().into(),
            replicate().into(),
            replicate().into(),
        ),
        // Gradients are sums over the ranks.
        case(
            &[3],
            replicate().into(),
            replicate().into(),
            shard(0).into(),
        ),
        case(
            &[3],
            shard(0).sizes([1, 0, 3]).into(),
            shard(0).sizes([0, 5, 0]).into(),
            replicate().into(),
        ),
        case(
            &[2, 2],
            [shard(0).sizes([3, 1]), shard(1)].into(),
            [replicate(), shard(0)].into(),
            [shard(0), replicate()].into(),
        ),
        case(
            &[2, 3],
            [replicate(), shard(1)].into(),
            [shard(0).sizes([1, 4]), replicate()].into(),
            [replicate(), shard(0)].into(),
        ),
    ]
}

impl Case {
    fn ranks(&self) -> usize {
        self.mesh.iter().product()
    }

    pub(crate) fn run<T: Send>(&self, f: impl Fn(&Context, &Mesh) -> Result<T> + Sync) -> Vec<T> {
        let launch = Launch::new(self.ranks()).dtype(DType::F64);
        let ranks = launch.run(|ctx| f(ctx, &ctx.mesh_of(self.mesh.to_vec())?));
        ranks.unwrap()
    }

    /// The weight and the bias as they are at first.
    pub(crate) fn parameters(
        &self,
        mesh: &Mesh,
        all: &Value,
    ) -> Result<Vec<(String, ShardTensor)>> {
        let of = |name: &str, shape: &[usize], placements: &Placements| {
            let start = tensor(mesh, shape, placements, &numbers(&all["start"][name]))?;
            Ok::<_, Error>((name.to_owned(), start.requires_grad()?))
        };
        Ok(vec![
            of(WEIGHT, &[4, 3], &self.weight)?,
            of(BIAS, &[5], &self.bias)?,
        ])
    }

    /// Gradients that are these slopes.
    fn gradients(
        &self,
        mesh: &Mesh,
        parameters: &[(String, ShardTensor)],
        slopes: &Value,
        with_bias: bool,
    ) -> Result<Gradients> {
        let mut loss = None;
        for (name, parameter) in parameters {
            if name == BIAS && !with_bias {
                continue;
            }
            let slope = numbers(&slopes[name]);
            let slope = tensor(mesh, parameter.shape(), &self.slopes, &slope)?;
            let term = parameter.mul(&slope)?.sum_all()?;
            loss = Some(match loss {
                None => term,
                Some(sum) => term.add(&sum)?,
            });
        }
        loss.unwrap().backward()
    }
}

pub(crate) fn tensor(
    mesh: &Mesh,
    shape: &[usize],
    placements: &Placements,
    x: &[f64],
) -> Result<ShardTensor> {
    let index = |i: &[usize]| i.iter().zip(shape).fold(0, |at, (i, n)| at * n + i);
    mesh.from_fn(shape.to_vec(), placements, |i| x[index(i)])
}

type Make = fn(Vec<(String, ShardTensor)>) -> Result<Box<dyn Optimizer>>;

/// As in the script.
fn optimizers() -> Vec<(&'static str, Make)> {
    vec![
        ("sgd", |p| Ok(Box::new(Sgd::new(p, 0.1)?))),
        ("sgd_momentum", |p| {
            Ok(Box::new(Sgd::new(p, 0.1)?.momentum(0.9)))
        }),
        ("sgd_dampening", |p| {
            let sgd = Sgd::new(p, 0.1)?.momentum(0.8).dampening(0.3);
            Ok(Box::new(sgd.weight_decay(0.05)))
        }),
        ("sgd_nesterov", |p| {
            let sgd = Sgd::new(p, 0.1)?.momentum(0.9).weight_decay(0.01);
            Ok(Box::new(sgd.nesterov(true)))
        }),
        ("adam", |p| {
            let adam = Adam::new(p, 0.05)?.betas(0.8, 0.95).eps(1e-6);
            Ok(Box::new(adam.weight_decay(0.1)))
        }),
        ("adam_amsgrad", |p| {
            Ok(Box::new(Adam::new(p, 0.05)?.amsgrad(true)))
        }),
        ("adamw", |p| Ok(Box::new(AdamW::new(p, 0.05)?))),
        ("adamw_amsgrad", |p| {
            let adam = AdamW::new(p, 0.05)?.weight_decay(0.2);
            Ok(Box::new(adam.amsgrad(true)))
        }),
        ("lion", |p| {
            let lion = Lion::new(p, 0.02)?.betas(0.9, 0.95);
            Ok(Box::new(lion.weight_decay(0.3)))
        }),
        ("rms_prop", |p| {
            let rms = RmsProp::new(p, 0.05)?.alpha(0.8);
            Ok(Box::new(rms.weight_decay(0.1)))
        }),
        ("rms_prop_momentum", |p| {
            Ok(Box::new(RmsProp::new(p, 0.02)?.momentum(0.7)))
        }),
        ("rms_prop_centered", |p| {
            Ok(Box::new(RmsProp::new(p, 0.02)?.eps(1e-3).centered(true)))
        }),
        ("rms_prop_both", |p| {
            let rms = RmsProp::new(p, 0.02)?.momentum(0.7);
            Ok(Box::new(rms.centered(true)))
        }),
        ("adagrad", |p| Ok(Box::new(Adagrad::new(p, 0.1)?))),
        ("adagrad_decay", |p| {
            let adagrad = Adagrad::new(p, 0.1)?.rate_decay(0.2).weight_decay(0.1);
            Ok(Box::new(adagrad.initial(0.3).eps(1e-3)))
        }),
        ("adadelta", |p| Ok(Box::new(Adadelta::new(p, 1.0)?))),
        ("adadelta_decay", |p| {
            let adadelta = Adadelta::new(p, 0.5)?.rho(0.6).eps(1e-3);
            Ok(Box::new(adadelta.weight_decay(0.1)))
        }),
        ("adamax", |p| Ok(Box::new(Adamax::new(p, 0.05)?))),
        ("adamax_decay", |p| {
            let adamax = Adamax::new(p, 0.05)?.betas(0.7, 0.9).eps(1e-2);
            Ok(Box::new(adamax.weight_decay(0.1)))
        }),
        ("nadam", |p| Ok(Box::new(NAdam::new(p, 0.05)?))),
        ("nadam_decay", |p| {
            let nadam = NAdam::new(p, 0.05)?.betas(0.7, 0.9).eps(1e-3);
            Ok(Box::new(nadam.weight_decay(0.1).momentum_decay(0.1)))
        }),
        ("nadam_decoupled", |p| {
            let nadam = NAdam::new(p, 0.05)?.weight_decay(0.1);
            Ok(Box::new(nadam.decoupled(true)))
        }),
        ("adafactor", |p| Ok(Box::new(Adafactor::new(p, 0.1)?))),
        ("adafactor_options", |p| {
            let adafactor = Adafactor::new(p, 0.6)?.beta2_decay(-0.4).eps(0.3);
            let adafactor = adafactor.least_size(2.0).threshold(1.1);
            Ok(Box::new(adafactor.weight_decay(0.1)))
        }),
        ("rprop", |p| Ok(Box::new(Rprop::new(p, 0.01)?))),
        ("rprop_options", |p| {
            let rprop = Rprop::new(p, 0.3)?.etas(0.6, 1.5);
            Ok(Box::new(rprop.step_sizes(0.2, 0.5)))
        }),
        ("asgd", |p| Ok(Box::new(Asgd::new(p, 0.1)?))),
        ("asgd_options", |p| {
            let asgd = Asgd::new(p, 0.2)?.lambd(0.1).alpha(0.5).t0(1.0);
            Ok(Box::new(asgd.weight_decay(0.1)))
        }),
        ("radam", |p| Ok(Box::new(RAdam::new(p, 0.05)?))),
        ("radam_decay", |p| {
            let radam = RAdam::new(p, 0.05)?.betas(0.7, 0.9).eps(1e-3);
            Ok(Box::new(radam.weight_decay(0.1)))
        }),
        ("radam_decoupled", |p| {
            let radam = RAdam::new(p, 0.05)?.betas(0.9, 0.99).weight_decay(0.1);
            Ok(Box::new(radam.decoupled(true)))
        }),
    ]
}

#[test]
fn optimizers_and_their_states_are_pytorchs() {
    let all = fixture();
    for case in cases() {
        for (name, make) in optimizers() {
            let expected = &all["optimizers"][name];
            let trained = case.run(|_, mesh| {
                let parameters = case.parameters(mesh, &all)?;
                let mut optimizer = make(parameters.clone())?;
                for (i, slopes) in all["slopes"].as_array().unwrap().iter().enumerate() {
                    let gradients = case.gradients(mesh, &parameters, slopes, i != 2)?;
                    optimizer.step(&gradients)?;
                }
                let mut found = vec![];
                for (name, parameter) in parameters {
                    found.push((format!("end {name}"), read(&parameter)?));
                }
                for (name, tensor) in optimizer.state()?.tensors {
                    found.push((name, read(&tensor)?));
                }
                Ok(found)
            });
            let states = expected["state"].as_object().unwrap();
            for rank in trained {
                assert_eq!(rank.len(), 2 + states.len(), "{name}");
                for (tensor, got) in rank {
                    let expected = match tensor.strip_prefix("end ") {
                        Some(parameter) => &expected["end"][parameter],
                        None => &states[&tensor],
                    };
                    close(&got, &numbers(expected), 1e-12);
                }
            }
        }
    }
}

/// Groups, a warm-up before a cosine, and clipping, all at once.
#[test]
fn groups_schedules_and_clipping_are_pytorchs_together() {
    let all = fixture();
    for (case, by_name) in cases()
        .iter()
        .flat_map(|case| [(case, true), (case, false)])
    {
        let trained = case.run(|_, mesh| {
            let parameters = case.parameters(mesh, &all)?;
            let adam = AdamW::new(parameters.clone(), 0.05)?.weight_decay(0.1);
            let set = |o: AdamWOptions| o.learning_rate(0.01).weight_decay(0.0);
            let mut adam = match by_name {
                true => adam.group(|name| name.ends_with("bias"), set)?,
                false => adam.group_by(|_, parameter| parameter.ndim() == 1, set)?,
            };
            let rates = Cosine::new(0.05, 6).warmup(2).from(1.0 / 3.0);
            let mut norms = vec![];
            for (step, slopes) in all["slopes"].as_array().unwrap().iter().enumerate() {
                let mut gradients = case.gradients(mesh, &parameters, slopes, true)?;
                adam.set_learning_rate(rates.at(step));
                norms.push(gradients.clip_norm(2.0)?);
                adam.step(&gradients)?;
            }
            Ok((norms, read(&parameters[0].1)?, read(&parameters[1].1)?))
        });
        let expected = &all["groups"];
        for (norms, weight, bias) in trained {
            close(&norms, &numbers(&expected["norms"]), 1e-12);
            close(&weight, &numbers(&expected["end"][WEIGHT]), 1e-12);
            close(&bias, &numbers(&expected["end"][BIAS]), 1e-12);
        }
    }
}

/// Every element counts once, whatever the layout; ranks get equal bits; one all-reduce and nothing else.
#[test]
fn norms_and_clipping_are_pytorchs_for_one_reduction() {
    let all = fixture();
    for case in cases() {
        for expected in all["clip_norm"].as_array().unwrap() {
            let order = expected["order"].as_f64().unwrap_or(f64::INFINITY);
            let limit = expected["limit"].as_f64().unwrap();
            let clipped = case.run(|ctx, mesh| {
                let parameters = case.parameters(mesh, &all)?;
                let named: Vec<_> = (parameters.into_iter())
                    .map(|(name, p)| (name.clone(), p.named(&name)))
                    .collect();
                let slopes = &all["slopes"][0];
                let mut gradients = case.gradients(mesh, &named, slopes, true)?;
                // Sums over ranks that are outstanding are not part of the norm's cost.
                gradients.get(&named[0].1)?;
                let before = ctx.ledger().snapshot();
                let norm = gradients.clip_norm(ClipNorm::new(limit).order(order))?;
                let moved = ctx.ledger().since(&before);
                let names = ["all_reduce"].map(String::from).to_vec();
                let used: Vec<String> = (moved.ops.iter())
                    .filter(|(_, count)| count.rounds > 0)
                    .map(|(name, _)| (*name).to_owned())
                    .collect();
                assert_eq!(used, if case.ranks() == 1 { vec![] } else { names });
                // Of two numbers.
                assert_eq!(moved.bytes as usize, (case.ranks() - 1) * 16);
                assert_eq!(moved.rounds, u64::from(case.ranks() > 1));
                let mut left = vec![];
                for (name, gradient) in gradients.iter()? {
                    left.push((name, read(&gradient)?));
                }
                Ok((norm, left))
            });
            assert!(clipped.iter().all(|c| c == &clipped[0]), "equal to the bit");
            let (norm, left) = &clipped[0];
            close(&[*norm], &[expected["norm"].as_f64().unwrap()], 1e-13);
            assert_eq!(left.len(), 2);
            for (name, left) in left {
                close(left, &numbers(&expected["left"][name]), 1e-12);
            }
        }
    }
}

#[test]
fn clipping_by_value_is_pytorchs() {
    let all = fixture();
    for case in cases() {
        let clipped = case.run(|_, mesh| {
            let parameters = case.parameters(mesh, &all)?;
            let mut gradients = case.gradients(mesh, &parameters, &all["slopes"][0], true)?;
            gradients.clip_value(all["clip_value"]["limit"].as_f64().unwrap())?;
            let of = |i: usize| read(&gradients.get(&parameters[i].1)?.unwrap());
            Ok([of(0)?, of(1)?])
        });
        for [weight, bias] in clipped {
            close(&weight, &numbers(&all["clip_value"]["left"][WEIGHT]), 0.0);
            close(&bias, &numbers(&all["clip_value"]["left"][BIAS]), 0.0);
        }
    }
}

/// The rates of 40 steps.
fn table(schedule: &dyn Schedule) -> Vec<f64> {
    (0..40).map(|step| schedule.at(step)).collect()
}

#[test]
fn schedules_are_pytorchs() {
    let all = fixture();
    let losses = numbers(&all["losses"]);
    let heard = |mut plateau: Plateau| losses.iter().map(|&loss| plateau.observe(loss)).collect();
    let tables: [(&str, Vec<f64>); 15] = [
        ("cosine", table(&Cosine::new(0.5, 40).minimum(0.02))),
        ("polynomial", table(&Polynomial::new(0.5, 30).power(1.7))),
        (
            "then",
            table(
                &Constant::new(0.5)
                    .then(25, LinearRate::new(0.5, 0.05, 10))
                    .warmup(5),
            ),
        ),
        (
            "cosine_restarts",
            table(&Cosine::new(0.5, 5).minimum(0.02).restarts(2)),
        ),
        (
            "cosine_restarts_even",
            table(&Cosine::new(0.5, 7).restarts(1)),
        ),
        (
            "warm_cosine",
            table(&Cosine::new(0.5, 40).minimum(0.01).warmup(8)),
        ),
        ("linear", table(&LinearRate::new(0.5, 0.1, 30))),
        ("step", table(&StepDecay::new(0.5, 7, 0.3))),
        ("milestones", table(&Milestones::new(0.5, [4, 11, 30], 0.2))),
        ("exponential", table(&Exponential::new(0.5, 0.9))),
        ("one_cycle", table(&OneCycle::new(0.5, 40))),
        (
            "one_cycle_straight",
            table(
                &OneCycle::new(0.5, 40)
                    .rise(0.4)
                    .straight()
                    .divided_by(10.0, 100.0),
            ),
        ),
        (
            "one_cycle_three",
            table(&OneCycle::new(0.5, 40).three_phases()),
        ),
        (
            "plateau",
            heard(Plateau::new(0.5).factor(0.5).patience(2).cooldown(3)),
        ),
        (
            "plateau_scores",
            heard(
                (Plateau::new(0.5).of_scores().factor(0.7).patience(1))
                    .threshold(0.01)
                    .minimum(0.1),
            ),
        ),
    ];
    for (name, rates) in tables {
        let expected = numbers(&all["schedules"][name]);
        assert_eq!(rates.len(), expected.len());
        for (step, (got, expected)) in rates.iter().zip(&expected).enumerate() {
            assert!(
                (got - expected).abs() <= 1e-12 * expected.abs() + 1e-16,
                "{name} at {step}: {got} is not {expected}"
            );
        }
    }
}

#[test]
fn means_of_weights_are_pytorchs() {
    let all = fixture();
    for case in cases() {
        let followed = case.run(|_, mesh| {
            let weight = case.parameters(mesh, &all)?.remove(0).1;
            let mut ema = Ema::new(&weight, 0.9)?;
            for slopes in all["slopes"].as_array().unwrap() {
                let slope = tensor(mesh, &[4, 3], &case.weight, &numbers(&slopes[WEIGHT]))?;
                weight.set(&weight.sub(&slope.mul_scalar(0.1)?)?.detach())?;
                ema.update()?;
            }
            let own = read(&weight)?;
            let mean = ema.applied(|| read(&weight))?;
            assert_eq!(own, read(&weight)?);
            let panics =
                AssertUnwindSafe(|| ema.applied(|| -> Result<()> { panic!("a validation") }));
            assert!(catch_unwind(panics).is_err());
            assert_eq!(own, read(&weight)?);
            let mut other = Ema::new(&weight, 0.9)?;
            other.load_state(&ema.state()?)?;
            assert_eq!(read(&other.means()[0].1)?, mean);
            assert_eq!(other.state()?.numbers, ema.state()?.numbers);
            Ok(mean)
        });
        for mean in followed {
            close(&mean, &numbers(&all["average"]), 1e-12);
        }
        let counted = case.run(|_, mesh| {
            let weight = case.parameters(mesh, &all)?.remove(0).1;
            let mut mean = Ema::alike(&weight);
            mean.update()?;
            for (step, slopes) in all["slopes"].as_array().unwrap().iter().enumerate() {
                let slope = tensor(mesh, &[4, 3], &case.weight, &numbers(&slopes[WEIGHT]))?;
                weight.set(&weight.sub(&slope.mul_scalar(0.1)?)?.detach())?;
                if step == 3 {
                    // Another one goes on with its state.
                    let mut other = Ema::alike(&weight);
                    other.load_state(&mean.state()?)?;
                    mean = other;
                }
                mean.update()?;
            }
            mean.applied(|| read(&weight))
        });
        for mean in counted {
            close(&mean, &numbers(&all["average_alike"]), 1e-12);
        }
    }
}

/// `SequentialLR` of `LinearLR(1 / 11, total_iters=10)` and what is left of the schedule, which is its first rate and its end.
#[test]
fn a_rise_as_long_as_the_schedule_rises() {
    let schedules: [Box<dyn Schedule>; 3] = [
        Box::new(Cosine::new(1.0, 10).minimum(0.01).warmup(10)),
        Box::new(LinearRate::new(1.0, 0.01, 10).warmup(10)),
        Box::new(LinearRate::new(1.0, 0.01, 4).warmup(10)),
    ];
    for schedule in schedules {
        let rates: Vec<f64> = (0..15).map(|step| schedule.at(step)).collect();
        let rise: Vec<f64> = (1..=11).map(|step| f64::from(step) / 11.0).collect();
        close(&rates[..11], &rise, 1e-12);
        assert!(
            rates[11..].iter().all(|&rate| (rate - 0.01).abs() < 1e-15),
            "{rates:?}"
        );
    }
    let rates = OneCycle::new(0.5, 10).warmup(10);
    close(&[rates.at(9)], &[0.02 * 10.0 / 11.0], 1e-12);
}

/// A second mean of it would be exchanged with the first.
#[test]
fn a_tied_weight_has_one_mean() {
    struct Tied {
        head: ShardTensor,
        body: ShardTensor,
    }
    tree!(Tied { head, body });
    let told = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let weight = mesh.zeros([3], shard(0))?.requires_grad()?;
        let tied = Tied {
            head: weight.clone(),
            body: weight.clone(),
        };
        let mut ema = Ema::new(&tied, 0.5)?;
        weight.set(&mesh.ones([3], shard(0))?)?;
        ema.update()?;
        let names: Vec<String> = ema.means().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["head"]);
        let seen = || weight.mean_all()?.item();
        let first = [seen()?, ema.applied(seen)?, seen()?, ema.applied(seen)?];
        // A state that has it under both names, as those from before had, goes on.
        let mut old = ema.state()?;
        let (_, mean) = old.tensors[0].clone();
        old.tensors.push(("mean.body".to_owned(), mean));
        ema.load_state(&old)?;
        Ok([first[0], first[1], first[2], first[3], ema.applied(seen)?])
    });
    assert_eq!(told.unwrap(), [[1.0, 0.5, 1.0, 0.5, 0.5]; 2]);
}

/// A state that is put down in the middle and taken up by another optimizer goes on to the bit.
#[test]
fn an_optimizer_goes_on_from_its_state() {
    let all = fixture();
    let slopes = all["slopes"].as_array().unwrap();
    for (name, make) in optimizers() {
        for case in cases() {
            case.run(|_, mesh| {
                let parameters = case.parameters(mesh, &all)?;
                let mut optimizer = make(parameters.clone())?;
                let fresh = optimizer.state()?;
                let start = if name == "adagrad_decay" { 0.3 } else { 0.0 };
                let starts = |t: &ShardTensor| Ok::<_, Error>(read(t)?.iter().all(|&x| x == start));
                for (name, tensor) in &fresh.tensors {
                    let parameter = usize::from(name.ends_with(BIAS));
                    let like = parameters[parameter].1.layout();
                    // Rows have no columns, and columns no rows.
                    let part = match tensor.shape() {
                        shape if shape == like.shape() => like.clone(),
                        [_, 1] => like.with_sharding(1, None)?.with_shape(&[4, 1])?,
                        _ => like.with_sharding(0, None)?.with_shape(&[1, 3])?,
                    };
                    assert_eq!(tensor.layout(), &part, "{name}");
                    assert!(starts(tensor)?, "{name}");
                }
                for slopes in &slopes[..3] {
                    optimizer.step(&case.gradients(mesh, &parameters, slopes, true)?)?;
                }
                optimizer.set_learning_rate(0.03);
                let kept = optimizer.state()?;
                assert_eq!(fresh.tensors.len(), kept.tensors.len());
                let again: Vec<(String, ShardTensor)> = (parameters.iter())
                    .map(|(name, p)| Ok((name.clone(), p.detach().requires_grad()?)))
                    .collect::<Result<_>>()?;
                let mut other = make(again.clone())?;
                other.load_state(&kept)?;
                assert_eq!(other.learning_rate(), 0.03);
                for slopes in &slopes[3..] {
                    optimizer.step(&case.gradients(mesh, &parameters, slopes, true)?)?;
                    other.step(&case.gradients(mesh, &again, slopes, true)?)?;
                }
                for ((_, a), (_, b)) in parameters.iter().zip(&again) {
                    assert_eq!(read(a)?, read(b)?, "{name}");
                }
                Ok(())
            });
        }
    }
}

/// A model with something below and something above what is frozen.
struct Three {
    below: ShardTensor,
    middle: ShardTensor,
    above: ShardTensor,
}
tree!(Three {
    below,
    middle,
    above
});

impl Three {
    fn new(mesh: &Mesh) -> Result<Self> {
        let weight = |k: usize| {
            let at = move |i: &[usize]| ((i[0] * 5 + i[1] * 3 + k) % 7) as f64 / 7.0 - 0.4;
            mesh.from_fn([6, 6], replicate(), at)?.requires_grad()
        };
        Ok(Self {
            below: weight(0)?,
            middle: weight(2)?,
            above: weight(4)?,
        })
    }

    fn loss(&self, middle: &ShardTensor) -> Result<ShardTensor> {
        let x = self.below.mesh().from_fn([9, 6], shard(0), |i| {
            ((i[0] * 7 + i[1]) % 5) as f64 / 5.0 - 0.3
        })?;
        let y = x.matmul(&self.below)?.tanh()?.matmul(middle)?.tanh()?;
        y.matmul(&self.above)?.square()?.mean_all()
    }
}

/// All numbers of a state, in its order.
fn of_state(state: &impl Stateful) -> Result<Vec<(String, Vec<f64>)>> {
    let tensors = state.state()?.tensors.into_iter();
    tensors
        .map(|(name, x)| Ok((name, x.to_array::<f64>()?.into_iter().collect())))
        .collect()
}

/// A frozen parameter stays what it is, and so does what an optimizer remembers of it: as if the loss did not depend on it.
#[test]
fn a_frozen_parameter_is_the_same_when_it_thaws() {
    type Lay = fn(Three) -> Result<Three>;
    let lays: [Lay; 3] = [
        Ok,
        |model| model.place(|_, _| shard(1).into()),
        |model| model.fully_sharded("d"),
    ];
    for (ranks, lay) in [1, 3].into_iter().flat_map(|n| lays.map(|lay| (n, lay))) {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("d", ranks)])?;
            let trained = |freezes: bool| -> Result<Vec<_>> {
                let model = lay(Three::new(&mesh)?)?;
                let mut adam = AdamW::new(model.parameters(), 0.05)?;
                let mut ema = Ema::new(&model, 0.5)?;
                for step in 0..6 {
                    let frozen = (2..4).contains(&step);
                    if freezes {
                        model.middle.set_requires_grad(!frozen)?;
                        assert_eq!(model.middle.is_tracked(), !frozen);
                        assert!(model.middle.is_parameter() && model.parameters().len() == 3);
                    }
                    let middle = match frozen && !freezes {
                        true => model.middle.redistribute(replicate())?.detach(),
                        false => model.middle.clone(),
                    };
                    let gradients = model.loss(&middle)?.backward()?;
                    assert_eq!(gradients.get(&model.middle)?.is_none(), frozen);
                    assert_eq!(gradients.len(), if frozen { 2 } else { 3 });
                    adam.step(&gradients)?;
                    ema.update()?;
                }
                let mut all = of_state(&model)?;
                all.extend(of_state(&adam)?);
                all.extend(of_state(&ema)?);
                Ok(all)
            };
            Ok::<_, Error>([trained(true)?, trained(false)?])
        });
        for [found, exact] in found.unwrap() {
            assert_eq!(found.len(), 3 + 6 + 3);
            for ((name, found), (other, exact)) in found.iter().zip(&exact) {
                assert_eq!(name, other);
                close(found, exact, 1e-13);
            }
        }
    }
}

/// What places a model, or gives its parameters values, leaves frozen what is frozen.
#[test]
fn what_is_frozen_stays_so_wherever_it_lies() {
    let out = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh([("d", 2)])?;
        let model = Three::new(&mesh)?;
        model.set_requires_grad(false)?;
        model.above.set_requires_grad(true)?;
        let mut model = model.place(|_, _| replicate().into())?.fully_sharded("d")?;
        let tracked = |model: &Three| {
            [&model.below, &model.middle, &model.above].map(ShardTensor::is_tracked)
        };
        assert_eq!(tracked(&model), [false, false, true]);
        assert!(format!("{:?}", model.below).contains("frozen parameter"));
        let state = model.state()?;
        model.load_state(&state)?;
        model.below.set(&model.below.detach().mul_scalar(2.0)?)?;
        assert_eq!(tracked(&model), [false, false, true]);
        // An optimizer all of whose parameters are frozen has nothing to do.
        let loss = || model.loss(&model.middle);
        let gradients = loss()?.backward()?;
        let mut sgd = Sgd::new(vec![("below".to_owned(), model.below.clone())], 0.1)?;
        sgd.step(&gradients)?;
        // Neither has a loss of frozen parameters alone.
        model.set_requires_grad(false)?;
        let nothing = loss()?;
        assert!(!nothing.is_tracked());
        let refused = [
            nothing.backward().map(|_| ()).map_err(|e| e.to_string()),
            model
                .below
                .on_gradient(|_| Ok(None))
                .map(|_| ())
                .map_err(|e| e.to_string()),
            nothing.set_requires_grad(true).map_err(|e| e.to_string()),
        ];
        // A function that runs again must find what it found.
        model.set_requires_grad(true)?;
        let held = model.middle.clone();
        let again = |model: &Three| {
            let held = held.clone();
            let y = ctx.recompute(&[&model.below], move |x| Ok(vec![x[0].matmul(&held)?]))?;
            y[0].sum_all()
        };
        let loss = again(&model)?;
        model.middle.set_requires_grad(false)?;
        let frozen = loss.backward().map(|_| ()).map_err(|e| e.to_string());
        let loss = again(&model)?;
        assert_eq!(loss.backward()?.len(), 1);
        let loss = again(&model)?;
        model.middle.set_requires_grad(true)?;
        let thawed = loss.backward().map(|_| ()).map_err(|e| e.to_string());
        Ok((refused, frozen, thawed))
    });
    for (refused, frozen, thawed) in out.unwrap() {
        let [nothing, hook, constant] = refused.map(Result::unwrap_err);
        assert!(nothing.contains("frozen"), "{nothing}");
        assert!(hook.contains("frozen"), "{hook}");
        assert!(
            constant.contains("set_requires_grad") && constant.contains("parameter"),
            "{constant}"
        );
        let (frozen, thawed) = (frozen.unwrap_err(), thawed.unwrap_err());
        assert!(
            frozen.contains("frozen") && thawed.contains("frozen"),
            "{frozen} {thawed}"
        );
    }
}

/// Ranks that freeze different parameters are told so.
#[test]
fn ranks_that_freeze_differently_are_told() {
    let out = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let model = Three::new(&ctx.mesh([("d", 2)])?)?;
        if ctx.rank() == 1 {
            model.below.set_requires_grad(false)?;
        }
        model.loss(&model.middle)?.backward().map(|_| ())
    });
    let text = out.unwrap_err().to_string();
    assert!(text.contains("set_requires_grad"), "{text}");
}

/// A file may say any number of steps.
#[test]
fn counts_at_their_end_stay_there() {
    fn at_end(of: &mut impl Stateful) -> Result<()> {
        let mut state = of.state()?;
        for (_, number) in &mut state.numbers {
            if let StateNumber::Whole(count) = number {
                *count = u64::MAX;
            }
        }
        of.load_state(&state)
    }
    struct Weights {
        weight: ShardTensor,
    }
    tree!(Weights { weight });
    let found = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let weight = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
        let model = Weights {
            weight: weight.clone(),
        };
        let mut adam = AdamW::new(model.parameters(), 0.5)?.weight_decay(0.0);
        let (mut ema, mut scale, mut plateau) =
            (Ema::new(&model, 0.5)?, LossScale::new(), Plateau::new(1.0));
        at_end(&mut adam)?;
        at_end(&mut ema)?;
        at_end(&mut scale)?;
        at_end(&mut plateau)?;
        let mut gradients = scale.scaled(&weight.sum_all()?)?.backward()?;
        assert!(scale.unscale(&mut gradients)?);
        adam.step(&gradients)?;
        ema.update()?;
        assert_eq!(ema.state()?.numbers[0].1, StateNumber::Whole(u64::MAX));
        assert_eq!(plateau.observe(f64::NAN), 1.0);
        read(&weight)
    });
    // Means of so many steps are what they are: a tenth of the gradient, over the root of a thousandth of its square.
    for weight in found.unwrap().concat() {
        close(&[weight], &[1.0 - 0.5 * 0.1 / 0.001_f64.sqrt()], 1e-5);
    }
}

/// What is small counts for a thousandth, and a first step is as long as that, times the rate.
#[test]
fn adafactor_moves_parameters_that_are_zero() {
    let moved = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let w = ctx.mesh_of(2)?.zeros([4, 3], shard(0))?.requires_grad()?;
        let mut adafactor = Adafactor::new(vec![("w".to_owned(), w.clone())], 0.01)?;
        adafactor.step(&w.sum_all()?.backward()?)?;
        read(&w)
    });
    close(&moved.unwrap()[0], &[-1e-5; 12], 1e-12);
}

/// Rows and columns of squares of matrices with few elements or none, of vectors and of numbers.
#[test]
fn adafactor_takes_any_shape() {
    let shapes: [&[usize]; 7] = [&[0, 3], &[3, 0], &[1, 5], &[5, 1], &[2, 3, 7], &[0], &[]];
    for shape in shapes {
        let step = |ranks: usize| {
            let launch = Launch::new(ranks).dtype(DType::F64);
            let found = launch.run(|ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let placements = match shape.len() {
                    0 => replicate(),
                    n => shard(n - 1),
                };
                let w = mesh.from_fn(shape.to_vec(), placements, |i| {
                    1.0 + i.iter().sum::<usize>() as f64
                })?;
                let w = w.requires_grad()?;
                let mut adafactor = Adafactor::new(vec![("w".to_owned(), w.clone())], 0.1)?;
                for _ in 0..2 {
                    adafactor.step(&w.square()?.sum_all()?.backward()?)?;
                }
                read(&w)
            });
            found.unwrap()
        };
        let one = step(1).remove(0);
        assert!(one.iter().all(|x| x.is_finite()), "{shape:?}");
        for rank in step(3) {
            close(&rank, &one, 1e-12);
        }
    }
}

/// What follows a warm-up ends where it would have: with it, in as many steps less.
#[test]
fn schedules_behind_a_rise_end_where_they_did() {
    let shifted = |rises: &dyn Schedule, rest: &dyn Schedule| {
        assert!((5..40).all(|step| rises.at(step) == rest.at(step - 5)));
    };
    let line = Polynomial::new(0.5, 30);
    shifted(&line.warmup(5), &Polynomial::new(0.5, 25));
    shifted(&OneCycle::new(0.5, 30).warmup(5), &OneCycle::new(0.5, 25));
    shifted(
        &line.then(20, LinearRate::new(0.5, 0.1, 10)).warmup(5),
        &Polynomial::new(0.5, 25).then(15, LinearRate::new(0.5, 0.1, 10)),
    );
}
