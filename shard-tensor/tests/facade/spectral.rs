//! The layer that acts on frequencies, against numbers that PyTorch 2 gave.

use crate::layers::wave;
use shard_tensor::nn::{ModelExt, Module, ParallelPlan, SpectralConv};
use shard_tensor::{
    DType, ErrorClass, Launch, Mesh, Placements, Result, ShardTensor, Stft, launch, replicate,
    shard,
};

/// What a layer that acts on frequencies makes of a field, and two sums of the gradients.
fn spectral(
    mesh: &Mesh,
    (field, modes, outputs): (&[usize], &[usize], usize),
    at: impl Into<Placements>,
    plan: &ParallelPlan,
) -> Result<(ShardTensor, [f64; 2])> {
    let mut layer = SpectralConv::new(mesh, field[1], outputs, modes.to_vec())?;
    let shape = layer.weight.shape().to_vec();
    layer.weight = wave(mesh, &shape, 2, replicate())?.requires_grad()?;
    let layer = layer.distribute(plan)?;
    let x = wave(mesh, field, 9, at)?.requires_grad()?;
    let y = layer.forward(&x)?;
    let grads = (&y * &wave(mesh, y.shape(), 4, replicate())?)
        .sum_all()?
        .backward()?;
    let mut sums = [0.0; 2];
    for (sum, (of, k)) in sums.iter_mut().zip([(&x, 5), (&layer.weight, 6)]) {
        let grad = grads.get(of)?.expect("a gradient");
        assert_eq!(grad.layout(), of.layout());
        let weights = wave(mesh, grad.shape(), k, replicate())?;
        *sum = (&grad * &weights).sum_all()?.item()?;
    }
    Ok((y, sums))
}

#[test]
fn frequencies_are_multiplied_as_in_pytorch() {
    let one_dim = [
        0.8078165891619979,
        0.9908140846288496,
        -0.17609361587876426,
        -0.9232120874395476,
        -0.8160132931122333,
        -0.2518923170183015,
    ];
    let two_dims = [
        0.14423961709000654,
        1.0007229607498638,
        0.11909474767632705,
        -0.7373885959835301,
        -0.02900820622920075,
        0.38380262404227644,
        -0.697764389294696,
        -1.110575219566173,
        -0.39429310045842314,
        -0.8362931449313429,
        -0.7495989829274723,
        -0.3075989384545525,
        -0.6488139907818116,
        -1.5409531578168196,
        -0.36524492056178604,
        0.5268942464732221,
        0.6093569038143101,
        0.49134107903174196,
        0.8218483636174978,
        0.9398641884000659,
    ];
    let three_dims = [
        -0.06410531103966063,
        -0.04087788110871293,
        0.45119297674932757,
        0.4279655468183799,
        0.04031377559226501,
        0.4270917327694246,
        0.3447750248075594,
        -0.04200293236960015,
    ];
    type Layer<'a> = (&'a [usize], &'a [usize], usize);
    let layers: [(Layer<'_>, &[f64], [f64; 2]); 3] = [
        (
            (&[1, 2, 6], &[3], 1),
            &one_dim,
            [4.802097913864034, 1.277527182525167],
        ),
        (
            (&[1, 2, 5, 4], &[2, 2], 1),
            &two_dims,
            [7.020966603140401, 10.406490467480262],
        ),
        (
            (&[1, 2, 4, 3, 4], &[2, 1, 2], 2),
            &three_dims,
            [-15.156432053053146, 10.63607561746136],
        ),
    ];
    let plans = [
        ParallelPlan::new(),
        ParallelPlan::new().colwise("weight", "ranks"),
        ParallelPlan::new().rowwise("weight", "ranks"),
    ];
    for ranks in [1, 3] {
        let launch = Launch::new(ranks).dtype(DType::F64);
        let done = launch.run(|ctx| {
            let mesh = ctx.mesh([("ranks", ranks)])?;
            for ((layer, expected, grads), plan) in layers
                .iter()
                .flat_map(|l| plans.iter().map(move |p| (l, p)))
            {
                for dim in 0..layer.0.len() {
                    let (y, found) = spectral(&mesh, *layer, [shard(dim)], plan)?;
                    let y = y.to_array::<f64>()?;
                    assert!(
                        y.iter().zip(*expected).all(|(y, e)| (y - e).abs() < 1e-12),
                        "{y}"
                    );
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-11;
                    assert!(found.iter().zip(grads).all(near), "{found:?} {grads:?}");
                }
            }
            Ok(())
        });
        done.unwrap();
    }
}

#[test]
fn frequencies_stay_where_the_field_is() {
    let done = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh([("space", 2), ("tensor", 2)])?;
        let rows = shard(2).sizes([5, 2]);
        let x = wave(&mesh, &[2, 4, 7, 6], 1, [("space", rows)])?;
        let layer = SpectralConv::new(&mesh, 4, 6, [2, 3])?;
        let whole = layer.forward(&x)?;
        assert_eq!(whole.layout().to_string(), "S(2)[5,2] R");
        // Weights divided by outputs make channels that are, and nothing more moves than for the transforms.
        let layer = layer.distribute(&ParallelPlan::new().colwise("weight", "tensor"))?;
        let y = layer.forward(&x)?;
        assert_eq!(y.layout().to_string(), "S(2)[5,2] S(1)");
        let apart = y.sub(&whole)?.abs()?.amax([0, 1, 2, 3], false)?.item()?;
        assert!(apart < 1e-14, "{apart}");
        // Weights divided by inputs make terms of a sum, and what comes of them nobody asked to move.
        let next = SpectralConv::new(&mesh, 6, 3, [2, 3])?;
        let expected = next.forward(&whole)?;
        let next = next.distribute(&ParallelPlan::new().rowwise("weight", "tensor"))?;
        let z = next.forward(&y)?;
        assert_eq!(z.layout().to_string(), "S(2)[5,2] P(sum)");
        let apart = z.sub(&expected)?.abs()?.amax([0, 1, 2, 3], false)?.item()?;
        assert!(apart < 1e-14, "{apart}");
        for coarse in [&[2, 4, 3, 6][..], &[2, 4, 7, 3], &[2, 3, 7, 6], &[4, 7, 6]] {
            let error = layer
                .forward(&wave(&mesh, coarse, 0, Placements::replicated())?)
                .unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform);
            assert!(error.to_string().contains("SpectralConv"), "{error}");
        }
        assert!(SpectralConv::new(&mesh, 4, 6, [2, 0]).is_err());
        Ok(())
    });
    done.unwrap();
}

