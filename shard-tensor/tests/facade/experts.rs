//! Mixtures of experts, against every expert applied to every token.

use crate::common::{close, on, pattern, read};
use shard_tensor::nn::{ExpertRouting, MixtureOfExperts, ModelExt, Module, ParallelPlan};
use shard_tensor::{
    Context, DType, ErrorClass, Launch, Mesh, Placements, Result, ShardTensor, launch, replicate,
    shard,
};

/// A layer to try.
#[derive(Clone, Copy, Debug)]
struct Tried {
    tokens: usize,
    experts: usize,
    top: usize,
    normalized: bool,
    swiglu: bool,
    biased: bool,
    capacity: Option<f64>,
}

impl Tried {
    /// Experts divided over an axis.
    fn over(self, axis: &str) -> ParallelPlan {
        let plan = ParallelPlan::new().shard("w?", axis, 0);
        if self.biased {
            plan.shard("b?", axis, 0)
        } else {
            plan
        }
    }
}

const WIDTH: usize = 3;
const HIDDEN: usize = 4;

/// Tokens that are positive, so that a router's row of one sign says whether an expert is chosen.
fn tokens(mesh: &Mesh, count: usize, at: &Placements) -> Result<ShardTensor> {
    mesh.from_fn([count, WIDTH], at, |i| pattern(9, i).abs() + 0.1)
}

/// A layer whose second and third experts always tie and whose last has no token, if there are more than three.
fn layer(mesh: &Mesh, of: Tried) -> Result<MixtureOfExperts> {
    let mut moe = MixtureOfExperts::new(mesh, WIDTH, HIDDEN, of.experts, of.top)?
        .activation(ShardTensor::gelu);
    // In either order.
    if of.biased && of.normalized {
        moe = moe.biased()?;
    }
    if of.swiglu {
        moe = moe.swiglu()?;
    }
    if of.biased && !of.normalized {
        moe = moe.biased()?;
    }
    if of.normalized {
        moe = moe.normalized();
    }
    if let Some(factor) = of.capacity {
        moe = moe.capacity(factor)?;
    }
    let last = of.experts - 1;
    let gate = mesh.from_fn([of.experts, WIDTH], replicate(), |i| match i[0] {
        e if e == last && last > 2 => -9.0,
        2 => pattern(1, &[1, i[1]]),
        e => pattern(1, &[e, i[1]]),
    })?;
    moe.gate.weight.set(&gate)?;
    let biases = [&moe.b1, &moe.b2, &moe.b3].map(Option::as_ref);
    assert_eq!(
        biases.map(|b| b.is_some()),
        [of.biased, of.biased, of.biased && of.swiglu]
    );
    for (n, w) in [Some(&moe.w1), Some(&moe.w2), moe.w3.as_ref()]
        .into_iter()
        .chain(biases)
        .flatten()
        .enumerate()
    {
        w.set(&mesh.from_fn(w.shape().to_vec(), replicate(), |i| pattern(n + 2, i))?)?;
    }
    Ok(moe)
}

/// Which experts take each token, `[tokens][top]`, and whether they have room.
fn choose(logits: &[f64], of: Tried) -> Vec<Vec<(usize, bool)>> {
    let room = of.capacity.map_or(usize::MAX, |factor| {
        (factor * (of.tokens * of.top) as f64 / of.experts as f64).ceil() as usize
    });
    let mut chosen: Vec<Vec<(usize, bool)>> = (logits.chunks(of.experts))
        .map(|scores| {
            let mut order: Vec<usize> = (0..of.experts).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            order[..of.top].iter().map(|&e| (e, true)).collect()
        })
        .collect();
    let mut taken = vec![0; of.experts];
    for choice in 0..of.top {
        for token in &mut chosen {
            let (expert, kept) = &mut token[choice];
            *kept = taken[*expert] < room;
            taken[*expert] += 1;
        }
    }
    chosen
}

/// What a layer gives, its two losses, what was chosen by how many, and how many were dropped.
struct Found {
    y: ShardTensor,
    losses: [ShardTensor; 2],
    load: Vec<f64>,
    dropped: f64,
}

impl Found {
    fn loss(&self) -> Result<ShardTensor> {
        let weights = self
            .y
            .mesh()
            .from_fn(self.y.shape().to_vec(), replicate(), |i| pattern(7, i))?;
        let [balance, z] = &self.losses;
        let of_y = self.y.mul(&weights)?.sum_all()?;
        of_y.add(&balance.mul_scalar(0.3)?)?
            .add(&z.mul_scalar(0.2)?)
    }
}

