//! Copies of optimizers: what they remember is their own.

use crate::common::read;
use shard_tensor::nn::{ModelExt, Parameters};
use shard_tensor::optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Asgd, Ema, Lambda, Lbfgs, Lion, Muon, NAdam,
    Optimizer, RAdam, RmsProp, Rprop, Schedule, Sgd,
};
use shard_tensor::{DType, Launch, Result, ShardTensor, State, Stateful, replicate, shard};

/// All numbers of a state.
fn told(of: &impl Stateful) -> Result<Vec<(String, Vec<f64>)>> {
    let State { tensors, numbers } = of.state()?;
    let tensors = tensors
        .into_iter()
        .map(|(name, tensor)| Ok((name, read(&tensor)?)));
    let numbers = numbers
        .into_iter()
        .map(|(name, n)| Ok((format!("{name}: {n:?}"), Vec::new())));
    tensors.chain(numbers).collect()
}

fn only(parameter: &ShardTensor) -> Parameters {
    vec![("w".to_owned(), parameter.clone())]
}

/// A step of an optimizer of this parameter.
fn step(optimizer: &mut impl Optimizer, w: &ShardTensor) -> Result<()> {
    optimizer.step(&w.square()?.mul(w)?.sum_all()?.backward()?)
}

/// What remembers goes on by itself, as a clone and with a copy of the model, and as the first would.
fn parts<O: Optimizer + Clone>(
    name: &str,
    make: impl Fn(Parameters) -> Result<O> + Sync,
    with: impl Fn(&O, Parameters) -> Result<O> + Sync,
) {
    let launch = Launch::new(3).dtype(DType::F64);
    let run = launch.run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let start = mesh.from_fn([4, 3], shard(0).sizes([1, 0, 3]), |i| {
            1.0 + (3 * i[0] + i[1]) as f64
        })?;
        let w = start.requires_grad()?;
        let mut first = make(only(&w))?;
        step(&mut first, &w)?;

        let (clone, before) = (first.clone(), told(&first)?);
        let copy = w.copied()?;
        let mut its = with(&first, only(&copy))?;
        assert_eq!(told(&its)?, before, "{name}");
        let parted = w.detach();
        step(&mut first, &w)?;
        let after = told(&first)?;
        assert_ne!(after, before, "{name}");
        assert_eq!(told(&clone)?, before, "{name}: the clone");
        assert_eq!(told(&its)?, before, "{name}: the copy's");
        assert_eq!(read(&copy)?, read(&parted)?, "{name}");

        // The same step, of the copy, and of the first once more from where they parted.
        let moved = read(&w)?;
        step(&mut its, &copy)?;
        assert_eq!(
            (read(&copy)?, told(&its)?),
            (moved.clone(), after.clone()),
            "{name}"
        );
        assert_eq!(read(&w)?, moved, "{name}");
        w.set(&parted)?;
        let mut again = clone;
        step(&mut again, &w)?;
        assert_eq!((read(&w)?, told(&again)?), (moved, after), "{name}");
        its.set_learning_rate(0.5);
        assert_ne!(first.learning_rate(), 0.5, "{name}");
        Ok(())
    });
    run.unwrap();
}

#[test]
fn copies_of_optimizers_go_their_own_ways() {
    macro_rules! each {
        ($($name:ident $(. $set:ident ($($arg:expr),*))*;)*) => {$(
            parts(
                stringify!($name),
                |p| {
                    let made = $name::new(p, 0.01)?$(.$set($($arg),*))*;
                    Ok(made)
                },
                |own, p| own.with_parameters(p),
            );
        )*};
    }
    each! {
        Adadelta;
        Adafactor;
        Adagrad;
        Adam.amsgrad(true);
        AdamW;
        Adamax;
        Lion;
        Muon;
        NAdam;
        RAdam;
        Asgd.t0(0.0);
        RmsProp.momentum(0.9);
        Rprop;
        Sgd.momentum(0.9);
    }
}

/// Options of groups go along, and parameters that are others are refused.
#[test]
fn an_optimizer_of_other_parameters_has_its_options() {
    let run = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let make = |placement| mesh.ones([4], placement)?.requires_grad();
        let (a, b) = (make(shard(0))?, make(shard(0))?);
        let named = |a: &ShardTensor, b: &ShardTensor| {
            vec![("a".to_owned(), a.clone()), ("b".to_owned(), b.clone())]
        };
        let sgd = Sgd::new(named(&a, &b), 0.1)?.group(|n| n == "b", |o| o.learning_rate(0.5))?;
        let (c, d) = (make(shard(0))?, make(shard(0))?);
        let mut other = sgd.with_parameters(named(&c, &d))?;
        other.step(&c.sum_all()?.add(&d.sum_all()?)?.backward()?)?;
        assert_eq!((read(&c)?, read(&d)?), (vec![0.9; 4], vec![0.5; 4]));
        assert_eq!((read(&a)?, read(&b)?), (vec![1.0; 4], vec![1.0; 4]));

        let swapped = sgd.with_parameters(vec![("b".to_owned(), d), ("a".to_owned(), c)]);
        let fewer = sgd.with_parameters(only(&a));
        let whole = make(replicate())?;
        let elsewhere = sgd.with_parameters(named(&whole, &b));
        let none = Sgd::new(Vec::new(), 0.1)?;
        assert!(none.with_parameters(Vec::new()).is_ok());
        let more = none.with_parameters(only(&a));
        let told = [swapped, fewer, elsewhere, more];
        Ok(told.map(|wrong| wrong.unwrap_err().to_string()))
    });
    let expected = [
        "with_parameters: expected parameters named a, b, got b, a",
        "with_parameters: expected parameters named a, b, got w",
        "with_parameters: expected \"a\": f64 [4] S(0), got f64 [4] R",
        "with_parameters: expected no parameters, got w",
    ];
    for (told, expected) in run.unwrap().remove(0).iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}");
    }
}

/// L-BFGS, means of weights, and rates that a function says.
#[test]
fn other_copies_go_their_own_ways() {
    let run = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh
            .from_fn([5], shard(0), |i| 1.0 + i[0] as f64)?
            .requires_grad()?;
        let mut lbfgs = Lbfgs::new(only(&w), 0.1)?.iterations(2);
        let loss = || w.square()?.square()?.sum_all();
        lbfgs.step(loss)?;
        let (clone, before, parted) = (lbfgs.clone(), told(&lbfgs)?, w.detach());
        lbfgs.step(loss)?;
        let (moved, after) = (read(&w)?, told(&lbfgs)?);
        assert_ne!(after, before);
        assert_eq!(told(&clone)?, before);
        w.set(&parted)?;
        let mut again = clone;
        again.step(loss)?;
        assert_eq!((read(&w)?, told(&again)?), (moved, after));

        let mut mean = Ema::new(&w, 0.5)?;
        let (clone, before) = (mean.clone(), told(&mean)?);
        w.set(&w.zeros_like()?)?;
        mean.update()?;
        assert_ne!(told(&mean)?, before);
        assert_eq!(told(&clone)?, before);
        let rates = Lambda::new(1.0, |step| 1.0 / (1 + step) as f64);
        assert_eq!(rates.clone().at(3), rates.at(3));
        Ok(())
    });
    run.unwrap();
}
