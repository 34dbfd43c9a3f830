//! Windows against enumeration tap by tap, for uneven and empty parts.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::common::partition;
use proptest::prelude::*;
use shard_spec::{Partition, ResampleMode, Sample, SpecError, Window};

/// A window, an input extent that it fits, and for each output its taps, unclipped, from the definition.
#[derive(Clone, Debug)]
struct Case {
    window: Window,
    n: usize,
    taps: Vec<BTreeSet<isize>>,
    direct: bool,
}

fn direct(window: Window, n: usize, k: usize, s: usize, d: usize, lo: usize) -> Case {
    let outputs = window.output_extent(n).unwrap();
    let taps = |o: usize| {
        (0..k)
            .map(|j| (o * s + j * d) as isize - lo as isize)
            .collect()
    };
    Case {
        window,
        n,
        taps: (0..outputs).map(taps).collect(),
        direct: true,
    }
}

fn conv() -> impl Strategy<Value = Case> {
    (
        0usize..20,
        1usize..6,
        1usize..5,
        1usize..4,
        0usize..7,
        0usize..7,
    )
        .prop_filter_map("fits", |(n, k, s, d, lo, hi)| {
            let window = Window::conv(k, s, d, lo, hi).unwrap();
            (n + lo + hi > d * (k - 1)).then(|| direct(window, n, k, s, d, lo))
        })
}

fn pool() -> impl Strategy<Value = Case> {
    (
        0usize..20,
        1usize..6,
        1usize..7,
        0usize..3,
        1usize..3,
        any::<bool>(),
    )
        .prop_filter_map("fits", |(n, k, s, pad, d, ceil)| {
            let window = Window::pool(k, s, pad, d, ceil).ok()?;
            window.output_extent(n).ok()?;
            Some(direct(window, n, k, s, d, pad))
        })
}

fn transposed() -> impl Strategy<Value = Case> {
    (
        0usize..14,
        1usize..6,
        1usize..5,
        1usize..4,
        0usize..5,
        0usize..5,
        0usize..4,
    )
        .prop_filter_map("fits", |(n, k, s, d, lo, hi, extra)| {
            let window = Window::transposed(k, s, d, lo, hi, extra).ok()?;
            let outputs = window.output_extent(n).ok()?;
            let mut taps = vec![BTreeSet::new(); outputs];
            for i in 0..n {
                for j in 0..k {
                    if let Some(set) = (i * s + j * d)
                        .checked_sub(lo)
                        .and_then(|o| taps.get_mut(o))
                    {
                        set.insert(i as isize);
                    }
                }
            }
            Some(Case {
                window,
                n,
                taps,
                direct: false,
            })
        })
}

fn mode() -> impl Strategy<Value = ResampleMode> {
    prop::sample::select(vec![
        ResampleMode::Nearest,
        ResampleMode::NearestExact,
        ResampleMode::Linear,
        ResampleMode::LinearAligned,
        ResampleMode::Cubic,
        ResampleMode::CubicAligned,
        ResampleMode::Area,
        ResampleMode::LinearAntialias,
        ResampleMode::LinearAlignedAntialias,
        ResampleMode::CubicAntialias,
        ResampleMode::CubicAlignedAntialias,
    ])
}

fn resample() -> impl Strategy<Value = Case> {
    (
        1usize..20,
        1usize..40,
        mode(),
        prop::option::of(0.3f64..4.0),
    )
        .prop_map(|(n, outputs, mode, scale)| {
            let outputs = scale.map_or(outputs, |s| ((n as f64 * s).floor() as usize).max(1));
            let window = Window::resample(n, outputs, mode, scale).unwrap();
            let taps = |o| {
                let pairs: Vec<_> = window.sample(o).unwrap().pairs().collect();
                pairs.into_iter().map(|(i, _)| i as isize).collect()
            };
            Case {
                taps: (0..outputs).map(taps).collect(),
                window,
                n,
                direct: false,
            }
        })
}

