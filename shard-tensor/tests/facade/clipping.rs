//! What becomes of gradients between a pass and a step, and what is refused.

use crate::common::read;
use crate::training::close;
use ndarray::arr1;
use shard_tensor::nn::{GroupNorm, Linear, ModelExt, Module};
use shard_tensor::optim::{
    Adam, AdamW, Cosine, Lion, LossScale, Optimizer, Plateau, Schedule, Sgd, check_replicas,
};
use shard_tensor::{
    ClipNorm, DType, Error, ErrorClass, Launch, LocalSizes, Mesh, Placements, Result, ShardTensor,
    State, StateNumber, Stateful, replicate, shard, tree,
};

type Named = Vec<(String, ShardTensor)>;

fn one(mesh: &Mesh, values: &[f64], placements: impl Into<Placements>) -> Result<ShardTensor> {
    mesh.from_fn(values.len(), placements.into(), |i| values[i[0]])?
        .requires_grad()
}

/// Parameters on meshes that overlap, and on one that a rank is no member of.
#[test]
fn a_norm_spans_meshes() {
    let norms = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let all = ctx.mesh_of([2, 2])?;
        let some = ctx.mesh_of(3)?;
        let a = one(&all, &[3.0, 0.0, 1.0], [shard(0), replicate()])?;
        let b = one(&some, &[2.0, -4.0], shard(0).sizes([0, 2, 0]))?;
        let c = one(&some, &[-1.0], replicate())?;
        let mut norms = Vec::new();
        let mut gradients = a.square()?.sum_all()?.backward()?;
        gradients.accumulate(b.square()?.sum_all()?.backward()?)?;
        gradients.accumulate(c.square()?.sum_all()?.backward()?)?;
        for order in [1.0, 2.0, f64::INFINITY] {
            norms.push(gradients.norm(order)?);
        }
        let each: Vec<f64> = gradients.norms(1.0)?.into_iter().map(|n| n.1).collect();
        Ok((norms, each))
    });
    let expected = (vec![22.0, 124.0_f64.sqrt(), 8.0], vec![8.0, 12.0, 2.0]);
    assert_eq!(norms.unwrap(), vec![expected; 4]);
}

#[test]
fn norms_that_are_not_finite_do_what_pytorchs_do() {
    let run = |bad: f64| {
        let clipped = Launch::new(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let w = one(&mesh, &[1.0, bad, 2.0, 3.0], shard(0))?.named("w");
            let v = one(&mesh, &[1.0], replicate())?.named("v");
            let loss = |w: &ShardTensor| w.square()?.sum_all();
            let pass = || {
                let mut gradients = loss(&w)?.backward()?;
                gradients.accumulate(loss(&v)?.backward()?)?;
                Ok::<_, Error>(gradients)
            };
            let mut strict = pass()?;
            let refused = strict
                .clip_norm(ClipNorm::new(1.0).error_if_nonfinite(true))
                .unwrap_err();
            assert_eq!(read(&strict.get(&v)?.unwrap())?, [2.0], "it is left alone");
            let mut loose = pass()?;
            let norm = loose.clip_norm(1.0)?;
            let left = [
                read(&loose.get(&w)?.unwrap())?,
                read(&loose.get(&v)?.unwrap())?,
            ];
            Ok((refused.class(), refused.to_string(), norm, left.concat()))
        });
        clipped.unwrap()
    };
    for (class, text, norm, left) in run(f64::INFINITY) {
        assert_eq!((class, norm), (ErrorClass::Uniform, f64::INFINITY));
        assert!(
            text.contains("inf from \"w\"") && !text.contains("\"v\""),
            "{text}"
        );
        assert!(left[1].is_nan());
        assert_eq!([left[0], left[2], left[4]], [0.0; 3]);
    }
    for (class, text, norm, left) in run(f64::NAN) {
        assert_eq!(class, ErrorClass::Uniform);
        assert!(text.contains("NaN from \"w\""), "{text}");
        assert!(norm.is_nan() && left.iter().all(|x| x.is_nan()));
    }
}

