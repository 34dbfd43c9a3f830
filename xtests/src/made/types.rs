//! Ops on integers and truth values, masks, triangles and scans, where the reference files have few: what one rank gives, of
//! operands that have zeros, ties and numbers whose sums wrap among them. That it is right on one rank is for the tests of the
//! kernels to say.

use super::as_on_one_rank;
use crate::case::{Case, Data, Tensor};
use crate::strategies::integer;
use serde_json::{Value as Json, json};
use shard_spec::numel;
use std::sync::Arc;

/// An operand: its name, kind and shape.
pub(super) type Operand = (&'static str, Kind, &'static [usize]);

/// What an operand's elements are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Eighths of small whole numbers, zero among them.
    Float,
    /// Odd eighths, of which none is zero: factors that are infinite are no part of the promise on sums.
    Odd,
    /// Small whole numbers of either sign.
    Small,
    /// Whole numbers whose products, and sums of several, wrap.
    Large,
    /// Whole numbers from 0 to 4.
    Class,
    /// Numbers between 0 and 1.
    Share,
    /// Truth values.
    Truth,
    /// The numbers below as many as there are elements, each once.
    Once,
    /// Rising halves.
    Rising,
    /// Even whole numbers from 0 on.
    Begins,
}

use Kind::{Begins, Class, Float, Large, Odd, Once, Rising, Share, Small, Truth};

impl Kind {
    /// Elements of this kind, which the seed fixes.
    pub fn tensor(self, shape: &[usize], seed: u64) -> Tensor {
        let at = |i: usize| integer(seed, i);
        let whole = |f: &dyn Fn(usize) -> i64| Data::I64((0..numel(shape)).map(f).collect());
        let data = match self {
            Self::Float => Data::F64((0..numel(shape)).map(|i| at(i) / 8.0).collect()),
            Self::Odd => Data::F64((0..numel(shape)).map(|i| at(i) / 4.0 + 0.125).collect()),
            Self::Share => Data::F64(
                (0..numel(shape))
                    .map(|i| (at(i).abs() + 0.5) / 11.0)
                    .collect(),
            ),
            Self::Small => whole(&|i| at(i) as i64),
            Self::Large => whole(&|i| (at(i) as i64).wrapping_mul(i64::MAX / 7)),
            Self::Class => whole(&|i| (at(i) as i64).rem_euclid(5)),
            Self::Begins => whole(&|i| 2 * i as i64),
            Self::Once => whole(&|i| (numel(shape) - 1 - i) as i64),
            Self::Rising => Data::F64((0..numel(shape)).map(|i| i as f64 / 2.0 - 0.75).collect()),
            Self::Truth => Data::Bool((0..numel(shape)).map(|i| u8::from(at(i) > 1.0)).collect()),
        };
        Tensor {
            shape: shape.to_vec(),
            data: Arc::new(data),
        }
    }
}

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |op: &str, attributes: Json, operands: &[Operand]| {
        let number = all.len() as u64;
        all.push(case("types", op, attributes, operands, number));
    };
    pairs(&mut add);
    products(&mut add);
    reductions(&mut add);
    choices(&mut add);
    scans(&mut add);
    counts(&mut add);
    rows(&mut add);
    several(&mut add);
    places(&mut add);
    bags(&mut add);
    recurrences(&mut add);
    groups(&mut add);
    all
}

/// Adds a case of an op with attributes and operands.
pub(super) type Add<'a> = &'a mut dyn FnMut(&str, Json, &[Operand]);

