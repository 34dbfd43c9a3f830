//! Scaled dot product attention: `softmax(scale · q kᵀ + mask) v`, without a matrix of queries by keys.
//!
//! Queries, batch and heads are map factors; the keys are a [ring](Access::Ring) factor. Where keys are sharded, [`FoldBy`] says how
//! they meet the queries; where queries do not use the keys' axes, they take them. Masks that are functions of positions look at global ones, so blocks may be
//! uneven, empty or of several intervals: under a causal mask [`Partition::zigzag`](shard_spec::Partition::zigzag) gives every
//! rank nearly the same work. Saved for the gradient are the result and one log-sum-exp per query; the gradients of keys and
//! values go home block by block.

use crate::elementwise::{cast, stored_types};
use crate::host::{Held, partial_type, positions, with_stored};
use crate::kernels::attention::{
    AttentionGrad, AttentionState, Band, Block, BlockGrad, Dropout, PausedGrad, Queries, Stored,
    merge,
};
use crate::kernels::{Positions, View};
use crate::moves::reshape;
use crate::rng::Stream;
use crate::{
    Access, Exec, FoldBy, HostCall, Linearity, Meta, Op, OpError, OperandBox, Reduction, Result,
    Rule, Saved, Value, key_of,
};
use shard_comm::{Bool, DType, Element};
use shard_spec::{DimPart, Dims, ReduceOp};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// What a query sees, and how the keys reach it.
///
/// ```
/// use shard_ops::attention::{Attention, Causal};
/// let recent = Attention::default().causal(Causal::TopLeft).window(128, 0).scale(0.125);
/// # let _ = recent;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    scale: Option<f64>,
    causal: Option<Causal>,
    window: Option<(usize, usize)>,
    dropout: Option<(f64, Stream)>,
    fold_by: FoldBy,
}

/// With which key the causal mask aligns a query where there are not as many of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Causal {
    /// The first query with the first key, as PyTorch's `is_causal`.
    TopLeft,
    /// The last query with the last key, as in decoding with a cache.
    BottomRight,
}

impl Attention {
    /// Multiplies the logits by this instead of `1 / sqrt(dim)`.
    #[must_use]
    pub fn scale(self, scale: f64) -> Self {
        Self {
            scale: Some(scale),
            ..self
        }
    }

    /// Hides the keys that come after a query.
    #[must_use]
    pub fn causal(self, causal: Causal) -> Self {
        Self {
            causal: Some(causal),
            ..self
        }
    }

    /// Hides keys more than `left` before or `right` after a query; aligned as the causal mask is, or top left.
    #[must_use]
    pub fn window(self, left: usize, right: usize) -> Self {
        Self {
            window: Some((left, right)),
            ..self
        }
    }

    /// Drops each probability with this chance, below 1, and divides what stays by the chance of staying. Which ones is a
    /// function of the stream and of (batch, head, query, key), the same under any layout; take a new stream for every call.
    #[must_use]
    pub fn dropout(self, rate: f64, stream: Stream) -> Self {
        Self {
            dropout: Some((rate, stream)),
            ..self
        }
    }

    /// Says how sharded keys meet the queries; the cheapest way, if not said.
    #[must_use]
    pub fn fold_by(self, fold_by: FoldBy) -> Self {
        Self { fold_by, ..self }
    }

    /// The keys a query sees, of so many of both.
    fn band(&self, queries: usize, keys: usize) -> Band {
        let offset = match self.causal {
            Some(Causal::BottomRight) => keys as i64 - queries as i64,
            _ => 0,
        };
        let causal = self.causal.map_or(Band::ALL, |_| Band::causal());
        let window = self.window.map_or(Band::ALL, |(l, r)| Band::window(l, r));
        causal.and(window).shifted(offset)
    }

    fn key(&self, name: &str) -> u128 {
        let scale = self.scale.map(f64::to_bits);
        let rate = self.dropout.map(|(rate, _)| rate.to_bits());
        // Not of the stream: what is dropped changes nothing about what moves, and every call has another one.
        key_of(name, &(scale, self.causal, self.window, rate, self.fold_by))
    }
}

