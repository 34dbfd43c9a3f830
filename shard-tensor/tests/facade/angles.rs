//! Distributions of angles.

use crate::common::on;
use crate::distributions::{LOC, LOC_2, SCALE, SCALE_2, everywhere, is, three, values};
use shard_tensor::distributions::{Distribution, VonMises, kl_divergence};
use shard_tensor::{DType, Result, ShardTensor, replicate, shard};
use std::f64::consts::{PI, TAU};

/// PyTorch's, whose Bessel functions have nine digits, by SciPy's.
#[test]
fn angles_have_pytorchs_densities_and_moments() {
    everywhere(|mesh| {
        let p = VonMises::new(&three(mesh, LOC)?, &three(mesh, SCALE)?)?;
        let q = VonMises::new(&three(mesh, LOC_2)?, &three(mesh, SCALE_2)?)?;
        let x = values(mesh)?;
        let densities = [
            -0.8665645673630991,
            -1.6046904104032202,
            -4.671625197864193,
            -1.793127802409951,
            -1.7628520131035583,
            -3.210973083219657,
        ];
        is("log_prob", &p.log_prob(&x)?, &densities)?;
        is(
            "turned",
            &p.log_prob(&x.sub_scalar(3.0 * TAU)?)?,
            &densities,
        )?;
        let entropies = [1.4424645758780255, 1.8224330762432455, 0.9932288063532524];
        is("entropy", &p.entropy()?, &entropies)?;
        is("mean", &p.mean()?, &LOC)?;
        let variances = [0.4038667611687093, 0.8759664980820753, 0.19001470604349547];
        is("variance", &p.variance()?, &variances)?;
        // By integration.
        let divergences = [0.10817071407692908, 0.02256889016489775, 0.7933679574510845];
        is("divergence", &kl_divergence(&p, &q)?, &divergences)?;
        // Of large concentrations, where the functions themselves are no numbers.
        let narrow = VonMises::new(&three(mesh, LOC)?, 1e5)?;
        let at = narrow.log_prob(&three(mesh, LOC)?)?.select(0, 0)?.item()?;
        assert!((at - 0.5 * (1e5 / TAU).ln()).abs() < 1e-5, "{at}");
        Ok(())
    });
}

/// Shares of samples are those of the density, summed by the trapezoidal rule.
#[test]
fn angles_that_are_drawn_have_their_shares() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        for (loc, concentration) in [
            (0.5, 1e-7),
            (-3.0, 0.7),
            (3.1, 4.0),
            (1.0, 300.0),
            (9.0, 1.0),
        ] {
            let many = mesh.full([12000], loc, shard(0))?;
            let drawn = VonMises::new(&many, concentration)?.sample([])?;
            drawn.expect_layout(shard(0))?;
            let p = VonMises::new(&mesh.full((), loc, replicate())?, concentration)?;
            let share = |up_to: f64| -> Result<f64> {
                let step = (up_to + PI) / 20_000.0;
                let at = mesh
                    .arange(20_001, replicate())?
                    .mul_scalar(step)?
                    .sub_scalar(PI)?;
                p.log_prob(&at)?.exp()?.trapezoid(step, 0)?.item()
            };
            assert!((share(PI)? - 1.0).abs() < 1e-6);
            let found = |of: ShardTensor| of.to(DType::F64)?.mean_all()?.item();
            assert_eq!(found(drawn.abs()?.le_scalar(PI)?)?, 1.0);
            for up_to in [-2.0, 0.0, 1.0, 3.0] {
                let (found, expected) = (found(drawn.le_scalar(up_to)?)?, share(up_to)?);
                let deviation = (expected * (1.0 - expected).max(0.0) / 12_000.0).sqrt();
                let what = format!("{found} of {expected} up to {up_to} around {loc}");
                assert!((found - expected).abs() < 4.0 * deviation + 1e-6, "{what}");
            }
        }
        Ok(())
    });
}
