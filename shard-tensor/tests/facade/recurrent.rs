//! Recurrent layers, against numbers that PyTorch 2 gave, and what their training moves.

use shard_tensor::nn::{
    Gru, GruCell, Lstm, LstmCell, ModelExt, Module, Recurrent, RecurrentCell, RnnCell,
};
use shard_tensor::{
    DType, Launch, Mesh, Placements, Result, ShardTensor, launch, replicate, shard,
};

fn close(got: &ShardTensor, expected: &[f64]) -> Result<()> {
    let got = got.to_array::<f64>()?;
    assert_eq!(got.len(), expected.len());
    let far = (got.iter().zip(expected)).find(|(a, b)| (**a - **b).abs() > 1e-10);
    assert!(far.is_none(), "{far:?} of {got:?}");
    Ok(())
}

/// Weights number `p` of `0.8 sin(0.7 n + p)`, and an input of `cos(0.9 n)`.
fn layer<C: RecurrentCell>(mesh: &Mesh) -> Result<Recurrent<C>> {
    waves(Recurrent::bidirectional(mesh, 2, 2, 2)?)
}

fn waves<C: RecurrentCell>(made: Recurrent<C>) -> Result<Recurrent<C>> {
    for (p, (_, weight)) in made.parameters().into_iter().enumerate() {
        let columns = weight.shape().get(1).copied().unwrap_or(1);
        let number = |i: &[usize]| (i[0] * columns + i.get(1).unwrap_or(&0)) as f64;
        let value = |i: &[usize]| 0.8 * (0.7 * number(i) + p as f64).sin();
        let wave = weight.mesh().from_fn(weight.shape(), replicate(), value)?;
        weight.set(&wave)?;
    }
    Ok(made)
}

fn input(mesh: &Mesh, at: &Placements) -> Result<ShardTensor> {
    let value = |i: &[usize]| (0.9 * (6 * i[0] + 2 * i[1] + i[2]) as f64).cos();
    mesh.from_fn([5, 3, 2], at, value)?.requires_grad()
}

/// What the layer puts out for the last sample, its third state, and the gradients of a weight and of that sample.
struct Expected {
    outputs: [f64; 12],
    state: [f64; 10],
    weight: [f64; 4],
    sample: [f64; 6],
}

fn check<C: RecurrentCell>(of_state: fn(&C::State) -> &ShardTensor, expected: &Expected) {
    let layouts: [Placements; 4] = [
        replicate().into(),
        shard(0).sizes([4, 0, 1]).into(),
        shard(1).into(),
        shard(2).into(),
    ];
    for (ranks, at) in [(1, 0), (3, 1), (3, 2), (3, 3)] {
        let checked = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let (layer, x) = (layer::<C>(&mesh)?, input(&mesh, &layouts[at])?);
            let (y, states) = layer.forward_from(&x, None)?;
            close(&y.select(0, 4)?, &expected.outputs)?;
            close(of_state(&states[2]), &expected.state)?;
            let gradients = y.square()?.sum_all()?.backward()?;
            let named = layer.parameters();
            let (name, weight) = &named[1];
            assert_eq!((name.as_str(), named.len()), ("weight_hh_l0", 16));
            assert_eq!(named[15].0, "bias_hh_l1_reverse");
            let of = |t: &ShardTensor| Ok::<_, shard_tensor::Error>(gradients.get(t)?.unwrap());
            close(&of(weight)?.narrow(0, 0..2)?, &expected.weight)?;
            close(&of(&x)?.select(0, 4)?, &expected.sample)
        });
        checked.unwrap();
    }
}

