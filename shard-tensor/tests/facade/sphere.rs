//! Harmonics on the sphere, against numbers of SciPy's harmonics in `f64`, with which torch-harmonics agrees.

use crate::common::{on, read};
use shard_tensor::{
    DType, ErrorClass, Launch, Mesh, Placements, Result, ShardTensor, SphereGrid,
    SphericalTransform, replicate, shard,
};

/// An element of what the numbers were made of.
fn wave(i: &[usize]) -> f64 {
    let sum: f64 = i.iter().zip(1..).map(|(&i, k)| (k * i) as f64).sum();
    sum.sin()
}

/// The sum of all elements, each times its number from 1 on.
fn digest(x: &ShardTensor) -> Result<f64> {
    Ok(read(x)?
        .iter()
        .zip(1..)
        .map(|(x, k)| x * f64::from(k))
        .sum())
}

struct Sphere {
    grid: SphereGrid,
    extents: [usize; 2],
    degrees: usize,
    /// Digests of coefficients of a wave, of the field of a wave, and of the gradients of both, weighed by waves.
    known: [f64; 4],
}

const SPHERES: [Sphere; 3] = [
    Sphere {
        grid: SphereGrid::Gauss,
        extents: [6, 8],
        degrees: 5,
        known: [
            -60.81266050978111,
            175.59069387494173,
            171.11498292134735,
            -209.56329065888005,
        ],
    },
    Sphere {
        grid: SphereGrid::Equiangular,
        extents: [7, 10],
        degrees: 4,
        known: [
            2.652138842061269,
            -986.6911188049007,
            266.6629530221571,
            130.72663492212953,
        ],
    },
    Sphere {
        grid: SphereGrid::Gauss,
        extents: [5, 9],
        degrees: 4,
        known: [
            1.8784134670385813,
            107.54421483165399,
            163.83781552610952,
            -50.25171528865057,
        ],
    },
];

impl Sphere {
    /// Both transforms of waves, and their gradients, of fields that lie as `of_fields` say of `[latitudes, longitudes]`, with their batches as
    /// `batch` says.
    fn is_known(&self, mesh: &Mesh, of_fields: &Placements, batch: &[usize]) -> Result<()> {
        let sphere = SphericalTransform::new(
            mesh,
            self.grid,
            self.extents,
            self.degrees,
            of_fields.clone(),
        )?;
        let two = |behind: &[usize]| [batch, behind].concat();
        let near = |what: &str, x: &ShardTensor, at: usize| {
            let (found, known) = (digest(x)?, self.known[at]);
            let scale = known.abs().max(1.0);
            assert!(
                (found - known).abs() < 1e-10 * scale,
                "{what} of {:?} as {of_fields:?}: {found}, not {known}",
                self.extents
            );
            Ok::<_, shard_tensor::Error>(())
        };
        let pulled = |y: &ShardTensor, x: &ShardTensor| {
            let weights = mesh.from_fn(y.shape(), replicate(), wave)?;
            y.mul(&weights)?.sum_all()?.grad1(x, false)
        };
        let layout = mesh.layout(self.extents, of_fields.clone())?;
        let x = mesh
            .from_fn(two(&self.extents), replicate(), wave)?
            .requires_grad()?;
        // Fields that lie as they should, or anyhow.
        let laid = sphere.inverse(&sphere.forward(&x)?)?;
        assert_eq!(laid.layout().sharding(batch.len()), layout.sharding(0));
        assert_eq!(laid.layout().sharding(batch.len() + 1), layout.sharding(1));
        for x in [x.clone(), x.redistribute(laid.layout())?] {
            let coefficients = sphere.forward(&x)?;
            near("coefficients", &coefficients, 0)?;
            near("their gradient", &pulled(&coefficients, &x)?, 2)?;
        }
        let shape = two(&[self.degrees, self.degrees, 2]);
        let c = mesh.from_fn(shape, replicate(), wave)?.requires_grad()?;
        let field = sphere.inverse(&c)?;
        near("a field", &field, 1)?;
        near("its gradient", &pulled(&field, &c)?, 3)
    }
}

#[test]
fn transforms_on_the_sphere_are_known_under_all_layouts() {
    let by_latitudes = |sizes: [usize; 3]| shard(0).sizes(sizes);
    for sphere in &SPHERES {
        let [latitudes, longitudes] = sphere.extents;
        on(1, |ctx| {
            sphere.is_known(&ctx.mesh_of(1)?, &replicate().into(), &[2])
        });
        on(3, |ctx| {
            let mesh = ctx.mesh_of(3)?;
            sphere.is_known(&mesh, &by_latitudes([latitudes - 1, 0, 1]).into(), &[2])?;
            sphere.is_known(&mesh, &shard(1).into(), &[2])
        });
        on(4, |ctx| {
            let mesh = ctx.mesh([("rows", 2), ("columns", 2)])?;
            let both = [shard(0), shard(1).sizes([1, longitudes - 1])];
            sphere.is_known(&mesh, &both.into(), &[2])?;
            sphere.is_known(&mesh, &[shard(0), shard(0)].into(), &[2])
        });
    }
    // More ranks than latitudes.
    on(7, |ctx| {
        SPHERES[2].is_known(&ctx.mesh_of(7)?, &shard(0).into(), &[2])
    });
}

