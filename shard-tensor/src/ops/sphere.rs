//! Harmonics on the sphere.

use crate::{Error, Mesh, Placements, Result, ShardTensor};
use shard_comm::{Call, Calling, DType};
use shard_ops::Exec;
use shard_ops::fft::FourierNorm;
use shard_spec::{DimSharding, Layout, Partition};
use std::cell::RefCell;
use std::f64::consts::{PI, TAU};
use std::iter::repeat_n;

/// Where the latitudes of a field on the sphere lie, from north to south.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SphereGrid {
    /// At the nodes of Gauss's quadrature: `n` of them serve `n` degrees.
    Gauss,
    /// At even distances, both poles among them, weighed as Clenshaw and Curtis do: `n` of them serve half as many degrees.
    Equiangular,
}

impl SphereGrid {
    /// The cosines of so many angles from the north pole, and the weights of a quadrature over them, which add up to 2.
    fn nodes(self, n: usize) -> (Vec<f64>, Vec<f64>) {
        match self {
            Self::Gauss => (0..n).map(|k| gauss(n, k)).unzip(),
            Self::Equiangular => (0..n).map(|k| clenshaw_curtis(n, k)).unzip(),
        }
    }

    /// For how many degrees products of two harmonics are integrated without an error.
    fn degrees(self, latitudes: usize) -> usize {
        match self {
            Self::Gauss => latitudes,
            Self::Equiangular => latitudes.div_ceil(2),
        }
    }
}

/// The transform of fields on the sphere, `[.., latitudes, longitudes]`, into the coefficients of spherical harmonics, `[.., degrees, orders,
/// 2]` with real and imaginary parts last, and back: `RealSHT` and `InverseRealSHT` of torch-harmonics, with their conventions (orthonormal
/// harmonics with the phase of Condon and Shortley). Longitudes are even, from 0 on. Of a real field the orders from 0 on say all; those above
/// the degree are 0.
///
/// ```
/// use shard_tensor::{SphereGrid, SphericalTransform, prelude::*};
/// launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let latitudes = shard(0).sizes([3, 0, 5]); // latitudes in pieces
///     let sphere = SphericalTransform::new(&mesh, SphereGrid::Gauss, [8, 16], None, latitudes)?;
///     let coefficients = sphere.forward(&mesh.randn([2, 8, 16], shard(1))?)?;
///     assert_eq!(coefficients.shape(), [2, 8, 8, 2]);
///     let field = sphere.inverse(&coefficients)?;
///     assert_eq!(field.layout().to_string(), "S(1)[3,0,5]");
///     assert!(sphere.forward(&field)?.allclose(&coefficients, 1e-4, 1e-5, false)?);
///     // A layer that multiplies each degree by a weight of its own: a convolution on the sphere.
///     let weights = mesh.randn([8, 1, 1], replicate())?.requires_grad()?;
///     let smooth = sphere.inverse(&coefficients.mul(&weights)?)?;
///     smooth.square()?.mean_all()?.backward()?;
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// The quadrature is of Gauss, or of Clenshaw and Curtis (Waldvogel, 2006); associated Legendre functions come from their recurrence along the
/// degree, scaled so that none is lost near the poles (Holmes and Featherstone, 2002).
#[derive(Clone, Debug)]
pub struct SphericalTransform {
    grid: SphereGrid,
    extents: [usize; 2],
    /// Where latitudes and longitudes of fields lie.
    field: Layout,
    /// `[orders, degrees, latitudes]`: the functions of latitude, with the factor that makes harmonics orthonormal.
    legendre: ShardTensor,
    /// `[latitudes, 1, 1]`
    weights: ShardTensor,
}