/// Every expert on every token, times a gate that is 0 where it was not chosen.
fn dense(moe: &MixtureOfExperts, x: &ShardTensor, of: Tried) -> Result<Found> {
    let logits = x.matmul(&moe.gate.weight.transpose(0, 1)?)?;
    let chosen = choose(&read(&logits)?, of);
    let mesh = x.mesh();
    let mask = |kept: bool| {
        mesh.from_fn([of.tokens, of.experts], replicate(), |i| {
            let there = chosen[i[0]].iter().any(|&(e, k)| e == i[1] && (k || !kept));
            f64::from(u8::from(there))
        })
    };
    let (all, kept) = (mask(false)?, mask(true)?);
    let probabilities = logits.softmax(1)?;
    let mut gates = probabilities.mul(&all)?;
    if of.normalized {
        gates = gates.div(&gates.sum(1, true)?)?;
    }
    let gates = gates.mul(&kept)?;
    let mut y = x.zeros_like()?;
    for e in 0..of.experts {
        let by = |w: &ShardTensor, b: &Option<ShardTensor>, x: &ShardTensor| {
            let y = x.matmul(&w.select(0, e)?.transpose(0, 1)?)?;
            match b {
                Some(b) => y.add(&b.select(0, e)?),
                None => Ok(y),
            }
        };
        let hidden = by(&moe.w1, &moe.b1, x)?;
        let hidden = match &moe.w3 {
            Some(w3) => hidden.silu()?.mul(&by(w3, &moe.b3, x)?)?,
            None => hidden.gelu()?,
        };
        y = y.add(&by(&moe.w2, &moe.b2, &hidden)?.mul(&gates.narrow(1, e..=e)?)?)?;
    }
    let load = all.sum(0, false)?;
    let shares = load.div_scalar((of.tokens * of.top) as f64)?;
    let balance = shares
        .mul(&probabilities.mean(0, false)?)?
        .sum_all()?
        .mul_scalar(of.experts as f64)?;
    let z = logits.exp()?.sum(1, false)?.log()?.square()?.mean_all()?;
    Ok(Found {
        y,
        losses: [balance, z],
        load: read(&load)?,
        dropped: chosen.iter().flatten().filter(|(_, kept)| !kept).count() as f64,
    })
}

fn found(moe: &MixtureOfExperts, x: &ShardTensor) -> Result<Found> {
    let (y, routing) = moe.forward_routed(x)?;
    Ok(Found {
        y,
        losses: [routing.balance_loss()?, routing.z_loss()?],
        load: read(&routing.load()?.to(DType::F64)?)?,
        dropped: routing.dropped()?.item()?,
    })
}

/// Values and all gradients are those of the dense computation.
fn check(mesh: &Mesh, of: Tried, at: &Placements, plan: &ParallelPlan) -> Result<()> {
    let what = format!("{of:?} {at:?} {plan:?}");
    let (plain, moe) = (layer(mesh, of)?, layer(mesh, of)?.distribute(plan)?);
    let xs = [
        tokens(mesh, of.tokens, &replicate().into())?.requires_grad()?,
        tokens(mesh, of.tokens, at)?.requires_grad()?,
    ];
    let (expected, got) = (dense(&plain, &xs[0], of)?, found(&moe, &xs[1])?);
    assert_eq!(got.y.layout(), xs[1].layout(), "{what}");
    assert_eq!(got.load, expected.load, "{what}");
    assert_eq!(got.dropped, expected.dropped, "{what}");
    close(&what, &got.y, &read(&expected.y)?)?;
    for (got, expected) in got.losses.iter().zip(&expected.losses) {
        close(&what, got, &read(expected)?)?;
    }
    let (expected, got) = (expected.loss()?.backward()?, got.loss()?.backward()?);
    let leaves = |moe: &MixtureOfExperts, x: &ShardTensor| {
        let mut all = moe.parameters();
        all.push(("x".to_owned(), x.clone()));
        all
    };
    for ((name, of), (_, in_plain)) in leaves(&moe, &xs[1]).iter().zip(&leaves(&plain, &xs[0])) {
        let slope = got.get(of)?.unwrap_or_else(|| panic!("{name} of {what}"));
        assert_eq!(slope.layout(), of.layout(), "{name} of {what}");
        let plain = expected
            .get(in_plain)?
            .expect("the dense one depends on it");
        close(&format!("{name} of {what}"), &slope, &read(&plain)?)?;
    }
    Ok(())
}

