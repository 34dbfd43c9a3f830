//! Scans along a dim, and their totals.

use super::extreme::{ExtremeTotals, Extremes, RunTotals, Runs};
use super::parts::Parts;
use super::recurrence::{Recurring, RecurringTotals};
use super::{Running, Totals};
use crate::Result;
use crate::cuda::kept::Lists;
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::families::elementwise::as_number;
use bytemuck::{Pod, Zeroable};
use shard_comm::DType;
use shard_comm::cuda::KernelSource;
use shard_kernels::scan::Scan;

const SOURCE: KernelSource = cuda_source!("scan", include_str!("scan.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define KIND 0\n#define T f32\n#define W f64\n#define R f32\n#define START W(0)\n#define JOIN(a, b) a + b\n",
)];

/// As in `scan.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    index: CudaView,
    y: CudaView,
    at: CudaView,
    total: CudaView,
    more: CudaView,
    begin: CudaView,
    parts: u64,
    before: i64,
    count: i64,
    first: i64,
    backwards: i64,
    x_step: i64,
    index_step: i64,
    y_step: i64,
    at_step: i64,
    total_step: i64,
    more_step: i64,
}

/// Lines from which on each thread has one of its own.
const LINES: usize = 4096;

/// What a kernel is given besides its operands.
struct Plan<'a> {
    parts: &'a Parts,
    backwards: bool,
    /// Which input is the index, or the factors, if there is one.
    index: Option<usize>,
    /// Which input is the first state, if there is one.
    begin: Option<usize>,
    /// The first input that is totals, if there are some.
    totals: Option<usize>,
    /// Whether there are two outputs.
    pairs: bool,
    defines: String,
}

/// A view without a dim, and that dim's step.
fn lines(view: CudaView, dim: usize) -> (CudaView, i64) {
    let mut lines = CudaView {
        ndim: view.ndim - 1,
        shape: [1; AXES],
        strides: [0; AXES],
        ..view
    };
    for (to, d) in (0..view.ndim as usize).filter(|&d| d != dim).enumerate() {
        (lines.shape[to], lines.strides[to]) = (view.shape[d], view.strides[d]);
    }
    (lines, view.strides[dim])
}

/// A view from another place on along a dim.
fn shifted(view: CudaView, dim: usize, by: usize, dtype: DType) -> CudaView {
    let bytes = by as i64 * view.strides[dim] * dtype.size() as i64;
    CudaView {
        data: view.data.wrapping_add_signed(bytes),
        ..view
    }
}

/// The parameters of a scan of all elements of a box, whose outputs are not set yet.
fn params(call: &mut CudaCall<'_>, plan: &Plan<'_>) -> Result<Params> {
    let (dim, at) = (plan.parts.dim, &call.cx.inputs[0]);
    let (x, x_step) = lines(call.input(0)?, dim);
    let other = |input: Option<usize>| match input {
        Some(i) => Ok(lines(call.input(i)?, dim)),
        None => Ok((x, x_step)),
    };
    let (index, index_step) = match plan.index {
        Some(i) => lines(call.input(i)?.broadcast_to(&call.input(0)?), dim),
        None => (x, x_step),
    };
    let (begin, _) = other(plan.begin)?;
    let (total, total_step) = other(plan.totals)?;
    let (more, more_step) = other(plan.totals.filter(|_| plan.pairs).map(|i| i + 1))?;
    Ok(Params {
        x,
        index,
        y: x,
        at: x,
        total,
        more,
        begin,
        parts: 0,
        before: 0,
        count: at.shape[dim] as i64,
        first: at.start[dim] as i64,
        backwards: plan.backwards.into(),
        x_step,
        index_step,
        y_step: x_step,
        at_step: x_step,
        total_step,
        more_step,
    })
}

fn launch(call: &CudaCall<'_>, defines: &str, params: &Params) -> Result<()> {
    let count = params.x.numel();
    if count >= LINES {
        return call.launch_own(&SOURCE, defines, "lines", count, params);
    }
    let (blocks, threads) = ([count as u32, 1, 1], call.gpu.block());
    call.launch_own_blocks(&SOURCE, defines, "line", blocks, threads, params)
}

/// Scans a box from the totals of the parts before.
fn scan(call: &mut CudaCall<'_>, plan: &Plan<'_>) -> Result<()> {
    let dim = plan.parts.dim;
    let mut params = params(call, plan)?;
    let mut lists = Lists::default();
    if plan.totals.is_some() {
        let before = plan.parts.before(&call.cx.inputs[0], plan.backwards);
        let before: Vec<i64> = before.into_iter().map(|k| k as i64).collect();
        params.before = before.len() as i64;
        // Memory of no bytes has no address.
        if !before.is_empty() {
            params.parts = lists.upload(call, &before)?;
        }
    }
    (params.y, params.y_step) = lines(call.output(0)?, dim);
    (params.at, params.at_step) = (params.y, params.y_step);
    if call.outputs.len() > 1 {
        (params.at, params.at_step) = lines(call.output(1)?, dim);
    }
    launch(call, &plan.defines, &params)
}

