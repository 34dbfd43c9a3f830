//! Tensors of any type from a file, as the file describes them.

use super::{Stored, dtype_of};
use crate::files::file_error;
use crate::mesh::check_whole;
use crate::{Context, Mesh, Placements, Result, ShardTensor, State};
use safetensors::tensor::TensorInfo;
use shard_comm::{Call, Calling, DType};
use shard_ops::Value;
use shard_redistribute::Array;
use std::path::Path;

/// One entry of [`contents`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements; `None` if there is no such type here.
    pub dtype: Option<DType>,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// What is in a safetensors file, by name.
///
/// # Collective
/// All ranks of the program, with the same path.
///
/// # Errors
/// An agreed error if the file cannot be read or is malformed; a mismatch if ranks see different files.
#[track_caller]
pub fn contents(ctx: &Context, path: impl AsRef<Path>) -> Result<Vec<Contents>> {
    let _call = Calling::of("contents");
    let stored = Stored::open_on_all("checkpoint::contents", ctx, path.as_ref())?;
    let entry = |(name, info): (&String, &TensorInfo)| Contents {
        name: name.clone(),
        dtype: type_of(info),
        shape: info.shape.clone(),
    };
    Ok(stored.tensors().map(entry).collect())
}

/// Reads one tensor of a safetensors file onto a mesh. The file tells its type, which may be any, and its shape.
///
/// # Collective
/// All ranks of the program, with the same path, name and placements, which is checked. Every rank reads its own piece of the
/// file and no more.
///
/// # Errors
/// An agreed error if the file cannot be read or is malformed, or if it has no such tensor or one of a type that there is not;
/// a mismatch if ranks see different files or pass different placements; as [`Placements::layout`].
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
    let stored = Stored::open_on_all(OP, ctx, path)?;
    let told = stored.info(name).and_then(|info| {
        let dtype = type_of(info).ok_or_else(|| format!("elements of {:?}", info.dtype))?;
        Ok((dtype, info.shape.clone()))
    });
    let (told, status) = match told {
        Ok(told) => (Some(told), Ok(())),
        Err(e) => (None, Err(refused(e))),
    };
    ctx.world().agree(status)?;
    let Some((dtype, shape)) = told else {
        unreachable!("an error of one rank is an error of all")
    };
    let layout = mesh.layout(&shape[..], placements);
    let layout = layout.and_then(|layout| check_whole(OP, &layout).map(|()| layout));
    let layout = ctx.uniform(OP, layout, |layout| {
        format!("{name} of {} as {dtype} {layout}", path.display())
    })?;
    let (local, status) = match stored.piece(name, dtype, &layout, ctx) {
        Ok(piece) => (piece, Ok(())),
        Err(e) => (None, Err(refused(e))),
    };
    ctx.world().agree(status)?;
    (mesh.comm()).record(Call::new(OP).of(dtype, &layout));
    let array = Array::from_parts(mesh.comm(), &layout, local, dtype)?;
    Ok(ShardTensor::new(ctx, Value::new(array)))
}

/// Reads all tensors of a safetensors file onto a mesh, each where `place` says: for
/// [`nn::load_state_with`](crate::nn::load_state_with), where a model has other names, types or projections than the file.
///
/// # Collective
/// As [`read`], with the same placements on all ranks.
///
/// # Errors
/// As [`read`].
///
/// ```
/// use shard_tensor::nn::{Linear, Strict, load_state_with};
/// use shard_tensor::{checkpoint, launch, replicate, shard};
/// let path = std::env::temp_dir().join("shard-tensor-read-all-doc.safetensors");
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let named = [("head.weight", 6), ("head.bias", 2)].map(|(name, n)| Ok((name.to_owned(), mesh.ones([n], shard(0))?)));
///     let mut named = named.into_iter().collect::<shard_tensor::Result<Vec<_>>>()?;
///     named[0].1 = named[0].1.reshape([2, 3])?;
///     checkpoint::save(&path, &named)?;
///     let state = checkpoint::read_all(&path, &mesh, |_| replicate().into())?;
///     let state = state.renamed(|name| name.strip_prefix("head.").map(str::to_owned));
///     let mut layer = Linear::new(&mesh, 3, 2)?;
///     load_state_with(&mut layer, &state, Strict::Yes)?;
///     assert_eq!(layer.weight.sum_all()?.item()?, 6.0);
///     Ok(())
/// })?;
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[track_caller]
pub fn read_all(
    path: impl AsRef<Path>,
    mesh: &Mesh,
    mut place: impl FnMut(&Contents) -> Placements,
) -> Result<State> {
    let path = path.as_ref();
    let listed = contents(mesh.context(), path)?;
    let tensors = listed.iter().map(|entry| {
        let tensor = read(path, &entry.name, mesh, place(entry))?;
        Ok((entry.name.clone(), tensor))
    });
    Ok(State {
        tensors: tensors.collect::<Result<_>>()?,
        numbers: Vec::new(),
    })
}

fn type_of(info: &TensorInfo) -> Option<DType> {
    DType::ALL.into_iter().find(|&d| dtype_of(d) == info.dtype)
}
