//! Running an exchange.

use crate::geometry::is_run;
use crate::{Array, MeshComm, RedistributeError, Result};
use shard_comm::{
    AgreedError, Buffer, CommError, DType, ExchangePlan, Handle, Monoid, Request, Scalar, Strided,
    Target,
};
use shard_spec::Dims;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// This rank's part in an exchange, derived once and run often.
#[derive(Debug)]
#[doc(alias = "halo")]
#[doc(alias = "all-to-all")]
pub struct Exchange {
    pub(super) name: &'static str,
    pub(super) plan: Arc<ExchangePlan>,
    /// No rank needs anything from another: no communication, known from layouts alone.
    pub(crate) local: bool,
    /// Where each region begins in the destination, and its shape.
    pub(super) regions: Vec<(usize, Dims)>,
    pub(crate) len: usize,
    pub(crate) fill: Option<Scalar>,
    pub(crate) fold: Option<Monoid>,
}

impl Exchange {
    /// The shape of the destination's first (usually only) region on this rank.
    pub fn local_shape(&self) -> &[usize] {
        &self.regions[0].1
    }

    /// Where each region begins in the destination, and its shape.
    pub fn regions(&self) -> &[(usize, Dims)] {
        &self.regions
    }

    /// Whether no rank needs anything from another, so that running it does not communicate.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// The pieces, for inspection.
    pub fn plan(&self) -> &ExchangePlan {
        &self.plan
    }

    /// Elements this rank receives from others.
    pub fn received(&self, index: usize) -> usize {
        self.plan
            .recv
            .iter()
            .filter(|p| p.peer != index)
            .map(|p| p.numel())
            .sum()
    }

    /// Starts the exchange: posts this rank's sources and returns at once.
    ///
    /// # Collective
    /// All members of the mesh, with the same exchange; nobody communicates if [`is_local`](Self::is_local).
    ///
    /// # Errors
    /// What the communicator or the device reports.
    #[track_caller]
    pub fn start(&self, cx: &Rc<MeshComm>, dtype: DType, sources: &[Buffer]) -> Result<Pending> {
        if self.local {
            return self.run_local(cx, dtype, sources).map(Pending::Ready);
        }
        let Some(comm) = cx.all() else {
            return Err(RedistributeError::NotMember {
                op: self.name,
                rank: cx.rank(),
            });
        };
        let allocated = cx.device().alloc(dtype, self.len);
        // A rank that cannot allocate still joins, with nothing to write to, so that all ranks fail alike.
        let (dst, status) = match allocated {
            Ok(dst) => (dst, Ok(())),
            Err(e) => (
                cx.device().alloc(dtype, 0)?,
                Err(AgreedError::from_local(self.name, e)),
            ),
        };
        let request = Request::exchange(
            self.plan.clone(),
            sources,
            Target::Write(dst),
            Location::caller(),
        );
        let argument = Some(("the calls before it", cx.history()));
        Ok(Pending::Flying(
            comm.post(Request {
                status: status.map_err(Box::new),
                argument,
                ..request
            })?,
            cx.clone(),
        ))
    }

    /// Starts the exchange and waits for it.
    ///
    /// # Collective
    /// As [`start`](Self::start).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[track_caller]
    pub fn run(&self, cx: &Rc<MeshComm>, dtype: DType, sources: &[Buffer]) -> Result<Buffer> {
        self.start(cx, dtype, sources)?.wait()
    }

    /// Copies between this rank's own buffers; shares storage where the result is one run of one source.
    fn run_local(&self, cx: &MeshComm, dtype: DType, sources: &[Buffer]) -> Result<Buffer> {
        let len = self.len;
        if let (1, Some(piece)) = (self.plan.recv.len(), self.plan.recv.first())
            && piece.numel() == len
            && piece.dst_offset == 0
            && is_run(piece.shape, piece.src_strides)
            && is_run(piece.shape, piece.dst_strides)
        {
            return Ok(sources[piece.source].slice(piece.src_offset..piece.src_offset + len));
        }
        let device = cx.device();
        let mut dst = device.alloc(dtype, len)?;
        let identity = self.fold.and_then(|m| m.identity(dtype).first().copied());
        if let Some(value) = self.fill.or(identity) {
            device.fill(&mut dst, &Strided::contiguous(&[len]), value)?;
        }
        for p in self.plan.recv.iter() {
            let (source, from, to) = (&sources[p.source], p.src_view(), p.dst_view());
            match self.fold {
                Some(monoid) => device.fold(monoid, source, &from, &mut dst, &to)?,
                None => device.copy(source, &from, &mut dst, &to)?,
            }
        }
        Ok(dst.freeze())
    }
}

/// An exchange under way.
#[must_use = "the destination is returned by `wait`"]
#[derive(Debug)]
pub enum Pending {
    /// Nothing had to be communicated.
    Ready(Buffer),
    /// In flight, on this mesh.
    Flying(Handle, Rc<MeshComm>),
}

impl Pending {
    /// Completes this rank's reads and returns the destination.
    ///
    /// # Errors
    /// What the communicator reports.
    pub fn wait(self) -> Result<Buffer> {
        match self {
            Self::Ready(buffer) => Ok(buffer),
            Self::Flying(handle, cx) => {
                let result = handle.wait();
                if matches!(result, Err(CommError::Mismatch(_))) {
                    cx.forget();
                }
                Ok(result?)
            }
        }
    }

    /// Whether anything is in flight.
    pub fn is_flying(&self) -> bool {
        matches!(self, Self::Flying(..))
    }
}

/// Starts an exchange over arrays of one mesh.
pub(crate) fn start(exchange: &Exchange, cx: &Rc<MeshComm>, arrays: &[&Array]) -> Result<Pending> {
    let dtype = arrays[0].dtype();
    let buffers: Vec<Buffer> = arrays.iter().filter_map(|a| a.buffer().cloned()).collect();
    exchange.start(cx, dtype, &buffers)
}
