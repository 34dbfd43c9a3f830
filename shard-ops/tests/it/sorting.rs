//! Sorted elements on all layouts: order and bits are one rank's, a rank receives what its part is made of, and no whole dim is gathered
//! for a few elements of it.

use crate::applied::{Applies, applied_on};
use crate::ranks::{layouts, on_device, on_ranks, received};
use shard_comm::{DType, DeviceKind};
use shard_ops::sort::{argsort, kthvalue, median, sort, sort_by, topk};
use shard_ops::testing::{Tensor, Validation, validate};
use shard_ops::{
    Access, Engine, Exec, HostCall, Keeps, MergedRuns, Meta, Op, Result, RouteBy, Routes, Rule,
    Value, Values, key_of,
};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{Layout, Partition};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

fn mix(i: usize) -> usize {
    (i ^ 77).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) >> 7
}

/// Numbers with repetitions, both zeros, infinities, and NaN.
fn odd(i: usize) -> f32 {
    match mix(i) % 23 {
        0 => f32::NAN,
        1 => -0.0,
        2 => f32::INFINITY,
        3 => f32::NEG_INFINITY,
        k if k < 14 => (k as f32) - 9.0,
        _ => (mix(i + 5) % 4001) as f32 / 8.0 - 250.0,
    }
}

/// What elements of an array `number` names, how they stand, and which of them sorting one line by comparison puts where.
fn by_comparing(line: &[f32], descending: bool) -> Vec<usize> {
    let mut places: Vec<usize> = (0..line.len()).collect();
    let class = |x: f32| if x.is_nan() { 1 } else { 0 };
    let order = |a: f32, b: f32| match class(a).cmp(&class(b)) {
        std::cmp::Ordering::Equal => a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal),
        other => other,
    };
    places.sort_by(|&a, &b| match descending {
        false => order(line[a], line[b]),
        true => order(line[b], line[a]),
    });
    places
}

/// Lines along a dim of a shape: where each one's elements lie in row-major order.
fn lines(shape: &[usize], dim: usize) -> Vec<Vec<usize>> {
    let after: usize = shape[dim + 1..].iter().product();
    let before: usize = shape[..dim].iter().product();
    let line = |number: usize| {
        let (row, column) = (number / after, number % after);
        (0..shape[dim]).map(move |i| (row * shape[dim] + i) * after + column)
    };
    (0..before * after).map(|k| line(k).collect()).collect()
}

fn flat(shape: &[usize], index: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |at, (&i, &n)| at * n + i)
}

fn floats(cx: &Rc<MeshComm>, layout: &Layout, number: fn(usize) -> f32) -> Value {
    let shape = layout.shape().to_vec();
    Value::new(Array::from_fn::<f32>(cx, layout, |i| number(flat(&shape, i))).unwrap())
}

