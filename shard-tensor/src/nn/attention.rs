//! Layers of attention.

mod added;

use super::{Linear, Module, Training};
use crate::{Attention, Error, Mesh, Neighborhood, Placements, Result, ShardTensor, tree};
use shard_comm::{Call, Calling};
use shard_ops::key_of;

/// Attention of several heads, as `torch.nn.MultiheadAttention` with `batch_first`: projections of queries, keys and values, and
/// one behind the heads.
///
/// Its projections have names of their own; PyTorch's, joint or not, become these by
/// [`State::with_split_projections`](crate::State::with_split_projections), which [`load_state_with`](super::load_state_with)
/// calls. With the tokens sharded, keys and values travel around the ring of ranks; with the outputs of the first three divided
/// over an axis, each rank has heads of its own.
///
/// ```
/// use shard_tensor::nn::{ModelExt, Module, MultiheadAttention, ParallelPlan};
/// use shard_tensor::{Attention, Causal, launch, shard};
/// launch(4, |ctx| {
///     let mesh = ctx.mesh([("domain", 2), ("tensor", 2)])?;
///     let attention = MultiheadAttention::new(&mesh, 8, 2)?.options(Attention::new().causal(Causal::TopLeft));
///     let plan = ParallelPlan::new().colwise("?_proj", "tensor").rowwise("out_proj", "tensor");
///     let attention = attention.distribute(&plan)?;
///     let x = mesh.randn([1, 6, 8], [("domain", shard(1).sizes([2, 4]))])?;
///     let y = attention.forward(&x)?;
///     assert_eq!(y.layout().to_string(), "S(1)[2,4] P(sum)"); // of each rank's heads
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiheadAttention {
    heads: usize,
    kv_heads: usize,
    options: Attention,
    dropout: f64,
    nothing: bool,
    training: Training,
    /// Of the queries.
    pub q_proj: Linear,
    /// Of the keys.
    pub k_proj: Linear,
    /// Of the values.
    pub v_proj: Linear,
    /// Of what the heads give.
    pub out_proj: Linear,
    /// A key that is added behind all others, `[1, 1, width]`: see [`add_bias_kv`](Self::add_bias_kv).
    pub bias_k: Option<ShardTensor>,
    /// The value of that key.
    pub bias_v: Option<ShardTensor>,
}

impl MultiheadAttention {
    /// A layer of so many heads, each of `width / heads` features.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if the width does not divide by the heads.
    #[track_caller]
    pub fn new(mesh: &Mesh, width: usize, heads: usize) -> Result<Self> {
        // As PyTorch draws the joint projection: Xavier's bound of a matrix of three times as many rows.
        Self::projecting(mesh, heads, [width; 3], [width.saturating_mul(4); 3])
    }

