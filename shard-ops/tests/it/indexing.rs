//! Rows by index on all layouts: results are one rank's, rows come once, an index that was used before asks for nothing, and what is
//! out of range is everybody's error.

use crate::applied::{applied, validated};
use crate::ranks::{layouts, on_device, on_ranks, received, whole};
use shard_comm::{Bool, DType, DeviceKind, ErrorClass};
use shard_ops::grid::{SampleEdge, SampleMode, Sampling, grid_sample};
use shard_ops::indexing::{
    ScatterReduce, bincount_within, embedding, gather, index_add, index_select, index_select_by,
    scatter_add, scatter_reduce, segment_max, segment_mean, segment_min, segment_sum,
};
use shard_ops::inside::Resolve;
use shard_ops::search::searchsorted;
use shard_ops::select::{masked_select, nonzero};
use shard_ops::testing::{OpSample, Tensor};
use shard_ops::{Engine, Exec, Meta, Op, OpError, RouteBy, Saved, Value};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{Layout, Partition, ReduceOp};
use std::rc::Rc;

fn mix(index: &[usize]) -> usize {
    let add = |h: usize, &i: &usize| (h ^ i).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    index.iter().fold(77, add) >> 7
}

fn number(index: &[usize]) -> f64 {
    (mix(index) % 41) as f64 - 20.0
}

/// An index below `n` or as far from the end, the same one several times.
fn pointer(n: usize, index: &[usize]) -> i64 {
    let value = (mix(index) % (2 * n)) as i64;
    if value < n as i64 {
        value
    } else {
        value - 2 * n as i64
    }
}

fn floats(cx: &Rc<MeshComm>, layout: &Layout) -> Value {
    Value::new(Array::from_fn::<f64>(cx, layout, number).unwrap())
}

fn pointers(cx: &Rc<MeshComm>, layout: &Layout, n: usize) -> Value {
    Value::new(Array::from_fn::<i64>(cx, layout, |i| pointer(n, i)).unwrap())
}

fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Every index of a shape, in row-major order.
fn all_indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let unravel = |number: usize| {
        let (mut rest, mut at) = (number, vec![0; shape.len()]);
        for d in (0..shape.len()).rev() {
            at[d] = rest % shape[d];
            rest /= shape[d];
        }
        at
    };
    (0..count(shape)).map(unravel).collect()
}

fn resolved(value: i64, n: usize) -> usize {
    usize::try_from(value).unwrap_or_else(|_| (value + n as i64) as usize)
}

const MESHES: [&[usize]; 4] = [&[1], &[3], &[2, 2], &[5]];

/// One case of rows along a dim: shapes of the table and the index.
const ROWS: [(&[usize], usize, &[usize]); 5] = [
    (&[7, 3], 0, &[11]),
    (&[2, 6, 3], 1, &[5]),
    (&[4, 5], 1, &[2, 4]),
    (&[6], 0, &[9]),
    (&[3, 2], 0, &[0]),
];

/// The layouts of a table and of an index of its `n` rows under which `pick` gives something else.
fn other_than(
    expected: &[f64],
    cx: &Rc<MeshComm>,
    engine: &Engine,
    [table, index]: [&[usize]; 2],
    n: usize,
    pick: impl Fn(&Value, &Value) -> Value,
) -> Vec<String> {
    let mut bad = Vec::new();
    for rows in layouts(cx.mesh(), table) {
        for named in layouts(cx.mesh(), index) {
            let got = pick(&floats(cx, &rows), &pointers(cx, &named, n));
            if whole(engine, &got) != expected {
                bad.push(format!("{table:?} {rows} | {index:?} {named}"));
            }
        }
    }
    bad
}

