//! Layers that act on frequencies.

use super::{Module, uniform};
use crate::{EdgeMap, Error, FourierNorm, Mesh, Result, Shape, ShardTensor, tree};
use shard_comm::Calling;
use shard_ops::Exec;
use shard_spec::{DimSharding, Layout};

/// The product of a field's lowest frequencies with weights of their own, channels mixed: the layer of Fourier neural operators, for as
/// many spatial dims as it has modes.
///
/// A real field `[batch, inputs, extents...]` is transformed, the frequencies below `modes` are multiplied, all others become
/// zero, and the result is transformed back, `[batch, outputs, extents...]`. Extents may be any that have these frequencies, and the
/// same weights serve all of them. It has no bias: a [`Conv`](super::Conv) of one point, which is added to it, has one.
///
/// Weights are complex, `[outputs, inputs, modes..., 2]` with real and imaginary parts last: frequencies of either sign, so
/// twice as many as modes, positive ones first, but of the last dim, which has those from 0 on. The `n_modes` of neuraloperator are twice
/// the modes, and of the last dim two less than that. [`ParallelPlan::colwise`](super::ParallelPlan::colwise) and
/// [`ParallelPlan::rowwise`](super::ParallelPlan::rowwise) divide them by outputs and inputs, as those of linear layers.
///
/// ```
/// use shard_tensor::nn::{Module, SpectralConv};
/// use shard_tensor::{launch, shard};
/// let made = |ranks: [usize; 2]| launch(ranks[0] * ranks[1], move |ctx| {
///     let mesh = ctx.mesh([("rows", ranks[0]), ("columns", ranks[1])])?;
///     let layer = SpectralConv::new(&mesh, 2, 3, [2, 3])?;
///     assert_eq!(layer.weight.shape(), [3, 2, 4, 3, 2]);
///     let field = mesh.randn([1, 2, 9, 6], [shard(2), shard(3)])?;
///     let y = layer.forward(&field)?;
///     assert_eq!(y.placements(), field.placements()); // it lies as the field does
///     y.to_array::<f32>()
/// });
/// let (one, four) = (made([1, 1])?, made([2, 2])?);
/// assert!(one[0].iter().zip(&four[0]).all(|(a, b)| (a - b).abs() < 1e-5));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SpectralConv {
    modes: Shape,
    /// `[outputs, inputs, modes..., 2]`
    pub weight: ShardTensor,
}

tree!(SpectralConv { weight });

/// The names of spatial dims.
const LETTERS: &str = "abcdefgh";

impl SpectralConv {
    /// A layer that keeps so many frequencies of each spatial dim, of either sign but for the last dim. Real and imaginary parts of
    /// weights are uniform in `±1/√(inputs outputs)`.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// For no dims, or one without modes; if the sizes are too large for an array.
    #[track_caller]
    pub fn new(
        mesh: &Mesh,
        inputs: usize,
        outputs: usize,
        modes: impl Into<Shape>,
    ) -> Result<Self> {
        let _call = Calling::of("SpectralConv::new");
        let modes = modes.into();
        if !(1..=LETTERS.len()).contains(&modes.len()) || modes.contains(&0) {
            return Err(Error::argument(
                "SpectralConv::new",
                "one mode or more of each of the spatial dims",
                format!("{:?}", modes.dims()),
                "give a number of modes for each spatial dim",
            ));
        }
        let (last, others) = (modes.len() - 1, modes.iter().enumerate());
        let kept = others.map(|(d, &m)| match d == last {
            true => m,
            false => m.saturating_mul(2),
        });
        let shape: Vec<usize> = [outputs, inputs]
            .into_iter()
            .chain(kept)
            .chain([2])
            .collect();
        let weight = uniform(mesh, shape, inputs.saturating_mul(outputs))?;
        Ok(Self { modes, weight })
    }

    /// How many elements the modes of a spatial dim need.
    fn fewest(&self, d: usize) -> usize {
        match d + 1 == self.modes.len() {
            true => 2 * (self.modes[d] - 1),
            false => 2 * self.modes[d],
        }
    }

