//! Normalisation.

use super::conv::check_groups;
use super::{Buffer, Module, Training};
use crate::{Mesh, Placements, Result, Shape, ShardTensor, tree};

/// Normalises groups of channels over all their positions; statistics are those of the whole tensor.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    groups: usize,
    eps: f64,
    /// `[channels]`, ones at first.
    pub weight: Option<ShardTensor>,
    /// `[channels]`, zeros at first.
    pub bias: Option<ShardTensor>,
}

impl GroupNorm {
    /// A layer of so many groups of channels, with eps 1e-5.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) for channels that do not divide by groups; if there are too many for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, groups: usize, channels: usize) -> Result<Self> {
        check_groups("GroupNorm", &[channels], groups)?;
        let (weight, bias) = scale_and_shift(mesh, channels)?;
        Ok(Self {
            groups,
            eps: 1e-5,
            weight: Some(weight),
            bias: Some(bias),
        })
    }

    /// The layer without weights, by which channels are scaled and shifted.
    #[must_use]
    pub fn without_affine(self) -> Self {
        Self {
            weight: None,
            bias: None,
            ..self
        }
    }

    /// What is added to the variance.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }
}

tree!(GroupNorm { weight, bias });

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.group_norm(
            self.groups,
            self.weight.as_ref(),
            self.bias.as_ref(),
            self.eps,
        )
    }
}

/// Normalises each channel of each sample over its positions. As PyTorch's it has neither weights nor running statistics, unless
/// asked.
///
/// ```
/// use shard_tensor::nn::{InstanceNorm, ModelExt, Module};
/// use shard_tensor::{launch, shard};
/// launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let norm = InstanceNorm::new().affine(&mesh, 2)?.running(&mesh, 2)?;
///     let names: Vec<String> = norm.parameters().into_iter().chain(norm.buffers()).map(|p| p.0).collect();
///     assert_eq!(names, ["weight", "bias", "running_mean", "running_var"]);
///     norm.forward(&mesh.randn([4, 2, 5], shard(2))?)?.expect_layout(shard(2))?;
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct InstanceNorm {
    eps: f64,
    momentum: f64,
    training: Training,
    /// `[channels]`, ones at first.
    pub weight: Option<ShardTensor>,
    /// `[channels]`, zeros at first.
    pub bias: Option<ShardTensor>,
    /// `[channels]`, zeros at first.
    pub running_mean: Option<Buffer>,
    /// `[channels]`, unbiased, ones at first.
    pub running_var: Option<Buffer>,
}

impl Default for InstanceNorm {
    fn default() -> Self {
        Self {
            eps: 1e-5,
            momentum: 0.1,
            training: Training::default(),
            weight: None,
            bias: None,
            running_mean: None,
            running_var: None,
        }
    }
}

impl InstanceNorm {
    /// A layer with eps 1e-5 and momentum 0.1, that trains.
    pub fn new() -> Self {
        Self::default()
    }

    /// With weights, by which each of so many channels is scaled and shifted.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If there are too many channels for an array.
    #[track_caller]
    pub fn affine(self, mesh: &Mesh, channels: usize) -> Result<Self> {
        let (weight, bias) = scale_and_shift(mesh, channels)?;
        let (weight, bias) = (Some(weight), Some(bias));
        Ok(Self {
            weight,
            bias,
            ..self
        })
    }

    /// With running statistics of so many channels: means over the samples, which move while it
    /// [trains](super::ModelExt::train) and are used when it does not.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If there are too many channels for an array.
    #[track_caller]
    pub fn running(self, mesh: &Mesh, channels: usize) -> Result<Self> {
        let (one, zero) = scale_and_shift(mesh, channels)?;
        let (running_mean, running_var) = (Some(Buffer::new(&zero)), Some(Buffer::new(&one)));
        Ok(Self {
            running_mean,
            running_var,
            ..self
        })
    }

    /// What is added to the variance.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// How far running statistics move towards those of a batch.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }
}

tree!(InstanceNorm {
    weight,
    bias,
    running_mean,
    running_var,
    training
});

impl Module for InstanceNorm {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let affine = [self.weight.as_ref(), self.bias.as_ref()];
        let (Some(mean), Some(var)) = (&self.running_mean, &self.running_var) else {
            return x.instance_norm(affine[0], affine[1], self.eps);
        };
        let (running, training) = ((&mean.get(), &var.get()), self.training.is_on());
        let (y, (new_mean, new_var)) =
            x.instance_norm_running(running, affine, training, self.momentum, self.eps)?;
        if training {
            settle(mean, &new_mean)?;
            settle(var, &new_var)?;
        }
        Ok(y)
    }
}

/// Normalises over the last dims.
///
/// One without any weights is a function: `Map::new(|x| x.layer_norm(1, None, None, 1e-5))`, over the last dim.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    eps: f64,
    /// Of the shape of the dims normalised, ones at first.
    pub weight: ShardTensor,
    /// Of the shape of the dims normalised, zeros at first.
    pub bias: Option<ShardTensor>,
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
            bias: Some(bias),
        })
    }

    /// The layer without a bias.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }

    /// What is added to the variance.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }
}

