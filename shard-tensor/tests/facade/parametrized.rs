//! Weights that are computed from parameters, against numbers that PyTorch 2 gave.

use crate::common::{close, on, read};
use crate::layers::wave;
use shard_tensor::nn::{
    Conv, ConvTranspose, Linear, ModelExt, Module, ParallelPlan, Parametrization, Parametrized,
    SpectralNorm, Tree, WeightNorm, spectral_norm, weight_norm,
};
use shard_tensor::optim::{Optimizer, Sgd};
use shard_tensor::{
    ConvOptions, ConvTransposeOptions, ErrorClass, Mesh, Placements, Result, ShardTensor, Stateful,
    launch, replicate, shard,
};

/// A module whose parameters are waves.
fn waved<M: Tree>(mesh: &Mesh, module: M) -> Result<M> {
    for (n, (_, p)) in module.parameters().into_iter().enumerate() {
        p.set(&wave(mesh, p.shape(), n, replicate())?.mul_scalar(0.8)?)?;
    }
    Ok(module)
}

fn linear(mesh: &Mesh) -> Result<Linear> {
    waved(mesh, Linear::new(mesh, 4, 5)?)
}

/// The sums of cubes that three steps of gradient descent begin with.
fn steps<M: Module>(layer: &M, x: &ShardTensor, expected: [f64; 3]) -> Result<()> {
    let mut sgd = Sgd::new(layer.parameters(), 0.001)?;
    for expected in expected {
        let y = layer.forward(x)?;
        let cubes = y.mul(&y)?.mul(&y)?.sum_all()?;
        close("a step", &cubes, &[expected])?;
        sgd.step(&cubes.backward()?)?;
    }
    Ok(())
}

/// Layouts of a batch and of a layer's parameters.
fn everywhere(f: impl Fn(&Mesh, &Placements, &ParallelPlan) -> Result<()> + Sync) {
    on(1, |ctx| {
        f(
            &ctx.mesh([("r", 1)])?,
            &replicate().into(),
            &ParallelPlan::new(),
        )
    });
    on(3, |ctx| {
        let mesh = ctx.mesh([("r", 3)])?;
        let plans = [
            ParallelPlan::new(),
            ParallelPlan::new().colwise("*", "r"),
            ParallelPlan::new().rowwise("*original*", "r"),
            ParallelPlan::new().fully_shard("*", "r"),
        ];
        for plan in &plans {
            f(&mesh, &shard(0).into(), plan)?;
            f(&mesh, &shard(-1).into(), plan)?;
        }
        Ok(())
    });
}

#[test]
fn a_length_and_a_direction_are_learnt_as_in_pytorch() {
    everywhere(|mesh, at, plan| {
        let layer = weight_norm(linear(mesh)?)?.distribute(plan)?;
        steps(
            &layer,
            &wave(mesh, &[3, 4], 9, at)?,
            [42.63103727289, 36.85957552296, 31.92930407628],
        )?;
        let lengths = [
            0.946452898252661,
            1.390975292110232,
            0.7527321606161566,
            1.25816780154727,
            0.6748068811135042,
        ];
        close("lengths", &layer.parametrization().original0, &lengths)?;

        let conv = waved(
            mesh,
            Conv::new(mesh, 2, 3, 3, ConvOptions::new().padding(1))?,
        )?;
        let conv = weight_norm(conv)?.distribute(plan)?;
        let x = wave(mesh, &[2, 2, 6], 9, at)?;
        steps(&conv, &x, [164.5030488902, 97.81795610849, 65.28571236753])?;

        let back = waved(
            mesh,
            ConvTranspose::new(mesh, 2, 3, 3, ConvTransposeOptions::new())?,
        )?;
        let back =
            Parametrized::new(back, "weight", |w| WeightNorm::new(w, 1))?.distribute(plan)?;
        steps(&back, &x, [568.2207584681, 218.72163831, 119.8229039356])
    });
}

/// Vectors of length 1 that PyTorch's layer was given too.
fn vectors(mesh: &Mesh, norm: &SpectralNorm) -> Result<()> {
    for (n, buffer) in [&norm.u, &norm.v].into_iter().enumerate() {
        let old = buffer.get();
        let waves = mesh.from_fn(old.shape().to_vec(), old.layout(), |i| {
            (0.5 * i[0] as f64 + (n + 1) as f64).sin()
        })?;
        buffer.set(&waves.normalize(2.0, 0, 1e-12)?)?;
    }
    Ok(())
}

#[test]
fn a_largest_singular_value_is_found_as_in_pytorch() {
    everywhere(|mesh, at, plan| {
        let layer = spectral_norm(linear(mesh)?)?;
        vectors(mesh, layer.parametrization())?;
        let layer = layer.distribute(plan)?;
        let x = wave(mesh, &[3, 4], 9, at)?;
        steps(&layer, &x, [16.24828062357, 12.37790661078, 11.81750475225])?;
        let [u, v] = [&layer.parametrization().u, &layer.parametrization().v]
            .map(shard_tensor::nn::Buffer::get);
        close(
            "u",
            &u,
            &[
                0.35449877630747073,
                0.6172020837178935,
                -0.23783634347057575,
                -0.6493732109674544,
                0.12304678806519383,
            ],
        )?;
        close(
            "v",
            &v,
            &[
                0.42682983425214543,
                0.5219222138500561,
                0.5463748702511505,
                0.4968782511241368,
            ],
        )?;
        layer.eval();
        for _ in 0..2 {
            let y = layer.forward(&x)?;
            close(
                "eval",
                &y.mul(&y)?.mul(&y)?.sum_all()?,
                &[11.482252895136188],
            )?;
        }

        let back = waved(
            mesh,
            ConvTranspose::new(mesh, 2, 3, 3, ConvTransposeOptions::new())?,
        )?;
        let back = Parametrized::new(back, "weight", |w| Ok(SpectralNorm::new(w, 1)?.steps(2)))?;
        vectors(mesh, back.parametrization())?;
        let back = back.distribute(plan)?;
        let x = wave(mesh, &[2, 2, 6], 9, at)?;
        steps(&back, &x, [122.6143285208, 104.2288265601, 89.67393457143])
    });
}

