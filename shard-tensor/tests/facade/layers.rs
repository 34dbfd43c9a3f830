//! Layers, against numbers that PyTorch 2 gave, and states from elsewhere.

use crate::common::{on, pattern};
use shard_tensor::nn::{
    BatchNorm, ConvTranspose, Differences, DropPath, Dropout, Embedding, GroupNorm, Gru,
    InstanceNorm, LayerNorm, Linear, LpPool, Map, MaxUnpool, ModelExt, Module, MultiheadAttention,
    NeighborhoodAttention, PositionEmbedding, Rotary, Sequential, SinCos, Strict, load_state_with,
};
use shard_tensor::{
    Attention, Causal, Context, DType, ErrorClass, Launch, Mesh, Neighborhood, Placements,
    PoolOptions, Result, ShardTensor, State, launch, replicate, shard, tree,
};

/// `sin(0.37 n + k)` of the element number `n`.
pub(super) fn wave(
    mesh: &Mesh,
    shape: &[usize],
    k: usize,
    at: impl Into<Placements>,
) -> Result<ShardTensor> {
    let number = |i: &[usize]| {
        i.iter()
            .zip(shape)
            .fold(0, |n, (&i, &extent)| n * extent + i)
    };
    mesh.from_fn(shape, at, |i| (0.37 * number(i) as f64 + k as f64).sin())
}

fn waves(mesh: &Mesh, named: &[(&str, &[usize], usize)]) -> Result<State> {
    let tensors = named
        .iter()
        .map(|&(name, shape, k)| Ok((name.to_owned(), wave(mesh, shape, k, replicate())?)));
    Ok(State {
        tensors: tensors.collect::<Result<_>>()?,
        numbers: Vec::new(),
    })
}

/// On one rank and on three.
pub(super) fn everywhere(f: impl Fn(&Context, &Mesh) -> Result<()> + Sync) {
    for ranks in [1, 3] {
        let launch = Launch::new(ranks).dtype(DType::F64);
        launch.run(|ctx| f(ctx, &ctx.mesh_of(ranks)?)).unwrap();
    }
}

fn check(got: &ShardTensor, expected: &[f64]) -> Result<()> {
    let got = got.to_array::<f64>()?;
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-12, "{got} is not {expected}");
    }
    Ok(())
}

#[test]
fn attention_loads_the_joint_projections_of_pytorch() {
    everywhere(|_, mesh| {
        let mut attention = MultiheadAttention::new(mesh, 4, 2)?;
        let state = waves(
            mesh,
            &[
                ("in_proj_weight", &[12, 4], 0),
                ("in_proj_bias", &[12], 1),
                ("out_proj.weight", &[4, 4], 2),
                ("out_proj.bias", &[4], 3),
            ],
        )?;
        load_state_with(&mut attention, &state, Strict::Yes)?;
        let x = wave(mesh, &[1, 3, 4], 9, shard(1))?;
        let y = attention.forward(&x)?;
        y.expect_layout(shard(1))?;
        check(
            &y,
            &[
                -2.0671137908569497,
                0.9720366424239774,
                1.8622397187333615,
                -1.5825873046215628,
                -3.658972297418613,
                2.3533067136878234,
                3.7045822276658766,
                -2.6297609996762823,
                -1.8049862284552722,
                0.7784918417715355,
                1.565014113368128,
                -1.4429423609108278,
            ],
        )?;
        let others = wave(mesh, &[1, 2, 4], 7, replicate())?;
        check(
            &attention.attend(&x, &others, None)?,
            &[
                0.2085063482183663,
                1.0328332027844735,
                -0.40235537456249926,
                -2.0540528967081406,
                -1.1312615938715938,
                1.9741498590106672,
                1.1081139882381428,
                -2.721456131276924,
                0.3506180637978501,
                1.0174883589250443,
                -0.5472497739817546,
                -2.0649836739909606,
            ],
        )?;
        let causal = attention.options(Attention::new().causal(Causal::TopLeft));
        check(
            &causal.forward(&x)?,
            &[
                -2.2943029627190463,
                1.953888489466522,
                2.267481094504718,
                -2.4909513639814254,
                -3.6701972729391072,
                2.363547381408513,
                3.7176642791420376,
                -2.637629325679633,
                -1.8049862284552722,
                0.7784918417715355,
                1.565014113368128,
                -1.4429423609108278,
            ],
        )
    });
}

