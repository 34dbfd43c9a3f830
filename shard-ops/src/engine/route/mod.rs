//! Rows that an operand names: who asks whom is found out once for an operand's value, and kept with it.

pub(crate) mod asking;
pub(crate) mod runs;
pub(crate) mod telling;

use self::asking::Asked;
use self::telling::{
    COUNTS, Status, elements, exchange_numbers, look_up, swap, tell_counts, tell_rows, within,
    written,
};
use super::{Applied, submit};
use crate::error::InOp;
use crate::families::indexing::{Pack, Settle};
use crate::strategy::{Keyed, KeyedDims, Routing};
use crate::{Fold, KernelCx, KernelPhase, Op, OperandBox, Result};
use shard_comm::simulated::PHANTOM;
use shard_comm::{Buffer, BufferMut, DType, Work};
use shard_kernels::rows::by_key;
use shard_redistribute::{Array, Exchange, MeshComm};
use shard_spec::{DimPart, Dims, ReduceOp, numel, row_major_strides};
use smallvec::SmallVec;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub(super) use self::runs::bring as bring_runs;

/// What a part of an operand asks for, and what others ask of this rank. As long as the operand's value lives, this stays true.
#[derive(Debug)]
pub(super) struct Route {
    /// The key of every element, `i64`.
    keys: Buffer,
    /// The same without some of them, as they were needed: those of one index that is left out at most.
    selections: RefCell<Vec<Selection>>,
    /// Rows asked for, as their owners number them, peer by peer; how many of each; and all.
    requests: Vec<i64>,
    incoming: Vec<usize>,
    ghosts: usize,
    /// Rows of this rank that others ask for, `i64`, peer by peer; how many each.
    asked: Buffer,
    outgoing: Vec<usize>,
    /// Whether others ask for rows that there are, which all hear before rows move.
    status: Status,
    /// What comes home by key, for devices that fold each row by itself: of the ranks in front of this one, and of those behind.
    by_asked: [OnceCell<Sorted>; 2],
}

/// Keys of which some name no row.
#[derive(Debug)]
struct Selection {
    skips: Option<i64>,
    whose: Whose,
    keys: Buffer,
    /// Elements by key, for devices that fold each row by itself.
    sorted: Option<Sorted>,
}

/// Whose rows keys name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Anyone's.
    All,
    /// Those of other ranks.
    Others,
    /// This rank's.
    Own,
}

/// Ranks in front of this one, or behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Front,
    Behind,
}

/// The elements that name each row, in order, and where those of each row begin.
type Sorted = [Buffer; 2];

/// A route of one op, on its way.
pub(super) struct Routed<'a> {
    op: Applied<'a>,
    cx: &'a Rc<MeshComm>,
    routing: &'a Routing,
    route: Rc<Route>,
    /// What contributions that meet are combined with.
    fold: ReduceOp,
}

/// Finds the route of an operand's value, which is brought where it is needed by `exchange`: the one that was kept with it, or a
/// new one, for which ranks meet.
pub(super) fn find<'a>(
    op: Applied<'a>,
    cx: &'a Rc<MeshComm>,
    routing: &'a Routing,
    array: &Array,
    exchange: Option<&Exchange>,
    fold: ReduceOp,
) -> Result<Routed<'a>> {
    let name = op.name();
    let route = match array.kept(routing.id) {
        Some(route) => route,
        None => {
            let Some(local) = array.buffer() else {
                return Err(crate::OpError::NoData {
                    op: name,
                    operand: routing.index,
                });
            };
            let local = match exchange {
                Some(exchange) => {
                    let sources = std::slice::from_ref(local);
                    exchange.run(cx, array.dtype(), sources).in_op(name)?
                }
                None => local.clone(),
            };
            let route = Rc::new(Route::meet(name, cx, routing, &local)?);
            array.keep(routing.id, route.clone());
            route
        }
    };
    Ok(Routed {
        op,
        cx,
        routing,
        route,
        fold,
    })
}