#[test]
fn vectors_are_near_from_the_beginning() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let layer = spectral_norm(linear(&mesh)?)?;
        let weight = layer.module()?.weight;
        let square = weight.transpose(0, 1)?.matmul(&weight)?;
        // Of the powers of a matrix whose largest eigenvalue is 1 the trace is about 1.
        let mut power = square;
        for _ in 0..8 {
            power = power.matmul(&power)?;
        }
        let trace = power.trace()?.item()?;
        assert!((trace - 1.0).abs() < 1e-2, "{trace}");
        close(
            "a length",
            &layer.parametrization().u.get().norm(2.0, .., false)?,
            &[1.0],
        )?;
        Ok(())
    });
}

#[test]
fn names_copies_and_states_are_of_the_original() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let mut layer = spectral_norm(linear(&mesh)?)?;
        let names =
            |all: Vec<(String, ShardTensor)>| all.into_iter().map(|p| p.0).collect::<Vec<_>>();
        assert_eq!(
            names(layer.parameters()),
            ["bias", "parametrizations.weight.original"]
        );
        let below = "parametrizations.weight.0";
        assert_eq!(
            names(layer.buffers()),
            [format!("{below}._u"), format!("{below}._v")]
        );

        let copy = layer.copied()?;
        let x = wave(&mesh, &[3, 4], 9, shard(0))?;
        layer.forward(&x)?; // the copy has vectors of its own
        let [mine, others] = [&layer, &copy].map(|l| l.parametrization().u.get());
        assert!(!mine.allclose(&others, 1e-9, 0.0, false)?);
        layer.load_state(&copy.state()?)?;
        close("u", &layer.parametrization().u.get(), &read(&others)?)?;

        layer.eval();
        let by = layer.parametrization();
        let original = layer.parameters().remove(1).1.detach();
        let largest = by.u.get().dot(&original.matmul(&by.v.get())?)?;
        close(
            "the weight",
            &layer.module()?.weight,
            &read(&original.div(&largest)?)?,
        )
    });
}

#[test]
fn what_runs_again_has_no_other_vectors_unseen() {
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let layer = spectral_norm(Linear::new(&mesh, 4, 5)?)?;
        let inside = layer.clone();
        let x = mesh.ones([3, 4], shard(0))?;
        let y = ctx.recompute1(&x, move |x| inside.forward(x))?;
        let error = y.sum_all()?.backward().map(drop).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
        layer.eval();
        let y = ctx.recompute1(&x, move |x| layer.forward(x))?;
        assert_eq!(y.sum_all()?.backward()?.len(), 2);
        Ok(error.to_string())
    });
    let told = told.unwrap().remove(0);
    assert!(told.contains("recompute"), "{told}");
}

/// Half of the original.
struct Halved;
shard_tensor::tree!(Halved {});

impl Parametrization for Halved {
    fn weight(&self, original: &ShardTensor) -> Result<ShardTensor> {
        original.mul_scalar(0.5)
    }
}

#[test]
fn a_program_has_parametrisations_of_its_own() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let layer = Parametrized::new(linear(&mesh)?, "bias", |_| Ok(Halved))?;
        let x = wave(&mesh, &[3, 4], 9, shard(0))?;
        let plain = linear(&mesh)?;
        plain
            .bias
            .as_ref()
            .unwrap()
            .set(&plain.bias.as_ref().unwrap().detach().mul_scalar(0.5)?)?;
        close(
            "half a bias",
            &layer.forward(&x)?,
            &read(&plain.forward(&x)?)?,
        )?;
        let none = Parametrized::new(linear(&mesh)?, "weights", |_| Ok(Halved)).map(drop);
        let told = none.unwrap_err().to_string();
        assert!(
            told.contains("weight, bias") && told.contains("weights"),
            "{told}"
        );
        Ok(())
    });
}

#[test]
fn dims_that_no_weight_has_are_refused() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        for dim in [2, 5, -3] {
            let refused = [
                Parametrized::new(linear(&mesh)?, "weight", |w| WeightNorm::new(w, dim)).map(drop),
                Parametrized::new(linear(&mesh)?, "weight", |w| SpectralNorm::new(w, dim))
                    .map(drop),
            ];
            for refused in refused {
                let error = refused.unwrap_err();
                assert_eq!(error.class(), ErrorClass::Uniform);
                let told = error.to_string();
                let expected = format!("expected a dim of 2, from -2 on, got dim {dim}");
                assert!(told.contains(&expected), "{told}");
            }
        }
        Ok(())
    });
}
