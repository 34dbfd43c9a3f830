//! Whether ranks mean the same file, and the same in it.

use crate::{Context, Result, ShardTensor};
use shard_comm::{AgreedError, Call, CommError, DType};
use shard_redistribute::MeshComm;
use std::path::Path;
use std::rc::Rc;

/// A tensor in words that differ where files would.
fn told(name: &str, t: &ShardTensor) -> String {
    let (layout, mesh) = (t.layout(), t.layout().mesh());
    format!("{name:?}, {} {:?} {layout} on {mesh}", t.dtype(), t.shape())
}

/// Has ranks compare which tensors they are about to write or read, under which names, and what they did before: of copies one rank
/// writes, so they have to be the same.
#[track_caller]
pub(crate) fn agree_on_tensors(
    op: &'static str,
    ctx: &Context,
    path: &Path,
    tensors: &[(&str, &ShardTensor)],
    others: impl Iterator<Item = String>,
) -> Result<()> {
    let mut meshes: Vec<(Rc<MeshComm>, Vec<u64>)> = Vec::new();
    let mut list = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let value = tensor.value();
        let (cx, number) = (value.array().cx(), value.array().number());
        let at = meshes.iter().position(|(other, _)| Rc::ptr_eq(other, cx));
        let at = at.unwrap_or(meshes.len());
        if at == meshes.len() {
            meshes.push((Rc::clone(cx), Vec::new()));
        }
        meshes[at].1.push(number);
        // Two meshes of the same ranks have two histories.
        list.push(format!("{}, mesh {at} of these", told(name, tensor)));
    }
    agree_on_list(op, ctx, path, list.into_iter().chain(others))?;
    let mut met = Ok(());
    for (cx, numbers) in &meshes {
        met = met.and(meet(op, cx, numbers));
    }
    let world = ctx.world();
    if meshes
        .iter()
        .all(|(cx, _)| cx.mesh().size() == world.size())
    {
        return Ok(met?);
    }
    // Ranks that are not on a mesh have not heard of it.
    Ok(world.agree(match met {
        Err(CommError::Mismatch(found)) => Err(AgreedError::new(
            op,
            "the same program on all ranks",
            found.to_string(),
            "see there",
        )),
        other => {
            other?;
            Ok(())
        }
    })?)
}

/// Has the ranks of a mesh compare what they did on it, and which values these are.
#[track_caller]
fn meet(op: &'static str, cx: &MeshComm, values: &[u64]) -> Result<(), CommError> {
    let axes: Vec<usize> = (0..cx.mesh().ndim()).collect();
    let Some(comm) = cx.along(&axes) else {
        return Ok(());
    };
    cx.record(Call::new(op).reading(values));
    comm.agree(Ok(()))
}

/// Compares what the ranks are about to do with what rank 0 is: tensors of one shape under swapped names would be swapped
/// in the file.
#[track_caller]
fn agree_on_list(
    op: &'static str,
    ctx: &Context,
    path: &Path,
    list: impl Iterator<Item = String>,
) -> Result<()> {
    let (world, device) = (ctx.world(), ctx.device());
    let mine: Vec<String> = std::iter::once(path.display().to_string())
        .chain(list)
        .collect();
    let text = mine.join("\0").into_bytes();
    let is_root = world.rank() == 0;
    let len = is_root
        .then(|| device.upload_slice(&[text.len() as i64]))
        .transpose()?;
    let len = world.broadcast(len.as_ref(), 0, DType::I64, 1)?;
    let len = device
        .download_vec::<i64>(&len)?
        .first()
        .map_or(0, |&n| n as usize);
    let theirs = is_root.then(|| device.upload_slice(&text)).transpose()?;
    let theirs = world.broadcast(theirs.as_ref(), 0, DType::U8, len)?;
    let theirs = String::from_utf8_lossy(&device.download_vec::<u8>(&theirs)?).into_owned();
    let theirs: Vec<&str> = theirs.split('\0').collect();
    let nothing = || "nothing more".to_owned();
    let differs = (0..theirs.len().max(mine.len()))
        .find(|&i| theirs.get(i).copied() != mine.get(i).map(String::as_str));
    Ok(world.agree(match differs {
        None => Ok(()),
        Some(i) => Err(AgreedError::new(
            op,
            format!("{}, as rank 0 has", theirs.get(i).map_or_else(nothing, |t| (*t).to_owned())),
            mine.get(i).cloned().unwrap_or_else(nothing),
            "give the same file and the same tensors in the same order on all ranks, so not in the order of a `HashMap`",
        )),
    })?)
}