/// Attention of queries `[batch, heads, queries, dim]` to keys `[batch, kv heads, keys, dim]` with values
/// `[batch, kv heads, keys, value dim]`: the result is `[batch, heads, queries, value dim]`.
///
/// Heads are a multiple of kv heads, each of which serves as many consecutive heads. The mask is broadcast to
/// `[batch, heads, queries, keys]`: a bool one says which keys count, one of the queries' type is added to the logits. Queries
/// that see no key get zeros. A hidden key's value must still be finite.
///
/// # Collective
/// All members of the mesh. Nothing where keys are not sharded; else as the table of [`FoldBy`] says.
///
/// # Errors
/// Shapes or types that do not belong together.
///
/// ```
/// use shard_ops::attention::{Attention, Causal, attention};
/// # use shard_comm::Communicator;
/// # use shard_redistribute::{Array, MeshComm};
/// # use shard_ops::{Engine, EngineOptions, Value};
/// # use shard_spec::{DeviceMesh, Layout};
/// # use std::rc::Rc;
/// let sums = shard_comm::local::run(3, |comm| {
///     let world: Rc<dyn Communicator> = Rc::new(comm);
///     let mesh = DeviceMesh::new(&[3]).unwrap();
///     let cx = MeshComm::new(&world, &mesh).unwrap();
///     let engine = Engine::new(EngineOptions::default());
///     // Seven tokens in a zigzag: rank 0 holds the first two and the last.
///     let tokens = Layout::parse(&mesh, &[1, 1, 7, 2], "S(2)[0:2,1:1,2:2,1:1,0:1]").unwrap();
///     let x = Array::from_fn(&cx, &tokens, |i| (i[2] as f64 - 3.0) / (1.0 + i[3] as f64)).unwrap();
///     let x = Value::new(x);
///     let y = attention(&*engine, &x, &x, &x, None, &Attention::default().causal(Causal::TopLeft)).unwrap();
///     assert_eq!(y.layout(), x.layout());
///     y.array().to_vec::<f64>().unwrap()[0]
/// })
/// .unwrap();
/// // The first token sees only itself.
/// assert_eq!(sums[0], -3.0);
/// ```
pub fn attention(
    exec: &dyn Exec,
    q: &Value,
    k: &Value,
    v: &Value,
    mask: Option<&Value>,
    options: &Attention,
) -> Result<Value> {
    if let Some((rate, _)) = options.dropout
        && !(0.0..1.0).contains(&rate)
    {
        return Err(OpError::Shape {
            op: NAME,
            problem: format!("a dropout rate of {rate}"),
            shapes: vec![q.shape().to_vec(), k.shape().to_vec()],
            fix: "give a rate from 0 on and below 1",
        });
    }
    let mask = match mask {
        Some(mask) if mask.ndim() < 4 => {
            let mut shape: Dims = smallvec![1; 4 - mask.ndim()];
            shape.extend(mask.shape().iter().copied());
            Some(reshape(exec, mask, &shape)?)
        }
        other => other.cloned(),
    };
    let op = Forward {
        options: *options,
        mask: mask.as_ref().map(|m| m.dtype()),
    };
    let operands: Vec<&Value> = [Some(q), Some(k), Some(v), mask.as_ref()]
        .into_iter()
        .flatten()
        .collect();
    let mut outputs = exec.apply(Arc::new(op), &operands)?;
    outputs.truncate(1);
    outputs.pop().ok_or_else(|| OpError::Arity {
        op: NAME,
        expected: "an output".into(),
        got: 0,
    })
}

const NAME: &str = "attention";

#[derive(Clone, Copy, Debug)]
struct Forward {
    options: Attention,
    mask: Option<DType>,
}

/// The operands' extents, checked.
struct Extents {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    value_dim: usize,
}