/// What each part of a box comes to.
fn totals(call: &mut CudaCall<'_>, plan: &Plan<'_>) -> Result<()> {
    let dim = plan.parts.dim;
    let all = params(call, plan)?;
    let (y, y_step) = lines(call.output(0)?, dim);
    let (at, at_step) = match plan.pairs {
        true => lines(call.output(1)?, dim),
        false => (y, y_step),
    };
    let [y_type, at_type] = [0, usize::from(plan.pairs)].map(|o| call.outputs[o].dtype());
    let (x, x_type) = (call.input(0)?, call.inputs[0].dtype());
    let index = match plan.index {
        Some(i) => Some((call.input(i)?.broadcast_to(&x), call.inputs[i].dtype())),
        None => None,
    };
    let defines = format!("#define TOTALS\n{}", plan.defines);
    let each = (plan.parts).within(&call.cx.inputs[0], &call.cx.outputs[0]);
    for (k, rows) in each.into_iter().enumerate() {
        let mut params = all;
        params.x = lines(shifted(x, dim, rows.start, x_type), dim).0;
        params.index = params.x;
        if let Some((index, dtype)) = index {
            params.index = lines(shifted(index, dim, rows.start, dtype), dim).0;
        }
        params.first += rows.start as i64;
        params.count = rows.len() as i64;
        let further = |view: CudaView, step: i64, dtype: DType| CudaView {
            data: (view.data).wrapping_add_signed(k as i64 * step * dtype.size() as i64),
            ..view
        };
        params.y = further(y, y_step, y_type);
        params.at = further(at, at_step, at_type);
        launch(call, &defines, &params)?;
    }
    Ok(())
}

impl Running {
    fn plan(&self, of: DType, to: DType, totals: bool) -> Plan<'_> {
        let wide = if of.is_float() {
            DType::F64
        } else {
            DType::I64
        };
        let (start, join) = match (self.op, of.is_float()) {
            (Scan::Sum, true) => ("W(0)", "a + b"),
            (Scan::Prod, true) => ("W(1)", "a * b"),
            (Scan::LogSumExp, _) => ("W(-INFINITE)", "log_add_exp(a, b)"),
            (Scan::Sum, false) => ("W(0)", "(W)((u64)(a) + (u64)(b))"),
            (Scan::Prod, false) => ("W(1)", "(W)((u64)(a) * (u64)(b))"),
        };
        let types = define(&[("T", as_number(of)), ("W", wide), ("R", to)]);
        Plan {
            parts: &self.parts,
            backwards: self.backwards,
            index: None,
            begin: None,
            totals: totals.then_some(1),
            pairs: false,
            defines: format!(
                "#define KIND 0\n{}{types}#define START {start}\n#define JOIN(a, b) {join}\n",
                truths(of)
            ),
        }
    }
}

impl Extremes {
    fn plan(&self, of: DType, totals: bool) -> Plan<'_> {
        let wins = if self.largest { "a >= b" } else { "a <= b" };
        Plan {
            parts: &self.parts,
            backwards: false,
            index: None,
            begin: None,
            totals: totals.then_some(1),
            pairs: true,
            defines: format!(
                "#define KIND 1\n{}{}#define WINS(a, b) {wins}\n",
                truths(of),
                define(&[("T", as_number(of))])
            ),
        }
    }
}

impl Runs {
    fn plan(&self, of: DType, totals: bool) -> Plan<'_> {
        Plan {
            parts: &self.parts,
            backwards: true,
            index: Some(1),
            begin: None,
            totals: totals.then_some(2),
            pairs: true,
            defines: format!("#define KIND 2\n{}", define(&[("T", of)])),
        }
    }
}

impl Recurring {
    fn plan(&self, of: DType, inputs: usize) -> Plan<'_> {
        let types = define(&[("T", of)]);
        let adjoint = if self.of.adjoint {
            "#define ADJOINT\n"
        } else {
            ""
        };
        let starts = if self.starts { "#define STARTS\n" } else { "" };
        Plan {
            parts: &self.parts,
            backwards: self.of.backwards,
            index: Some(1),
            begin: self.starts.then_some(2),
            totals: (inputs > self.totals()).then(|| self.totals()),
            pairs: true,
            defines: format!("#define KIND 3\n{adjoint}{starts}{types}"),
        }
    }
}

/// Truth values are true whatever their byte.
fn truths(of: DType) -> &'static str {
    match of {
        DType::Bool => "#define TRUTHS\n",
        _ => "",
    }
}

macro_rules! kernels {
    ($($op:ty: |$this:ident, $call:ident| $plan:expr, $run:ident;)*) => {$(
        impl CudaKernel for $op {
            fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
                let ($this, $call) = (self, &*call);
                let plan = $plan;
                $run(call, &plan)
            }
        }
    )*};
}

kernels! {
    Running: |this, call| {
        let (of, to) = (call.inputs[0].dtype(), call.outputs[0].dtype());
        this.plan(of, to, call.inputs.len() > 1)
    }, scan;
    Totals: |this, call| this.0.plan(call.inputs[0].dtype(), call.outputs[0].dtype(), false), totals;
    Extremes: |this, call| this.plan(call.inputs[0].dtype(), call.inputs.len() > 1), scan;
    ExtremeTotals: |this, call| this.0.plan(call.inputs[0].dtype(), false), totals;
    Runs: |this, call| this.plan(call.inputs[0].dtype(), call.inputs.len() > 2), scan;
    RunTotals: |this, call| this.0.plan(call.inputs[0].dtype(), false), totals;
    Recurring: |this, call| this.plan(call.inputs[0].dtype(), call.inputs.len()), scan;
    RecurringTotals: |this, call| {
        let mut plan = this.0.plan(call.inputs[0].dtype(), 0);
        plan.begin = None;
        plan
    }, totals;
}
