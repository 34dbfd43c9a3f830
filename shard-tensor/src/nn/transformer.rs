//! Layers of transformers, as PyTorch builds them.

use super::{Dropout, LayerNorm, Linear, Module, MultiheadAttention, layers_of};
use crate::{Attention, Mesh, Result, ShardTensor, tree};
use shard_comm::Calling;

/// What stands between the two products of a layer.
pub(super) type Activation = fn(&ShardTensor) -> Result<ShardTensor>;

/// A layer in which tokens `[batch, tokens, width]` attend to each other, then pass two linear layers one by one:
/// `torch.nn.TransformerEncoderLayer` with `batch_first=True`.
///
/// What each of the two makes is added to its input, and the sum normalised; with [`norm_first`](Self::norm_first) the input is
/// normalised instead. Names are PyTorch's, so that its weights [load](super::load_state_with). At first it drops a tenth, and the
/// activation is ReLU.
///
/// ```
/// use shard_tensor::nn::{ModelExt, Module, ParallelPlan, TransformerEncoderLayer};
/// use shard_tensor::{Attention, Causal, ShardTensor, launch, shard};
/// launch(4, |ctx| {
///     let mesh = ctx.mesh([("domain", 2), ("tensor", 2)])?;
///     let layer = TransformerEncoderLayer::new(&mesh, 8, 2, 32)?
///         .norm_first()
///         .activation(ShardTensor::gelu)
///         .options(Attention::new().causal(Causal::TopLeft));
///     // Heads and hidden features over one axis, tokens over the other.
///     let plan = ParallelPlan::new()
///         .colwise_by("self_attn.?_proj", "tensor", 4)
///         .rowwise_by("self_attn.out_proj", "tensor", 4)
///         .colwise("linear1", "tensor")
///         .rowwise("linear2", "tensor");
///     let layer = layer.distribute(&plan)?;
///     let x = mesh.randn([3, 6, 8], [("domain", shard(1))])?;
///     // Sums over heads and over hidden features are taken where they are added to the tokens.
///     layer.forward(&x)?.expect_layout(x.layout())?;
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerEncoderLayer {
    norm_first: bool,
    activation: Activation,
    /// Of the tokens to each other.
    pub self_attn: MultiheadAttention,
    /// To the hidden features.
    pub linear1: Linear,
    /// Of hidden features.
    pub dropout: Dropout,
    /// From the hidden features.
    pub linear2: Linear,
    /// Of the attention, after or before it.
    pub norm1: LayerNorm,
    /// Of the linear layers, after or before them.
    pub norm2: LayerNorm,
    /// Of what attention gives.
    pub dropout1: Dropout,
    /// Of what the linear layers give.
    pub dropout2: Dropout,
}

/// What layers of encoders and decoders are told alike.
macro_rules! options {
    ($layer:ident, [$($attention:ident),*], [$($linear:ident),*], [$($norm:ident),*], [$($dropout:ident),*]) => {
        impl $layer {
            /// The layer that normalises what attention and linear layers read, and not the sums behind them.
            #[must_use]
            pub fn norm_first(self) -> Self {
                Self { norm_first: true, ..self }
            }

            /// What stands between the two linear layers, as in `activation(ShardTensor::gelu)`.
            #[must_use]
            pub fn activation(self, activation: fn(&ShardTensor) -> Result<ShardTensor>) -> Self {
                Self { activation, ..self }
            }

            /// While it [trains](super::ModelExt::train), drops this share of the probabilities of attention, of hidden features, and of
            /// what is added to the tokens.
            #[must_use]
            pub fn dropout(mut self, share: f64) -> Self {
                $(self.$attention = self.$attention.dropout(share);)*
                $(self.$dropout = Dropout::new(share);)*
                self
            }

            /// What norms add to variances.
            #[must_use]
            pub fn eps(mut self, eps: f64) -> Self {
                $(self.$norm = self.$norm.eps(eps);)*
                self
            }

            /// The layer without any biases.
            #[must_use]
            pub fn without_bias(mut self) -> Self {
                $(self.$attention = self.$attention.without_bias();)*
                $(self.$linear.bias = None;)*
                $(self.$norm = self.$norm.without_bias();)*
                self
            }

            /// Masks, windows and scale of the attention of tokens to each other, and how sharded keys meet queries: a decoder's is
            /// usually causal.
            #[must_use]
            pub fn options(mut self, options: Attention) -> Self {
                self.self_attn = self.self_attn.options(options);
                self
            }

            /// What the linear layers make of tokens.
            #[track_caller]
            fn pass(&self, x: &ShardTensor) -> Result<ShardTensor> {
                let hidden = (self.activation)(&self.linear1.forward(x)?)?;
                self.linear2.forward(&self.dropout.forward(&hidden)?)
            }

            /// Adds what `branch` makes of tokens to them, with the norm before or after.
            #[track_caller]
            fn adding(
                &self,
                x: &ShardTensor,
                norm: &LayerNorm,
                dropout: &Dropout,
                branch: &dyn Fn(&ShardTensor) -> Result<ShardTensor>,
            ) -> Result<ShardTensor> {
                match self.norm_first {
                    true => x.add(&dropout.forward(&branch(&norm.forward(x)?)?)?),
                    false => norm.forward(&x.add(&dropout.forward(&branch(x)?)?)?),
                }
            }
        }
    };
}