tree!(LayerNorm { weight, bias });

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.layer_norm(
            self.weight.ndim(),
            Some(&self.weight),
            self.bias.as_ref(),
            self.eps,
        )
    }
}

/// Divides by the root of the mean square over the last dims.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    eps: Option<f64>,
    /// Of the shape of the dims normalised, ones at first.
    pub weight: ShardTensor,
}

impl RmsNorm {
    /// A layer over last dims of this shape, with the type's own eps.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If the shape is too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, shape: impl Into<Shape>) -> Result<Self> {
        let weight = mesh
            .ones(shape, Placements::replicated())?
            .requires_grad()?;
        Ok(Self { eps: None, weight })
    }

    /// What is added to the mean square.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        let eps = Some(eps);
        Self { eps, ..self }
    }
}

tree!(RmsNorm { weight });

impl Module for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.rms_norm(self.weight.ndim(), Some(&self.weight), self.eps)
    }
}

/// Normalises each channel over all samples and positions, by the statistics of the whole batch, however it is divided.
///
/// While it [trains](super::ModelExt::train), every [`forward`](Module::forward) moves the running statistics.
///
/// ```
/// use shard_tensor::nn::{BatchNorm, ModelExt, Module};
/// use shard_tensor::{launch, shard};
/// let means = launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let norm = BatchNorm::new(&mesh, 2)?;
///     let x = mesh.from_fn([4, 2, 5], [shard(2)], |at| at[2] as f64)?;
///     norm.forward(&x)?;
///     norm.eval();
///     norm.forward(&x)?;
///     norm.running_mean.as_ref().expect("it has one").get().to_array::<f32>()
/// })?;
/// // A tenth of the way from 0 to the mean of 0 to 4.
/// assert!(means[0].iter().all(|mean| (mean - 0.2).abs() < 1e-6));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BatchNorm {
    eps: f64,
    momentum: f64,
    training: Training,
    /// `[channels]`, ones at first.
    pub weight: Option<ShardTensor>,
    /// `[channels]`, zeros at first.
    pub bias: Option<ShardTensor>,
    /// `[channels]`, zeros at first.
    pub running_mean: Option<Buffer>,
    /// `[channels]`, unbiased, ones at first.
    pub running_var: Option<Buffer>,
}

impl BatchNorm {
    /// A layer of so many channels, with eps 1e-5 and momentum 0.1, that trains.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If there are too many channels for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, channels: usize) -> Result<Self> {
        let (weight, bias) = scale_and_shift(mesh, channels)?;
        let (one, zero) = scale_and_shift(mesh, channels)?;
        let (running_var, running_mean) = (Some(Buffer::new(&one)), Some(Buffer::new(&zero)));
        Ok(Self {
            eps: 1e-5,
            momentum: 0.1,
            training: Training::default(),
            weight: Some(weight),
            bias: Some(bias),
            running_mean,
            running_var,
        })
    }

    /// The layer without weights, by which channels are scaled and shifted.
    #[must_use]
    pub fn without_affine(self) -> Self {
        Self {
            weight: None,
            bias: None,
            ..self
        }
    }

    /// The layer without running statistics: it goes by those of the batch also when it does not train.
    #[must_use]
    pub fn without_running(self) -> Self {
        Self {
            running_mean: None,
            running_var: None,
            ..self
        }
    }

    /// What is added to the variance.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// How far running statistics move towards those of a batch.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }
}

tree!(BatchNorm {
    weight,
    bias,
    running_mean,
    running_var,
    training
});

impl Module for BatchNorm {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let affine = [self.weight.as_ref(), self.bias.as_ref()];
        let (Some(mean), Some(var)) = (&self.running_mean, &self.running_var) else {
            let (y, _) = x.batch_norm(None, affine, true, self.momentum, self.eps)?;
            return Ok(y);
        };
        let (running, training) = ((&mean.get(), &var.get()), self.training.is_on());
        let (y, new) = x.batch_norm(Some(running), affine, training, self.momentum, self.eps)?;
        if let (true, Some((new_mean, new_var))) = (training, new) {
            settle(mean, &new_mean)?;
            settle(var, &new_var)?;
        }
        Ok(y)
    }
}

/// Sets a buffer to a value that lies somewhere.
#[track_caller]
fn settle(buffer: &Buffer, new: &ShardTensor) -> Result<()> {
    buffer.set(&new.redistribute(buffer.get().layout())?)
}

#[track_caller]
fn scale_and_shift(mesh: &Mesh, shape: impl Into<Shape>) -> Result<(ShardTensor, ShardTensor)> {
    let shape = shape.into();
    let everywhere = Placements::replicated();
    let weight = mesh.ones(&shape, &everywhere)?.requires_grad()?;
    Ok((weight, mesh.zeros(&shape, &everywhere)?.requires_grad()?))
}
