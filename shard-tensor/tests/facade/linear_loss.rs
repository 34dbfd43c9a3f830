//! The loss of logits that are never whole is that of whole ones.

use crate::common::{on, pattern};
use shard_tensor::{
    ClassLoss, DType, ErrorClass, LossReduction, Mesh, Placements, Result, ShardTensor, replicate,
    shard,
};

const FEATURES: usize = 4;
const CLASSES: usize = 1024;

/// Rows, a weight, a bias, and targets of both kinds; some rows count nothing.
fn made(mesh: &Mesh, rows: &[usize], [at, of]: [Placements; 2]) -> Result<[ShardTensor; 5]> {
    let with = |last: usize| [rows, &[last]].concat();
    let x = mesh.from_fn(with(FEATURES), &at, |i| pattern(1, i))?;
    let weight = mesh.from_fn([CLASSES, FEATURES], &of, |i| pattern(2, i))?;
    let bias = mesh.from_fn(CLASSES, replicate(), |i| pattern(3, i))?;
    let class = mesh.from_fn(rows, replicate(), |i| {
        let at = i.iter().fold(3, |h, i| h * 7 + i) % (CLASSES + 20);
        if at < CLASSES { at as f64 } else { 5.0 }
    })?;
    let shares = mesh.from_fn(with(CLASSES), replicate(), |i| pattern(4, i).abs())?;
    let shares = shares.div(&shares.sum(-1, true)?)?;
    Ok([
        x.requires_grad()?,
        weight.requires_grad()?,
        bias.requires_grad()?,
        class.to(DType::I64)?,
        shares,
    ])
}

/// Loss and gradients are those of `linear` and `cross_entropy`.
fn same(of: &[ShardTensor; 5], is_share: bool, options: &ClassLoss) -> Result<()> {
    let [x, weight, bias, class, shares] = of;
    let target = if is_share { shares } else { class };
    let pieces = x.linear_cross_entropy(weight, Some(bias), target, options)?;
    let second = |of: &ShardTensor| match of.ndim() {
        0..=2 => Ok(of.clone()),
        _ => of.movedim(-1, 1),
    };
    let logits = second(&x.linear(weight, Some(bias))?)?;
    let target = if is_share {
        second(target)?
    } else {
        target.clone()
    };
    let whole = logits.cross_entropy(&target, options)?;
    let gradients = |loss: &ShardTensor| {
        // Rows of unlike weights, where each has a loss.
        loss.mul(&rising(loss)?)?
            .sum_all()?
            .grad(&[x, weight, bias], false)
    };
    assert_eq!(
        (pieces.shape(), pieces.dtype()),
        (whole.shape(), whole.dtype())
    );
    assert!(
        pieces.allclose(&whole, 1e-10, 1e-10, true)?,
        "{pieces:?} {whole:?}"
    );
    for (got, expected) in gradients(&pieces)?.iter().zip(gradients(&whole)?) {
        let (got, expected) = (got.as_ref().unwrap(), expected.unwrap());
        assert_eq!(got.layout(), expected.layout());
        assert!(got.allclose(&expected, 1e-9, 1e-10, true)?);
    }
    Ok(())
}

/// Numbers that grow along the last dim, laid out as a tensor is.
fn rising(like: &ShardTensor) -> Result<ShardTensor> {
    match like.ndim() {
        0 => like.ones_like(),
        ndim => like.ones_like()?.cumsum(ndim - 1),
    }
}