/// Layers with even and uneven numbers, ties, experts without tokens, and dropped tokens.
fn tried() -> Vec<Tried> {
    let plain = Tried {
        tokens: 11,
        experts: 5,
        top: 2,
        normalized: false,
        swiglu: false,
        biased: false,
        capacity: None,
    };
    vec![
        plain,
        Tried {
            swiglu: true,
            biased: true,
            ..plain
        },
        Tried {
            normalized: true,
            swiglu: true,
            biased: true,
            capacity: Some(0.7),
            ..plain
        },
        Tried {
            normalized: true,
            swiglu: true,
            ..plain
        },
        Tried {
            top: 1,
            capacity: Some(1.0),
            ..plain
        },
        Tried {
            normalized: true,
            capacity: Some(0.6),
            swiglu: true,
            top: 3,
            ..plain
        },
        Tried {
            experts: 2,
            tokens: 4,
            capacity: Some(9.0),
            ..plain
        },
        Tried {
            experts: 1,
            top: 1,
            tokens: 1,
            ..plain
        },
    ]
}

#[test]
fn experts_and_tokens_over_one_axis_give_the_dense_result() {
    for ranks in [1, 3, 4] {
        on(ranks, |ctx| {
            let mesh = ctx.mesh([("data", ranks)])?;
            for of in tried() {
                let mut sizes = vec![of.tokens / 3; ranks];
                sizes[0] = 0;
                sizes[ranks - 1] += of.tokens - sizes.iter().sum::<usize>();
                let whole = ParallelPlan::new();
                let experts = of.over("data");
                for at in [
                    Placements::from(shard(0)),
                    shard(0).sizes(sizes).into(),
                    replicate().into(),
                ] {
                    check(&mesh, of, &at, &whole)?;
                    check(&mesh, of, &at, &experts)?;
                }
                let both = ParallelPlan::new()
                    .shard("w?", "data", 0)
                    .fully_shard("gate", "data");
                check(&mesh, of, &shard(1).into(), &both)?;
                check(
                    &mesh,
                    of,
                    &shard(0).into(),
                    &ParallelPlan::new().fully_shard("*", "data"),
                )?;
            }
            Ok(())
        });
    }
}

#[test]
fn experts_over_another_axis_than_tokens_give_the_dense_result() {
    on(6, |ctx| {
        let mesh = ctx.mesh([("data", 2), ("expert", 3)])?;
        for of in tried() {
            let experts = of.over("expert");
            let hidden = ParallelPlan::new()
                .shard("w1", "expert", 1)
                .shard("w3", "expert", 1)
                .shard("w2", "expert", 2);
            let hidden = if of.swiglu {
                hidden
            } else {
                ParallelPlan::new()
                    .shard("w1", "expert", 1)
                    .shard("w2", "expert", 2)
            };
            let over_data: Placements = [("data", shard(0))].into();
            check(&mesh, of, &over_data, &experts)?;
            check(&mesh, of, &over_data, &hidden)?;
            check(
                &mesh,
                of,
                &[("data", shard(0)), ("expert", shard(0))].into(),
                &experts,
            )?;
            check(
                &mesh,
                of,
                &[("expert", shard(0))].into(),
                &ParallelPlan::new().shard("w?", "data", 0),
            )?;
            check(&mesh, of, &over_data, &experts.fully_shard("*", "data"))?;
        }
        Ok(())
    });
}

