//! Data that is read where it lies: arrays in files, of which each rank reads the boxes it has, and batches of samples.
//!
//! - [`load_npy`] and [`save_npy`] are for NumPy's files; with the feature `npz`, `load_npz` is for several of them in one.
//! - with the feature `zarr`, `load_zarr` is for Zarr stores of version 2 and 3, of which a rank reads the chunks that its box
//!   touches.
//! - [`load`] is for anything else that implements [`Source`].
//! - a [`Loader`] makes batches of the samples of a source, or of several, in an order of its own, while the program computes.
//!
//! There is no reader of NetCDF and HDF5 here: the crates that are used most link C libraries behind one lock for all
//! threads, and those in Rust alone are young. Convert such files to Zarr, or implement [`Source`] with the crate of your choice, in a
//! dozen lines.

mod batches;
mod loader;
mod npy;
#[cfg(feature = "npz")]
mod npz;
pub(crate) mod order;
mod source;
#[cfg(feature = "zarr")]
mod zarr;
#[cfg(feature = "npz")]
mod zip;

pub use loader::{Batches, Loader};
pub use npy::{Npy, NpyError, load_npy, npy_bytes, save_npy};
#[cfg(feature = "npz")]
pub use npz::{load_npz, npz_names};
pub use shard_spec::DimPart;
pub use source::{DataError, Source, load};
#[cfg(feature = "zarr")]
pub use zarr::{Zarr, load_zarr};