options!(
    TransformerEncoderLayer,
    [self_attn],
    [linear1, linear2],
    [norm1, norm2],
    [dropout, dropout1, dropout2]
);

/// Which tokens an encoder's tokens attend to.
#[derive(Clone, Copy)]
enum Seen<'a> {
    All,
    Mask(&'a ShardTensor),
    Segments(&'a ShardTensor),
}

impl TransformerEncoderLayer {
    /// A layer of so many heads, with so many hidden features between the linear layers.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) if the width does not divide by the heads.
    #[track_caller]
    pub fn new(mesh: &Mesh, width: usize, heads: usize, hidden: usize) -> Result<Self> {
        let _call = Calling::throughout("TransformerEncoderLayer");
        let layer = Self {
            norm_first: false,
            activation: |x| x.relu(),
            self_attn: MultiheadAttention::new(mesh, width, heads)?,
            linear1: Linear::new(mesh, width, hidden)?,
            dropout: Dropout::new(0.0),
            linear2: Linear::new(mesh, hidden, width)?,
            norm1: LayerNorm::new(mesh, width)?,
            norm2: LayerNorm::new(mesh, width)?,
            dropout1: Dropout::new(0.0),
            dropout2: Dropout::new(0.0),
        };
        Ok(layer.dropout(0.1))
    }

    /// Applies it, with a mask as that of [`MultiheadAttention::attend`], where `true` says that a token counts as a key: what PyTorch hides
    /// is `false` here. Of tokens that are padding, `[batch, tokens]`, it is `mask.reshape([batch, 1, 1, tokens])`.
    ///
    /// ```
    /// use shard_tensor::nn::{ModelExt, TransformerEncoderLayer};
    /// use shard_tensor::{DType, launch, ndarray::array, replicate, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let layer = TransformerEncoderLayer::new(&mesh, 8, 2, 16)?;
    ///     layer.eval();
    ///     let x = mesh.randn([2, 5, 8], shard(0))?;
    ///     let lengths = mesh.distribute(&array![5_i64, 3], shard(0))?;
    ///     let places = mesh.with_dtype(DType::I64).arange(5, replicate())?;
    ///     let there = lengths.unsqueeze(1)?.gt(&places)?;
    ///     let y = layer.forward_masked(&x, &there.reshape([2, 1, 1, 5])?)?;
    ///     let alone = layer.forward_masked(&x.narrow(1, 0..3)?, &there.narrow(1, 0..3)?.reshape([2, 1, 1, 3])?)?;
    ///     assert!(y.select(0, 1)?.narrow(0, 0..3)?.allclose(&alone.select(0, 1)?, 1e-5, 1e-6, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`ShardTensor::attention`], [`ShardTensor::linear`] and [`ShardTensor::layer_norm`]. Nothing moves where the batch is sharded;
    /// where tokens are, keys and values meet queries as options say.
    ///
    /// # Errors
    /// As these.
    #[track_caller]
    pub fn forward_masked(&self, x: &ShardTensor, mask: &ShardTensor) -> Result<ShardTensor> {
        self.through(x, Seen::Mask(mask))
    }

    /// Applies it to documents that are packed one after the other: tokens attend to those of their own segment, by the numbers `[tokens]` or
    /// `[batch, tokens]` of [`MultiheadAttention::attend_by_segment`].
    ///
    /// # Collective
    /// As [`forward_masked`](Self::forward_masked), with eight bytes more for each key that moves.
    ///
    /// # Errors
    /// As [`MultiheadAttention::attend_by_segment`].
    #[track_caller]
    pub fn forward_by_segment(
        &self,
        x: &ShardTensor,
        segments: &ShardTensor,
    ) -> Result<ShardTensor> {
        self.through(x, Seen::Segments(segments))
    }

    #[track_caller]
    fn through(&self, x: &ShardTensor, seen: Seen<'_>) -> Result<ShardTensor> {
        let _call = Calling::throughout("TransformerEncoderLayer");
        let x = self.adding(x, &self.norm1, &self.dropout1, &|x| match seen {
            Seen::All => self.self_attn.attend(x, x, None),
            Seen::Mask(mask) => self.self_attn.attend(x, x, Some(mask)),
            Seen::Segments(of) => self.self_attn.attend_by_segment(x, x, [of, of], None),
        })?;
        self.adding(&x, &self.norm2, &self.dropout2, &|x| self.pass(x))
    }
}

tree!(TransformerEncoderLayer {
    self_attn,
    linear1,
    dropout,
    linear2,
    norm1,
    norm2,
    dropout1,
    dropout2
});

impl Module for TransformerEncoderLayer {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.through(x, Seen::All)
    }
}

