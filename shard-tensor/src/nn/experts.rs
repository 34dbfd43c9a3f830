//! Layers of which each token sees few of many parts.

mod rows;

use self::rows::{Padded, Sorted};
use super::transformer::Activation;
use super::{Linear, Module, uniform};
use crate::{DType, Error, Mesh, Result, RouteBy, ShardTensor, tree};
use shard_comm::Calling;
use shard_spec::DimSharding;

/// A feed-forward layer of many experts, of which each token `[.., width]` passes the few that a router chooses, and is given the sum of what
/// they make of it, weighted by the router's gates. It stands where the two linear layers of a transformer's block stand.
///
/// The router scores a token by a linear layer, `gate`, and the softmax of the scores are its gates: the `top` largest count, of equal ones
/// the first. [`normalized`](Self::normalized) makes those of a token sum to 1, as Mixtral does; without, they are as Switch has them. An
/// expert is two linear layers and what stands [between](Self::activation), ReLU at first, or [`swiglu`](Self::swiglu), without biases unless
/// it is [`biased`](Self::biased). No token is dropped, unless a [`capacity`](Self::capacity) is set.
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
/// Each token costs what its own experts cost, however full others are: a product for each expert, of as many rows as chose it
/// ([`gather_mm`](ShardTensor::gather_mm)). Where ranks have all experts, tokens stay where they are. Where experts are divided, rows go to them,
/// one behind the other; how many each has is read for that, so such a layer waits for its router, and a rank whose experts are liked best for
/// its work. The losses of the [routing](ExpertRouting) keep them about equal. With a capacity nothing is read: all experts have as many
/// rows, some of them empty, and one batched product computes all experts of a rank.
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
    /// `[experts, hidden]`, added to what `w1` makes.
    pub b1: Option<ShardTensor>,
    /// `[experts, width]`, added to what `w2` makes.
    pub b2: Option<ShardTensor>,
    /// `[experts, hidden]`, added to what `w3` makes.
    pub b3: Option<ShardTensor>,
}

tree!(MixtureOfExperts {
    gate,
    w1,
    w2,
    w3,
    b1,
    b2,
    b3
});

const OP: &str = "MixtureOfExperts";