fn pairs(add: Add<'_>) {
    let (left, right): (&[usize], &[usize]) = (&[7, 1, 3], &[5, 3]);
    for op in [
        "add",
        "sub",
        "mul",
        "maximum",
        "minimum",
        "floor_div",
        "remainder",
        "pow",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "shift_left",
        "shift_right",
        "gcd",
        "lcm",
    ] {
        add(op, json!({}), &[("a", Large, left), ("b", Small, right)]);
    }
    for op in ["floor_div", "remainder"] {
        add(op, json!({}), &[("a", Float, left), ("b", Odd, right)]);
    }
    for op in ["add", "mul", "bitwise_xor", "maximum"] {
        add(op, json!({}), &[("a", Truth, left), ("b", Truth, right)]);
    }
    for op in [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
    ] {
        for kind in [Float, Small, Truth] {
            add(op, json!({}), &[("a", kind, left), ("b", kind, right)]);
        }
    }
    for (op, kind) in [
        ("logical_not", Float),
        ("logical_not", Truth),
        ("bitwise_not", Small),
        ("neg", Large),
        ("abs", Small),
        ("sign", Small),
        ("square", Large),
    ] {
        add(op, json!({}), &[("input", kind, left)]);
    }
    let ends = json!({"min": -2, "max": 3});
    add("clamp", ends, &[("input", Small, left)]);
    for (kind, to) in [
        (Float, "int64"),
        (Float, "bool"),
        (Small, "float64"),
        (Small, "bool"),
        (Truth, "float64"),
        (Truth, "int64"),
    ] {
        add("to", json!({"dtype": to}), &[("input", kind, left)]);
    }
}

/// Products of matrices of integers.
fn products(add: Add<'_>) {
    let (x, w) = (("a", Large, &[2, 5, 7][..]), ("b", Small, &[7, 3][..]));
    add("matmul", json!({}), &[x, w]);
    add("matmul", json!({}), &[("a", Large, &[7]), w]);
    let (x, w) = (
        ("input", Large, &[5, 7][..]),
        ("weight", Small, &[4, 7][..]),
    );
    add("linear", json!({}), &[x, w]);
    add("linear", json!({}), &[x, w, ("bias", Large, &[4])]);
}

fn reductions(add: Add<'_>) {
    for kind in [Large, Truth] {
        for op in ["sum", "prod", "amax", "amin", "all", "any", "count_nonzero"] {
            let attributes = json!({"dim": [0, 2]});
            add(op, attributes, &[("input", kind, &[7, 2, 5])]);
        }
        add("amin", json!({"dim": 1}), &[("input", kind, &[4, 0])]);
    }
    for op in ["all", "any", "count_nonzero"] {
        let attributes = json!({"keepdim": true, "dim": 1});
        add(op, attributes, &[("input", Float, &[3, 11])]);
    }
}

fn choices(add: Add<'_>) {
    let mask = ("condition", Truth, &[7, 1][..]);
    for kind in [Float, Large, Truth] {
        let [a, b]: [Operand; 2] = [("a", kind, &[5]), ("b", kind, &[7, 5])];
        add("where", json!({}), &[mask, a, b]);
    }
    let mask = ("mask", Truth, &[6, 1, 4][..]);
    let fill = json!({"value": 0});
    add("masked_fill", fill, &[("input", Float, &[3, 4]), mask]);
    let fill = json!({"value": -9});
    add("masked_fill", fill, &[("input", Large, &[6, 3, 1]), mask]);
    let classes = json!({"num_classes": 5});
    add("one_hot", classes, &[("input", Class, &[4, 3])]);
    for op in ["tril", "triu"] {
        for diagonal in [-3, 0, 2] {
            let attributes = json!({"diagonal": diagonal});
            add(op, attributes.clone(), &[("input", Float, &[2, 7, 5])]);
            add(op, attributes, &[("input", Large, &[5, 8])]);
        }
    }
    let shapes: [(i32, &[usize]); 4] = [(0, &[7, 7]), (2, &[5, 9]), (-3, &[8, 4]), (9, &[3, 4])];
    for (offset, shape) in shapes {
        let attributes = json!({"offset": offset});
        add("diagonal", attributes, &[("input", Float, shape)]);
    }
    let attributes = json!({"offset": 1, "dim1": 2, "dim2": 0});
    add("diagonal", attributes, &[("input", Large, &[6, 3, 5])]);
}

