//! Products whose operands come block by block, the next one on its way while one is multiplied, where that takes less time than to
//! gather them first.

use shard_comm::LinkCost;
use shard_redistribute::CostModel;
use shard_tensor::{
    Context, DType, Launch, Mesh, Placements, Result, ShardTensor, replicate, shard,
};

/// A mesh whose messages fly while ranks compute, and cost about as much as the products here.
fn network(ctx: &Context, ranks: usize) -> Result<Mesh> {
    let mesh = ctx.mesh_of(ranks)?;
    mesh.comm().planner().set_model(Some(model()));
    Ok(mesh)
}

fn model() -> CostModel {
    let network = CostModel::network(LinkCost::new(1e-9, 1e9));
    network.with_flops(1e9).with_round(1e-9)
}

fn operand(mesh: &Mesh, shape: &[usize], placements: impl Into<Placements>) -> Result<ShardTensor> {
    // Whole numbers, whose sums are exact in any order.
    let number = |i: &[usize]| ((5 * i[0] + 3 * i[1] + i.len()) % 11) as f64 - 5.0;
    mesh.from_fn(shape.to_vec(), placements, number)
}

type Numbers = Vec<f64>;

/// The product and its gradients, how the engine multiplied, and the bytes that came for it.
fn product(
    ctx: &Context,
    mesh: &Mesh,
    [a, b]: [(&[usize], Placements); 2],
) -> Result<([Numbers; 3], String, u64)> {
    let (a, b) = (
        operand(mesh, a.0, a.1)?.requires_grad()?,
        operand(mesh, b.0, b.1)?.requires_grad()?,
    );
    let (y, told) = ctx.explain(|| a.matmul(&b))?;
    let gradients = y.square()?.sum_all()?.backward()?;
    let numbers =
        |x: &ShardTensor| -> Result<Numbers> { Ok(x.to_array::<f64>()?.into_iter().collect()) };
    let of = |x: &ShardTensor| {
        let dx = gradients.get(x)?.expect("it is used");
        assert_eq!(dx.layout(), x.layout());
        numbers(&dx)
    };
    let found = [numbers(&y)?, of(&a)?, of(&b)?];
    let step = &told.steps[0];
    Ok((
        found,
        format!("{} {}", y.layout(), step.strategy),
        step.received,
    ))
}

