//! Tensors and numbers under names in one standard safetensors file, or read from several.
//!
//! A file holds whole tensors and says nothing of meshes, so it can be read under any mesh and layout, by any number of
//! ranks, and by any other program that reads safetensors. Every rank writes and reads the boxes it has, at their place in
//! the file: nothing is gathered, and beyond its pieces a rank needs memory for a block of 16 MiB at most.
//!
//! [`Checkpoint`] keeps all that a training is made of; [`save`], [`load`] and [`read`] are for tensors alone.
//!
//! A path to read may be that of one file, of an index as Hugging Face writes it (`model.safetensors.index.json`), which names
//! the files that tensors are in, or of a folder with either.

mod job;
mod read;
mod saving;
mod stored;

pub use self::job::Checkpoint;
pub use self::read::{Contents, contents, read, read_all};
pub use self::saving::Saving;

use self::stored::Stored;
use crate::files::{self, file_error};
use crate::{Context, Error, Result, ShardTensor, State};
use safetensors::Dtype;
use shard_comm::{AgreedError, Call, Calling, DType};
use shard_ops::Value;
use shard_redistribute::Array;
use std::collections::BTreeSet;
use std::path::Path;

/// Writes tensors under their names.
///
/// # Collective
/// All ranks of the program, with the same path, names and tensors, which is checked, as is that they came from the same ops: else
/// copies might differ. Each rank writes its own pieces, of replicas the first rank that has one; terms of a sum are added first. So they
/// must share a file system.
///
/// # Errors
/// An agreed error if ranks pass different paths, names, types, shapes or layouts, if they do not find the same file at the
/// path, if something else than a regular file is there, or if the file cannot be written; [`Argument`](Error::Argument) for a
/// name given twice, or one that the format keeps for itself.
///
/// The file is there as a whole or not at all, even if the program is killed: it is written beside the old one, under a
/// hidden name which a killed program leaves, and takes its place when all ranks are done and the disk has it. One that it
/// replaces passes its permissions on; links are followed.
///
/// ```
/// use shard_tensor::{checkpoint, launch, shard};
/// let path = std::env::temp_dir().join("shard-tensor-doc.safetensors");
/// let saved = launch(3, |ctx| {
///     let x = ctx.mesh_of(3)?.randn([7, 2], [shard(0)])?;
///     checkpoint::save(&path, &[("x".to_owned(), x.clone())])?;
///     x.to_array::<f32>()
/// })?;
/// // On other ranks, in another layout:
/// let loaded = launch(2, |ctx| {
///     let x = ctx.mesh_of(2)?.zeros([7, 2], [shard(1)])?.requires_grad()?;
///     checkpoint::load(&path, &[("x".to_owned(), x.clone())])?;
///     x.to_array::<f32>()
/// })?;
/// assert_eq!(saved[0], loaded[1]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[track_caller]
pub fn save(path: impl AsRef<Path>, tensors: &[(String, ShardTensor)]) -> Result<()> {
    let _call = Calling::of("save");
    const OP: &str = "checkpoint::save";
    let Some((_, first)) = tensors.first() else {
        return Err(Error::argument(
            OP,
            "at least one tensor",
            "none",
            "pass the module's parameters",
        ));
    };
    let ctx = first.context().clone();
    let state = State {
        tensors: tensors.to_vec(),
        numbers: Vec::new(),
    };
    saving::begin(OP, &ctx, path.as_ref(), &state)?.now()
}

/// Reads tensors of these names and replaces the parameters' values. Names in the file that are not asked for are
/// ignored.
///
/// # Collective
/// All ranks of the program, with the same path, names and parameters, which is checked. Every rank reads its own pieces of
/// the file and no more.
///
/// # Errors
/// An agreed error if ranks pass different paths, names, types, shapes or layouts, if the file cannot be read or is malformed,
/// or a name is missing or has another shape or type; a mismatch if ranks see different files. No parameter is changed then.
/// [`Argument`](Error::Argument) for tensors that are no parameters.
#[track_caller]
pub fn load(path: impl AsRef<Path>, parameters: &[(String, ShardTensor)]) -> Result<()> {
    let _call = Calling::of("load");
    const OP: &str = "checkpoint::load";
    if let Some((name, _)) = parameters.iter().find(|(_, p)| !p.is_parameter()) {
        return Err(Error::argument(
            OP,
            "parameters",
            format!("{name:?}, a plain tensor"),
            "call `requires_grad` on it",
        ));
    }
    let Some((_, first)) = parameters.first() else {
        return Ok(());
    };
    let ctx = first.context().clone();
    let wanted = State {
        tensors: parameters.to_vec(),
        numbers: Vec::new(),
    };
    let found = load_state(OP, &ctx, path.as_ref(), &wanted)?;
    for ((_, parameter), (_, found)) in parameters.iter().zip(found.tensors) {
        parameter.set_array(found.value().array().clone())?;
    }
    Ok(())
}

