//! What parameters are before a first step.

#[cfg(feature = "linalg")]
use crate::layers::everywhere;
use shard_tensor::nn::{Gru, Linear, ModelExt, MultiheadAttention, PRelu, init};
use shard_tensor::{Result, ShardTensor, launch, shard};

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
            init::kaiming_uniform_fan_out(&conv, 5f64.sqrt())?;
            all.push(read()?);
            init::kaiming_normal_fan_out(&conv, 0.0)?;
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
        (&one[5], 120f64.powf(-0.5)),
    ] {
        assert!(most(all) <= bound * 1.0001 && most(all) > 0.99 * bound);
    }
    let deviations = [(2.0f64 / 320.0).sqrt(), 0.1, (2.0f64 / 120.0).sqrt()];
    for (all, expected) in [&one[2], &one[3], &one[6]].into_iter().zip(deviations) {
        assert!((deviation(all) / expected - 1.0).abs() < 0.05);
    }
    assert!(most(&one[4]) <= 2.0 && most(&one[4]) > 1.95);
}

/// PyTorch's numbers: of a group one output for each input, as far as there are both.
#[test]
fn kernels_of_ones_and_columns_with_zeros() {
    let made = |ranks: usize| {
        let made = launch(ranks, |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let kernels = mesh.ones([6, 2, 3, 4], shard(0))?.requires_grad()?;
            init::dirac(&kernels, 2)?;
            let matrix = mesh.ones([7, 5], shard(0))?.requires_grad()?;
            init::sparse(&matrix, 0.3, 2.0)?;
            for (wrong, groups) in [(&kernels, 4), (&kernels, 0), (&matrix, 1)] {
                let refused = init::dirac(wrong, groups).unwrap_err();
                assert_eq!(
                    refused.class(),
                    shard_tensor::ErrorClass::Uniform,
                    "{refused}"
                );
            }
            for (wrong, share) in [(&kernels, 0.5), (&matrix, 1.5), (&matrix, f64::NAN)] {
                let refused = init::sparse(wrong, share, 1.0).unwrap_err();
                assert_eq!(
                    refused.class(),
                    shard_tensor::ErrorClass::Uniform,
                    "{refused}"
                );
            }
            Ok((kernels.to_array::<f32>()?, matrix.to_array::<f32>()?))
        });
        made.unwrap().swap_remove(0)
    };
    let (kernels, matrix) = made(1);
    assert_eq!((kernels.clone(), matrix.clone()), made(3));
    let ones = kernels.indexed_iter().filter(|(_, x)| **x == 1.0);
    let ones: Vec<_> = ones.map(|(i, _)| [i[0], i[1], i[2], i[3]]).collect();
    assert_eq!(
        ones,
        [[0, 0, 1, 2], [1, 1, 1, 2], [3, 0, 1, 2], [4, 1, 1, 2]]
    );
    assert_eq!(kernels.sum(), 4.0);
    let mut places = Vec::new();
    for column in matrix.axis_iter(ndarray::Axis(1)) {
        let zeros: Vec<usize> = (0..7).filter(|&i| column[i] == 0.0).collect();
        assert_eq!(zeros.len(), 3);
        places.push(zeros);
    }
    assert!(places.iter().any(|zeros| *zeros != places[0]), "{places:?}");
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

/// Of PyTorch's layers too: bounds of weights, and biases of zeros where these have none.
#[test]
fn layers_begin_within_the_bounds_of_pytorch() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let within = |what: &str, weight: &ShardTensor, bound: f64| {
            let (least, most) = weight.detach().aminmax(.., false)?;
            let (least, most) = (least.item()?, most.item()?);
            assert!(most <= bound && most > 0.9 * bound, "{what}: {most}");
            assert!(least >= -bound && least < -0.9 * bound, "{what}: {least}");
            Ok::<_, shard_tensor::Error>(())
        };
        let zeros = |what: &str, bias: &Option<ShardTensor>| {
            let bias = bias
                .as_ref()
                .expect("it has one")
                .abs()?
                .sum_all()?
                .item()?;
            assert_eq!(bias, 0.0, "{what}");
            Ok::<_, shard_tensor::Error>(())
        };
        let linear = Linear::new(&mesh, 16, 80)?;
        within("Linear", &linear.weight, 0.25)?;
        within("its bias", linear.bias.as_ref().unwrap(), 0.25)?;
        let attention = MultiheadAttention::new(&mesh, 24, 4)?;
        within("q_proj", &attention.q_proj.weight, (6.0f64 / 96.0).sqrt())?;
        within("v_proj", &attention.v_proj.weight, (6.0f64 / 96.0).sqrt())?;
        within("out_proj", &attention.out_proj.weight, 24f64.powf(-0.5))?;
        zeros("q_proj", &attention.q_proj.bias)?;
        zeros("out_proj", &attention.out_proj.bias)?;
        let wide = MultiheadAttention::from_widths(&mesh, 24, 4, 12, 40)?;
        within("k_proj", &wide.k_proj.weight, (6.0f64 / 36.0).sqrt())?;
        within("v_proj", &wide.v_proj.weight, (6.0f64 / 64.0).sqrt())?;
        let grouped = MultiheadAttention::new(&mesh, 24, 4)?.kv_heads(2)?;
        within(
            "k_proj of groups",
            &grouped.k_proj.weight,
            (6.0f64 / 36.0).sqrt(),
        )?;
        let slopes = mesh.zeros([40, 30], shard(0))?.requires_grad()?;
        init::uniform(&slopes, 0.3)?;
        within("uniform", &slopes, 0.3)?;
        assert_eq!(PRelu::new(&mesh, 3)?.weight.mean_all()?.item()?, 0.25);
        let gru = Gru::new(&mesh, 7, 36, 1)?;
        for (name, weight) in gru.parameters() {
            within(&name, &weight, 1.0 / 6.0)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn normal_numbers_have_the_moments_asked_for() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh.zeros([200, 100], shard(0))?.requires_grad()?;
        let moments = || {
            let (var, mean) = w.detach().var_mean(.., 0.0, false)?;
            Ok::<_, shard_tensor::Error>((mean.item()?, var.sqrt()?.item()?))
        };
        init::normal(&w, 3.0, 0.5)?;
        let (mean, deviation) = moments()?;
        assert!((mean - 3.0).abs() < 0.02 && (deviation - 0.5).abs() < 0.02);
        init::trunc_normal(&w, 1.5)?;
        let (mean, deviation) = moments()?;
        assert!(mean.abs() < 0.04 && (deviation - 1.0229).abs() < 0.02);
        Ok(())
    })
    .unwrap();
}

#[cfg(feature = "linalg")]
#[test]
fn orthogonal_numbers_of_several_dims() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh.zeros([4, 2, 3], shard(0))?.requires_grad()?;
        init::orthogonal(&w, 1.0)?;
        let rows = w.detach().reshape([4, 6])?;
        let gram = rows.matmul(&rows.transpose(0, 1)?)?;
        assert!(gram.allclose(
            &mesh.eye([4, 4], shard_tensor::replicate())?,
            1e-4,
            1e-5,
            false
        )?);
        Ok(())
    })
    .unwrap();
}
