//! Losses of margins, against numbers that PyTorch 2 gave.

use shard_tensor::{
    DType, Launch, LossReduction, Placements, Result, ShardTensor, launch, replicate, shard,
};

type Loss = fn(&[ShardTensor; 3], &ShardTensor) -> Result<ShardTensor>;

/// A loss of waves `[5, 3]` and targets, what it is, and its gradients: by the first wave's last two rows and the second's fourth row.
type Expected = (&'static str, Loss, f64, [f64; 6], [f64; 3]);

fn losses() -> [Expected; 5] {
    [
        (
            "margin_ranking_loss",
            |[a, b, _], t| a.margin_ranking_loss(b, &t.unsqueeze(1)?, 0.3, LossReduction::Mean),
            0.652107396563,
            [1.0 / 15.0; 6],
            [-1.0 / 15.0; 3],
        ),
        (
            "hinge_embedding_loss",
            |[a, b, _], t| {
                let t = t.to(DType::I64)?.unsqueeze(1)?.expand([5, 3])?;
                // The second has no part in it.
                let none = b.mul_scalar(0.0)?.sum_all()?;
                a.hinge_embedding_loss(&t, 0.5, LossReduction::Sum)?
                    .add(&none)
            },
            8.542276673307,
            [0.0, -1.0, -1.0, -1.0, -1.0, -1.0],
            [0.0; 3],
        ),
        (
            "cosine_embedding_loss",
            |[a, b, _], t| a.cosine_embedding_loss(b, t, 0.2, LossReduction::Mean),
            0.755466940972,
            [
                -0.010617653214,
                -0.073852578685,
                -0.089029007518,
                -0.000368762217,
                -0.000790024178,
                -0.028662413233,
            ],
            [0.090944370042, 0.102685862275, 0.043949962472],
        ),
        (
            "triplet_margin_loss",
            |[a, b, c], _| a.triplet_margin_loss(b, c, 0.8, false, LossReduction::Mean),
            0.559644414623,
            [
                0.067281862234,
                0.323738238561,
                0.000137203722,
                0.0,
                0.0,
                0.0,
            ],
            [-0.115299925178, -0.144866072673, -0.075629017197],
        ),
        (
            "triplet_margin_loss with the swap",
            |[a, b, c], _| a.triplet_margin_loss(b, c, 0.8, true, LossReduction::Sum),
            5.038397350359,
            [
                0.336409311172,
                1.618691192806,
                0.000686018610,
                0.0,
                0.0,
                0.0,
            ],
            [-0.576499625890, -0.724330363367, -0.378145085984],
        ),
    ]
}

fn close(what: &str, got: &ShardTensor, expected: &[f64]) -> Result<()> {
    let got = got.to_array::<f64>()?;
    let far = (got.iter().zip(expected)).find(|(a, b)| (**a - **b).abs() > 1e-10);
    assert!(
        got.len() == expected.len() && far.is_none(),
        "{what}: {far:?} of {got:?}"
    );
    Ok(())
}

#[test]
fn losses_of_margins_are_pytorchs_wherever_their_operands_lie() {
    let layouts: [[Placements; 3]; 4] = [
        [replicate().into(), replicate().into(), replicate().into()],
        [
            shard(0).sizes([3, 0, 2]).into(),
            shard(0).into(),
            shard(0).into(),
        ],
        [shard(1).into(), shard(1).into(), replicate().into()],
        [
            replicate().into(),
            shard(0).into(),
            shard(1).sizes([0, 1, 2]).into(),
        ],
    ];
    for (ranks, at) in [(1, 0), (3, 1), (3, 2), (3, 3)] {
        let checked = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let k = |i: &[usize]| (3 * i[0] + i[1]) as f64;
            let [first, second, third] = &layouts[at];
            let waves = [
                mesh.from_fn([5, 3], first, |i| (0.9 * k(i)).sin())?
                    .requires_grad()?,
                mesh.from_fn([5, 3], second, |i| (0.7 * k(i) + 1.0).cos())?
                    .requires_grad()?,
                mesh.from_fn([5, 3], third, |i| (1.3 * k(i) + 2.0).sin())?
                    .requires_grad()?,
            ];
            let targets = ndarray::arr1(&[1.0, -1.0, 1.0, -1.0, -1.0]);
            let targets = mesh.distribute(&targets, replicate())?;
            for (name, loss, value, by_first, by_second) in losses() {
                let made = loss(&waves, &targets)?;
                assert!(
                    (made.item()? - value).abs() < 1e-10,
                    "{name}: {}",
                    made.item()?
                );
                let gradients = made.backward()?;
                let of = |x: &ShardTensor| Ok::<_, shard_tensor::Error>(gradients.get(x)?.unwrap());
                close(name, &of(&waves[0])?.narrow(0, 3..5)?, &by_first)?;
                close(name, &of(&waves[1])?.narrow(0, 3..4)?, &by_second)?;
            }
            Ok(())
        });
        checked.unwrap();
    }
}

