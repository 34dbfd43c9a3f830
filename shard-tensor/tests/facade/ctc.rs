//! Likelihoods of labels along sequences, against numbers that PyTorch 2 gave.

use shard_tensor::{
    DType, Launch, LossReduction, Mesh, Placements, Result, ShardTensor, launch, replicate, shard,
};

/// Six steps of four samples over five classes, which are waves; the last sample's labels do not fit into its steps.
fn sequences(mesh: &Mesh, at: &Placements) -> Result<ShardTensor> {
    let wave = |i: &[usize]| 2.0 * (0.9 * (20 * i[0] + 5 * i[1] + i[2]) as f64).sin();
    mesh.from_fn([6, 4, 5], at, wave)?.requires_grad()
}

/// Labels, how many steps, and how many labels.
fn labels(mesh: &Mesh, at: &Placements, of: &Placements) -> Result<[ShardTensor; 3]> {
    // What is beyond a sample's own labels may be anything.
    let targets = ndarray::arr2(&[[1_i64, 2, 2], [3, 77, -4], [4, 1, 9], [2, 2, 2]]);
    let list = |numbers: [i64; 4]| mesh.distribute(&ndarray::arr1(&numbers), of);
    Ok([
        mesh.distribute(&targets, at)?,
        list([6, 4, 5, 4])?,
        list([3, 1, 2, 3])?,
    ])
}

fn close(what: &str, got: &ShardTensor, expected: &[f64], by: f64) -> Result<()> {
    let got = got.to(DType::F64)?.to_array::<f64>()?;
    let far =
        (got.iter().zip(expected)).find(|(a, b)| a != b && ((**a - **b).abs() > by || a.is_nan()));
    assert!(
        got.len() == expected.len() && far.is_none(),
        "{what}: {far:?} of {got:?}"
    );
    Ok(())
}

const LOSSES: [f64; 3] = [10.118668548996633, 3.450159575858172, 4.602339266298086];

#[test]
fn losses_of_labels_are_pytorchs_wherever_samples_lie() {
    let (all, batch) = (
        || Placements::from(replicate()),
        || shard(0).sizes([1, 0, 3]),
    );
    let layouts: [[Placements; 3]; 5] = [
        [all(), all(), all()],
        [
            shard(1).sizes([1, 0, 3]).into(),
            batch().into(),
            batch().into(),
        ],
        [shard(0).into(), all(), all()],
        [shard(2).into(), shard(1).into(), all()],
        [all(), batch().into(), shard(0).into()],
    ];
    for (ranks, at) in [(1, 0), (3, 1), (3, 2), (3, 3), (3, 4)] {
        let checked = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let [first, second, third] = &layouts[at];
            let logits = sequences(&mesh, first)?;
            let [targets, steps, lengths] = labels(&mesh, second, third)?;
            let log_probs = logits.log_softmax(2)?;
            let loss = |zero, how| log_probs.ctc_loss(&targets, [&steps, &lengths], 0, zero, how);
            let [a, b, c] = LOSSES;
            let each = loss(false, LossReduction::None)?;
            close("each", &each, &[a, b, c, f64::INFINITY], 1e-10)?;
            let each = loss(true, LossReduction::None)?;
            close("without infinities", &each, &[a, b, c, 0.0], 1e-10)?;
            let sum = loss(true, LossReduction::Sum)?;
            close("sum", &sum, &[18.171167391152892], 1e-10)?;
            let mean = loss(true, LossReduction::Mean)?;
            close("mean", &mean, &[2.2810546813348562], 1e-10)?;
            let gradient = mean.backward()?.get(&logits)?.unwrap();
            for (step, sample, expected) in [
                (
                    1,
                    0,
                    [
                        -0.000695687218385833,
                        -0.0057955516750680044,
                        -0.0421052670021262,
                        0.03699638306259637,
                        0.011600122832983664,
                    ],
                ),
                (
                    3,
                    1,
                    [
                        -0.06947946224355828,
                        0.049827414731384,
                        0.00894284553673866,
                        0.003322634769298899,
                        0.007386567206136707,
                    ],
                ),
                (4, 1, [0.0; 5]),
                (2, 3, [0.0; 5]),
                (
                    4,
                    2,
                    [
                        -0.01755206488210954,
                        -0.0927100110782521,
                        0.04875908082667262,
                        0.048946526355678144,
                        0.012556468778010874,
                    ],
                ),
            ] {
                let row = gradient.select(0, step)?.select(0, sample)?;
                close("gradient", &row, &expected, 1e-10)?;
            }
            Ok(())
        });
        checked.unwrap();
    }
}