/// As NATTEN defines them: `k` consecutive indices of the query's own line, `k / 2` of them before it, shifted inwards at the
/// ends.
fn neighborhood() -> impl Strategy<Value = Case> {
    (1usize..24, 1usize..6, 1usize..4, any::<bool>()).prop_filter_map(
        "fits",
        |(n, k, d, causal)| {
            let window = Window::neighborhood(n, k, d, causal).ok()?;
            let taps = |o: usize| {
                let line: Vec<usize> = (0..n).filter(|i| i % d == o % d).collect();
                let at = line.iter().position(|&i| i == o).unwrap();
                let first = if causal {
                    at as isize + 1 - k as isize
                } else {
                    (at as isize - (k / 2) as isize).clamp(0, (line.len() - k) as isize)
                };
                let places = first..first + k as isize;
                let held = places
                    .filter(|&j| j >= 0)
                    .map(|j| line[j as usize] as isize);
                held.collect()
            };
            Some(Case {
                taps: (0..n).map(taps).collect(),
                window,
                n,
                direct: false,
            })
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    prop_oneof![3 => conv(), 1 => pool(), 2 => transposed(), 2 => resample(), 3 => neighborhood()]
}

/// From the first to the last tap: the formulas promise no more where there is dilation.
fn hull(taps: &BTreeSet<isize>) -> Range<isize> {
    match (taps.first(), taps.last()) {
        (Some(first), Some(last)) => *first..last + 1,
        _ => 0..0,
    }
}

fn clip(r: &Range<isize>, n: usize) -> Range<isize> {
    r.start.max(0)..r.end.min(n as isize).max(r.start.max(0))
}

impl Case {
    fn outputs(&self) -> usize {
        self.taps.len()
    }

    /// Hull of the window of `o`. A transposed window reaches through the gaps of its dilation.
    fn window_of(&self, o: usize) -> Range<isize> {
        if let Window::Transposed {
            kernel,
            stride,
            dilation,
            pad_lo,
            ..
        } = self.window
        {
            let (s, reach, at) = (
                stride as isize,
                (dilation * (kernel - 1)) as isize,
                (o + pad_lo) as isize,
            );
            let touching: BTreeSet<isize> = (0..self.n as isize)
                .filter(|i| i * s <= at && at <= i * s + reach)
                .collect();
            assert!(self.taps[o].is_subset(&touching));
            return hull(&touching);
        }
        hull(&self.taps[o])
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn input_intervals_are_the_hull_of_the_taps(case in case(), a in 0usize..50, b in 0usize..50) {
        let (a, b) = (a.min(b).min(case.outputs()), a.max(b).min(case.outputs()));
        let found = case.window.input_interval(case.n, a..b);
        let needed: BTreeSet<isize> = (a..b).flat_map(|o| case.window_of(o)).collect();
        if needed.is_empty() {
            prop_assert!(found.is_empty(), "{:?}", found);
        } else {
            prop_assert_eq!(&found, &hull(&needed));
        }
        prop_assert!(case.direct || (found.start >= 0 && found.end <= case.n as isize));
    }

    #[test]
    fn outputs_of_inputs_are_those_whose_window_touches(case in case(), a in 0usize..22, b in 0usize..22) {
        let (a, b) = (a.min(b).min(case.n), a.max(b).min(case.n));
        let touches = |o: &usize| {
            let w = case.window_of(*o);
            w.start.max(a as isize) < w.end.min(b as isize)
        };
        // Between the windows of a transposed kernel narrower than its stride lie outputs that read nothing.
        let touched: BTreeSet<isize> =
            (0..case.outputs()).filter(touches).map(|o| o as isize).collect();
        let found = case.window.output_of_input(case.n, a..b);
        let found = found.start as isize..found.end as isize;
        if touched.is_empty() {
            prop_assert!(found.is_empty(), "{:?}", found);
        } else {
            prop_assert_eq!(found, hull(&touched));
        }
    }

    /// Interior outputs read nothing remote, and every output that reads something, all of it local, is interior.
    #[test]
    fn interiors_read_only_local_inputs(case in case(), parts in 1usize..6, seed in any::<prop::sample::Index>(), cuts in prop::collection::vec(0usize..20, 5)) {
        let mut offsets: Vec<usize> = cuts[..parts - 1].iter().map(|c| c % (case.n + 1)).collect();
        offsets.sort_unstable();
        let offsets = std::iter::once(0).chain(offsets).chain([case.n]).collect();
        let inputs = Partition::from_offsets(case.n, offsets)?;
        let outputs = case.window.anchor(case.n, &inputs);
        let part = seed.index(parts);
        let (local, out) = (inputs.contiguous().unwrap().interval(part), outputs.contiguous().unwrap().interval(part));
        let found = case.window.interior(case.n, local.clone(), out.clone());
        prop_assert!(found.start >= out.start && found.end <= out.end && found.start <= found.end);
        for o in out {
            let need = clip(&case.window_of(o), case.n);
            let inside = need.start >= local.start as isize && need.end <= local.end as isize;
            if found.contains(&o) {
                prop_assert!(inside || need.is_empty(), "output {} needs {:?} of {:?}", o, need, local);
            } else if !matches!(case.window, Window::Neighborhood { dilation: 2.., .. }) {
                // At the ends, a dilated window that reads only local inputs may lie between windows that do not.
                prop_assert!(!inside || need.is_empty(), "output {} needs {:?} of {:?}", o, need, local);
            }
        }
    }

    /// Both anchor maps give valid partitions of the right extent that keep empty parts empty.
    #[test]
    fn anchors_are_partitions((case, inputs) in case().prop_flat_map(|c| {
        let n = c.n;
        (Just(c), (1usize..7).prop_flat_map(move |p| partition(n, p)))
    })) {
        let outputs = case.window.anchor(case.n, &inputs);
        prop_assert_eq!((outputs.parts(), outputs.extent()), (inputs.parts(), case.outputs()));
        prop_assert!(outputs.offsets().unwrap().is_sorted());
        for (i, o) in inputs.sizes().zip(outputs.sizes()) {
            prop_assert!(i > 0 || o == 0 || case.n == 0);
        }
        let back = case.window.anchor_input(case.n, &outputs);
        prop_assert_eq!((back.parts(), back.extent()), (inputs.parts(), case.n));
        prop_assert!(back.offsets().unwrap().is_sorted());
    }

    /// Halos of anchored outputs are no wider than half of the window, for pads that a window can be centred with.
    #[test]
    fn anchored_halos_are_narrow((n, p) in (1usize..24).prop_flat_map(|n| (Just(n), (1usize..6).prop_flat_map(move |p| partition(n, p)))),
        k in 1usize..6, s in 1usize..4, d in 1usize..3, shift in 0usize..9) {
        let reach = d * (k - 1);
        // Without padding the first part also reads what lies before its first centre.
        let pad = shift % (reach + 1);
        let window = Window::conv(k, s, d, pad, reach - pad)?;
        let outputs = window.anchor(n, &p);
        for part in (0..p.parts()).filter(|&part| outputs.size(part) > 0) {
            let need = clip(&window.input_interval(n, outputs.contiguous().unwrap().interval(part)), n);
            let own = p.contiguous().unwrap().interval(part);
            let centre = (reach / 2) as isize - pad as isize;
            let slack = centre.unsigned_abs();
            prop_assert!(own.start as isize - need.start <= (reach / 2 + slack) as isize);
            prop_assert!(need.end - own.end as isize <= (reach.div_ceil(2) + slack) as isize);
            if centre == 0 {
                prop_assert!(own.start as isize - need.start <= (reach / 2) as isize);
                prop_assert!(need.end - own.end as isize <= reach.div_ceil(2) as isize);
            }
        }
    }

    /// "Same" convolutions leave boundaries where they are.
    #[test]
    fn same_windows_keep_boundaries(
        half in 0usize..3,
        d in 1usize..3,
        p in (1usize..24, 1usize..7).prop_flat_map(|(n, parts)| partition(n, parts)),
    ) {
        let window = Window::conv(2 * half + 1, 1, d, half * d, half * d)?;
        prop_assert_eq!(&window.anchor(p.extent(), &p), &p);
        prop_assert_eq!(window.anchor_input(p.extent(), &p), p);
    }

    /// Output boundaries that come from input boundaries come back when they are mapped to the inputs and forth again.
    #[test]
    fn anchors_invert_on_their_image(
        s in 1usize..4,
        wider in 0usize..4,
        more in 0usize..20,
        pad in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let k = s + wider;
        let n = k + more;
        let pads = (pad.index(k), (k - 1) / 2);
        let halves = |n: usize| Partition::from_offsets(n, vec![0, cut.index(n + 1), n]);
        let inner = |p: &Partition| (1..p.extent()).contains(&p.offsets().unwrap()[1]);
        // A boundary pushed to an end stays at that end.
        let window = Window::conv(k, s, 1, pads.0, pads.1)?;
        let out = halves(window.output_extent(n)?)?;
        let inputs = window.anchor_input(n, &out);
        if inner(&inputs) {
            prop_assert_eq!(window.anchor(n, &inputs), out);
        }
        let window = Window::transposed(k, s, 1, pads.0, pads.1, 0)?;
        let inputs = halves(n)?;
        let out = window.anchor(n, &inputs);
        if inner(&out) {
            prop_assert_eq!(window.anchor_input(n, &out), inputs);
        }
    }

    /// Every part gets exactly its outputs from its needed slab with the missing rows padded: what an exchange delivers.
    #[test]
    fn slabs_reproduce_the_convolution((case, inputs) in conv().prop_flat_map(|c| {
        let n = c.n;
        (Just(c), (1usize..6).prop_flat_map(move |p| partition(n, p)))
    }), weights in prop::collection::vec(-5isize..5, 6)) {
        let Window::Direct { kernel, stride, dilation, .. } = case.window else { return Ok(()) };
        let x = |i: isize| if (0..case.n as isize).contains(&i) { 1 + i * i } else { 0 };
        let outputs = case.window.anchor(case.n, &inputs);
        for part in 0..inputs.parts() {
            let out = outputs.contiguous().unwrap().interval(part);
            let slab: Vec<isize> = case.window.input_interval(case.n, out.clone()).map(x).collect();
            let local: Vec<isize> = out.clone().map(|o| {
                (0..kernel).map(|k| weights[k] * slab[(o - out.start) * stride + k * dilation]).sum()
            }).collect();
            let global: Vec<isize> = out.map(|o| {
                case.taps[o].iter().zip(&weights).map(|(&i, w)| w * x(i)).sum()
            }).collect();
            prop_assert_eq!(local, global);
        }
    }

    /// Neighbours are those of the definition, and boundaries stay where they are.
    #[test]
    fn neighbors_are_the_definitions((case, inputs) in neighborhood().prop_flat_map(|c| {
        let n = c.n;
        (Just(c), (1usize..6).prop_flat_map(move |p| partition(n, p)))
    })) {
        for (o, taps) in case.taps.iter().enumerate() {
            let found = case.window.neighbors(o).unwrap().keys().map(|i| i as isize);
            prop_assert!(found.eq(taps.iter().copied()));
        }
        prop_assert_eq!(case.window.neighbors(case.n), None);
        prop_assert_eq!(&case.window.anchor(case.n, &inputs), &inputs);
        prop_assert_eq!(case.window.anchor_input(case.n, &inputs), inputs);
    }

    /// Sampling weights sum to 1 within the input, are a convex combination but for cubics, and rise with the output.
    #[test]
    fn samples_sum_to_one_and_rise(case in resample(), mode in mode()) {
        let samples: Vec<Sample> = (0..case.outputs()).map(|o| case.window.sample(o).unwrap()).collect();
        let cubic = matches!(&case.window, Window::Resample { mode, .. } if mode.name().starts_with("cubic"));
        let end = |s: &Sample| s.first + s.weights.len();
        for s in &samples {
            prop_assert!(!s.weights.is_empty() && end(s) <= case.n);
            prop_assert!(cubic || s.weights.iter().all(|&w| w >= 0.0));
            prop_assert!((s.weights.iter().sum::<f64>() - 1.0).abs() < 1e-14);
        }
        prop_assert!(samples.is_sorted_by_key(|s| s.first) && samples.is_sorted_by_key(end));
        prop_assert_eq!(case.window.sample(case.outputs()), None);
        // An output of the same size is the input, but for the step of aligned corners that a filter takes.
        let same = Window::resample(case.n, case.n, mode, None)?;
        for o in (0..case.n).filter(|_| !mode.name().ends_with("aligned-antialias")) {
            let read = same.sample(o).unwrap();
            let kept: Vec<_> = read.pairs().filter(|p| p.1.abs() > 1e-12).collect();
            prop_assert!(kept.len() == 1 && kept[0].0 == o && (kept[0].1 - 1.0).abs() < 1e-12, "{:?}", read);
        }
    }
}

/// Common up-sampling windows move boundaries by their factor, so that a network returns to the boundaries it came from.
#[test]
fn doubling_doubles_boundaries() {
    let inputs = Partition::from_sizes(&[5, 0, 3, 1]).unwrap();
    let doubled = inputs.scaled(18);
    for (k, pad, extra) in [(2, 0, 0), (4, 1, 0), (3, 1, 1), (5, 2, 1)] {
        let window = Window::transposed(k, 2, 1, pad, pad, extra).unwrap();
        assert_eq!(window.anchor(9, &inputs), doubled, "kernel {k}");
        assert_eq!(window.anchor_input(9, &doubled), inputs, "kernel {k}");
    }
    for mode in [
        ResampleMode::Nearest,
        ResampleMode::NearestExact,
        ResampleMode::Linear,
    ] {
        let window = Window::resample(9, 18, mode, None).unwrap();
        assert_eq!(window.anchor(9, &inputs), doubled, "{mode:?}");
        assert_eq!(window.anchor_input(9, &doubled), inputs, "{mode:?}");
    }
    let patches = Window::conv(4, 4, 1, 0, 0).unwrap();
    assert_eq!(patches.anchor(36, &inputs.scaled(36)), inputs);
    assert_eq!(
        Window::transposed(4, 4, 1, 0, 0, 0)
            .unwrap()
            .anchor(9, &inputs),
        inputs.scaled(36)
    );
}

/// Values of PyTorch 2 in double precision, worked by its formulas.
#[test]
fn samples_as_in_pytorch() {
    let sample = |n, o, mode, at| {
        let window = Window::resample(n, o, mode, None).unwrap();
        let s = window.sample(at).unwrap();
        (s.first, s.weights.to_vec())
    };
    assert_eq!(sample(2, 4, ResampleMode::Linear, 0), (0, vec![1.0, 0.0]));
    assert_eq!(sample(2, 4, ResampleMode::Linear, 1), (0, vec![0.75, 0.25]));
    assert_eq!(sample(2, 4, ResampleMode::Linear, 3), (1, vec![1.0]));
    assert_eq!(
        sample(3, 5, ResampleMode::LinearAligned, 1),
        (0, vec![0.5, 0.5])
    );
    assert_eq!(
        sample(3, 1, ResampleMode::LinearAligned, 0),
        (0, vec![1.0, 0.0])
    );
    assert_eq!(sample(4, 4, ResampleMode::Linear, 2), (2, vec![1.0]));
    let indices = |n, o, mode| {
        (0..o)
            .map(|at| sample(n, o, mode, at).0)
            .collect::<Vec<_>>()
    };
    assert_eq!(indices(5, 3, ResampleMode::Nearest), [0, 1, 3]);
    assert_eq!(indices(5, 3, ResampleMode::NearestExact), [0, 2, 4]);
    assert_eq!(indices(3, 7, ResampleMode::Nearest), [0, 0, 0, 1, 1, 2, 2]);
    // Areas overlap where the extents do not divide: 5 into 3 is 0..2, 1..4, 3..5.
    assert_eq!(indices(5, 3, ResampleMode::Area), [0, 1, 3]);
    assert_eq!(sample(5, 3, ResampleMode::Area, 1), (1, vec![1.0 / 3.0; 3]));
    // At a quarter of the way the cubic has weights -27, 225, 67.. of 256; the input before the first is the first.
    let (first, weights) = sample(4, 8, ResampleMode::Cubic, 1);
    let quarter = [-0.10546875, 0.87890625, 0.26171875, -0.03515625];
    assert_eq!(first, 0);
    for (found, expected) in weights
        .iter()
        .zip([quarter[0] + quarter[1], quarter[2], quarter[3]])
    {
        assert!((found - expected).abs() < 1e-15, "{weights:?}");
    }
    // Half the size: the triangle reaches two inputs to either side of 2.
    assert_eq!(
        sample(8, 4, ResampleMode::LinearAntialias, 1),
        (1, vec![0.125, 0.375, 0.375, 0.125])
    );
    // A given factor is used as it is, whatever the ratio of the extents.
    let by = Window::resample_by(5, 1.5, ResampleMode::Linear).unwrap();
    assert_eq!(by.output_extent(5), Ok(7));
    let s = by.sample(3).unwrap();
    let real: f64 = 3.5 / 1.5 - 0.5;
    assert_eq!((s.first, s.weights.len()), (1, 2));
    assert!((s.weights[1] - (real - 1.0)).abs() < 1e-15);
    // 49 * (1.0 / 49.0) is less than 1, but not in single precision, which has no odd numbers beyond 2^24.
    let by = Window::resample_by(2, 49.0, ResampleMode::Nearest).unwrap();
    assert_eq!(by.sample(48).unwrap().first, 0);
    assert_eq!(by.sample(49).unwrap().first, 1);
    let n = (1 << 24) + 8;
    assert_eq!(sample(n, n, ResampleMode::Nearest, n - 5).0, n - 5);
}

/// Extents of PyTorch's pooling with `ceil_mode`: a last window that would start in the right padding is dropped.
#[test]
fn ceil_mode_as_in_pytorch() {
    for (n, k, s, pad, floor, ceil) in [
        (6, 3, 2, 0, 2, 3),
        (5, 3, 2, 0, 2, 2),
        (4, 2, 3, 1, 2, 2),
        (7, 3, 4, 0, 2, 2),
        (6, 2, 4, 0, 2, 2),
        (5, 2, 4, 0, 1, 2),
        // A last window that would start where the padding does, and one that starts on the last element.
        (2, 1, 2, 0, 1, 1),
        (2, 2, 3, 1, 1, 1),
        (1, 2, 1, 1, 2, 2),
    ] {
        assert_eq!(
            Window::pool(k, s, pad, 1, false).unwrap().output_extent(n),
            Ok(floor),
            "{n} {k} {s} {pad}"
        );
        assert_eq!(
            Window::pool(k, s, pad, 1, true).unwrap().output_extent(n),
            Ok(ceil),
            "{n} {k} {s} {pad}"
        );
    }
    // The last window overhangs the input; the interval says so.
    let overhanging = Window::pool(3, 2, 0, 1, true).unwrap();
    assert_eq!(overhanging.input_interval(6, 2..3), 4..7);
}

#[test]
fn invalid_windows_are_refused() {
    let argument = |r: Result<Window, SpecError>| match r {
        Err(SpecError::Argument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    assert_eq!(argument(Window::conv(0, 1, 1, 0, 0)), "kernel");
    assert_eq!(argument(Window::conv(1, 0, 1, 0, 0)), "stride");
    assert_eq!(argument(Window::conv(1, 1, 0, 0, 0)), "dilation");
    assert_eq!(argument(Window::conv(1, 1, 1, 0, usize::MAX)), "pad");
    assert_eq!(
        argument(Window::conv(usize::MAX, 1, usize::MAX, 0, 0)),
        "kernel"
    );
    assert_eq!(argument(Window::pool(3, 1, 2, 1, false)), "pad");
    assert_eq!(
        argument(Window::transposed(3, 2, 1, 0, 0, 2)),
        "output_padding"
    );
    assert_eq!(argument(Window::transposed(0, 2, 1, 0, 0, 0)), "kernel");
    assert_eq!(argument(Window::transposed(3, 0, 2, 0, 0, 0)), "stride");
    assert_eq!(argument(Window::transposed(3, 2, 0, 0, 0, 0)), "dilation");
    assert_eq!(
        argument(Window::transposed(3, 2, 1, usize::MAX, 0, 0)),
        "pad"
    );
    assert_eq!(
        argument(Window::transposed(3, 2, 1, 0, usize::MAX, 0)),
        "pad"
    );
    assert_eq!(
        argument(Window::resample(0, 3, ResampleMode::Linear, None)),
        "input extent"
    );
    assert_eq!(
        argument(Window::resample(3, 0, ResampleMode::Linear, None)),
        "output extent"
    );
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(
            argument(Window::resample(3, 6, ResampleMode::Linear, Some(scale))),
            "scale"
        );
    }
    assert_eq!(
        argument(Window::resample_by(3, 1e300, ResampleMode::Nearest)),
        "output extent"
    );
    let wide = Window::conv(5, 1, 2, 1, 1).unwrap().output_extent(4);
    assert_eq!(
        wide,
        Err(SpecError::WindowTooWide {
            op: "output_extent",
            span: 9,
            padded: 6,
            extent: 4
        })
    );
    assert_eq!(argument(Window::neighborhood(5, 0, 1, false)), "kernel");
    assert_eq!(argument(Window::neighborhood(5, 3, 0, false)), "dilation");
    assert_eq!(
        argument(Window::neighborhood(5, usize::MAX, usize::MAX, false)),
        "kernel"
    );
    let wide = Window::neighborhood(5, 3, 2, false).unwrap_err();
    assert!(
        wide.to_string()
            .ends_with("kernel * dilation is 6, expected at most the extent 5; use a smaller kernel or dilation"),
        "{wide}"
    );
    let padded = Window::transposed(1, 1, 1, 2, 2, 0)
        .unwrap()
        .output_extent(3);
    let said = "padding is 2 and 2, expected less in all than the 3 outputs of 3 inputs without it; pad less";
    assert!(padded.unwrap_err().to_string().contains(said));
    let empty = Window::resample(3, 0, ResampleMode::Linear, None).unwrap_err();
    assert!(
        empty
            .to_string()
            .ends_with("ask for at least one element, or for a larger scale")
    );
    let other = Window::neighborhood(6, 3, 2, false).unwrap();
    assert!(other.output_extent(7).is_err());
    assert!(
        Window::transposed(1, 1, 1, 2, 2, 0)
            .unwrap()
            .output_extent(3)
            .is_err()
    );
    assert!(
        Window::resample(3, 6, ResampleMode::Linear, None)
            .unwrap()
            .output_extent(4)
            .is_err()
    );
}
