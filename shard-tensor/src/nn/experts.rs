//! Layers of which each token sees few of many parts.

use super::transformer::Activation;
use super::{Linear, Module, uniform};
use crate::{DType, Error, Mesh, Result, ShardTensor, tree};
use shard_comm::Calling;
use shard_spec::{DimSharding, Layout, Partition};

/// A feed-forward layer of many experts, of which each token `[.., width]` passes the few that a router chooses, and is given the sum of what
/// they make of it, weighted by the router's gates. It stands where the two linear layers of a transformer's block stand.
///
/// The router scores a token by a linear layer, `gate`, and the softmax of the scores are its gates: the `top` largest count, of equal ones
/// the first. [`normalized`](Self::normalized) makes those of a token sum to 1, as Mixtral does; without, they are as Switch has them. An
/// expert is two linear layers without biases and what stands [between](Self::activation), ReLU at first, or [`swiglu`](Self::swiglu). No
/// token is dropped, unless a [`capacity`](Self::capacity) is set.
///
/// Weights of all experts are one parameter, with the experts as its first dim: sharding that divides the experts over ranks,
/// whichever axis the tokens are divided over.
///
/// ```
/// use shard_tensor::nn::{LayerNorm, MixtureOfExperts, MultiheadAttention, ParallelPlan};
/// use shard_tensor::prelude::*;
///
/// struct Block { norm1: LayerNorm, attention: MultiheadAttention, norm2: LayerNorm, moe: MixtureOfExperts }
/// tree!(Block { norm1, attention, norm2, moe });
///
/// launch(4, |ctx| {
///     let mesh = ctx.mesh([("data", 4)])?;
///     let block = Block {
///         norm1: LayerNorm::new(&mesh, 8)?,
///         attention: MultiheadAttention::new(&mesh, 8, 2)?,
///         norm2: LayerNorm::new(&mesh, 8)?,
///         moe: MixtureOfExperts::new(&mesh, 8, 16, 8, 2)?.swiglu()?.normalized(), // 8 experts, of which a token passes 2
///     }
///     .distribute(&ParallelPlan::new().shard("moe.w?", "data", 0))?; // two experts on each rank
///     let mut adam = AdamW::new(block.parameters(), 1e-3)?;
///
///     let x = mesh.randn([6, 5, 8], [("data", shard(0))])?; // [batch, tokens, width]
///     let h = x.add(&block.attention.forward(&block.norm1.forward(&x)?)?)?;
///     let (y, routing) = block.moe.forward_routed(&block.norm2.forward(&h)?)?;
///     let loss = h.add(&y)?.square()?.mean_all()?;
///     let loss = loss.add(&routing.balance_loss()?.mul_scalar(0.01)?)?.add(&routing.z_loss()?.mul_scalar(0.001)?)?;
///     adam.step(&loss.backward()?)
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// The rows of an expert stand together, as many for each as the fullest has, and empty rows behind those of the others: one batched product
/// computes all experts of a rank. How many that is, is read where there is no capacity, so such a layer waits for its router, and costs as
/// much as if all experts were as full as the fullest. The losses of the [routing](ExpertRouting) keep them about equal.
#[derive(Clone, Debug)]
pub struct MixtureOfExperts {
    top: usize,
    normalized: bool,
    capacity: Option<f64>,
    activation: Activation,
    /// The router: of each token the scores of all experts. It has no bias at first.
    pub gate: Linear,
    /// `[experts, hidden, width]`
    pub w1: ShardTensor,
    /// `[experts, width, hidden]`
    pub w2: ShardTensor,
    /// `[experts, hidden, width]`: by what it makes of a token, what `w1` and the activation make of it is multiplied.
    pub w3: Option<ShardTensor>,
}

tree!(MixtureOfExperts { gate, w1, w2, w3 });

const OP: &str = "MixtureOfExperts";

impl MixtureOfExperts {
    /// A layer of so many experts, each with so many hidden features, of which a token passes `top`. Weights are uniform in
    /// `±1/√inputs`, as those of linear layers.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) unless `top` is at least 1 and at most the number of experts; if sizes are too large for an array.
    #[track_caller]
    pub fn new(
        mesh: &Mesh,
        width: usize,
        hidden: usize,
        experts: usize,
        top: usize,
    ) -> Result<Self> {
        let _call = Calling::of("MixtureOfExperts::new");
        if !(1..=experts).contains(&top) {
            return Err(Error::argument(
                "MixtureOfExperts::new",
                format!("1 to {experts} experts of each token"),
                top.to_string(),
                "choose at least one expert, and no more than there are",
            ));
        }
        Ok(Self {
            top,
            normalized: false,
            capacity: None,
            activation: |x| x.relu(),
            gate: Linear::without_bias(mesh, width, experts)?,
            w1: uniform(mesh, [experts, hidden, width], width)?,
            w2: uniform(mesh, [experts, width, hidden], hidden)?,
            w3: None,
        })
    }

