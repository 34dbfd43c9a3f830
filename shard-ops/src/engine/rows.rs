//! Outputs whose extent the data decides: what every rank's kernel found, told to all in one round, gives the layouts, and the
//! kernel writes its rows into memory of that size.

use super::{Applied, Arrays, finish, outputs_without_data, submit};
use crate::error::InOp;
use crate::{
    Access, FoldState, KernelCx, KernelPhase, OpError, OperandBox, Result, Rule, Strategy,
};
use shard_comm::{AgreedError, BufferMut, Communicator};
use shard_redistribute::MeshComm;
use shard_spec::{DimSharding, Dims, Layout, Partition, numel, row_major_strides};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// What the kernel calls of one op leave for those after them, and for the engine.
#[derive(Default)]
pub(super) struct Work {
    pub(super) state: FoldState,
    pub(super) rows: usize,
    /// Whether the op decides rows: it has to look even where it has nothing else to write.
    pub(super) decides: bool,
}

/// Shared by the calls, which run where the device's queue runs.
pub(super) type SharedWork = Arc<Mutex<Work>>;

impl Work {
    /// Before the first call of an op.
    pub(super) fn shared(rule: &Rule) -> SharedWork {
        Arc::new(Mutex::new(Self {
            decides: rule.decides_rows().is_some(),
            ..Self::default()
        }))
    }

    /// Whether a call has anything to do: an op that decides rows looks in any case.
    pub(super) fn has_to_see(&self, call: &KernelCx) -> bool {
        self.decides || call.writes()
    }

    /// Whether a call has to be made at all.
    pub(super) fn needs(shared: Option<&SharedWork>, call: &KernelCx) -> bool {
        call.writes() || shared.is_some_and(|work| Self::with(work, |work| work.decides))
    }