#[test]
fn transposed_convolutions_and_instance_norms() {
    everywhere(|_, mesh| {
        let options = shard_tensor::ConvTransposeOptions::new()
            .stride(2)
            .padding(1)
            .output_padding(1)
            .groups(2);
        let mut layer = ConvTranspose::new(mesh, 2, 4, 3, options)?;
        let state = waves(mesh, &[("weight", &[2, 2, 3], 1), ("bias", &[4], 2)])?;
        load_state_with(&mut layer, &state, Strict::Yes)?;
        let x = wave(mesh, &[1, 2, 3], 3, shard(2))?;
        check(
            &layer.forward(&x)?,
            &[
                1.047582060348183,
                0.8578707770240246,
                0.6874202528250047,
                0.21208089719504297,
                0.3572884799299417,
                0.3540149189266024,
                0.7839782384732548,
                0.5435460022423888,
                0.5581671119975795,
                0.1487839054324651,
                0.3511839561890656,
                0.5353335303284396,
                0.7481074377183446,
                1.0686629595708736,
                0.812761910719489,
                1.1789050003705426,
                0.8203172930437481,
                1.114041559281357,
                0.8555085050825917,
                1.7062792765754382,
                1.0046317021404354,
                1.8621478869086898,
                1.0220579174491256,
                0.9594677293431811,
            ],
        )?;
        check(
            &InstanceNorm::new().forward(&x)?,
            &[
                1.242038245699765,
                -0.03550693533106748,
                -1.2065313103686974,
                1.4065349248097043,
                -0.5867991038563185,
                -0.8197358209533853,
            ],
        )
    });
}

#[test]
fn instance_norms_with_weights_and_running_statistics() {
    let affine = [
        1.954436572603735,
        0.879419370985138,
        -0.10596366311182796,
        2.07555264971966,
        0.12226856596964779,
        -0.10598800090949642,
        -0.06387956338769224,
        0.8029265522722084,
        1.9888452915925292,
        -0.5345134048962977,
        0.7634911117866068,
        1.8628555078895042,
    ];
    everywhere(|_, mesh| {
        let mut layer = InstanceNorm::new().affine(mesh, 2)?.running(mesh, 2)?;
        let running_var = wave(mesh, &[2], 4, replicate())?.abs()?;
        let mut state = waves(
            mesh,
            &[
                ("weight", &[2], 1),
                ("bias", &[2], 2),
                ("running_mean", &[2], 3),
                ("num_batches_tracked", &[], 0),
            ],
        )?;
        state.tensors.push(("running_var".to_owned(), running_var));
        load_state_with(&mut layer, &state, Strict::Yes)?;
        for at in [shard(0), shard(2)] {
            let mut layer = layer.clone();
            load_state_with(&mut layer, &state, Strict::Yes)?;
            layer.train(true);
            let x = wave(mesh, &[2, 2, 3], 3, at)?;
            let y = layer.forward(&x)?;
            y.expect_layout(x.layout())?;
            check(&y, &affine)?;
            let [mean, var] = [&layer.running_mean, &layer.running_var].map(|b| {
                let buffer = b.as_ref().expect("it was asked for");
                buffer.get()
            });
            check(&mean, &[0.08568932008481939, -0.23091544686436719])?;
            check(&var, &[0.6912290436331953, 0.8536579674446465])?;
            layer.eval();
            let eval = [
                0.9653990315517089,
                0.5934038265771987,
                0.25242531647019867,
                0.0682844892065765,
                -0.08988378419402891,
                -0.10836698762356375,
                -0.06191484220525466,
                0.17584618965884313,
                0.5011383836959248,
                0.9918128757452811,
                1.3715537421761184,
                1.6931809652971876,
            ];
            check(&layer.forward(&x)?, &eval)?;
            // Nothing moved.
            check(&mean, &[0.08568932008481939, -0.23091544686436719])?;
        }
        let mut plain = InstanceNorm::new().affine(mesh, 2)?;
        load_state_with(&mut plain, &state, Strict::No)?;
        plain.eval();
        let x = wave(mesh, &[2, 2, 3], 3, shard(2))?;
        check(&plain.forward(&x)?, &affine)
    });
}