impl Extents {
    fn new(q: &Meta, k: &Meta, v: &Meta, mask: Option<&Meta>) -> Result<Self> {
        let shapes = || -> Vec<Vec<usize>> {
            let all = [Some(q), Some(k), Some(v), mask].into_iter().flatten();
            all.map(|m| m.shape.to_vec()).collect()
        };
        let wrong = |problem: &str, fix: &'static str| OpError::Shape {
            op: NAME,
            problem: problem.to_owned(),
            shapes: shapes(),
            fix,
        };
        if [q, k, v].iter().any(|m| m.shape.len() != 4) {
            return Err(wrong(
                "queries, keys and values have four dims",
                "give [batch, heads, sequence, dim], reshaping what has fewer dims",
            ));
        }
        let at = Self {
            batch: q.shape[0],
            heads: q.shape[1],
            kv_heads: k.shape[1],
            queries: q.shape[2],
            keys: k.shape[2],
            dim: q.shape[3],
            value_dim: v.shape[3],
        };
        let agree = k.shape[0] == at.batch && k.shape[3] == at.dim && v.shape[..3] == k.shape[..3];
        if !agree {
            return Err(wrong(
                "queries, keys and values do not belong together",
                "give keys of the queries' batch and dim, and as many values as keys",
            ));
        }
        let grouped =
            at.heads == at.kv_heads || (at.kv_heads > 0 && at.heads.is_multiple_of(at.kv_heads));
        if !grouped {
            return Err(wrong(
                "the heads of the keys do not divide those of the queries",
                "give heads that are a multiple of the key-value heads",
            ));
        }
        let full = [at.batch, at.heads, at.queries, at.keys];
        if let Some(mask) = mask {
            let fits = mask.shape.len() == 4
                && mask.shape.iter().zip(full).all(|(&m, n)| m == n || m == 1);
            if !fits {
                return Err(wrong(
                    "the mask does not broadcast to [batch, heads, queries, keys]",
                    "give a mask whose extents are those or 1",
                ));
            }
        }
        Ok(at)
    }

    /// Floating-point operations per batch entry, kv head, query and key, for so many products with keys and with values.
    fn flops(&self, with_keys: usize, with_values: usize) -> f64 {
        2.0 * self.group() as f64 * (with_keys * self.dim + with_values * self.value_dim) as f64
    }

    /// Heads per kv head.
    fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(1).max(1)
    }
}

/// The factors and accesses that both directions share.
struct Accesses {
    query: Vec<Access>,
    key: Vec<Access>,
    sums: Vec<Access>,
    mask: Option<Vec<Access>>,
}

/// Adds the factors of attention to a rule, and says how its operands are indexed.
fn accesses(rule: &mut crate::RuleBuilder, at: &Extents, mask: Option<&Meta>) -> Accesses {
    let batch = Access::factor(rule.factor(at.batch));
    let heads = rule.factor(at.kv_heads);
    let queries = rule.factor(at.queries);
    let keys = Access::Ring {
        factor: rule.factor(at.keys),
        instead: Some(queries),
    };
    let rest = Access::Whole {
        instead: Some(queries),
    };
    let grouped = Access::Factor {
        factor: heads,
        block: at.group(),
    };
    let rows = [batch.clone(), grouped.clone(), Access::factor(queries)];
    let pairs = [
        batch.clone(),
        grouped,
        Access::factor(queries),
        keys.clone(),
    ];
    let full = [at.batch, at.heads, at.queries, at.keys];
    Accesses {
        query: rows.iter().cloned().chain([rest.clone()]).collect(),
        key: vec![batch, Access::factor(heads), keys, rest],
        sums: rows.to_vec(),
        mask: mask.map(|mask| {
            let dims = pairs.iter().zip(full).zip(&mask.shape);
            dims.map(|((access, n), &m)| {
                if m == 1 && n != 1 {
                    Access::WHOLE
                } else {
                    access.clone()
                }
            })
            .collect()
        }),
    }
}