impl SphericalTransform {
    /// For fields of so many latitudes and longitudes, which lie as `placements` say of `[latitudes, longitudes]`, and so many degrees and
    /// orders: by default as many as the grid serves. Tables are of the mesh's type; their orders are divided over all axes that divide fields.
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// For no latitudes, one at even distances, no longitudes, no degrees, more than latitudes or orders that there are; for a mesh that makes
    /// tensors of other types than `f32` and `f64`; as [`Placements::layout`].
    #[track_caller]
    pub fn new(
        mesh: &Mesh,
        grid: SphereGrid,
        [latitudes, longitudes]: [usize; 2],
        degrees: impl Into<Option<usize>>,
        placements: impl Into<Placements>,
    ) -> Result<Self> {
        const OP: &str = "SphericalTransform::new";
        let _call = Calling::of(OP);
        let orders = longitudes / 2 + 1;
        let served = grid.degrees(latitudes).min(orders);
        let degrees = degrees.into().unwrap_or(served);
        let fewest = match grid {
            SphereGrid::Gauss => 1,
            SphereGrid::Equiangular => 2,
        };
        if !matches!(mesh.dtype(), DType::F32 | DType::F64) {
            return Err(Error::argument(
                OP,
                "a mesh that makes tensors of f32 or f64",
                mesh.dtype().to_string(),
                "take `mesh.with_dtype(..)`, and convert fields with `to`",
            ));
        }
        if latitudes < fewest || longitudes == 0 || !(1..=latitudes.min(orders)).contains(&degrees)
        {
            return Err(Error::argument(
                OP,
                format!(
                    "{fewest} latitudes or more, a longitude, and 1 to {} degrees",
                    latitudes.min(orders)
                ),
                format!("{degrees} degrees of a field {:?}", [latitudes, longitudes]),
                "give a finer field, or fewer degrees",
            ));
        }
        let field = mesh.layout([latitudes, longitudes], placements)?;
        let by_orders: Vec<_> = (0..mesh.mesh().ndim())
            .map(|axis| {
                match field
                    .shardings()
                    .iter()
                    .flatten()
                    .any(|s| s.axes.contains(&axis))
                {
                    true => crate::shard(0),
                    false => crate::replicate(),
                }
            })
            .collect();
        let (cosines, weights) = grid.nodes(latitudes);
        let made = |call| {
            Call::new(call)
                .constant()
                .with(grid as u128)
                .with(latitudes as u128)
        };
        let of_order = RefCell::new((usize::MAX, Vec::new()));
        let legendre = mesh.filled(
            &made("spherical_harmonics"),
            &[degrees, degrees, latitudes].into(),
            &by_orders.into(),
            &|i| {
                let mut known = of_order.borrow_mut();
                if known.0 != i[0] {
                    *known = (i[0], legendre(i[0], degrees, &cosines));
                }
                known.1[i[1] * latitudes + i[2]]
            },
        )?;
        let weights = mesh.filled(
            &made("spherical_weights"),
            &[latitudes, 1, 1].into(),
            &Placements::replicated(),
            &|i| TAU * weights[i[0]],
        )?;
        Ok(Self {
            grid,
            extents: [latitudes, longitudes],
            field,
            legendre,
            weights,
        })
    }

    /// How many degrees there are, and orders.
    pub fn degrees(&self) -> usize {
        self.legendre.shape()[1]
    }

    /// The sines of the fields' latitudes, from north to south.
    pub fn sines(&self) -> Vec<f64> {
        self.grid.nodes(self.extents[0]).0
    }

