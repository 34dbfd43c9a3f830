//! Gradients through the facade: the law, hooks, higher order, no_grad.

use crate::common::read;
use shard_tensor::nn::{Linear, ModelExt, Module};
use shard_tensor::optim::{Optimizer, Sgd};
use shard_tensor::{DType, Launch, Placements, Result, checkpoint, launch, replicate, shard};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

#[test]
fn a_gradient_has_the_layout_of_its_value() {
    let layouts: [Placements; 4] = [
        [shard(0), shard(1)].into(),
        [shard(0).sizes([0, 5]), replicate()].into(),
        [replicate(), replicate()].into(),
        [shard(1), shard(1)].into(),
    ];
    for placements in &layouts {
        let checked = Launch::new(4).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of([2, 2])?;
            let w = mesh
                .from_fn([5, 3], placements, |i| (3 * i[0] + i[1]) as f64)?
                .requires_grad()?;
            let x = mesh.from_fn([5, 3], [shard(1), shard(0)], |i| i[1] as f64)?;
            let loss = (&w.square()? * &x).sum_all()?;
            let gradient = loss.backward()?.get(&w)?.unwrap();
            assert_eq!(gradient.layout(), w.layout());
            let expected: Vec<f64> = (0..15).map(|i| f64::from(2 * i * (i % 3))).collect();
            assert_eq!(read(&gradient)?, expected);
            Ok(())
        });
        checked.unwrap();
    }
}

#[test]
fn second_derivatives() {
    let checked = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.arange(4, [shard(0)])?.requires_grad()?;
        let cubes = x.mul(&x)?.mul(&x)?.sum_all()?;
        let slope = cubes.grad(&[&x], true)?.swap_remove(0).unwrap();
        assert_eq!(read(&slope)?, [0.0, 3.0, 12.0, 27.0]);
        let curve = slope.sum_all()?.grad(&[&x], false)?.swap_remove(0).unwrap();
        assert_eq!(read(&curve)?, [0.0, 6.0, 12.0, 18.0]);
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn a_gradient_by_one_tensor_is_there_or_an_error() {
    let told = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.arange(4, shard(0).sizes([3, 1]))?.requires_grad()?;
        let other = mesh.ones([2], shard(0))?.requires_grad()?;
        let y = x.square()?.sum_all()?;
        let slope = y.grad1(&x, true)?;
        assert_eq!(slope.layout(), x.layout());
        assert_eq!(read(&slope)?, [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(read(&slope.sum_all()?.grad1(&x, false)?)?, [2.0; 4]);
        Ok(y.grad1(&other, false).unwrap_err().to_string())
    });
    let told = told.unwrap();
    assert!(
        told[0].contains("a tensor that depends on the input"),
        "{}",
        told[0]
    );
    assert_eq!(told[0], told[1]);
}

#[test]
fn a_cotangent_of_any_layout_is_where_gradients_start() {
    let done = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.arange(4, shard(0).sizes([3, 1]))?.requires_grad()?;
        let y = x.square()?;
        for placed in [shard(0), replicate()] {
            let seed = mesh.arange(4, placed)?.add_scalar(1.0)?;
            let slope = y.grad_with(&seed, &[&x], false)?.remove(0).unwrap();
            assert_eq!(slope.layout(), x.layout());
            assert_eq!(read(&slope)?, [0.0, 4.0, 12.0, 24.0]);
        }
        Ok(())
    });
    done.unwrap();
}