/// Tokens that are not real change nothing for the others, though they are no numbers and stand in front.
#[test]
fn tokens_that_are_not_real_count_nowhere() {
    on(3, |ctx| {
        let mesh = ctx.mesh([("data", 3)])?;
        for of in tried() {
            for plan in [ParallelPlan::new(), of.over("data")] {
                let moe = layer(&mesh, of)?.distribute(&plan)?;
                let alone = tokens(&mesh, of.tokens, &shard(0).into())?.requires_grad()?;
                let padding = mesh.full([3, WIDTH], f64::NAN, shard(0))?;
                let real =
                    mesh.from_fn([3 + of.tokens], shard(0), |i| f64::from(u8::from(i[0] > 2)))?;
                let real = real.to(DType::Bool)?;
                // As much room as there is for the real ones alone.
                let share = of.tokens as f64 / (of.tokens + 3) as f64;
                let padded = match of.capacity {
                    Some(factor) => moe.clone().capacity(factor * share)?,
                    None => moe.clone(),
                };
                let x = ShardTensor::cat(&[&padding, &alone], 0)?;
                let (expected, told) = moe.forward_routed(&alone)?;
                let (y, routing) = padded.forward_routed_where(&x, &real)?;
                assert_eq!(read(&y.narrow(0, ..3)?)?, [0.0; 3 * WIDTH]);
                let what = format!("{of:?} {plan:?}");
                close(&what, &y.narrow(0, 3..)?, &read(&expected)?)?;
                let numbers = |routing: &ExpertRouting| -> Result<Vec<f64>> {
                    let [load, dropped] =
                        [routing.load()?, routing.dropped()?].map(|n| n.to(DType::F64));
                    let mut all = read(&load?)?;
                    all.push(dropped?.item()?);
                    Ok(all)
                };
                assert_eq!(numbers(&routing)?, numbers(&told)?, "{what}");
                let losses =
                    |routing: &ExpertRouting| routing.balance_loss()?.add(&routing.z_loss()?);
                let (expected, got) = (expected.square()?.sum_all()?, y.square()?.sum_all()?);
                let expected = expected.add(&losses(&told)?)?.backward()?;
                let got = got.add(&losses(&routing)?)?.backward()?;
                for (name, of) in moe.parameters() {
                    let slope = got.get(&of)?.expect("it depends on it");
                    let expected = expected.get(&of)?.expect("it depends on it");
                    close(&format!("{name} of {what}"), &slope, &read(&expected)?)?;
                }
            }
        }
        let of = tried()[0];
        let (moe, x) = (layer(&mesh, of)?, tokens(&mesh, 4, &shard(0).into())?);
        let told = moe
            .forward_routed_where(&x, &mesh.ones([3], shard(0))?)
            .unwrap_err();
        assert!(told.to_string().contains("a mask [4]"), "{told}");
        assert!(
            moe.forward_routed_where(&x, &mesh.ones([4], shard(0))?)
                .is_err()
        );
        Ok(())
    });
}

/// Without a capacity tokens stay where all experts are, and only then.
#[test]
fn tokens_stay_where_all_experts_are() {
    let moved = |divided: bool| {
        let moved = Launch::new(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("data", 3)])?;
            let mut moe = MixtureOfExperts::new(&mesh, 16, 8, 4, 2)?.swiglu()?;
            if divided {
                moe = moe.distribute(&ParallelPlan::new().shard("w?", "data", 0))?;
            }
            let x = mesh.randn([41, 16], shard(0))?;
            let before = ctx.ledger().snapshot();
            let y = ctx.no_grad(|| moe.forward(&x))?;
            y.expect_layout(x.layout())?;
            Ok(ctx.ledger().since(&before).bytes)
        });
        moved.unwrap().into_iter().max().unwrap()
    };
    assert_eq!(moved(false), 0);
    // What comes are tokens and what experts make of others', no matrix of 128 numbers.
    let rows = 41 * 16 * 8;
    assert!(
        (rows / 2..3 * rows).contains(&moved(true)),
        "{} for {rows}",
        moved(true)
    );
}

/// Experts that are not neighbours lie on one rank: their rows are divided as evenly, and their matrices come.
#[test]
fn experts_in_any_order_give_the_dense_result() {
    on(2, |ctx| {
        let mesh = ctx.mesh([("data", 2)])?;
        let of = Tried {
            experts: 6,
            ..tried()[1]
        };
        let place = |name: &str, _: &ShardTensor| match name {
            "gate.weight" => Placements::replicated(),
            _ => shard(0).zigzag().into(),
        };
        let moe = layer(&mesh, of)?.place(place)?;
        let x = tokens(&mesh, of.tokens, &shard(0).into())?;
        let plain = tokens(&mesh, of.tokens, &replicate().into())?;
        let expected = dense(&layer(&mesh, of)?, &plain, of)?;
        close("zigzag", &moe.forward(&x)?, &read(&expected.y)?)
    });
}

