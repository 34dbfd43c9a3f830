//! The page that says of every op what each placement of its operands leads to.

use crate::case::Case;
use crate::dispatch::{self, ApplyError};
use crate::harness::{On, on_threads};
use crate::made::project_cases;
use crate::trial::recorder;
use shard_autograd::Recorder;
use shard_comm::DType;
use shard_kernels::unary::Unary;
use shard_ops::testing::{Tensor, place};
use shard_ops::{Exec, OpError, Value, elementwise as ew};
use shard_redistribute::MeshComm;
use shard_spec::{DeviceMesh, Layout, Partition, ReduceOp, numel};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

/// How many ranks the page's operands are placed on.
const RANKS: usize = 2;

/// A map of two numbers.
type OfTwo = fn(&dyn Exec, &Value, &Value) -> Result<Value, OpError>;

const TWO: &[(&str, OfTwo)] = &[
    ("add", ew::add),
    ("sub", ew::sub),
    ("mul", ew::mul),
    ("div", ew::div),
    ("floor_div", ew::floor_div),
    ("remainder", ew::remainder),
    ("fmod", ew::fmod),
    ("pow", ew::pow),
    ("maximum", ew::maximum),
    ("minimum", ew::minimum),
    ("atan2", ew::atan2),
    ("hypot", ew::hypot),
    ("xlogy", ew::xlogy),
    ("copysign", ew::copysign),
    ("fmax", ew::fmax),
    ("fmin", ew::fmin),
    ("heaviside", ew::heaviside),
    ("logaddexp", ew::logaddexp),
    ("logaddexp2", ew::logaddexp2),
    ("prelu", ew::leaky),
    ("eq", ew::eq),
    ("ne", ew::ne),
    ("lt", ew::lt),
    ("le", ew::le),
    ("gt", ew::gt),
    ("ge", ew::ge),
    ("logical_and", ew::logical_and),
    ("logical_or", ew::logical_or),
    ("logical_xor", ew::logical_xor),
];

/// What stands above the table.
const HEAD: &str = "\
# Ops, placements, and what is sent

This page is made by the engine: `SHARD_PAGES=write cargo test -p xtests --test it page` writes it, and without the variable that test
compares. Each op is applied on a mesh of 2 ranks with one operand at a time placed as the table says and all others on every rank, and
differentiated.

`S(d)`: dim `d` is sharded, `R`: every rank has all, `P(sum)`: terms of a sum. *Sent* is the number of bytes that the busiest rank
receives in such an application, and *sent back* in the derivative with respect to all operands that have one, which lies as they do; `-`
is nothing. All operands together have as many bytes as stands above the table. A sum that a result still waits for is sent when the
result is used. Placements with the same outcome share a line. Names are those of PyTorch where methods have others. Random numbers,
which send nothing, and linear algebra, whose matrices are whole, are not listed.
";

/// Something to apply, and to what.
struct Entry {
    inputs: Vec<Tensor>,
    /// Inputs whose gradients are wanted.
    wants: Vec<usize>,
    apply: Box<Apply>,
}

/// Applies something.
type Apply = dyn Fn(&dyn Exec, &[Value]) -> Result<Vec<Value>, ApplyError> + Sync;

/// The whole page.
///
/// # Panics
/// If the reference cases cannot be read or applied.
pub fn page() -> String {
    // Ops whose tables are the same, as those of all maps of one number, have one.
    let mut sections: Vec<(Vec<String>, String)> = Vec::new();
    for (name, table) in tables(&entries()) {
        match sections.iter_mut().find(|(_, known)| *known == table) {
            Some((names, _)) => names.push(name),
            None => sections.push((vec![name], table)),
        }
    }
    let mut page = HEAD.to_owned();
    for (names, table) in sections {
        let _ = write!(page, "\n## {}\n\n{table}", names.join(", "));
    }
    page
}

