//! Tensors of any type from a file, as the file describes them.

use super::{Stored, dtype_of, file_error};
use crate::{Mesh, Placements, Result, ShardTensor};
use shard_comm::{Call, Calling, DType};
use shard_ops::Value;
use shard_redistribute::Array;
use std::path::Path;

/// Reads one tensor of a safetensors file onto a mesh. The file tells its type, which may be any, and its shape.
///
/// # Collective
/// All ranks of the program, with the same path, name and placements, which is checked. Every rank reads the part of the file that it needs.
///
/// # Errors
/// An agreed error if the file cannot be read or is malformed, if it has no such tensor or one of a type that there is not, or if ranks see
/// different files or pass different placements; as [`Placements::layout`].
///
/// ```
/// use shard_tensor::{DType, checkpoint, launch, replicate, shard};
/// let path = std::env::temp_dir().join("shard-tensor-read-doc.safetensors");
/// let sums = launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let labels = mesh.with_dtype(DType::I64).arange(7, shard(0))?;
///     checkpoint::save(&path, &[("labels".to_owned(), labels)])?;
///     let again = checkpoint::read(&path, "labels", &mesh, shard(0).sizes([0, 6, 1]))?;
///     assert_eq!(again.dtype(), DType::I64);
///     again.sum_all()?.item()
/// })?;
/// assert_eq!(sums, [21.0; 3]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[track_caller]
pub fn read(
    path: impl AsRef<Path>,
    name: &str,
    mesh: &Mesh,
    placements: impl Into<Placements>,
) -> Result<ShardTensor> {
    const OP: &str = "checkpoint::read";
    let _call = Calling::of(OP);
    let (path, ctx) = (path.as_ref(), mesh.context());
    let refused = |e| file_error(OP, path, &format!("a safetensors file with {name:?}"), e);
    let told = Stored::open(path).and_then(|file| {
        let info = file.info(name)?;
        let dtype = DType::ALL.into_iter().find(|&d| dtype_of(d) == info.dtype);
        let dtype = dtype.ok_or_else(|| format!("elements of {:?}", info.dtype))?;
        Ok((file, dtype, info.shape))
    });
    let (status, told) = match told {
        Ok(told) => (Ok(()), Some(told)),
        Err(e) => (Err(refused(e)), None),
    };
    ctx.world().agree(status)?;
    let Some((mut file, dtype, shape)) = told else {
        unreachable!("an error of one rank is an error of all")
    };
    let layout = mesh.layout(&shape[..], placements);
    let layout = ctx.uniform(OP, layout, |layout| {
        format!("{name} of {} as {dtype} {layout}", path.display())
    })?;
    let (piece, status) = match file.piece(name, dtype, &layout, ctx.rank()) {
        Ok(piece) => (piece, Ok(())),
        Err(e) => (None, Err(refused(e))),
    };
    ctx.world().agree(status)?;
    let local = match piece {
        Some(bytes) => Some(ctx.device().upload(dtype, &bytes)?),
        None => None,
    };
    (mesh.comm()).record(Call::new(OP).of(dtype, &layout));
    let array = Array::from_parts(mesh.comm(), &layout, local, dtype)?;
    Ok(ShardTensor::new(ctx, Value::new(array)))
}