#[test]
fn projected_memory_is_pytorchs() {
    for (ranks, at) in [
        (1, replicate().into()),
        (3, shard(0).sizes([4, 0, 1]).into()),
    ] {
        let at: Placements = at;
        let checked = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let lstm = waves(Lstm::bidirectional(&mesh, 2, 3, 2)?.projected(2)?)?;
            let x = input(&mesh, &at)?;
            let (y, states) = lstm.forward_from(&x, None)?;
            close(
                &y.select(0, 4)?,
                &[
                    -0.508026466541,
                    0.634061636901,
                    -0.383058039422,
                    0.091955398105,
                    -0.797454039711,
                    0.981645466095,
                    -0.278396906478,
                    0.08602153223,
                    -0.929142922968,
                    1.134284283677,
                    -0.160577217226,
                    0.058241858962,
                ],
            )?;
            close(
                &states[2].0,
                &[
                    -0.903471001906,
                    1.09841918381,
                    -0.905883969983,
                    1.100954627082,
                    -0.917260900173,
                    1.113236157958,
                    -0.934100338304,
                    1.133267374171,
                    -0.929142922968,
                    1.134284283677,
                ],
            )?;
            close(
                &states[2].1.select(0, 4)?,
                &[-0.96478600763, -1.151273118733, -1.345554410844],
            )?;
            let named = lstm.parameters();
            let weight = |name: &str| &named.iter().find(|(n, _)| n == name).unwrap().1;
            let of = [&x, weight("weight_hr_l0"), weight("weight_hh_l1")];
            let found = y.square()?.sum_all()?.grad(&of, false)?;
            let [sample, project, memory] = &found[..] else {
                unreachable!("three")
            };
            close(
                &sample.as_ref().unwrap().select(0, 4)?,
                &[
                    0.042364467312,
                    0.008305469288,
                    0.107875554459,
                    0.008939263489,
                    0.067534993601,
                    -0.006771386792,
                ],
            )?;
            close(
                project.as_ref().unwrap(),
                &[
                    0.11449550482,
                    0.064162842591,
                    0.020834470318,
                    -0.427337971365,
                    -0.317864102538,
                    -0.180210801572,
                ],
            )?;
            close(
                &memory.as_ref().unwrap().select(0, 0)?,
                &[-0.940002071884, 1.171451119975],
            )
        });
        checked.unwrap();
    }
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        for outputs in [0, 4] {
            let refused = Lstm::new(&mesh, 3, 4, 1)?.projected(outputs).unwrap_err();
            assert!(
                refused.to_string().contains("from 1 to 3 outputs"),
                "{refused}"
            );
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_rnn_is_pytorchs() {
    check::<RnnCell>(
        |h| h,
        &Expected {
            outputs: [
                -0.955150222789,
                -0.766174134378,
                0.997181583011,
                0.724899096399,
                -0.80090629577,
                -0.62352098772,
                0.992068026131,
                0.886980688282,
                -0.330113417026,
                -0.89328674308,
                0.732565251703,
                0.881374512438,
            ],
            state: [
                -0.89858434788,
                -0.634220489967,
                -0.872042602181,
                -0.582220634796,
                -0.78981198169,
                -0.753712204638,
                -0.471236931801,
                -0.902450628802,
                -0.330113417026,
                -0.89328674308,
            ],
            weight: [
                0.421907471725,
                0.003513145716,
                1.063699176194,
                0.358912947988,
            ],
            sample: [
                0.116683182766,
                0.453846249065,
                0.085763016456,
                0.12107009126,
                -0.393433261653,
                -0.249897502429,
            ],
        },
    );
}

#[test]
fn a_gru_is_pytorchs() {
    check::<GruCell>(
        |h| h,
        &Expected {
            outputs: [
                0.147117947661,
                0.267654745335,
                -0.449481267418,
                -0.919913660773,
                -0.174718587620,
                0.414205128998,
                -0.344893960192,
                -0.910681751077,
                -0.047907580326,
                0.507275775759,
                -0.251326287479,
                -0.760990640693,
            ],
            state: [
                -0.072317330944,
                0.422076157865,
                0.156020821602,
                0.383886238132,
                0.111311761000,
                0.440382450656,
                -0.156467215079,
                0.512716117734,
                -0.047907580326,
                0.507275775759,
            ],
            weight: [
                0.010723060687,
                -0.001876797492,
                -0.025427584250,
                -0.016610652819,
            ],
            sample: [
                0.093322311637,
                0.106547619962,
                -0.060115879015,
                -0.075866346365,
                -0.099727706455,
                -0.110982629171,
            ],
        },
    );
}

#[test]
fn an_lstm_is_pytorchs() {
    check::<LstmCell>(
        |(_, remembered)| remembered,
        &Expected {
            outputs: [
                0.102151914601,
                0.120146345481,
                -0.361864112168,
                -0.471692156396,
                0.105057696512,
                0.200410931941,
                -0.365568303005,
                -0.420869923517,
                0.111556046853,
                0.234235939771,
                -0.287035010007,
                -0.318202603062,
            ],
            state: [
                0.170196426735,
                0.368075838235,
                0.162866037837,
                0.387850936890,
                0.173366142702,
                0.369490083443,
                0.143476703490,
                0.415345421959,
                0.155190973409,
                0.407332802171,
            ],
            weight: [
                0.021451837204,
                -0.002515292715,
                0.001947510139,
                -0.001600529693,
            ],
            sample: [
                -0.000314217494,
                0.001345370444,
                0.006425413334,
                0.018474069586,
                -0.000644178779,
                0.009604456431,
            ],
        },
    );
}

#[test]
fn a_recurrent_layer_says_what_it_cannot_do() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let none = Lstm::new(&mesh, 3, 4, 0).err().unwrap().to_string();
        assert!(
            none.starts_with("Lstm: expected at least one layer"),
            "{none}"
        );
        let long = Lstm::new(&mesh, 3, 4, 1)?.projected(4).err().unwrap();
        assert!(long.to_string().starts_with("Lstm: "), "{long}");
        assert!(Gru::bidirectional(&mesh, 3, usize::MAX, 2).is_err());
        let gru = Gru::new(&mesh, 3, 4, 2)?.without_bias();
        assert_eq!(gru.parameters().len(), 4);
        for wrong in [&[5, 3][..], &[5, 0, 3], &[5, 2, 4]] {
            let refused = gru.forward(&mesh.ones(wrong, shard(0))?).unwrap_err();
            assert!(refused.to_string().starts_with("Gru: "), "{refused}");
        }
        let x = mesh.ones([5, 2, 3], shard(0))?;
        let (_, states) = gru.forward_from(&x, None)?;
        let refused = gru.forward_from(&x, Some(&states[..1])).err().unwrap();
        assert!(
            refused.to_string().contains("expected 2 states, got 1"),
            "{refused}"
        );
        gru.forward_from(&x, Some(&states)).map(|_| ())
    })
    .unwrap();
}