fn bits(exec: &dyn Exec, v: &Value) -> Vec<u32> {
    let to = Layout::replicated(v.layout().mesh(), v.shape());
    let whole = exec.redistribute(v, &to).unwrap();
    let values = whole.array().to_vec::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

fn whole(exec: &dyn Exec, v: &Value) -> Vec<i64> {
    let to = Layout::replicated(v.layout().mesh(), v.shape());
    exec.redistribute(v, &to).unwrap().array().to_vec().unwrap()
}

/// The elements and indices that one rank would find at `of` of every sorted line.
fn expected(
    shape: &[usize],
    dim: usize,
    number: fn(usize) -> f32,
    descending: bool,
    of: std::ops::Range<usize>,
) -> (Vec<u32>, Vec<i64>) {
    let mut out_shape = shape.to_vec();
    out_shape[dim] = of.len();
    let count = out_shape.iter().product();
    let (mut values, mut indices) = (vec![0; count], vec![0; count]);
    let placed = lines(&out_shape, dim);
    for (k, line) in lines(shape, dim).into_iter().enumerate() {
        let elements: Vec<f32> = line.iter().map(|&at| number(at)).collect();
        let order = by_comparing(&elements, descending);
        for (to, &i) in placed.get(k).into_iter().flatten().zip(&order[of.clone()]) {
            values[*to] = elements[i].to_bits();
            indices[*to] = i as i64;
        }
    }
    (values, indices)
}

const MESHES: [&[usize]; 4] = [&[1], &[3], &[2, 2], &[5]];
const SHAPES: [(&[usize], usize); 5] = [
    (&[53], 0),
    (&[3, 17], 1),
    (&[19, 4], 0),
    (&[2, 11, 3], 1),
    (&[3], 0),
];
const BOTH: [RouteBy; 2] = [RouteBy::Ask, RouteBy::Gather];

#[test]
fn sorted_elements_are_one_ranks_to_the_bit_under_all_layouts() {
    for mesh in MESHES {
        let bad = on_ranks(mesh, |cx, engine| {
            let mut bad = Vec::new();
            for (shape, dim) in SHAPES {
                for layout in layouts(cx.mesh(), shape) {
                    let x = floats(cx, &layout, odd);
                    for (descending, by) in
                        [false, true].into_iter().flat_map(|d| BOTH.map(|b| (d, b)))
                    {
                        let (values, indices) = sort_by(engine, &x, dim, descending, by).unwrap();
                        assert_eq!((values.layout(), indices.layout()), (&layout, &layout));
                        let right = expected(shape, dim, odd, descending, 0..shape[dim]);
                        if (bits(engine, &values), whole(engine, &indices)) != right {
                            bad.push(format!("{shape:?} {dim} {layout} {descending} {by:?}"));
                        }
                    }
                }
            }
            bad
        });
        assert!(bad.iter().all(Vec::is_empty), "{mesh:?}: {:?}", bad[0]);
    }
}

#[test]
fn the_first_and_the_middle_are_one_ranks_under_all_layouts() {
    for mesh in MESHES {
        let bad = on_ranks(mesh, |cx, engine| {
            let mut bad = Vec::new();
            for (shape, dim) in SHAPES {
                let n = shape[dim];
                for layout in layouts(cx.mesh(), shape) {
                    let x = floats(cx, &layout, odd);
                    for k in [0, 1, 2, n / 2, n] {
                        for largest in [false, true] {
                            let (v, i) = topk(engine, &x, k, dim, largest).unwrap();
                            let right = expected(shape, dim, odd, largest, 0..k);
                            if (bits(engine, &v), whole(engine, &i)) != right {
                                bad.push(format!("topk {k} {shape:?} {dim} {layout} {largest}"));
                            }
                        }
                        if k > 0 {
                            let (v, i) = kthvalue(engine, &x, k, dim).unwrap();
                            let right = expected(shape, dim, odd, false, k - 1..k);
                            if (bits(engine, &v), whole(engine, &i)) != right {
                                bad.push(format!("kthvalue {k} {shape:?} {dim} {layout}"));
                            }
                        }
                    }
                    let (v, i) = median(engine, &x, dim).unwrap();
                    let mut right =
                        expected(shape, dim, odd, false, n.div_ceil(2) - 1..n.div_ceil(2));
                    let last = expected(shape, dim, odd, true, 0..1);
                    for (k, &value) in last.0.iter().enumerate() {
                        if f32::from_bits(value).is_nan() {
                            (right.0[k], right.1[k]) = (value, last.1[k]);
                        }
                    }
                    if (bits(engine, &v), whole(engine, &i)) != right {
                        bad.push(format!("median {shape:?} {dim} {layout}"));
                    }
                }
            }
            bad
        });
        assert!(bad.iter().all(Vec::is_empty), "{mesh:?}: {:?}", bad[0]);
    }
}

#[test]
fn elements_that_are_hard_to_cut_are_sorted() {
    let numbers: [fn(usize) -> f32; 6] = [
        |_| 7.5,
        |_| f32::NAN,
        |i| i as f32,
        |i| -(i as f32),
        |i| if i == 4000 { 1.0 } else { 2.0 },
        |i| (i % 2) as f32,
    ];
    for mesh in [&[4][..], &[2, 3]] {
        on_ranks(mesh, |cx, engine| {
            for sizes in [None, Some(0), Some(1)] {
                let parts: usize = mesh.iter().product();
                let axes: Vec<usize> = (0..mesh.len()).collect();
                let n = 5000;
                let partition = match sizes {
                    None => Partition::balanced(n, parts),
                    // All but one rank have none, or one element.
                    Some(few) => {
                        let mut sizes = vec![few; parts];
                        sizes[1] = n - few * (parts - 1);
                        Partition::from_sizes(&sizes).unwrap()
                    }
                };
                let layout = Layout::builder(cx.mesh(), &[n]).shard(0, &axes, partition);
                let layout = layout.build().unwrap();
                for (k, number) in numbers.into_iter().enumerate() {
                    let x = floats(cx, &layout, number);
                    for descending in [false, true] {
                        let right = expected(&[n], 0, number, descending, 0..n);
                        let (v, i) = sort_by(engine, &x, 0, descending, RouteBy::Ask).unwrap();
                        assert_eq!((v.layout(), i.layout()), (&layout, &layout));
                        let found = (bits(engine, &v), whole(engine, &i));
                        assert!(found == right, "numbers {k} in {layout}, {descending}");
                    }
                }
            }
        });
    }
}

#[test]
fn a_rank_receives_its_part_and_few_numbers() {
    let mut kinds = vec![DeviceKind::Host];
    if cfg!(feature = "cuda-emulated") {
        kinds.push(DeviceKind::EmulatedCuda);
    }
    kinds.into_iter().for_each(check_received);
}

/// That little more than parts moves on devices of a kind.
fn check_received(kind: DeviceKind) {
    const N: usize = 100_000;
    let figures = on_device(kind, &[4], |cx, engine| {
        let layout = Layout::parse(cx.mesh(), &[N], "S(0)").unwrap();
        let x = floats(cx, &layout, odd);
        [
            received(cx, || drop(sort(engine, &x, 0, false).unwrap())),
            received(cx, || drop(argsort(engine, &x, 0, true).unwrap())),
            received(cx, || drop(topk(engine, &x, 100, 0, true).unwrap())),
            received(cx, || drop(kthvalue(engine, &x, N / 3, 0).unwrap())),
            received(cx, || drop(median(engine, &x, 0).unwrap())),
        ]
    });
    // Three rounds of twice 255 numbers of three ranks, and what is asked and told.
    let cuts = 3 * 8 * (3 * 2 * 255 + 2 * 4 + 2);
    for [sort, argsort, topk, kth, median] in figures {
        // An element and its index.
        let part = 12 * N as u64 / 4;
        assert!(
            sort <= part + cuts && sort > part / 2,
            "{sort} of {part} + {cuts}"
        );
        assert!(argsort <= part + cuts, "{argsort}");
        // The first hundred of three parts.
        assert!(topk <= 3 * 100 * 12 && topk > 0, "{topk}");
        assert!(kth <= cuts + 12, "{kth}");
        // The middle, and the largest of every part, told to all.
        assert!(median <= cuts + 400, "{median}");
    }
}

/// Keeps what the engine says of every op.
struct Explaining<'a>(&'a Engine, RefCell<String>);

