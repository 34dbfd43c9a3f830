//! How the work on cells of elements, such as sums of them, is divided between threads.

use super::{CudaCall, CudaView, KernelSource};
use crate::Result;
use bytemuck::Pod;
use shard_comm::cuda::Cuda;

/// Cells from which on each thread has one of its own, if they lie side by side.
const COLUMNS: usize = 32;
/// Elements of a cell, for each thread of a block, up to which a few lanes are enough for it.
const BY_LANES: usize = 4;
/// The elements of a cell that a thread has at least, where the cell is divided.
const LEAST: usize = 8;
/// Blocks that keep all of a GPU busy.
const BLOCKS: usize = 1024;

/// Who works on cells: a thread each (`columns`), or a team each (`cells`). A cell is cut into as many parts as it takes to keep all of
/// a GPU busy; what each part came to is joined by another kernel (`joined`). It depends on extents alone, so sums are the same in every
/// run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    /// The parts of a cell.
    pub(crate) parts: usize,
    cells: usize,
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Threads,
    Lanes,
    Blocks,
}

impl Division {
    /// The division of `cells`, each of as many elements as `along` has.
    pub(crate) fn new(call: &CudaCall<'_>, cells: &CudaView, along: &CudaView) -> Self {
        let cells = cells.merged();
        let last = (cells.ndim - 1).max(0) as usize;
        let side_by_side = cells.ndim > 0 && cells.strides[last] == 1;
        Self::of(call, cells.numel(), along.numel(), side_by_side)
    }

    /// The division of `cells` of `each` elements; whether neighbours in memory belong to different cells.
    pub(crate) fn of(call: &CudaCall<'_>, cells: usize, each: usize, side_by_side: bool) -> Self {
        let by = match () {
            () if side_by_side && cells >= COLUMNS => By::Threads,
            () if are_short(call.gpu, each) => By::Lanes,
            () => By::Blocks,
        };
        Self::by(call, by, cells, each)
    }

    /// The division of `cells` of `each` elements for kernels of threads alone.
    pub(crate) fn of_threads(call: &CudaCall<'_>, cells: usize, each: usize) -> Self {
        Self::by(call, By::Threads, cells, each)
    }

    fn by(call: &CudaCall<'_>, by: By, cells: usize, each: usize) -> Self {
        let block = call.gpu.block() as usize;
        let (teams, members) = match by {
            By::Threads => (BLOCKS * block, 1),
            // What is short is not cut.
            By::Lanes => (0, 1),
            By::Blocks => (BLOCKS, block),
        };
        let parts = (teams / cells.max(1)).min(each / (LEAST * members));
        Self {
            parts: parts.max(1),
            cells,
            by,
        }
    }

    /// The number of values that are found of parts; 0 if they are not joined by a kernel of their own.
    pub(crate) fn found(&self) -> usize {
        match self.parts {
            1 => 0,
            parts => parts * self.cells,
        }
    }

    /// Queues the kernel that finds what every part comes to: `columns` or `cells`.
    pub(crate) fn launch<P: Pod>(
        &self,
        call: &CudaCall<'_>,
        source: &KernelSource,
        defines: &str,
        params: &P,
    ) -> Result<()> {
        self.launch_as(call, source, defines, ["columns", "cells"], params)
    }

    /// [`launch`](Self::launch) by kernels of these names, of threads and of teams.
    pub(crate) fn launch_as<P: Pod>(
        &self,
        call: &CudaCall<'_>,
        source: &KernelSource,
        defines: &str,
        [by_threads, by_teams]: [&str; 2],
        params: &P,
    ) -> Result<()> {
        let items = self.parts * self.cells;
        match self.by {
            By::Threads => call.launch_own(source, defines, by_threads, items, params),
            by => {
                let lanes = by == By::Lanes;
                launch_teams(call, source, defines, by_teams, items, lanes, params)
            }
        }
    }

    /// Queues the kernel that joins what parts came to, `joined`, if there are several.
    pub(crate) fn join<P: Pod>(
        &self,
        call: &CudaCall<'_>,
        source: &KernelSource,
        defines: &str,
        params: &P,
    ) -> Result<()> {
        self.join_as(call, source, defines, "joined", params)
    }

    /// [`join`](Self::join) by a kernel of this name.
    pub(crate) fn join_as<P: Pod>(
        &self,
        call: &CudaCall<'_>,
        source: &KernelSource,
        defines: &str,
        name: &str,
        params: &P,
    ) -> Result<()> {
        if self.parts == 1 {
            return Ok(());
        }
        let lanes = are_short(call.gpu, self.parts);
        launch_teams(call, source, defines, name, self.cells, lanes, params)
    }
}

/// Queues a kernel with a team for each of some items: lanes, or a block.
pub(crate) fn launch_teams<P: Pod>(
    call: &CudaCall<'_>,
    source: &KernelSource,
    defines: &str,
    name: &str,
    items: usize,
    lanes: bool,
    params: &P,
) -> Result<()> {
    let threads = call.gpu.block();
    let (teams, by_lanes) = match lanes {
        true => (threads / call.gpu.lanes(), "#define BY_LANES\n"),
        false => (1, ""),
    };
    let blocks = [items.div_ceil(teams as usize).min(1 << 16) as u32, 1, 1];
    let defines = format!("{by_lanes}{defines}");
    call.launch_own_blocks(source, &defines, name, blocks, threads, params)
}

/// Whether a few lanes are enough for so many elements.
pub(crate) fn are_short(gpu: &Cuda, elements: usize) -> bool {
    elements <= BY_LANES * gpu.block() as usize
}
