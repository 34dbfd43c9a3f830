//! Layers, against numbers that PyTorch 2 gave, and states from elsewhere.

use shard_tensor::nn::{
    ConvTranspose, Differences, Dropout, InstanceNorm, Linear, Map, ModelExt, Module,
    MultiheadAttention, NeighborhoodAttention, PositionEmbedding, Rotary, Sequential, Strict, init,
    load_state_with,
};
use shard_tensor::{
    Attention, Causal, Context, DType, Launch, Mesh, Neighborhood, Placements, Result, ShardTensor,
    State, launch, replicate, shard,
};

/// `sin(0.37 n + k)` of the element number `n`.
fn wave(mesh: &Mesh, shape: &[usize], k: usize, at: impl Into<Placements>) -> Result<ShardTensor> {
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
fn everywhere(f: impl Fn(&Context, &Mesh) -> Result<()> + Sync) {
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
        let causal = attention.options(Attention::default().causal(Causal::TopLeft));
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
        let options = shard_tensor::ConvTranspose::new()
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

#[test]
fn initialisers_have_the_bounds_of_pytorch_under_any_layout() {
    let drawn = |ranks: usize| {
        let drawn = launch(ranks, |ctx| {
            let mesh = ctx.mesh([("a", ranks)])?;
            let conv = mesh.zeros([30, 50, 2, 2], shard(0))?.requires_grad()?;
            let read = || -> Result<_> { Ok(conv.to_array::<f32>()?.into_raw_vec_and_offset().0) };
            let mut all: Vec<Vec<f32>> = Vec::new();
            init::xavier_uniform(&conv, 2.0)?;
            all.push(read()?);
            init::kaiming_uniform(&conv, 5f64.sqrt())?;
            all.push(read()?);
            init::xavier_normal(&conv, 1.0)?;
            all.push(read()?);
            init::kaiming_normal(&conv, 0.0)?;
            all.push(read()?);
            init::trunc_normal(&conv, 1.5)?;
            all.push(read()?);
            Ok(all)
        });
        drawn.unwrap().swap_remove(ranks - 1)
    };
    let (one, three) = (drawn(1), drawn(3));
    assert_eq!(one, three);
    let most = |all: &[f32]| {
        all.iter()
            .fold(0.0, |most: f64, x| most.max(f64::from(x.abs())))
    };
    let deviation = |all: &[f32]| {
        let squares: f64 = all.iter().map(|x| f64::from(x * x)).sum();
        (squares / all.len() as f64).sqrt()
    };
    // Fans 200 and 120.
    for (all, bound) in [
        (&one[0], 2.0 * (6.0f64 / 320.0).sqrt()),
        (&one[1], 200f64.powf(-0.5)),
    ] {
        assert!(most(all) <= bound * 1.0001 && most(all) > 0.99 * bound);
    }
    for (all, expected) in [(&one[2], (2.0f64 / 320.0).sqrt()), (&one[3], 0.1)] {
        assert!((deviation(all) / expected - 1.0).abs() < 0.05);
    }
    assert!(most(&one[4]) <= 2.0 && most(&one[4]) > 1.95);
}

#[cfg(feature = "linalg")]
#[test]
fn orthogonal_rows_or_columns() {
    everywhere(|ctx, mesh| {
        assert_eq!(ctx.world_size(), mesh.size());
        for shape in [[3, 5], [5, 3]] {
            let w = mesh.zeros(shape, shard(0))?.requires_grad()?;
            init::orthogonal(&w, 2.0)?;
            let w = w
                .to_array::<f64>()?
                .into_dimensionality::<ndarray::Ix2>()
                .unwrap();
            let gram = if shape[0] < shape[1] {
                w.dot(&w.t())
            } else {
                w.t().dot(&w)
            };
            for ((i, j), g) in gram.indexed_iter() {
                let expected = if i == j { 4.0 } else { 0.0 };
                assert!((g - expected).abs() < 1e-12);
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
                .then(Linear::without_bias(&mesh, 3, 2)?);
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
