//! What ranks tell each other to find a route: how many rows they ask for, which, and then the rows.

use super::asking::{self, Asked};
use super::own_rows_of;
use crate::error::InOp;
use crate::strategy::{Group, Routing};
use crate::{Result, key_of};
use shard_comm::{
    AgreedError, Buffer, Communicator, DType, DeviceRef, Element, ExchangePlan, Piece,
};
use shard_redistribute::MeshComm;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// The keys of the elements of a part, and what it asks for.
pub(super) fn look_up(
    op: &'static str,
    cx: &Rc<MeshComm>,
    routing: &Routing,
    local: &Buffer,
) -> std::result::Result<(Buffer, Asked), AgreedError> {
    let device = cx.device();
    let failed = |e| AgreedError::from_local(op, e);
    let made = match local.dtype() {
        DType::I32 => {
            let indices = elements::<i32>(local).map_err(failed)?;
            written(device, indices.len(), |keys| {
                asking::ask(op, routing, &indices, keys)
            })
        }
        _ => {
            let indices = elements::<i64>(local).map_err(failed)?;
            written(device, indices.len(), |keys| {
                asking::ask(op, routing, &indices, keys)
            })
        }
    };
    let (keys, asked) = made.map_err(failed)?;
    Ok((keys, asked?))
}

/// The elements where they are, or fetched if the host cannot see them there.
pub(super) fn elements<T: Element>(of: &Buffer) -> shard_comm::Result<Cow<'_, [T]>> {
    match of.as_slice::<T>() {
        Ok(there) => Ok(Cow::Borrowed(there)),
        Err(_) => Ok(Cow::Owned(of.device().download_vec::<T>(of)?)),
    }
}

/// A buffer of elements that the host writes: in place where it can, without a copy.
pub(super) fn written<T: Element, R>(
    device: &DeviceRef,
    len: usize,
    write: impl FnOnce(&mut [T]) -> R,
) -> shard_comm::Result<(Buffer, R)> {
    let mut buffer = device.alloc(T::DTYPE, len)?;
    if let Ok(there) = buffer.as_mut_slice::<T>() {
        let made = write(there);
        return Ok((buffer.freeze(), made));
    }
    drop(buffer);
    let mut values = vec![T::default(); len];
    let made = write(&mut values);
    Ok((device.upload_slice(&values)?, made))
}

/// The counts round: every rank tells each of its peers how many rows it asks for, and all whether anything is wrong. Gives how many
/// each asks of this rank, and whether it has as many.
pub fn tell_counts(
    op: &'static str,
    comm: &dyn Communicator,
    routing: &Routing,
    group: &Group,
    asked: &Asked,
    status: Status,
) -> Result<(Vec<usize>, Status)> {
    let mut counts: Vec<i64> = asked.counts.iter().map(|&n| n as i64).collect();
    counts.resize(group.peers.len(), 0);
    let told = exchange_numbers(op, COUNTS, comm, group, routing.id, status, &counts, 1)?;
    let mut told = comm.device().download_vec::<i64>(&told).in_op(op)?;
    told[group.me] = 0;
    let rows = own_rows_of(routing);
    let mut status = Ok(());
    let count = |n: i64| {
        let count = usize::try_from(n).ok().filter(|&n| n <= rows);
        count.unwrap_or_else(|| {
            status = Err(foreign(op, format!("requests for at most {rows} rows"), n));
            0
        })
    };
    let counts = told.into_iter().map(count).collect();
    Ok((counts, status))
}

/// What a rank says that runs another program.
fn foreign(op: &'static str, expected: String, got: i64) -> AgreedError {
    let fix = "run the same program on all ranks";
    AgreedError::new(op, expected, format!("{got}"), fix)
}

/// Whether anything is wrong on this rank.
pub type Status = std::result::Result<(), AgreedError>;

/// The name of the counts round.
pub const COUNTS: &str = "route counts";

