//! Batches of products that share a factor are one product: its gradient is no product for each batch, which are then summed.

use shard_autograd::{GradCheck, Recorder, gradgradcheck};
use shard_ops::{OpError, Value, matmul};
#[cfg(feature = "cuda-emulated")]
use shard_tensor::DeviceKind;
use shard_tensor::prelude::*;
use shard_tensor::{Error, Launch};

/// The product of `x` (4, 3, 5, 6), whose batches are the first and the last dim in memory, with a shared `w`; and the same element by
/// element. Of both the result, and the gradients of `x` and `w`.
fn both(mesh: &Mesh, [of_x, of_w, of_dy]: [Placements; 3]) -> Result<[Vec<ShardTensor>; 2]> {
    let everywhere = vec![replicate(); mesh.shape().len()];
    let made = mesh.randn([3, 5, 6, 4], everywhere)?;
    let x = made.permute([3, 0, 1, 2])?.redistribute(of_x)?;
    let (x, w) = (
        x.requires_grad()?,
        mesh.randn([6, 7], of_w)?.requires_grad()?,
    );
    let dy = mesh.randn([4, 3, 5, 7], of_dy)?;
    let with_gradients = |y: ShardTensor| -> Result<Vec<ShardTensor>> {
        let gradients = y.mul(&dy)?.sum_all()?.backward()?;
        let of = |x: &ShardTensor| Ok::<_, Error>(gradients.get(x)?.expect("it is used"));
        Ok(vec![y.detach(), of(&x)?, of(&w)?])
    };
    let by_element = x.unsqueeze(4)?.mul(&w)?.sum([3], false)?;
    Ok([with_gradients(x.matmul(&w)?)?, with_gradients(by_element)?])
}

#[test]
fn gradients_of_a_shared_factor_are_those_of_all_batches() -> Result<()> {
    let layouts: [[Placements; 3]; 7] = [
        [replicate().into(), replicate().into(), replicate().into()],
        [shard(0).into(), replicate().into(), shard(0).into()],
        [
            shard(1).sizes([2, 0, 1]).into(),
            shard(0).into(),
            shard(1).sizes([0, 3, 0]).into(),
        ],
        [shard(2).into(), shard(1).into(), shard(0).into()],
        // Of what all have, a piece is read where it is.
        [replicate().into(), replicate().into(), shard(1).into()],
        [shard(3).into(), shard(0).into(), shard(2).into()],
        [shard(0).into(), shard(1).into(), shard(3).into()],
    ];
    for ranks in [1, 3] {
        Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            for at in layouts.iter().filter(|_| ranks == 3).chain(&layouts[..1]) {
                let [found, expected] = both(&mesh, at.clone())?;
                for (x, y) in found.iter().zip(&expected) {
                    assert!(x.allclose(y, 1e-12, 1e-12, false)?, "{at:?}");
                }
            }
            Ok(())
        })?;
    }
    Launch::new(6).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh([("a", 2), ("b", 3)])?;
        let of_x = [("a", shard(1)), ("b", shard(1))];
        let of_dy = [("a", shard(0)), ("b", shard(3))];
        let [found, expected] = both(
            &mesh,
            [
                of_x.into(),
                [("a", replicate()), ("b", shard(1))].into(),
                of_dy.into(),
            ],
        )?;
        for (x, y) in found.iter().zip(&expected) {
            assert!(x.allclose(y, 1e-12, 1e-12, false)?);
        }
        Ok(())
    })?;
    Ok(())
}

#[cfg(feature = "cuda-emulated")]
#[test]
fn gpus_have_the_same_gradients() -> Result<()> {
    let on = |device: DeviceKind| {
        Launch::new(3).dtype(DType::F64).device(device).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let x = mesh.randn([4, 3, 2, 6], shard(1))?;
            let (square, row) = (
                mesh.randn([2, 2], replicate())?,
                mesh.randn([2], replicate())?,
            );
            let (square, row) = (square.requires_grad()?, row.requires_grad()?);
            // On the left; what is summed lies among rows and columns then.
            let y = [square.matmul(&x)?.square()?, row.matmul(&x)?.square()?];
            let gradients = y[0].sum_all()?.add(&y[1].sum_all()?)?.backward()?;
            let of = |x: &ShardTensor| gradients.get(x)?.expect("it is used").to_array::<f64>();
            Ok([of(&square)?, of(&row)?])
        })
    };
    let (here, there) = (on(DeviceKind::Host)?, on(DeviceKind::EmulatedCuda)?);
    for (a, b) in here.iter().flatten().zip(there.iter().flatten()) {
        assert!(
            a.iter()
                .zip(b)
                .all(|(a, b)| (a - b).abs() < 1e-12 * (1.0 + a.abs())),
            "{a} {b}"
        );
    }
    Ok(())
}

#[test]
fn they_have_derivatives_of_their_own() -> Result<()> {
    Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.randn([3, 2, 2, 3], shard(0))?;
        // Shared by all batches, by those of one dim, on the left, and with rows and columns turned.
        type Function = fn(&Recorder, &Value, &Value) -> Result<Value, OpError>;
        let functions: [(&[usize], Function); 4] = [
            (&[3, 2], |t, x, w| matmul::matmul(t, x, w)),
            (&[3, 1, 3, 2], |t, x, w| matmul::matmul(t, x, w)),
            (&[3, 2], |t, x, w| matmul::matmul(t, w, x)),
            (&[2, 3], |t, x, w| matmul::linear(t, x, w, None)),
        ];
        for (shape, f) in functions {
            let w = mesh.randn(shape, shard(shape.len() - 1))?;
            let f = |tape: &Recorder, v: &[Value]| Ok(vec![f(tape, &v[0], &v[1])?]);
            let values = [x.value(), w.value()];
            let checked = gradgradcheck(ctx.tape(), &f, &values, GradCheck::default())?;
            assert!(checked.compared > 0);
        }
        Ok(())
    })?;
    Ok(())
}

#[test]
fn they_are_rounded_once() -> Result<()> {
    for ranks in [1, 3] {
        Launch::new(ranks).dtype(DType::BF16).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            // A product of these is 1 + 2^-6 + 2^-14, of which 16 bits keep what the next batch takes away.
            let near = 1.0 + 2f64.powi(-7);
            let x = mesh.from_fn(
                [4, 1, 1],
                shard(0),
                |i| if i[0] % 2 == 0 { near } else { 1.0 },
            )?;
            let dy = mesh.from_fn([4, 1, 1], shard(0), |i| match i[0] % 2 {
                0 => near,
                _ => -1.0 - 2f64.powi(-6),
            })?;
            let w = mesh.ones([1, 1], replicate())?.requires_grad()?;
            let gradients = x.matmul(&w)?.mul(&dy)?.sum_all()?.backward()?;
            let found = gradients.get(&w)?.expect("it is used");
            assert_eq!(found.item()?, 2.0 * 2f64.powi(-14));
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn they_take_no_memory_for_each_batch() -> Result<()> {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.randn([64, 2, 128], shard(0))?;
        let layer = nn::Linear::new(&mesh, 128, 96)?;
        let step = || {
            layer
                .forward(&x)?
                .sum_all()?
                .backward()?
                .iter()
                .map(Iterator::count)
        };
        step()?;
        ctx.device().reset_peak();
        let before = ctx.device().memory().live;
        step()?;
        let weights = 4 * 128 * 96;
        let beside = ctx.device().memory().peak - before;
        assert!(beside < 4 * weights, "{beside} for gradients of {weights}");
        Ok(())
    })?;
    Ok(())
}
