//! Convolutional layers.

use super::{Module, uniform};
use crate::{Mesh, Result, Shape, ShardTensor, tree};
use shard_spec::numel;

/// A convolution of as many spatial dims as its kernel has.
#[derive(Clone, Debug)]
pub struct Conv {
    options: crate::Conv,
    /// `[outputs, inputs / groups, kernel...]`
    pub weight: ShardTensor,
    /// `[outputs]`
    pub bias: Option<ShardTensor>,
}

impl Conv {
    /// A layer with a bias.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(
        mesh: &Mesh,
        inputs: usize,
        outputs: usize,
        kernel: impl Into<Shape>,
        options: crate::Conv,
    ) -> Result<Self> {
        let mut layer = Self::without_bias(mesh, inputs, outputs, kernel, options)?;
        let fan_in = numel(&layer.weight.shape()[1..]);
        layer.bias = Some(uniform(mesh, outputs, fan_in)?);
        Ok(layer)
    }

    /// A layer without one, as before a norm.
    ///
    /// # Collective
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn without_bias(
        mesh: &Mesh,
        inputs: usize,
        outputs: usize,
        kernel: impl Into<Shape>,
        options: crate::Conv,
    ) -> Result<Self> {
        let per_group = inputs / options.options().groups.max(1);
        let shape: Vec<usize> = [outputs, per_group]
            .into_iter()
            .chain(kernel.into().iter().copied())
            .collect();
        let fan_in = numel(&shape[1..]);
        Ok(Self {
            options,
            weight: uniform(mesh, shape, fan_in)?,
            bias: None,
        })
    }
}

tree!(Conv { weight, bias });

impl Module for Conv {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.conv(&self.weight, self.bias.as_ref(), self.options.clone())
    }
}

/// A transposed convolution of as many spatial dims as its kernel has.
#[derive(Clone, Debug)]
pub struct ConvTranspose {
    options: crate::ConvTranspose,
    /// `[inputs, outputs / groups, kernel...]`
    pub weight: ShardTensor,
    /// `[outputs]`
    pub bias: Option<ShardTensor>,
}

impl ConvTranspose {
    /// A layer with a bias.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(
        mesh: &Mesh,
        inputs: usize,
        outputs: usize,
        kernel: impl Into<Shape>,
        options: crate::ConvTranspose,
    ) -> Result<Self> {
        let mut layer = Self::without_bias(mesh, inputs, outputs, kernel, options)?;
        // As PyTorch counts it, from the weight's second dim.
        let fan_in = numel(&layer.weight.shape()[1..]);
        layer.bias = Some(uniform(mesh, outputs, fan_in)?);
        Ok(layer)
    }

    /// A layer without one, as before a norm.
    ///
    /// # Collective
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn without_bias(
        mesh: &Mesh,
        inputs: usize,
        outputs: usize,
        kernel: impl Into<Shape>,
        options: crate::ConvTranspose,
    ) -> Result<Self> {
        let per_group = outputs / options.options().groups.max(1);
        let kernel = kernel.into();
        let shape: Vec<usize> = [inputs, per_group]
            .into_iter()
            .chain(kernel.iter().copied())
            .collect();
        let fan_in = numel(&shape[1..]);
        Ok(Self {
            options,
            weight: uniform(mesh, shape, fan_in)?,
            bias: None,
        })
    }
}

tree!(ConvTranspose { weight, bias });

impl Module for ConvTranspose {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.conv_transpose(&self.weight, self.bias.as_ref(), self.options.clone())
    }
}
