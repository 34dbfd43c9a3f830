//! Scaled dot product attention: `softmax(scale · q kᵀ + mask) v`, without storing a matrix of queries by keys.
//!
//! Queries, batch and heads are map factors; the keys are a [ring](crate::Access::Ring) factor. Where keys are sharded,
//! [`FoldBy`](crate::FoldBy) says how they meet the queries; mesh axes that shard the keys and not the queries shard the
//! queries too. Masks that are functions of positions use global ones, so blocks may be uneven, empty or of several intervals:
//! under a causal mask [`Partition::zigzag`](shard_spec::Partition::zigzag) gives every rank nearly the same work, where the later
//! of two halves has one and a half of its share, and the last of many parts twice; explanations say so. For the
//! gradient the result and one log-sum-exp per query are saved; the gradients of keys and values go back to their owners block
//! by block. A gradient that is recorded, to be differentiated, is made of ops that have derivatives, and stores that matrix.

pub(crate) mod advice;
mod backward;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod facing;
mod forward;
mod options;
mod rule;
mod segments;
mod weights;
mod whole;

#[cfg(feature = "cuda")]
pub(crate) use backward::Backward;

pub use options::{Attention, Causal};
pub use segments::{TokenSegments, attention_by_segment};
pub use weights::attention_weights;

pub(crate) use forward::Forward;

use rule::Masks;

use crate::families::shape::reshape;
use crate::{Exec, OpError, Result, Value};
use shard_spec::Dims;
use smallvec::smallvec;
use std::sync::Arc;

/// Attention of queries `[batch, heads, queries, dim]` to keys `[batch, kv heads, keys, dim]` with values
/// `[batch, kv heads, keys, value dim]`: the result is `[batch, heads, queries, value dim]`.
///
/// The number of heads is a multiple of that of kv heads; each kv head serves as many consecutive heads. The mask is broadcast to
/// `[batch, heads, queries, keys]`: a mask of bools says which keys count, and one of the queries' type is added to the logits.
/// A key whose logit is -∞, by a mask or by itself, is not seen, and queries that see no key get zeros. The value of a hidden
/// key must still be finite.
///
/// # Collective
/// All members of the mesh. Nothing moves where keys are not sharded; otherwise as the table of [`FoldBy`](crate::FoldBy) says.
/// The gradient of a gradient communicates, and holds, as products and softmax of the [weights](attention_weights) do.
///
/// # Errors
/// Shapes or types that do not fit each other.
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
///     let y = attention(&*engine, &x, &x, &x, None, &Attention::new().causal(Causal::TopLeft)).unwrap();
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
    apply(exec, [q, k, v], mask, None, options)
}

/// Attention, of queries and keys that may be of segments.
fn apply(
    exec: &dyn Exec,
    [q, k, v]: [&Value; 3],
    mask: Option<&Value>,
    segments: Option<&[Value; 2]>,
    options: &Attention,
) -> Result<Value> {
    check(q, k, options)?;
    let mask = as_four_dims(exec, mask)?;
    let op = Forward {
        options: *options,
        masks: Masks {
            mask: mask.as_ref().map(|m| m.dtype()),
            segments: segments.is_some(),
        },
    };
    let operands: Vec<&Value> = [q, k, v]
        .into_iter()
        .chain(&mask)
        .chain(segments.into_iter().flatten())
        .collect();
    let [out, _] = exec.apply_n(Arc::new(op), &operands)?;
    Ok(out)
}

/// Refuses options that make no sense.
fn check(q: &Value, k: &Value, options: &Attention) -> Result<()> {
    let wrong = |problem: String, fix: &'static str| OpError::Shape {
        op: NAME,
        problem,
        shapes: vec![q.shape().to_vec(), k.shape().to_vec()],
        fix,
    };
    if let Some((rate, _)) = options.dropout
        && !(0.0..1.0).contains(&rate)
    {
        return Err(wrong(
            format!("a dropout rate of {rate}"),
            "give a rate from 0 on and below 1",
        ));
    }
    match options.scale.filter(|scale| !scale.is_finite()) {
        None => Ok(()),
        Some(scale) => Err(wrong(
            format!("logits times {scale}"),
            "give a finite scale",
        )),
    }
}

/// A mask with dims of 1 for those that it lacks.
fn as_four_dims(exec: &dyn Exec, mask: Option<&Value>) -> Result<Option<Value>> {
    match mask {
        Some(mask) if mask.ndim() < 4 => {
            let mut shape: Dims = smallvec![1; 4 - mask.ndim()];
            shape.extend(mask.shape().iter().copied());
            reshape(exec, mask, &shape).map(Some)
        }
        other => Ok(other.cloned()),
    }
}

const NAME: &str = "attention";
