//! Halos that are kept: of what a rank's kernels read of an input around its own piece, only what others have is fetched, and put
//! together with the piece here.
//!
//! Which elements those are does not depend on the op that reads them, nor on whether it computes its interior first. So they are
//! kept with the value, and the next op that reads as far (a gradient by the weight, after the convolution) needs nobody. Of
//! inputs that nothing else reads so, halos go straight to where the kernels read them.

use super::intervals::same_intervals;
use super::site::{Site, Spans};
use crate::error::InOp;
use crate::{Access, Result};
use shard_comm::{Buffer, DeviceRef, Strided};
use shard_redistribute::{Exchange, ExchangeBuilder, Fingerprint};
use shard_spec::{ContentHash as _, DimCover, Dims, Layout, numel, row_major_strides};
use std::ops::Range;

/// Where a rank's own piece of an input and what it fetched go, in the memory that its kernels read.
#[derive(Debug)]
pub(crate) struct Halo {
    /// Which elements of the input are fetched: equal for ops that need the same, and on all ranks.
    pub(crate) key: u128,
    /// From the rank's own piece.
    own: Vec<[Strided; 2]>,
    /// From what was fetched.
    fetched: Vec<[Strided; 2]>,
    len: usize,
}

impl Halo {
    /// What the kernels read.
    pub(crate) fn put_together(
        &self,
        op: &'static str,
        device: &DeviceRef,
        own: &Buffer,
        fetched: &Buffer,
    ) -> Result<Buffer> {
        let mut whole = device.alloc(own.dtype(), self.len).in_op(op)?;
        let parts = [(own, &self.own), (fetched, &self.fetched)];
        let pieces = parts.iter().flat_map(|&(from, pieces)| {
            let pieces = pieces.iter().cloned();
            pieces.map(move |[at, to]| (from, at, to))
        });
        let pieces: Vec<(&Buffer, Strided, Strided)> = pieces.collect();
        device.copy_pieces(&pieces, &mut whole).in_op(op)?;
        Ok(whole.freeze())
    }
}

/// A box of an input in row-major order from `offset` on: its interval of each dim with windows, and of each other dim its extent,
/// which is the same for all boxes of the rank.
struct Placed {
    offset: usize,
    held: Vec<Range<usize>>,
}