    /// A layer whose keys and values are projected from `keys` and `values` features to the width of the queries: PyTorch's with
    /// `kdim` and `vdim`.
    ///
    /// ```
    /// use shard_tensor::{launch, nn::MultiheadAttention, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let attention = MultiheadAttention::from_widths(&mesh, 8, 2, 5, 3)?;
    ///     let [queries, keys, values] = [[4, 8], [7, 5], [7, 3]].map(|[n, width]| mesh.randn([1, n, width], shard(1)));
    ///     let found = attention.attend_to(&queries?, &keys?, &values?, None)?;
    ///     assert_eq!(found.shape(), [1, 4, 8]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn from_widths(
        mesh: &Mesh,
        width: usize,
        heads: usize,
        keys: usize,
        values: usize,
    ) -> Result<Self> {
        let widths = [width, keys, values];
        Self::projecting(
            mesh,
            heads,
            widths,
            widths.map(|inputs| inputs.saturating_add(width)),
        )
    }

    /// With projections from these widths to the first, and the sums of fans that bound them.
    #[track_caller]
    fn projecting(mesh: &Mesh, heads: usize, widths: [usize; 3], fans: [usize; 3]) -> Result<Self> {
        let _call = Calling::throughout("MultiheadAttention");
        let [width, ..] = widths;
        check_heads("MultiheadAttention", width, heads)?;
        if width == 0 {
            return Err(Error::argument(
                "MultiheadAttention",
                "a width above 0",
                "none",
                "give each head a feature at least",
            ));
        }
        let projection = |i: usize| {
            let bound = (6.0 / fans[i] as f64).sqrt();
            Linear::uniform_within(mesh, widths[i], width, bound)
        };
        let (q_proj, k_proj, v_proj) = (projection(0)?, projection(1)?, projection(2)?);
        let out_proj = Linear::new(mesh, width, width)?.with_zero_bias()?;
        Ok(Self {
            heads,
            kv_heads: heads,
            options: Attention::new(),
            dropout: 0.0,
            nothing: false,
            training: Training::default(),
            q_proj,
            k_proj,
            v_proj,
            out_proj,
            bias_k: None,
            bias_v: None,
        })
    }

    /// Masks, windows, scale, and how sharded keys meet queries. A dropout among them is one mask for all calls, that of its stream:
    /// for training there is [`dropout`](Self::dropout).
    #[must_use]
    pub fn options(self, options: Attention) -> Self {
        Self { options, ..self }
    }

    /// While it [trains](super::ModelExt::train), drops this share of the probabilities, others in each call and the same under any
    /// layout.
    ///
    /// ```
    /// use shard_tensor::nn::{ModelExt, Module, MultiheadAttention};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let attention = MultiheadAttention::new(&mesh, 8, 2)?.dropout(0.5);
    ///     let x = mesh.randn([1, 6, 8], shard(1))?;
    ///     let y = || attention.forward(&x)?.to_array::<f32>();
    ///     assert_ne!(y()?, y()?);
    ///     attention.eval();
    ///     assert_eq!(y()?, y()?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn dropout(self, share: f64) -> Self {
        Self {
            dropout: share,
            ..self
        }
    }

    /// The layer with so many heads of keys and values, each of which serves as many consecutive heads of queries: grouped queries.
    /// Draws the projections of keys and values anew, which are narrower.
    ///
    /// ```
    /// use shard_tensor::nn::{Module, MultiheadAttention};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let attention = MultiheadAttention::new(&mesh, 16, 4)?.kv_heads(2)?.without_bias();
    ///     assert_eq!(attention.k_proj.weight.shape(), [8, 16]);
    ///     attention.forward(&mesh.randn([1, 6, 16], shard(1))?)?.expect_layout(shard(1))?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if the heads do not divide by these.
    #[track_caller]
    pub fn kv_heads(self, heads: usize) -> Result<Self> {
        let _call = Calling::throughout("MultiheadAttention");
        if heads == 0 || !self.heads.is_multiple_of(heads) {
            return Err(Error::argument(
                "MultiheadAttention",
                format!(
                    "heads of keys and values that divide the {} heads",
                    self.heads
                ),
                heads.to_string(),
                "let each of them serve as many heads of queries",
            ));
        }
        let width = self
            .q_proj
            .weight
            .shape()
            .first()
            .copied()
            .unwrap_or_default();
        let width = width / self.heads * heads;
        let added = self.bias_k.is_some();
        let layer = Self {
            kv_heads: heads,
            k_proj: self.k_proj.xavier_of(width)?,
            v_proj: self.v_proj.xavier_of(width)?,
            ..self
        };
        match added {
            true => layer.add_bias_kv(),
            false => Ok(layer),
        }
    }

    /// The layer with a key and a value of its own behind those that it is given, which are learned and which every query sees, whatever the
    /// masks: `add_bias_kv` of PyTorch.
    ///
    /// ```
    /// use shard_tensor::nn::{ModelExt, Module, MultiheadAttention};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let attention = MultiheadAttention::new(&mesh, 8, 2)?.add_bias_kv()?.add_zero_attn();
    ///     let x = mesh.randn([1, 5, 8], shard(1))?;
    ///     let (found, weights) = attention.attend_with_weights(&x, &x, &x, None)?;
    ///     assert_eq!((found.shape(), weights.shape()), (&[1, 5, 8][..], &[1, 2, 5, 7][..]));
    ///     let names = attention.parameters().into_iter().map(|p| p.0);
    ///     assert_eq!(names.skip(8).collect::<Vec<_>>(), ["bias_k", "bias_v"]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn add_bias_kv(self) -> Result<Self> {
        let _call = Calling::throughout("MultiheadAttention");
        let drawn = |of: &Linear| {
            let weight = &of.weight;
            let width = weight.shape().first().copied().unwrap_or_default();
            // Xavier's deviation of one element to each of the width.
            let deviation = (2.0 / width.saturating_add(width) as f64).sqrt();
            let normal = weight.mesh().with_dtype(weight.dtype());
            let normal = normal.randn([1, 1, width], Placements::replicated())?;
            normal.mul_scalar(deviation)?.requires_grad()
        };
        let (bias_k, bias_v) = (Some(drawn(&self.k_proj)?), Some(drawn(&self.v_proj)?));
        Ok(Self {
            bias_k,
            bias_v,
            ..self
        })
    }

    /// The layer with a key and a value of zeros behind all others, which every query sees, whatever the masks: what a query that finds nothing
    /// attends to. `add_zero_attn` of PyTorch.
    #[must_use]
    pub fn add_zero_attn(self) -> Self {
        Self {
            nothing: true,
            ..self
        }
    }

    /// The layer without biases.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        let projections = [
            &mut self.q_proj,
            &mut self.k_proj,
            &mut self.v_proj,
            &mut self.out_proj,
        ];
        for projection in projections {
            projection.bias = None;
        }
        self
    }

    /// What queries `[batch, queries, width]` find in `[batch, keys, width]`: cross-attention. The mask is as that of
    /// [`ShardTensor::attention`], where `true` says that a key counts.
    ///
    /// # Collective
    /// As [`ShardTensor::attention`] and [`ShardTensor::linear`].
    ///
    /// # Errors
    /// As these.
    #[track_caller]
    pub fn attend(
        &self,
        queries: &ShardTensor,
        keys: &ShardTensor,
        mask: Option<&ShardTensor>,
    ) -> Result<ShardTensor> {
        self.attend_to(queries, keys, keys, mask)
    }

    /// As [`attend`](Self::attend), with values `[batch, keys, features]` that are not the keys.
    ///
    /// # Collective
    /// As [`attend`](Self::attend).
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    #[track_caller]
    pub fn attend_to(
        &self,
        queries: &ShardTensor,
        keys: &ShardTensor,
        values: &ShardTensor,
        mask: Option<&ShardTensor>,
    ) -> Result<ShardTensor> {
        let _call = Calling::throughout("MultiheadAttention");
        let seen = self.seen([queries, keys, values], mask)?;
        self.found(&seen)
    }

    /// As [`attend`](Self::attend), where queries see the keys of their own segment alone, as [`ShardTensor::attention_by_segment`] has it: for
    /// documents that are packed one after the other.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, nn::MultiheadAttention, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let attention = MultiheadAttention::new(&mesh, 8, 2)?;
    ///     let x = mesh.randn([1, 5, 8], shard(1))?; // a document of two tokens, and one of three
    ///     let of = mesh.distribute(&array![0_i64, 0, 1, 1, 1], shard(0))?;
    ///     let packed = attention.attend_by_segment(&x, &x, [&of, &of], None)?;
    ///     let first = x.narrow(1, ..2)?;
    ///     let alone = attention.attend(&first, &first, None)?;
    ///     assert!(packed.narrow(1, ..2)?.allclose(&alone, 1e-5, 1e-6, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`attend`](Self::attend), with eight bytes more for each key that moves.
    ///
    /// # Errors
    /// As [`attend`](Self::attend) and [`ShardTensor::attention_by_segment`]; [`Argument`](Error::Argument) for a layer with
    /// [keys of its own](Self::add_bias_kv), which are in no segment.
    #[track_caller]
    pub fn attend_by_segment(
        &self,
        queries: &ShardTensor,
        keys: &ShardTensor,
        segments: [&ShardTensor; 2],
        mask: Option<&ShardTensor>,
    ) -> Result<ShardTensor> {
        let _call = Calling::throughout("MultiheadAttention");
        if self.adds() > 0 {
            return Err(Error::argument(
                "MultiheadAttention",
                "a layer without keys of its own, which are in no segment",
                "one with `add_bias_kv` or `add_zero_attn`",
                "hide other segments by a mask: `attend(queries, keys, Some(&mask))`",
            ));
        }
        let [q, k, v] = self.projected([queries, keys, keys])?;
        let options = self.options_of_call(&q, self.options);
        self.join(&q.attention_by_segment(&k, &v, segments, mask, &options)?)
    }

    /// As [`attend_to`](Self::attend_to), and the probabilities by which values were weighed, `[batch, heads, queries, keys]` with
    /// [keys of its own](Self::add_bias_kv) behind the others, before any are dropped: PyTorch's `need_weights` with `average_attn_weights=False`, whose mean over dim 1 is what it gives without that. They
    /// take the memory that attention itself saves.
    ///
    /// ```
    /// use shard_tensor::{launch, nn::MultiheadAttention, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let attention = MultiheadAttention::new(&mesh, 8, 2)?;
    ///     let x = mesh.randn([1, 5, 8], shard(1))?;
    ///     let (found, weights) = attention.attend_with_weights(&x, &x, &x, None)?;
    ///     assert_eq!((found.shape(), weights.shape()), (&[1, 5, 8][..], &[1, 2, 5, 5][..]));
    ///     let averaged = weights.mean(1, false)?; // [batch, queries, keys]
    ///     assert!((averaged.sum(-1, false)?.select(1, 3)?.item()? - 1.0).abs() < 1e-5);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`attend`](Self::attend), and [`ShardTensor::attention_weights`].
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    #[track_caller]
    pub fn attend_with_weights(
        &self,
        queries: &ShardTensor,
        keys: &ShardTensor,
        values: &ShardTensor,
        mask: Option<&ShardTensor>,
    ) -> Result<(ShardTensor, ShardTensor)> {
        let _call = Calling::throughout("MultiheadAttention");
        let seen = self.seen([queries, keys, values], mask)?;
        let [q, k, _] = &seen.projected;
        let weights = q.attention_weights(k, seen.mask.as_ref(), &seen.options)?;
        Ok((self.found(&seen)?, weights))
    }

    /// How many keys the layer adds.
    fn adds(&self) -> usize {
        usize::from(self.bias_k.is_some()) + usize::from(self.nothing)
    }

    /// What queries see: keys, those of the layer's own among them, and what hides some.
    #[track_caller]
    fn seen(&self, of: [&ShardTensor; 3], mask: Option<&ShardTensor>) -> Result<Seen> {
        let projected = self.projected(of)?;
        let (mask, options) = match self.adds() {
            0 => (mask.cloned(), self.options),
            added => {
                let [q, k, _] = &projected;
                let given = k.shape()[2] - added;
                added::mask(q, given, mask, self.options, added)?
            }
        };
        Ok(Seen {
            projected,
            mask,
            options,
        })
    }

    /// Queries, keys and values of each head, `[batch, heads, tokens, features]`, with the layer's own keys behind the others.
    #[track_caller]
    fn projected(&self, of: [&ShardTensor; 3]) -> Result<[ShardTensor; 3]> {
        let split = |projection: &Linear, x: &ShardTensor, heads| {
            split_heads(&projection.forward(x)?, heads)?.transpose(1, 2)
        };
        let [queries, keys, values] = of;
        let (q, k, v) = (
            split(&self.q_proj, queries, self.heads)?,
            split(&self.k_proj, keys, self.kv_heads)?,
            split(&self.v_proj, values, self.kv_heads)?,
        );
        let k = added::behind(k, self.bias_k.as_ref(), self.nothing)?;
        let v = added::behind(v, self.bias_v.as_ref(), self.nothing)?;
        let group = self.heads / self.kv_heads;
        Ok(match tears(&q, group) {
            true => {
                let (k, v) = (
                    k.repeat_interleave(1, group)?,
                    v.repeat_interleave(1, group)?,
                );
                [q, k, v]
            }
            false => [q, k, v],
        })
    }

    /// What the heads find together.
    #[track_caller]
    fn found(&self, seen: &Seen) -> Result<ShardTensor> {
        let [q, k, v] = &seen.projected;
        let options = self.options_of_call(q, seen.options);
        self.join(&q.attention(k, v, seen.mask.as_ref(), &options)?)
    }

    /// What heads have found, through the last projection.
    #[track_caller]
    fn join(&self, found: &ShardTensor) -> Result<ShardTensor> {
        let found = found.transpose(1, 2)?;
        self.out_proj.forward(&join_heads(&found)?)
    }

    /// The options of one call, in which others are dropped than in the last.
    fn options_of_call(&self, queries: &ShardTensor, options: Attention) -> Attention {
        if !self.training.is_on() || self.dropout == 0.0 {
            return options;
        }
        let stream = queries.context().next_stream();
        // The op's key leaves the stream out, so ranks are told here of another.
        let call = Call::keyed("attention", key_of("attention", &stream));
        let call = call.of(queries.dtype(), queries.layout());
        let read = [queries.value().array().number()];
        queries.mesh().comm().record(call.reading(&read));
        options.dropout(self.dropout, stream)
    }
}