/// What a linear layer of each expert makes of its rows, by weights and biases.
type EachLinear<'a> =
    dyn Fn(&ShardTensor, &ShardTensor, Option<&ShardTensor>) -> Result<ShardTensor> + 'a;

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
            gate: Linear::new(mesh, width, experts)?.without_bias(),
            w1: uniform(mesh, [experts, hidden, width], width)?,
            w2: uniform(mesh, [experts, width, hidden], hidden)?,
            w3: None,
            b1: None,
            b2: None,
            b3: None,
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
        let mesh = self.w1.mesh();
        let b3 = match &self.b1 {
            Some(b1) => Some(uniform(&mesh, b1.shape().to_vec(), width)?),
            None => None,
        };
        let w3 = Some(uniform(&mesh, shape, width)?);
        let activation = |x: &ShardTensor| x.silu();
        Ok(Self {
            w3,
            b3,
            activation,
            ..self
        })
    }

    /// The layer whose linear layers have biases, uniform as their weights are. `"b?"` names them in a [`ParallelPlan`](super::ParallelPlan).
    ///
    /// # Collective
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn biased(self) -> Result<Self> {
        let _call = Calling::of("biased");
        let &[experts, hidden, width] = self.w1.shape() else {
            return Err(self.misfit(&[]));
        };
        let mesh = self.w1.mesh();
        let b3 = match &self.w3 {
            Some(_) => Some(uniform(&mesh, [experts, hidden], width)?),
            None => None,
        };
        Ok(Self {
            b1: Some(uniform(&mesh, [experts, hidden], width)?),
            b2: Some(uniform(&mesh, [experts, width], hidden)?),
            b3,
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
    /// All members of the mesh. Where all experts are on each rank, nothing but what the router needs. Where experts are divided, each rank
    /// asks for the tokens of its experts, each once, and sends what they make of each of them back: rows of the width there, and rows back,
    /// twice again in the backward pass; where tokens are divided too, a scan of a number per expert. Unless there is a
    /// [`capacity`](Self::capacity), how many tokens each has is read; with one, that scan is of a number per expert and choice.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for tokens of another width than the experts' and for weights whose shapes do not belong together; what
    /// the communicator reports.
    #[track_caller]
    pub fn forward_routed(&self, x: &ShardTensor) -> Result<(ShardTensor, ExpertRouting)> {
        self.routed(x, None)
    }

    /// As [`forward_routed`](Self::forward_routed) of tokens of which only those are real where `real`, `[..]` of `bool`, is true, as in a batch
    /// that is padded. The others get zeros, whatever they are, take no room from the real ones, and count in none of the router's numbers.
    ///
    /// # Collective
    /// As [`forward_routed`](Self::forward_routed).
    ///
    /// # Errors
    /// As [`forward_routed`](Self::forward_routed); for a mask that is not `bool`, or has not one for each token.
    #[track_caller]
    pub fn forward_routed_where(
        &self,
        x: &ShardTensor,
        real: &ShardTensor,
    ) -> Result<(ShardTensor, ExpertRouting)> {
        self.routed(x, Some(real))
    }

    #[track_caller]
    fn routed(
        &self,
        x: &ShardTensor,
        real: Option<&ShardTensor>,
    ) -> Result<(ShardTensor, ExpertRouting)> {
        let _call = Calling::of(OP);
        let [experts, width] = self.check(x)?;
        let x = x.reduced()?;
        let all = &x.shape()[..x.ndim() - 1];
        let count = all.iter().product::<usize>();
        let real = match real {
            Some(real) if real.shape() != all => {
                return Err(Error::argument(
                    OP,
                    format!("a mask {all:?}"),
                    format!("{:?}", real.shape()),
                    "say of each token whether it is real",
                ));
            }
            Some(real) => Some(real.reshape([count])?),
            None => None,
        };
        let mut tokens = x.reshape([count, width])?;
        if let Some(real) = &real {
            tokens = real.unsqueeze(1)?.where_(&tokens, 0.0)?;
        }
        let mut routing = self.route(&tokens, real)?;
        let y = match (self.capacity, self.w1.layout_in_use().sharding(0)) {
            (Some(factor), _) => self.with_room(&tokens, &mut routing, (experts, factor))?,
            (None, Some(by_expert)) => self.at_experts(&tokens, &routing, by_expert)?,
            (None, None) => self.in_place(&tokens, &routing)?,
        };
        let y = y.reshape(x.shape().to_vec())?.redistribute(x.layout())?;
        Ok((y, routing))
    }

    /// What experts make of tokens where these are.
    fn in_place(&self, tokens: &ShardTensor, routing: &ExpertRouting) -> Result<ShardTensor> {
        let &[count, width] = tokens.shape() else {
            return Err(self.misfit(tokens.shape()));
        };
        let (top, all) = (self.top, count * self.top);
        let rows = tokens.unsqueeze(1)?.expand([count, top, width])?;
        let expert = routing.experts.reshape([all])?;
        let made = self.of_rows(&rows.reshape([all, width])?, &expert, RouteBy::Auto)?;
        let weighted = made.mul(&routing.gates.reshape([all, 1])?)?;
        weighted.reshape([count, top, width])?.sum(1, false)
    }

    /// What experts make of tokens that come to them.
    fn at_experts(
        &self,
        tokens: &ShardTensor,
        routing: &ExpertRouting,
        by_expert: &DimSharding,
    ) -> Result<ShardTensor> {
        let rows = Sorted::of(self, tokens, routing, by_expert)?;
        let taken = tokens.index_select(0, &rows.token)?;
        // Rows lie with their experts, which shapes do not tell.
        let made = self.of_rows(&taken, &rows.expert, RouteBy::Ask)?;
        let gates = routing.gates.index_select(0, &rows.token)?;
        let weighted = made.mul(&gates.gather(1, &rows.choice)?)?;
        tokens.zeros_like()?.index_add(0, &rows.token, &weighted)
    }

    /// What experts make of rows `[rows, width]`, each of which has one.
    fn of_rows(&self, x: &ShardTensor, expert: &ShardTensor, by: RouteBy) -> Result<ShardTensor> {
        self.of(x, &|x, w, b| {
            let y = x.gather_mm_by(w, expert, (true, by))?;
            match b {
                Some(b) => y.add(&b.index_select(0, expert)?),
                None => Ok(y),
            }
        })
    }

    /// What experts that have room for so many make of tokens that come to them.
    fn with_room(
        &self,
        tokens: &ShardTensor,
        routing: &mut ExpertRouting,
        room: (usize, f64),
    ) -> Result<ShardTensor> {
        let rows = Padded::of(self, tokens, routing, room)?;
        let taken = tokens.index_select(0, &rows.token)?;
        let taken = rows.filled.where_(&taken, 0.0)?;
        let made = self.of(&taken, &|x, w, b| {
            let y = ShardTensor::einsum("eci,eoi->eco", &[x, w])?;
            match b {
                Some(b) => y.add(&b.unsqueeze(1)?),
                None => Ok(y),
            }
        })?;
        let gates = routing.gates.index_select(0, &rows.token)?;
        // What empty rows repeat of a token may be no number.
        let gates = rows.filled.where_(&gates.gather(2, &rows.choice)?, 0.0)?;
        let weighted = rows.filled.where_(&made.mul(&gates)?, 0.0)?;
        tokens.zeros_like()?.index_add(0, &rows.token, &weighted)
    }

    /// What experts make of rows, by what a linear layer makes of them.
    fn of(&self, x: &ShardTensor, linear: &EachLinear<'_>) -> Result<ShardTensor> {
        let hidden = (self.activation)(&linear(x, &self.w1, self.b1.as_ref())?)?;
        let hidden = match &self.w3 {
            Some(w3) => hidden.mul(&linear(x, w3, self.b3.as_ref())?)?,
            None => hidden,
        };
        linear(&hidden, &self.w2, self.b2.as_ref())
    }

    /// The numbers of experts and of features.
    fn check(&self, x: &ShardTensor) -> Result<[usize; 2]> {
        let fits = |w: &ShardTensor, shape: [usize; 3]| w.shape() == shape;
        let all_fit =
            |b: &Option<ShardTensor>, shape: [usize; 2]| b.iter().all(|b| b.shape() == shape);
        let width = x.shape().last().copied();
        if let (&[experts, hidden, inputs], Some(width)) = (self.w1.shape(), width)
            && inputs == width
            && self.gate.weight.shape() == [experts, width]
            && fits(&self.w2, [experts, width, hidden])
            && self.w3.iter().all(|w3| fits(w3, [experts, hidden, width]))
            && all_fit(&self.b1, [experts, hidden])
            && all_fit(&self.b2, [experts, width])
            && all_fit(&self.b3, [experts, hidden])
            && self.top <= experts
        {
            return Ok([experts, width]);
        }
        Err(self.misfit(x.shape()))
    }

    #[track_caller]
    fn misfit(&self, tokens: &[usize]) -> Error {
        let shape = |w: &Option<ShardTensor>| w.as_ref().map(|w| w.shape().to_vec());
        Error::argument(
            OP,
            format!(
                "tokens [.., width], a gate [experts, width], w1 and w3 [experts, hidden, width], w2 [experts, width, hidden], biases, if any, \
                 [experts, hidden] and [experts, width], and {} experts or more",
                self.top
            ),
            format!(
                "{tokens:?}, {:?}, {:?}, {:?}, {:?}, and biases {:?}",
                self.gate.weight.shape(),
                self.w1.shape(),
                shape(&self.w3),
                self.w2.shape(),
                [&self.b1, &self.b2, &self.b3].map(shape)
            ),
            "give tokens as wide as the layer was made for",
        )
    }

    /// What the router says of tokens `[tokens, width]`.
    fn route(&self, tokens: &ShardTensor, real: Option<ShardTensor>) -> Result<ExpertRouting> {
        let logits = self.gate.forward(tokens)?.reduced()?;
        let (best, experts) = logits.topk(self.top, 1, true)?;
        let gates = match self.normalized {
            true => best.softmax(1)?,
            false => logits.softmax(1)?.gather(1, &experts)?,
        };
        let gates = match &real {
            Some(real) => real.unsqueeze(1)?.where_(&gates, 0.0)?,
            None => gates,
        };
        Ok(ExpertRouting {
            logits,
            experts,
            gates,
            kept: None,
            real,
        })
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
    /// Which of the choices found room, `[tokens, top]`, of `bool`; those of tokens that are not real did not. `None` where the layer has no
    /// capacity, so that all did.
    pub kept: Option<ShardTensor>,
    /// Which tokens are real, `[tokens]`, of `bool`. `None` if all are.
    pub real: Option<ShardTensor>,
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
        let (all, experts) = (self.experts.numel(), self.logits.shape()[1]);
        match &self.real {
            None => (self.experts.reshape([all])?).bincount_within(None, experts),
            Some(real) => {
                // Of the others as if there were one more.
                let chosen = real.unsqueeze(1)?.where_(&self.experts, experts as f64)?;
                let counts = chosen.reshape([all])?.bincount_within(None, experts + 1)?;
                counts.narrow(0, ..experts)
            }
        }
    }

    /// The mean over real tokens, which are the first dim.
    fn mean(&self, of: &ShardTensor) -> Result<ShardTensor> {
        let Some(real) = &self.real else {
            return of.mean(0, false);
        };
        let mask = match of.ndim() {
            1 => real.clone(),
            _ => real.unsqueeze(1)?,
        };
        let total = mask.where_(of, 0.0)?.to(DType::F64)?.sum(0, false)?;
        let count = real.sum_all()?.to(DType::F64)?.clamp_min(1.0)?;
        total.div(&count)?.to(of.dtype())
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
            Some(kept) => {
                let dropped = kept.logical_not()?;
                match &self.real {
                    Some(real) => dropped.logical_and(&real.unsqueeze(1)?)?.sum_all(),
                    None => dropped.sum_all(),
                }
            }
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
        let load = self.load()?.to(DType::F64)?;
        let shares = match &self.real {
            None => load.mul_scalar(experts as f64 / choices as f64)?,
            Some(_) => {
                let chosen = load.sum_all()?.clamp_min(1.0)?;
                load.mul_scalar(experts as f64)?.div(&chosen)?
            }
        };
        let probabilities = self.mean(&self.logits.softmax(1)?)?;
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
        self.mean(&self.logits.logsumexp(1, false)?.square()?)
    }
}