/// The gradients of one of two models are those of a pass for all; the others are not there, and neither their sums over ranks.
#[test]
fn a_pass_for_one_of_two_models() {
    for how in 0..3 {
        let moved = Launch::new(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("data", 3)])?;
            let placed = |layer: Linear| match how {
                0 => Ok(layer),
                1 => layer.fully_sharded("data"),
                _ => layer.place(|_, t| match t.ndim() {
                    2 => shard(0).sizes([0, 3, t.shape()[0] - 3]).into(),
                    _ => replicate().into(),
                }),
            };
            let painter = placed(Linear::new(&mesh, 5, 4)?)?;
            let critic = placed(Linear::new(&mesh, 4, 6)?)?;
            let x = mesh.randn([7, 5], shard(0))?.requires_grad()?;
            let loss = || {
                critic
                    .forward(&painter.forward(&x)?.tanh()?)?
                    .square()?
                    .sum_all()
            };
            let all = loss()?.backward()?;
            assert_eq!(all.len(), 5);
            let mut moved = vec![];
            for (own, other) in [(&painter, &critic), (&critic, &painter)] {
                let own = own.parameters();
                let before = loss()?;
                let start = ctx.ledger().snapshot();
                let gradients = before.backward_to(&own)?;
                assert_eq!(gradients.len(), 2);
                let norm = gradients.norm(2.0)?;
                moved.push(ctx.ledger().since(&start).bytes);
                let mut squares = 0.0;
                for (_, p) in &own {
                    let (one, both) = (gradients.get(p)?.unwrap(), all.get(p)?.unwrap());
                    assert_eq!(one.layout(), p.layout());
                    assert_eq!(read(&one)?, read(&both)?);
                    squares += read(&one)?.iter().map(|x| x * x).sum::<f64>();
                }
                assert!((norm - squares.sqrt()).abs() < 1e-12 * norm);
                for (_, p) in other.parameters() {
                    assert!(gradients.get(&p)?.is_none());
                }
            }
            let loss = loss()?;
            let start = ctx.ledger().snapshot();
            loss.backward()?.norm(2.0)?;
            moved.push(ctx.ledger().since(&start).bytes);
            // Of a frozen model there is nothing, and it is no error to name it among others.
            painter.set_requires_grad(false)?;
            let loss = critic.forward(&painter.forward(&x)?)?.sum_all()?;
            let named = [painter.parameters(), critic.parameters()].concat();
            assert_eq!(loss.backward_to(&named)?.len(), 2);
            let told = loss.backward_to(&painter.parameters()).unwrap_err();
            assert!(told.to_string().contains("not frozen"), "{told}");
            let plain = vec![("x".to_owned(), x.detach())];
            let told = loss.backward_to(&plain).unwrap_err();
            assert!(told.to_string().contains("a parameter"), "{told}");
            Ok(moved)
        });
        for moved in moved.unwrap() {
            let [painter, critic, all] = moved[..] else {
                unreachable!("three passes")
            };
            assert!(painter < all && critic < all, "{how}: {moved:?}");
        }
    }
}

#[test]
fn hooks_see_and_replace() {
    let seen = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.arange(3, [shard(0)])?.requires_grad()?;
        let y = &x * 2.0;
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = seen.clone();
        y.on_gradient(move |g| {
            log.borrow_mut().push(g.layout().to_string());
            Ok(Some(g.mul_scalar(10.0)?))
        })?;
        let gradient = y.sum_all()?.backward()?.get(&x)?.unwrap();
        assert_eq!(read(&gradient)?, [20.0; 3]);
        Ok(seen.take())
    });
    assert_eq!(seen.unwrap(), [["S(0)"], ["S(0)"]]);
}

/// What is moved is a tensor of its own, whether there was anything to move or not.
#[test]
fn a_branch_that_is_moved_has_gradients_of_its_own() {
    for placement in [shard(0), replicate()] {
        let gradients = Launch::new(2).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(2)?;
            let x = mesh.ones([3], shard(0))?.requires_grad()?;
            let y = x.square()?;
            let branch = y.redistribute([placement.clone()])?;
            branch.on_gradient(|g| Ok(Some(g.mul_scalar(10.0)?)))?;
            let loss = y.add(&branch)?.sum_all()?;
            assert!(y.sum_all()?.grad(&[&branch], false)?[0].is_none());
            read(&loss.backward()?.get(&x)?.unwrap())
        });
        assert_eq!(gradients.unwrap()[1], [22.0; 3]);
    }
}

