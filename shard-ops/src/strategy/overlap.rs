//! Computing the interior while a halo flies.
//!
//! The outputs whose windows lie inside what a rank owns need nobody: they are computed first, straight from the
//! rank's own piece. What is left is peeled off dim by dim into slabs, and only the slabs' inputs are exchanged, or
//! put together with a halo that is kept, so that the bulk of the operand is never copied.

use super::blocks::Blocks;
use super::inputs::InputMove;
use super::site::{Site, Spans, with_halo};
use crate::{Access, KernelCx, OperandBox};
use shard_redistribute::{Exchange, ExchangeBuilder};
use shard_spec::{DimCover, Layout, numel};
use std::ops::Range;

/// The one input whose halo flies while the interior is computed, and the cuts.
struct Overlap {
    input: usize,
    /// Per factor with a window, the interior of each part.
    interior: Vec<Option<Vec<Range<usize>>>>,
}

/// The kernel calls around the flight of a halo.
pub(super) struct Overlapped {
    /// The input whose halo flies.
    pub(super) halo_of: usize,
    /// That of the interior.
    pub(super) early: KernelCx,
    /// The blocks into which it is divided.
    pub(super) blocks: Blocks,
    /// Those of the slabs around it.
    pub(super) late: Vec<KernelCx>,
}