/// PyTorch's: what just keeps the margin has no gradient.
#[test]
fn at_the_margin_there_is_no_gradient() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([2, 2], shard(0))?.requires_grad()?;
        let still = x.detach();
        let (sum, none) = (LossReduction::Sum, mesh.full(2, -1.0, shard(0))?);
        let away = none.unsqueeze(1)?.expand([2, 2])?;
        let first = mesh.with_dtype(DType::I64).zeros(2, shard(0))?;
        let losses = [
            x.margin_ranking_loss(&still, &away, 0.0, sum)?,
            x.hinge_embedding_loss(&away, 1.0, sum)?,
            x.multi_margin_loss(&first, 1, 0.0, None, sum)?,
        ];
        for loss in losses {
            let slope = loss.grad(&[&x], false)?.remove(0).expect("a gradient");
            assert_eq!((loss.item()?, slope.abs()?.sum_all()?.item()?), (0.0, 0.0));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn losses_of_margins_say_what_they_cannot_do() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (x, t, mean) = (
            mesh.ones([4, 3], shard(0))?,
            mesh.ones(4, shard(0))?,
            LossReduction::Mean,
        );
        let (one, number) = (mesh.ones([1, 3], replicate())?, mesh.ones((), replicate())?);
        let refused = [
            x.cosine_embedding_loss(&one, &t, 0.0, mean),
            number.cosine_embedding_loss(&number, &number, 0.0, mean),
            number.triplet_margin_loss(&number, &number, 0.0, false, mean),
            x.margin_ranking_loss(&x, &t, 0.0, mean),
            x.to(DType::I64)?.hinge_embedding_loss(&t, 0.0, mean),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            assert!(refused.is_err(), "{i}");
        }
        // Of classes: targets, powers and weights that broadcasting would let pass.
        let classes = mesh.with_dtype(DType::I64);
        let target = classes.zeros(4, shard(0))?;
        let loss = |x: &ShardTensor, target: &ShardTensor, power, weight: Option<&ShardTensor>| {
            let loss = x.multi_margin_loss(target, power, 1.0, weight, mean);
            loss.map(drop).map_err(|error| error.to_string())
        };
        let weights = |n: usize| mesh.ones(n, replicate());
        assert_eq!(loss(&x, &target, 2, Some(&weights(3)?)), Ok(()));
        let planes = mesh.ones([4, 3, 2], shard(0))?;
        let of_planes = classes.zeros([4, 2], shard(0))?;
        for (refused, said) in [
            (loss(&planes, &of_planes, 1, None), "targets do not fit"),
            (
                loss(&x, &classes.zeros(1, replicate())?, 1, None),
                "targets do not fit",
            ),
            (loss(&x, &target, 0, None), "a power of 0"),
            (loss(&x, &target, 3, None), "a power of 3"),
            (
                loss(&x, &target, 1, Some(&weights(4)?)),
                "weights do not fit",
            ),
            (
                loss(&x, &target, 1, Some(&weights(1)?)),
                "weights do not fit",
            ),
        ] {
            let told = refused.unwrap_err();
            assert!(told.contains(said), "{told}");
        }
        Ok(())
    })
    .unwrap();
}
