//! State space models.

use super::{Conv, Linear, Module, uniform};
use crate::{ConvOptions, DType, EdgeMap, Error, Mesh, Placements, Result, ShardTensor, tree};
use shard_comm::Calling;

const NAME: &str = "SelectiveStateSpace";

/// How large the parts of a [`SelectiveStateSpace`] are.
///
/// ```
/// use shard_tensor::nn::StateSpaceSizes;
/// let sizes = StateSpaceSizes::of(40);
/// assert_eq!((sizes.inner, sizes.states, sizes.kernel, sizes.rank), (80, 16, 4, 3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpaceSizes {
    /// Channels inside (Mamba's `expand` times the width).
    pub inner: usize,
    /// States of each channel (`d_state`).
    pub states: usize,
    /// Tokens that the convolution sees (`d_conv`).
    pub kernel: usize,
    /// Features that a channel's steps are made of (`dt_rank`).
    pub rank: usize,
}

impl StateSpaceSizes {
    /// Mamba's own for tokens of so many features: twice as many channels inside, 16 states, four tokens, and a rank of a sixteenth.
    pub fn of(width: usize) -> Self {
        Self {
            inner: width.saturating_mul(2),
            states: 16,
            kernel: 4,
            rank: width.div_ceil(16),
        }
    }
}

/// The mixer of a block of Mamba (Gu and Dao, 2023), with the parameters' names of `mamba_ssm`: tokens `[batch, time, width]` are projected
/// to channels and a gate; channels go through a causal convolution of their own, and then through states that decay and take in more as
/// each token says, `h[t] = exp(Δ A) h[t-1] + Δ B x`, of which `C h + D x` is read; the gate is put upon that, and it is projected back.
///
/// Any dim may be sharded, time too: then ranks get the tokens before their part that the convolution looks at, and
/// [the totals](ShardTensor::linear_recurrence) of the states of other parts.
///
/// ```
/// use shard_tensor::nn::{Module, SelectiveStateSpace};
/// use shard_tensor::{launch, shard};
/// launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let mixer = SelectiveStateSpace::new(&mesh, 8)?;
///     // Eleven tokens in parts of unequal sizes.
///     let tokens = mesh.randn([2, 11, 8], shard(1).sizes([6, 1, 4]))?;
///     let mixed = mixer.forward(&tokens)?;
///     mixed.expect_layout(shard(1).sizes([6, 1, 4]))?;
///
///     // Token by token: what a token changes is kept.
///     let (first, kept) = mixer.forward_from(&tokens.narrow(1, 0..10)?, None)?;
///     let (last, _) = mixer.forward_from(&tokens.narrow(1, 10..)?, Some(&kept))?;
///     for (found, of) in [(first, 0..10), (last, 10..11)] {
///         assert!(found.sub(&mixed.narrow(1, of)?)?.abs()?.amax(.., false)?.item()? < 1e-5);
///     }
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[expect(
    non_snake_case,
    reason = "parameters have the names that files of weights have"
)]
pub struct SelectiveStateSpace {
    /// To channels and a gate, `[2 inner, width]`.
    pub in_proj: Linear,
    /// Of each channel by itself, `[inner, 1, kernel]`.
    pub conv1d: Conv,
    /// To what steps, inputs and outputs of the states are made of, `[rank + 2 states, inner]`.
    pub x_proj: Linear,
    /// To each channel's step, `[inner, rank]`.
    pub dt_proj: Linear,
    /// Logarithms of what states decay by, `[inner, states]`.
    pub A_log: ShardTensor,
    /// What of a channel passes by the states, `[inner]`.
    pub D: ShardTensor,
    /// Back to features, `[width, inner]`.
    pub out_proj: Linear,
}

tree!(SelectiveStateSpace {
    in_proj,
    conv1d,
    x_proj,
    dt_proj,
    A_log,
    D,
    out_proj
});

/// What a [`SelectiveStateSpace`] has to know of the tokens before: its size is that of a few tokens, whatever their number.
#[derive(Clone, Debug)]
pub struct SelectiveState {
    /// What the convolution was given of the last tokens, `[batch, kernel - 1, inner]`.
    pub inputs: ShardTensor,
    /// The states, `[batch, 1, inner, states]`.
    pub states: ShardTensor,
}