/// The products with a weight of all steps are terms of one sum. With few samples and many features each by itself would cost less if the
/// samples moved; all together they would then move many times as much.
#[test]
fn gradients_of_a_weight_that_is_used_in_each_step_are_summed_over_ranks_once() {
    let received = |rows: usize, steps: usize| -> Vec<(u64, f64)> {
        launch(4, |ctx| {
            let mesh = ctx.mesh_of(4)?;
            let w = mesh.from_fn([24, 24], replicate(), |i| {
                0.1 * ((5 * i[0] + 3 * i[1]) as f64).sin()
            })?;
            let w = w.requires_grad()?;
            let mut h = mesh.from_fn([rows, 24], shard(0), |i| ((i[0] + 2 * i[1]) as f64).cos())?;
            for _ in 0..steps {
                h = h.linear(&w, None)?.tanh()?;
            }
            let loss = h.square()?.mean_all()?;
            let before = ctx.ledger().snapshot();
            let gradient = loss.backward()?.get(&w)?.unwrap();
            let bytes = ctx.ledger().since(&before).bytes;
            Ok((bytes, gradient.square()?.sum_all()?.item()?))
        })
        .unwrap()
    };
    // Of one use, the samples move: six of eight rows of both factors.
    assert_eq!(received(8, 1)[0].0, 2 * 6 * 24 * 4);
    // Of many samples, terms of 24 x 24 are summed; and so they are, once, if few are used sixteen times.
    let (many, often) = (received(96, 1), received(8, 16));
    assert_eq!(often[0].0, many[0].0);
    assert!(often.iter().all(|rank| rank.1 == often[0].1));
}

