//! The page that says of every op what each placement of its operands leads to, made from the rules.

use crate::case::Case;
use crate::dispatch;
use crate::harness::{On, on_threads};
use crate::made::project_cases;
use shard_comm::DType;
use shard_kernels::unary::Unary;
use shard_ops::testing::{Capture, Sample, Tensor, place};
use shard_ops::{Exec, Op, OpError, Rule, Strategy, Value, elementwise as ew};
use shard_redistribute::CostModel;
use shard_spec::{DeviceMesh, Layout, Partition, ReduceOp};
use std::collections::BTreeMap;
use std::fmt::Write;

/// How many ranks the page's operands are placed on.
const RANKS: usize = 2;

/// A map of two numbers.
type OfTwo = fn(&dyn Exec, &Value, &Value) -> Result<Value, OpError>;

const TWO: &[OfTwo] = &[
    ew::add,
    ew::sub,
    ew::mul,
    ew::div,
    ew::floor_div,
    ew::remainder,
    ew::fmod,
    ew::pow,
    ew::maximum,
    ew::minimum,
    ew::atan2,
    ew::hypot,
    ew::xlogy,
    ew::logaddexp,
    ew::logaddexp2,
    ew::leaky,
    ew::eq,
    ew::ne,
    ew::lt,
    ew::le,
    ew::gt,
    ew::ge,
    ew::logical_and,
    ew::logical_or,
    ew::logical_xor,
];

/// What stands above the table.
const HEAD: &str = "\
# Ops, placements, and what is sent

This page is made from the rules: `SHARD_PAGES=write cargo test -p xtests --test it page` writes it, and without the variable that test
compares. Each op that the reference cases apply, and each map of one or two numbers, is asked, for one operand at a time on a mesh of 2 ranks, with all other operands
on every rank: what becomes of it if a dim of that operand is sharded, or if the operand waits as terms of a sum?

`S(d)`: dim `d` is sharded, `R`: every rank has all, `P(sum)`: terms of a sum. *Sent* is the number of elements that the busiest rank
receives in such an application, of as many as all operands have; `-` is nothing. A sum that a result still waits for is sent
when the result is used; a sum that is taken at once counts twice, once to be made and once to be told. Placements with the same outcome share a line.
";