/// Reads a state like this one: its tensors in their layouts, and its numbers.
#[track_caller]
fn load_state(op: &'static str, ctx: &Context, path: &Path, wanted: &State) -> Result<State> {
    check_names(op, wanted)?;
    if let Some((name, t)) = wanted.tensors.iter().find(|(_, t)| t.layout().is_partial()) {
        return Err(Error::argument(
            op,
            "tensors in pieces and copies",
            format!("{name:?}: {}", t.layout()),
            "add the terms of the sum first, with `reduced`",
        ));
    }
    agree_on_state(op, ctx, path, wanted)?;
    let refused = |e| file_error(op, path, "a safetensors file with what is asked for", e);
    let stored = Stored::open_on_all(op, ctx, path)?;
    let numbers = (wanted.numbers.iter())
        .map(|(name, _)| Ok((name.clone(), stored.number(name)?)))
        .collect::<Result<Vec<_>, String>>();
    let pieces = (wanted.tensors.iter())
        .map(|(name, tensor)| stored.piece_like(name, tensor))
        .collect::<Result<Vec<_>, String>>();
    let read = numbers.and_then(|numbers| Ok((numbers, pieces?)));
    let (read, status) = match (read, stored.lacks(wanted)) {
        (Ok(read), _) => (Some(read), Ok(())),
        (Err(e), None) => (None, Err(refused(e))),
        (Err(_), Some(names)) => (None, Err(other_names(refused(names)))),
    };
    ctx.world().agree(status)?;
    let Some((numbers, pieces)) = read else {
        unreachable!("an error of one rank is an error of all")
    };
    let mut tensors = Vec::with_capacity(pieces.len());
    for ((name, like), local) in wanted.tensors.iter().zip(pieces) {
        let (value, dtype) = (like.value(), like.dtype());
        let array = value.array();
        let call = Call::new("load").of(dtype, like.layout());
        let read = [array.number()];
        let number = array.cx().record(call.reading(&read).anew());
        let found = Array::from_parts(array.cx(), like.layout(), local, dtype)?;
        let found = Value::new(found.with_number(number));
        tensors.push((name.clone(), ShardTensor::new(ctx, found)));
    }
    Ok(State { tensors, numbers })
}

/// An error of a file that has other names than were asked for.
fn other_names(error: AgreedError) -> AgreedError {
    let remedy = "check the path; what has other names is read by `checkpoint::read_all` and taken up by `nn::load_state_with`";
    AgreedError {
        remedy: remedy.to_owned(),
        ..error
    }
}

/// Refuses names that mean something else in the format, and those given twice.
#[track_caller]
fn check_names(op: &'static str, state: &State) -> Result<()> {
    const RESERVED: &str = "__metadata__";
    let refuse =
        |expected: &str, got: String, remedy| Err(Error::argument(op, expected, got, remedy));
    let mut seen = BTreeSet::new();
    for (name, _) in &state.tensors {
        if name == RESERVED {
            return refuse(
                "names of tensors",
                format!("{RESERVED:?}"),
                "rename it: under this name the format keeps remarks",
            );
        }
        if !seen.insert(name) {
            return refuse(
                "distinct names",
                format!("{name:?} twice"),
                "rename one of them",
            );
        }
    }
    let mut seen = BTreeSet::new();
    match state.numbers.iter().find(|(name, _)| !seen.insert(name)) {
        None => Ok(()),
        Some((name, _)) => refuse(
            "distinct names",
            format!("{name:?} twice"),
            "rename one of them",
        ),
    }
}

/// Compares what the ranks are about to do, and what they did before.
#[track_caller]
fn agree_on_state(op: &'static str, ctx: &Context, path: &Path, state: &State) -> Result<()> {
    let tensors = state.tensors.iter();
    let tensors: Vec<_> = tensors.map(|(name, t)| (name.as_str(), t)).collect();
    let numbers = state.numbers.iter();
    let numbers = numbers.map(|(name, number)| format!("{name:?}, {number:?}"));
    files::agree_on_tensors(op, ctx, path, &tensors, numbers)
}

fn dtype_of(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
