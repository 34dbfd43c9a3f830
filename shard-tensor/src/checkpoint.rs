//! Named tensors in one standard safetensors file.
//!
//! A file holds whole tensors under their names and says nothing of meshes, so it can be read under any mesh and
//! layout, and by any other program that reads safetensors.

mod read;
mod target;

pub use self::read::read;
use self::target::Target;
use crate::mesh::cut;
use crate::{Context, Error, Mesh, Result, ShardTensor};
use ndarray::{ArrayViewD, IxDyn};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use shard_comm::{AgreedError, Call, Calling, DType};
use shard_ops::Exec;
use shard_redistribute::Array;
use shard_spec::{DimPart, Dims, Layout, numel};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// A header longer than this is taken for damage; the reference implementation uses the same bound.
const LONGEST_HEADER: u64 = 100_000_000;

/// Writes tensors under their names.
///
/// # Collective
/// All ranks of the program, with the same path, names and tensors, which is checked. The lowest rank of each tensor's mesh gathers it; rank 0 of the
/// program must be that one. Other ranks hold no more than their pieces.
///
/// # Errors
/// An agreed error if ranks pass different paths, names, types or shapes, if something else than a regular file is at the
/// path, or if the file cannot be written; [`Argument`](Error::Argument) for a name given twice, one that the format keeps
/// for itself, or a mesh without rank 0.
///
/// The file is there as a whole or not at all. One that it replaces passes its permissions on; links are followed.
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
    let world = first.context().world();
    check_names(OP, tensors)?;
    agree_on_list(OP, first.context(), path.as_ref(), tensors)?;
    let mut whole = BTreeMap::new();
    for (name, tensor) in tensors {
        let pieces = Whole::gather(OP, tensor)?;
        if whole.insert(name.clone(), pieces).is_some() {
            return Err(Error::argument(
                OP,
                "distinct names",
                format!("{name:?} twice"),
                "rename one of them",
            ));
        }
    }
    let written = match world.rank() {
        0 => Target::at(path.as_ref()).and_then(|target| {
            target.fill(|to| {
                safetensors::serialize_to_file(whole, None, to).map_err(|e| e.to_string())
            })
        }),
        _ => Ok(()),
    };
    Ok(world
        .agree(written.map_err(|e| file_error(OP, path.as_ref(), "a regular file to write", e)))?)
}

/// Reads tensors of these names and replaces the parameters' values. Names in the file that are not asked for are
/// ignored.
///
/// # Collective
/// All ranks of the program, with the same path, names and parameters, which is checked. Every rank reads the part of the file it needs.
///
/// # Errors
/// An agreed error if ranks pass different paths, names, types or shapes, if the file cannot be read or is malformed, or a name is missing or has another shape or type;
/// no parameter is changed then. [`Argument`](Error::Argument) for tensors that are no parameters.
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
    check_names(OP, parameters)?;
    agree_on_list(OP, first.context(), path.as_ref(), parameters)?;
    let read = Stored::open(path.as_ref()).and_then(|mut file| {
        parameters
            .iter()
            .map(|(name, tensor)| file.read(name, tensor))
            .collect::<Result<Vec<_>, String>>()
    });
    let (pieces, status) = match read {
        Ok(pieces) => (pieces, Ok(())),
        Err(e) => (
            Vec::new(),
            Err(file_error(
                OP,
                path.as_ref(),
                "a safetensors file with these parameters",
                e,
            )),
        ),
    };
    first.context().world().agree(status)?;
    for ((_, parameter), piece) in parameters.iter().zip(pieces) {
        let value = parameter.value();
        let array = value.array();
        let call = Call::new("load").of(array.dtype(), array.layout());
        array.cx().record(call.reading(&[array.number()]));
        let local = match piece {
            Some(bytes) => Some(
                parameter
                    .context()
                    .device()
                    .upload(parameter.dtype(), &bytes)?,
            ),
            None => None,
        };
        parameter.set_array(Array::from_parts(
            array.cx(),
            array.layout(),
            local,
            parameter.dtype(),
        )?)?;
    }
    Ok(())
}

/// Refuses a name that means something else in the format.
#[track_caller]
fn check_names(op: &'static str, tensors: &[(String, ShardTensor)]) -> Result<()> {
    const RESERVED: &str = "__metadata__";
    match tensors.iter().any(|(name, _)| name == RESERVED) {
        false => Ok(()),
        true => Err(Error::argument(
            op,
            "names of tensors",
            format!("{RESERVED:?}"),
            "rename it: under this name the format keeps remarks",
        )),
    }
}