#[test]
fn keys_and_values_of_other_widths() {
    everywhere(|_, mesh| {
        let mut attention = MultiheadAttention::from_widths(mesh, 4, 2, 3, 2)?;
        let state = waves(
            mesh,
            &[
                ("q_proj_weight", &[4, 4], 0),
                ("k_proj_weight", &[4, 3], 1),
                ("v_proj_weight", &[4, 2], 2),
                ("in_proj_bias", &[12], 3),
                ("out_proj.weight", &[4, 4], 4),
                ("out_proj.bias", &[4], 5),
            ],
        )?;
        load_state_with(&mut attention, &state, Strict::Yes)?;
        let queries = wave(mesh, &[1, 3, 4], 9, shard(1))?;
        let keys = wave(mesh, &[1, 5, 3], 7, shard(1))?;
        let values = wave(mesh, &[1, 5, 2], 8, shard(1))?;
        check(
            &attention.attend_to(&queries, &keys, &values, None)?,
            &[
                0.17004938803133884,
                0.34700484251536834,
                -1.4393871548955226,
                -1.478073502325358,
                -2.794399700686324,
                1.1300111873891314,
                1.667054848333271,
                -1.697747561725285,
                -0.3403718988260539,
                -0.78632130938453,
                -1.1344869145194272,
                -0.2894557502365402,
            ],
        )?;
        // Under another name it is another's.
        let other = waves(mesh, &[("other_q_proj_weight", &[4, 4], 0)])?;
        assert!(
            (other.with_split_projections()?)
                .tensor("other_q_proj_weight")
                .is_some()
        );
        Ok(())
    });
}

#[test]
fn pools_by_norm_and_the_way_back() {
    everywhere(|_, mesh| {
        let x = wave(mesh, &[1, 2, 7], 3, shard(2))?;
        let pool = LpPool::new(2.0, PoolOptions::new(3).stride(2));
        check(
            &pool.forward(&x)?,
            &[
                0.6233148926901513,
                1.3940044401245826,
                1.6406884669847157,
                0.7150954513850883,
                0.8170128521776993,
                1.5289447518536583,
            ],
        )?;
        let options = PoolOptions::new(3).stride(2);
        let x = wave(mesh, &[1, 1, 9], 3, shard(2))?;
        let (y, places) = x.max_pool_with_indices(options.clone())?;
        let back = MaxUnpool::new(options).unpool(&y, &places)?;
        let kept = [
            0.1411200080598672,
            -0.56332728410037,
            -0.8739082619290224,
            -0.31758856607203484,
        ];
        let mut plane = [0.0; 9];
        for (at, value) in [0, 2, 6, 8].into_iter().zip(kept) {
            plane[at] = value;
        }
        check(&back, &plane)
    });
}

#[test]
fn layers_give_the_same_wherever_their_data_lie() {
    let results: Vec<Vec<f64>> = [1, 3]
        .into_iter()
        .map(|ranks| {
            let launch = Launch::new(ranks).dtype(DType::F64);
            let run = |ctx: &Context| {
                let mesh = ctx.mesh_of(ranks)?;
                let grid = wave(&mesh, &[1, 5, 4, 8], 2, shard(1))?;
                let near = NeighborhoodAttention::new(&mesh, 8, 2, Neighborhood::new([3, 3]))?;
                let place = PositionEmbedding::new(&mesh, [5, 4], 8)?;
                let y = near.forward(&place.forward(&grid)?)?;
                y.expect_layout(grid.layout())?;
                let slope = y.square()?.sum_all()?.backward()?;
                let slope = slope.get(&place.weight)?.expect("it depends on it");
                let mut all = y.to_array::<f64>()?.into_raw_vec_and_offset().0;
                all.extend(slope.to_array::<f64>()?);
                let tokens = wave(&mesh, &[2, 7, 4], 2, shard(1))?;
                all.extend(
                    Rotary::new(&mesh, 7, 4)?
                        .forward(&tokens)?
                        .to_array::<f64>()?,
                );
                Ok(all)
            };
            launch.run(run).unwrap().swap_remove(ranks - 1)
        })
        .collect();
    assert_eq!(results[0].len(), results[1].len());
    for (one, three) in results[0].iter().zip(&results[1]) {
        assert!((one - three).abs() < 1e-12, "{one} {three}");
    }
}