    /// The layer whose experts are `w2 (silu(w1 x) · w3 x)`.
    ///
    /// # Collective
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn swiglu(self) -> Result<Self> {
        let _call = Calling::of("swiglu");
        let shape = self.w1.shape().to_vec();
        let width = shape.last().copied().unwrap_or_default();
        let w3 = Some(uniform(&self.w1.mesh(), shape, width)?);
        let activation = |x: &ShardTensor| x.silu();
        Ok(Self {
            w3,
            activation,
            ..self
        })
    }

    /// What stands behind the first product of an expert, as in `activation(ShardTensor::gelu)`.
    #[must_use]
    pub fn activation(self, activation: fn(&ShardTensor) -> Result<ShardTensor>) -> Self {
        Self { activation, ..self }
    }

    /// The layer with gates that sum to 1 for each token: the softmax over the scores of the experts that were chosen, or, which is the same,
    /// over all and then divided by their sum. Of a single expert that gate is 1 always, and the router learns from it nothing.
    #[must_use]
    pub fn normalized(self) -> Self {
        Self {
            normalized: true,
            ..self
        }
    }

    /// The layer in which an expert takes `factor` times the tokens that it would have if all had as many, rounded up, and no others. The
    /// experts that tokens like best come first, and of those the first tokens. One that is dropped by an expert is given nothing by it:
    /// it goes on by the sum around the layer. Nothing is read then, and the cost of a step is known beforehand.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) unless the factor is a number above 0.
    #[track_caller]
    pub fn capacity(self, factor: f64) -> Result<Self> {
        if !(factor.is_finite() && factor > 0.0) {
            return Err(Error::argument(
                "capacity",
                "a number above 0",
                factor.to_string(),
                "1 leaves no room for an uneven choice, 1.25 and 2 are usual",
            ));
        }
        let capacity = Some(factor);
        Ok(Self { capacity, ..self })
    }

    /// Applies it, and tells what the router did.
    ///
    /// # Collective
    /// All members of the mesh. Where tokens are sharded, a scan of a number per expert and choice; unless there is a
    /// [`capacity`](Self::capacity), a maximum of a number, which is read. Where experts are sharded, each rank asks for the tokens of its experts, each once, and
    /// sends what they make of each of them back: rows of the width there, and rows back, twice again in the backward pass.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for tokens of another width than the experts' and for weights whose shapes do not belong together; what
    /// the communicator reports.
    #[track_caller]
    pub fn forward_routed(&self, x: &ShardTensor) -> Result<(ShardTensor, ExpertRouting)> {
        let _call = Calling::of(OP);
        let [experts, width] = self.check(x)?;
        let x = x.reduced()?;
        let count = x.shape()[..x.ndim() - 1].iter().product::<usize>();
        let tokens = x.reshape([count, width])?;
        let mut routing = self.route(&tokens)?;
        let rows = self.rows(&tokens, &mut routing, experts)?;

        let taken = rows
            .filled
            .where_(&tokens.index_select(0, &rows.token)?, 0.0)?;
        let hidden = (self.activation)(&each_expert("ecw,ehw->ech", &taken, &self.w1)?)?;
        let hidden = match &self.w3 {
            Some(w3) => hidden.mul(&each_expert("ecw,ehw->ech", &taken, w3)?)?,
            None => hidden,
        };
        let made = each_expert("ech,ewh->ecw", &hidden, &self.w2)?;

        let gates = routing.gates.index_select(0, &rows.token)?;
        // What empty rows repeat of a token may be no number.
        let gates = rows.filled.where_(&gates.gather(2, &rows.choice)?, 0.0)?;
        let weighted = rows.filled.where_(&made.mul(&gates)?, 0.0)?;
        let y = tokens.zeros_like()?.index_add(0, &rows.token, &weighted)?;
        let y = y.reshape(x.shape().to_vec())?.redistribute(x.layout())?;
        Ok((y, routing))
    }