#[test]
fn nothing_is_recorded_where_nothing_should() {
    let texts = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([3], [shard(0)])?.requires_grad()?;
        let (silent, detached) = (ctx.no_grad(|| x.square())?, x.detach().square()?);
        assert!(!silent.is_tracked() && !detached.is_tracked() && x.square()?.is_tracked());
        // Also what is its operand as it is, which in another layout it would not be.
        let same = ctx.no_grad(|| {
            let moved = [x.redistribute([shard(0)])?, x.redistribute([replicate()])?];
            let kept = [x.reduced()?, x.to(x.dtype())?, x.expand([3])?];
            Ok([&moved[..], &kept[..]].concat())
        })?;
        assert!(same.iter().all(|x| !x.is_tracked()));
        assert!(x.redistribute([shard(0)])?.is_tracked());
        Ok(silent.sum_all()?.backward().unwrap_err().to_string())
    });
    assert!(texts.unwrap()[0].contains("not on this tape"));
}

#[test]
fn accumulated_gradients_are_the_sum() {
    let checked = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let w = mesh.full(2, 3.0, [replicate()])?.requires_grad()?;
        let part = |scale: f64| {
            (&w * &mesh.full([4, 2], scale, [shard(0)])?)
                .sum_all()?
                .backward()
        };
        let mut gradients = part(1.0)?;
        gradients.accumulate(part(10.0)?)?;
        assert_eq!(read(&gradients.get(&w)?.unwrap())?, [44.0; 2]);
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn a_parameter_is_the_only_thing_that_changes() {
    let checked = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh.ones([3], [shard(0)])?.requires_grad()?;
        let (alias, before) = (w.clone(), &w * 1.0);
        w.set(&mesh.full([3], 5.0, [shard(0)])?)?;
        assert_eq!(
            (alias.sum_all()?.item()?, before.sum_all()?.item()?),
            (15.0, 3.0)
        );
        // What was computed before keeps the old value; its gradient is still the parameter's.
        let slope = before.sum_all()?.backward()?.get(&w)?;
        assert_eq!(slope.expect("it depends on w").sum_all()?.item()?, 3.0);
        let other_layout = w.set(&mesh.ones([3], [replicate()])?).unwrap_err();
        let no_parameter = before.set(&w.detach()).unwrap_err();
        Ok([other_layout.to_string(), no_parameter.to_string()])
    });
    let texts = checked.unwrap().swap_remove(0);
    assert!(
        texts[0].contains("redistribute") && texts[1].contains("requires_grad"),
        "{texts:?}"
    );
}

/// A hook stays on its parameter whatever happens to the value: `set`, a step, a file.
#[test]
fn hooks_outlive_the_values_of_their_parameter() {
    let path = std::env::temp_dir().join(format!("shard-tensor-{}-hooked", std::process::id()));
    let calls = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh.ones([3], [shard(0)])?.requires_grad()?;
        let calls = Rc::new(RefCell::new(0));
        let count = calls.clone();
        let handle = w.on_gradient(move |g| {
            *count.borrow_mut() += 1;
            Ok(Some(g.mul_scalar(0.5)?))
        })?;
        let slope = || -> Result<f64> {
            let gradients = w.square()?.sum_all()?.backward()?;
            gradients
                .get(&w)?
                .expect("it depends on w")
                .sum_all()?
                .item()
        };
        let mut slopes = vec![slope()?];
        w.set(&mesh.full([3], 2.0, [shard(0)])?)?;
        slopes.push(slope()?);
        let named = [("w".to_owned(), w.clone())];
        Sgd::new(named.to_vec(), 0.5)?.step(&w.sum_all()?.backward()?)?;
        slopes.push(slope()?);
        checkpoint::save(&path, &named)?;
        checkpoint::load(&path, &named)?;
        slopes.push(slope()?);
        handle.remove();
        slopes.push(slope()?);
        let calls = *calls.borrow();
        Ok((slopes, calls))
    });
    std::fs::remove_file(&path).unwrap();
    // The step moves 2 by half a rate times half a gradient: to 1.75.
    let slopes = vec![3.0, 6.0, 5.25, 5.25, 10.5];
    assert_eq!(calls.unwrap(), vec![(slopes, 5); 2]);
}