impl Site<'_> {
    /// The exchange that fetches what ranks lack of input `i`, and how the `targets`, which lie within what the input covers, are put
    /// together of it, one after the other; nothing unless the operand lies as the choice wants it, halos aside.
    pub(super) fn halo(
        &self,
        i: usize,
        layout: &Layout,
        targets: &[Vec<DimCover>],
    ) -> Option<(Exchange, Halo)> {
        let covers = self.covers_with_halos(i, &Spans::Full);
        let inner = self.held_of(i, layout, &covers)?;
        let regions = regions_around(&self.windowed(i), &covers, &inner);
        let mut all = regions.iter().cloned();
        let first = ExchangeBuilder::new(self.rule.name, self.mesh, all.next()?);
        let exchange = all
            .fold(first, ExchangeBuilder::region)
            .source(self.source(i, layout))
            .build(self.index);
        let key = Fingerprint::new("halo").with(&layout.hash128());
        let key = (covers.iter()).fold(key, |key, cover| key.with(&cover.content_hash()));
        let own: Vec<DimCover> = (0..layout.ndim())
            .map(|d| DimCover::of(layout, d))
            .collect();
        let own = self.placed(i, &own, 0);
        let mut halo = Halo {
            key: key.finish(),
            own: Vec::new(),
            fetched: Vec::new(),
            len: 0,
        };
        for target in targets {
            let target = self.placed(i, target, halo.len);
            halo.own.extend(own.common(&target));
            for (region, (base, _)) in regions.iter().zip(exchange.regions()) {
                let region = self.placed(i, region, *base);
                halo.fetched.extend(region.common(&target));
            }
            halo.len += target.numel();
        }
        let size = |pieces: &[[Strided; 2]]| -> usize {
            pieces.iter().map(|[from, _]| numel(&from.shape)).sum()
        };
        assert_eq!(size(&halo.own) + size(&halo.fetched), halo.len);
        Some((exchange, halo))
    }

    /// The dims of input `i` that are read through windows.
    fn windowed(&self, i: usize) -> Vec<usize> {
        let dims = self.rule.inputs[i].iter().enumerate();
        dims.filter(|(_, access)| reads_windows(access))
            .map(|(d, _)| d)
            .collect()
    }

    /// Of what ranks cover of input `i` what they hold; nothing if dims without windows lie otherwise than they are wanted, or those
    /// with windows are divided otherwise.
    pub(super) fn held_of(
        &self,
        i: usize,
        layout: &Layout,
        covers: &[DimCover],
    ) -> Option<Vec<DimCover>> {
        let each = self.rule.inputs[i].iter().zip(covers).enumerate();
        each.map(|(d, (access, cover))| {
            if !reads_windows(access) {
                let plain = matches!(access, Access::Factor { .. } | Access::Whole { .. });
                return (plain && same_intervals(cover, layout, d, self.mesh))
                    .then(|| cover.clone());
            }
            let own = match layout.sharding(d) {
                Some(held) if held.axes == cover.axes => {
                    held.partition.contiguous()?.intervals().collect()
                }
                Some(_) => return None,
                None => vec![0..layout.shape()[d]; cover.count()],
            };
            let parts = own.into_iter().enumerate();
            let held = parts.map(|(part, own): (usize, Range<usize>)| {
                let cover = cover.part(part).interval()?;
                let both = own.start.max(cover.start)..own.end.min(cover.end);
                Some(if both.is_empty() {
                    cover.start..cover.start
                } else {
                    both
                })
            });
            Some(DimCover::intervals(
                &cover.axes,
                held.collect::<Option<_>>()?,
            ))
        })
        .collect()
    }

    /// What this rank has of a box of input `i`.
    fn placed(&self, i: usize, covers: &[DimCover], offset: usize) -> Placed {
        let held = self.rule.inputs[i].iter().zip(covers);
        let held = held.map(|(access, cover)| {
            let part = cover.at(self.mesh, &self.coords);
            match part.interval() {
                Some(interval) if reads_windows(access) => interval,
                _ => 0..part.len(),
            }
        });
        Placed {
            offset,
            held: held.collect(),
        }
    }
}

impl Placed {
    fn numel(&self) -> usize {
        self.held.iter().map(Range::len).product()
    }

    /// The elements in common with another box: where they lie in this one, and in that.
    fn common(&self, other: &Self) -> Option<[Strided; 2]> {
        let both = self.held.iter().zip(&other.held);
        let both: Vec<Range<usize>> = both
            .map(|(a, b)| a.start.max(b.start)..a.end.min(b.end))
            .collect();
        let none = both.iter().any(Range::is_empty);
        (!none).then(|| [self.view(&both), other.view(&both)])
    }

    fn view(&self, part: &[Range<usize>]) -> Strided {
        let extents: Dims = self.held.iter().map(Range::len).collect();
        let strides = row_major_strides(&extents);
        let steps = self.held.iter().zip(part).zip(&strides);
        let within: usize = steps
            .map(|((held, part), &s)| (part.start - held.start) * s as usize)
            .sum();
        let shape = part.iter().map(Range::len).collect();
        Strided::new(self.offset + within, shape, strides)
    }
}

/// What lies within the covers around the inner boxes, peeled off dim by dim: before them, after them.
fn regions_around(dims: &[usize], covers: &[DimCover], inner: &[DimCover]) -> Vec<Vec<DimCover>> {
    let mut regions = Vec::with_capacity(2 * dims.len());
    for &d in dims {
        for after in [false, true] {
            let mut region = inner[..d].to_vec();
            region.extend_from_slice(&covers[d..]);
            region[d] = beside(&covers[d], &inner[d], after);
            regions.push(region);
        }
    }
    regions
}

/// Of every part what lies before or after an inner interval.
fn beside(cover: &DimCover, inner: &DimCover, after: bool) -> DimCover {
    let interval = |cover: &DimCover, part| cover.part(part).interval().unwrap_or(0..0);
    let parts = (0..cover.count()).map(|part| {
        let (all, inner) = (interval(cover, part), interval(inner, part));
        match after {
            true => inner.end..all.end,
            false => all.start..inner.start,
        }
    });
    DimCover::intervals(&cover.axes, parts.collect())
}

fn reads_windows(access: &Access) -> bool {
    matches!(access, Access::Window { .. } | Access::Adjoint { .. })
}