/// A layer in which tokens `[batch, tokens, width]` attend to each other, then to a memory `[batch, keys, width]`, then pass two linear
/// layers one by one: `torch.nn.TransformerDecoderLayer` with `batch_first=True`.
///
/// As [`TransformerEncoderLayer`] otherwise. It is causal if [`options`](Self::options) say so.
///
/// ```
/// use shard_tensor::nn::TransformerDecoderLayer;
/// use shard_tensor::{Attention, Causal, launch, shard};
/// launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let layer = TransformerDecoderLayer::new(&mesh, 8, 2, 16)?
///         .options(Attention::new().causal(Causal::TopLeft));
///     let (x, memory) = (mesh.randn([2, 7, 8], shard(1))?, mesh.randn([2, 4, 8], shard(1))?);
///     layer.forward(&x, &memory)?.expect_layout(shard(1))?;
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerDecoderLayer {
    norm_first: bool,
    activation: Activation,
    /// Of the tokens to each other.
    pub self_attn: MultiheadAttention,
    /// Of the tokens to the memory.
    pub multihead_attn: MultiheadAttention,
    /// To the hidden features.
    pub linear1: Linear,
    /// Of hidden features.
    pub dropout: Dropout,
    /// From the hidden features.
    pub linear2: Linear,
    /// Of the attention to each other, after or before it.
    pub norm1: LayerNorm,
    /// Of the attention to the memory, after or before it.
    pub norm2: LayerNorm,
    /// Of the linear layers, after or before them.
    pub norm3: LayerNorm,
    /// Of what attention to each other gives.
    pub dropout1: Dropout,
    /// Of what attention to the memory gives.
    pub dropout2: Dropout,
    /// Of what the linear layers give.
    pub dropout3: Dropout,
}

options!(
    TransformerDecoderLayer,
    [self_attn, multihead_attn],
    [linear1, linear2],
    [norm1, norm2, norm3],
    [dropout, dropout1, dropout2, dropout3]
);

impl TransformerDecoderLayer {
    /// A layer of so many heads in both attentions, with so many hidden features between the linear layers.
    ///
    /// # Collective
    /// As [`TransformerEncoderLayer::new`].
    ///
    /// # Errors
    /// As [`TransformerEncoderLayer::new`].
    #[track_caller]
    pub fn new(mesh: &Mesh, width: usize, heads: usize, hidden: usize) -> Result<Self> {
        let _call = Calling::throughout("TransformerDecoderLayer");
        let layer = Self {
            norm_first: false,
            activation: |x| x.relu(),
            self_attn: MultiheadAttention::new(mesh, width, heads)?,
            multihead_attn: MultiheadAttention::new(mesh, width, heads)?,
            linear1: Linear::new(mesh, width, hidden)?,
            dropout: Dropout::new(0.0),
            linear2: Linear::new(mesh, hidden, width)?,
            norm1: LayerNorm::new(mesh, width)?,
            norm2: LayerNorm::new(mesh, width)?,
            norm3: LayerNorm::new(mesh, width)?,
            dropout1: Dropout::new(0.0),
            dropout2: Dropout::new(0.0),
            dropout3: Dropout::new(0.0),
        };
        Ok(layer.dropout(0.1))
    }