impl Site<'_> {
    /// Whether the interior can be computed while a halo flies, and where it is. Decided from layouts alone.
    ///
    /// One input may have windows in the result's dims; its other dims must be in place; and the interior must
    /// be at least half of the work, or the slabs around it are not worth their calls.
    fn overlap(&self, layouts: &[Layout]) -> Option<Overlap> {
        let windowed = |i: &usize| {
            self.rule.inputs[*i]
                .iter()
                .any(|a| matches!(a, Access::Window { .. } | Access::Adjoint { .. }))
        };
        if self.rule.decides_rows().is_some() {
            return None;
        }
        let mut with_windows = (0..layouts.len()).filter(windowed);
        let input = with_windows.next()?;
        if with_windows.next().is_some() {
            return None;
        }
        let layout = &layouts[input];
        let covers = self.covers_with_halos(input, &Spans::Full);
        if self.in_place(layout, &covers) {
            return None;
        }
        let held = self.held_of(input, layout, &covers)?;
        let mut interior = vec![None; self.rule.factors.len()];
        let (mut inside, mut all) = (1.0, 1.0);
        for (d, access) in self.rule.inputs[input].iter().enumerate() {
            let (Access::Window { factor, .. } | Access::Adjoint { factor, .. }) = access else {
                continue;
            };
            if self.rule.is_reduced(*factor) {
                return None;
            }
            let full = 0..self.rule.factors[*factor];
            let spans = self.choice.spans(*factor, full.end);
            let n = layout.shape()[d];
            let own = (0..held[d].count()).map(|part| held[d].part(part).interval());
            let cut = spans.iter().zip(own).map(|(span, own)| {
                let own = own?;
                Some(inner_span(span, &own, |s| {
                    with_halo(self.rule, access, n, s)
                }))
            });
            let cut: Vec<Range<usize>> = cut.collect::<Option<_>>()?;
            inside *= cut.iter().map(Range::len).sum::<usize>() as f64;
            all *= full.len() as f64;
            interior[*factor] = Some(cut);
        }
        (inside > 0.0 && inside >= 0.5 * all).then_some(Overlap { input, interior })
    }

    /// The calls for the interior and for the slabs around it; brings every input in place. Nothing unless the
    /// interior can be computed while a halo flies.
    pub(super) fn with_overlap(
        &self,
        layouts: &[Layout],
        inputs: &mut [InputMove],
    ) -> Option<Overlapped> {
        let overlap = &self.overlap(layouts)?;
        let flying = overlap.input;
        let (spans, slabs): (Vec<Spans>, Vec<Vec<DimCover>>) =
            self.slabs(overlap).into_iter().unzip();
        let layout = &layouts[flying];
        let (exchange, halo) = match self.rule.kept_halos.contains(&flying) {
            true => self
                .halo(flying, layout, &slabs)
                .map(|(e, h)| (e, Some(h)))?,
            false => (self.slab_halos(flying, layout, &slabs)?, None),
        };
        for (i, layout) in layouts.iter().enumerate() {
            if i != flying {
                self.bring(i, layout, &mut inputs[i]);
            }
        }
        let own: Vec<DimCover> = (0..layouts[flying].ndim())
            .map(|d| DimCover::of(&layouts[flying], d))
            .collect();
        let middle = Spans::Cut(overlap.interior.clone());
        let inner = self.covers_with_halos(flying, &middle);
        let early = self.call(flying, &middle, || self.sub_box(&own, &inner));
        let mut overlapped = Overlapped {
            halo_of: flying,
            blocks: self.divided(&middle, &early),
            early,
            late: Vec::new(),
        };
        let mut base = 0;
        for (spans, covers) in spans.iter().zip(&slabs) {
            let cx = self.call(flying, spans, || self.input_box(covers, base));
            base += numel(&cx.inputs[flying].shape);
            if cx.outputs.iter().all(|o| !o.shape.contains(&0)) {
                overlapped.late.push(cx);
            }
        }
        (inputs[flying].exchange, inputs[flying].halo) = (Some(exchange), halo);
        Some(overlapped)
    }

    /// A call over some spans: one input lies in a box of its own, the others where they were brought.
    fn call(&self, flying: usize, spans: &Spans, its_box: impl Fn() -> OperandBox) -> KernelCx {
        let all = |i| self.covers_with_halos(i, &Spans::Full);
        self.kernel(spans, |i| match i == flying {
            true => its_box(),
            false => self.sub_box(&all(i), &self.covers_with_halos(i, spans)),
        })
    }

    /// What lies around the interior, peeled off dim by dim (before it, after it), and what that covers of the input whose halo flies.
    fn slabs(&self, overlap: &Overlap) -> Vec<(Spans, Vec<DimCover>)> {
        let factors = 0..self.rule.factors.len();
        let cut_factors: Vec<usize> = factors.filter(|&f| overlap.interior[f].is_some()).collect();
        let mut slabs = Vec::with_capacity(2 * cut_factors.len());
        for (k, &f) in cut_factors.iter().enumerate() {
            for after in [false, true] {
                let mut cut: Vec<Option<Vec<Range<usize>>>> = vec![None; self.rule.factors.len()];
                for &g in &cut_factors[..k] {
                    cut[g].clone_from(&overlap.interior[g]);
                }
                cut[f] = Some(self.beside(f, overlap, after));
                let spans = Spans::Cut(cut);
                let covers = self.covers_with_halos(overlap.input, &spans);
                slabs.push((spans, covers));
            }
        }
        slabs
    }

    /// The exchange that brings slabs of an input, one after the other; nothing if there are none.
    fn slab_halos(
        &self,
        input: usize,
        layout: &Layout,
        slabs: &[Vec<DimCover>],
    ) -> Option<Exchange> {
        let mut all = slabs.iter().cloned();
        let first = ExchangeBuilder::new(self.rule.name, self.mesh, all.next()?);
        let builder = all.fold(first, ExchangeBuilder::region);
        Some(builder.source(self.source(input, layout)).build(self.index))
    }

    /// For every part, what lies before or after the interior of factor `f`.
    fn beside(&self, f: usize, overlap: &Overlap, after: bool) -> Vec<Range<usize>> {
        let interior = overlap.interior[f].as_deref().unwrap_or_default();
        interior
            .iter()
            .zip(self.choice.spans(f, self.rule.factors[f]))
            .map(|(inner, span)| {
                if after {
                    inner.end..span.end
                } else {
                    span.start..inner.start
                }
            })
            .collect()
    }
}

/// The largest part of `span` that with its halo lies inside `own`.
///
/// Halos are monotone: shrinking a span from the left never lowers where its halo starts, so both ends can be
/// found by bisection.
fn inner_span(
    span: &Range<usize>,
    own: &Range<usize>,
    with_halo: impl Fn(Range<usize>) -> Range<usize>,
) -> Range<usize> {
    let bisect = |good: &dyn Fn(usize) -> bool| {
        // Smallest offset in 0..=len that is good; len always is.
        let (mut lo, mut hi) = (0, span.len());
        while lo < hi {
            let mid = lo.midpoint(hi);
            if good(mid) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        lo
    };
    let start = span.start
        + bisect(&|k| {
            let need = with_halo(span.start + k..span.end);
            need.is_empty() || need.start >= own.start
        });
    let end = span.end
        - bisect(&|k| {
            let need = with_halo(span.start..span.end - k);
            need.is_empty() || need.end <= own.end
        });
    if start < end {
        start..end
    } else {
        start..start
    }
}
