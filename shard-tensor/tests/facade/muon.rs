//! Muon against PyTorch's numbers in double precision (`xtests/data/optimizers.json`), on many layouts.

use crate::common::read;
use crate::optimizing::{WEIGHT, fixture, numbers, tensor};
use crate::training::close;
use shard_tensor::optim::{Muon, MuonScale, Optimizer};
use shard_tensor::{
    DType, DeviceMesh, Error, Launch, Mesh, Placements, Result, ShardTensor, Stateful, replicate,
    shard,
};

/// A mesh, and how a matrix is divided on it.
fn layouts() -> Vec<(&'static [usize], Placements)> {
    vec![
        (&[1], replicate().into()),
        (&[3], replicate().into()),
        (&[3], shard(0).into()),
        (&[5], shard(1).into()),
        (&[3], [shard(0).block_cyclic(1)].into()),
        (&[2, 2], [shard(0), shard(1)].into()),
        (&[2, 2], [shard(1), shard(1)].into()),
        (&[2, 3], [replicate(), shard(0)].into()),
    ]
}

/// What a function makes on each rank of a mesh.
fn on<T: Send>(mesh: &[usize], f: impl Fn(&Mesh) -> Result<T> + Sync) -> Vec<T> {
    let launch = Launch::new(mesh.iter().product()).dtype(DType::F64);
    launch.run(|ctx| f(&ctx.mesh_of(mesh.to_vec())?)).unwrap()
}

/// A matrix of 4 x 3, or its transpose.
fn matrix(mesh: &Mesh, placements: &Placements, x: &[f64], turned: bool) -> Result<ShardTensor> {
    match turned {
        false => tensor(mesh, &[4, 3], placements, x),
        true => mesh.from_fn([3, 4], placements, |i| x[3 * i[1] + i[0]]),
    }
}

fn options(name: &str, muon: Muon) -> Muon {
    match name {
        "plain" => muon,
        "options" => muon
            .weight_decay(0.3)
            .momentum(0.6)
            .nesterov(false)
            .coefficients(2.0, -1.5, 0.5)
            .iterations(3),
        "like_adamw" => muon.scale(MuonScale::LikeAdamW),
        "spectral" => muon.scale(MuonScale::Spectral),
        _ => panic!("options {name}"),
    }
}

#[test]
fn steps_and_momentum_are_pytorchs() {
    let all = fixture();
    for (mesh, placements) in layouts() {
        for (name, expected) in all["muon"].as_object().unwrap() {
            for (turned, kind) in [(false, "tall"), (true, "wide")] {
                let found = on(mesh, |mesh| {
                    let start = numbers(&all["start"][WEIGHT]);
                    let w = matrix(mesh, &placements, &start, turned)?.requires_grad()?;
                    let layout = w.layout().clone();
                    let muon = Muon::new(vec![("w".to_owned(), w.clone())], 0.05)?;
                    let mut muon = options(name, muon);
                    for slopes in all["slopes"].as_array().unwrap() {
                        let slopes = numbers(&slopes[WEIGHT]);
                        let slope = matrix(mesh, &replicate().into(), &slopes, turned)?;
                        muon.step(&w.mul(&slope)?.sum_all()?.backward()?)?;
                    }
                    assert_eq!(w.layout(), &layout);
                    let state = muon.state()?;
                    Ok((read(&w)?, read(state.tensor("momentum_buffer.w").unwrap())?))
                });
                for (end, momentum) in found {
                    close(&end, &numbers(&expected["end"][kind]), 1e-12);
                    close(&momentum, &numbers(&expected["state"][kind]), 1e-13);
                }
            }
        }
    }
}

/// Whole matrices move nothing; of others their momentum goes to where products are sums, and squares of the shorter dim are summed.
#[test]
fn matrices_move_as_documented() {
    let moved = |shape: [usize; 2], placements: Placements| {
        let ranks = Launch::new(2).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(2)?;
            let w = mesh.randn(shape, &placements)?.requires_grad()?;
            let gradients = w.square()?.sum_all()?.backward()?;
            gradients.get(&w)?;
            let mut muon = Muon::new(vec![("w".to_owned(), w)], 0.1)?.iterations(3);
            let before = ctx.ledger().snapshot();
            muon.step(&gradients)?;
            Ok(ctx.ledger().since(&before).bytes)
        });
        ranks.unwrap().iter().sum::<u64>()
    };
    assert_eq!(moved([6, 10], replicate().into()), 0);
    // A number, and three squares of 6 x 6, from either rank to the other.
    let sums = 2 * 8 * (1 + 3 * 36);
    assert_eq!(moved([6, 10], shard(1).into()), sums);
    assert_eq!(moved([10, 6], shard(0).into()), sums);
    // There and back, half of what either rank has.
    assert_eq!(moved([6, 10], shard(0).into()), sums + 2 * 2 * 8 * 15);
}