/// What states come from.
#[derive(Clone, Copy)]
enum Before<'a> {
    /// The first token has none before it.
    Nothing,
    /// Those that were kept of tokens before.
    States(&'a ShardTensor),
    /// The token before, but for tokens at place 0 of a document.
    Places(&'a ShardTensor),
}

impl SelectiveStateSpace {
    /// A mixer of tokens of so many features, of Mamba's [sizes](StateSpaceSizes::of), which begins as Mamba's does.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, width: usize) -> Result<Self> {
        Self::with_sizes(mesh, width, StateSpaceSizes::of(width))
    }

    /// A mixer of other sizes.
    ///
    /// # Collective
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a convolution of no tokens; as [`new`](Self::new).
    #[track_caller]
    pub fn with_sizes(mesh: &Mesh, width: usize, sizes: StateSpaceSizes) -> Result<Self> {
        let _call = Calling::of(NAME);
        let StateSpaceSizes {
            inner,
            states,
            kernel,
            rank,
        } = sizes;
        if kernel == 0 {
            return Err(Error::argument(
                NAME,
                "a convolution of some tokens",
                "a kernel of 0",
                "give 1 for none but the token itself",
            ));
        }
        let everywhere = Placements::replicated;
        let causal = ConvOptions::new()
            .padding_each([(kernel - 1, 0)])
            .groups(inner.max(1));
        let decays = mesh.arange(states, everywhere())?.add_scalar(1.0)?.log()?;
        Ok(Self {
            in_proj: Linear::new(mesh, width, inner.saturating_mul(2))?.without_bias(),
            conv1d: Conv::new(mesh, inner, inner, [kernel], causal)?,
            x_proj: Linear::new(mesh, inner, states.saturating_mul(2).saturating_add(rank))?
                .without_bias(),
            dt_proj: steps(mesh, rank, inner)?,
            A_log: decays.expand([inner, states])?.requires_grad()?,
            D: mesh.ones(inner, everywhere())?.requires_grad()?,
            out_proj: Linear::new(mesh, inner, width)?.without_bias(),
        })
    }

    /// As [`forward`](Module::forward), of the tokens that come after those that something was kept of, and what is to be kept now: a text is
    /// read at once and goes on token by token.
    ///
    /// # Collective
    /// As [`forward`](Module::forward). What is kept of the last tokens lies with the rank that has them, if time is sharded.
    ///
    /// # Errors
    /// As [`forward`](Module::forward).
    #[track_caller]
    pub fn forward_from(
        &self,
        x: &ShardTensor,
        kept: Option<&SelectiveState>,
    ) -> Result<(ShardTensor, SelectiveState)> {
        let _call = Calling::throughout(NAME);
        let [y, seen, h] = self.mixed(x, kept)?;
        let first = kept.map(|kept| &kept.states);
        let kept = SelectiveState {
            inputs: last_of(&seen, extent(&self.conv1d.weight, 2).saturating_sub(1))?,
            states: match first.filter(|_| extent(&h, 1) == 0) {
                Some(first) => first.clone(),
                None => last_of(&h, 1)?,
            },
        };
        Ok((y, kept))
    }

    /// As [`forward`](Module::forward), of documents that are packed one after the other, each as by itself (`seq_idx` of `mamba_ssm`): a
    /// document begins where the number of a token, `[batch, time]` or `[time]` of `i64`, differs from that before it. Convolution and states
    /// begin anew there.
    ///
    /// Documents must be finite: states that are not, times zero, are not a number.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, nn::{Module, SelectiveStateSpace}, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let mixer = SelectiveStateSpace::new(&mesh, 8)?;
    ///     let x = mesh.randn([1, 5, 8], shard(1))?; // a document of two tokens, and one of three
    ///     let of = mesh.distribute(&array![0_i64, 0, 1, 1, 1], shard(0))?;
    ///     let packed = mixer.forward_by_segment(&x, &of)?;
    ///     let alone = mixer.forward(&x.narrow(1, 2..)?)?;
    ///     assert!(packed.narrow(1, 2..)?.allclose(&alone, 1e-5, 1e-6, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`forward`](Module::forward). Where time is sharded, the numbers of the segments are exchanged like tokens.
    ///
    /// # Errors
    /// As [`forward`](Module::forward); [`Argument`](Error::Argument) for segments that are not one number for each token.
    #[track_caller]
    pub fn forward_by_segment(
        &self,
        x: &ShardTensor,
        segments: &ShardTensor,
    ) -> Result<ShardTensor> {
        let _call = Calling::throughout(NAME);
        let [u, gate] = self.projected(x)?;
        let place = places_in_documents(x, segments)?;
        let channels = match extent(&u, 1) {
            0 => u,
            _ => self.convolved(&u, &place)?,
        };
        let (y, _) = self.selected(&channels, &gate, Before::Places(&place))?;
        Ok(y)
    }

    /// What the convolution gives of tokens at these places in their documents: a window holds zeros before its document.
    fn convolved(&self, u: &ShardTensor, place: &ShardTensor) -> Result<ShardTensor> {
        let kernel = extent(&self.conv1d.weight, 2);
        let before = kernel.saturating_sub(1) as isize;
        let windows = u
            .pad(&[(0, 0), (before, 0), (0, 0)], EdgeMap::Zeros, 0.0)?
            .sliding(1, kernel, 1)?; // [batch, time, inner, kernel]
        // The last of a window is the token itself, and the one before it there from place 1 on.
        let from = u
            .mesh()
            .with_dtype(DType::I64)
            .arange(0..kernel, Placements::replicated())?;
        let hidden = place.unsqueeze(2)?.unsqueeze(3)?.lt(&from.flip(0)?)?;
        let weight = self.conv1d.weight.squeeze(1)?;
        let channels = windows
            .masked_fill(&hidden, 0.0)?
            .mul(&weight)?
            .sum(-1, false)?;
        match &self.conv1d.bias {
            Some(bias) => channels.add(bias),
            None => Ok(channels),
        }
    }

    /// The result, what the convolution has seen, and all states.
    fn mixed(&self, x: &ShardTensor, kept: Option<&SelectiveState>) -> Result<[ShardTensor; 3]> {
        let [u, gate] = self.projected(x)?;
        let seen = match kept {
            Some(kept) => ShardTensor::cat(&[&kept.inputs, &u], 1)?,
            None => u.clone(),
        };
        let channels = match kept {
            // Of no tokens there is no window.
            _ if extent(&u, 1) == 0 => u,
            None => self.conv1d.forward(&u.transpose(1, 2)?)?.transpose(1, 2)?,
            Some(_) => {
                let (weight, bias) = (&self.conv1d.weight, self.conv1d.bias.as_ref());
                let options = ConvOptions::new().groups(extent(&seen, 2).max(1));
                let channels = seen.transpose(1, 2)?.conv1d(weight, bias, options)?;
                channels.transpose(1, 2)?
            }
        };
        let before = kept.map_or(Before::Nothing, |kept| Before::States(&kept.states));
        let (y, h) = self.selected(&channels, &gate, before)?;
        Ok([y, seen, h])
    }

    /// Channels and gate, `[batch, time, inner]` each.
    fn projected(&self, x: &ShardTensor) -> Result<[ShardTensor; 2]> {
        if x.ndim() != 3 {
            return Err(Error::argument(
                NAME,
                "tokens `[batch, time, width]`",
                format!("shape {:?}", x.shape()),
                "give it three dims",
            ));
        }
        self.in_proj.forward(x)?.chunk_array(-1)
    }

    /// What is made of channels behind the convolution and of the gate, `[batch, time, inner]` each, with all states.
    fn selected(
        &self,
        channels: &ShardTensor,
        gate: &ShardTensor,
        before: Before<'_>,
    ) -> Result<(ShardTensor, ShardTensor)> {
        let u = in_parts_of(channels, gate)?.silu()?;
        let (rank, states) = (extent(&self.dt_proj.weight, 1), extent(&self.A_log, 1));
        let [step, b, c] = self
            .x_proj
            .forward(&u)?
            .split_array([rank, states, states], -1)?;
        let step = self.dt_proj.forward(&step)?.softplus(1.0, 20.0)?;
        let decay = step.unsqueeze(3)?.mul(&self.A_log.exp()?.neg()?)?.exp()?;
        let (first, decay) = match before {
            Before::Nothing => (None, decay),
            Before::States(first) => (Some(first), decay),
            Before::Places(place) => {
                let begins = place.eq_scalar(0.0)?.unsqueeze(2)?.unsqueeze(3)?;
                (None, decay.masked_fill(&begins, 0.0)?)
            }
        };
        let input = step.mul(&u)?.unsqueeze(3)?.mul(&b.unsqueeze(2)?)?;
        let h = input.linear_recurrence(&decay, first, 1, false)?;
        let read = h.matmul(&c.unsqueeze(3)?)?.squeeze(3)?;
        let y = read.add(&u.mul(&self.D)?)?.mul(&gate.silu()?)?;
        Ok((self.out_proj.forward(&y)?, h))
    }
}