/// Scaling commutes with outstanding sums, and costs nothing; names are the model's.
#[test]
fn gradients_are_a_map() {
    let found = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let model = Linear::new(&mesh, 2, 1)?;
        let unnamed = mesh.ones([1], replicate())?.requires_grad()?;
        let names = model.parameters();
        let x = mesh.ones([5, 2], shard(0))?;
        let loss = model.forward(&x)?.mul(&unnamed)?.sum_all()?;
        let mut gradients = loss.backward()?;
        let before = ctx.ledger().snapshot();
        gradients.scale(0.5)?;
        assert_eq!(ctx.ledger().since(&before).rounds, 0);
        let listed: Vec<String> = gradients.iter()?.map(|g| g.0).collect();
        let bias = read(&gradients.get(&names[1].1)?.unwrap())?;
        gradients.map(|name, g| match name {
            "bias" => g.mul_scalar(10.0),
            _ => Ok(g.clone()),
        })?;
        let wrong = gradients.map(|_, g| g.sum_all()).unwrap_err();
        assert!(matches!(wrong, Error::Autograd(_)), "{wrong}");
        Ok((listed, bias, read(&gradients.get(&names[1].1)?.unwrap())?))
    });
    let listed = ["weight", "bias", "unnamed.2"].map(String::from).to_vec();
    assert_eq!(found.unwrap(), vec![(listed, vec![2.5], vec![25.0]); 3]);
}

struct Net {
    first: Linear,
    norm: GroupNorm,
    last: Linear,
}
tree!(Net { first, norm, last });

impl Net {
    /// With the weights of the layers where placements say.
    fn new(mesh: &Mesh, first: &Placements, last: &Placements) -> Result<Self> {
        let mut net = Self {
            first: Linear::new(mesh, 4, 6)?,
            norm: GroupNorm::new(mesh, 2, 6)?,
            last: Linear::new(mesh, 6, 2)?,
        };
        let moved = |w: &ShardTensor, to: &Placements| w.detach().redistribute(to)?.requires_grad();
        net.first.weight = moved(&net.first.weight, first)?;
        net.last.weight = moved(&net.last.weight, last)?;
        Ok(net)
    }
}

impl Module for Net {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let hidden = self.norm.forward(&self.first.forward(x)?)?;
        self.last.forward(&hidden.gelu()?)
    }
}

type Make = fn(Named) -> Result<Box<dyn Optimizer>>;

/// Four steps of two batches each, accumulated, scaled, clipped both ways, on a schedule: losses, norms and weights.
fn trained(ranks: &[usize], places: [Placements; 3], make: Make) -> (Vec<f64>, Vec<f64>) {
    let [data, first, last] = places;
    let launch = Launch::new(ranks.iter().product())
        .seed(5)
        .dtype(DType::F64);
    let all = launch.run(|ctx| {
        let mesh = ctx.mesh_of(ranks.to_vec())?;
        let net = Net::new(&mesh, &first, &last)?;
        let batches = [mesh.randn([7, 4], &data)?, mesh.randn([5, 4], &data)?];
        let mut optimizer = make(net.parameters())?;
        let rates = Cosine::new(optimizer.learning_rate(), 5).warmup(2);
        let mut told = Vec::new();
        for step in 0..4 {
            let mut sum: Option<shard_tensor::Gradients> = None;
            for x in &batches {
                let loss = net.forward(x)?.square()?.mean_all()?;
                told.push(loss.item()?);
                let gradients = loss.backward()?;
                match &mut sum {
                    None => sum = Some(gradients),
                    Some(sum) => sum.accumulate(gradients)?,
                }
            }
            let mut gradients = sum.unwrap();
            gradients.scale(0.5)?;
            gradients.clip_value(0.2)?;
            told.push(gradients.clip_norm(0.15)?);
            optimizer.set_learning_rate(rates.at(step));
            optimizer.step(&gradients)?;
        }
        check_replicas(&net.parameters())?;
        let weights = net
            .parameters()
            .iter()
            .map(|p| read(&p.1))
            .collect::<Result<Vec<_>>>()?;
        Ok((told, weights.concat()))
    });
    let mut all = all.unwrap();
    assert!(
        all.iter().all(|one| one == &all[0]),
        "replicas are equal to the bit"
    );
    all.swap_remove(0)
}

