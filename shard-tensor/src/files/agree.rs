//! Whether ranks mean the same file, and the same in it.

use crate::{Context, Result, ShardTensor};
use shard_comm::{AgreedError, DType};
use std::path::Path;

/// A tensor in words that differ where files would.
pub(crate) fn told(name: &str, t: &ShardTensor) -> String {
    let (layout, mesh) = (t.layout(), t.layout().mesh());
    format!("{name:?}, {} {:?} {layout} on {mesh}", t.dtype(), t.shape())
}

/// Compares what the ranks are about to do with what rank 0 is: tensors of one shape under swapped names would be swapped
/// in the file.
#[track_caller]
pub(crate) fn agree_on_list(
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
