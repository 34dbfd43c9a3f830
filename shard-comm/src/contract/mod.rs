//! The contract of every backend, as programs that all ranks of a group run and that panic where the contract is broken.
//!
//! A backend's tests launch ranks in their own way and call [`all`], or the functions one by one. Values are whole
//! numbers held in floats, so every comparison is exact, whatever the order of sums.

mod moves;
mod protocol;
mod reductions;

pub use moves::{
    all_gather, all_to_all, broadcast, equal_gather, equal_parts, exchange_with_gaps,
    exchange_with_strides, gather, messages, other_places, rings, scatter,
};
pub use protocol::{
    agreed_errors, devices, dropped_handles, element_types_agree, handles_in_any_order, histories,
    ledger_balances, local_mistakes_are_agreed, misnamed_groups, splits, subgroups, uniform_checks,
};
pub use reductions::{
    all_reduce, equal_scatter, half_sums, reduce, reduce_scatter, reduced_boxes, scans,
    structured_monoids, tree_order,
};

use crate::{Buffer, Communicator, DType, Scalar, Strided};

/// Everything, one after the other.
///
/// # Collective
/// Every rank of the group.
pub fn all(comm: &dyn Communicator) {
    all_gather(comm);
    equal_gather(comm);
    all_to_all(comm);
    equal_parts(comm);
    broadcast(comm);
    scatter(comm);
    gather(comm);
    messages(comm);
    rings(comm);
    exchange_with_strides(comm);
    exchange_with_gaps(comm);
    other_places(comm);
    reduce_scatter(comm);
    equal_scatter(comm);
    all_reduce(comm);
    reduce(comm);
    scans(comm);
    tree_order(comm);
    half_sums(comm);
    reduced_boxes(comm);
    structured_monoids(comm);
    agreed_errors(comm);
    local_mistakes_are_agreed(comm);
    uniform_checks(comm);
    histories(comm);
    element_types_agree(comm);
    splits(comm);
    subgroups(comm);
    misnamed_groups(comm);
    handles_in_any_order(comm);
    // Before the operations whose handles are dropped: they are counted when a later call finishes them.
    ledger_balances(comm);
    dropped_handles(comm);
    devices(comm);
}

/// Counts per rank for the tests: equal, uneven with zeros, all on one rank, none at all.
fn count_cases(ranks: usize) -> Vec<Vec<usize>> {
    let uneven = (0..ranks).map(|r| (r * 3 + 1) % 4).collect();
    let only_last = (0..ranks)
        .map(|r| if r + 1 == ranks { 5 } else { 0 })
        .collect();
    vec![vec![3; ranks], uneven, only_last, vec![0; ranks]]
}

/// The `i`th value of a rank: a whole number, different for each.
fn value(rank: usize, i: usize) -> f64 {
    (rank * 1000 + i) as f64
}

fn values(rank: usize, len: usize) -> Vec<f64> {
    (0..len).map(|i| value(rank, i)).collect()
}

/// A buffer of doubles, made by the device in stream order.
fn upload(comm: &dyn Communicator, values: &[f64]) -> Buffer {
    comm.device().upload_slice(values).expect("a small upload")
}

fn read(buffer: &Buffer) -> Vec<f64> {
    buffer.to_vec().expect("doubles")
}

/// A buffer of another type that holds these numbers.
fn upload_as(comm: &dyn Communicator, dtype: DType, values: &[f64]) -> Buffer {
    let all = Strided::contiguous(&[values.len()]);
    let source = upload(comm, values);
    let mut converted = comm
        .device()
        .alloc(dtype, values.len())
        .expect("a small buffer");
    comm.device()
        .copy(&source, &all, &mut converted, &all)
        .expect("a conversion");
    converted.freeze()
}

fn read_as_f64(comm: &dyn Communicator, buffer: &Buffer) -> Vec<f64> {
    let all = Strided::contiguous(&[buffer.len()]);
    let mut wide = comm
        .device()
        .alloc(DType::F64, buffer.len())
        .expect("a small buffer");
    comm.device()
        .fill(&mut wide, &all, Scalar::ZERO)
        .expect("a fill");
    comm.device()
        .copy(buffer, &all, &mut wide, &all)
        .expect("a conversion");
    read(&wide.freeze())
}