#[test]
fn many_ranks_train_as_one_with_every_optimizer() {
    let makes: [Make; 6] = [
        |p| Ok(Box::new(Sgd::new(p, 0.3)?)),
        |p| Ok(Box::new(Sgd::new(p, 0.3)?.momentum(0.9).nesterov(true))),
        |p| Ok(Box::new(Adam::new(p, 0.05)?.weight_decay(0.01))),
        |p| Ok(Box::new(AdamW::new(p, 0.05)?.amsgrad(true))),
        |p| {
            let adam = AdamW::new(p, 0.05)?;
            let rate =
                |o: shard_tensor::optim::AdamWOptions| o.learning_rate(0.01).weight_decay(0.3);
            Ok(Box::new(adam.group(|name| name.ends_with("weight"), rate)?))
        },
        |p| Ok(Box::new(Lion::new(p, 0.01)?.weight_decay(0.1))),
    ];
    let all = || Placements::replicated();
    for make in makes {
        let alone = trained(&[1], [all(), all(), all()], make);
        let layouts: [(&[usize], [Placements; 3]); 4] = [
            (&[3], [shard(0).into(), all(), all()]),
            (
                &[3],
                [all(), shard(0).sizes([1, 5, 0]).into(), shard(1).into()],
            ),
            (
                &[4],
                [
                    shard(0).into(),
                    shard(1).sizes([0, 1, 2, 1]).into(),
                    shard(0).into(),
                ],
            ),
            (
                &[2, 2],
                [
                    [shard(0), replicate()].into(),
                    [replicate(), shard(0)].into(),
                    [shard(0), shard(1)].into(),
                ],
            ),
        ];
        for (ranks, places) in layouts {
            let many = trained(ranks, places, make);
            close(&many.0, &alone.0, 1e-10);
            close(&many.1, &alone.1, 1e-10);
        }
    }
}

/// All ranks hear which tensor and which ranks; the group goes on.
#[test]
fn a_replica_that_went_astray_is_found() {
    let texts = Launch::new(4).run(|ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let whole = mesh.ones([3], Placements::replicated())?.requires_grad()?;
        let rows = mesh.ones([4], [shard(0), replicate()])?.requires_grad()?;
        let cells = mesh.ones([4], [shard(0), shard(0)])?.requires_grad()?;
        let named = [("whole", &whole), ("rows", &rows), ("cells", &cells)]
            .map(|(name, t)| (name.to_owned(), t.clone()));
        check_replicas(&named)?;
        // The copies of the second row on ranks 2 and 3 part.
        let mine = arr1(&[
            1.0f32,
            if ctx.rank() == 3 {
                1.0 + f32::EPSILON
            } else {
                1.0
            },
        ]);
        let sizes = LocalSizes::Global([4].into());
        rows.set(&mesh.from_local(&mine, [shard(0), replicate()], sizes)?)?;
        let error = check_replicas(&named).unwrap_err();
        assert_eq!(whole.sum_all()?.item()?, 3.0);
        Ok((error.class(), error.to_string()))
    });
    let texts = texts.unwrap();
    assert!(texts.iter().all(|t| t == &texts[0]), "{texts:?}");
    let (class, text) = &texts[0];
    assert_eq!(*class, ErrorClass::Agreed);
    assert!(
        text.contains("\"rows\"") && text.contains("another on rank 3 than on rank 2"),
        "{text}"
    );
}

/// One rank's infinity makes all of them skip the step.
#[test]
fn a_loss_scale_backs_off_and_grows_on_all_ranks() {
    let told = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let w = one(&mesh, &[1.0, 2.0, 3.0], shard(0))?;
        let mut scale = LossScale::new().from(8.0).growing(2.0, 2, 0.5);
        let mut told = Vec::new();
        for bad in [0.0, 1.0, 0.0, 0.0, 0.0] {
            // Rank 1 alone has an infinite slope.
            let slope = mesh.from_fn(3, shard(0), |i| {
                if i[0] == 1 && bad > 0.0 {
                    f64::INFINITY
                } else {
                    1.0
                }
            })?;
            let loss = w.mul(&slope)?.sum_all()?;
            let mut gradients = scale.scaled(&loss)?.backward()?;
            let good = scale.unscale(&mut gradients)?;
            if good {
                assert_eq!(read(&gradients.get(&w)?.unwrap())?, [1.0; 3]);
            }
            told.push((good, scale.factor()));
        }
        let mut other = LossScale::new().from(8.0).growing(2.0, 2, 0.5);
        other.load_state(&scale.state()?)?;
        assert_eq!(other, scale);
        assert!(other.load_state(&State::default()).is_err());
        Ok(told)
    });
    let expected = [
        (true, 8.0),
        (false, 4.0),
        (true, 4.0),
        (true, 8.0),
        (true, 8.0),
    ];
    assert_eq!(told.unwrap(), vec![expected.to_vec(); 3]);
}