fn scans(add: Add<'_>) {
    let shapes: [(i32, &[usize]); 4] = [(0, &[11]), (1, &[3, 7, 2]), (-1, &[4, 9]), (0, &[0, 3])];
    for (dim, shape) in shapes {
        let attributes = json!({"dim": dim});
        for op in ["cumsum", "cumprod"] {
            for kind in [Float, Large, Truth] {
                add(op, attributes.clone(), &[("input", kind, shape)]);
            }
        }
        for op in ["cummax", "cummin"] {
            for kind in [Float, Small, Truth] {
                add(op, attributes.clone(), &[("input", kind, shape)]);
            }
        }
        add("logcumsumexp", attributes, &[("input", Float, shape)]);
    }
}

/// Recurrences whose factors are one for each element, for each line, or for all, among them zeros; from nothing or from a first state.
fn recurrences(add: Add<'_>) {
    /// A dim, and the shapes of terms, factors and first states.
    type Shapes = (i32, [&'static [usize]; 3]);
    let shapes: [Shapes; 7] = [
        (0, [&[11], &[11], &[1]]),
        (1, [&[3, 7, 2], &[3, 7, 2], &[3, 1, 2]]),
        (-1, [&[4, 9], &[4, 1], &[4, 1]]),
        (0, [&[9, 4], &[4], &[1]]),
        (1, [&[1, 2], &[3, 7, 2], &[2]]),
        (1, [&[5, 8], &[], &[5, 1]]),
        (0, [&[0, 3], &[0, 3], &[1, 3]]),
    ];
    for (dim, [terms, factors, first]) in shapes {
        for backwards in [false, true] {
            let attributes = json!({"dim": dim, "backwards": backwards});
            let operands = [
                ("input", Float, terms),
                ("factors", Float, factors),
                ("first", Odd, first),
            ];
            add("linear_recurrence", attributes.clone(), &operands[..2]);
            add("linear_recurrence", attributes, &operands);
        }
    }
}

fn counts(add: Add<'_>) {
    let both = json!({"return_inverse": true, "return_counts": true});
    for op in ["unique", "unique_consecutive"] {
        for kind in [Float, Class, Truth] {
            for shape in [&[4, 7][..], &[23], &[0, 3], &[]] {
                add(op, both.clone(), &[("input", kind, shape)]);
            }
        }
    }
    for shape in [&[3, 9][..], &[1], &[0]] {
        let operand = ("input", Class, shape);
        add("bincount", json!({}), &[operand]);
        add("bincount", json!({"minlength": 9}), &[operand]);
        let weights = ("weights", Float, shape);
        add("bincount", json!({"minlength": 2}), &[operand, weights]);
        add("histc", json!({"bins": 4}), &[("input", Float, shape)]);
    }
    add("one_hot", json!({}), &[("input", Class, &[3, 7])]);
    let x = ("input", Float, &[5, 6][..]);
    for (density, bins) in [
        (false, json!({"bins": 7})),
        (true, json!({"bins": 1, "density": true})),
        (false, json!({"bins": 3, "range": [-0.5, 0.25]})),
        (
            true,
            json!({"bins": 3, "range": [0.5, 0.5], "density": true}),
        ),
    ] {
        add("histogram", bins.clone(), &[x]);
        // A density needs weights whose sum is not zero.
        if !density {
            add("histogram", bins, &[x, ("weight", Float, &[5, 6])]);
        }
    }
    add("histc", json!({"bins": 5, "min": -0.5, "max": 0.5}), &[x]);
    let bins = json!({"bins": [3, 2], "range": [-1.0, 1.0, -0.5, 0.75]});
    add("histogramdd", bins, &[("input", Float, &[9, 2])]);
    for mask in [&[5, 6][..], &[6], &[5, 1]] {
        let operands = [x, ("mask", Truth, mask), ("source", Float, &[4, 8])];
        add("masked_scatter", json!({}), &operands);
    }
    let operands = [
        ("input", Large, &[0, 6][..]),
        ("mask", Truth, &[6]),
        ("source", Large, &[0]),
    ];
    add("masked_scatter", json!({}), &operands);
}

/// Rows and elements that an operand names, or that a condition holds of.
fn rows(add: Add<'_>) {
    let x = ("input", Float, &[7, 3][..]);
    let index = ("index", Class, &[4, 3][..]);
    add("take_along_dim", json!({"dim": 0}), &[x, index]);
    let (once, src) = (("index", Once, &[4][..]), ("src", Odd, &[4, 3][..]));
    add("index_copy", json!({"dim": 0}), &[x, once, src]);
    let places = ("index0", Class, &[5][..]);
    let put = ("values", Odd, &[5, 3][..]);
    add("index_put", json!({"accumulate": true}), &[x, places, put]);
    let places = ("index0", Once, &[5][..]);
    add("index_put", json!({}), &[x, places, put]);
    let ids = ("ids", Class, &[7][..]);
    for op in [
        "segment_sum",
        "segment_mean",
        "segment_max",
        "segment_min",
        "segment_softmax",
        "segment_max_with_indices",
        "segment_min_with_indices",
    ] {
        add(op, json!({"num_segments": 6}), &[x, ids]);
    }
    let counts = ("counts", Class, &[7][..]);
    add("repeat_interleave_each", json!({"dim": 0}), &[x, counts]);
    clouds(add);
    segments(add);
    for mask in [&[7, 3][..], &[7, 1]] {
        add("masked_select", json!({}), &[x, ("mask", Truth, mask)]);
    }
    for kind in [Float, Small, Truth] {
        add("nonzero", json!({}), &[("input", kind, &[7, 3])]);
    }
    add("argsort", json!({"dim": 0, "descending": true}), &[x]);
    add("kthvalue", json!({"dim": 0, "k": 3}), &[x]);
    let ends = ("boundaries", Rising, &[6][..]);
    add("bucketize", json!({"right": true}), &[x, ends]);
    for kind in [Odd, Class, Truth] {
        let among = ("among", kind, &[3, 2][..]);
        add("isin", json!({}), &[("input", kind, &[7, 3]), among]);
    }
}

/// Neighbours among the points of several clouds, whose numbers stand in no order and of which some have no points.
fn clouds(add: Add<'_>) {
    let [queries, points]: [Operand; 2] =
        [("queries", Float, &[7, 2]), ("points", Float, &[11, 2])];
    let [own, others]: [Operand; 2] = [
        ("query_clouds", Class, &[7]),
        ("point_clouds", Class, &[11]),
    ];
    let all = [queries, points, own, others];
    for ring in ["always", "never"] {
        add("knn_by_cloud", json!({"k": 3, "ring": ring}), &all);
        let within = json!({"radius": 1.0, "ring": ring});
        add("radius_search_by_cloud", within, &all);
        let within = json!({"radius": 1.0, "cap": 2, "ring": ring});
        add("radius_search_by_cloud", within, &all);
        let samples = json!({"clouds": 6, "count": 4, "ring": ring});
        add("farthest_points_by_cloud", samples, &[points, others]);
    }
}

/// Attention within segments, whose numbers stand in no order, of all entries of a batch alike or of each its own.
fn segments(add: Add<'_>) {
    let [query, key, value]: [Operand; 3] = [
        ("query", Float, &[2, 4, 7, 3]),
        ("key", Float, &[2, 2, 9, 3]),
        ("value", Odd, &[2, 2, 9, 2]),
    ];
    let mask: Operand = ("attn_mask", Float, &[4, 7, 9]);
    let [own, others]: [Operand; 2] = [
        ("query_segments", Class, &[2, 7]),
        ("key_segments", Class, &[9]),
    ];
    for ring in ["always", "never"] {
        let attributes = json!({"ring": ring});
        add(
            "attention_by_segment",
            attributes,
            &[query, key, value, own, others],
        );
        let attributes = json!({"ring": ring, "is_causal": true});
        add(
            "attention_by_segment",
            attributes,
            &[query, key, value, mask, own, others],
        );
    }
}

/// Numbers that are put where an index says, diagonals and grids.
fn places(add: Add<'_>) {
    for kind in [Float, Large, Truth] {
        let x: Operand = ("input", kind, &[7, 3]);
        let one = json!({"dim": 0, "value": 1});
        add("index_fill", one.clone(), &[x, ("index", Class, &[4])]);
        add("scatter_value", one, &[x, ("index", Class, &[4, 2])]);
    }
    for (offset, kind) in [(0, Float), (3, Float), (-2, Float), (1, Large), (0, Truth)] {
        let attributes = json!({"offset": offset});
        add("diag_embed", attributes, &[("input", kind, &[3, 5])]);
    }
    let attributes = json!({"offset": -1, "dim1": 2, "dim2": 0});
    add("diag_embed", attributes, &[("input", Float, &[4, 3])]);
    for kind in [Float, Large] {
        add(
            "meshgrid",
            json!({}),
            &[("a", kind, &[7]), ("b", kind, &[3])],
        );
    }
    let [a, b]: [Operand; 2] = [("a", Odd, &[7, 2]), ("b", Float, &[7, 3])];
    let [w, bias]: [Operand; 2] = [("weight", Odd, &[4, 2, 3]), ("bias", Float, &[4])];
    add("bilinear", json!({}), &[a, b, w, bias]);
}

/// Rows combined, of bags that are rows of indices, and of parts of a list.
fn bags(add: Add<'_>) {
    let (table, words) = (
        ("weight", Float, &[5, 3][..]),
        ("indices", Class, &[4, 3][..]),
    );
    let (list, begins) = (("indices", Class, &[7][..]), ("offsets", Begins, &[3][..]));
    for mode in ["sum", "mean", "max"] {
        let plain = json!({"mode": mode});
        add("embedding_bag", plain.clone(), &[table, words]);
        add("embedding_bag", plain, &[table, list, begins]);
        let padded = json!({"mode": mode, "padding_idx": 2});
        add("embedding_bag", padded.clone(), &[table, words]);
        add("embedding_bag", padded, &[table, list, begins]);
    }
    let factors = ("per_sample_weights", Odd, &[7][..]);
    add(
        "embedding_bag",
        json!({"mode": "sum"}),
        &[table, list, begins, factors],
    );
}

/// Rows that are multiplied each with one of several matrices.
fn groups(add: Add<'_>) {
    let rows = ("input", Float, &[7, 3][..]);
    let index = ("index", Class, &[7][..]);
    add(
        "gather_mm",
        json!({}),
        &[rows, ("weight", Odd, &[5, 3, 2]), index],
    );
    // The first is of no rows, and the last rows are of none.
    let ends = ("offsets", Begins, &[3][..]);
    let pairs: [[&[usize]; 2]; 3] = [
        [&[7, 3], &[3, 3, 2]],
        [&[3, 4, 3], &[3, 7]],
        [&[4, 7], &[7, 3]],
    ];
    for [a, b] in pairs {
        add(
            "grouped_mm",
            json!({}),
            &[("a", Float, a), ("b", Odd, b), ends],
        );
    }
}

/// A few maps in a row, and joined tensors.
fn several(add: Add<'_>) {
    let [x, a, b]: [Operand; 3] = [
        ("input", Float, &[7, 3]),
        ("a", Odd, &[3]),
        ("b", Odd, &[7, 1]),
    ];
    for op in ["addcmul", "addcdiv"] {
        add(op, json!({"value": 0.5}), &[x, a, b]);
    }
    for (kind, alpha) in [(Float, 0.5), (Large, 3.0)] {
        let pair: [Operand; 2] = [("input", kind, x.2), ("other", kind, a.2)];
        add("add_scaled", json!({"alpha": alpha}), &pair);
    }
    let bounds = [("min", Float, a.2), ("max", Odd, b.2)];
    add("clamp_by", json!({}), &[x, bounds[0], bounds[1]]);
    add("clamp_by", json!({}), &[x, bounds[1]]);
    for op in ["nan_to_num", "signbit"] {
        add(op, json!({}), &[x]);
    }
    let pair: [Operand; 2] = [("a", Odd, b.2), ("b", Float, x.2)];
    for op in ["copysign", "fmax", "fmin", "heaviside", "isclose"] {
        add(op, json!({"rtol": 0.5}), &pair);
    }
    let pair: [Operand; 2] = [("a", Share, b.2), ("b", Share, x.2)];
    for op in ["zeta", "igamma", "igammac", "nextafter"] {
        add(op, json!({}), &pair);
    }
    for op in ["nansum", "nanmean"] {
        add(op, json!({"dim": [0]}), &[x]);
    }
    for (kind, n, dim) in [(Float, 1, 0), (Float, 2, 0), (Large, 1, 1), (Truth, 3, 0)] {
        let attributes = json!({"n": n, "dim": dim});
        add("diff", attributes, &[("input", kind, x.2)]);
    }
    let operands = [("a", Float, &[5, 2][..]), ("b", Odd, &[3])];
    add("kron", json!({}), &operands);
    let (end, weight) = (("end", Odd, a.2), ("weight", Float, b.2));
    add("lerp", json!({}), &[x, end, weight]);
    let cells: [(_, &[usize], &[usize], _); 2] = [
        ("lstm_gates", &[7, 4, 3], &[1, 4, 3], "memory"),
        ("gru_gates", &[7, 3, 3], &[1, 3, 3], "state"),
    ];
    for (op, gates, of_all, state) in cells {
        for of_state in [gates, of_all] {
            let gates = [("of_input", Float, gates), ("of_state", Float, of_state)];
            add(op, json!({}), &[gates[0], gates[1], (state, Float, x.2)]);
        }
    }
    let turned = ("input", Float, &[5, 2, 7, 2, 3][..]);
    add(
        "rotary",
        json!({}),
        &[turned, ("cos", Odd, x.2), ("sin", Float, x.2)],
    );
    for op in ["isnan", "isinf", "isfinite"] {
        add(op, json!({}), &[x]);
    }
    let [a, b]: [Operand; 2] = [("a", Odd, &[7]), ("b", Float, &[5])];
    add("outer", json!({}), &[a, b]);
    let [a, b]: [Operand; 2] = [("a", Odd, &[7, 4]), ("b", Float, &[3, 4])];
    add("inner", json!({}), &[a, b]);
    let [a, b]: [Operand; 2] = [("a", Odd, &[2, 7, 4]), ("b", Float, &[4, 3, 7])];
    let dims = json!({"dims_a": [1, 2], "dims_b": [2, 0]});
    add("tensordot", dims, &[a, b]);
}

pub(super) fn case(
    group: &str,
    op: &str,
    attributes: Json,
    operands: &[Operand],
    number: u64,
) -> Case {
    let seed = 0x7e57 + number;
    let tensor = |(i, &(name, kind, shape)): (usize, &Operand)| {
        (
            name.to_owned(),
            kind.tensor(shape, seed ^ ((i as u64) << 32)),
        )
    };
    let inputs: Vec<(String, Tensor)> = operands.iter().enumerate().map(tensor).collect();
    // What comes out of these has no derivative.
    let differentiable = !matches!(
        op,
        "eq" | "ne"
            | "lt"
            | "le"
            | "gt"
            | "ge"
            | "to"
            | "all"
            | "any"
            | "count_nonzero"
            | "floor_div"
            | "argmax"
            | "argmin"
            | "logical_and"
            | "logical_or"
            | "logical_xor"
            | "logical_not"
            | "isnan"
            | "isinf"
            | "isfinite"
            | "isclose"
            | "signbit"
            | "heaviside"
            | "nonzero"
            | "farthest_points_by_cloud"
            | "argsort"
            | "bucketize"
            | "isin"
            | "unique"
            | "unique_consecutive"
            | "histogram"
            | "histogramdd"
            | "histc"
    );
    let floats = (0..inputs.len()).filter(|&i| matches!(&*inputs[i].1.data, Data::F64(_)));
    // Of their first operand no derivative is known.
    let first = usize::from(matches!(op, "zeta" | "igamma" | "igammac"));
    let wants = floats.filter(|&i| differentiable && i >= first);
    let wants: Vec<usize> = wants.collect();
    let (name, note) = (format!("{group}_{op}_{number}"), "as on one rank");
    let case = Case::without_reference(name, op, attributes, inputs, note);
    as_on_one_rank(case, &wants, seed)
}
