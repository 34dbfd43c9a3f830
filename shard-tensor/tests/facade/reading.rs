//! Reading values, and printing without reading.

use shard_tensor::{DType, Launch, Placements, launch, replicate, shard};

#[test]
fn item_of_a_partial_tensor_is_the_sum_on_every_rank() {
    let items = launch(3, |ctx| {
        let x = ctx.mesh_of(3)?.arange(10, [shard(0)])?;
        let total = x.sum_all()?;
        assert!(total.layout().is_partial());
        assert_eq!(total.reduced()?.layout().to_string(), "R");
        Ok((
            total.item()?,
            x.amax([0], true)?.item()?,
            x.mean_all()?.item()?,
        ))
    });
    assert_eq!(items.unwrap(), [(45.0, 9.0, 4.5); 3]);
}

#[test]
fn item_of_a_sharded_one_element_tensor() {
    let items = launch(3, |ctx| {
        ctx.mesh_of(3)?.full([1, 1], 2.5, [shard(0)])?.item()
    });
    assert_eq!(items.unwrap(), [2.5; 3]);
}

#[test]
fn item_needs_one_element() {
    let texts = launch(2, |ctx| {
        Ok(ctx
            .mesh_of(2)?
            .zeros([2], [shard(0)])?
            .item()
            .unwrap_err()
            .to_string())
    });
    assert!(texts.unwrap()[0].contains("sum_all"));
}

#[test]
fn arrays_are_read_as_the_type_they_hold() {
    let texts = launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.zeros([2], [shard(0)])?;
        let site = format!("(at {}:{}:", file!(), line!() + 1);
        let error = x.to_array::<f64>().unwrap_err();
        Ok((error.to_string(), site))
    });
    let (text, site) = texts.unwrap().swap_remove(0);
    let expected =
        "to_array: the array holds f32, not f64; convert it first or read it as f32 (at ";
    assert!(text.starts_with(expected) && text.contains(&site), "{text}");
}

#[test]
fn printing_does_not_communicate() {
    let texts = launch(4, |ctx| {
        let mesh = ctx.mesh([("h", 2), ("w", 2)])?;
        let x = mesh.rand([5, 3], [("h", shard(0).sizes([4, 1])), ("w", shard(1))])?;
        let (sum, w) = (x.sum_all()?, x.requires_grad()?);
        let before = ctx.ledger().snapshot();
        let texts = [
            format!("{x:?}"),
            format!("{x}"),
            format!("{sum:?}"),
            format!("{w:?}"),
            format!("{:?}", &w * &x),
        ];
        assert_eq!(ctx.ledger().since(&before).rounds, 0);
        Ok(texts)
    });
    assert_eq!(
        texts.unwrap()[3],
        [
            "ShardTensor(f32 [5, 3] S(0)[4,1] S(1), local [1, 1] on rank 3)",
            "f32 [5, 3] S(0)[4,1] S(1)",
            "ShardTensor(f32 [] P(sum) P(sum), local [] on rank 3)",
            "ShardTensor(f32 [5, 3] S(0)[4,1] S(1), local [1, 1] on rank 3, parameter)",
            "ShardTensor(f32 [5, 3] S(0)[4,1] S(1), local [1, 1] on rank 3, tracked)",
        ]
    );
}

#[test]
fn redistribute_round_trips_and_refuses_partial_targets() {
    let ok = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let x = mesh.rand([5, 3], [shard(0).sizes([0, 5]), shard(1)])?;
        let expected = x.to_array::<f64>()?;
        let targets: [Placements; 4] = [
            [replicate(), shard(0)].into(),
            [shard(0), shard(0)].into(),
            Placements::replicated(),
            [shard(1), shard(0).even()].into(),
        ];
        let mut y = x.clone();
        for target in targets {
            y = y.redistribute(target)?;
            assert_eq!(y.to_array::<f64>()?, expected);
        }
        assert_eq!(
            y.redistribute(x.layout())?.to_local_array::<f64>()?,
            x.to_local_array::<f64>()?
        );
        let to_partial = [
            shard_tensor::partial(shard_tensor::ReduceOp::Sum),
            replicate(),
        ];
        Ok(x.redistribute(to_partial).unwrap_err().to_string())
    });
    assert!(ok.unwrap()[0].contains("P(sum)"));
}

#[test]
fn the_test_device_gives_the_same() {
    let run = |device| {
        let launch = Launch::new(3).device(device);
        let sums = launch.run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let x = mesh.distribute(
                &ndarray::Array1::from_iter((0..10).map(f64::from)),
                [shard(0)],
            )?;
            (&x * &x).sum_all()?.item()
        });
        sums.unwrap()
    };
    assert_eq!(run(shard_tensor::DeviceKind::Test), [285.0; 3]);
    assert_eq!(run(shard_tensor::DeviceKind::Host), [285.0; 3]);
}
