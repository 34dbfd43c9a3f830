//! Normalisation.

use super::{Module, Parameters, weight_and_bias};
use crate::{Mesh, Placements, Result, Shape, ShardTensor};

/// Normalises groups of channels over all their positions; statistics are those of the whole tensor.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    groups: usize,
    eps: f64,
    /// `[channels]`, ones at first.
    pub weight: ShardTensor,
    /// `[channels]`, zeros at first.
    pub bias: ShardTensor,
}

impl GroupNorm {
    /// A layer of so many groups of channels, with eps 1e-5.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, groups: usize, channels: usize) -> Result<Self> {
        let (weight, bias) = scale_and_shift(mesh, channels)?;
        Ok(Self {
            groups,
            eps: 1e-5,
            weight,
            bias,
        })
    }

    /// What is added to the variance.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }
}

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.group_norm(self.groups, Some(&self.weight), Some(&self.bias), self.eps)
    }

    fn parameters(&self) -> Parameters {
        weight_and_bias(&self.weight, Some(&self.bias))
    }
}

/// Normalises over the last dims.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    eps: f64,
    /// Of the shape of the dims normalised, ones at first.
    pub weight: ShardTensor,
    /// Of the shape of the dims normalised, zeros at first.
    pub bias: ShardTensor,
}

impl LayerNorm {
    /// A layer over last dims of this shape, with eps 1e-5.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If the shape is too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, shape: impl Into<Shape>) -> Result<Self> {
        let (weight, bias) = scale_and_shift(mesh, shape)?;
        Ok(Self {
            eps: 1e-5,
            weight,
            bias,
        })
    }

    /// What is added to the variance.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.layer_norm(
            self.weight.ndim(),
            Some(&self.weight),
            Some(&self.bias),
            self.eps,
        )
    }

    fn parameters(&self) -> Parameters {
        weight_and_bias(&self.weight, Some(&self.bias))
    }
}

#[track_caller]
fn scale_and_shift(mesh: &Mesh, shape: impl Into<Shape>) -> Result<(ShardTensor, ShardTensor)> {
    let shape = shape.into();
    let everywhere = Placements::replicated();
    let weight = mesh.ones(&shape, &everywhere)?.requires_grad()?;
    Ok((weight, mesh.zeros(&shape, &everywhere)?.requires_grad()?))
}
