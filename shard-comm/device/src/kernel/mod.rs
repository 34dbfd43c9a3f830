//! The operations of the host on memory, for every device whose memory it can reach: fill, copy, convert, fold.
//!
//! All of these walk two views of one shape together. The module `nest` turns the views into as few loops as possible, with the
//! destination's smallest step innermost. A function pointer does the work on the elements; it is chosen by types and operation
//! before the loops (`copy`, `fold`, `reduce`; `arithmetic` has the operations, `half_float` the conversions of `f16`, `convert` the vectors for them). Such a function is compiled once for each
//! pair of types or each operation, with only the loops that it needs to be fast. Copies know no types, only sizes (`turn` has those
//! in which rows become columns, `row` those of rows that follow each other closely). What no cache
//! would hold until it is read is written past them (`stream`).
//!
//! Elements are given as aligned bytes. The caller has checked that the views lie within them (see [`check`](crate::check)); a
//! view that reaches past its bytes panics.

mod arithmetic;
mod convert;
mod copy;
mod fold;
pub(crate) mod half_float;
mod nest;
mod reduce;
mod row;
mod stream;
mod tree;
mod turn;

pub use copy::{convert_run, copy, copy_run, fill};
pub use fold::{check_fold, fold};
#[cfg(feature = "cuda")]
pub(crate) use nest::Nest;
pub use reduce::reduce;
pub use tree::by_tree;