/// Another blank, no labels, no steps; and 16 bits.
#[test]
fn labels_and_steps_may_be_none() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let wide = mesh.with_dtype(DType::F64);
        let log_probs = sequences(&wide, &shard(1).into())?.log_softmax(2)?;
        let targets = ndarray::arr2(&[[1_i64, 2, 0], [3, 0, 0], [4, 1, 2], [2, 2, 1]]);
        let targets = mesh.distribute(&targets, shard(0))?;
        let list = |numbers: [i64; 4]| mesh.distribute(&ndarray::arr1(&numbers), shard(0));
        let steps = list([6, 0, 5, 4])?;
        let expected = [12.11722388627224, 0.0, 3.971559011591675, 4.843002268802465];
        for (lengths, second) in [
            (list([0, 0, 3, 2])?, 0.0),
            (list([0, 1, 3, 2])?, f64::INFINITY),
        ] {
            let of = |x: &ShardTensor| {
                x.ctc_loss(&targets, [&steps, &lengths], 3, false, LossReduction::None)
            };
            let mut expected = expected;
            expected[1] = second;
            close("f64", &of(&log_probs)?, &expected, 1e-10)?;
            close("f32", &of(&log_probs.to(DType::F32)?)?, &expected, 1e-5)?;
            // Logarithms are rounded to 8 bits before.
            let half = of(&log_probs.to(DType::BF16)?)?;
            assert_eq!(half.dtype(), DType::BF16);
            close("bf16", &half, &expected, 0.1)?;
        }
        // Without any labels at all.
        let (no_labels, none) = (targets.narrow(1, 0..0)?, list([0; 4])?);
        let loss =
            log_probs.ctc_loss(&no_labels, [&steps, &none], 3, false, LossReduction::None)?;
        assert!((loss.narrow(0, 0..1)?.item()? - expected[0]).abs() < 1e-10);
        // What has no probability has no likelihood, and no NaN for a gradient.
        let never = mesh
            .full([2, 1, 2], f64::NEG_INFINITY, replicate())?
            .requires_grad()?;
        let one = mesh.distribute(&ndarray::arr1(&[1_i64]), replicate())?;
        let loss = never.ctc_loss(
            &one.unsqueeze(0)?,
            [&one, &one],
            0,
            true,
            LossReduction::Sum,
        )?;
        let gradient = loss.backward()?.get(&never)?.unwrap();
        assert_eq!(
            (loss.item()?, gradient.abs()?.sum_all()?.item()?),
            (0.0, 0.0)
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn where_samples_are_sharded_two_numbers_move() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = sequences(&mesh, &shard(1).into())?;
        let [targets, steps, lengths] = labels(&mesh, &shard(0).into(), &shard(0).into())?;
        let log_probs = x.log_softmax(2)?;
        let before = ctx.ledger().snapshot();
        let loss = log_probs.ctc_loss(&targets, [&steps, &lengths], 0, true, LossReduction::Sum)?;
        let moved = ctx.ledger().since(&before).bytes;
        assert!(moved <= 16, "{moved} bytes");
        let before = ctx.ledger().snapshot();
        loss.backward()?;
        assert_eq!(ctx.ledger().since(&before).bytes, 0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_is_no_label_or_length_is_an_error_on_all_ranks() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = sequences(&mesh, &shard(1).into())?;
        let [targets, steps, lengths] = labels(&mesh, &shard(0).into(), &shard(0).into())?;
        let of = |x: &ShardTensor, targets: &ShardTensor, lists: [&ShardTensor; 2], blank| {
            x.ctc_loss(targets, lists, blank, false, LossReduction::Mean)
        };
        of(&x, &targets, [&steps, &lengths], 0)?;
        let list = |numbers: [i64; 4]| mesh.distribute(&ndarray::arr1(&numbers), shard(0));
        let refused = [
            of(&x, &targets, [&list([6, 4, 5, 7])?, &lengths], 0),
            of(&x, &targets, [&list([6, 4, 5, -1])?, &lengths], 0),
            of(&x, &targets, [&steps, &list([3, 1, 2, 4])?], 0),
            // 77 is no class.
            of(&x, &targets, [&steps, &list([3, 2, 2, 3])?], 0),
            of(&x, &targets, [&steps, &lengths], 5),
            of(&x, &targets.to(DType::F32)?, [&steps, &lengths], 0),
            of(&x, &targets.select(1, 0)?, [&steps, &lengths], 0),
            of(&x.narrow(0, 0..0)?, &targets, [&steps, &lengths], 0),
            of(&x.select(0, 0)?, &targets, [&steps, &lengths], 0),
            of(&x, &targets, [&steps, &lengths.narrow(0, 0..3)?], 0),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            assert!(refused.is_err(), "{i}");
        }
        Ok(())
    })
    .unwrap();
}
