//! What a case is: a step, what bounds it, and how its result is checked.

use crate::harness::TOLERANCE;
use crate::numbers::fill;
use shard_comm::{DType, DeviceRef, Strided};
use shard_kernels::gemm::{Mat, MatMut, gemm};
use shard_tensor::{Context, DeviceKind, Result, replicate};
use std::any::Any;
use std::hint::black_box;

/// What is done once; what it returns is dropped after the clock has been read.
pub(crate) type Step = Box<dyn FnMut() -> Result<Box<dyn Any>>>;

/// A step from a function.
pub(crate) fn step<T: 'static>(mut f: impl FnMut() -> Result<T> + 'static) -> Step {
    Box::new(move || Ok(Box::new(f()?)))
}

/// How far the result is from what it should be, on the ranks that know. All ranks call it.
pub(crate) type Check = Box<dyn FnOnce() -> Result<Option<f64>>>;

/// A case on one rank.
pub(crate) struct Bench {
    pub(crate) step: Step,
    pub(crate) limit: Option<Limit>,
    pub(crate) check: Option<Check>,
    pub(crate) work: Option<Work>,
    /// How many numbers the model learns that it trains, which a peer's must learn too.
    pub(crate) parameters: Option<usize>,
    /// What a peer that begins with the same numbers must find too: losses of the first steps, or a sum over the result.
    pub(crate) found: Vec<f64>,
    /// How far this may be from what others find, as a share.
    pub(crate) tolerance: f64,
}

impl Bench {
    /// A case that is only timed.
    pub(crate) fn new<T: 'static>(f: impl FnMut() -> Result<T> + 'static) -> Self {
        Self {
            step: step(f),
            limit: None,
            check: None,
            work: None,
            parameters: None,
            found: Vec::new(),
            tolerance: TOLERANCE,
        }
    }

    pub(crate) fn limit(self, limit: Limit) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }

    pub(crate) fn check(self, check: impl FnOnce() -> Result<Option<f64>> + 'static) -> Self {
        Self {
            check: Some(Box::new(check)),
            ..self
        }
    }

    pub(crate) fn work(self, work: Work) -> Self {
        Self {
            work: Some(work),
            ..self
        }
    }

    pub(crate) fn parameters(self, count: usize) -> Self {
        Self {
            parameters: Some(count),
            ..self
        }
    }
}

/// What the ranks do together in one call.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Flops(f64),
    Bytes(f64),
}

/// What bounds a case.
pub(crate) struct Limit {
    pub(crate) kind: &'static str,
    pub(crate) step: Step,
    /// How many times as long as the step the limit is.
    pub(crate) scale: f64,
}

impl Limit {
    pub(crate) fn new<T: 'static>(
        kind: &'static str,
        f: impl FnMut() -> Result<T> + 'static,
    ) -> Self {
        Self {
            kind,
            step: step(f),
            scale: 1.0,
        }
    }

    /// A copy of this many bytes to warm memory on this rank: on a GPU the driver's own, from device to device.
    pub(crate) fn memcpy(ctx: &Context, bytes: usize) -> Result<Self> {
        if ctx.device().kind().is_cuda() {
            return Self::device_copy(ctx.device(), bytes);
        }
        let from: Vec<f32> = (0..bytes / 4).map(|i| (i % 1021) as f32).collect();
        let mut to = from.clone();
        Ok(Self::new("memcpy", move || {
            black_box(&mut to).copy_from_slice(black_box(&from));
            Ok(())
        }))
    }

    /// A copy of this many bytes from one place of a device's memory to another.
    pub(crate) fn device_copy(device: &DeviceRef, bytes: usize) -> Result<Self> {
        let (device, all) = (device.clone(), Strided::contiguous(&[bytes / 4]));
        let mut from = device.alloc(DType::F32, bytes / 4)?;
        device.fill(&mut from, &all, shard_comm::Scalar::F64(1.0))?;
        let (from, mut to) = (from.freeze(), device.alloc(DType::F32, bytes / 4)?);
        Ok(Self::new("d2d copy", move || {
            Ok(device.copy(&from, &all, &mut to, &all)?)
        }))
    }

    /// As many operations on this rank as this, at the rate of matrix products: on the host of those that fit the caches, on a
    /// GPU of the library's own in single precision.
    pub(crate) fn gemm_rate(ctx: &Context, flops: f64) -> Result<Self> {
        let scale = |n: usize| flops / (2 * n * n * n) as f64;
        if ctx.device().kind().is_cuda() {
            let n = match ctx.device().kind() {
                DeviceKind::Cuda => 4096,
                _ => 32,
            };
            let mesh = ctx.mesh_of(ctx.world_size())?.with_dtype(DType::F32);
            let own = |seed| fill(&mesh, &[n, n], [replicate()], seed)?.to_local();
            let (a, b) = (own(1)?, own(2)?);
            return Ok(Self {
                kind: "own matmul",
                scale: scale(n),
                step: step(move || a.matmul(&b)),
            });
        }
        const N: usize = 768;
        let a: Vec<f32> = (0..N * N).map(|i| (i % 13) as f32 / 13.0).collect();
        let mut c = a.clone();
        Ok(Self {
            kind: "gemm rate",
            scale: scale(N),
            step: step(move || {
                let (a, b) = (Mat::row_major(&a, N), Mat::row_major(&a, N));
                let to = MatMut::row_major(black_box(&mut c), N);
                gemm(N, N, N, a, b, to, false);
                Ok(())
            }),
        })
    }
}