#[test]
fn pieces_of_rows_have_the_loss_of_all() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let weights = mesh.from_fn(CLASSES, replicate(), |i| 1.5 + pattern(5, i))?;
        let all = || Placements::from(replicate());
        let uneven = || shard(0).sizes([150, 0, 42]).into();
        let plain = ClassLoss::default;
        // Rows in pieces, classes in pieces, terms of logits, nothing in pieces.
        for (at, of) in [
            (uneven(), all()),
            (all(), shard(0).sizes([900, 0, 124]).into()),
            (shard(1).into(), shard(1).into()),
            (all(), all()),
        ] {
            let of = made(&mesh, &[192], [at, of])?;
            same(&of, false, &plain())?;
            same(
                &of,
                false,
                &plain().reduction(LossReduction::None).ignore(5),
            )?;
        }
        let of = made(&mesh, &[192], [uneven(), all()])?;
        same(&of, true, &plain().reduction(LossReduction::None))?;
        same(&of, true, &plain())?;
        let smooth = plain().smoothing(0.1).weight(&weights).ignore(5);
        same(&of, false, &smooth)?;
        same(&of, false, &smooth.reduction(LossReduction::Sum))?;
        // Of more dims; one row; none.
        let of = made(&mesh, &[2, 96], [shard(1).into(), all()])?;
        same(&of, false, &plain().reduction(LossReduction::None))?;
        same(&made(&mesh, &[], [all(), all()])?, false, &plain())?;
        same(
            &made(&mesh, &[0], [shard(0).into(), all()])?,
            false,
            &plain().reduction(LossReduction::Sum),
        )
    });
}

#[test]
fn logits_are_never_whole_and_rows_stay() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?.with_dtype(DType::F32);
        let x = mesh.randn([1024, 16], shard(0))?.requires_grad()?;
        let weight = mesh.randn([2048, 16], replicate())?.requires_grad()?;
        let class = mesh.zeros(1024, shard(0))?.to(DType::I64)?;
        let step = |dtype: DType| {
            let [x, weight] = [x.to(dtype)?, weight.to(dtype)?];
            let loss = x.linear_cross_entropy(&weight, None, &class, &ClassLoss::new())?;
            assert_eq!(loss.dtype(), dtype);
            Ok::<_, shard_tensor::Error>(loss)
        };
        step(DType::F32)?.backward()?;
        let (before, moved) = (ctx.device().memory().live, ctx.ledger().snapshot());
        ctx.device().reset_peak();
        let loss = step(DType::F32)?;
        // The sum of losses and how many rows there are, of the other rank.
        let moved = ctx.ledger().since(&moved).bytes;
        assert!(moved <= 8, "{moved}");
        loss.backward()?;
        let beside = ctx.device().memory().peak - before;
        // All logits of a rank are 4 MiB, and there would be some of them.
        assert!(beside < 3 << 20, "{beside}");
        let half = step(DType::BF16)?.item()?;
        assert!((half / loss.item()? - 1.0).abs() < 1e-2, "{half}");
        Ok(())
    });
}

#[test]
fn what_does_not_fit_is_told() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([6, 4], shard(0))?;
        let weight = mesh.ones([5, 4], replicate())?;
        let class = |shape: &[usize], of: f64| mesh.full(shape, of, replicate())?.to(DType::I64);
        let loss = |x: &ShardTensor, weight: &ShardTensor, target: &ShardTensor| {
            let found = x.linear_cross_entropy(weight, None, target, &ClassLoss::new());
            let error = found.unwrap_err();
            let text = error.to_string();
            let of = ["linear_cross_entropy: ", "linear: ", "cross_entropy: "];
            assert!(of.iter().any(|of| text.starts_with(of)), "{text}");
            (text, error.class())
        };
        let (text, class_of) = loss(&x, &weight, &class(&[5], 0.0)?);
        assert!(
            text.contains("rows [6]") && class_of == ErrorClass::Uniform,
            "{text}"
        );
        loss(&x, &weight, &mesh.ones([6, 4], replicate())?);
        loss(&x, &mesh.ones([5, 3], replicate())?, &class(&[6], 0.0)?);
        loss(&x, &mesh.ones([5], replicate())?, &class(&[6], 0.0)?);
        loss(&mesh.ones((), replicate())?, &weight, &class(&[6], 0.0)?);
        let (_, class_of) = loss(&x, &weight, &class(&[6], 5.0)?);
        assert_eq!(class_of, ErrorClass::Agreed);
        Ok(())
    });
}