/// Fewer tokens than places have the first ones, and tokens that come one by one have those of all at once.
#[test]
fn tokens_have_the_places_that_they_have_among_all() {
    everywhere(|_, mesh| {
        let (places, codes) = (
            PositionEmbedding::new(mesh, 8, 4)?,
            SinCos::new(mesh, 8, 4)?,
        );
        let rotary = Rotary::new(mesh, 8, 4)?;
        type At<'a> = Box<dyn Fn(&ShardTensor, usize) -> Result<ShardTensor> + 'a>;
        let layers: [(&str, &dyn Module, At<'_>); 3] = [
            (
                "PositionEmbedding",
                &places,
                Box::new(|x, at| places.forward_at(x, at)),
            ),
            ("SinCos", &codes, Box::new(|x, at| codes.forward_at(x, at))),
            (
                "Rotary",
                &rotary,
                Box::new(|x, at| rotary.forward_at(x, at)),
            ),
        ];
        let x = wave(mesh, &[1, 2, 8, 4], 2, shard(2))?;
        for (name, layer, at) in &layers {
            let all = layer.forward(&x)?;
            for n in [0, 1, 5, 8] {
                let some = layer.forward(&x.narrow(2, 0..n)?)?;
                assert_eq!(some.shape(), [1, 2, n, 4]);
                assert_eq!(
                    some.to_array::<f64>()?,
                    all.narrow(2, 0..n)?.to_array::<f64>()?
                );
            }
            for tokens in [3..4, 3..8, 7..8] {
                let some = at(&x.narrow(2, tokens.clone())?, tokens.start)?;
                assert_eq!(
                    some.to_array::<f64>()?,
                    all.narrow(2, tokens)?.to_array::<f64>()?
                );
            }
            let more = mesh.zeros([1, 9, 4], shard(1))?;
            let narrow = mesh.zeros([1, 8, 1], shard(1))?;
            let row = mesh.zeros(4, replicate())?;
            for wrong in [
                layer.forward(&more),
                layer.forward(&narrow),
                layer.forward(&row),
                at(&x, 1),
                at(&x, usize::MAX),
            ] {
                let error = wrong.unwrap_err();
                assert_eq!(error.class(), ErrorClass::Uniform);
                assert!(error.to_string().starts_with(name), "{error}");
            }
        }
        // Along each dim of a grid.
        let (places, codes) = (
            PositionEmbedding::new(mesh, [5, 4], 8)?,
            SinCos::new(mesh, [5, 4], 8)?,
        );
        let x = wave(mesh, &[2, 5, 4, 8], 2, shard(1))?;
        let part = x.narrow(1, 1..4)?.narrow(2, 2..4)?;
        for (all, some) in [
            (places.forward(&x)?, places.forward_at(&part, [1, 2])?),
            (codes.forward(&x)?, codes.forward_at(&part, [1, 2])?),
        ] {
            let expected = all.narrow(1, 1..4)?.narrow(2, 2..4)?;
            assert_eq!(some.to_array::<f64>()?, expected.to_array::<f64>()?);
        }
        assert!(codes.forward_at(&part, 1).is_err());
        let slope = places.forward_at(&part, [1, 2])?.sum_all()?.backward()?;
        let slope = slope.get(&places.weight)?.expect("it depends on it");
        let slope = slope.to_array::<f64>()?;
        assert_eq!(
            (slope[[1, 2, 0]], slope[[0, 2, 0]], slope[[1, 1, 0]]),
            (2.0, 0.0, 0.0)
        );
        for base in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = rotary.clone().base(base).unwrap_err();
            assert!(error.to_string().contains("base"), "{error}");
        }
        Ok(())
    });
}