impl Exec for Explaining<'_> {
    fn results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values> {
        let arrays: Vec<&Array> = inputs.iter().map(|v| v.array()).collect();
        *self.1.borrow_mut() += &(self.0.explain(&op, &arrays)? + "\n");
        self.0.results(op, inputs)
    }

    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value> {
        self.0.redistribute(value, to)
    }
}

#[test]
fn what_is_taken_is_printed_with_what_it_costs() {
    let texts = on_ranks(&[4], |cx, engine| {
        let text = |n: usize| {
            let layout = Layout::parse(cx.mesh(), &[n], "S(0)").unwrap();
            let x = floats(cx, &layout, odd);
            let exec = Explaining(engine, RefCell::default());
            sort(&exec, &x, 0, false).unwrap();
            exec.1.into_inner()
        };
        (text(50), text(50_000))
    });
    for (short, long) in texts {
        assert!(short.contains("rows by Gather of Ask (at most"), "{short}");
        assert!(long.contains("rows by Ask of Ask (at most"), "{long}");
        assert!(long.contains("Gather (450000 bytes)"), "{long}");
    }
}

/// Kernels of other devices are others: what they make is what the host makes.
#[test]
fn other_devices_make_the_same() {
    let mut kinds = vec![DeviceKind::Test];
    if cfg!(feature = "cuda-emulated") {
        kinds.push(DeviceKind::EmulatedCuda);
    }
    let run = |kind: DeviceKind| {
        on_device(kind, &[3], |cx, engine| {
            let mut made = Vec::new();
            for (shape, dim) in SHAPES {
                for layout in layouts(cx.mesh(), shape) {
                    let x = floats(cx, &layout, odd);
                    let (v, i) = sort_by(engine, &x, dim, true, RouteBy::Ask).unwrap();
                    made.push((bits(engine, &v), whole(engine, &i)));
                    let (v, i) = topk(engine, &x, 2, dim, false).unwrap();
                    made.push((bits(engine, &v), whole(engine, &i)));
                }
            }
            assert_eq!(cx.world().ledger().snapshot().fallbacks, 0);
            made
        })
    };
    let expected = run(DeviceKind::Host);
    for kind in kinds {
        assert_eq!(run(kind), expected, "{kind:?}");
    }
}