/// The factor would be divided by twice.
#[test]
fn gradients_are_unscaled_once() {
    let told = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = one(&mesh, &[1.0, 2.0, 3.0], shard(0))?;
        let mut scale = LossScale::new().from(8.0);
        let pass = || scale.scaled(&w.sum_all()?)?.backward();
        let (mut gradients, more) = (pass()?, pass()?);
        let (mut late, other) = (pass()?, pass()?);
        gradients.accumulate(more)?;
        assert!(scale.unscale(&mut gradients)?);
        let mut texts = vec![scale.unscale(&mut gradients).unwrap_err().to_string()];
        assert_eq!(read(&gradients.get(&w)?.unwrap())?, [2.0; 3]);
        // Some of these are scaled and some are not.
        late.accumulate(gradients)?;
        texts.push(scale.unscale(&mut late).unwrap_err().to_string());
        // A step that is skipped counts too, and halves the factor once.
        let mut infinite = other;
        infinite.scale(f64::INFINITY)?;
        assert!(!scale.unscale(&mut infinite)?);
        texts.push(scale.unscale(&mut infinite).unwrap_err().to_string());
        assert_eq!(scale.factor(), 4.0);
        Ok(texts)
    });
    for text in told.unwrap().concat() {
        assert!(text.contains("unscale once per step"), "{text}");
    }
}

#[test]
fn a_plateau_goes_on_from_its_state() {
    let losses = [3.0, 2.0, 2.5, 2.4, 2.3, 2.2, 1.0, 1.1, 1.2];
    let new = || Plateau::new(1.0).factor(0.5).patience(1).cooldown(1);
    let mut straight = new();
    for (at, loss) in losses.into_iter().enumerate() {
        let mut again = new();
        again.load_state(&straight.state().unwrap()).unwrap();
        assert_eq!(again, straight, "after {at}");
        straight.observe(loss);
    }
    assert!(straight.rate() < 1.0);
}

