//! Linear layers.

use super::{Module, uniform};
use crate::{Mesh, Placements, Result, ShardTensor, tree};

/// `x wᵀ + b` over the last dim.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`
    pub weight: ShardTensor,
    /// `[outputs]`
    pub bias: Option<ShardTensor>,
}

impl Linear {
    /// A layer with a bias.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, inputs: usize, outputs: usize) -> Result<Self> {
        let weight = uniform(mesh, [outputs, inputs], inputs)?;
        let bias = Some(uniform(mesh, outputs, inputs)?);
        Ok(Self { weight, bias })
    }

    /// The layer without a bias.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }
}

/// Other beginnings.
impl Linear {
    /// A layer with weights uniform within a bound, and a bias of zeros.
    #[track_caller]
    pub(super) fn uniform_within(
        mesh: &Mesh,
        inputs: usize,
        outputs: usize,
        bound: f64,
    ) -> Result<Self> {
        let everywhere = Placements::replicated();
        let weight = mesh.uniform([outputs, inputs], -bound..bound, &everywhere)?;
        let bias = mesh.zeros(outputs, &everywhere)?;
        Ok(Self {
            weight: weight.requires_grad()?,
            bias: Some(bias.requires_grad()?),
        })
    }

    /// A layer of as many inputs and so many outputs, uniform within Xavier's bound, with a bias of zeros if this has one.
    #[track_caller]
    pub(super) fn xavier_of(&self, outputs: usize) -> Result<Self> {
        let inputs = self.weight.shape().get(1).copied().unwrap_or_default();
        let bound = (6.0 / inputs.saturating_add(outputs) as f64).sqrt();
        let new = Self::uniform_within(&self.weight.mesh(), inputs, outputs, bound)?;
        Ok(Self {
            bias: self.bias.as_ref().and(new.bias),
            weight: new.weight,
        })
    }

    /// The layer with zeros as its bias.
    pub(super) fn with_zero_bias(self) -> Result<Self> {
        if let Some(bias) = &self.bias {
            bias.set(&bias.detach().mul_scalar(0.0)?)?;
        }
        Ok(self)
    }
}

tree!(Linear { weight, bias });

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.linear(&self.weight, self.bias.as_ref())
    }
}

/// `x w y + b` of two inputs, over their last dims: [`ShardTensor::bilinear`] as a layer, `torch.nn.Bilinear`.
///
/// ```
/// use shard_tensor::nn::{Bilinear, ModelExt};
/// use shard_tensor::{launch, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let scores = Bilinear::new(&mesh, [3, 4], 2)?;
///     assert_eq!(scores.parameters()[0].1.shape(), [2, 3, 4]);
///     let pairs = scores.forward(&mesh.randn([7, 3], shard(0))?, &mesh.randn([7, 4], shard(0))?)?;
///     assert_eq!(pairs.shape(), [7, 2]);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Bilinear {
    /// `[outputs, inputs of the first, inputs of the second]`
    pub weight: ShardTensor,
    /// `[outputs]`
    pub bias: Option<ShardTensor>,
}

impl Bilinear {
    /// A layer with a bias, of so many inputs of both.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, [first, second]: [usize; 2], outputs: usize) -> Result<Self> {
        let weight = uniform(mesh, [outputs, first, second], first)?;
        let bias = Some(uniform(mesh, outputs, first)?);
        Ok(Self { weight, bias })
    }

    /// The layer without a bias.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }

    /// Applies it.
    ///
    /// # Collective
    /// As [`ShardTensor::bilinear`].
    ///
    /// # Errors
    /// As [`ShardTensor::bilinear`].
    #[track_caller]
    pub fn forward(&self, x: &ShardTensor, y: &ShardTensor) -> Result<ShardTensor> {
        x.bilinear(y, &self.weight, self.bias.as_ref())
    }
}

tree!(Bilinear { weight, bias });
