//! Strategies and plans, made anew: on meshes that need not exist, for one of their ranks.

use crate::case::Bench;
use crate::suite::Suite;
use shard_comm::DType;
use shard_ops::conv::{ConvOptions, Padding};
use shard_ops::{Exec, Meta, Op, OpError, Rule, Strategy, Value, Values};
use shard_redistribute::{Array, CostModel, LinkCost, Plan, Planner};
use shard_tensor::{Context, DeviceMesh, Error, Layout, Result};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;

/// Why these are left out on GPUs.
const HOST: &str = "plans, which are the same for all devices";

pub(super) fn add(suite: &mut Suite<'_>) {
    strategies(suite);
    moves(suite);
    suite.add_on_host(HOST, "plan/kept move, 2x4", 1, |_| {
        let (from, to) = layouts(&[2, 4], &[8192, 4096], "S(0) S(1) -> S(1) S(0)")?;
        let planner = Planner::new(0, 256);
        Ok(Bench::new(move || {
            black_box(planner.plan(&from, &to, DType::F32)?);
            Ok(())
        }))
    });
}

/// A function that applies one op.
type Applies = fn(&Probe, &[Value]) -> shard_ops::Result<Value>;

/// Rules and strategies of ops, on small meshes of three axes and on one of 512 ranks.
fn strategies(suite: &mut Suite<'_>) {
    let conv: Applies = |exec, x| {
        let options = ConvOptions {
            padding: Padding::Explicit(vec![(1, 1)]),
            ..ConvOptions::default()
        };
        shard_ops::conv::conv(exec, &x[0], &x[1], None, &options)
    };
    let add: Applies = |exec, x| shard_ops::elementwise::add(exec, &x[0], &x[1]);
    let matmul: Applies = |exec, x| shard_ops::matmul::matmul(exec, &x[0], &x[1]);
    let attention: Applies = |exec, x| {
        let options = shard_ops::attention::Attention::new();
        shard_ops::attention::attention(exec, &x[0], &x[1], &x[2], None, &options)
    };
    let sum: Applies = |exec, x| shard_ops::reduce::sum(exec, &x[0], &[1], false);
    let norm: Applies = |exec, x| shard_ops::norm::group_norm(exec, &x[0], 8, None, None, 1e-5);
    let volume = &[2, 16, 96, 96, 96][..];
    let tokens = &[4, 8, 4096, 64][..];
    type Row<'a> = (&'a str, Applies, Vec<(&'a [usize], &'a str)>);
    let cases: [Row<'_>; 7] = [
        (
            "conv3d S2,S3,S4",
            conv,
            vec![(volume, "S(2) S(3) S(4)"), (&[16, 16, 3, 3, 3], "R R R")],
        ),
        (
            "conv3d S2,S2,S3",
            conv,
            vec![(volume, "S(2) S(2) S(3)"), (&[16, 16, 3, 3, 3], "R R R")],
        ),
        (
            "add aligned",
            add,
            vec![(volume, "S(2) S(3) S(4)"), (volume, "S(2) S(3) S(4)")],
        ),
        (
            "add misaligned",
            add,
            vec![(volume, "S(2) S(3) S(4)"), (volume, "S(4) S(2) S(1)")],
        ),
        (
            "matmul",
            matmul,
            vec![
                (&[2048, 2048], "S(0) R S(1)"),
                (&[2048, 2048], "R S(1) S(0)"),
            ],
        ),
        (
            "attention",
            attention,
            vec![
                (tokens, "S(0) S(1) S(2)"),
                (tokens, "S(0) S(1) S(2)"),
                (tokens, "S(0) S(1) S(2)"),
            ],
        ),
        ("sum", sum, vec![(volume, "S(1) S(3) S(4)")]),
    ];
    for mesh in [[2, 2, 2], [8, 8, 8]] {
        let ranks = mesh.map(|n: usize| n.to_string()).join("x");
        for (name, f, operands) in &cases {
            let (f, operands) = (*f, owned(operands));
            suite.add_on_host(HOST, format!("plan/cold {name}, {ranks}"), 1, move |ctx| {
                strategy(ctx, &mesh, &operands, f)
            });
        }
        let operands = owned(&[(volume, "S(2) S(3) S(4)")]);
        suite.add_on_host(
            HOST,
            format!("plan/cold group_norm's first, {ranks}"),
            1,
            move |ctx| strategy(ctx, &mesh, &operands, norm),
        );
    }
}

fn owned(operands: &[(&[usize], &str)]) -> Vec<(Vec<usize>, String)> {
    let own = |(shape, text): &(&[usize], &str)| (shape.to_vec(), (*text).to_owned());
    operands.iter().map(own).collect()
}

/// An executor that keeps the first op it is asked to apply, and applies nothing.
#[derive(Default)]
struct Probe(RefCell<Option<Arc<dyn Op>>>);