/// As PyTorch, instead of infinities: on all ranks, whatever part of the signal they have.
#[test]
fn what_no_window_covers_is_an_error() {
    for ranks in [1, 3] {
        let told = launch(ranks, |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            // A quarter of a stretch apart, unless something else is said.
            assert_eq!(
                mesh.ones(64, shard(0))?.stft(&Stft::new(16))?.shape(),
                [9, 17, 2]
            );
            let spectra = wave(&mesh, &[2, 5, 9, 2], 3, shard(2))?;
            let window = mesh.hann_window(8, true, replicate())?;
            let frames = Stft::new(8).hop(2).window(&window);
            // Where stretches begin, Hann's window is 0.
            let apart = spectra
                .istft(&frames.clone().from_start(), None)
                .unwrap_err();
            let gaps = spectra.istft(&Stft::new(8).hop(9), None).unwrap_err();
            for error in [&apart, &gaps] {
                assert_eq!(error.class(), ErrorClass::Agreed);
            }
            let (most, above) = (isize::MAX as usize, usize::MAX);
            let long = [most, above].map(|n| spectra.istft(&frames, Some(n)).unwrap_err());
            let found = spectra.istft(&frames, None)?.to_array::<f32>()?;
            assert!(found.iter().all(|x| x.is_finite()));
            let long = long.map(|error| error.to_string());
            Ok([[apart, gaps].map(|error| error.to_string()), long].concat())
        });
        let told = told.unwrap();
        assert!(told.iter().all(|errors| errors == &told[0]));
        assert!(
            told[0][..2].iter().all(|e| e.contains("no window covers")),
            "{told:?}"
        );
        let names = |e: &String| e.starts_with("istft:") && e.contains("a signal of ");
        assert!(told[0][2..].iter().all(names), "{told:?}");
    }
}

#[test]
fn windows_without_waves_are_pytorchs() {
    let edge = 5.277_344_132_009_766_5e-5;
    let near = 0.215_672_744_758_967_1;
    for ranks in [1, 3, 7] {
        let launched = Launch::new(ranks).dtype(DType::F64);
        let run = launched.run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let cases = [
                (
                    mesh.kaiser_window(5, false, 12.0, shard(0))?,
                    vec![edge, near, 1.0, near, edge],
                ),
                (
                    mesh.kaiser_window(4, true, 2.5, shard(0))?,
                    vec![
                        0.3039662294153687,
                        0.779166974770787,
                        1.0,
                        0.779166974770787,
                    ],
                ),
                (
                    mesh.bartlett_window(5, true, shard(0))?,
                    vec![0.0, 0.4, 0.8, 0.8, 0.4],
                ),
                (mesh.kaiser_window(1, true, 12.0, shard(0))?, vec![1.0]),
                (mesh.bartlett_window(1, false, shard(0))?, vec![1.0]),
                (mesh.bartlett_window(0, false, shard(0))?, vec![]),
            ];
            for (window, expected) in cases {
                let found = window.to_array::<f64>()?;
                assert_eq!(found.len(), expected.len());
                let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-14;
                assert!(found.iter().zip(&expected).all(near), "{found}");
            }
            Ok(())
        });
        run.unwrap();
    }
}