    /// Applies it to tokens and a memory.
    ///
    /// # Collective
    /// As [`TransformerEncoderLayer::forward_masked`].
    ///
    /// # Errors
    /// As [`TransformerEncoderLayer::forward_masked`].
    #[track_caller]
    pub fn forward(&self, x: &ShardTensor, memory: &ShardTensor) -> Result<ShardTensor> {
        self.forward_masked(x, memory, [None, None])
    }

    /// As [`forward`](Self::forward), with masks of the tokens and of the memory, as that of [`TransformerEncoderLayer::forward_masked`].
    ///
    /// # Collective
    /// As [`forward`](Self::forward).
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_masked(
        &self,
        x: &ShardTensor,
        memory: &ShardTensor,
        [of_tokens, of_memory]: [Option<&ShardTensor>; 2],
    ) -> Result<ShardTensor> {
        let _call = Calling::throughout("TransformerDecoderLayer");
        let x = self.adding(x, &self.norm1, &self.dropout1, &|x| {
            self.self_attn.attend(x, x, of_tokens)
        })?;
        let x = self.adding(&x, &self.norm2, &self.dropout2, &|x| {
            self.multihead_attn.attend(x, memory, of_memory)
        })?;
        self.adding(&x, &self.norm3, &self.dropout3, &|x| self.pass(x))
    }
}

tree!(TransformerDecoderLayer {
    self_attn,
    multihead_attn,
    linear1,
    dropout,
    linear2,
    norm1,
    norm2,
    norm3,
    dropout1,
    dropout2,
    dropout3
});

/// What stacks of layers have alike.
macro_rules! stack {
    ($stack:ident of $layer:ident) => {
        impl $stack {
            /// So many layers, each as `layer` makes it: with weights of its own, where PyTorch copies those of one.
            ///
            /// # Collective
            /// As `layer`.
            ///
            /// # Errors
            /// As `layer`; [`Argument`](crate::Error::Argument) for more layers than memory holds.
            #[track_caller]
            pub fn new(layers: usize, mut layer: impl FnMut() -> Result<$layer>) -> Result<Self> {
                Ok(Self {
                    layers: layers_of(stringify!($stack), layers, |_| layer())?,
                    norm: None,
                })
            }

            /// The stack with a norm behind the last layer, which layers that normalise first need.
            #[must_use]
            pub fn norm(self, norm: LayerNorm) -> Self {
                Self {
                    norm: Some(norm),
                    ..self
                }
            }

            #[track_caller]
            fn normalised(&self, x: ShardTensor) -> Result<ShardTensor> {
                match &self.norm {
                    Some(norm) => norm.forward(&x),
                    None => Ok(x),
                }
            }
        }

        tree!($stack { layers, norm });
    };
}

/// Layers of an encoder on top of each other: `torch.nn.TransformerEncoder`.
///
/// ```
/// use shard_tensor::nn::{LayerNorm, ModelExt, Module, TransformerEncoder, TransformerEncoderLayer};
/// use shard_tensor::{launch, shard};
/// let names = launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let layer = || Ok(TransformerEncoderLayer::new(&mesh, 8, 2, 16)?.norm_first());
///     let encoder = TransformerEncoder::new(2, layer)?.norm(LayerNorm::new(&mesh, 8)?);
///     let x = mesh.randn([2, 7, 8], shard(1).sizes([4, 0, 3]))?;
///     encoder.forward(&x)?.expect_layout(x.layout())?;
///     Ok(encoder.parameters().into_iter().map(|p| p.0).collect::<Vec<_>>())
/// })?;
/// assert!(names[0].contains(&"layers.1.linear2.weight".into()) && names[0].contains(&"norm.bias".into()));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerEncoder {
    /// From the first to the last.
    pub layers: Vec<TransformerEncoderLayer>,
    /// Behind the last.
    pub norm: Option<LayerNorm>,
}