/// As many numbers from every rank to each of its peers.
#[expect(
    clippy::too_many_arguments,
    reason = "the pieces of one exchange, passed on once"
)]
pub fn exchange_numbers(
    op: &'static str,
    what: &'static str,
    comm: &dyn Communicator,
    group: &Group,
    id: u128,
    status: Status,
    numbers: &[i64],
    width: usize,
) -> Result<Buffer> {
    let device = comm.device();
    let others = || {
        group
            .peers
            .iter()
            .enumerate()
            .filter(|&(k, _)| k != group.me)
    };
    let me = group.me;
    let recv = others().map(|(k, peer)| Piece::run(peer.at, 0, width, width * me, width * k));
    let send = others().map(|(k, peer)| Piece::run(peer.at, 0, width, width * k, width * me));
    let (recv, send) = (recv.collect(), send.collect());
    // How many numbers there are may differ from group to group, but who is in which follows from what the rows are looked up by.
    let id = key_of(what, &id);
    let plan = ExchangePlan::new(what, id, recv, send, None, Some(ZERO));
    let mine = device.upload_slice(numbers).in_op(op)?;
    let into = device.alloc(DType::I64, numbers.len()).in_op(op)?;
    comm.exchange(&Arc::new(plan), &[mine], into, status)
        .in_op(op)
}

const ZERO: shard_comm::Scalar = shard_comm::Scalar::ZERO;

/// The requests: what others ask of this rank, as keys of its own rows, in four bytes each where that is enough.
pub fn tell_rows(
    op: &'static str,
    comm: &dyn Communicator,
    routing: &Routing,
    group: &Group,
    asked: &Asked,
    outgoing: &[usize],
    status: Status,
) -> Result<Buffer> {
    const WHAT: &str = "route requests";
    let (device, all) = (comm.device(), &asked.requests);
    let (to, from) = (&asked.counts, outgoing);
    let mine = match routing.narrow {
        true => {
            let shorten = |short: &mut [i32]| {
                let both = short.iter_mut().zip(all);
                both.for_each(|(short, &row)| *short = row as i32);
            };
            written(device, all.len(), shorten).in_op(op)?.0
        }
        false => device.upload_slice(all).in_op(op)?,
    };
    swap(op, WHAT, comm, group, &mine, to, from, 1, status)
}

/// The rows that others ask for, as `i64`, if this rank has them; otherwise the first.
pub fn within(
    op: &'static str,
    device: &DeviceRef,
    rows: usize,
    told: &Buffer,
) -> Result<(Buffer, Status)> {
    match told.dtype() {
        DType::I32 => rows_within::<i32>(op, device, rows, told),
        _ => rows_within::<i64>(op, device, rows, told),
    }
}

fn rows_within<I: Element + Into<i64>>(
    op: &'static str,
    device: &DeviceRef,
    rows: usize,
    told: &Buffer,
) -> Result<(Buffer, Status)> {
    let told = elements::<I>(told).in_op(op)?;
    let check = |asked: &mut [i64]| {
        let mut status = Ok(());
        for (to, &key) in asked.iter_mut().zip(&*told) {
            let key = key.into();
            let is_there = usize::try_from(key).is_ok_and(|key| key < rows);
            if !is_there {
                status = Err(foreign(op, format!("requests for rows below {rows}"), key));
            }
            *to = if is_there { key } else { 0 };
        }
        status
    };
    written(device, told.len(), check).in_op(op)
}

/// An exchange among peers of runs that lie peer by peer on either side, of which only the pair knows the length.
#[expect(
    clippy::too_many_arguments,
    reason = "the pieces of one exchange, passed on once"
)]
pub fn swap(
    op: &'static str,
    what: &'static str,
    comm: &dyn Communicator,
    group: &Group,
    mine: &Buffer,
    to: &[usize],
    from: &[usize],
    width: usize,
    status: Status,
) -> Result<Buffer> {
    let device = comm.device();
    let (mut recv, mut send) = (Vec::new(), Vec::new());
    let mut sources = Vec::with_capacity(group.peers.len());
    let (mut read, mut written) = (0, 0);
    for (k, peer) in group.peers.iter().enumerate() {
        let (give, take) = (width * to[k], width * from[k]);
        // A piece names a source of its reader's number, since only its owner knows where that begins.
        sources.push(mine.try_slice(read..read + give).in_op(op)?);
        if k != group.me {
            send.push(Piece::run(peer.at, k, give, 0, 0));
            recv.push(Piece::run(peer.at, group.me, take, 0, written));
        }
        read += give;
        written += take;
    }
    // The data decided it, so that it is worth nothing to another call, and is compared pair by pair.
    let plan = ExchangePlan::new(what, 0, recv.into(), send.into(), None, None);
    let (into, room) = match device.alloc(mine.dtype(), written) {
        Ok(into) => (into, Ok(())),
        Err(e) => {
            let none = device.alloc(mine.dtype(), 0).in_op(op)?;
            (none, Err(AgreedError::from_local(op, e)))
        }
    };
    comm.exchange(&Arc::new(plan), &sources, into, status.and(room))
        .in_op(op)
}
