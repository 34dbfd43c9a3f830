//! Texts that the sources of kernels are made of: they stand in front of each family's own text.

/// Boxes of memory: `View` as [`CudaView`](super::CudaView) lays it out, and how its elements are found.
pub const VIEW: &str = include_str!("view.cuh");
/// Global positions of a box's indices: `Positions`.
pub(crate) const POSITIONS: &str = include_str!("positions.cuh");
/// Random numbers by position: the generator of [`Stream`](crate::rng::Stream).
pub(crate) const PHILOX: &str = include_str!("philox.cuh");
/// Products of tiles by units for matrices.
pub(crate) const TILES: &str = include_str!("tiles.cuh");
/// Windows of convolutions and pools: `Window`.
pub(crate) const WINDOWS: &str = include_str!("windows.cuh");

/// A source of kernels: the constant texts that are given, with the vocabulary for [views](crate::cuda::CudaView) in front.
///
/// ```
/// use shard_comm::cuda::KernelSource;
/// use shard_ops::cuda_source;
///
/// const TWICE: KernelSource = cuda_source!(
///     "twice",
///     "struct Params { View x; View y; };\n
///      KERNEL(twice, Params) {
///          for (i64 i = first_thread(); i < numel(p.y); i += threads()) {
///              element<f64>(p.y, place(p.y, i)) = 2 * element<f64>(p.x, place(p.x, i));
///          }
///      }"
/// );
/// assert!(TWICE.text.ends_with("}"));
/// ```
#[macro_export]
macro_rules! cuda_source {
    ($name:expr, $($text:expr),+ $(,)?) => {{
        const PARTS: &[&str] = &[$crate::cuda::VIEW, $($text),+];
        const BYTES: [u8; $crate::cuda::joined_len(PARTS)] = $crate::cuda::joined(PARTS);
        const TEXT: &str = match ::core::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("texts joined are text"),
        };
        $crate::cuda::KernelSource {
            name: $name,
            text: TEXT,
            exact: false,
        }
    }};
}

/// Bytes of texts joined by line breaks.
#[doc(hidden)]
pub const fn joined_len(parts: &[&str]) -> usize {
    let (mut len, mut part) = (parts.len() - 1, 0);
    while part < parts.len() {
        len += parts[part].len();
        part += 1;
    }
    len
}

/// Texts joined by line breaks.
#[doc(hidden)]
pub const fn joined<const N: usize>(parts: &[&str]) -> [u8; N] {
    let mut bytes = [b'\n'; N];
    let (mut at, mut part) = (0, 0);
    while part < parts.len() {
        let text = parts[part].as_bytes();
        let mut i = 0;
        while i < text.len() {
            bytes[at + i] = text[i];
            i += 1;
        }
        at += text.len() + 1;
        part += 1;
    }
    bytes
}