    /// The coefficients `[.., degrees, orders, 2]` of fields `[.., latitudes, longitudes]`. Their orders are divided over the axes that divide
    /// fields.
    ///
    /// # Collective
    /// All members of the mesh. Where latitudes are sharded, one exchange, of the frequencies that are kept; where longitudes are, one more, of
    /// fields.
    ///
    /// # Errors
    /// For fields of other extents, on another mesh or of another type; what the communicator reports.
    #[track_caller]
    pub fn forward(&self, field: &ShardTensor) -> Result<ShardTensor> {
        const OP: &str = "SphericalTransform::forward";
        let _call = Calling::of(OP);
        self.check(
            OP,
            "a field [.., latitudes, longitudes] that ends with",
            &self.extents,
            field,
        )?;
        let (batch, last) = (field.layout().shardings(), field.ndim() - 1);
        let batch = &batch[..last - 1];
        let waves = field.rfft(None, last, FourierNorm::Forward)?;
        let waves = waves.narrow(last, ..self.degrees())?;
        let waves = laid(OP, &waves, batch, [None, self.by_orders()])?;
        let weighed = waves.mul(&self.weights)?;
        ShardTensor::einsum("mlk,...kmc->...lmc", &[&self.legendre, &weighed])
    }

    /// The fields `[.., latitudes, longitudes]` of coefficients `[.., degrees, orders, 2]`, which lie as those that the transform was made for.
    /// What the imaginary parts of order 0 are does not matter.
    ///
    /// # Collective
    /// All members of the mesh. As [`forward`](Self::forward); coefficients whose orders are not divided as it leaves them are brought there.
    ///
    /// # Errors
    /// For coefficients of other extents, on another mesh or of another type; what the communicator reports.
    #[track_caller]
    pub fn inverse(&self, coefficients: &ShardTensor) -> Result<ShardTensor> {
        const OP: &str = "SphericalTransform::inverse";
        let _call = Calling::of(OP);
        let extents = [self.degrees(), self.degrees(), 2];
        self.check(
            OP,
            "coefficients [.., degrees, orders, 2] that end with",
            &extents,
            coefficients,
        )?;
        let batch = &coefficients.layout().shardings()[..coefficients.ndim() - 3];
        let by_orders = laid(OP, coefficients, batch, [None, self.by_orders()])?;
        let waves = ShardTensor::einsum("mlk,...lmc->...kmc", &[&self.legendre, &by_orders])?;
        let [latitudes, longitudes] = [0, 1].map(|dim| self.field.sharding(dim).cloned());
        let orders = longitudes.clone().map(|DimSharding { axes, partition }| {
            let partition = Partition::chunk(self.degrees(), partition.parts());
            DimSharding { axes, partition }
        });
        let waves = laid(OP, &waves, batch, [latitudes.clone(), orders])?;
        let last = waves.ndim() - 2;
        let field = waves.irfft(Some(self.extents[1]), last, FourierNorm::Forward)?;
        laid(OP, &field, batch, [latitudes, longitudes])
    }

    /// How orders are divided.
    fn by_orders(&self) -> Option<DimSharding> {
        self.legendre.layout().sharding(0).cloned()
    }

    #[track_caller]
    fn check(
        &self,
        op: &'static str,
        wanted: &str,
        extents: &[usize],
        of: &ShardTensor,
    ) -> Result<()> {
        let fits = of.shape().ends_with(extents) && of.layout().mesh() == self.field.mesh();
        if fits && of.dtype() == self.legendre.dtype() {
            return Ok(());
        }
        Err(Error::argument(
            op,
            format!(
                "{wanted} {extents:?}, of {} and on the mesh of the transform",
                self.legendre.dtype()
            ),
            format!("{:?} of {}", of.shape(), of.dtype()),
            "make a transform for these fields, or convert them with `to`",
        ))
    }
}