/// What an attention drops is another in each call, the same under any layout, and nothing out of training.
#[test]
fn attention_drops_anew_in_each_call() {
    let found = |ranks: usize, at: Placements| {
        let launch = Launch::new(ranks).dtype(DType::F64).seed(5);
        let found = launch.run(move |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let attention = MultiheadAttention::new(&mesh, 8, 2)?.dropout(0.5);
            let x = wave(&mesh, &[2, 7, 8], 3, &at)?;
            let y = || {
                Ok::<_, shard_tensor::Error>(
                    attention
                        .forward(&x)?
                        .to_array::<f64>()?
                        .into_raw_vec_and_offset()
                        .0,
                )
            };
            let trained = [y()?, y()?];
            attention.eval();
            let evaluated = [y()?, y()?];
            let plain = attention
                .clone()
                .dropout(0.0)
                .forward(&x)?
                .to_array::<f64>()?;
            assert_eq!(evaluated[0], plain.into_raw_vec_and_offset().0);
            assert_eq!(attention.parameters().len(), 8);
            Ok([trained, evaluated])
        });
        found.unwrap().swap_remove(0)
    };
    let one = found(1, replicate().into());
    assert_ne!(one[0][0], one[0][1]);
    assert_eq!(one[1][0], one[1][1]);
    for at in [shard(0), shard(1).sizes([4, 0, 3]), replicate()] {
        let three = found(3, at.into());
        for (a, b) in one
            .iter()
            .flatten()
            .flatten()
            .zip(three.iter().flatten().flatten())
        {
            assert!((a - b).abs() < 1e-12, "{a} {b}");
        }
    }
}

/// Heads of keys and values that serve several heads of queries are those heads repeated.
#[test]
fn grouped_heads_are_repeated_ones() {
    everywhere(|_, mesh| {
        let grouped = MultiheadAttention::new(mesh, 8, 4)?
            .kv_heads(2)?
            .without_bias();
        let names: Vec<String> = grouped.parameters().into_iter().map(|p| p.0).collect();
        assert_eq!(
            names,
            [
                "q_proj.weight",
                "k_proj.weight",
                "v_proj.weight",
                "out_proj.weight"
            ]
        );
        let mut all = MultiheadAttention::new(mesh, 8, 4)?.without_bias();
        let repeated = |w: &ShardTensor| {
            let parts = [0..2, 0..2, 2..4, 2..4].map(|rows| w.detach().narrow(0, rows));
            let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
            ShardTensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?.requires_grad()
        };
        all.q_proj = grouped.q_proj.clone();
        all.out_proj = grouped.out_proj.clone();
        all.k_proj.weight = repeated(&grouped.k_proj.weight)?;
        all.v_proj.weight = repeated(&grouped.v_proj.weight)?;
        let x = wave(mesh, &[2, 5, 8], 3, shard(1))?;
        let expected = all
            .forward(&x)?
            .to_array::<f64>()?
            .into_raw_vec_and_offset()
            .0;
        check(&grouped.forward(&x)?, &expected)?;
        for heads in [0, 3, 8] {
            let error = all.clone().kv_heads(heads).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform);
        }
        Ok(())
    });
}

#[test]
fn layers_without_some_of_their_parts() {
    everywhere(|_, mesh| {
        let x = wave(mesh, &[3, 4, 5], 3, shard(2))?;
        let names = |layer: &dyn Module| {
            let all = layer.parameters().into_iter().chain(layer.buffers());
            all.map(|p| p.0).collect::<Vec<_>>()
        };
        let norm = GroupNorm::new(mesh, 2, 4)?.without_affine();
        assert!(names(&norm).is_empty());
        let same = |a: ShardTensor, b: ShardTensor| {
            assert_eq!(a.to_array::<f64>()?, b.to_array::<f64>()?);
            Ok::<_, shard_tensor::Error>(())
        };
        same(norm.forward(&x)?, x.group_norm(2, None, None, 1e-5)?)?;
        let norm = LayerNorm::new(mesh, 5)?.without_bias();
        assert_eq!(names(&norm), ["weight"]);
        same(norm.forward(&x)?, x.layer_norm(1, None, None, 1e-5)?)?;
        let norm = BatchNorm::new(mesh, 4)?.without_affine();
        assert_eq!(names(&norm), ["running_mean", "running_var"]);
        let of_batch = norm.forward(&x)?;
        let norm = norm.without_running();
        assert!(names(&norm).is_empty());
        norm.eval();
        same(norm.forward(&x)?, of_batch)?;
        let up = ConvTranspose::new(mesh, 4, 2, 3, shard_tensor::ConvTransposeOptions::new())?
            .without_bias();
        assert_eq!(names(&up), ["weight"]);
        up.forward(&x)?;
        let table = Embedding::new(mesh, 3, 2)?
            .place(|_, _| shard(0).into())?
            .padding(2)?;
        table.weight.expect_layout(shard(0))?;
        assert_eq!(
            table.weight.narrow(0, 2..3)?.square()?.sum_all()?.item()?,
            0.0
        );
        assert!(Embedding::new(mesh, 3, 2)?.padding(3).is_err());
        Ok(())
    });
}