    fn check(&self, x: &ShardTensor) -> Result<()> {
        let shape = x.shape();
        let fits = shape.len() == self.modes.len() + 2
            && shape[1] == self.weight.shape()[1]
            && (0..self.modes.len()).all(|d| shape[d + 2] >= self.fewest(d).max(1));
        if fits {
            return Ok(());
        }
        let fewest: Vec<_> = (0..self.modes.len())
            .map(|d| self.fewest(d).max(1))
            .collect();
        Err(Error::argument(
            "SpectralConv",
            format!(
                "a field [batch, {}, extents...] with extents from {fewest:?} on, which have the modes {:?}",
                self.weight.shape()[1],
                self.modes.dims()
            ),
            format!("{shape:?}"),
            "give a finer field, or make a layer of fewer modes",
        ))
    }

    /// The frequencies that have weights: of each dim as soon as they are known.
    fn low(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let last = x.ndim() - 1;
        let m = self.modes[last - 2];
        let mut low = x.rfft(None, last, FourierNorm::Ortho)?.narrow(last, 0..m)?;
        for dim in (2..last).rev() {
            let (n, m) = (x.shape()[dim], self.modes[dim - 2]);
            low = low.fft(None, dim, FourierNorm::Ortho)?;
            if n > 2 * m {
                let ends = [low.narrow(dim, 0..m)?, low.narrow(dim, n - m..n)?];
                low = ShardTensor::cat(&[&ends[0], &ends[1]], dim)?;
            }
        }
        Ok(low)
    }

    /// The field `[batch, outputs, extents...]` that has these frequencies and no others.
    fn field(&self, low: ShardTensor, extents: &[usize]) -> Result<ShardTensor> {
        let last = extents.len() + 1;
        let mut field = low;
        for dim in 2..last {
            let (n, m) = (extents[dim - 2], self.modes[dim - 2]);
            if n > 2 * m {
                // Negative frequencies are the last ones.
                let mut pads = vec![(0, 0); field.ndim()];
                pads[dim].0 = (n - 2 * m) as isize;
                let ends = [field.narrow(dim, 0..m)?, field.narrow(dim, m..2 * m)?];
                let behind = ends[1].pad(&pads, EdgeMap::Zeros, 0.0)?;
                field = ShardTensor::cat(&[&ends[0], &behind], dim)?;
            }
            field = field.ifft(None, dim, FourierNorm::Ortho)?;
        }
        field.irfft(Some(extents[last - 2]), last, FourierNorm::Ortho)
    }

    /// Where what was transformed back goes: all dims as those of the field, but for channels, which are divided as the weights' outputs
    /// are. Terms of a sum stay what they are along axes that divide nothing.
    fn layout(&self, x: &ShardTensor, back: &Layout) -> Result<Layout> {
        let own = x.layout();
        let weight = self.weight.layout_in_use();
        let outputs = weight.sharding(0).filter(|s| {
            let others = own.shardings().iter().enumerate().filter(|(d, _)| *d != 1);
            let taken = |axis| {
                others
                    .clone()
                    .any(|(_, o)| o.as_ref().is_some_and(|o| o.axes.contains(axis)))
            };
            weight.mesh() == own.mesh() && !s.axes.iter().any(taken)
        });
        let dims = own.shardings().iter().enumerate().map(|(d, s)| match d {
            1 => outputs.cloned(),
            _ => s.clone(),
        });
        let dims: Vec<Option<DimSharding>> = dims.collect();
        let divides = |a: &usize| dims.iter().flatten().any(|s| s.axes.contains(a));
        let mut terms = back.partial_axes().to_vec();
        terms.retain(|a| !divides(a));
        let terms = back.partial_op().map(|op| (op, &terms[..]));
        Ok(Layout::from_dims(own.mesh(), back.shape(), dims, terms)?)
    }
}

impl Module for SpectralConv {
    /// # Collective
    /// All members of the field's mesh. An exchange for each spatial dim that is sharded, there and back, of the frequencies that are
    /// kept so far; then what brings the result to where the field's parts are. Weights that are divided by inputs make it a partial sum, as
    /// those of a linear layer do, along axes that divide nothing else of the field.
    ///
    /// # Errors
    /// For a field of other channels or dims, or too coarse for the modes; what the communicator reports.
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("SpectralConv");
        self.check(x)?;
        let letters = &LETTERS[..self.modes.len()];
        let equation = format!("ni{letters},oi{letters}->no{letters}");
        let made = ShardTensor::complex_einsum(&equation, &[&self.low(x)?, &self.weight])?;
        let back = self.field(made, &x.shape()[2..])?;
        let to = self.layout(x, back.layout())?;
        // Unlike a program's own moves, this one may leave terms of a sum where they are.
        let moved = back.context().tape().redistribute(&back.value(), &to)?;
        Ok(back.lift(moved))
    }
}
