//! Memory, views and devices, by what a user of the crate can call.

mod buffer;
mod copy;
#[cfg(feature = "cuda")]
mod cuda;
mod dtype;
mod error;
mod fold;
mod host;
mod reduce;
mod stream;
mod test_device;
mod view;