/// Of every op the case with the most dims, and of these the first; and every map of one or two numbers.
fn entries() -> BTreeMap<String, Entry> {
    let mut best: BTreeMap<String, Case> = BTreeMap::new();
    for case in project_cases().unwrap_or_else(|e| panic!("{e}")) {
        let case = case.unwrap_or_else(|e| panic!("{e}"));
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !case.op.chars().all(is_name) || dispatch::find(&case).is_err() {
            continue;
        }
        // Such that have elements before others.
        let rank = |c: &Case| {
            let shapes = || c.inputs.iter().map(|(_, t)| &t.shape);
            let dims: usize = shapes().map(Vec::len).sum();
            (shapes().all(|shape| numel(shape) > 0), dims)
        };
        let name = known_as(&case.op).to_owned();
        if (best.get(&name)).is_none_or(|best| rank(&case) > rank(best)) {
            best.insert(name, case);
        }
    }
    let of_case = |(name, case): (String, Case)| {
        let apply = dispatch::find(&case).unwrap_or_else(|e| panic!("{name}: {e}"));
        let entry = Entry {
            inputs: case.inputs.iter().map(|(_, t)| t.clone()).collect(),
            wants: case.gradients.iter().map(|&(i, _)| i).collect(),
            apply: Box::new(move |exec, values| apply(exec, &case, values)),
        };
        (name, entry)
    };
    let mut all: BTreeMap<String, Entry> = best.into_iter().map(of_case).collect();
    let [x, y] = [&[4, 3, 2][..], &[3, 1]].map(|shape| Tensor::drawn(shape, 1));
    for &map in Unary::ALL {
        let entry = Entry {
            inputs: vec![x.clone()],
            wants: vec![0],
            apply: Box::new(move |exec, v| Ok(vec![ew::unary(exec, &v[0], map)?])),
        };
        all.insert(map.name().to_owned(), entry);
    }
    for &(name, map) in TWO {
        let entry = Entry {
            inputs: vec![x.clone(), y.clone()],
            wants: vec![0, 1],
            apply: Box::new(move |exec, v| Ok(vec![map(exec, &v[0], &v[1])?])),
        };
        all.insert(name.to_owned(), entry);
    }
    all
}

/// The name of an op that the reference cases have several for.
fn known_as(op: &str) -> &str {
    match op {
        "chunk_short" => "chunk",
        "reshape_merge" | "reshape_split" => "reshape",
        "flatten_all" => "flatten",
        "norm1" | "norm2" | "norm3" => "norm",
        other => other,
    }
}

/// The table of every op.
fn tables(entries: &BTreeMap<String, Entry>) -> Vec<(String, String)> {
    let mesh = DeviceMesh::new(&[RANKS]).unwrap_or_else(|e| panic!("{e}"));
    let ranks = on_threads(&mesh, On::Host, |cx| {
        let all = entries.iter();
        all.map(|(name, entry)| lines(cx, name, entry))
            .collect::<Vec<_>>()
    });
    let table = |(at, (name, entry)): (usize, (&String, &Entry))| {
        let shapes: Vec<String> = (entry.inputs.iter())
            .map(|t| format!("{} {:?}", t.data.dtype(), &t.shape[..]))
            .collect();
        let bytes = |t: &Tensor| numel(&t.shape) * t.data.dtype().size();
        let bytes: usize = entry.inputs.iter().map(bytes).sum();
        let mut text = format!(
            "Of {}: {bytes} bytes.\n\n| operand | placed | result | sent | sent back |\n|---|---|---|---|---|\n",
            shapes.join(", ")
        );
        for (i, placed, outcome) in merged(ranks.iter().map(|rank| &rank[at])) {
            let sent = |bytes: u64| {
                if bytes == 0 {
                    "-".to_owned()
                } else {
                    bytes.to_string()
                }
            };
            let back = outcome.back.map_or_else(String::new, sent);
            let (result, sent) = (&outcome.result, sent(outcome.sent));
            let _ = writeln!(
                text,
                "| {i} | {} | {result} | {sent} | {back} |",
                placed.join(", ")
            );
        }
        (name.clone(), text)
    };
    entries.iter().enumerate().map(table).collect()
}

/// What one placement of an operand leads to on one rank.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    /// The layouts of the results.
    result: String,
    /// Bytes received.
    sent: u64,
    /// And in the derivative, if there is one.
    back: Option<u64>,
}

/// An operand's number, how it is placed, and what that leads to.
type Line = (usize, String, Outcome);

/// Placements of an operand by what they lead to on the busiest rank, in the order of the first.
fn merged<'a>(ranks: impl Iterator<Item = &'a Vec<Line>>) -> Vec<(usize, Vec<String>, Outcome)> {
    let ranks: Vec<&Vec<Line>> = ranks.collect();
    let mut all: Vec<(usize, Vec<String>, Outcome)> = Vec::new();
    for (line, (i, placed, first)) in ranks[0].iter().enumerate() {
        let mut most = first.clone();
        for rank in &ranks {
            let (_, _, found) = &rank[line];
            most.sent = most.sent.max(found.sent);
            most.back = most.back.max(found.back);
        }
        match all
            .iter_mut()
            .find(|(of, _, known)| of == i && *known == most)
        {
            Some((_, places, _)) => places.push(placed.clone()),
            None => all.push((*i, vec![placed.clone()], most)),
        }
    }
    all
}