/// A batch of sequences, with the sequence divided.
#[test]
fn tokens_may_have_any_dims() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let of = Tried {
            tokens: 10,
            capacity: Some(0.8),
            ..tried()[3]
        };
        let moe = layer(&mesh, of)?.distribute(&ParallelPlan::new().shard("w?", "0", 0));
        assert!(moe.is_err(), "there is no axis of that name");
        let moe = layer(&mesh, of)?.place(|name, _| match name {
            "gate.weight" => Placements::replicated(),
            _ => shard(0).into(),
        })?;
        let expected = read(&moe.forward(&tokens(&mesh, 10, &replicate().into())?)?)?;
        let x = tokens(&mesh, 10, &replicate().into())?.reshape([2, 5, WIDTH])?;
        for at in [shard(0), shard(1).sizes([4, 0, 1]), shard(2)] {
            let x = x.redistribute(at)?;
            let y = moe.forward(&x)?;
            assert_eq!(y.layout(), x.layout());
            close("a batch", &y, &expected)?;
        }
        let one = moe.forward(&x.select(0, 1)?.select(0, 2)?)?; // a token alone, for which there is room
        assert_eq!(one.shape(), [WIDTH]);
        let thirds = x.div_scalar(3.0)?.unsqueeze(0)?.expand([3, -1, -1, -1])?;
        let sum = thirds.redistribute(shard(0))?.sum(0, false)?;
        assert!(sum.layout().is_partial());
        close("a sum", &moe.forward(&sum)?, &expected)
    });
}

#[test]
fn no_tokens_give_none() {
    on(3, |ctx| {
        let mesh = ctx.mesh([("data", 3)])?;
        for capacity in [None, Some(1.25)] {
            let of = Tried {
                tokens: 0,
                capacity,
                ..tried()[3]
            };
            let moe = layer(&mesh, of)?.distribute(&ParallelPlan::new().shard("w?", "data", 0))?;
            let x = tokens(&mesh, 0, &shard(0).into())?.requires_grad()?;
            let (y, routing) = moe.forward_routed(&x)?;
            assert_eq!(y.shape(), [0, WIDTH]);
            assert_eq!(read(&routing.load()?.to(DType::F64)?)?, [0.0; 5]);
            let slopes = y.sum_all()?.backward()?;
            let slope = slopes.get(&moe.w2)?.expect("a gradient of none");
            assert_eq!(read(&slope)?, vec![0.0; 5 * WIDTH * HIDDEN]);
        }
        Ok(())
    });
}

/// What is not finite in one token stays in that token and in the experts it chose.
#[test]
fn a_token_that_is_not_a_number_spoils_no_other() {
    on(3, |ctx| {
        let mesh = ctx.mesh([("data", 3)])?;
        for capacity in [None, Some(0.5)] {
            let of = Tried {
                capacity,
                ..tried()[0]
            };
            let moe = layer(&mesh, of)?.distribute(&ParallelPlan::new().shard("w?", "data", 0))?;
            let x = tokens(&mesh, 11, &shard(0).into())?;
            let x = x
                .slice_assign(0, 0, 1, &mesh.full([1, WIDTH], f64::INFINITY, replicate())?)?
                .requires_grad()?;
            let (y, routing) = moe.forward_routed(&x)?;
            let finite = y
                .isfinite()?
                .all(1, false)?
                .to_array::<shard_tensor::Bool>()?;
            let (first, others) = (finite[[0]], finite.iter().skip(1));
            assert!(!bool::from(first));
            assert!(others.clone().all(|&f| bool::from(f)), "{finite:?}");
            let slopes = y.narrow(0, 1..)?.sum_all()?.backward()?;
            let slope = slopes
                .get(&moe.w1)?
                .expect("it depends on it")
                .isfinite()?
                .all([1, 2], false)?;
            let mine = routing.experts.narrow(0, ..1)?.to_array::<i64>()?;
            for (expert, finite) in slope.to_array::<shard_tensor::Bool>()?.iter().enumerate() {
                assert!(
                    bool::from(*finite) || mine.iter().any(|&e| e as usize == expert),
                    "{expert}"
                );
            }
        }
        Ok(())
    });
}

/// The lowest of experts that score alike is chosen, whoever has it.
#[test]
fn of_experts_that_tie_the_first_is_chosen() {
    on(4, |ctx| {
        let mesh = ctx.mesh([("data", 4)])?;
        let moe = MixtureOfExperts::new(&mesh, WIDTH, HIDDEN, 6, 2)?;
        moe.gate.weight.set(&mesh.zeros([6, WIDTH], replicate())?)?;
        let moe = moe.distribute(&ParallelPlan::new().shard("*", "data", 0))?;
        let (_, routing) = moe.forward_routed(&tokens(&mesh, 5, &shard(0).into())?)?;
        assert_eq!(
            read(&routing.load()?.to(DType::F64)?)?,
            [5.0, 5.0, 0.0, 0.0, 0.0, 0.0]
        );
        assert_eq!(read(&routing.balance_loss()?)?, [1.0]); // probabilities are even
        Ok(())
    });
}

