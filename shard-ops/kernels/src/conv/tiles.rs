//! Convolutions of `bf16` by a [unit](crate::gemm::Unit) that multiplies tiles.
//!
//! A tile of inputs has numbers of 32 channels at 16 places. What is packed of a block of the input has all rows and columns that
//! the block's outputs read, one after the other, so that the inputs of consecutive outputs lie one after the other whatever the position in
//! the kernel: a position is a distance, and the unit reads tiles from there, which nobody copies. Between the last output of
//! a row and the first of the next lie as many places as a window reaches beyond its first; what is computed there is dropped. Zeros at the end of
//! a whole row are those at the beginning of the next, and likewise of planes and images: there are fewer places between then, which
//! matters for small images. Where it takes less time, some images lie side by side at each column (`order.rs`), and a tile is multiplied by
//! those positions alone that read an input for one of its outputs (`cover.rs`).
//!
//! A stride splits rows and columns into phases, each packed by itself. Where there are few channels, the positions of the last dims of the
//! kernel take their place: each is a channel of its own, packed from where it reads, and all dims of it make a matrix of windows.
//!
//! ```text
//! 4 x 4 inputs of 2 x 2 outputs with 3 x 3 positions:      place   0 1 2 3 | 4 5 6 7 | 8 9 ..
//!                                                          output  a b - - | c d
//! position (1, 2) is 4 + 2 places ahead:                   reads   6 7     | 10 11
//! ```
//!
//! Sums over channels and positions are in `f32`, in one order wherever a block begins. The unit takes products below 2^-126 for zero.

mod cover;
mod forward;
mod images;
mod order;
mod pack;
mod plan;
mod weight_grad;

pub(super) use forward::correlate;
pub(super) use weight_grad::weight_grad;

/// Channels of a step of the unit.
const DEPTH: usize = 32;
/// Rows and columns of its results.
const SIDE: usize = 32;