/// All placements of one operand at a time.
fn lines(cx: &Rc<MeshComm>, name: &str, entry: &Entry) -> Vec<Line> {
    let mesh = cx.mesh();
    let mut all = Vec::new();
    for (i, tensor) in entry.inputs.iter().enumerate() {
        let mut tell = |placed: String, layout: Layout| {
            let outcome = outcome(cx, entry, i, &layout);
            all.push((i, placed, outcome.unwrap_or_else(|e| panic!("{name}: {e}"))));
        };
        for (d, &n) in tensor.shape.iter().enumerate() {
            let cut = Partition::chunk(n, RANKS);
            let layout = Layout::builder(mesh, &tensor.shape).shard(d, &[0], cut);
            if let (true, Ok(layout)) = (n > 1, layout.build()) {
                tell(format!("S({d})"), layout);
            }
        }
        let dims = std::iter::repeat_n(None, tensor.shape.len());
        let sum = Layout::from_dims(mesh, &tensor.shape, dims, Some((ReduceOp::Sum, &[0])));
        if let (true, Ok(sum)) = (tensor.data.dtype().is_float(), sum) {
            tell("P(sum)".to_owned(), sum);
        }
    }
    all
}

/// What an op sends with its operand `i` in a layout.
fn outcome(
    cx: &Rc<MeshComm>,
    entry: &Entry,
    i: usize,
    layout: &Layout,
) -> Result<Outcome, Box<dyn std::error::Error>> {
    let tape = recorder();
    let mut values = Vec::new();
    for (j, tensor) in entry.inputs.iter().enumerate() {
        let whole = Layout::replicated(cx.mesh(), &tensor.shape);
        let array = place(cx, if i == j { layout } else { &whole }, tensor, DType::F64)?;
        values.push(match entry.wants.contains(&j) {
            true => tape.leaf(array)?,
            false => Value::new(array),
        });
    }
    let ledger = cx.world().ledger();
    let before = ledger.snapshot();
    let made = (entry.apply)(&tape, &values)?;
    let sent = ledger.since(&before).bytes;
    let results: Vec<String> = made.iter().map(|v| placements(v.layout())).collect();
    let back = sent_back(cx, &tape, entry, &values, &made)?;
    Ok(Outcome {
        result: results.join("; "),
        sent,
        back,
    })
}

/// What the derivative of the results' sum sends, if there is one.
fn sent_back(
    cx: &Rc<MeshComm>,
    tape: &Recorder,
    entry: &Entry,
    values: &[Value],
    made: &[Value],
) -> Result<Option<u64>, Box<dyn std::error::Error>> {
    let roots: Vec<&Value> = (made.iter())
        .filter(|v| v.dtype().is_float() && tape.is_tracked(v))
        .collect();
    if roots.is_empty() {
        return Ok(None);
    }
    let mut seeds = Vec::new();
    for root in &roots {
        let layout = root.layout().with_partial_reduced();
        let ones = shard_ops::testing::tensor(root.shape(), |_| 1.0);
        seeds.push(Value::new(place(cx, &layout, &ones, DType::F64)?));
    }
    let wanted: Vec<&Value> = entry.wants.iter().map(|&j| &values[j]).collect();
    let ledger = cx.world().ledger();
    let before = ledger.snapshot();
    let seeds: Vec<Option<&Value>> = seeds.iter().map(Some).collect();
    let found = tape.grad(&roots, &wanted, &seeds, false)?;
    let any = found.iter().any(Option::is_some);
    Ok(any.then(|| ledger.since(&before).bytes))
}

/// Without the sizes of parts.
fn placements(layout: &Layout) -> String {
    let sharded = (0..layout.shape().len()).find(|&d| layout.sharding(d).is_some());
    match (sharded, layout.partial_op()) {
        (Some(d), _) => format!("S({d})"),
        (None, Some(op)) => format!("P({op:?})").to_lowercase().replace("p(", "P("),
        (None, None) => "R".to_owned(),
    }
}