/// A tensor whose dims before the last ones are divided so, the last two of these as far as the others leave the axes free. Terms of a sum
/// stay what they are along axes that divide nothing.
#[track_caller]
fn laid(
    op: &'static str,
    x: &ShardTensor,
    batch: &[Option<DimSharding>],
    two: [Option<DimSharding>; 2],
) -> Result<ShardTensor> {
    let own = x.layout();
    let taken = |axis: &usize| batch.iter().flatten().any(|s| s.axes.contains(axis));
    let two = two.map(|s| s.filter(|s| !s.axes.iter().any(&taken)));
    let last = x.ndim() - batch.len() - 2;
    let dims = batch.iter().cloned().chain(two).chain(repeat_n(None, last));
    let dims: Vec<Option<DimSharding>> = dims.collect();
    let terms: Vec<usize> = (own.partial_axes().iter().copied())
        .filter(|axis| !dims.iter().flatten().any(|s| s.axes.contains(axis)))
        .collect();
    let sums = terms.len() < own.partial_axes().len();
    let terms = own.partial_op().map(|op| (op, &terms[..]));
    let to = Layout::from_dims(own.mesh(), x.shape(), dims, terms)?;
    let tape = x.context().tape();
    // The exchange is what the transform is; a sum is to be asked for where moves are.
    let moved = match sums {
        true => tape.aligned((op, 0), &x.value(), &to)?,
        false => tape.redistribute(&x.value(), &to)?,
    };
    Ok(x.lift(moved))
}

/// A node of Gauss's quadrature in -1..1, from 1 down, and its weight.
fn gauss(n: usize, k: usize) -> (f64, f64) {
    let mut x = (PI * (k as f64 + 0.75) / (n as f64 + 0.5)).cos();
    let mut slope = 1.0;
    // Newton's steps: the first guess is right to some digits, and each step doubles them.
    for _ in 0..6 {
        let (mut before, mut value) = (0.0, 1.0);
        for l in 1..=n {
            let l = l as f64;
            (before, value) = (
                value,
                ((2.0 * l - 1.0) * x * value - (l - 1.0) * before) / l,
            );
        }
        slope = n as f64 * (before - x * value) / (1.0 - x * x);
        x -= value / slope;
    }
    (x, 2.0 / ((1.0 - x * x) * slope * slope))
}

/// A place among `n` at even angles, as its cosine, and its weight.
fn clenshaw_curtis(n: usize, k: usize) -> (f64, f64) {
    let (last, angle) = (n - 1, PI * k as f64 / (n - 1) as f64);
    let sum: f64 = (1..=last / 2)
        .map(|j| {
            let times = if 2 * j == last { 1.0 } else { 2.0 };
            times * (2.0 * j as f64 * angle).cos() / (4.0 * (j * j) as f64 - 1.0)
        })
        .sum();
    let times = if k == 0 || k == last { 1.0 } else { 2.0 };
    (angle.cos(), times / last as f64 * (1.0 - sum))
}

/// The functions of an order at these cosines, of one degree after the other.
fn legendre(order: usize, degrees: usize, cosines: &[f64]) -> Vec<f64> {
    let (m, n) = (order as f64, cosines.len());
    let mut all = vec![0.0; degrees * n];
    // What the first degree has but for the power of the sine: the logarithm of a product of roots.
    let first: f64 = (1..=order)
        .map(|k| (1.0 + 0.5 / k as f64).ln())
        .sum::<f64>()
        / 2.0;
    for (k, &x) in cosines.iter().enumerate() {
        // Numbers are these times a factor, which grows where they would leave the range of floats.
        let mut log = first - (4.0 * PI).ln() / 2.0
            + if order > 0 {
                m * (1.0 - x * x).max(0.0).sqrt().ln()
            } else {
                0.0
            };
        let mut factor = log.exp();
        let (mut before, mut value) = (0.0, if order.is_multiple_of(2) { 1.0 } else { -1.0 });
        for degree in order..degrees {
            all[degree * n + k] = value * factor;
            let (l, squares) = (degree as f64 + 1.0, |l: f64| {
                (l * l - m * m) / (4.0 * l * l - 1.0)
            });
            (before, value) = (
                value,
                (x * value - squares(l - 1.0).sqrt() * before) / squares(l).sqrt(),
            );
            if value.abs() > LARGE {
                (before, value) = (before / LARGE, value / LARGE);
                log += LARGE.ln();
                factor = log.exp();
            }
        }
    }
    all
}

const LARGE: f64 = 1e150;