impl Exec for Probe {
    fn results(&self, op: Arc<dyn Op>, _: &[&Value]) -> shard_ops::Result<Values> {
        let name = op.name();
        self.0.borrow_mut().get_or_insert(op);
        Err(OpError::NoVjp {
            op: name,
            operand: 0,
        })
    }

    fn redistribute(&self, value: &Value, _: &Layout) -> shard_ops::Result<Value> {
        Ok(value.clone())
    }
}

/// The rule and the strategy of the first op a function applies, made anew each time.
fn strategy(
    ctx: &Context,
    mesh: &[usize],
    operands: &[(Vec<usize>, String)],
    f: Applies,
) -> Result<Bench> {
    let mesh = DeviceMesh::new(mesh)?;
    let layouts = (operands.iter())
        .map(|(shape, text)| Layout::parse(&mesh, shape, text))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    // Shapes are all that the function looks at.
    let here = ctx.mesh_of(1)?;
    let stand_ins = (operands.iter())
        .map(|(shape, _)| {
            let layout = Layout::replicated(here.mesh(), shape);
            let array = Array::from_parts(here.comm(), &layout, None, DType::F32)?;
            Ok(Value::new(array))
        })
        .collect::<Result<Vec<_>>>()?;
    let probe = Probe::default();
    drop(f(&probe, &stand_ins));
    let Some(op) = probe.0.take() else {
        return Err(Error::custom("a function that applies no op"));
    };
    let metas: Vec<Meta> = (layouts.iter())
        .map(|l| Meta {
            shape: l.shape().iter().copied().collect(),
            dtype: DType::F32,
        })
        .collect();
    let index = mesh.size() / 2;
    Ok(Bench::new(move || {
        let rule: Rule = op.rule(&metas)?;
        let layouts: Vec<&Layout> = layouts.iter().collect();
        drop(black_box(Strategy::new(
            &rule,
            &layouts,
            index,
            &CostModel::default(),
        )?));
        Ok(())
    }))
}

/// Plans between layouts: the direct one, what it would move, and the cheapest of all.
fn moves(suite: &mut Suite<'_>) {
    let small: &[(&[usize], &[usize], &[&str])] = &[
        (
            &[2, 4],
            &[8192, 4096],
            &[
                "S(0) S(1) -> S(1) S(0)",
                "S(0) S(0) -> R S(0)",
                "S(0) R -> S(1) S(1)",
            ],
        ),
        (
            &[3, 2, 2],
            &[512, 512, 500],
            &[
                "S(0) S(1) S(2) -> S(2) S(0) S(1)",
                "S(0) S(0) S(1) -> R S(0) S(0)",
            ],
        ),
        // The largest for which hops are priced by their pieces.
        (
            &[4, 4, 4],
            &[512, 512, 500],
            &["S(0) S(1) S(2) -> S(1) S(0) R", "R S(0) R -> S(1) S(0) R"],
        ),
        // No extent is a multiple of its number of parts.
        (
            &[16, 32, 32],
            &[20011, 20011, 1009],
            &[
                "S(0) S(1) S(2) -> S(2) S(1) S(0)",
                "S(0) S(0) S(0) -> S(1) S(1) S(1)",
            ],
        ),
        (&[16384], &[49157, 7], &["S(0) -> R", "R -> S(0)"]),
    ];
    for &(mesh, shape, texts) in small {
        for &text in texts {
            let ranks: Vec<String> = mesh.iter().map(ToString::to_string).collect();
            let ranks = ranks.join("x");
            for how in ["direct", "forecast", "cheapest"] {
                let (mesh, shape) = (mesh.to_vec(), shape.to_vec());
                suite.add_on_host(HOST, format!("plan/{how} {text}, {ranks}"), 1, move |_| {
                    let (from, to) = layouts(&mesh, &shape, text)?;
                    let index = from.mesh().size() / 2 + 1;
                    let model = CostModel::network(LinkCost::new(10e-6, 50e9));
                    Ok(Bench::new(move || {
                        match how {
                            "cheapest" => drop(black_box(Plan::cheapest(
                                &from,
                                &to,
                                index,
                                DType::F32,
                                &model,
                            )?)),
                            "forecast" => drop(black_box(
                                Plan::new(&from, &to, index)?.forecast(DType::F32),
                            )),
                            _ => drop(black_box(Plan::new(&from, &to, index)?)),
                        }
                        Ok(())
                    }))
                });
            }
        }
    }
}

/// The two layouts of a text such as `S(0) -> R`.
fn layouts(mesh: &[usize], shape: &[usize], text: &str) -> Result<(Layout, Layout)> {
    let mesh = DeviceMesh::new(mesh)?;
    let (from, to) = (text.split_once(" -> ")).ok_or_else(|| Error::custom("no arrow"))?;
    Ok((
        Layout::parse(&mesh, shape, from)?,
        Layout::parse(&mesh, shape, to)?,
    ))
}