impl Route {
    /// Finds out what a part asks for, and hears what others ask of this rank.
    fn meet(
        op: &'static str,
        cx: &Rc<MeshComm>,
        routing: &Routing,
        local: &Buffer,
    ) -> Result<Self> {
        if cx.device().kind() == PHANTOM {
            return Self::forecast(op, cx, routing, local);
        }
        let (keys, asked, status) = match look_up(op, cx, routing, local) {
            Ok((keys, asked)) => (Some(keys), asked, Ok(())),
            Err(error) => (None, Asked::default(), Err(error)),
        };
        let device = cx.device();
        let nobody = || device.upload_slice::<i64>(&[]).in_op(op);
        let (others, outgoing, known) = match (&routing.group, cx.all()) {
            (Some(group), Some(comm)) => {
                let (outgoing, known) = tell_counts(op, &**comm, routing, group, &asked, status)?;
                let told = tell_rows(op, &**comm, routing, group, &asked, &outgoing, known)?;
                let (others, known) = within(op, device, own_rows_of(routing), &told)?;
                (others, outgoing, known)
            }
            (_, Some(comm)) => {
                comm.agree(status).in_op(op)?;
                (nobody()?, Vec::new(), Ok(()))
            }
            (_, None) => (nobody()?, Vec::new(), Ok(())),
        };
        Ok(Self {
            // A rank without any has made the others return by now.
            keys: keys.map_or_else(nobody, Ok)?,
            selections: RefCell::default(),
            ghosts: asked.requests.len(),
            requests: asked.requests,
            incoming: asked.counts,
            asked: others,
            outgoing,
            status: known,
            by_asked: Default::default(),
        })
    }
}

/// What ranks that are played do.
impl Route {
    /// The route of indices that nobody knows: as if they were spread over all rows evenly, none named twice.
    fn forecast(
        op: &'static str,
        cx: &Rc<MeshComm>,
        routing: &Routing,
        local: &Buffer,
    ) -> Result<Self> {
        let device = cx.device();
        let rows = |len: usize| numbers_of(routing) * len;
        let asks = |len: usize| {
            let even = (local.len() * len).div_ceil(routing.extent.max(1));
            even.min(rows(len))
        };
        let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
        let mut asked = 0;
        if let (None, Some(comm)) = (&routing.group, cx.all()) {
            comm.agree(Ok(())).in_op(op)?;
        }
        if let (Some(group), Some(comm)) = (&routing.group, cx.all()) {
            for (k, peer) in group.peers.iter().enumerate() {
                let others = k != group.me;
                incoming.push(usize::from(others) * asks(group.partition.size(peer.part)));
                outgoing.push(usize::from(others) * asks(routing.own.len()));
            }
            asked = outgoing.iter().sum();
            let none = vec![0; group.peers.len()];
            exchange_numbers(op, COUNTS, &**comm, group, routing.id, Ok(()), &none, 1)?;
            let dtype = if routing.narrow {
                DType::I32
            } else {
                DType::I64
            };
            let all = incoming.iter().sum();
            let mine = device.alloc(dtype, all).in_op(op)?.freeze();
            let (to, from, what) = (&incoming, &outgoing, "route requests");
            swap(op, what, &**comm, group, &mine, to, from, 1, Ok(()))?;
        }
        let list = |len: usize| Ok(device.alloc(DType::I64, len).in_op(op)?.freeze());
        Ok(Self {
            keys: list(local.len())?,
            selections: RefCell::default(),
            ghosts: incoming.iter().sum(),
            requests: Vec::new(),
            incoming,
            asked: list(asked)?,
            outgoing,
            status: Ok(()),
            by_asked: Default::default(),
        })
    }
}

/// How many places of shared dims each row of the routed dim has.
fn numbers_of(routing: &Routing) -> usize {
    let extent = |keyed: &Keyed| match keyed {
        Keyed::Routed => 1,
        Keyed::Shared { extent, .. } => *extent,
    };
    routing.keyed.iter().map(extent).product()
}

/// How many rows this rank has.
fn own_rows_of(routing: &Routing) -> usize {
    numbers_of(routing) * routing.own.len()
}