    /// The numbers of experts and of features.
    fn check(&self, x: &ShardTensor) -> Result<[usize; 2]> {
        let fits = |w: &ShardTensor, shape: [usize; 3]| w.shape() == shape;
        let width = x.shape().last().copied();
        if let (&[experts, hidden, inputs], Some(width)) = (self.w1.shape(), width)
            && inputs == width
            && self.gate.weight.shape() == [experts, width]
            && fits(&self.w2, [experts, width, hidden])
            && self.w3.iter().all(|w3| fits(w3, [experts, hidden, width]))
            && self.top <= experts
        {
            return Ok([experts, width]);
        }
        Err(Error::argument(
            OP,
            format!(
                "tokens [.., width], a gate [experts, width], w1 and w3 [experts, hidden, width], w2 [experts, width, hidden], and {} experts \
                 or more",
                self.top
            ),
            format!(
                "{:?}, {:?}, {:?}, {:?}, {:?}",
                x.shape(),
                self.gate.weight.shape(),
                self.w1.shape(),
                self.w3.as_ref().map(ShardTensor::shape),
                self.w2.shape()
            ),
            "give tokens as wide as the layer was made for",
        ))
    }

    /// What the router says of tokens `[tokens, width]`.
    fn route(&self, tokens: &ShardTensor) -> Result<ExpertRouting> {
        let logits = self.gate.forward(tokens)?.reduced()?;
        let (best, experts) = logits.topk(self.top, 1, true)?;
        let gates = match self.normalized {
            true => best.softmax(1)?,
            false => logits.softmax(1)?.gather(1, &experts)?,
        };
        Ok(ExpertRouting {
            logits,
            experts,
            gates,
            kept: None,
        })
    }

    /// Which rows the experts have.
    fn rows(
        &self,
        tokens: &ShardTensor,
        routing: &mut ExpertRouting,
        experts: usize,
    ) -> Result<Rows> {
        let (count, top) = (tokens.shape()[0], self.top);
        let chosen = &routing.experts;
        let hot = chosen.one_hot(experts)?; // [tokens, top, experts]
        let load = hot.sum(0, false)?.reduced()?;
        // First choices of all tokens stand before the second ones.
        let before = load.cumsum(0)?.sub(&load)?;
        let up_to = hot.cumsum(0)?.add(&before)?;
        let place = up_to
            .gather(2, &chosen.unsqueeze(2)?)?
            .squeeze(2)?
            .add_scalar(-1.0)?;

        let room = match self.capacity {
            Some(factor) => {
                let even = (count * top) as f64 / experts as f64;
                count.min((factor * even).ceil() as usize)
            }
            None => load.sum(0, false)?.amax(.., false)?.item()? as usize,
        };
        let mut slot = chosen.mul_scalar(room as f64)?.add(&place)?;
        let numbers = tokens.mesh().with_dtype(DType::I64);
        // Numbers of choices from 1 on, as 0 says that there is none.
        let mut number = numbers.arange(count * top, slot.reshape([count * top])?.layout())?;
        number = number.add_scalar(1.0)?.reshape([count, top])?;
        if self.capacity.is_some() {
            let kept = place.lt_scalar(room as f64)?;
            // What adds 0 may do so anywhere.
            (slot, number) = (kept.where_(&slot, 0.0)?, kept.where_(&number, 0.0)?);
            routing.kept = Some(kept);
        }

        let layouts = self.layouts(tokens.layout(), [experts, room])?;
        let empty = numbers.zeros([experts, room], &layouts[0])?;
        let put = empty.reshape([experts * room])?.index_add(
            0,
            &slot.reshape([count * top])?,
            &number.reshape([count * top])?,
        )?;
        let number = put.reshape([experts, room])?.redistribute(&layouts[1])?;
        let choice = number.add_scalar(-1.0)?.clamp_min(0.0)?;
        Ok(Rows {
            token: choice.floor_div_scalar(top as f64)?,
            choice: choice.remainder_scalar(top as f64)?.unsqueeze(2)?,
            filled: number.gt_scalar(0.0)?.unsqueeze(2)?,
        })
    }

    /// Where the rows of experts lie, `[experts, rows]`: divided as the experts are; and then also over axes along which tokens are
    /// divided and weights are copies, where the rows of an expert are about as many as the tokens of a rank ask for.
    fn layouts(&self, tokens: &Layout, shape: [usize; 2]) -> Result<[Layout; 2]> {
        let weights = self.w1.layout_in_use();
        let by_expert = weights.sharding(0).cloned();
        let mesh = weights.mesh();
        let first = Layout::from_dims(mesh, &shape, [by_expert.clone(), None], None)?;
        let divides = |axis: &usize| {
            weights
                .shardings()
                .iter()
                .flatten()
                .any(|s| s.axes.contains(axis))
        };
        let own = tokens.sharding(0).filter(|_| tokens.mesh() == mesh);
        let Some(own) = own.filter(|own| !own.axes.iter().all(divides)) else {
            return Ok([first.clone(), first]);
        };
        let axes: Vec<usize> = own.axes.iter().copied().filter(|a| !divides(a)).collect();
        let sizes: Vec<f64> = own.partition.sizes().map(|n| n as f64).collect();
        let partition = match axes.len() == own.axes.len() && sizes.iter().any(|&n| n > 0.0) {
            true => Partition::weighted(shape[1], &sizes)?,
            false => Partition::balanced(shape[1], mesh.part_count(&axes)),
        };
        let rows = DimSharding {
            axes: axes.into(),
            partition,
        };
        let second = Layout::from_dims(mesh, &shape, [by_expert, Some(rows)], None)?;
        Ok([first, second])
    }
}