#[test]
fn selected_rows_are_one_ranks_under_all_layouts() {
    for mesh in MESHES {
        let bad = on_ranks(mesh, |cx, engine| {
            let mut bad = Vec::new();
            for (shape, dim, index_shape) in ROWS {
                let n = shape[dim];
                let mut out_shape = shape[..dim].to_vec();
                out_shape.extend(index_shape);
                out_shape.extend(&shape[dim + 1..]);
                let expected: Vec<f64> = (all_indices(&out_shape).iter())
                    .map(|at| {
                        let j = pointer(n, &at[dim..dim + index_shape.len()]);
                        let mut source = at[..dim].to_vec();
                        source.push(resolved(j, n));
                        source.extend(&at[dim + index_shape.len()..]);
                        number(&source)
                    })
                    .collect();
                for by in [RouteBy::Auto, RouteBy::Ask, RouteBy::Gather] {
                    let select = |x: &Value, i: &Value| {
                        let got = index_select_by(engine, x, dim, i, by).unwrap();
                        assert_eq!(got.shape(), out_shape, "{by:?}");
                        got
                    };
                    let shapes = [shape, index_shape];
                    bad.extend(other_than(&expected, cx, engine, shapes, n, select));
                }
            }
            bad
        });
        assert!(bad.iter().all(Vec::is_empty), "{mesh:?}: {:?}", bad[0]);
    }
}

#[test]
fn gathered_elements_are_one_ranks_under_all_layouts() {
    let cases: [(&[usize], usize, &[usize]); 3] = [
        (&[7, 3], 0, &[5, 3]),
        (&[4, 6], 1, &[3, 8]),
        (&[2, 5, 3], 1, &[2, 4, 2]),
    ];
    for mesh in MESHES {
        let bad = on_ranks(mesh, |cx, engine| {
            let mut bad = Vec::new();
            for (shape, dim, index_shape) in cases {
                let n = shape[dim];
                let expected: Vec<f64> = (all_indices(index_shape).into_iter())
                    .map(|mut at| {
                        at[dim] = resolved(pointer(n, &at), n);
                        number(&at)
                    })
                    .collect();
                let gathered = |x: &Value, i: &Value| gather(engine, x, dim, i).unwrap();
                let shapes = [shape, index_shape];
                bad.extend(other_than(&expected, cx, engine, shapes, n, gathered));
            }
            bad
        });
        assert!(bad.iter().all(Vec::is_empty), "{mesh:?}: {:?}", bad[0]);
    }
}