#[test]
fn products_of_turned_vectors_see_distances_alone() {
    everywhere(|_, mesh| {
        let rotary = Rotary::new(mesh, 6, 4)?;
        let [q, k] = [1.0, 2.0].map(|scale| {
            let x = mesh.from_fn([1, 6, 4], shard(1), |i| scale * (i[2] as f64 + 1.0).cos())?;
            rotary.forward(&x)
        });
        let products = q?.matmul(&k?.transpose(1, 2)?)?.to_array::<f64>()?;
        for i in 0..5 {
            for j in 0..5 {
                let (near, next) = (products[[0, i, j]], products[[0, i + 1, j + 1]]);
                assert!((near - next).abs() < 1e-12);
            }
        }
        assert!((products[[0, 0, 0]] - products[[0, 0, 3]]).abs() > 0.1);
        Ok(())
    });
}

/// Files of Hugging Face have a tied weight once, under whichever name.
#[test]
fn a_tied_weight_is_found_under_any_of_its_names() {
    struct Lm {
        head: Linear,
        wte: Embedding,
    }
    tree!(Lm { head, wte });
    everywhere(|_, mesh| {
        let wte = Embedding::new(mesh, 5, 3)?;
        let mut head = Linear::new(mesh, 3, 5)?.without_bias();
        head.weight = wte.weight.clone();
        let mut lm = Lm { head, wte };
        for (k, name) in ["wte.weight", "head.weight"].into_iter().enumerate() {
            for strict in [Strict::No, Strict::Yes] {
                let state = waves(mesh, &[(name, &[5, 3], k)])?;
                let differences = load_state_with(&mut lm, &state, strict)?;
                assert_eq!(differences, Differences::default());
                assert!(lm.head.weight.is_same_parameter(&lm.wte.weight));
                let expected = state.tensors[0].1.to(lm.head.weight.dtype())?;
                let (got, expected) = (lm.wte.weight.to(DType::F64)?, expected.to(DType::F64)?);
                assert_eq!(got.to_array::<f64>()?, expected.to_array::<f64>()?);
            }
        }
        let nothing = load_state_with(&mut lm, &State::default(), Strict::No)?;
        assert_eq!(nothing.missing, ["head.weight", "wte.weight"]);
        let wrong = waves(mesh, &[("wte.weight", &[3, 5], 0)])?;
        let error = load_state_with(&mut lm, &wrong, Strict::No).unwrap_err();
        assert!(error.to_string().contains("[3, 5]"), "{error}");
        Ok(())
    });
}

#[test]
fn joint_projections_that_are_not_three_are_refused() {
    everywhere(|_, mesh| {
        let mut attention = MultiheadAttention::new(mesh, 4, 2)?;
        for (name, shape) in [("in_proj_weight", &[13, 4][..]), ("in_proj_bias", &[])] {
            let state = waves(mesh, &[(name, shape, 0)])?;
            let error = load_state_with(&mut attention, &state, Strict::No).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform);
            let text = error.to_string();
            assert!(
                text.contains(name) && text.contains("three projections"),
                "{text}"
            );
        }
        Ok(())
    });
}