impl Module for SelectiveStateSpace {
    /// Of `[batch, time, width]`.
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::throughout(NAME);
        let [y, ..] = self.mixed(x, None)?;
        Ok(y)
    }
}

/// The place of each token in its document, 0 for the first, `[batch or 1, time]`.
fn places_in_documents(x: &ShardTensor, segments: &ShardTensor) -> Result<ShardTensor> {
    let (tokens, given) = (&x.shape()[..2], segments.shape());
    if segments.dtype() != DType::I64 || given != tokens && given != &tokens[1..] {
        return Err(Error::argument(
            NAME,
            format!(
                "a segment of `i64` for each of {tokens:?} tokens, or of the last dim of these"
            ),
            format!("{} of shape {given:?}", segments.dtype()),
            "number the documents, and give each token its document's number",
        ));
    }
    let segments = match given.len() {
        1 => segments.unsqueeze(0)?,
        _ => segments.clone(),
    };
    let time = tokens[1];
    let mesh = segments.mesh().with_dtype(DType::I64);
    let number = mesh.arange(0..time, Placements::replicated())?;
    if time == 0 {
        return segments.mul(&number);
    }
    // Numbers that differ by what wraps around differ, too.
    let differs = segments.diff(1, 1)?.ne_scalar(0.0)?;
    let begins = differs.pad(&[(0, 0), (1, 0)], EdgeMap::Zeros, 0.0)?;
    let (first, _) = begins.to(DType::I64)?.mul(&number)?.cummax(1)?;
    number.sub(&first)
}