stack!(TransformerEncoder of TransformerEncoderLayer);

impl TransformerEncoder {
    /// Applies it, with one mask for all layers.
    ///
    /// # Collective
    /// As [`TransformerEncoderLayer::forward_masked`].
    ///
    /// # Errors
    /// As [`TransformerEncoderLayer::forward_masked`].
    #[track_caller]
    pub fn forward_masked(&self, x: &ShardTensor, mask: &ShardTensor) -> Result<ShardTensor> {
        self.through(x, Seen::Mask(mask))
    }

    /// Applies it to packed documents, as [`TransformerEncoderLayer::forward_by_segment`].
    ///
    /// ```
    /// use shard_tensor::ndarray::array;
    /// use shard_tensor::nn::{ModelExt, TransformerEncoder, TransformerEncoderLayer};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let encoder = TransformerEncoder::new(2, || TransformerEncoderLayer::new(&mesh, 8, 2, 16))?;
    ///     encoder.eval();
    ///     let (x, y) = (mesh.randn([1, 3, 8], shard(1))?, mesh.randn([1, 4, 8], shard(1))?);
    ///     let of = mesh.distribute(&array![0_i64, 0, 0, 1, 1, 1, 1], shard(0))?;
    ///     let packed = shard_tensor::ShardTensor::cat(&[&x, &y], 1)?;
    ///     let found = encoder.forward_by_segment(&packed, &of)?.narrow(1, 3..)?;
    ///     let alone = encoder.forward_by_segment(&y, &of.narrow(0, 3..)?)?;
    ///     assert!(found.allclose(&alone, 1e-4, 1e-5, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`TransformerEncoderLayer::forward_by_segment`].
    ///
    /// # Errors
    /// As [`TransformerEncoderLayer::forward_by_segment`].
    #[track_caller]
    pub fn forward_by_segment(
        &self,
        x: &ShardTensor,
        segments: &ShardTensor,
    ) -> Result<ShardTensor> {
        self.through(x, Seen::Segments(segments))
    }

    #[track_caller]
    fn through(&self, x: &ShardTensor, seen: Seen<'_>) -> Result<ShardTensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.through(&x, seen)?;
        }
        self.normalised(x)
    }
}

impl Module for TransformerEncoder {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.through(x, Seen::All)
    }
}

/// Layers of a decoder on top of each other, all of which attend to one memory: `torch.nn.TransformerDecoder`.
///
/// ```
/// use shard_tensor::nn::{TransformerDecoder, TransformerDecoderLayer};
/// use shard_tensor::{Attention, Causal, launch, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let causal = Attention::new().causal(Causal::TopLeft);
///     let layer = || Ok(TransformerDecoderLayer::new(&mesh, 8, 2, 16)?.options(causal));
///     let decoder = TransformerDecoder::new(2, layer)?;
///     let (x, memory) = (mesh.randn([2, 5, 8], shard(0))?, mesh.randn([2, 4, 8], shard(0))?);
///     decoder.forward(&x, &memory)?.expect_layout(shard(0))?;
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerDecoder {
    /// From the first to the last.
    pub layers: Vec<TransformerDecoderLayer>,
    /// Behind the last.
    pub norm: Option<LayerNorm>,
}

stack!(TransformerDecoder of TransformerDecoderLayer);

impl TransformerDecoder {
    /// Applies it to tokens and a memory.
    ///
    /// # Collective
    /// As [`TransformerDecoderLayer::forward`].
    ///
    /// # Errors
    /// As [`TransformerDecoderLayer::forward`].
    #[track_caller]
    pub fn forward(&self, x: &ShardTensor, memory: &ShardTensor) -> Result<ShardTensor> {
        self.forward_masked(x, memory, [None, None])
    }

    /// As [`forward`](Self::forward), with masks of the tokens and of the memory for all layers.
    ///
    /// # Collective
    /// As [`forward`](Self::forward).
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_masked(
        &self,
        x: &ShardTensor,
        memory: &ShardTensor,
        masks: [Option<&ShardTensor>; 2],
    ) -> Result<ShardTensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward_masked(&x, memory, masks)?;
        }
        self.normalised(x)
    }
}