/// The same words on all ranks, and nothing changed.
#[test]
fn what_makes_no_sense_is_refused() {
    let texts = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = one(&mesh, &[1.0, 2.0], shard(0))?;
        let v = one(&mesh, &[1.0], replicate())?;
        let named = || -> Named { vec![("w".to_owned(), w.clone())] };
        let pass = |p: &ShardTensor| p.square()?.sum_all()?.backward();
        let told = |e: Result<()>| {
            let e = e.unwrap_err();
            assert_eq!(e.class(), ErrorClass::Uniform, "{e}");
            e.to_string()
        };
        let step = |mut o: Box<dyn Optimizer>| told(o.step(&pass(&w)?).map(drop)).pipe();
        // Of which `f32` has no reciprocal.
        let mut small = LossScale::new().from(1e-40);
        let mut rate = AdamW::new(named(), 0.1)?;
        rate.set_learning_rate(f64::NAN);
        let mut lacking = AdamW::new(named(), 0.1)?.state()?;
        lacking.tensors.pop();
        let mut swapped = Sgd::new(named(), 0.1)?.state()?;
        let twice = [&w, &v].map(|p| ("w".to_owned(), p.clone())).to_vec();
        swapped.numbers = vec![("learning_rate".to_owned(), StateNumber::Whole(1))];
        let texts = vec![
            ("-0.1", told(Sgd::new(named(), -0.1).map(drop))),
            ("NaN", told(AdamW::new(named(), f64::NAN).map(drop))),
            ("NaN", step(Box::new(rate))?),
            (
                "second beta 1",
                step(Box::new(Adam::new(named(), 0.1)?.betas(0.9, 1.0)))?,
            ),
            (
                "momentum -1",
                step(Box::new(Sgd::new(named(), 0.1)?.momentum(-1.0)))?,
            ),
            (
                "none of w",
                told(
                    Lion::new(named(), 0.1)?
                        .group(|n| n == "b", |o| o)
                        .map(drop),
                ),
            ),
            (
                "ratio",
                told(
                    Sgd::new(named(), 0.0)?
                        .group(|_| true, |o| o.learning_rate(1.0))
                        .map(drop),
                ),
            ),
            (
                "all of others",
                told(Sgd::new(named(), 0.1)?.step(&pass(&v)?)),
            ),
            ("\"w\" twice", told(Sgd::new(twice, 0.1)?.state().map(drop))),
            (
                "exp_avg_sq.w",
                told(AdamW::new(named(), 0.1)?.load_state(&lacking)),
            ),
            (
                "learning_rate",
                told(Sgd::new(named(), 0.1)?.load_state(&swapped)),
            ),
            ("-1", told(pass(&w)?.clip_norm(-1.0).map(drop))),
            ("NaN", told(pass(&w)?.clip_value(f64::NAN))),
            ("order", told(pass(&w)?.norm(0.0).map(drop))),
            ("1e-40", told(small.unscale(&mut pass(&w)?).map(drop))),
        ];
        assert_eq!(read(&w)?, [1.0, 2.0]);
        Ok(texts)
    });
    let texts = texts.unwrap();
    assert_eq!(texts[0], texts[1]);
    for (word, text) in &texts[0] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// So that a closure of texts can be used with `?`.
trait Pipe: Sized {
    fn pipe(self) -> Result<Self> {
        Ok(self)
    }
}

impl Pipe for String {}

/// A weight that is used in two places moves once.
#[test]
fn a_tied_weight_is_one_parameter() {
    let moved = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let w = one(&ctx.mesh_of(2)?, &[1.0], replicate())?;
        let named = ["a", "b"].map(|name| (name.to_owned(), w.clone())).to_vec();
        let mut sgd = Sgd::new(named, 0.25)?;
        sgd.step(&w.square()?.sum_all()?.backward()?)?;
        w.item()
    });
    assert_eq!(moved.unwrap(), [0.5, 0.5]);
}

#[test]
fn hits_are_counted_in_one_line() {
    let hits = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let logits = mesh.from_fn([5, 2], shard(0), |i| (i[0] * i[1]) as f64)?;
        let labels = arr1(&[0i64, 0, 0, 1, 1]);
        let labels = mesh.distribute(&labels, shard(0))?;
        let hits = logits.argmax(1)?.eq(&labels)?.to(DType::F32)?.mean_all()?;
        hits.item()
    });
    // Row 0 is a tie, which the first wins.
    assert!((hits.unwrap()[0] - 0.6).abs() < 1e-6);
}

/// By a share of the best, by a difference, and of scores by a share: `ReduceLROnPlateau` with these thresholds.
#[test]
fn plateaus_by_shares_and_differences_are_pytorchs() {
    let plateau = || Plateau::new(1.0).factor(0.5).patience(1);
    let cases = [
        (
            plateau().threshold_share(0.1),
            [10.0, 9.5, 9.0, 8.9, 8.2, 8.1, 7.9, 7.5, 7.0, 6.9, 6.8, 6.7],
            [
                1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125,
            ],
        ),
        (
            plateau().threshold(0.5),
            [10.0, 9.5, 9.4, 8.9, 8.4, 8.3, 8.2, 8.1, 7.5, 7.4, 7.0, 6.9],
            [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25],
        ),
        (
            plateau().of_scores().threshold_share(0.1),
            [
                1.0, 1.1, 1.11, 1.2, 1.3, 1.33, 1.5, 1.6, 1.65, 1.7, 1.9, 2.0,
            ],
            [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5],
        ),
    ];
    for (mut plateau, losses, rates) in cases {
        assert_eq!(losses.map(|loss| plateau.observe(loss)), rates);
    }
}