    /// Runs a job on what the calls before it left.
    pub(super) fn with<T>(shared: &Mutex<Self>, f: impl FnOnce(&mut Self) -> T) -> T {
        // Jobs of one rank run one after the other; one that panicked took its rank with it.
        f(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The outputs of an op that decides rows, after its kernels `ran` and left `work`.
pub(super) fn settle(
    op: Applied<'_>,
    cx: &Rc<MeshComm>,
    rule: &Rule,
    strategy: &Strategy,
    ran: Result<Vec<BufferMut>>,
    work: &SharedWork,
) -> Result<Arrays> {
    let name = op.name();
    // How many rows there are is only known when the queue has got there.
    let ran = ran.and_then(|outputs| cx.device().synchronize().map(|()| outputs).in_op(name));
    let rows = Work::with(work, |work| work.rows);
    let (layouts, mut outputs) = match ran {
        Ok(outputs) => (decided(name, cx, rule, strategy, Ok(rows))?, outputs),
        Err(error) => {
            decided(name, cx, rule, strategy, Err(error.clone()))?;
            return Err(error);
        }
    };
    if rows > 0 {
        let call = call(cx, strategy, &layouts);
        for ((buffer, layout), output) in outputs.iter_mut().zip(&layouts).zip(&rule.outputs) {
            if output.dims.iter().any(decides) {
                let len = numel(&layout.local_shape(cx.rank()).unwrap_or_default());
                *buffer = cx.device().alloc(output.meta.dtype, len).in_op(name)?;
            }
        }
        let call = Arc::new(vec![call]);
        outputs = submit(
            op,
            cx,
            KernelPhase::WriteRows,
            &call,
            Some(work),
            &[],
            outputs,
        )?;
    }
    finish(name, cx, strategy, &layouts, outputs)
}

/// The outputs on a rank outside the mesh, which hears of their extents with the others.
pub(super) fn settle_outside(
    op: &'static str,
    cx: &Rc<MeshComm>,
    rule: &Rule,
    strategy: &Strategy,
) -> Result<Arrays> {
    let layouts = decided(op, cx, rule, strategy, Ok(0))?;
    outputs_without_data(cx, rule, &layouts)
}

/// The layouts of the outputs, once every rank has told how many rows it found. This is the only round, and what went wrong
/// on one rank before it comes out on all.
fn decided(
    op: &'static str,
    cx: &Rc<MeshComm>,
    rule: &Rule,
    strategy: &Strategy,
    found: Result<usize>,
) -> Result<Vec<Layout>> {
    let rows = match cx.program() {
        // On a mesh of one rank's own nobody else takes part.
        Some(comm) if comm.size() == 1 => SmallVec::from_elem(found?, 1),
        Some(comm) => gathered(op, cx, &**comm, found)?,
        None => SmallVec::from_elem(0, 1),
    };
    let sharding = rule
        .decides_rows()
        .and_then(|f| strategy.choice.factors[f].as_ref());
    let sizes = sizes(op, cx, sharding, &rows)?;
    let total = sizes.iter().sum();
    let rows = match sharding {
        Some(sharding) => Some(DimSharding {
            axes: sharding.axes.clone(),
            partition: Partition::from_sizes(&sizes).in_op(op)?,
        }),
        None => None,
    };
    let made = strategy.outputs.iter().zip(&rule.outputs);
    made.map(|(layout, output)| {
        let mut shape: Dims = layout.shape().iter().copied().collect();
        let mut dims = layout.shardings().to_vec();
        for (d, access) in output.dims.iter().enumerate() {
            if decides(access) {
                shape[d] = total;
                dims[d].clone_from(&rows);
            }
        }
        layout.with_dims(&shape, dims).in_op(op)
    })
    .collect()
}

/// How many rows each member of the mesh found, in its order.
fn gathered(
    op: &'static str,
    cx: &Rc<MeshComm>,
    comm: &dyn Communicator,
    found: Result<usize>,
) -> Result<SmallVec<[usize; 8]>> {
    const FAILED: i64 = -1;
    let mesh = cx.mesh();
    let mine: SmallVec<[i64; 1]> = cx
        .is_member()
        .then(|| match &found {
            Ok(rows) => i64::try_from(*rows).unwrap_or(i64::MAX),
            Err(_) => FAILED,
        })
        .into_iter()
        .collect();
    let counts: Vec<usize> = (0..comm.size())
        .map(|rank| usize::from(mesh.index_of(rank).is_some()))
        .collect();
    let mine = comm.device().upload_slice(&mine).in_op(op)?;
    let all = comm.all_gather_v(&mine, &counts).in_op(op)?;
    let all = comm.device().download_vec::<i64>(&all).in_op(op)?;
    if all.contains(&FAILED) {
        let status = match found {
            Ok(_) => Ok(()),
            Err(error) => Err(AgreedError::new(
                op,
                "rows to be found",
                error.to_string(),
                "see what that rank reports",
            )),
        };
        comm.agree(status).in_op(op)?;
    }
    // They come in the order of the ranks.
    let place = |rank: &usize| counts[..*rank].iter().sum::<usize>();
    let of = |rank| usize::try_from(all[place(rank)]).unwrap_or(0);
    Ok(mesh.ranks().iter().map(of).collect())
}

/// How many rows each part of the factor has; all ranks of a part must have found as many.
fn sizes(
    op: &'static str,
    cx: &Rc<MeshComm>,
    sharding: Option<&DimSharding>,
    rows: &[usize],
) -> Result<Vec<usize>> {
    let mesh = cx.mesh();
    let mut sizes: Vec<Option<(usize, usize)>> =
        vec![None; sharding.map_or(1, |s| s.partition.parts())];
    for (index, &rows) in rows.iter().enumerate() {
        let part = sharding.map_or(0, |s| mesh.part_at(&s.axes, &mesh.coords_at(index)));
        match sizes[part] {
            Some((first, other)) if other != rows => {
                let ranks = [mesh.ranks()[first], mesh.ranks()[index]];
                return Err(OpError::Copies {
                    op,
                    ranks,
                    rows: [other, rows],
                });
            }
            Some(_) => {}
            None => sizes[part] = Some((index, rows)),
        }
    }
    Ok(sizes.into_iter().map(|s| s.map_or(0, |s| s.1)).collect())
}

/// The call that writes the rows.
fn call(cx: &Rc<MeshComm>, strategy: &Strategy, layouts: &[Layout]) -> KernelCx {
    let (mut outputs, rank) = (Vec::with_capacity(layouts.len()), cx.rank());
    for layout in layouts {
        let held = layout.local_parts(rank).unwrap_or_default();
        let shape = layout.local_shape(rank).unwrap_or_default();
        outputs.push(OperandBox {
            offset: 0,
            strides: row_major_strides(&shape),
            shape,
            start: (held.iter())
                .map(|part| part.interval().map_or(0, |interval| interval.start))
                .collect(),
            held: held.into_iter().collect(),
            global: layout.shape().iter().copied().collect(),
        });
    }
    KernelCx {
        inputs: Vec::new(),
        outputs,
        adds_once: strategy.late.first().is_none_or(|call| call.adds_once),
        fold: crate::Fold::ONLY,
        work: shard_comm::Work::default(),
        is_part: false,
        line: None,
    }
}

fn decides(access: &Access) -> bool {
    matches!(access, Access::Rows { cuts: None, .. })
}