/// The extent of a dim that a tensor should have: what lacks it is refused by the op that is given it.
fn extent(x: &ShardTensor, dim: usize) -> usize {
    x.shape().get(dim).copied().unwrap_or_default()
}

/// Channels whose tokens lie as those of a tensor: parts end elsewhere behind a window that looks back alone.
fn in_parts_of(channels: &ShardTensor, like: &ShardTensor) -> Result<ShardTensor> {
    let Some(parts) = like.layout().sharding(1) else {
        return Ok(channels.clone());
    };
    let layout = channels.layout().with_partial_reduced();
    match layout.with_sharding(1, Some(parts.clone())) {
        Ok(to) if to != *channels.layout() => channels.redistribute(to),
        // What other dims prevent is left to the ops.
        _ => Ok(channels.clone()),
    }
}

/// The last so many along dim 1, behind zeros if there are fewer.
fn last_of(x: &ShardTensor, count: usize) -> Result<ShardTensor> {
    let n = extent(x, 1);
    let last = x.narrow(1, n.saturating_sub(count)..)?;
    let lacks = count.saturating_sub(n);
    if lacks == 0 {
        return Ok(last);
    }
    let mut pads = vec![(0, 0); x.ndim()];
    pads[1] = (lacks as isize, 0);
    last.pad(&pads, EdgeMap::Zeros, 0.0)
}

/// The projection to steps: the biases are such that steps, which are positive, are between 0.001 and 0.1 at first, evenly by their logarithm.
fn steps(mesh: &Mesh, rank: usize, inner: usize) -> Result<Linear> {
    let range = f64::ln(1e-3)..f64::ln(1e-1);
    let drawn = mesh.uniform(inner, range, Placements::replicated())?;
    let step = drawn.exp()?.clamp_min(1e-4)?;
    // What `softplus` makes the step of.
    let bias = step.add(&step.neg()?.expm1()?.neg()?.log()?)?;
    Ok(Linear {
        weight: uniform(mesh, [inner, rank], rank)?,
        bias: Some(bias.requires_grad()?),
    })
}