/// Lines of sorted runs that end here, with many equal elements, and the places in these lines.
fn runs(shape: [usize; 3], dim: usize, ends: &[usize], descending: bool) -> [Tensor; 2] {
    let count: usize = shape.iter().product();
    let (mut values, mut places) = (vec![0.0; count], vec![0_i64; count]);
    for (line, at) in lines(&shape, dim).into_iter().enumerate() {
        let mut start = 0;
        for (run, &end) in ends.iter().enumerate() {
            let drawn = (start..end).map(|i| (i * 7 + 3 * run + line) % 5);
            let mut drawn: Vec<usize> = drawn.collect();
            drawn.sort_unstable();
            if descending {
                drawn.reverse();
            }
            for (i, value) in (start..end).zip(drawn) {
                (values[at[i]], places[at[i]]) = (value as f64, i as i64);
            }
            start = end;
        }
    }
    [Tensor::new(shape, values), Tensor::new(shape, places)]
}

/// A stretch of merged runs that begins anywhere and is of any length: in sorting, one that begins later is an element.
#[derive(Clone, Debug)]
struct Stretch {
    dim: usize,
    runs: MergedRuns,
    by: RouteBy,
}

impl Op for Stretch {
    fn name(&self) -> &'static str {
        "stretch"
    }

    fn key(&self) -> u128 {
        let order = (self.dim, &self.runs.ends, self.runs.descending);
        key_of(self.name(), &(order, self.runs.from, self.by))
    }

    /// Inputs are an array that lies as the stretch is to, and the runs' elements and places; outputs are the stretch's.
    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let mut rule = Rule::builder(self.name(), inputs);
        let shape = &inputs[0].shape;
        let factors = shape.iter().map(|&n| Access::factor(rule.factor(n)));
        let stretch: Vec<Access> = factors.collect();
        let mut all = stretch.clone();
        let factor = rule.factor(inputs[1].shape[self.dim]);
        all[self.dim] = Access::Routed { factor };
        rule.input(stretch.clone())
            .input(all.clone())
            .input(all)
            .unread(0)
            .output(stretch.clone(), shape.clone(), DType::F64)
            .output(stretch, shape.clone(), DType::I64)
            .routes(Routes::merging(0, self.runs.clone()).served(self.by))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (to, from) = (&call.cx.outputs[0], &call.cx.inputs[1]);
        let first = self.runs.from + to.start[self.dim];
        let (from, to) = (lines(&from.shape, self.dim), lines(&to.shape, self.dim));
        let cuts = call.input::<i64>(0).to_vec();
        let [x, read] = [1, 3].map(|k| call.input::<f64>(k).to_vec());
        let [places, read_places] = [2, 4].map(|k| call.input::<i64>(k).to_vec());
        let (mut values, mut found) = call.output_pair::<f64, i64>();
        for (line, (own, to)) in from.iter().zip(&to).enumerate() {
            let of_own = |i: usize| (x[own[i]], places[own[i]]);
            let of_read = |i: usize| (read[i], read_places[i]);
            let (mut elements, mut skipped) = (Vec::new(), 0);
            for cut in cuts.chunks_exact(3).skip(line).step_by(from.len()) {
                let part = cut[0] as usize..cut[1] as usize;
                match usize::try_from(cut[2]) {
                    Ok(at) => elements.extend((at..at + part.len()).map(of_read)),
                    Err(_) => elements.extend(part.map(of_own)),
                }
            }
            // Where all runs are at hand, there is more than the stretch.
            if cuts.is_empty() {
                elements.extend((0..own.len()).map(of_own));
                skipped = first;
            }
            // Of equal elements those of earlier runs come first.
            elements.sort_by(|a, b| match self.runs.descending {
                false => a.0.total_cmp(&b.0),
                true => b.0.total_cmp(&a.0),
            });
            for (&at, &(value, place)) in to.iter().zip(&elements[skipped..]) {
                (values.data_mut()[at], found.data_mut()[at]) = (value, place);
            }
        }
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}