/// The whole page.
///
/// # Panics
/// If the reference cases cannot be read or applied.
pub fn page() -> String {
    // Ops whose tables are the same, as those of all maps of one number, have one.
    let mut sections: Vec<(Vec<String>, String)> = Vec::new();
    for (name, sample) in samples() {
        let table = table(&sample);
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

/// What an op was applied to, and its table.
fn table(sample: &Sample) -> String {
    let shapes: Vec<String> = (sample.metas.iter())
        .map(|m| format!("{} {:?}", m.dtype, &m.shape[..]))
        .collect();
    let head = "| operand | placed | result | sent |\n|---|---|---|---|\n";
    let lines = lines(&*sample.op, sample);
    format!("Of {}.\n\n{head}{lines}", shapes.join(", "))
}

/// Of every op the application with the most dims, and of these the first.
fn samples() -> BTreeMap<String, Sample> {
    let mesh = DeviceMesh::new(&[1]).unwrap_or_else(|e| panic!("{e}"));
    let cases = project_cases().unwrap_or_else(|e| panic!("{e}"));
    let cases: Vec<Case> = cases
        .into_iter()
        .map(|case| case.unwrap_or_else(|e| panic!("{e}")))
        .collect();
    let found = on_threads(&mesh, On::Host, |cx| {
        let capture = Capture::new();
        for case in &cases {
            let Ok(apply) = dispatch::find(case) else {
                continue;
            };
            let values = case.inputs.iter().map(|(_, t)| {
                let layout = Layout::replicated(cx.mesh(), &t.shape);
                Value::new(place(cx, &layout, t, DType::F64).unwrap_or_else(|e| panic!("{e}")))
            });
            let values: Vec<Value> = values.collect();
            if let Err(error) = apply(&*capture, case, &values) {
                panic!("{}: {error}", case.name);
            }
        }
        let cases = capture.samples();
        // Maps come last, all applied to the same, and so have the same tables.
        let of = |shape: &[usize]| {
            let layout = Layout::replicated(cx.mesh(), shape);
            let x = place(cx, &layout, &Tensor::drawn(shape, 1), DType::F64);
            Value::new(x.unwrap_or_else(|e| panic!("{e}")))
        };
        let (capture, x, y) = (Capture::new(), of(&[4, 3, 2]), of(&[3, 1]));
        let one = Unary::ALL.iter().map(|&map| ew::unary(&*capture, &x, map));
        let two = TWO.iter().map(|map| map(&*capture, &x, &y));
        for made in one.chain(two) {
            if let Err(error) = made {
                panic!("{error}");
            }
        }
        [cases, capture.samples()]
    });
    let found: Vec<Vec<Sample>> = found.into_iter().flatten().collect();
    let mut all: BTreeMap<String, Sample> = BTreeMap::new();
    for (sample, is_map) in [(0, false), (1, true)]
        .into_iter()
        .flat_map(|(i, is_map)| found[i].iter().cloned().map(move |s| (s, is_map)))
    {
        let dims = |s: &Sample| -> usize { s.metas.iter().map(|m| m.shape.len()).sum() };
        let name = sample.op.name().to_owned();
        let better = all.get(&name).is_none_or(|best| dims(&sample) > dims(best));
        if (better || is_map) && !sample.metas.is_empty() {
            all.insert(name, sample);
        }
    }
    all
}

/// The lines of an op's table.
fn lines(op: &dyn Op, sample: &Sample) -> String {
    let Ok(rule) = op.rule(&sample.metas) else {
        return String::new();
    };
    let Ok(mesh) = DeviceMesh::new(&[RANKS]) else {
        return String::new();
    };
    let mut text = String::new();
    for (i, meta) in sample.metas.iter().enumerate() {
        // Placements by what they lead to, in the order of the first.
        let mut outcomes: Vec<(String, Vec<String>)> = Vec::new();
        let mut tell = |placed: String, layout: &Layout| {
            let outcome = outcome(&rule, sample, &mesh, i, layout);
            match outcomes.iter_mut().find(|(known, _)| *known == outcome) {
                Some((_, all)) => all.push(placed),
                None => outcomes.push((outcome, vec![placed])),
            }
        };
        for (d, &n) in meta.shape.iter().enumerate() {
            let cut = Partition::chunk(n, RANKS);
            let layout = Layout::builder(&mesh, &meta.shape)
                .shard(d, &[0], cut)
                .build();
            if let (true, Ok(layout)) = (n > 1, layout) {
                tell(format!("S({d})"), &layout);
            }
        }
        let dims = std::iter::repeat_n(None, meta.shape.len());
        if meta.dtype.is_float()
            && let Ok(sum) =
                Layout::from_dims(&mesh, &meta.shape, dims, Some((ReduceOp::Sum, &[0])))
        {
            tell("P(sum)".to_owned(), &sum);
        }
        for (outcome, placed) in outcomes {
            let _ = writeln!(text, "| {i} | {} | {outcome} |", placed.join(", "));
        }
    }
    text
}

/// The layouts of the results and what is sent.
fn outcome(rule: &Rule, sample: &Sample, mesh: &DeviceMesh, i: usize, layout: &Layout) -> String {
    let layouts: Vec<Layout> = (sample.metas.iter().enumerate())
        .map(|(j, meta)| match i == j {
            true => layout.clone(),
            false => Layout::replicated(mesh, &meta.shape),
        })
        .collect();
    let layouts: Vec<&Layout> = layouts.iter().collect();
    let strategy = match Strategy::new(rule, &layouts, 0, &CostModel::default()) {
        Ok(strategy) => strategy,
        Err(error) => return format!("refused: {error} | -"),
    };
    let results: Vec<String> = strategy.outputs().iter().map(placements).collect();
    let all: usize = (sample.metas.iter())
        .map(|m| m.shape.iter().product::<usize>())
        .sum();
    let mut sent = match strategy.communicates() {
        true => format!("{} of {all}", strategy.cost()),
        false => "-".to_owned(),
    };
    if let Some(by) = strategy.way() {
        let _ = write!(sent, ", by {by:?}");
    }
    if let Some(by) = strategy.route() {
        let _ = write!(sent, ", rows by {by:?}");
    }
    format!("{} | {sent}", results.join("; "))
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