/// A graph may hold several values of a parameter; the gradient is of the parameter.
#[test]
fn gradients_of_a_value_before_and_of_one_after_add_up() {
    let slopes = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh.full([2], 3.0, [replicate()])?.requires_grad()?;
        let before = w.square()?;
        w.set(&mesh.full([2], 10.0, [replicate()])?)?;
        let both = before.add(&w.square()?)?.sum_all()?;
        let slope = both.backward()?.get(&w)?.expect("it depends on w");
        slope.to_array::<f32>()
    });
    assert_eq!(slopes.unwrap()[1], ndarray::arr1(&[26.0, 26.0]).into_dyn());
}

/// A hook that holds its own parameter is a cycle; the end of the launch breaks it.
#[test]
fn hooks_are_dropped_with_the_launch() {
    let witness = Arc::new(());
    let ran = launch(2, |ctx| {
        let w = ctx.mesh_of(2)?.ones([3], [shard(0)])?.requires_grad()?;
        let (own, held) = (w.clone(), witness.clone());
        w.on_gradient(move |g| {
            let _held = &held;
            Ok(Some(g.mul(&own.detach())?))
        })?;
        w.sum_all()?
            .backward()?
            .get(&w)?
            .expect("it depends on w")
            .sum_all()?
            .item()
    });
    assert_eq!(ran.unwrap(), [3.0, 3.0]);
    assert_eq!(Arc::strong_count(&witness), 1);
}

/// A square matrix of rank 2: what its vectors span is all there is, so nothing is divided by the smallest singular value. By PyTorch 2.
#[cfg(feature = "linalg")]
#[test]
fn singular_vectors_of_a_singular_matrix_have_gradients() {
    let found = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let matrix = |i: &[usize]| (3 * i[0] + i[1] + 1) as f64;
        let x = mesh.from_fn([3, 3], replicate(), matrix)?.requires_grad()?;
        let (u, _, vt) = x.svd()?;
        let pair = |of: &shard_tensor::ShardTensor, dim, at: [usize; 2]| {
            let last = of.select(dim, 2)?;
            last.select(0, at[0])?.mul(&last.select(0, at[1])?)
        };
        let both = pair(&u, 1, [0, 1])?.add(&pair(&vt, 0, [0, 2])?)?;
        read(both.grad(&[&x], false)?[0].as_ref().unwrap())
    });
    let expected = [-18.0, -6.0, 18.0, 40.0, 4.0, -32.0, -22.0, 2.0, 14.0];
    for (found, expected) in found.unwrap().concat().iter().zip([expected; 2].concat()) {
        assert!((108.0 * found - expected).abs() < 1e-8, "{found}");
    }
}

/// What it computes is not recorded, unless it says so, and it is told what to do.
#[test]
fn a_hook_may_begin_a_pass_of_its_own() {
    let found = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let x = ctx.mesh_of(2)?.full([4], 3.0, shard(0))?.requires_grad()?;
        let (copy, told) = (x.detach().requires_grad()?, Rc::new(RefCell::new(None)));
        let (heard, inner) = (told.clone(), ctx.clone());
        let hook = x.on_gradient(move |_| {
            let cubes = || copy.square()?.mul(&copy)?.sum_all();
            let silent = cubes()?.backward().map(drop).unwrap_err();
            heard.replace(Some(silent.to_string()));
            let slope = inner.enable_grad(cubes)?.grad1(&copy, false)?;
            Ok(Some(slope))
        })?;
        let slope = x.sum_all()?.grad1(&x, false)?;
        hook.remove();
        Ok((read(&slope)?, told.take()))
    });
    for (slope, told) in found.unwrap() {
        assert_eq!(slope, [27.0; 4]);
        let told = told.unwrap();
        assert!(told.contains("inside of enable_grad"), "{told}");
    }
}