/// Of sequences of different lengths, what PyTorch's packed sequences give.
#[test]
fn steps_that_a_mask_leaves_out_change_nothing() {
    fn masked<C: RecurrentCell>(of_state: fn(&C::State) -> &ShardTensor, expected: &Expected) {
        let layouts: [(Placements, Placements); 4] = [
            (replicate().into(), replicate().into()),
            (
                shard(0).sizes([4, 0, 1]).into(),
                shard(0).sizes([4, 0, 1]).into(),
            ),
            (shard(1).into(), shard(0).into()),
            (shard(2).into(), shard(1).into()),
        ];
        for (ranks, at) in [(1, 0), (3, 1), (3, 2), (3, 3)] {
            let checked = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let (of_x, of_mask) = &layouts[at];
                let (layer, x) = (layer::<C>(&mesh)?, input(&mesh, of_x)?);
                let lengths = [3, 1, 2, 3, 2];
                let mask = ndarray::Array2::from_shape_fn((5, 3), |(i, t)| {
                    f64::from(u8::from(t < lengths[i]))
                });
                let mask = mesh.distribute(&mask, of_mask)?.gt_scalar(0.0)?;
                let (y, states) = layer.forward_masked(&x, &mask, None)?;
                close(&y.select(0, 4)?, &expected.outputs)?;
                close(of_state(&states[2]), &expected.state)?;
                let gradients = y.square()?.sum_all()?.backward()?;
                let of = |t: &ShardTensor| Ok::<_, shard_tensor::Error>(gradients.get(t)?.unwrap());
                close(
                    &of(&layer.parameters()[1].1)?.narrow(0, 0..2)?,
                    &expected.weight,
                )?;
                close(&of(&x)?.select(0, 4)?, &expected.sample)?;
                // Where it begins from states, they stay those of a sample without steps.
                let none = mask.logical_and(&mask.logical_not()?)?;
                let (_, last) = layer.forward_masked(&x, &none, Some(&states))?;
                let kept = of_state(&last[2]).to_array::<f64>()?;
                assert_eq!(kept, of_state(&states[2]).to_array::<f64>()?);
                assert!(
                    layer
                        .forward_masked(&x, &mask.to(DType::F64)?, None)
                        .is_err()
                );
                assert!(
                    layer
                        .forward_masked(&x, &mask.narrow(1, 0..2)?, None)
                        .is_err()
                );
                assert!(layer.forward_masked(&x.select(2, 0)?, &mask, None).is_err());
                Ok(())
            });
            checked.unwrap();
        }
    }
    masked::<GruCell>(
        |h| h,
        &Expected {
            outputs: [
                0.153409108493,
                0.263977001757,
                -0.358892087786,
                -0.886149209682,
                -0.141424097939,
                0.408909843841,
                -0.208212040671,
                -0.794544829002,
                0.0,
                0.0,
                0.0,
                0.0,
            ],
            state: [
                -0.072317330944,
                0.422076157865,
                0.304442820758,
                0.277423577501,
                0.114355444202,
                0.427279123486,
                -0.156467215079,
                0.512716117734,
                -0.141424097939,
                0.408909843841,
            ],
            weight: [
                0.001486792292,
                -0.002761885761,
                -0.020667807754,
                -0.01095228053,
            ],
            sample: [
                0.078142072841,
                0.076957197181,
                -0.074824195249,
                -0.102376317183,
                0.0,
                0.0,
            ],
        },
    );
    masked::<LstmCell>(
        |(_, remembered)| remembered,
        &Expected {
            outputs: [
                0.10242435815,
                0.119583900293,
                -0.33747337672,
                -0.438556077283,
                0.106158408372,
                0.197253099458,
                -0.288250392651,
                -0.317235224434,
                0.0,
                0.0,
                0.0,
                0.0,
            ],
            state: [
                0.170196426735,
                0.368075838235,
                0.140023853075,
                0.202009951786,
                0.158205097746,
                0.327221865473,
                0.14347670349,
                0.415345421959,
                0.146748838367,
                0.340575377154,
            ],
            weight: [
                0.010765132344,
                -0.001077695246,
                0.002677386029,
                -0.001561356406,
            ],
            sample: [
                -0.002902129813,
                -0.000380988058,
                0.002899445771,
                0.011664496197,
                0.0,
                0.0,
            ],
        },
    );
}

#[test]
fn what_goes_from_layer_to_layer_is_dropped_in_training_alone() {
    let found = |ranks: usize, at: Placements| {
        let made = Launch::new(ranks).seed(5).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.from_fn([5, 3, 2], &at, |i| (6 * i[0] + 2 * i[1] + i[2]) as f64)?;
            let plain = Gru::new(&mesh, 2, 4, 2)?;
            let drops = plain.clone().dropout(0.5);
            let names: Vec<String> = drops.parameters().into_iter().map(|p| p.0).collect();
            assert_eq!((names.len(), names[7].as_str()), (8, "bias_hh_l1"));
            let whole = plain.forward(&x)?.to_array::<f64>()?;
            let (y, states) = drops.forward_from(&x, None)?;
            // The first layer hears of nothing.
            let first = plain.forward_from(&x, None)?.1[0].to_array::<f64>()?;
            assert_eq!(states[0].to_array::<f64>()?, first);
            let dropped = y.to_array::<f64>()?;
            assert_ne!(dropped, whole);
            drops.eval();
            assert_eq!(drops.forward(&x)?.to_array::<f64>()?, whole);
            let one = Gru::new(&mesh, 2, 4, 1)?;
            let alone = one.forward(&x)?.to_array::<f64>()?;
            assert_eq!(one.dropout(0.9).forward(&x)?.to_array::<f64>()?, alone);
            Ok(dropped)
        });
        made.unwrap().remove(0)
    };
    let (one, three) = (
        found(1, replicate().into()),
        found(3, shard(0).sizes([4, 0, 1]).into()),
    );
    assert!(one.iter().zip(&three).all(|(a, b)| (a - b).abs() < 1e-12));
}

/// A layer that is laid elsewhere has all of its weights there, under their names, and gives the same.
#[test]
fn a_recurrent_layer_is_placed() {
    let told = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = input(&mesh, &replicate().into())?;
        let whole = layer::<GruCell>(&mesh)?.forward(&x)?.to_array::<f64>()?;
        let placed = layer::<GruCell>(&mesh)?.place(|_, _| shard(0).into())?;
        let names: Vec<String> = placed
            .parameters()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names.len(), 16);
        assert!(
            names.contains(&"weight_hh_l1_reverse".to_owned()),
            "{names:?}"
        );
        for (_, weight) in placed.parameters() {
            weight.expect_layout(shard(0))?;
        }
        close(&placed.forward(&x)?, whole.as_slice().unwrap_or_default())
    });
    told.unwrap();
}