/// Compares what the ranks are about to do with what rank 0 is: tensors of one shape under swapped names would be swapped
/// in the file.
#[track_caller]
fn agree_on_list(
    op: &'static str,
    ctx: &Context,
    path: &Path,
    tensors: &[(String, ShardTensor)],
) -> Result<()> {
    let (world, device) = (ctx.world(), ctx.device());
    let tell =
        |(name, t): &(String, ShardTensor)| format!("{name:?}, {} {:?}", t.dtype(), t.shape());
    let mine: Vec<String> = std::iter::once(path.display().to_string())
        .chain(tensors.iter().map(tell))
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

fn file_error(op: &'static str, path: &Path, expected: &str, got: String) -> AgreedError {
    AgreedError::new(
        op,
        format!("{expected} at {}", path.display()),
        got,
        "check the path and the file",
    )
}

/// A tensor gathered on rank 0; empty elsewhere.
struct Whole {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Whole {
    #[track_caller]
    fn gather(op: &'static str, tensor: &ShardTensor) -> Result<Self> {
        let mesh: Mesh = tensor.mesh();
        if mesh.mesh().index_of(0) != Some(0) {
            return Err(Error::argument(
                op,
                "tensors on a mesh that starts at rank 0",
                format!("mesh {}", mesh.mesh()),
                "redistribute to such a mesh first",
            ));
        }
        let ctx = tensor.context();
        let value = tensor.value().detach();
        let reduced = ctx
            .engine()
            .redistribute(&value, &tensor.layout().with_partial_reduced())?;
        // A replica is at hand already; pieces are sent to rank 0 and to no other.
        let gathered = match reduced.layout().is_replicated() {
            true => reduced,
            false => ctx
                .engine()
                .redistribute(&reduced, &mesh.owned_by(0, tensor.shape())?)?,
        };
        let bytes = match gathered.array().buffer() {
            Some(buffer) if ctx.rank() == 0 => ctx.device().download(buffer)?,
            _ => Vec::new(),
        };
        Ok(Self {
            dtype: dtype_of(tensor.dtype()),
            shape: tensor.shape().to_vec(),
            bytes,
        })
    }
}

impl safetensors::View for Whole {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// An open file with its header read.
struct Stored {
    file: File,
    header: Metadata,
    /// Where the tensors' bytes begin.
    start: u64,
    /// How many there are.
    size: u64,
}

impl Stored {
    fn open(path: &Path) -> Result<Self, String> {
        let text = |e: std::io::Error| e.to_string();
        let mut file = File::open(path).map_err(text)?;
        let len = file.metadata().map_err(text)?.len();
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(text)?;
        let header = u64::from_le_bytes(prefix);
        if header > LONGEST_HEADER || header + 8 > len {
            return Err(format!("a header of {header} bytes in a file of {len}"));
        }
        let mut json = vec![0; header as usize];
        file.read_exact(&mut json).map_err(text)?;
        let header: Metadata =
            serde_json::from_slice(&json).map_err(|e| format!("a malformed header: {e}"))?;
        let start = 8 + json.len() as u64;
        Ok(Self {
            file,
            header,
            start,
            size: len - start,
        })
    }

    /// What the file says of a tensor.
    fn info(&self, name: &str) -> Result<TensorInfo, String> {
        let info = self.header.info(name);
        Ok(info.ok_or_else(|| format!("no tensor {name:?}"))?.clone())
    }

    /// The bytes of this rank's piece, `None` off the mesh.
    fn read(&mut self, name: &str, tensor: &ShardTensor) -> Result<Option<Vec<u8>>, String> {
        let info = self.info(name)?;
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        if info.dtype != dtype_of(dtype) || info.shape != shape {
            return Err(format!(
                "{name:?}: {:?} {:?}, where the parameter is {dtype} {shape:?}",
                info.dtype, info.shape
            ));
        }
        self.piece(name, dtype, tensor.layout(), tensor.context().rank())
    }

    /// The bytes of a rank's piece of a tensor of this type, `None` off the mesh.
    fn piece(
        &mut self,
        name: &str,
        dtype: DType,
        layout: &Layout,
        rank: usize,
    ) -> Result<Option<Vec<u8>>, String> {
        let (info, size) = (self.info(name)?, dtype.size());
        let (from, to) = info.data_offsets;
        if to < from || to as u64 > self.size || to - from != numel(layout.shape()) * size {
            return Err(format!("{name:?}: bytes {from}..{to} of {}", self.size));
        }
        let Some(held) = layout.local_parts(rank) else {
            return Ok(None);
        };
        self.read_parts(&info, &held, size)
            .map(Some)
            .map_err(|e| format!("{name:?}: {e}"))
    }

    /// Reads the rows of the first dim that are held, and cuts what is held of the other dims out of them.
    fn read_parts(
        &mut self,
        info: &TensorInfo,
        held: &[DimPart],
        size: usize,
    ) -> std::io::Result<Vec<u8>> {
        let row: usize = info.shape.iter().skip(1).product::<usize>() * size;
        let intervals: Vec<std::ops::Range<usize>> = held.first().map_or_else(
            || std::iter::once(0..1).collect(),
            |part| part.intervals().collect(),
        );
        let mut rows = Vec::new();
        for interval in intervals {
            self.file.seek(SeekFrom::Start(
                self.start + (info.data_offsets.0 + interval.start * row) as u64,
            ))?;
            let from = rows.len();
            rows.resize(from + interval.len() * row, 0);
            self.file.read_exact(&mut rows[from..])?;
        }
        // Bytes as one more dim: a piece of any type is then a piece of bytes.
        let mut shape: Dims = info.shape.iter().copied().chain([size]).collect();
        let mut held: Vec<DimPart> = held.iter().cloned().chain([(0..size).into()]).collect();
        if !info.shape.is_empty() {
            shape[0] = held[0].len();
            held[0] = (0..shape[0]).into();
        }
        match ArrayViewD::from_shape(IxDyn(&shape), &rows) {
            Ok(view) => Ok(cut(view, &held)),
            Err(e) => Err(std::io::Error::other(e)),
        }
    }
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