/// The operands' common type.
fn types(inputs: &[Meta], mask: Option<DType>) -> Result<DType> {
    let added = mask.is_some_and(|m| m != DType::Bool);
    stored_types(NAME, &inputs[..3 + usize::from(added)])
}

impl Op for Forward {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        self.options.key(NAME)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let count = 3 + usize::from(self.mask.is_some());
        if inputs.len() != count {
            return Err(OpError::Arity {
                op: NAME,
                expected: count.to_string(),
                got: inputs.len(),
            });
        }
        let dtype = types(inputs, self.mask)?;
        let at = Extents::new(&inputs[0], &inputs[1], &inputs[2], inputs.get(3))?;
        let mut rule = Rule::builder(NAME, inputs)
            .any_order()
            .fold_by(self.options.fold_by);
        let a = accesses(&mut rule, &at, inputs.get(3));
        let rule = rule
            .input(a.query.clone())
            .input(a.key.clone())
            .input(a.key);
        let rule = match a.mask {
            Some(mask) => rule.input(mask),
            None => rule,
        };
        let shape = smallvec![at.batch, at.heads, at.queries];
        rule.output(
            a.query,
            smallvec![at.batch, at.heads, at.queries, at.value_dim],
            dtype,
        )
        .output(a.sums, shape, partial_type(dtype))
        .linearity(Linearity::None)
        .flops(at.flops(1, 1))
        .merges()
        .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.inputs[0].dtype(), E => self.fold::<E>(call));
    }

    fn merge(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.dtype(), E => merge_parts::<E>(call));
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let inputs = saved.inputs.len();
        let Some(dout) = &cotangents[0] else {
            return Ok(vec![None; inputs]);
        };
        let op = Backward {
            options: self.options,
            mask: self.mask,
            wants_mask: self.mask.is_some_and(|m| m != DType::Bool) && saved.needs[3],
        };
        let operands: Vec<&Value> = saved
            .inputs
            .iter()
            .chain(&saved.outputs[..2])
            .chain([dout])
            .collect();
        let grads = exec.apply(Arc::new(op), &operands)?;
        // Sums over ranks and blocks are taken in the type they are made in, then rounded once.
        let rounded = |grad: Value| cast(exec, &grad, saved.inputs[0].dtype()).map(Some);
        let mut grads: Vec<Option<Value>> =
            grads.into_iter().map(rounded).collect::<Result<_>>()?;
        grads.resize(inputs, None);
        Ok(grads)
    }
}

impl Forward {
    fn fold<E: Stored + Element>(&self, call: &mut HostCall<'_, '_>)
    where
        E::Acc: Element + Stored<Acc = E::Acc>,
    {
        let boxes = &call.cx.inputs;
        let facing = Facing::new(&self.options, boxes);
        let problem = facing.problem(call.input::<E>(0));
        let block = block(call, self.mask, facing.keys.get());
        let shape = &boxes[0].shape;
        let rows = [shape[0], shape[1], shape[2]];
        let mut state = match call
            .state
            .take()
            .map(|s| s.downcast::<AttentionState<E::Acc>>())
        {
            Some(Ok(state)) => *state,
            _ => AttentionState::new(rows, boxes[2].shape[3]),
        };
        state.fold(&problem, &block);
        if call.cx.fold.last {
            let mut lse = vec![<E::Acc as num_traits::Zero>::zero(); rows.iter().product()];
            // Partial results that are merged later are kept in the type of the sums.
            if call.dtype() == E::DTYPE {
                state.finish(&mut call.output::<E>(0), &mut lse);
            } else {
                state.finish(&mut call.output::<E::Acc>(0), &mut lse);
            }
            call.output::<E::Acc>(1).data_mut()[..lse.len()].copy_from_slice(&lse);
        } else {
            *call.state = Some(Box::new(state));
        }
    }
}

