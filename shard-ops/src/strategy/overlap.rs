//! Computing the interior while a halo flies.
//!
//! The outputs whose windows lie inside what a rank owns need nobody: they are computed first, straight from the
//! rank's own piece. What is left is peeled off dim by dim into slabs, and only the slabs' inputs are exchanged, so
//! that the bulk of the operand is never copied.

use super::inputs::InputMove;
use super::intervals::same_intervals;
use super::site::{Site, Spans};
use crate::{Access, KernelCx, OperandBox};
use shard_redistribute::{Exchange, ExchangeBuilder};
use shard_spec::{DimCover, Layout};
use std::ops::Range;

/// The one input whose halo flies while the interior is computed, and the cuts.
pub(super) struct Overlap {
    input: usize,
    /// Per factor with a window, the interior of each part.
    interior: Vec<Option<Vec<Range<usize>>>>,
}

/// The kernel calls around the flight of a halo.
pub(super) struct Overlapped {
    /// The input whose halo flies.
    pub(super) halo_of: Option<usize>,
    /// Those of the interior.
    pub(super) early: Vec<KernelCx>,
    /// Those of the slabs around it.
    pub(super) late: Vec<KernelCx>,
}

/// Outputs beside the interior, and what they need of the input whose halo flies.
struct Slab {
    spans: Spans,
    covers: Vec<DimCover>,
}

impl Site<'_> {
    /// Whether the interior can be computed while a halo flies, and where it is. Decided from layouts alone.
    ///
    /// One input may have windows in the result's dims; its other dims must be in place; and the interior must
    /// be at least half of the work, or the slabs around it are not worth their calls.
    pub(super) fn overlap(&self, layouts: &[Layout]) -> Option<Overlap> {
        let windowed = |i: &usize| {
            self.rule.inputs[*i]
                .iter()
                .any(|a| matches!(a, Access::Window { .. } | Access::Adjoint { .. }))
        };
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
        let mut interior = vec![None; self.rule.factors.len()];
        let (mut inside, mut all) = (1.0, 1.0);
        for (d, access) in self.rule.inputs[input].iter().enumerate() {
            let (Access::Window { factor, .. } | Access::Adjoint { factor, .. }) = access else {
                if same_intervals(&covers[d], layout, d, self.mesh) {
                    continue;
                }
                return None;
            };
            let sharding = self.choice.factors[*factor].as_ref();
            let aligned = match (layout.sharding(d), sharding) {
                (Some(have), Some(want)) => have.axes == want.axes,
                (None, _) => true,
                (Some(_), None) => false,
            };
            if self.rule.is_reduced(*factor) || !aligned {
                return None;
            }
            let full = 0..self.rule.factors[*factor];
            let spans = self.choice.spans(*factor, full.end);
            let n = layout.shape()[d];
            let own: Vec<Range<usize>> = match layout.sharding(d) {
                Some(held) => held.partition.contiguous()?.intervals().collect(),
                None => vec![0..n; spans.len()],
            };
            let cut: Vec<Range<usize>> = spans
                .iter()
                .zip(&own)
                .map(|(span, own)| inner_span(span, own, |s| self.with_halo(access, n, s)))
                .collect();
            inside *= cut.iter().map(Range::len).sum::<usize>() as f64;
            all *= full.len() as f64;
            interior[*factor] = Some(cut);
        }
        (inside > 0.0 && inside >= 0.5 * all).then_some(Overlap { input, interior })
    }

    /// The calls for the interior and for the slabs around it; brings every input in place.
    pub(super) fn with_overlap(
        &self,
        layouts: &[Layout],
        overlap: &Overlap,
        inputs: &mut [InputMove],
    ) -> Overlapped {
        let flying = overlap.input;
        for (i, layout) in layouts.iter().enumerate() {
            match i == flying {
                true => inputs[i].wanted = self.wanted(i),
                false => self.bring(i, layout, &mut inputs[i]),
            }
        }
        let own: Vec<DimCover> = (0..layouts[flying].ndim())
            .map(|d| DimCover::of(&layouts[flying], d))
            .collect();
        let middle = Spans::Cut(overlap.interior.clone());
        let inner = self.covers_with_halos(flying, &middle);
        let mut overlapped = Overlapped {
            halo_of: None,
            early: vec![self.call(flying, &middle, || self.sub_box(&own, &inner))],
            late: Vec::new(),
        };
        let slabs = self.slabs(overlap);
        let Some(exchange) = self.slab_halos(flying, &layouts[flying], &slabs) else {
            return overlapped;
        };
        for (slab, (base, _)) in slabs.iter().zip(exchange.regions()) {
            let cx = self.call(flying, &slab.spans, || self.input_box(&slab.covers, *base));
            if cx.outputs.iter().all(|o| !o.shape.contains(&0)) {
                overlapped.late.push(cx);
            }
        }
        inputs[flying].exchange = Some(exchange);
        overlapped.halo_of = Some(flying);
        overlapped
    }

    /// A call over some spans: one input lies in a box of its own, the others where they were brought.
    fn call(&self, flying: usize, spans: &Spans, its_box: impl Fn() -> OperandBox) -> KernelCx {
        let all = |i| self.covers_with_halos(i, &Spans::Full);
        self.kernel(spans, |i| match i == flying {
            true => its_box(),
            false => self.sub_box(&all(i), &self.covers_with_halos(i, spans)),
        })
    }

    /// What lies around the interior, peeled off dim by dim: before it, after it.
    fn slabs(&self, overlap: &Overlap) -> Vec<Slab> {
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
                slabs.push(Slab { spans, covers });
            }
        }
        slabs
    }

    /// The exchange that brings slabs of an input, one after the other; nothing if there are none.
    fn slab_halos(&self, input: usize, layout: &Layout, slabs: &[Slab]) -> Option<Exchange> {
        let mut all = slabs.iter().map(|slab| slab.covers.clone());
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
