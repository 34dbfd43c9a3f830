//! Neighbourhood attention: every query attends to the keys of a window around it, in any number of spatial dims.
//!
//! Queries are `[batch, spatial..., heads, dim]`, keys `[batch, spatial..., kv heads, dim]`, values
//! `[batch, spatial..., kv heads, value dim]`, with any strides. Heads are a multiple of kv heads, and query head `h` reads kv
//! head `h / (heads / kv heads)`. Which keys a query sees is a function of *global* indices ([`Near`]), so boxes may be cut
//! anywhere. Wherever a box begins, a query's sums run in the order of its window, and a key's sums in one order of the queries.
//!
//! Queries of a line, along the longest dim of the grid, are computed side by side, a lane each: logits, their softmax and their
//! gradients need no sums across lanes. For these, queries and keys are turned, a line of keys once for all lines of queries that
//! meet it. Lanes look at places side by side: near an end of the grid, where windows are shifted inwards, those beyond it stand for
//! the keys at the other end of the window, so a query's logits are there in another order than its keys, which is the same for all
//! boxes. Sums of values, and gradients, have elements of a head in lanes.
//!
//! The gradients with respect to queries and to keys are separate kernels: the first needs the keys around its queries, the
//! second the queries around its keys, and neither adds to what another rank has.

mod backward;
mod block;
mod forward;
mod lanes;
mod near;
mod rows;
mod sums;

pub(crate) use backward::CompiledNearGrad;
pub use backward::{KeyGrads, QueryGrads, grad_keys, grad_queries};
pub(crate) use forward::CompiledNear;
pub use forward::forward;
pub use near::Near;
