//! Convolutional layers.

use super::{Module, uniform};
use crate::{ConvOptions, ConvTransposeOptions, Error, Mesh, Result, Shape, ShardTensor, tree};
use shard_spec::numel;

/// A layer whose weight has such numbers of channels first, applied by a method of tensors.
macro_rules! layer {
    ($(#[$doc:meta])* $name:ident, $options:ident, $method:ident, $channels:expr, $weight:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            options: $options,
            #[doc = $weight]
            pub weight: ShardTensor,
            /// `[outputs]`
            pub bias: Option<ShardTensor>,
        }

        impl $name {
            /// A layer with a bias.
            ///
            /// # Collective
            /// All ranks of the program: it draws random numbers.
            ///
            /// # Errors
            /// [`Argument`](Error::Argument) for channels that do not divide by groups; if the sizes are too large for an array.
            #[track_caller]
            pub fn new(
                mesh: &Mesh,
                inputs: usize,
                outputs: usize,
                kernel: impl Into<Shape>,
                options: $options,
            ) -> Result<Self> {
                let channels: fn(usize, usize) -> [usize; 2] = $channels;
                let (channels, groups) = (channels(inputs, outputs), options.options().groups);
                let weight = weight(stringify!($name), mesh, channels, groups, &kernel.into())?;
                let bias = Some(bias(mesh, outputs, &weight)?);
                Ok(Self {
                    options,
                    weight,
                    bias,
                })
            }

            /// The layer without a bias, as before a norm.
            #[must_use]
            pub fn without_bias(self) -> Self {
                Self { bias: None, ..self }
            }
        }

        tree!($name { weight, bias });

        impl Module for $name {
            #[track_caller]
            fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
                x.$method(&self.weight, self.bias.as_ref(), self.options.clone())
            }
        }
    };
}

layer!(
    /// A convolution of as many spatial dims as its kernel has.
    Conv,
    ConvOptions,
    conv,
    |inputs, outputs| [outputs, inputs],
    "`[outputs, inputs / groups, kernel...]`"
);

layer!(
    /// A transposed convolution of as many spatial dims as its kernel has.
    ConvTranspose,
    ConvTransposeOptions,
    conv_transpose,
    |inputs, outputs| [inputs, outputs],
    "`[inputs, outputs / groups, kernel...]`"
);

/// The weight `[first, second / groups, kernel...]` of a new layer, by what its elements after the first dim come to: as PyTorch counts
/// inputs, those of transposed convolutions too.
#[track_caller]
fn weight(
    op: &'static str,
    mesh: &Mesh,
    [first, second]: [usize; 2],
    groups: usize,
    kernel: &Shape,
) -> Result<ShardTensor> {
    check_groups(op, &[first, second], groups)?;
    let channels = [first, second / groups];
    let shape: Vec<usize> = channels.into_iter().chain(kernel.iter().copied()).collect();
    let fan_in = numel(&shape[1..]);
    uniform(mesh, shape, fan_in)
}

/// Refuses channels that do not divide by groups.
#[track_caller]
pub(super) fn check_groups(op: &'static str, channels: &[usize], groups: usize) -> Result<()> {
    match groups > 0 && channels.iter().all(|n| n.is_multiple_of(groups)) {
        true => Ok(()),
        false => Err(Error::argument(
            op,
            "channels that divide by the number of groups",
            format!("{channels:?} and {groups} groups"),
            "choose groups of equal numbers of channels",
        )),
    }
}

/// The bias of a new layer with this weight.
#[track_caller]
fn bias(mesh: &Mesh, outputs: usize, weight: &ShardTensor) -> Result<ShardTensor> {
    uniform(mesh, outputs, numel(&weight.shape()[1..]))
}