/// What the heads of a call see.
struct Seen {
    /// Queries, keys and values, `[batch, heads, tokens, features]`.
    projected: [ShardTensor; 3],
    mask: Option<ShardTensor>,
    options: Attention,
}

tree!(MultiheadAttention {
    q_proj,
    k_proj,
    v_proj,
    out_proj,
    bias_k,
    bias_v,
    training
});

impl Module for MultiheadAttention {
    /// Attention of tokens to each other.
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.attend(x, x, None)
    }
}

/// Attention on a grid `[batch, spatial..., width]` of each place to a window around it, as the layers of NATTEN.
#[derive(Clone, Debug)]
pub struct NeighborhoodAttention {
    heads: usize,
    near: Neighborhood,
    /// Of queries, keys and values together: `[3 width, width]`.
    pub qkv: Linear,
    /// Of what the heads give.
    pub proj: Linear,
}

impl NeighborhoodAttention {
    /// A layer of so many heads, each of `width / heads` features.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if the width does not divide by the heads.
    #[track_caller]
    pub fn new(mesh: &Mesh, width: usize, heads: usize, near: Neighborhood) -> Result<Self> {
        let _call = Calling::throughout("NeighborhoodAttention");
        check_heads("NeighborhoodAttention", width, heads)?;
        Ok(Self {
            heads,
            near,
            qkv: Linear::new(mesh, width, width.saturating_mul(3))?,
            proj: Linear::new(mesh, width, width)?,
        })
    }
}

