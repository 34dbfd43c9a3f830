//! Operators on references, values and numbers.

use shard_tensor::{DType, ErrorClass, Fused, Launch, ShardTensor, launch, shard};

#[test]
fn operators_are_their_methods() {
    let checked = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.from_fn(5, [shard(0)], |i| i[0] as f64 + 1.0)?;
        let y = mesh.full(5, 2.0, [shard(0).sizes([0, 4, 1])])?;
        let read = |t: ShardTensor| -> shard_tensor::Result<Vec<f64>> {
            Ok(t.to_array::<f64>()?.into_raw_vec_and_offset().0)
        };
        assert_eq!(read(&x + &y)?, [3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(read(&x - &y)?, [-1.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(read(x.clone() * &y)?, [2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(read(&x / y)?, [0.5, 1.0, 1.5, 2.0, 2.5]);
        assert_eq!(read(-&x)?, [-1.0, -2.0, -3.0, -4.0, -5.0]);
        assert_eq!(read(&x + 0.5)?, [1.5, 2.5, 3.5, 4.5, 5.5]);
        assert_eq!(read(1.0 - &x)?, [0.0, -1.0, -2.0, -3.0, -4.0]);
        assert_eq!(read(&x - 1.0)?, [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(read(3.0 * x.clone())?, [3.0, 6.0, 9.0, 12.0, 15.0]);
        assert_eq!(read(&x / 4.0)?, [0.25, 0.5, 0.75, 1.0, 1.25]);
        // Rounded once: 1 / 3 and 5 / 3 as the numbers themselves give.
        assert_eq!(
            read(&x / 3.0)?,
            [1.0 / 3.0, 2.0 / 3.0, 1.0, 4.0 / 3.0, 5.0 / 3.0]
        );
        assert_eq!(read(10.0 / &x)?, [10.0, 5.0, 10.0 / 3.0, 2.5, 2.0]);
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn operators_panic_with_the_methods_message() {
    let error = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (x, y) = (mesh.ones([2], [shard(0)])?, mesh.ones([3], [shard(0)])?);
        let message = x.add(&y).unwrap_err().to_string();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| &x + &y)).unwrap_err();
        // But for the line.
        let told = |text: &String| text.split(" (at ").next().map(str::to_owned);
        assert_eq!(panic.downcast_ref().and_then(told), told(&message));
        Ok(message)
    });
    assert!(error.unwrap()[0].contains("do not broadcast"));
}

#[test]
fn explicit_moves_refuse_and_say_what_to_do() {
    let texts = Launch::new(2).explicit_moves(true).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (x, y) = (
            mesh.ones([4, 4], [shard(0)])?,
            mesh.ones([4, 4], [shard(1)])?,
        );
        let refused = x.add(&y).unwrap_err();
        assert_eq!(refused.class(), shard_tensor::ErrorClass::Uniform);
        let by_hand = x.add(&y.redistribute(x.layout())?)?;
        assert_eq!(by_hand.sum_all()?.item()?, 32.0);
        ctx.explicit_moves(false);
        assert_eq!(x.add(&y)?.sum_all()?.item()?, 32.0);
        Ok(refused.to_string())
    });
    assert!(texts.unwrap()[0].contains("redistribute it first"));
}

#[test]
fn types_do_not_mix_silently() {
    let texts = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4], [shard(0)])?;
        let y = mesh.with_dtype(DType::F64).ones([4], [shard(0)])?;
        assert_eq!(x.to(DType::F64)?.add(&y)?.dtype(), DType::F64);
        Ok(x.add(&y).unwrap_err().to_string())
    });
    assert!(texts.unwrap()[0].contains(".to()"));
}

#[test]
fn ranks_whose_formulas_differ_are_told() {
    for (slopes, is_told) in [([0.5, 0.5], false), ([0.5, 0.25], true)] {
        let told = launch(2, |ctx| {
            let mesh = ctx.mesh_of(2)?;
            let x = mesh.randn(5, shard(0))?;
            let slope = slopes[ctx.rank()];
            let [y] = Fused::new("mine", |[x]| [x.tanh() * slope]).of([&x])?;
            let error = y.sum_all()?.item().err();
            Ok(error.map(|error| (error.class(), error.to_string())))
        });
        for rank in told.unwrap() {
            assert_eq!(rank.is_some(), is_told, "{rank:?}");
            if let Some((class, text)) = rank {
                assert_eq!(class, ErrorClass::Uniform, "{text}");
                assert!(text.contains("mine"), "{text}");
            }
        }
    }
}