impl Module for MixtureOfExperts {
    /// # Collective
    /// As [`forward_routed`](MixtureOfExperts::forward_routed).
    ///
    /// # Errors
    /// As [`forward_routed`](MixtureOfExperts::forward_routed).
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        Ok(self.forward_routed(x)?.0)
    }
}

/// The rows that experts have, of `[experts, rows]`.
struct Rows {
    /// The token in a row, 0 in one that is empty. Routes are kept with this value, so that all that moves by it asks once.
    token: ShardTensor,
    /// Which of the token's choices the expert is, `[experts, rows, 1]`.
    choice: ShardTensor,
    /// Whether there is a token, `[experts, rows, 1]`.
    filled: ShardTensor,
}

/// The product of each expert's rows with its matrix.
#[track_caller]
fn each_expert(equation: &str, rows: &ShardTensor, weights: &ShardTensor) -> Result<ShardTensor> {
    ShardTensor::einsum(equation, &[rows, weights])
}

/// What the router of a [`MixtureOfExperts`] did with the tokens of one pass, counted row-major, and the losses that keep experts equally
/// busy, which a program adds to its own.
#[derive(Clone, Debug)]
pub struct ExpertRouting {
    /// Scores, `[tokens, experts]`.
    pub logits: ShardTensor,
    /// The experts that each token chose, best first, `[tokens, top]`, of `i64`.
    pub experts: ShardTensor,
    /// By what the results of these experts are multiplied, `[tokens, top]`.
    pub gates: ShardTensor,
    /// Which of the choices found room, `[tokens, top]`, of `bool`. `None` where the layer has no capacity, so that all did.
    pub kept: Option<ShardTensor>,
}

impl ExpertRouting {
    /// How many tokens chose each expert, `[experts]`, of `i64`; those that found no room are counted too.
    ///
    /// # Collective
    /// All members of the mesh. A sum of a number per expert.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn load(&self) -> Result<ShardTensor> {
        let _call = Calling::of("load");
        let chosen = self.experts.reshape([self.experts.numel()])?;
        chosen.bincount_within(None, self.logits.shape()[1])
    }

    /// How many choices found no room, a number of `i64`.
    ///
    /// # Collective
    /// All members of the mesh. The result may be a sum that is outstanding.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn dropped(&self) -> Result<ShardTensor> {
        let _call = Calling::of("dropped");
        match &self.kept {
            Some(kept) => kept.logical_not()?.sum_all(),
            None => {
                let none = self.experts.mesh().with_dtype(DType::I64);
                none.zeros([], crate::Placements::replicated())
            }
        }
    }

    /// `experts · Σᵢ fᵢ Pᵢ`, where `fᵢ` is the share of all choices that expert `i` has, and `Pᵢ` the mean of its probability: 1 if all have as
    /// many. The loss of Switch transformers (Fedus and others, 2021, equation 4), for any number of choices. Mixtral's in Hugging Face's
    /// library is `top` times this. No gradient passes the shares.
    ///
    /// # Collective
    /// All members of the mesh. Two sums of a number per expert; the result may be outstanding.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn balance_loss(&self) -> Result<ShardTensor> {
        let _call = Calling::of("balance_loss");
        let (experts, choices) = (self.logits.shape()[1], self.experts.numel());
        let shares = self
            .load()?
            .to(DType::F64)?
            .mul_scalar(experts as f64 / choices as f64)?;
        let probabilities = self.logits.softmax(1)?.mean(0, false)?;
        probabilities
            .mul(&shares.to(probabilities.dtype())?)?
            .sum_all()
    }

    /// The mean square of `log Σ exp` of a token's scores, which keeps these small: the router z-loss of ST-MoE (Zoph and others, 2022,
    /// equation 5).
    ///
    /// # Collective
    /// All members of the mesh. The result may be outstanding.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn z_loss(&self) -> Result<ShardTensor> {
        let _call = Calling::of("z_loss");
        self.logits.logsumexp(1, false)?.square()?.mean_all()
    }
}