/// Of many degrees, harmonics that a recurrence without a scale would lose near the poles are there, and orthonormal.
#[test]
fn what_is_transformed_there_and_back_is_itself() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        for (grid, latitudes, degrees) in [
            (SphereGrid::Gauss, 40, 40),
            (SphereGrid::Equiangular, 41, 21),
        ] {
            let sphere = SphericalTransform::new(&mesh, grid, [latitudes, 84], None, shard(0))?;
            assert_eq!(sphere.degrees(), degrees);
            let c = mesh.randn([degrees, degrees, 2], replicate())?;
            let orders = mesh.arange(degrees, replicate())?;
            let none = orders.unsqueeze(1)?.lt(&orders)?.unsqueeze(2)?;
            let c = c.masked_fill(&none, 0.0)?;
            let real =
                c.select(1, 0)?
                    .slice_assign(1, 1, 1, &mesh.zeros([degrees, 1], replicate())?)?;
            let c = c.slice_assign(1, 0, 1, &real.unsqueeze(1)?)?;
            let back = sphere.forward(&sphere.inverse(&c)?)?;
            assert!(back.allclose(&c, 1e-10, 1e-11, false)?);
            // The first harmonic is the same everywhere, and the sum of its squares is 1.
            let one = mesh.ones([latitudes, 84], shard(0))?;
            let mean = sphere
                .forward(&one)?
                .select(0, 0)?
                .select(0, 0)?
                .select(0, 0)?
                .item()?;
            assert!((mean - (4.0 * std::f64::consts::PI).sqrt()).abs() < 1e-12);
        }
        Ok(())
    });
}

/// Batches over an axis of their own, or over the one of the latitudes; sums that are outstanding stay so.
#[test]
fn batches_and_sums_lie_as_they_did() {
    on(4, |ctx| {
        let mesh = ctx.mesh([("batch", 2), ("rows", 2)])?;
        let sphere =
            SphericalTransform::new(&mesh, SphereGrid::Gauss, [6, 8], 5, [("rows", shard(0))])?;
        let x = mesh.from_fn([2, 6, 8], [("batch", shard(0)), ("rows", shard(1))], wave)?;
        let c = sphere.forward(&x)?;
        assert_eq!(c.layout().to_string(), "S(0) S(2)");
        assert!((digest(&c)? - SPHERES[0].known[0]).abs() < 1e-9);
        assert_eq!(sphere.inverse(&c)?.layout(), x.layout());
        let same_axis = x.redistribute([("rows", shard(0))])?;
        assert!((digest(&sphere.forward(&same_axis)?)? - SPHERES[0].known[0]).abs() < 1e-9);
        let terms = mesh.from_fn(
            [2, 3, 6, 8],
            [("batch", shard(1)), ("rows", shard(2))],
            |i| wave(&[i[0], i[2], i[3]]) / 3.0,
        )?;
        let sums = terms.sum(1, false)?;
        let c = sphere.forward(&sums)?;
        assert!((digest(&c)? - SPHERES[0].known[0]).abs() < 1e-9);
        assert_eq!(c.layout().to_string(), "P(sum) S(2)");
        Ok(())
    });
}

#[test]
fn who_asks_for_a_transform_that_there_is_not_is_told() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let made = |grid, extents, degrees: Option<usize>| {
            let made = SphericalTransform::new(&mesh, grid, extents, degrees, shard(0));
            made.map(|sphere| sphere.degrees()).map_err(|e| e.class())
        };
        let refused = Err(ErrorClass::Uniform);
        assert_eq!(made(SphereGrid::Gauss, [1, 1], None), Ok(1));
        assert_eq!(made(SphereGrid::Equiangular, [2, 3], None), Ok(1));
        assert_eq!(made(SphereGrid::Gauss, [0, 4], None), refused);
        assert_eq!(made(SphereGrid::Gauss, [4, 0], None), refused);
        assert_eq!(made(SphereGrid::Equiangular, [1, 4], None), refused);
        assert_eq!(made(SphereGrid::Gauss, [4, 8], Some(5)), refused);
        assert_eq!(made(SphereGrid::Gauss, [4, 4], Some(4)), refused);
        assert_eq!(made(SphereGrid::Gauss, [4, 8], Some(0)), refused);
        let sphere = SphericalTransform::new(&mesh, SphereGrid::Gauss, [4, 8], None, shard(0))?;
        let other = mesh.with_dtype(DType::F32);
        for x in [
            mesh.zeros([4, 7], shard(0))?,
            mesh.zeros([8], shard(0))?,
            other.zeros([4, 8], shard(0))?,
        ] {
            assert_eq!(
                sphere.forward(&x).map_err(|e| e.class()).err(),
                Some(ErrorClass::Uniform)
            );
        }
        let few = mesh.zeros([4, 3, 2], shard(0))?;
        let told = sphere.inverse(&few).unwrap_err().to_string();
        assert!(told.contains("[4, 4, 2]"), "{told}");
        assert_eq!(
            sphere.forward(&mesh.zeros([0, 4, 8], shard(1))?)?.shape(),
            [0, 4, 4, 2]
        );
        Ok(())
    });
}

/// One exchange each way, of what is kept.
#[test]
fn latitudes_in_pieces_send_frequencies_once() {
    let sent = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let sphere = SphericalTransform::new(&mesh, SphereGrid::Gauss, [8, 16], 6, shard(0))?;
        let x = mesh.from_fn([3, 8, 16], shard(1), wave)?;
        let before = ctx.ledger().snapshot();
        let c = sphere.forward(&x)?;
        let there = ctx.ledger().since(&before).bytes;
        let before = ctx.ledger().snapshot();
        sphere.inverse(&c)?;
        Ok((there, ctx.ledger().since(&before).bytes))
    });
    // Of three fields: half of the latitudes, half of the orders, complex.
    let bytes = 3 * 4 * 3 * 2 * 8;
    assert_eq!(sent.unwrap(), [(bytes, bytes); 2]);
}