#[test]
fn stretches_of_merged_runs_are_the_same_in_all_layouts() {
    let cases = [
        ([2, 11, 2], 1, vec![4, 4, 9, 11], 2..9, false),
        ([9, 1, 3], 0, vec![5, 9], 0..9, true),
    ];
    for (shape, dim, ends, stretch, descending) in cases {
        let [values, places] = runs(shape, dim, &ends, descending);
        let mut part = shape;
        part[dim] = stretch.len();
        let operands = [Tensor::drawn(part, 1), values, places];
        for by in BOTH {
            let runs = MergedRuns {
                ends: ends.clone(),
                descending,
                from: stretch.start,
            };
            let tried = validate(Stretch { dim, runs, by }, &operands).unwrap();
            assert!(tried.layouts > 40, "{tried:?}");
        }
    }
}

/// Those of sorting: from the first element on, or of one.
#[test]
fn stretches_of_what_is_sorted_are_the_same_in_all_layouts() {
    let number = |i: usize| (i * 7 % 5) as f64;
    let numbers = |count| (0..count).map(number).collect::<Vec<f64>>();
    let wide = (Tensor::new([2, 11, 2], numbers(44)), 4, "S(1)[4,0,5,2]");
    let tall = (Tensor::new([9, 1, 3], numbers(27)), 2, "S(0)[5,4]");
    let check = |(x, ranks, placed): &(Tensor, usize, &str), f: &Applies<'_>| {
        let x = std::slice::from_ref(x);
        let sample = applied_on(&[*ranks], "merge_runs", x, placed, f);
        let tried = Validation::default().run_shared(&sample.op, &sample.inputs);
        let tried = tried.unwrap_or_else(|fault| panic!("{:?}: {fault}", sample.op));
        assert!(tried.layouts > 40, "{tried:?}");
    };
    for by in BOTH {
        check(&wide, &|e, v| sort_by(e, &v[0], 1, false, by).map(drop));
        check(&tall, &|e, v| sort_by(e, &v[0], 0, true, by).map(drop));
    }
    check(&wide, &|e, v| kthvalue(e, &v[0], 3, 1).map(drop));
    check(&wide, &|e, v| topk(e, &v[0], 9, 1, false).map(drop));
}