#[test]
fn rows_are_added_where_one_rank_adds_them_under_all_layouts() {
    for mesh in MESHES {
        let bad = on_ranks(mesh, |cx, engine| {
            let mut bad = Vec::new();
            for (shape, dim, index_shape) in ROWS {
                let n = shape[dim];
                let mut src_shape = shape[..dim].to_vec();
                src_shape.extend(index_shape);
                src_shape.extend(&shape[dim + 1..]);
                let mut expected: Vec<f64> = all_indices(shape).iter().map(|i| number(i)).collect();
                let places = all_indices(shape);
                for at in all_indices(&src_shape) {
                    let j = pointer(n, &at[dim..dim + index_shape.len()]);
                    let mut target = at[..dim].to_vec();
                    target.push(resolved(j, n));
                    target.extend(&at[dim + index_shape.len()..]);
                    let to = places.iter().position(|p| *p == target).unwrap();
                    expected[to] += 2.0 * number(&at);
                }
                let sources = layouts(cx.mesh(), &src_shape);
                for (t, table) in layouts(cx.mesh(), shape).into_iter().enumerate() {
                    for (k, index) in layouts(cx.mesh(), index_shape).into_iter().enumerate() {
                        let source = &sources[(5 * t + 3 * k) % sources.len()];
                        let (x, i) = (floats(cx, &table), pointers(cx, &index, n));
                        let src = floats(cx, source);
                        let got = index_add(engine, &x, dim, &i, &src, 2.0).unwrap();
                        if whole(engine, &got) != expected {
                            bad.push(format!("{shape:?} {dim} {table} | {index} | {source}"));
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
fn sums_that_are_not_taken_pass() {
    let wrong = on_ranks(&[2, 2], |cx, engine| {
        let mesh = cx.mesh();
        let index = Layout::parse(mesh, &[9], "S(0) R").unwrap();
        let i = pointers(cx, &index, 6);
        // Terms along axis 1 of a table that axis 0 shards, and of rows that are added to one.
        let rows = Layout::parse(mesh, &[6, 2], "S(0)[1,5] R").unwrap();
        let terms = rows.with_partial(&[1], ReduceOp::Sum).unwrap();
        let x = floats(cx, &terms);
        let got = index_select(engine, &x, 0, &i).unwrap();
        assert!(got.layout().partial_axes().contains(&1));
        let same = index_select(engine, &floats(cx, &rows), 0, &i).unwrap();
        assert_eq!(whole(engine, &got), whole(engine, &same));
        let src = Layout::parse(mesh, &[9, 2], "S(0) P(sum)").unwrap();
        let whole_src = Layout::parse(mesh, &[9, 2], "S(0) R").unwrap();
        let base = floats(cx, &rows);
        let got = index_add(engine, &base, 0, &i, &floats(cx, &src), 1.0).unwrap();
        let same = index_add(engine, &base, 0, &i, &floats(cx, &whole_src), 1.0).unwrap();
        whole(engine, &got) != whole(engine, &same)
    });
    assert!(!wrong.contains(&true));
}

#[test]
fn padding_gets_no_gradient_and_types_other_than_numbers_are_taken() {
    on_ranks(&[3], |cx, engine| {
        let mesh = cx.mesh();
        let table = Layout::parse(mesh, &[5, 2], "S(0)").unwrap();
        let index = Layout::parse(mesh, &[4], "S(0)").unwrap();
        let short = Array::from_fn::<i32>(cx, &index, |i| i[0] as i32 - 2).unwrap();
        let flags = Array::from_fn(cx, &table, |i| shard_comm::Bool::from(i[0] > 2)).unwrap();
        let got = index_select(engine, &flags.into(), 0, &short.into()).unwrap();
        assert_eq!((got.dtype(), got.shape()), (DType::Bool, &[4, 2][..]));
        let wide = Array::from_fn::<i64>(cx, &index, |i| 7 * i[0] as i64).unwrap();
        let wrong = embedding(engine, &wide.into(), &floats(cx, &table), Some(5));
        assert!(matches!(wrong, Err(OpError::Shape { .. })));
    });
}

/// Kernels of other devices are others: what they make of a few layouts is what the host makes.
#[test]
fn other_devices_make_the_same() {
    let mut kinds = vec![DeviceKind::Test];
    if cfg!(feature = "cuda-emulated") {
        kinds.push(DeviceKind::EmulatedCuda);
    }
    let run = |kind: DeviceKind, mesh: &[usize]| {
        on_device(kind, mesh, |cx, engine| {
            let mut made = Vec::new();
            for (shape, dim, index_shape) in ROWS {
                let mut src_shape = shape[..dim].to_vec();
                src_shape.extend(index_shape);
                src_shape.extend(&shape[dim + 1..]);
                let tables = layouts(cx.mesh(), shape);
                let sources = layouts(cx.mesh(), &src_shape);
                let along = layouts(cx.mesh(), shape);
                for (k, index) in layouts(cx.mesh(), index_shape).into_iter().enumerate() {
                    let x = floats(cx, &tables[(3 * k + 1) % tables.len()]);
                    let src = floats(cx, &sources[(5 * k + 2) % sources.len()]);
                    let i = pointers(cx, &index, shape[dim]);
                    made.push(whole(engine, &index_select(engine, &x, dim, &i).unwrap()));
                    let sums = index_add(engine, &x, dim, &i, &src, 1.0).unwrap();
                    made.push(whole(engine, &sums));
                    let pointers = pointers(cx, &along[(7 * k) % along.len()], shape[dim]);
                    made.push(whole(engine, &gather(engine, &x, dim, &pointers).unwrap()));
                    let sums = scatter_add(engine, &x, dim, &pointers, &x).unwrap();
                    made.push(whole(engine, &sums));
                    // Rows of one dim alone have a fold of their own for each reduction.
                    if index_shape.len() == 1 && dim == 0 {
                        let src = floats(cx, &sources[(5 * k + 2) % sources.len()]);
                        for fold in [segment_max, segment_min, segment_sum] {
                            let ids = Array::from_fn::<i64>(cx, &index, |i| i[0] as i64 % 3);
                            let folded = fold(engine, &src, &ids.unwrap().into(), 4).unwrap();
                            made.push(whole(engine, &folded));
                        }
                    }
                }
            }
            assert_eq!(cx.world().ledger().snapshot().fallbacks, 0);
            made
        })
    };
    for mesh in [&[3][..], &[2, 2]] {
        let expected = run(DeviceKind::Host, mesh);
        for &kind in &kinds {
            assert_eq!(run(kind, mesh), expected, "{kind:?} {mesh:?}");
        }
    }
}

#[test]
fn distinct_rows_come_once_and_a_known_index_asks_for_nothing() {
    // 1000 rows of 16 numbers on four ranks; each rank names 300 times few rows of its neighbour.
    let figures = on_ranks(&[4], |cx, engine| {
        let mesh = cx.mesh();
        let table = Layout::parse(mesh, &[1000, 16], "S(0)").unwrap();
        let wide = Layout::parse(mesh, &[1000, 3], "S(0)").unwrap();
        let index = Layout::parse(mesh, &[1200], "S(0)").unwrap();
        let near = |i: &[usize]| {
            let (rank, k) = (i[0] / 300, i[0] % 300);
            ((250 * rank + 200 + k % 57) % 1000) as i64
        };
        let index = Value::new(Array::from_fn::<i64>(cx, &index, near).unwrap());
        let (x, y) = (floats(cx, &table), floats(cx, &wide));
        // Of the 57 rows 7 are the neighbour's.
        let first = received(cx, || drop(index_select(engine, &x, 0, &index).unwrap()));
        let again = received(cx, || {
            drop(index_select(engine, &x, 0, &index.clone()).unwrap());
        });
        let other = received(cx, || drop(index_select(engine, &y, 0, &index).unwrap()));
        let rows = floats(cx, &Layout::parse(mesh, &[1200, 16], "S(0)").unwrap());
        let home = received(cx, || {
            drop(index_add(engine, &x, 0, &index, &rows, 1.0).unwrap());
        });
        let copy = Array::from_fn::<i64>(cx, index.layout(), near).unwrap();
        let fresh = received(cx, || {
            drop(index_select(engine, &x, 0, &copy.into()).unwrap());
        });
        [first, again, other, home, fresh]
    });
    for [first, again, other, home, fresh] in figures {
        let rows = 7 * 16 * 8;
        // Requests of four bytes each, and three numbers of the counts round.
        assert_eq!(first, rows + 7 * 4 + 3 * 8);
        assert!(first <= rows + 8 * 7);
        assert_eq!((again, other, home), (rows, 7 * 3 * 8, rows));
        assert_eq!(fresh, first);
    }
}

#[test]
fn what_is_out_of_range_is_everybodys_error_before_a_row_moves() {
    let ends = on_ranks(&[3], |cx, engine| {
        let mesh = cx.mesh();
        let layout = |shape: &[usize], text: &str| Layout::parse(mesh, shape, text).unwrap();
        let x = floats(cx, &layout(&[10, 2], "S(0)"));
        let mut texts = Vec::new();
        for table in ["S(0)", "R", "S(1)"] {
            let x = floats(cx, &layout(&[10, 2], table));
            // Only rank 2 has the bad one.
            let bad = |i: &[usize]| if i[0] == 7 { -11 } else { i[0] as i64 };
            let bad = Array::from_fn::<i64>(cx, &layout(&[9], "S(0)"), bad).unwrap();
            let moved = received(cx, || {
                let error = index_select(engine, &x, 0, &bad.clone().into()).unwrap_err();
                assert_eq!(error.class(), ErrorClass::Agreed);
                texts.push(error.to_string());
            });
            assert!(moved <= 9 * 8, "{table}: {moved}");
        }
        let bad = Array::from_fn::<i64>(cx, &layout(&[9], "S(0)"), |_| 10).unwrap();
        assert!(index_add(engine, &x, 0, &bad.into(), &x, 1.0).is_err());
        // The group goes on.
        let good = Array::from_fn::<i64>(cx, &layout(&[9], "S(0)"), |i| i[0] as i64).unwrap();
        assert!(index_select(engine, &x, 0, &good.into()).is_ok());
        texts
    });
    for text in &ends {
        assert_eq!(text, &ends[0]);
    }
    for text in &ends[0][..1] {
        assert!(
            text.contains(
                "rank 2: expected indices from -10 to below 10, the extent of the dim, got index -11 at position [7]"
            ),
            "{text}"
        );
    }
}

#[test]
fn the_choice_is_printed() {
    use std::sync::Arc;
    let texts = on_ranks(&[2], |cx, engine| {
        let mesh = cx.mesh();
        let layout = |shape: &[usize], text: &str| Layout::parse(mesh, shape, text).unwrap();
        let told = Rc::new(std::cell::RefCell::new(String::new()));
        let into = told.clone();
        let tell = move |engine: &Engine, op: &Arc<dyn shard_ops::Op>, inputs: &[&Array]| {
            *into.borrow_mut() = engine.explain(op, inputs)?;
            engine.run(op, inputs)
        };
        engine.register("take", Rc::new(tell));
        let mut texts = Vec::new();
        for (rows, width, table, picks, index) in [
            (1000, 64, "S(0)", 100, "S(0)"),
            (10, 1, "S(0)", 1000, "S(0)"),
            (1000, 8, "S(0)", 10, "R"),
            (1000, 8, "S(0)", 10_000, "R"),
        ] {
            let x = floats(cx, &layout(&[rows, width], table));
            let i = pointers(cx, &layout(&[picks], index), rows);
            index_select(engine, &x, 0, &i).unwrap();
            texts.push(told.borrow().clone());
        }
        texts
    });
    assert_eq!(texts[0], texts[1]);
    assert_eq!(
        texts[0],
        [
            "out S(0); rows by Ask of Ask (at most 26000 bytes), Gather (256000 bytes)",
            "out S(0); input 0: exchange in 2 pieces; rows by Gather of Ask (at most 80 bytes), Gather (40 bytes)",
            "out P(sum)",
            "out R; rows by Ask of Ask (at most 36000 bytes), Gather (32000 bytes)",
        ]
    );
}

#[test]
fn what_a_condition_picks_stands_in_one_ranks_order() {
    let mut kinds = vec![DeviceKind::Host, DeviceKind::Test];
    if cfg!(feature = "cuda-emulated") {
        kinds.push(DeviceKind::EmulatedCuda);
    }
    for kind in kinds {
        for (mesh, shape) in [
            (&[3][..], &[11, 4][..]),
            (&[2, 2], &[5, 2, 3]),
            (&[5], &[3]),
        ] {
            let picks = |i: &[usize]| mix(i).is_multiple_of(3);
            let all: Vec<Vec<usize>> = all_indices(shape)
                .into_iter()
                .filter(|i| picks(i))
                .collect();
            let values: Vec<f64> = all.iter().map(|i| number(i)).collect();
            let places: Vec<i64> = all.iter().flatten().map(|&i| i as i64).collect();
            let bad =
                on_device(kind, mesh, |cx, engine| {
                    let mut bad = Vec::new();
                    for (k, layout) in layouts(cx.mesh(), shape).into_iter().enumerate() {
                        let others = layouts(cx.mesh(), shape);
                        let mask = &others[(7 * k + 3) % others.len()];
                        let mask = Array::from_fn(cx, mask, |i| shard_comm::Bool::from(picks(i)));
                        let mask = Value::new(mask.unwrap());
                        let found = masked_select(engine, &floats(cx, &layout), &mask).unwrap();
                        let mut same = whole(engine, &found) == values;
                        let marks = Array::from_fn::<f64>(cx, &layout, |i| {
                            if picks(i) { f64::NAN } else { -0.0 }
                        });
                        let found = nonzero(engine, &Value::new(marks.unwrap())).unwrap();
                        assert_eq!(found.shape(), [all.len(), shape.len()]);
                        let to = Layout::replicated(cx.mesh(), found.shape());
                        let found = engine.redistribute(&found, &to).unwrap();
                        same &= found.array().to_vec::<i64>().unwrap() == places;
                        if !same {
                            bad.push(format!("{layout}"));
                        }
                    }
                    assert_eq!(cx.world().ledger().snapshot().fallbacks, 0);
                    bad
                });
            assert!(
                bad.iter().all(Vec::is_empty),
                "{kind:?} {mesh:?}: {:?}",
                bad[0]
            );
        }
    }
}

#[test]
fn places_among_sorted_elements_are_one_ranks() {
    let mut kinds = vec![DeviceKind::Host];
    if cfg!(feature = "cuda-emulated") {
        kinds.push(DeviceKind::EmulatedCuda);
    }
    let sorted = |i: &[usize]| (i[i.len() - 1] / 2) as f64 * 1.5;
    let of = |i: &[usize]| match mix(i) % 9 {
        0 => f64::NAN,
        k => k as f64 * 1.5 - 1.5,
    };
    for kind in kinds {
        for (mesh, list, values) in [
            (&[3][..], &[13][..], &[4, 3][..]),
            (&[2, 2], &[2, 9], &[2, 5]),
            (&[5], &[3], &[0]),
            (&[2], &[0], &[4]),
        ] {
            let expected = |right: bool| -> Vec<i64> {
                let count = |at: Vec<usize>| {
                    let value = of(&at);
                    let before = |j: &usize| {
                        let x = sorted(&[*j]);
                        x < value || value.is_nan() || (right && x == value)
                    };
                    (0..list[list.len() - 1]).filter(before).count() as i64
                };
                all_indices(values).into_iter().map(count).collect()
            };
            let bad = on_device(kind, mesh, |cx, engine| {
                let mut bad = Vec::new();
                for from in layouts(cx.mesh(), list) {
                    for to in layouts(cx.mesh(), values) {
                        for right in [false, true] {
                            let list = Array::from_fn::<f64>(cx, &from, sorted).unwrap();
                            let x = Array::from_fn::<f64>(cx, &to, of).unwrap();
                            let got = searchsorted(engine, &list.into(), &x.into(), right).unwrap();
                            let all = Layout::replicated(cx.mesh(), values);
                            let got = engine.redistribute(&got, &all).unwrap();
                            if got.array().to_vec::<i64>().unwrap() != expected(right) {
                                bad.push(format!("{from} | {to} {right}"));
                            }
                        }
                    }
                }
                bad
            });
            assert!(
                bad.iter().all(Vec::is_empty),
                "{kind:?} {mesh:?}: {:?}",
                bad[0]
            );
        }
    }
}

#[test]
fn ranks_that_do_not_agree_who_was_asked_before_are_told() {
    on_ranks(&[2], |cx, engine| {
        let mesh = cx.mesh();
        let x = floats(cx, &Layout::parse(mesh, &[6, 2], "S(0)").unwrap());
        let layout = Layout::parse(mesh, &[4], "S(0)").unwrap();
        let index = || Value::new(Array::from_fn::<i64>(cx, &layout, |i| i[0] as i64).unwrap());
        let known = index();
        index_select(engine, &x, 0, &known).unwrap();
        // The same elements, but on one rank not the value that was used before.
        let mixed = if cx.rank() == 0 {
            known.clone()
        } else {
            index()
        };
        let error = index_select(engine, &x, 0, &mixed).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform, "{error}");
        // The group goes on.
        assert!(index_select(engine, &x, 0, &known).is_ok());
    });
}

/// What the owner of a row makes of it: its base, then what the ranks add in their order, sums but for its own.
#[test]
fn contributions_are_folded_in_by_the_order_of_ranks_on_every_device() {
    // Sums of numbers of very different size tell the order.
    let term = |i: usize| {
        let scale = [1.0, 1e-7, 1e7, -1e7, 3e-5][mix(&[i]) % 5];
        ((mix(&[i, 3]) % 1000) as f32 / 7.0 + 0.1) * scale
    };
    let (rows, terms, ranks): (usize, usize, usize) = (7, 60, 3);
    let table = [2, 1, 4];
    let parts = [13, 22, 25];
    let target = |i: usize| mix(&[i, 9]) % rows;
    let part_of = |sizes: &[usize], i: usize| {
        let ends = sizes.iter().scan(0, |end, n| {
            *end += n;
            Some(*end)
        });
        ends.into_iter().take_while(|&end| end <= i).count()
    };
    let mut expected: Vec<f32> = (0..rows).map(|i| term(1000 + i)).collect();
    for (row, sum) in expected.iter_mut().enumerate() {
        for rank in 0..ranks {
            let named = (0..terms).filter(|&i| part_of(&parts, i) == rank && target(i) == row);
            let mut named = named.map(term).peekable();
            if rank == part_of(&table, row) {
                named.for_each(|x| *sum += x);
            } else if named.peek().is_some() {
                *sum += named.fold(0.0, |a, x| a + x);
            }
        }
    }
    let expected: Vec<u32> = expected.into_iter().map(f32::to_bits).collect();
    let mut kinds = vec![DeviceKind::Host, DeviceKind::Test];
    if cfg!(feature = "cuda-emulated") {
        kinds.push(DeviceKind::EmulatedCuda);
    }
    for kind in kinds {
        let found = on_device(kind, &[ranks], |cx, engine| {
            let divided = |shape: &[usize], sizes: &[usize]| {
                let partition = Partition::from_sizes(sizes).unwrap();
                let layout = Layout::builder(cx.mesh(), shape).shard(0, &[0], partition);
                layout.build().unwrap()
            };
            let numbers = |layout: &Layout, first: usize| {
                Value::new(Array::from_fn::<f32>(cx, layout, |i| term(first + i[0])).unwrap())
            };
            let x = numbers(&divided(&[rows], &table), 1000);
            let src = numbers(&divided(&[terms], &parts), 0);
            let index = divided(&[terms], &parts);
            let index = Array::from_fn::<i64>(cx, &index, |i| target(i[0]) as i64).unwrap();
            let sums = index_add(engine, &x, 0, &index.into(), &src, 1.0).unwrap();
            let to = Layout::replicated(cx.mesh(), &[rows]);
            let sums = engine.redistribute(&sums, &to).unwrap();
            let sums = sums.array().to_vec::<f32>().unwrap();
            sums.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        assert!(
            found.iter().all(|f| *f == expected),
            "{kind:?}: {found:?}, not {expected:?}"
        );
    }
}

#[test]
fn a_table_larger_than_what_is_asked_for_stays_where_it_is() {
    // Five rows of a table of 10,000, and one row of all others' for every rank.
    let figures = on_ranks(&[4], |cx, engine| {
        let mesh = cx.mesh();
        let table = floats(cx, &Layout::parse(mesh, &[10_000, 8], "S(0)").unwrap());
        let index = |text: &str| {
            let layout = Layout::parse(mesh, &[5], text).unwrap();
            Value::new(Array::from_fn::<i64>(cx, &layout, |i| 2100 * i[0] as i64).unwrap())
        };
        let few = floats(cx, &Layout::parse(mesh, &[5, 8], "S(0)").unwrap());
        let whole = floats(cx, &Layout::parse(mesh, &[5, 8], "R").unwrap());
        let column = Layout::parse(mesh, &[5, 8], "R").unwrap();
        let column = Array::from_fn::<i64>(cx, &column, |i| 2100 * i[0] as i64 + i[1] as i64);
        let column = Value::new(column.unwrap());
        [
            received(cx, || {
                drop(index_select(engine, &table, 0, &index("S(0)")).unwrap());
            }),
            received(cx, || {
                drop(index_select(engine, &table, 0, &index("R")).unwrap());
            }),
            received(cx, || {
                drop(embedding(engine, &index("S(0)"), &table, None).unwrap());
            }),
            received(cx, || {
                drop(embedding(engine, &index("R"), &table, Some(3)).unwrap());
            }),
            received(cx, || drop(gather(engine, &table, 0, &column).unwrap())),
            received(cx, || {
                drop(index_add(engine, &table, 0, &index("S(0)"), &few, 1.0).unwrap());
            }),
            received(cx, || {
                drop(index_add(engine, &table, 0, &index("R"), &whole, 1.0).unwrap());
            }),
            received(cx, || {
                drop(scatter_add(engine, &table, 0, &column, &whole).unwrap());
            }),
        ]
    });
    for bytes in figures {
        // Rows of 64 bytes with a request each, or a request for each of their elements, and the counts round.
        let most = 5 * (64 + 8 * 8) + 3 * 8;
        assert!(bytes.iter().all(|&b| b <= most), "{bytes:?}");
    }
}

#[test]
fn only_whole_numbers_are_indices() {
    let meta = |dtype| Meta {
        shape: [3].into_iter().collect(),
        dtype,
    };
    let of = |dtype| Resolve { name: "index" }.rule(&[meta(DType::Bool), meta(dtype)]);
    assert!(of(DType::I64).is_ok() && of(DType::I32).is_ok() && of(DType::F32).is_err());
}

/// Of a byte there are 256 values, and of elements that meet at a place there may be more.
#[test]
fn more_elements_than_a_narrow_type_can_count_meet_at_one_place() {
    const MANY: usize = 512;
    let found = on_ranks(&[2], |cx, engine| {
        let line = |n: usize| Layout::parse(cx.mesh(), &[n], "S(0)").unwrap();
        let bytes = |n: usize, of: u8| Value::new(Array::from_fn(cx, &line(n), |_| of).unwrap());
        let index = Value::new(Array::from_fn(cx, &line(MANY), |_| 1_i64).unwrap());
        let (x, src) = (bytes(3, 9), bytes(MANY, 200));
        let reduced = |how, own| {
            let made = scatter_reduce(engine, &x, 0, &index, &src, how, own).unwrap();
            let whole = Layout::replicated(cx.mesh(), &[3]);
            let made = engine.redistribute(&made, &whole).unwrap();
            made.array().to_vec::<u8>().unwrap()
        };
        let min = scatter_reduce(engine, &x, 0, &index, &src, ScatterReduce::Min, false);
        assert_eq!(min.unwrap().dtype(), DType::U8);
        [
            reduced(ScatterReduce::Max, false),
            reduced(ScatterReduce::Mean, false),
            reduced(ScatterReduce::Mean, true),
        ]
    });
    // The last one is of 512 times 200 and one 9.
    assert_eq!(found, vec![[[9, 200, 9], [9, 200, 9], [9, 199, 9]]; 2]);
}

/// As sums over dims are.
#[test]
fn sums_of_narrow_weights_are_wide() {
    let found = on_ranks(&[2], |cx, engine| {
        let rows = Layout::parse(cx.mesh(), &[3], "S(0)").unwrap();
        let numbers = Value::new(Array::from_fn(cx, &rows, |i| i[0] as i64 / 2).unwrap());
        let weights = [
            Value::new(Array::from_fn(cx, &rows, |_| 200_u8).unwrap()),
            Value::new(Array::from_fn(cx, &rows, |_| i32::MAX).unwrap()),
            Value::new(Array::from_fn(cx, &rows, |i| Bool::from(i[0] > 0)).unwrap()),
        ];
        weights.map(|weights| {
            let sums = bincount_within(engine, &numbers, Some(&weights), 2).unwrap();
            let whole = Layout::replicated(cx.mesh(), &[2]);
            let sums = engine.redistribute(&sums, &whole).unwrap();
            sums.array().to_vec::<i64>().unwrap()
        })
    });
    let most = i64::from(i32::MAX);
    assert_eq!(found, vec![[[400, 200], [2 * most, most], [1, 1]]; 2]);
}

#[test]
fn means_of_segments_of_integers_are_refused() {
    let errors = on_ranks(&[2], |cx, engine| {
        let rows = Layout::parse(cx.mesh(), &[4], "S(0)").unwrap();
        let whole_numbers = Value::new(Array::from_fn(cx, &rows, |i| i[0] as i64).unwrap());
        segment_mean(engine, &whole_numbers, &whole_numbers, 4).unwrap_err()
    });
    for error in errors {
        assert!(
            matches!(
                &error,
                OpError::DType {
                    op: "segment_mean",
                    got: DType::I64,
                    ..
                }
            ),
            "{error}"
        );
    }
}

/// What sampling at coordinates is made of where the host computes it: sums of rows by weights, and what they give back to rows and weights.
#[test]
fn sums_of_weighted_rows_are_one_ranks_under_all_layouts() {
    let operands = [
        Tensor::drawn([2, 3, 4, 5], 1),
        Tensor::drawn([2, 3, 2, 2], 2),
    ];
    let sampling = Sampling {
        mode: SampleMode::Linear,
        edge: SampleEdge::Zeros,
        aligned: false,
    };
    let sampled = |e: &dyn Exec, v: &[Value]| grid_sample(e, &v[0], &v[1], sampling).map(drop);
    let tried = validated("weigh_rows", &operands, &sampled);
    assert!(tried.slopes > 0);
    // The ops of its derivative, of operands as it has them.
    let OpSample { op, inputs, .. } = applied("weigh_rows", &operands, &sampled);
    let places = Tensor::drawn([2, 3, 2, 3], 3);
    let [table, index, weights] = &inputs[..] else {
        panic!("{} operands", inputs.len())
    };
    let of = |needs: [bool; 3]| {
        let operands = [table, index, weights, &places].map(Clone::clone);
        let vjp = |e: &dyn Exec, v: &[Value]| {
            let saved = Saved {
                inputs: &v[..3],
                outputs: &[],
                needs: &needs,
                terms: None,
            };
            op.vjp(e, &saved, &[Some(v[3].clone())]).map(drop)
        };
        let name = if needs[0] { "spread_rows" } else { "row_dots" };
        validated(name, &operands, &vjp)
    };
    for needs in [[true, false, false], [false, false, true]] {
        assert!(of(needs).slopes > 0, "{needs:?}");
    }
}