tree!(NeighborhoodAttention { qkv, proj });

impl Module for NeighborhoodAttention {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::throughout("NeighborhoodAttention");
        // Without dims there is nothing to attend to, which the ops refuse.
        let last = x.ndim().saturating_sub(1);
        let width = self.proj.weight.shape()[1];
        let parts = self.qkv.forward(x)?.split([width; 3], last)?;
        let heads = |part: &ShardTensor| split_heads(part, self.heads);
        let (q, k, v) = (heads(&parts[0])?, heads(&parts[1])?, heads(&parts[2])?);
        let found = q.neighborhood_attention(&k, &v, &self.near)?;
        self.proj.forward(&join_heads(&found)?)
    }
}

#[track_caller]
fn check_heads(op: &'static str, width: usize, heads: usize) -> Result<()> {
    match heads > 0 && width.is_multiple_of(heads) {
        true => Ok(()),
        false => Err(Error::argument(
            op,
            "a width that divides by the number of heads",
            format!("{width} and {heads} heads"),
            "choose heads of equal width",
        )),
    }
}

/// Whether some rank has heads of queries `[batch, heads, ...]`, but not the whole group that one head of keys serves. Attention
/// divides by heads of keys, and would bring each group to one rank.
fn tears(queries: &ShardTensor, group: usize) -> bool {
    let sharding = queries.layout().sharding(1);
    sharding.is_some_and(|s| s.partition.sizes().any(|n| !n.is_multiple_of(group)))
}

/// `[..., width]` to `[..., heads, width / heads]`.
fn split_heads(x: &ShardTensor, heads: usize) -> Result<ShardTensor> {
    let mut shape = x.shape().to_vec();
    let width = shape.pop().unwrap_or_default();
    shape.extend([heads, width / heads]);
    x.reshape(shape)
}

/// `[..., heads, features]` to `[..., heads * features]`.
fn join_heads(x: &ShardTensor) -> Result<ShardTensor> {
    let mut shape = x.shape().to_vec();
    let features = shape.pop().unwrap_or_default();
    if let Some(last) = shape.last_mut() {
        *last *= features;
    }
    x.reshape(shape)
}