/// The results of all keys from those of each part, side by side.
fn merge_parts<E: Stored + Element>(call: &mut HostCall<'_, '_>)
where
    E::Acc: Element,
{
    let (outs, sums) = (call.input::<E::Acc>(0), call.input::<E::Acc>(1));
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let (outs, sums) = (
        &outs.data()[..count(outs.shape())],
        &sums.data()[..count(sums.shape())],
    );
    let (mut out, mut lse) = call.output_pair::<E, E::Acc>();
    let rows = count(lse.shape());
    merge(outs, sums, &mut out, &mut lse.data_mut()[..rows]);
}

/// Which probabilities are dropped: those whose word of the stream, numbered by their place in
/// `[batch, heads, queries, keys]`, is below the rate.
struct Dropped {
    stream: Stream,
    rate: f64,
    /// The smallest word that is kept.
    least: u32,
    /// Global numbers of the batch entries and heads of the call.
    batch: DimPart,
    heads: DimPart,
    /// Extents of the whole problem.
    all_heads: u64,
    queries: u64,
    keys: u64,
}

impl Dropout for Dropped {
    fn kept(&self) -> f64 {
        1.0 - self.rate
    }

    fn keep(&self, batch: usize, head: usize, query: i64, keys: &[i64], keep: &mut [bool]) {
        let (batch, head) = (
            self.batch.index(batch) as u64,
            self.heads.index(head) as u64,
        );
        let row = (batch * self.all_heads + head) * self.queries + query as u64;
        let mut block = None;
        for (keep, &key) in keep.iter_mut().zip(keys) {
            let at = row * self.keys + key as u64;
            let words = match block {
                Some((number, words)) if number == at / 4 => words,
                _ => self.stream.words(at / 4),
            };
            block = Some((at / 4, words));
            *keep = words[(at % 4) as usize] >= self.least;
        }
    }
}

impl Attention {
    /// What is dropped of the queries in a box against so many keys in all.
    fn dropped(&self, queries: &OperandBox, keys: usize) -> Option<Dropped> {
        let (rate, stream) = self.dropout?;
        Some(Dropped {
            stream,
            rate,
            least: (rate * 4_294_967_296.0) as u32,
            batch: queries.held[0].clone(),
            heads: queries.held[1].clone(),
            all_heads: queries.global[1] as u64,
            queries: queries.global[2] as u64,
            keys: keys as u64,
        })
    }
}

/// How the queries and the keys of a call lie to each other.
struct Facing<'a> {
    options: &'a Attention,
    queries: Held,
    keys: Held,
    band: Band,
    dropped: Option<Dropped>,
}

impl<'a> Facing<'a> {
    /// Of the boxes of queries and keys.
    fn new(options: &'a Attention, boxes: &[OperandBox]) -> Self {
        let (queries, keys) = (boxes[0].global[2], boxes[1].global[2]);
        Self {
            options,
            queries: positions(&boxes[0], 2),
            keys: positions(&boxes[1], 2),
            band: options.band(queries, keys),
            dropped: options.dropped(&boxes[0], keys),
        }
    }

    fn problem<'b, E: Stored>(&'b self, q: View<'b, E>) -> Queries<'b, E> {
        let mut queries = Queries::new(q, self.queries.get()).band(self.band);
        if let Some(scale) = self.options.scale {
            queries = queries.scale(scale);
        }
        match &self.dropped {
            Some(dropped) => queries.dropout(dropped),
            None => queries,
        }
    }
}

/// The keys and values of a call, with what masks them.
fn block<'a, E: Stored + Element>(
    call: &HostCall<'a, '_>,
    mask: Option<DType>,
    positions: Positions<'a>,
) -> Block<'a, E> {
    let block = Block::new(call.input::<E>(1), call.input::<E>(2), positions);
    match mask {
        None => block,
        Some(DType::Bool) => block.allow(call.input::<Bool>(3)),
        Some(_) => block.bias(call.input::<E>(3)),
    }
}

/// The gradient: inputs are those of the op, its outputs and the cotangent.
#[derive(Clone, Copy, Debug)]
struct Backward {
    options: Attention,
    mask: Option<DType>,
    wants_mask: bool,
}