#[test]
fn paths_are_dropped_in_training_alone() {
    everywhere(|_, mesh| {
        let drop = Sequential::new().then(DropPath::new(0.5));
        let x = mesh.ones([64, 3], shard(0))?;
        let rows = drop.forward(&x)?.sum(1, false)?.to(DType::F64)?;
        let rows = rows.to_array::<f64>()?;
        let skipped = rows.iter().filter(|row| **row == 0.0).count();
        assert!((10..54).contains(&skipped), "{skipped} of 64");
        assert!(rows.iter().all(|row| [0.0, 6.0].contains(row)), "{rows:?}");
        drop.eval();
        assert_eq!(drop.forward(&x)?.sub(&x)?.abs()?.sum_all()?.item()?, 0.0);
        let number = mesh.ones([], replicate())?;
        assert!(number.drop_path(0.5).is_err());
        Ok(())
    });
}

#[test]
fn layers_that_drop_refuse_what_is_no_probability() {
    everywhere(|_, mesh| {
        let x = mesh.ones([2, 3, 4], shard(0))?;
        for p in [-0.5, 1.5, f64::NAN] {
            let tried = [
                DropPath::new(p).forward(&x),
                Dropout::new(p).forward(&x),
                Gru::new(mesh, 4, 2, 2)?.dropout(p).forward(&x),
                MultiheadAttention::new(mesh, 4, 2)?.dropout(p).forward(&x),
            ];
            for (layer, y) in tried.into_iter().enumerate() {
                let class = y.err().map(|e| e.class());
                assert_eq!(class, Some(ErrorClass::Uniform), "{layer} with {p}");
            }
        }
        Ok(())
    });
}

#[test]
fn states_that_differ() {
    launch(2, |ctx| {
        let mesh = ctx.mesh([("shard", 2)])?;
        let new = || -> Result<Sequential> {
            let net = Sequential::new()
                .then(Linear::new(&mesh, 4, 3)?)
                .then(Map::new(|x: &ShardTensor| x.relu()))
                .then(Dropout::new(0.5))
                .then(Linear::new(&mesh, 3, 2)?.without_bias());
            net.fully_sharded("shard")
        };
        let mut net = new()?;
        let wide = mesh.with_dtype(DType::F64);
        let state = waves(
            &wide,
            &[
                ("0.weight", &[3, 4], 1),
                ("3.weight", &[2, 3], 2),
                ("extra", &[2], 3),
                ("1.num_batches_tracked", &[], 0),
            ],
        )?;
        let before = net.parameters()[1].1.to_array::<f32>()?;
        let error = load_state_with(&mut net, &state, Strict::Yes)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"0.bias\"") && error.contains("\"extra\""),
            "{error}"
        );

        let found = load_state_with(&mut net, &state, Strict::No)?;
        let (missing, unexpected) = (vec!["0.bias".to_owned()], vec!["extra".to_owned()]);
        assert_eq!(
            found,
            Differences {
                missing,
                unexpected
            }
        );
        let loaded = net.parameters();
        assert_eq!(loaded[1].1.to_array::<f32>()?, before);
        let (got, given) = (&loaded[2].1, state.tensor("3.weight").unwrap());
        assert_eq!(got.dtype(), DType::F32);
        assert_eq!(
            got.to_array::<f32>()?,
            given.to(DType::F32)?.to_array::<f32>()?
        );

        let wrong = waves(&wide, &[("0.weight", &[4, 3], 1)])?;
        let error = load_state_with(&mut net, &wrong, Strict::No)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"0.weight\"") && error.contains("[4, 3]"),
            "{error}"
        );

        // Out of training nothing is dropped.
        net.eval();
        let x = mesh.ones([4, 4], shard(0))?;
        assert_eq!(
            net.forward(&x)?.to_array::<f32>()?,
            net.forward(&x)?.to_array::<f32>()?
        );
        net.train(true);
        assert_ne!(
            net.forward(&x)?.to_array::<f32>()?,
            net.forward(&x)?.to_array::<f32>()?
        );
        Ok(())
    })
    .unwrap();
}

