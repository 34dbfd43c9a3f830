//! The moves of a device as launches: fill, copy, convert, fold, reduce.
#![expect(
    unsafe_code,
    reason = "launches this crate's own kernels on views that were checked"
)]

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::{Cuda, KernelSource, type_name};
use crate::kernel::Nest;
use crate::{Buffer, BufferMut, DType, Device, Element, Monoid, Result, Scalar, Strided};
use crate::{dispatch_dtype, view::steps_apart};
use shard_spec::ReduceOp;

pub(super) const SOURCE: KernelSource = KernelSource {
    name: "strided",
    text: include_str!("source/strided.cu"),
    exact: true,
};

const MAX_AXES: usize = 8;
const MAX_PIECES: usize = 15;
const MAX_TERMS: usize = 64;

/// As in `strided.cu`, like every structure below that is `repr(C)`.
#[derive(Clone, Copy, Default, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Axis {
    extent: i64,
    src: i64,
    dst: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Piece {
    src: u64,
    src_at: i64,
    dst_at: i64,
    count: i64,
    axes: i32,
    serial: i32,
    turns: i64,
    axis: [Axis; MAX_AXES],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Pieces {
    dst: u64,
    threads: i64,
    pieces: i32,
    pad: i32,
    piece: [Piece; MAX_PIECES],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Fill {
    value: u64,
    pieces: Pieces,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Term {
    src: u64,
    at: i64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Terms {
    dst: u64,
    more: u64,
    threads: i64,
    terms: i32,
    pad: i32,
    piece: Piece,
    term: [Term; MAX_TERMS],
}

/// A checked pair of views: where each begins, and the loops over both.
#[derive(Clone, Debug, PartialEq)]
struct Walk {
    src_at: i64,
    dst_at: i64,
    axes: Vec<Axis>,
    /// The first of the axes that each thread goes through by itself, one element after the other.
    serial: usize,
}

impl Walk {
    /// The loops of two views whose elements combine in groups of `width`; `None` if the views are empty.
    fn new(sv: &Strided, dv: &Strided, width: usize) -> Option<Self> {
        let nest = Nest::new(sv, dv)?;
        let mut walk = Self {
            src_at: nest.src() as i64,
            dst_at: nest.dst() as i64,
            axes: nest
                .axes()
                .map(|(extent, src, dst)| Axis {
                    extent: extent as i64,
                    src: src as i64,
                    dst: dst as i64,
                })
                .collect(),
            serial: 0,
        };
        if let (Some(last), true) = (walk.axes.last_mut(), width > 1) {
            let width = width as i64;
            last.extent /= width;
            last.src *= width;
            last.dst *= width;
        }
        walk.serial = walk.axes.len();
        if !nest.is_free() {
            walk.serialise();
        }
        Some(walk)
    }

    /// Leaves to each thread the axes along which the destination does not move; or all axes, if the destination also overlaps
    /// along others.
    fn serialise(&mut self) {
        // Stable: the order within either part is the row-major one that folds promise.
        self.axes.sort_by_key(|axis| axis.dst == 0);
        let moving: Vec<Axis> = (self.axes.iter().copied())
            .take_while(|axis| axis.dst != 0)
            .collect();
        let shape: Vec<usize> = moving.iter().map(|a| a.extent as usize).collect();
        let steps: Vec<isize> = moving.iter().map(|a| a.dst as isize).collect();
        if steps_apart(&shape, &steps) {
            self.serial = moving.len();
        } else {
            self.serial = 0;
        }
    }

    /// Adds these loops as pieces. A piece has at most as many axes as a kernel takes: further axes are unrolled here.
    fn pieces(&self, src: u64, into: &mut Vec<Piece>) {
        if self.axes.len() > MAX_AXES {
            let mut inner = self.clone();
            let outer = inner.axes.remove(0);
            inner.serial = inner.serial.saturating_sub(1);
            for i in 0..outer.extent {
                inner.src_at = self.src_at + i * outer.src;
                inner.dst_at = self.dst_at + i * outer.dst;
                inner.pieces(src, into);
            }
            return;
        }
        let mut axis = [Axis::default(); MAX_AXES];
        axis[..self.axes.len()].copy_from_slice(&self.axes);
        let numel = |axes: &[Axis]| axes.iter().map(|a| a.extent).product();
        into.push(Piece {
            src,
            src_at: self.src_at,
            dst_at: self.dst_at,
            count: numel(&self.axes[..self.serial]),
            axes: self.axes.len() as i32,
            serial: self.serial as i32,
            turns: numel(&self.axes[self.serial..]),
            axis,
        });
    }

    /// How many elements can be moved as one: a divisor of `most` that also divides row lengths, starts and all other steps.
    fn grain(&self, most: i64) -> i64 {
        let Some((row, outer)) = self.axes.split_last() else {
            return 1;
        };
        if (row.src, row.dst) != (1, 1) || self.serial < self.axes.len() {
            return 1;
        }
        let mut grain = most;
        let mut divides = |n: i64| {
            while n % grain != 0 {
                grain /= 2;
            }
        };
        divides(row.extent);
        divides(self.src_at);
        divides(self.dst_at);
        for axis in outer {
            divides(axis.src);
            divides(axis.dst);
        }
        grain
    }

    /// The same elements, `grain` at a time.
    fn coarsen(&mut self, grain: i64) {
        self.src_at /= grain;
        self.dst_at /= grain;
        if let Some((row, outer)) = self.axes.split_last_mut() {
            row.extent /= grain;
            for axis in outer {
                axis.src /= grain;
                axis.dst /= grain;
            }
        }
    }
}

/// A type of this size, for elements that are only moved.
fn bits(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "u128",
    }
}

/// The number of a monoid in `strided.cu`.
fn number(op: Monoid) -> usize {
    match op {
        Monoid::Op(ReduceOp::Sum) => 0,
        Monoid::Op(ReduceOp::Prod) => 1,
        Monoid::Op(ReduceOp::Max) => 2,
        Monoid::Op(ReduceOp::Min) => 3,
        Monoid::Op(ReduceOp::Any) => 4,
        Monoid::Op(ReduceOp::All) => 5,
        Monoid::Moments => 6,
        Monoid::MaxSumExp => 7,
        Monoid::ArgMax => 8,
        Monoid::ArgMin => 9,
    }
}

impl Cuda {
    pub(super) fn fill_view(
        &self,
        dst: &mut BufferMut,
        view: &Strided,
        value: Scalar,
    ) -> Result<()> {
        let Some(walk) = Walk::new(view, view, 1) else {
            return Ok(());
        };
        let dtype = dst.dtype();
        let mut value_bits = [0u8; 8];
        dispatch_dtype!(dtype, T => {
            let value = T::from_scalar(value);
            value_bits[..dtype.size()].copy_from_slice(bytemuck::bytes_of(&value));
        });
        let defines = format!("#define FILL\n#define DST {}\n", bits(dtype.size()));
        let kernel = self.kernel(&SOURCE, &defines, "fill")?;
        let mut pieces = Vec::new();
        walk.pieces(0, &mut pieces);
        let to = self.address_mut(dst)?;
        for pieces in batches(&pieces, to) {
            let params = Fill {
                value: u64::from_ne_bytes(value_bits),
                pieces,
            };
            // SAFETY: the structure is that of `fill`; the view was checked against the buffer, which is only written.
            unsafe { self.launch(kernel, pieces.threads as usize, &params, &[]) }?;
        }
        self.writes(dst)
    }

    /// Copies checked views; where they overlap in the destination, any of them wins.
    pub(super) fn copy_views(
        &self,
        views: &[(&Buffer, &Strided, &Strided)],
        dst: &mut BufferMut,
    ) -> Result<()> {
        let Some(&(first, ..)) = views.first() else {
            return Ok(());
        };
        if views.iter().any(|v| v.0.dtype() != first.dtype()) {
            for view in views {
                self.copy_views(std::slice::from_ref(view), dst)?;
            }
            return Ok(());
        }
        let (from, to_type) = (first.dtype(), dst.dtype());
        if let ([(src, sv, dv)], true) = (views, from == to_type)
            && sv.is_contiguous()
            && dv.is_contiguous()
        {
            return self.copy_run(src, sv, dst, dv);
        }
        let mut walks = Vec::with_capacity(views.len());
        for &(src, sv, dv) in views {
            if let Some(mut walk) = Walk::new(sv, dv, 1) {
                // Addresses are those of whole memories, which are aligned, so grains are aligned too.
                walk.src_at += src.offset() as i64;
                walk.dst_at += dst.offset() as i64;
                walks.push((src, walk));
            }
        }
        let (defines, name) = if from == to_type {
            let most = (16 / from.size()) as i64;
            let grain = walks.iter().map(|(_, walk)| walk.grain(most)).min();
            let grain = grain.unwrap_or(1);
            for (_, walk) in &mut walks {
                walk.coarsen(grain);
            }
            let unit = bits(from.size() * grain as usize);
            (
                format!("#define COPY\n#define SRC {unit}\n#define DST {unit}\n"),
                "copy",
            )
        } else {
            let (src, dst) = (type_name(from), type_name(to_type));
            (
                format!("#define CONVERT\n#define SRC {src}\n#define DST {dst}\n"),
                "convert",
            )
        };
        let to = self.address_mut(dst)? - (dst.offset() * to_type.size()) as u64;
        let (mut pieces, mut reads) = (Vec::new(), Vec::with_capacity(walks.len()));
        for (src, walk) in &walks {
            let start = self.address(src)? - (src.offset() * from.size()) as u64;
            walk.pieces(start, &mut pieces);
            reads.push(*src);
        }
        let kernel = self.kernel(&SOURCE, &defines, name)?;
        for pieces in batches(&pieces, to) {
            // SAFETY: the structure is that of both kernels; the views were checked against their buffers.
            unsafe { self.launch(kernel, pieces.threads as usize, &pieces, &reads) }?;
        }
        self.writes(dst)
    }

    /// Copies elements that lie side by side in both buffers: the driver's own copy.
    fn copy_run(
        &self,
        src: &Buffer,
        sv: &Strided,
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        let (size, count) = (src.dtype().size(), sv.numel());
        if count == 0 {
            return Ok(());
        }
        let from = self.address(src)? + (sv.offset * size) as u64;
        let to = self.address_mut(dst)? + (dv.offset * size) as u64;
        self.driver
            .copy(from, to, count * size)
            .map_err(|r| self.refused(r))?;
        self.has_read(&[src])?;
        self.writes(dst)
    }

    pub(super) fn fold_view(
        &self,
        op: Monoid,
        src: &Buffer,
        sv: &Strided,
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        let Some(walk) = Walk::new(sv, dv, op.width()) else {
            return Ok(());
        };
        let kernel = self.kernel(&SOURCE, &fold_defines(op, src.dtype(), dst.dtype()), "fold")?;
        let (from, to) = (self.address(src)?, self.address_mut(dst)?);
        let mut pieces = Vec::new();
        walk.pieces(from, &mut pieces);
        // Unrolled pieces may share elements, which pieces of one launch must not.
        let together = if walk.axes.len() > MAX_AXES {
            1
        } else {
            MAX_PIECES
        };
        for pieces in pieces.chunks(together) {
            for pieces in batches(pieces, to) {
                // SAFETY: the structure is that of `fold`; the views were checked against their buffers.
                unsafe { self.launch(kernel, pieces.threads as usize, &pieces, &[src]) }?;
            }
        }
        self.writes(dst)
    }

    pub(super) fn reduce_views(
        &self,
        op: Monoid,
        terms: &[(&Buffer, usize)],
        strides: &[isize],
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        let Some(&(_, first)) = terms.first() else {
            return Ok(());
        };
        let sv = Strided::new(first, dv.shape.clone(), strides.into());
        let Some(walk) = Walk::new(&sv, dv, op.width()) else {
            return Ok(());
        };
        let dtype = dst.dtype();
        let kernel = self.kernel(&SOURCE, &fold_defines(op, dtype, dtype), "reduce")?;
        let to = self.address_mut(dst)?;
        let mut all = Vec::with_capacity(terms.len());
        for &(term, at) in terms {
            all.push(Term {
                src: self.address(term)?,
                at: walk.src_at + at as i64 - first as i64,
            });
        }
        let (near, far) = all.split_at(all.len().min(MAX_TERMS));
        let table = self.upload(DType::U8, bytemuck::cast_slice(far))?;
        let mut term = [Term::zeroed(); MAX_TERMS];
        term[..near.len()].copy_from_slice(near);
        let mut reads: Vec<&Buffer> = terms.iter().map(|t| t.0).collect();
        reads.push(&table);
        let mut pieces = Vec::new();
        walk.pieces(0, &mut pieces);
        for piece in pieces {
            // An unrolled axis moves the source, and with it every term.
            let shift = piece.src_at - walk.src_at;
            let mut term = term;
            for term in &mut term {
                term.at += shift;
            }
            let params = Terms {
                dst: to,
                more: self.address(&table)?,
                threads: piece.count,
                terms: terms.len() as i32,
                pad: 0,
                piece,
                term,
            };
            // SAFETY: the structure is that of `reduce`; terms and view were checked against their buffers.
            unsafe { self.launch(kernel, piece.count as usize, &params, &reads) }?;
        }
        self.writes(dst)
    }

    pub(super) fn move_within(
        &self,
        buffer: &mut BufferMut,
        from: Range<usize>,
        to: usize,
    ) -> Result<()> {
        let n = from.len();
        let (dtype, base) = (buffer.dtype(), self.address_mut(buffer)?);
        let mut staged = self.alloc(dtype, n)?;
        let stage = self.address_mut(&mut staged)?;
        let unit = bits(dtype.size());
        let defines = format!("#define COPY\n#define SRC {unit}\n#define DST {unit}\n");
        let kernel = self.kernel(&SOURCE, &defines, "copy")?;
        let row = Strided::contiguous(&[n]);
        let Some(walk) = Walk::new(&row, &row, 1) else {
            return Ok(());
        };
        let at = |start: usize| base + (start * dtype.size()) as u64;
        for (src, dst) in [(at(from.start), stage), (stage, at(to))] {
            let mut pieces = Vec::new();
            walk.pieces(src, &mut pieces);
            for pieces in batches(&pieces, dst) {
                // SAFETY: the structure is that of `copy`; both ranges were checked, and the stage has room for one.
                unsafe { self.launch(kernel, pieces.threads as usize, &pieces, &[]) }?;
            }
        }
        self.writes(buffer)
    }
}

fn fold_defines(op: Monoid, from: DType, to: DType) -> String {
    format!(
        "#define OP {}\n#define WIDTH {}\n#define SRC {}\n#define DST {}\n",
        number(op),
        op.width(),
        type_name(from),
        type_name(to),
    )
}

/// The pieces in launches, each with as many pieces as fit.
fn batches(pieces: &[Piece], dst: u64) -> impl Iterator<Item = Pieces> + '_ {
    pieces.chunks(MAX_PIECES).map(move |some| {
        let mut piece = [Piece::zeroed(); MAX_PIECES];
        piece[..some.len()].copy_from_slice(some);
        Pieces {
            dst,
            threads: some.iter().map(|p| p.count).sum(),
            pieces: some.len() as i32,
            pad: 0,
            piece,
        }
    })
}