impl Op for Backward {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn key(&self) -> u128 {
        self.options.key(if self.wants_mask {
            "attention_grad with mask"
        } else {
            "attention_grad"
        })
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let mask = self.mask.is_some().then(|| &inputs[3]);
        let dtype = partial_type(types(inputs, self.mask)?);
        let at = Extents::new(&inputs[0], &inputs[1], &inputs[2], mask)?;
        let mut rule = Rule::builder(self.name(), inputs)
            .any_order()
            .fold_by(self.options.fold_by);
        let a = accesses(&mut rule, &at, mask);
        let mut rule = rule
            .input(a.query.clone())
            .input(a.key.clone())
            .input(a.key.clone());
        if let Some(dims) = &a.mask {
            rule = rule.input(dims.clone());
        }
        rule = rule
            .input(a.query.clone())
            .input(a.sums)
            .input(a.query.clone())
            .output(a.query, inputs[0].shape.clone(), dtype)
            .output(a.key.clone(), inputs[1].shape.clone(), dtype)
            .output(a.key, inputs[2].shape.clone(), dtype);
        if let (true, Some(dims), Some(mask)) = (self.wants_mask, a.mask, mask) {
            rule = rule.output(dims, mask.shape.clone(), dtype);
        }
        rule.reduction(Reduction::Partial(ReduceOp::Sum))
            .flops(at.flops(3, 2))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.inputs[0].dtype(), E => self.fold::<E>(call));
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &[Option<Value>]) -> Result<Vec<Option<Value>>> {
        Err(OpError::NoVjp {
            op: self.name(),
            operand: 0,
        })
    }
}

impl Backward {
    fn fold<E: Stored + Element>(&self, call: &mut HostCall<'_, '_>)
    where
        E::Acc: Element + Stored<Acc = E::Acc>,
    {
        let boxes = &call.cx.inputs;
        let facing = Facing::new(&self.options, boxes);
        let problem = facing.problem(call.input::<E>(0));
        let block = block(call, self.mask, facing.keys.get());
        let first = 3 + usize::from(self.mask.is_some());
        let dout = call.input::<E>(first + 2);
        let paused = call
            .state
            .take()
            .map(|s| s.downcast::<PausedGrad<E::Acc>>());
        let mut grad = match paused {
            Some(Ok(paused)) => AttentionGrad::resume(*paused, dout),
            _ => {
                let lse = call.input::<E::Acc>(first + 1);
                let rows: usize = lse.shape().iter().product();
                let lse = &lse.data()[call.cx.inputs[first + 1].offset..][..rows];
                AttentionGrad::new(dout, &call.input::<E>(first), lse, boxes[0].shape[3])
            }
        };
        // What lies over the keys is another block's each time; the gradient of a mask that all keys share is not.
        let shared =
            |o: &OperandBox| o.global.len() == 4 && o.global[3] == 1 && boxes[1].global[2] > 1;
        let first = call.cx.fold.first;
        let fresh: SmallVec<[bool; 3]> = (call.cx.outputs[1..].iter().enumerate())
            .map(|(o, at)| first || o < 2 || !shared(at))
            .collect();
        let mut outputs = call.outputs_from::<E::Acc>(1).into_iter();
        for (view, starts) in outputs.as_mut_slice().iter_mut().zip(fresh) {
            if starts {
                view.data_mut().fill(<E::Acc as num_traits::Zero>::zero());
            }
        }
        let (Some(dk), Some(dv)) = (outputs.next(), outputs.next()) else {
            unreachable!("the rule has these outputs")
        };
        let dbias = outputs.next();
        grad.fold(&problem, &block, &mut BlockGrad { dk, dv, dbias });
        if call.cx.fold.last {
            grad.finish(&mut call.output::<E::Acc>(0));
        } else {
            *call.state = Some(Box::new(grad.pause()));
        }
    }
}