#[test]
fn what_does_not_fit_is_told() {
    let tell = |program: &(dyn Fn(&Context) -> Result<()> + Sync)| {
        let error = launch(2, program).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform, "{error}");
        error.to_string()
    };
    let made = |ctx: &Context| MixtureOfExperts::new(&ctx.mesh_of(2)?, 4, 8, 3, 2);
    for top in [0, 4] {
        let told =
            tell(&move |ctx| MixtureOfExperts::new(&ctx.mesh_of(2)?, 4, 8, 3, top).map(|_| ()));
        assert!(told.contains("1 to 3 experts"), "{told}");
    }
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let told = tell(&move |ctx| made(ctx)?.capacity(factor).map(|_| ()));
        assert!(told.contains("a number above 0"), "{told}");
    }
    let told = tell(&|ctx| {
        made(ctx)?
            .forward(&ctx.mesh_of(2)?.ones([5, 3], shard(0))?)
            .map(|_| ())
    });
    assert!(told.contains("[5, 3]") && told.contains("width"), "{told}");
    let told = tell(&|ctx| {
        made(ctx)?
            .forward(&ctx.mesh_of(2)?.ones([], replicate())?)
            .map(|_| ())
    });
    assert!(told.contains("width"), "{told}");
}

/// Where experts are divided, tokens go to them once per rank, and sums come back: in bytes, as told.
#[test]
fn a_rank_asks_for_each_of_its_tokens_once() {
    let bytes = |normalized: bool| {
        let moved = Launch::new(2).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("data", 2)])?;
            // Both experts of a token are on rank 1.
            let moe = MixtureOfExperts::new(&mesh, 64, 8, 4, 2)?.capacity(2.0)?;
            let moe = if normalized { moe.normalized() } else { moe };
            let gate = mesh.from_fn([4, 64], replicate(), |i| i[0] as f64)?;
            moe.gate.weight.set(&gate)?;
            let moe = moe.distribute(&ParallelPlan::new().shard("w?", "data", 0))?;
            let x = mesh.ones([40, 64], shard(0))?;
            let before = ctx.ledger().snapshot();
            let y = ctx.no_grad(|| moe.forward(&x))?;
            y.expect_layout(shard(0))?;
            Ok(ctx.ledger().since(&before).bytes)
        });
        moved.unwrap().into_iter().max().unwrap()
    };
    // 20 rows of 64 numbers each way, and no more of the rest than a row of 64 numbers per two tokens.
    let rows = 20 * 64 * 8;
    for normalized in [true, false] {
        assert!(
            (rows..rows + rows / 2).contains(&bytes(normalized)),
            "{} for {rows}",
            bytes(normalized)
        );
    }
}

/// A training under autocast and with all kinds of parallelism takes its course.
#[test]
fn a_router_learns_to_share_the_work() {
    let course = |ranks: [usize; 2]| {
        let run = launch(ranks[0] * ranks[1], |ctx| {
            use shard_tensor::optim::{AdamW, Optimizer};
            let mesh = ctx.mesh([("data", ranks[0]), ("expert", ranks[1])])?;
            let moe = MixtureOfExperts::new(&mesh, 8, 8, 6, 2)?
                .swiglu()?
                .normalized();
            let moe = moe.distribute(
                &ParallelPlan::new()
                    .shard("w?", "expert", 0)
                    .fully_shard("w?", "data"),
            )?;
            let mut adam = AdamW::new(moe.parameters(), 3e-2)?;
            let x = mesh.randn([50, 8], [("data", shard(0)), ("expert", shard(0))])?;
            let mut told = Vec::new();
            for _ in 0..12 {
                let (loss, routing) = ctx.autocast(DType::BF16, || {
                    let (y, routing) = moe.forward_routed(&x)?;
                    let loss = y
                        .mse_loss(&x.flip(1)?)?
                        .add(&routing.balance_loss()?.mul_scalar(0.1)?)?;
                    Ok((loss, routing))
                })?;
                adam.step(&loss.backward()?)?;
                let ExpertRouting { kept, .. } = &routing;
                assert!(kept.is_none());
                told.push(loss.item()?);
            }
            Ok(told)
        });
        run.unwrap().remove(0)
    };
    let (one, four) = (course([1, 1]), course([2, 2]));
    assert!(one[11] < 0.9 * one[0], "{one:?}");
    for (a, b) in one.iter().zip(&four).take(3) {
        assert!((a - b).abs() < 0.02 * a, "{one:?} {four:?}");
    }
}