#[test]
fn matrices_of_few_rows_and_of_none_are_stepped() {
    for (shape, placements) in [
        ([0, 3], Placements::from(shard(1))),
        ([3, 0], shard(0).into()),
        ([1, 5], shard(0).into()),
        ([5, 1], shard(0).into()),
        ([2, 2], shard(1).into()),
    ] {
        let step = |mesh: &Mesh, placements: &Placements| {
            let w = mesh.from_fn(shape, placements, |i| 1.0 + i[0] as f64 - 2.0 * i[1] as f64)?;
            let w = w.requires_grad()?;
            let mut muon = Muon::new(vec![("w".to_owned(), w.clone())], 0.05)?;
            // The second gradient is nothing at all.
            muon.step(&w.square()?.sum_all()?.backward()?)?;
            muon.step(&w.mul_scalar(0.0)?.sum_all()?.backward()?)?;
            read(&w)
        };
        let one = on(&[1], |mesh| step(mesh, &replicate().into()));
        assert!(one[0].iter().all(|x| x.is_finite()));
        for rank in on(&[3], |mesh| step(mesh, &placements)) {
            close(&rank, &one[0], 1e-12);
        }
    }
}

/// Ranks off a matrix's mesh take the step with the others, and have nothing of it.
#[test]
fn matrices_on_some_ranks_are_stepped_by_all() {
    let step = |ranks: usize| {
        let launch = Launch::new(ranks).dtype(DType::F64);
        let found = launch.run(|ctx| {
            let mesh = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![1, 0])?)?;
            let w = mesh.from_fn([3, 4], shard(0), |i| (1 + i[0] * i[1]) as f64)?;
            let w = w.requires_grad()?;
            let mut muon = Muon::new(vec![("w".to_owned(), w.clone())], 0.05)?;
            muon.step(&w.square()?.sum_all()?.backward()?)?;
            mesh.is_member().then(|| read(&w)).transpose()
        });
        found.unwrap()
    };
    let (two, four) = (step(2), step(4));
    assert!(two[0].is_some() && two == four[..2]);
    assert_eq!(four[2..], [None, None]);
}

/// Singular values are as far from one as the iteration leaves them, whatever the products' type.
#[test]
fn products_may_be_in_sixteen_bits() {
    let found = on(&[2], |mesh| {
        let start = mesh.randn([8, 6], shard(0))?;
        let step = |dtype: Option<DType>| {
            let w = start.detach().requires_grad()?;
            let mut muon = Muon::new(vec![("w".to_owned(), w.clone())], 1.0)?.weight_decay(0.0);
            if let Some(dtype) = dtype {
                muon = muon.products_in(dtype);
            }
            muon.step(&w.square()?.sum_all()?.backward()?)?;
            read(&start.sub(&w)?)
        };
        Ok((step(None)?, step(Some(DType::BF16))?))
    });
    for (wide, narrow) in found {
        let error = wide.iter().zip(&narrow).map(|(a, b)| (a - b).abs());
        let (most, largest) = (
            error.fold(0.0, f64::max),
            wide.iter().fold(0.0, |m, x| x.abs().max(m)),
        );
        assert!(most > 0.0 && most < 0.05 * largest, "{most} of {largest}");
    }
}

#[test]
fn what_are_no_matrices_is_refused() {
    let text = |make: fn(&Mesh) -> Result<()>| {
        let error = Launch::new(2).run(|ctx| {
            let error = make(&ctx.mesh_of(2)?).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }));
            Ok(error.to_string())
        });
        error.unwrap().swap_remove(0)
    };
    let bias = text(|mesh| {
        let b = mesh.ones([3], replicate())?.requires_grad()?;
        Muon::new(vec![("bias".to_owned(), b)], 0.1).map(drop)
    });
    assert!(
        bias.contains("Muon") && bias.contains("\"bias\" of shape [3]") && bias.contains("AdamW"),
        "{bias}"
    );
    let endless = text(|mesh| {
        let w = mesh.ones([3, 3], replicate())?.requires_grad()?;
        let muon = Muon::new(vec![("w".to_owned(), w.clone())], 0.1)?;
        muon.iterations(usize::MAX).step(&w.sum_all()?.backward()?)
    });
    assert!(endless.contains("fewer than 100"), "{endless}");
    let integers = text(|mesh| {
        let w = mesh.ones([3, 3], replicate())?.requires_grad()?;
        let mut muon = Muon::new(vec![("w".to_owned(), w.clone())], 0.1)?.products_in(DType::I32);
        muon.step(&w.sum_all()?.backward()?)
    });
    assert!(
        integers.contains("floating-point") && integers.contains("i32"),
        "{integers}"
    );
}

#[test]
fn a_step_in_a_region_of_16_bits_is_that_outside_of_it() {
    let steps = shard_tensor::launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let stepped = |inside: bool| {
            let w = mesh.from_fn([4, 3], shard(0), |i| (i[0] * 3 + i[1]) as f64 * 0.37 - 1.0)?;
            let w = w.requires_grad()?;
            let gradients = w.square()?.sum_all()?.backward()?;
            let mut muon = Muon::new(vec![("w".to_owned(), w.clone())], 0.1)?;
            match inside {
                true => ctx.autocast(DType::BF16, || muon.step(&gradients))?,
                false => muon.step(&gradients)?,
            }
            w.to_array::<f32>()
        };
        Ok([stepped(true)?, stepped(false)?])
    });
    for [inside, outside] in steps.unwrap() {
        assert_eq!(inside, outside);
    }
}
