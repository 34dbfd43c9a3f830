//! Running an exchange.

use crate::geometry::is_run;
use crate::{Array, Fingerprint, MeshComm, RedistributeError, Result};
use shard_comm::{
    AgreedError, Buffer, DType, Direct, ExchangePlan, Handle, Monoid, Request, Scalar, Stage,
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
    pub(super) staged: Option<Box<Staged>>,
    /// Whether no rank needs anything from another, known from layouts alone: there is no communication.
    pub(crate) local: bool,
    /// Where each region begins in the destination, and its shape.
    pub(super) regions: Vec<(usize, Dims)>,
    pub(crate) len: usize,
    pub(crate) fill: Option<Scalar>,
    pub(crate) fold: Option<Monoid>,
}

/// The stages of an exchange, each of which reads what the one before left.
#[derive(Debug)]
pub(super) struct Staged {
    /// Each with the number of elements that it leaves this rank.
    stages: Vec<(Arc<ExchangePlan>, usize)>,
    /// The same operation as one exchange.
    direct: Direct,
}

impl Staged {
    /// Stages in place of the exchange `whole`.
    pub(super) fn new(whole: &ExchangePlan, stages: impl Iterator<Item = Exchange>) -> Self {
        let stages: Vec<_> = stages.map(|stage| (stage.plan, stage.len)).collect();
        // Ranks that choose other stages, or none, are told so.
        let ids = stages.iter().map(|(plan, _)| plan.id);
        let id = ids.fold(Fingerprint::new("staged").with(&whole.id), |id, stage| {
            id.with(&stage)
        });
        let mut direct = whole.clone();
        direct.id = id.finish();
        Self {
            stages,
            direct: Direct::new(move || direct.clone()),
        }
    }
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

    /// The pieces, for inspection: from whom each comes, whichever ranks it [passes through](Self::stages).
    pub fn plan(&self) -> &ExchangePlan {
        &self.plan
    }

    /// What runs: the plan itself, or the stages in which pieces pass through other ranks.
    pub fn stages(&self) -> impl ExactSizeIterator<Item = &ExchangePlan> {
        let staged = self.staged.as_ref().map_or(&[][..], |s| &s.stages);
        (0..staged.len().max(1)).map(|at| staged.get(at).map_or(&*self.plan, |(plan, _)| plan))
    }

    /// Elements that this rank holds between the stages.
    pub fn between(&self) -> usize {
        let staged = self.staged.as_ref().and_then(|s| s.stages.split_last());
        staged.map_or(0, |(_, before)| before.iter().map(|(_, len)| len).sum())
    }

    /// Elements this rank receives from others.
    pub fn received(&self, index: usize) -> usize {
        let received = |plan: &ExchangePlan| plan.remote_elements(index);
        self.stages().map(received).sum()
    }

    /// Starts the exchange: posts this rank's sources and returns at once.
    ///
    /// # Collective
    /// All members of the mesh, with the same exchange; nobody communicates if [`is_local`](Self::is_local).
    ///
    /// # Errors
    /// What the communicator or the device reports.
    #[track_caller]
    pub fn start(
        &self,
        cx: &Rc<MeshComm>,
        dtype: DType,
        sources: &[Buffer],
    ) -> Result<ExchangeHandle> {
        if self.local {
            return self
                .run_local(cx, dtype, sources)
                .map(ExchangeHandle::Ready);
        }
        let Some(comm) = cx.all() else {
            return Err(RedistributeError::NotMember {
                op: self.name,
                rank: cx.rank(),
            });
        };
        if let Some(staged) = &self.staged {
            let request = self.staged_request(staged, cx, dtype, sources)?;
            return Ok(ExchangeHandle::Flying(comm.post(request)?));
        }
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
        Ok(ExchangeHandle::Flying(comm.post(Request {
            status: status.map_err(Box::new),
            ..request
        })?))
    }

    /// The request of the stages, or of a rank that has no memory for them.
    #[track_caller]
    fn staged_request(
        &self,
        staged: &Staged,
        cx: &MeshComm,
        dtype: DType,
        sources: &[Buffer],
    ) -> Result<Request> {
        let site = Location::caller();
        let targets = (staged.stages.iter()).map(|(_, len)| cx.device().alloc(dtype, *len));
        let (targets, status) = match targets.collect::<std::result::Result<Vec<_>, _>>() {
            Ok(targets) => (targets, Ok(())),
            Err(error) => {
                let none = || cx.device().alloc(dtype, 0);
                let none = staged.stages.iter().map(|_| none());
                let status = Err(Box::new(AgreedError::from_local(self.name, error)));
                (none.collect::<std::result::Result<_, _>>()?, status)
            }
        };
        let all = staged.stages.iter().zip(targets);
        let stages = all.map(|((plan, _), target)| Stage {
            plan: Arc::clone(plan),
            target: Target::Write(target),
        });
        let request = Request::exchange(self.plan.clone(), sources, Target::Nothing, site);
        Ok(Request {
            stages: stages.collect(),
            dtype: Some(dtype),
            direct: Some(staged.direct.clone()),
            status,
            ..request
        })
    }

    /// Starts the exchange and waits for it to end.
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

    /// Copies between this rank's own buffers. The result shares storage where it is one run of one source.
    fn run_local(&self, cx: &MeshComm, dtype: DType, sources: &[Buffer]) -> Result<Buffer> {
        let len = self.len;
        if let (1, Some(piece)) = (self.plan.recv.len(), self.plan.recv.first())
            && piece.numel() == len
            // Folded into a fill it is another.
            && (self.plan.fold.is_none() || self.plan.fill.is_none())
            && piece.dst_offset == 0
            && is_run(piece.shape, piece.src_strides)
            && is_run(piece.shape, piece.dst_strides)
        {
            return Ok(sources[piece.source].slice(piece.src_offset..piece.src_offset + len));
        }
        let device = cx.device();
        let mut dst = device.alloc(dtype, len)?;
        self.plan.run_alone(device, sources, &mut dst)?;
        Ok(dst.freeze())
    }
}

/// An exchange in flight.
#[must_use = "the destination is returned by `wait`"]
#[derive(Debug)]
pub enum ExchangeHandle {
    /// Nothing had to be communicated.
    Ready(Buffer),
    /// In flight.
    Flying(Handle),
}

impl ExchangeHandle {
    /// Completes this rank's reads and returns the destination.
    ///
    /// # Errors
    /// What the communicator reports.
    pub fn wait(self) -> Result<Buffer> {
        match self {
            Self::Ready(buffer) => Ok(buffer),
            Self::Flying(handle) => Ok(handle.wait()?),
        }
    }

    /// Whether anything is in flight.
    pub fn is_flying(&self) -> bool {
        matches!(self, Self::Flying(_))
    }
}

/// Starts an exchange over arrays of one mesh.
pub(crate) fn start(
    exchange: &Exchange,
    cx: &Rc<MeshComm>,
    arrays: &[&Array],
) -> Result<ExchangeHandle> {
    let dtype = arrays[0].dtype();
    let buffers: Vec<Buffer> = arrays.iter().filter_map(|a| a.buffer().cloned()).collect();
    exchange.start(cx, dtype, &buffers)
}