/// The sines and cosines of each dim's places, the first dim's first.
#[test]
fn codes_of_places_are_sines_and_cosines_of_each_dim() {
    everywhere(|_, mesh| {
        let codes = SinCos::new(mesh, [3, 5], 8)?.forward(&mesh.ones([1, 3, 5, 8], shard(1))?)?;
        for (at, got) in codes.to_array::<f64>()?.indexed_iter() {
            let (place, feature) = (at[1 + at[3] / 4] as f64, at[3] % 4);
            let angle = place * [1.0, 0.01][feature % 2];
            let expected = 1.0
                + if feature < 2 {
                    angle.sin()
                } else {
                    angle.cos()
                };
            assert!((got - expected).abs() < 1e-12, "{at:?}: {got}");
        }
        let turned = Rotary::new(mesh, 5, 4)?.forward(&mesh.ones([1, 5, 4], shard(1))?)?;
        for (at, got) in turned.to_array::<f64>()?.indexed_iter() {
            let (sin, cos) = (at[1] as f64 * [1.0, 0.01][at[2] % 2]).sin_cos();
            let expected = if at[2] < 2 { cos - sin } else { cos + sin };
            assert!((got - expected).abs() < 1e-12, "{at:?}: {got}");
        }
        Ok(())
    });
}

/// Values that are weighed by them are what attention finds, with the same gradients.
#[test]
fn weights_of_attention_are_those_that_it_multiplies_by() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let made = |shape: [usize; 4], seed, at: &Placements| {
            mesh.from_fn(shape, at, |i| pattern(seed, i))?
                .requires_grad()
        };
        let some = mesh.from_fn([1, 1, 5, 7], replicate(), |i| {
            f64::from((i[2] + i[3]) % 3 != 0 && i[2] != 2)
        })?;
        let some = some.to(DType::Bool)?;
        let added = mesh.from_fn([4, 5, 7], replicate(), |i| pattern(4, i))?;
        let plain = Attention::new();
        let cases = [
            (plain, None),
            (plain.causal(Causal::TopLeft).scale(0.7), None),
            (plain.causal(Causal::BottomRight).window(2, 0), Some(&some)),
            (plain.window(1, 2), Some(&added)),
            (plain, Some(&some)),
        ];
        let tokens = Placements::from([shard(2), shard(2)]);
        let heads = Placements::from([shard(1), shard(2)]);
        for (at, of_keys) in [(&tokens, &tokens), (&heads, &tokens), (&heads, &heads)] {
            let q = made([2, 4, 5, 3], 1, at)?;
            let k = made([2, 2, 7, 3], 2, of_keys)?;
            // As many of their elements as keys: nothing of the weights is hidden.
            let v = made([2, 2, 7, 7], 3, of_keys)?;
            for (options, mask) in &cases {
                let found = q.attention(&k, &v, *mask, options)?;
                let weights = q.attention_weights(&k, *mask, options)?;
                assert_eq!(weights.shape(), [2, 4, 5, 7]);
                let again = weights.matmul(&v.repeat_interleave(1, 2)?)?;
                assert!(again.allclose(&found, 1e-10, 1e-12, false)?, "{options:?}");
                let slopes = |y: &ShardTensor| y.square()?.sum_all()?.grad(&[&q, &k, &v], false);
                for (got, expected) in slopes(&again)?.iter().zip(slopes(&found)?) {
                    let (got, expected) = (got.as_ref().unwrap(), expected.unwrap());
                    assert!(got.allclose(&expected, 1e-9, 1e-11, false)?, "{options:?}");
                }
            }
        }
        let layer = MultiheadAttention::new(&mesh, 8, 4)?
            .kv_heads(2)?
            .dropout(0.5);
        let x = mesh.from_fn([2, 5, 8], [shard(1), replicate()], |i| pattern(5, i))?;
        let (_, weights) = layer.attend_with_weights(&x, &x, &x, None)?;
        layer.eval();
        let (found, same) = layer.attend_with_weights(&x, &x, &x, None)?;
        assert!(weights.allclose(&same, 0.0, 0.0, false)?, "none is dropped");
        assert!(found.allclose(&layer.forward(&x)?, 1e-12, 1e-12, false)?);
        let refused = x
            .attention_weights(&x, None, &plain)
            .unwrap_err()
            .to_string();
        assert!(
            refused.starts_with("attention_weights: attention: queries, keys"),
            "{refused}"
        );
        Ok(())
    });
}