impl Routed<'_> {
    /// The keys that the kernel sees in place of indices.
    pub(super) fn keys(&self, whose: Whose) -> Result<Buffer> {
        let skips = self.routing.skips;
        let all = skips.is_none() && whose == Whose::All;
        if all || self.cx.device().kind() == PHANTOM {
            return Ok(self.route.keys.clone());
        }
        let at = self.selection(whose)?;
        Ok(self.route.selections.borrow()[at].keys.clone())
    }

    /// Which of the kept selections of keys it is.
    fn selection(&self, whose: Whose) -> Result<usize> {
        let (skips, route) = (self.routing.skips, &self.route);
        let known = (route.selections.borrow().iter())
            .position(|kept| kept.skips == skips && kept.whose == whose);
        if let Some(at) = known {
            return Ok(at);
        }
        let (op, device) = (self.op.name(), self.cx.device());
        let skipped = skips.and_then(|index| self.key_of(index));
        let own = self.own_rows() as i64;
        let all = elements::<i64>(&route.keys).in_op(op)?;
        let select = |keys: &mut [i64]| {
            for (to, &key) in keys.iter_mut().zip(&*all) {
                let wanted = match whose {
                    Whose::All => true,
                    Whose::Others => key >= own,
                    Whose::Own => key < own,
                };
                *to = if wanted && Some(key) != skipped {
                    key
                } else {
                    -1
                };
            }
        };
        let (keys, ()) = written(device, all.len(), select).in_op(op)?;
        let mut selections = route.selections.borrow_mut();
        selections.retain(|kept| kept.skips.is_none() || kept.skips == skips);
        selections.push(Selection {
            skips,
            whose,
            keys,
            sorted: None,
        });
        Ok(selections.len() - 1)
    }

    /// The key of an index of a dim without shared ones; `None` where no element names it.
    fn key_of(&self, index: i64) -> Option<i64> {
        let routing = self.routing;
        let index = usize::try_from(index).ok()?;
        if let Some(own) = routing.own.position(index) {
            return Some(own as i64);
        }
        let group = routing.group.as_ref()?;
        let part = group.partition.owner_of(index)?;
        let peer = group.peers.iter().position(|p| p.part == part)?;
        let at = group.partition.part(part).position(index)? as i64;
        let before: usize = self.route.incoming[..peer].iter().sum();
        let asked = &self.route.requests[before..before + self.route.incoming[peer]];
        let found = asked.binary_search(&at).ok()?;
        Some((routing.own.len() + before + found) as i64)
    }

    /// The kernel call, with the boxes of the rows that come or go behind its own.
    pub(super) fn call(&self, call: &KernelCx) -> KernelCx {
        let mut call = call.clone();
        for (i, keyed) in &self.routing.fetched {
            let ghosts = self.ghost_box(&call.inputs[*i], keyed, self.route.ghosts);
            call.inputs.push(ghosts);
        }
        for (o, keyed) in &self.routing.home {
            let ghosts = self.ghost_box(&call.outputs[*o], keyed, self.route.ghosts);
            call.outputs.push(ghosts);
        }
        call
    }

    /// The box of so many rows of an operand side by side.
    fn ghost_box(&self, of: &OperandBox, keyed: &KeyedDims, rows: usize) -> OperandBox {
        let kept = || (0..of.shape.len()).filter(|&d| !keyed[d]);
        let shape: Dims = std::iter::once(rows)
            .chain(kept().map(|d| of.shape[d]))
            .collect();
        let held =
            std::iter::once(DimPart::from(0..rows)).chain(kept().map(|d| of.held[d].clone()));
        OperandBox {
            offset: 0,
            strides: row_major_strides(&shape),
            start: std::iter::once(0)
                .chain(kept().map(|d| of.start[d]))
                .collect(),
            held: held.collect(),
            global: std::iter::once(rows)
                .chain(kept().map(|d| of.global[d]))
                .collect(),
            shape,
        }
    }

    /// The rows that this rank asked for, of every operand that has them.
    pub(super) fn fetch(&self, call: &KernelCx, buffers: &[Buffer]) -> Result<Vec<Buffer>> {
        let fetched = self.routing.fetched.iter();
        fetched
            .map(|(i, keyed)| self.fetch_one(&call.inputs[*i], keyed, &buffers[*i]))
            .collect()
    }

    fn fetch_one(&self, table: &OperandBox, keyed: &KeyedDims, from: &Buffer) -> Result<Buffer> {
        let (name, device) = (self.op.name(), self.cx.device());
        let (Some(group), Some(comm)) = (&self.routing.group, self.cx.all()) else {
            return Ok(device.alloc(from.dtype(), 0).in_op(name)?.freeze());
        };
        let route = &*self.route;
        let packed = self.ghost_box(table, keyed, route.asked.len());
        let width: usize = packed.shape[1..].iter().product();
        let mut outputs = vec![
            device
                .alloc(from.dtype(), numel(&packed.shape))
                .in_op(name)?,
        ];
        let op: Arc<dyn Op> = Arc::new(Pack {
            keyed: keyed.clone(),
        });
        let call = rows_call(
            vec![table.clone(), list(route.asked.len())],
            packed,
            from.dtype(),
        );
        if call.writes() {
            outputs = submit(
                self.with(&op),
                self.cx,
                KernelPhase::Compute,
                &Arc::new(vec![call]),
                None,
                &[from, &route.asked],
                outputs,
            )?;
        }
        let packed = outputs.remove(0).freeze();
        let (to, from) = (&route.outgoing, &route.incoming);
        let (what, status) = ("route rows", route.status.clone());
        swap(name, what, &**comm, group, &packed, to, from, width, status)
    }

    /// The same way of going about it with an op of the route's own.
    fn with<'b>(&'b self, op: &'b Arc<dyn Op>) -> Applied<'b> {
        Applied {
            op,
            name: op.name(),
            kernels: self.op.kernels,
            wide: None,
        }
    }

    /// Memory for the contributions to rows of others, of every output that has them.
    pub(super) fn away(&self, call: &KernelCx, outputs: &[BufferMut]) -> Result<Vec<BufferMut>> {
        let (name, device) = (self.op.name(), self.cx.device());
        let first = call.outputs.len() - self.routing.home.len();
        let of = |(k, (o, _)): (usize, &(usize, KeyedDims))| {
            let len = numel(&call.outputs[first + k].shape);
            device.alloc(outputs[*o].dtype(), len).in_op(name)
        };
        self.routing.home.iter().enumerate().map(of).collect()
    }

    /// What a device with kernels of its own needs, which fold each row by itself, behind all other inputs.
    pub(super) fn push_sorted(
        &self,
        whose: Whose,
        call: &mut KernelCx,
        inputs: &mut Vec<Buffer>,
    ) -> Result<()> {
        if self.routing.home.is_empty() || self.cx.device().runs_host_jobs() {
            return Ok(());
        }
        let at = self.selection(whose)?;
        let kept = |s: &[Selection]| (s[at].keys.clone(), s[at].sorted.clone());
        let (keys, known) = kept(&self.route.selections.borrow());
        let sorted = match known {
            Some(sorted) => sorted,
            None => {
                let rows = self.own_rows() + call.outputs.last().map_or(0, |away| away.shape[0]);
                let sorted = self.sort(&keys, rows)?;
                self.route.selections.borrow_mut()[at].sorted = Some(sorted.clone());
                sorted
            }
        };
        call.inputs.extend(sorted.iter().map(|b| list(b.len())));
        inputs.extend(sorted);
        Ok(())
    }

    /// Whether contributions of ranks in front of this one come to its rows, to which its own are then added in turn. What is
    /// forecast has no order.
    pub(super) fn waits(&self) -> bool {
        let me = self.routing.group.as_ref().map_or(0, |group| group.me);
        let in_front = self.route.outgoing.iter().take(me);
        let away = !self.routing.home.is_empty() && self.cx.device().kind() != PHANTOM;
        away && in_front.sum::<usize>() > 0
    }

    /// The same call once more, which goes on with the outputs and has nothing to send home.
    pub(super) fn goes_on(&self, call: &KernelCx) -> KernelCx {
        let mut call = call.clone();
        call.fold.first = false;
        call.work = Work::default();
        let first = call.outputs.len() - self.routing.home.len();
        for (k, (o, keyed)) in self.routing.home.iter().enumerate() {
            call.outputs[first + k] = self.ghost_box(&call.outputs[*o], keyed, 0);
        }
        call
    }

    fn own_rows(&self) -> usize {
        own_rows_of(self.routing)
    }

    fn sort(&self, keys: &Buffer, rows: usize) -> Result<Sorted> {
        let (op, device) = (self.op.name(), self.cx.device());
        let keys = device.download_vec::<i64>(keys).in_op(op)?;
        let (order, starts) = by_key(&keys, rows);
        Ok([
            device.upload_slice(&order).in_op(op)?,
            device.upload_slice(&starts).in_op(op)?,
        ])
    }

    /// Sends contributions to the owners of the rows: those that came to this rank's.
    pub(super) fn send_home(&self, call: &KernelCx, away: Vec<BufferMut>) -> Result<Vec<Buffer>> {
        let name = self.op.name();
        let (Some(group), Some(comm)) = (&self.routing.group, self.cx.all()) else {
            return Ok(Vec::new());
        };
        let (to, from) = (&self.route.incoming, &self.route.outgoing);
        let home = self.routing.home.iter().zip(away);
        let came = home.map(|((o, keyed), away)| {
            let rows = self.ghost_box(&call.outputs[*o], keyed, self.route.asked.len());
            let width: usize = rows.shape[1..].iter().product();
            let mine = away.freeze();
            let (what, status) = ("route home", self.route.status.clone());
            swap(name, what, &**comm, group, &mine, to, from, width, status)
        });
        came.collect()
    }

    /// Folds what came from the ranks on one side into this rank's rows, in the order of those ranks.
    pub(super) fn settle(
        &self,
        side: Side,
        call: &KernelCx,
        outputs: &mut [BufferMut],
        came: &[Buffer],
    ) -> Result<()> {
        let (name, route) = (self.op.name(), &*self.route);
        let me = self.routing.group.as_ref().map_or(0, |group| group.me);
        let in_front: usize = route.outgoing.iter().take(me).sum();
        let rows = match side {
            Side::Front => 0..in_front,
            Side::Behind => in_front..route.asked.len(),
        };
        if rows.is_empty() {
            return Ok(());
        }
        let asked = route.asked.try_slice(rows.clone()).in_op(name)?;
        for ((o, keyed), came) in self.routing.home.iter().zip(came) {
            let at = &call.outputs[*o];
            let box_of_rows = self.ghost_box(at, keyed, rows.len());
            let width: usize = box_of_rows.shape[1..].iter().product();
            if width == 0 {
                continue;
            }
            let op: Arc<dyn Op> = Arc::new(Settle {
                keyed: keyed.clone(),
                fold: self.fold,
            });
            let came = came
                .try_slice(width * rows.start..width * rows.end)
                .in_op(name)?;
            let dtype = came.dtype();
            let mut inputs = vec![came, asked.clone()];
            let mut boxes = vec![box_of_rows, list(rows.len())];
            if !self.cx.device().runs_host_jobs() {
                let cell = &route.by_asked[usize::from(side == Side::Behind)];
                let sorted = match cell.get() {
                    Some(sorted) => sorted,
                    None => {
                        let sorted = self.sort(&asked, self.own_rows())?;
                        cell.get_or_init(|| sorted)
                    }
                };
                boxes.extend(sorted.iter().map(|b| list(b.len())));
                inputs.extend(sorted.iter().cloned());
            }
            let call = rows_call(boxes, at.clone(), dtype);
            let none = self.cx.device().alloc(dtype, 0).in_op(name)?;
            let own = vec![std::mem::replace(&mut outputs[*o], none)];
            let calls = Arc::new(vec![call]);
            let phase = KernelPhase::Compute;
            let inputs: SmallVec<[&Buffer; 4]> = inputs.iter().collect();
            let mut done = submit(self.with(&op), self.cx, phase, &calls, None, &inputs, own)?;
            outputs[*o] = done.remove(0);
        }
        Ok(())
    }
}

/// The box of a list.
fn list(len: usize) -> OperandBox {
    OperandBox::line(len)
}

/// A call of an op that moves rows.
fn rows_call(inputs: Vec<OperandBox>, output: OperandBox, dtype: DType) -> KernelCx {
    let moved = numel(&inputs[0].shape).min(numel(&output.shape));
    KernelCx {
        work: Work::moving(2 * moved * dtype.size()),
        inputs,
        outputs: vec![output],
        adds_once: true,
        fold: Fold::ONLY,
        is_part: false,
        line: None,
    }
}