#[test]
fn blocks_go_round_while_others_are_multiplied() {
    let run = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let (here, there) = (ctx.mesh_of(3)?, network(ctx, 3)?);
        let rows = || Placements::from([shard(0).sizes([7, 0, 16])]);
        let columns = || Placements::from([shard(1).sizes([3, 9, 6])]);
        // Tall by narrow: the columns' owners get the rows of all; then the other way round.
        for (m, n) in [(23, 18), (18, 23)] {
            let (a, b) = match m {
                23 => (([23, 40], rows()), ([40, 18], columns())),
                _ => (
                    ([18, 40], Placements::from([shard(0).sizes([3, 9, 6])])),
                    ([40, 23], [shard(1).sizes([7, 0, 16])].into()),
                ),
            };
            let operands = || [(&a.0[..], a.1.clone()), (&b.0[..], b.1.clone())];
            let (expected, at_once, bytes) = product(ctx, &here, operands())?;
            let (found, by_block, moved) = product(ctx, &there, operands())?;
            assert_eq!(expected[0].len(), m * n);
            assert!(found == expected, "{by_block}");
            assert!(
                !at_once.contains("ring") && by_block.contains("ring of 3 blocks"),
                "{at_once}\n{by_block}"
            );
            assert!(moved <= bytes, "{moved} bytes for {bytes}");
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn terms_of_a_result_go_home_while_others_are_computed() {
    let run = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let (here, there) = (ctx.mesh_of(3)?, network(ctx, 3)?);
        // A bias is added by one rank, which may have none of the contraction.
        for (inner, biased) in [([12, 0, 8], false), ([12, 0, 8], true), ([0, 12, 8], true)] {
            for home in [shard(0).sizes([2, 0, 7]), shard(1).sizes([4, 3, 1])] {
                let multiply = |mesh: &Mesh| -> Result<(Numbers, String)> {
                    let a = operand(mesh, &[9, 20], [shard(1).sizes(inner)])?;
                    let w = operand(mesh, &[8, 20], [shard(1).sizes(inner)])?;
                    let bias = mesh.from_fn(8, replicate(), |i| 1.0 + i[0] as f64)?;
                    let bias = biased.then_some(&bias);
                    let pinned = || ctx.pinned(home.clone(), || a.linear(&w, bias));
                    let (y, told) = ctx.explain(pinned)?;
                    assert_eq!(y.layout(), &mesh.layout([9, 8], home.clone())?);
                    let numbers: Numbers = y.to_array::<f64>()?.into_iter().collect();
                    Ok((numbers, told.steps[0].strategy.clone()))
                };
                let (expected, _) = multiply(&here)?;
                let (found, how) = multiply(&there)?;
                assert!(how.contains("ring of 3 blocks"), "{how}");
                assert_eq!(found, expected);
            }
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn whatever_goes_round_the_numbers_stay() {
    let run = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mut rings = 0;
        for shape in [vec![4], vec![2, 2]] {
            let here = ctx.mesh_of(shape.clone())?;
            let there = ctx.mesh_of(shape.clone())?;
            there.comm().planner().set_model(Some(model()));
            let some = |dims: [usize; 3], sizes: [Vec<usize>; 3]| -> Vec<Placements> {
                let by = |k: usize| match shape.len() {
                    1 => shard(dims[k]).sizes(sizes[k].clone()),
                    _ => shard(dims[k]),
                };
                let last = |k: usize| -> Placements {
                    match shape.len() {
                        1 => [by(k)].into(),
                        _ => [replicate(), by(k)].into(),
                    }
                };
                let mut all = vec![last(0), last(1), last(2), Placements::replicated()];
                if shape.len() == 2 {
                    all.extend(
                        [
                            [by(0), by(1)],
                            [by(1), by(2)],
                            [by(2), by(1)],
                            [by(1), by(1)],
                        ]
                        .map(Placements::from),
                    );
                }
                all
            };
            let (batch, m, k, n) = (
                vec![1, 0, 1, 1],
                vec![5, 0, 3, 1],
                vec![2, 4, 0, 6],
                vec![0, 3, 3, 4],
            );
            for on_a in some([0, 1, 2], [batch.clone(), m.clone(), k.clone()]) {
                // Weights are (out, in), of which each row of every batch has one.
                for on_w in some([0, 1, 0], [n.clone(), k.clone(), n.clone()])
                    .into_iter()
                    .filter(|p| p.layout(here.mesh(), &[10, 12]).is_ok())
                {
                    let multiply = |mesh: &Mesh| -> Result<(Vec<Numbers>, String)> {
                        let number = |i: &[usize]| {
                            ((5 * i[0] + 3 * i[1] + 7 * i[i.len() - 1]) % 11) as f64 - 5.0
                        };
                        let a = mesh.from_fn([3, 9, 12], &on_a, number)?.requires_grad()?;
                        let w = mesh.from_fn([10, 12], &on_w, number)?.requires_grad()?;
                        let bias = mesh
                            .from_fn([10], Placements::replicated(), |i| i[0] as f64)?
                            .requires_grad()?;
                        let (y, told) = ctx.explain(|| a.linear(&w, Some(&bias)))?;
                        let (gradients, back) =
                            ctx.explain(|| y.square()?.sum_all()?.backward())?;
                        let mut all = vec![y.to_array::<f64>()?.into_iter().collect()];
                        for x in [&a, &w, &bias] {
                            let dx = gradients.get(x)?.expect("it is used");
                            all.push(dx.to_array::<f64>()?.into_iter().collect());
                        }
                        Ok((all, format!("{told}{back}")))
                    };
                    let (expected, _) = multiply(&here)?;
                    let (found, how) = multiply(&there)?;
                    assert!(found == expected, "{on_a:?}, {on_w:?}: {how}");
                    rings += how.matches("ring of").count();
                }
            }
        }
        assert!(
            rings >= 10,
            "only {rings} products were dealt with block by block"
        );
        Ok(())
    });
    run.unwrap();
}

/// Numbers of `torch.nn.functional.bilinear`.
#[test]
fn products_of_two_inputs_with_a_weight_are_pytorchs() {
    let expected = [
        1.043203718595,
        -0.011473990453,
        2.959499603515,
        2.111679174511,
        -0.267182565982,
        1.083028562068,
        2.102787259081,
        2.71345420746,
        -1.673166598407,
        2.509102361018,
        0.685166570387,
        4.094248098174,
        -0.985258350155,
        2.066335611713,
        0.873929841249,
        4.163266403907,
        1.264936150874,
        -0.037820428084,
        2.789932722369,
        2.473765492155,
    ];
    let layouts: [[Placements; 3]; 4] = [
        [replicate().into(), replicate().into(), replicate().into()],
        [
            shard(0).sizes([1, 0, 4]).into(),
            shard(0).into(),
            replicate().into(),
        ],
        [shard(1).into(), shard(0).into(), shard(1).into()],
        [replicate().into(), shard(1).into(), shard(0).into()],
    ];
    for (ranks, [first, second, third]) in [1, 3, 3, 3].into_iter().zip(layouts) {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let a = mesh.from_fn([5, 2], &first, |i| ((2 * i[0] + i[1]) as f64).sin())?;
            let b = mesh.from_fn([5, 3], &second, |i| ((3 * i[0] + i[1]) as f64).cos())?;
            let w = mesh.from_fn([4, 2, 3], &third, |i| {
                (0.5 * (6 * i[0] + 3 * i[1] + i[2]) as f64).sin()
            })?;
            let bias = mesh.arange(4, replicate())?;
            let y = a.bilinear(&b, &w, Some(&bias))?.to_array::<f64>()?;
            assert!(
                y.iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-10),
                "{y}"
            );
            let narrow = |x: &ShardTensor| x.to(DType::BF16);
            let half = narrow(&a)?.bilinear(&narrow(&b)?, &narrow(&w)?, Some(&narrow(&bias)?))?;
            assert_eq!(half.dtype(), DType::BF16);
            let half = half.to(DType::F64)?.to_array::<f64>()?;
            assert!(
                half.iter().zip(expected).all(|(y, e)| (y - e).abs() < 0.03),
                "{half}"
            );
            let refused = [
                a.bilinear(&a, &w, None),
                a.bilinear(&b, &w.select(0, 0)?, None),
                a.bilinear(&b, &w, Some(&bias.narrow(0, 0..3)?)),
                a.bilinear(&narrow(&b)?, &w, None),
            ];
            for (i, refused) in refused.into_iter().enumerate() {
                assert!(refused.is_err(), "{i}");
            }
            Ok(())
        });
        found.unwrap();
    }
}
