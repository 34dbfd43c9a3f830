//! What files say of the tensors in them, and reading pieces of these.

use super::dtype_of;
use crate::files::{Place, file_error, filled, open_regular, text};
use crate::{Context, Result as FacadeResult, ShardTensor, State, StateNumber};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use shard_comm::{Buffer, DType};
use shard_spec::{Layout, numel};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A header longer than this is taken for damage; the reference implementation uses the same bound.
const LONGEST_HEADER: u64 = 100_000_000;

/// Names that a folder's file is looked for under.
const USUAL: [&str; 2] = ["model.safetensors.index.json", "model.safetensors"];

/// Open files with their headers read.
pub(super) struct Stored {
    files: Vec<One>,
    /// The file that each tensor is in.
    tensors: BTreeMap<String, (usize, TensorInfo)>,
    remarks: BTreeMap<String, String>,
}

struct One {
    file: File,
    /// Where the tensors' bytes begin.
    start: u64,
}

impl Stored {
    /// Opens it on every rank.
    ///
    /// # Collective
    /// All ranks of the program. Two small rounds.
    #[track_caller]
    pub(super) fn open_on_all(op: &'static str, ctx: &Context, path: &Path) -> FacadeResult<Self> {
        let (stored, status) = match Self::open(path) {
            Ok(stored) => (Some(stored), Ok(())),
            Err(e) => (None, Err(file_error(op, path, "a safetensors file", e))),
        };
        ctx.world().agree(status)?;
        let Some(stored) = stored else {
            unreachable!("an error of one rank is an error of all")
        };
        // Ranks on several machines may find several files under one path.
        let told = |(name, (file, info)): (&String, &(usize, TensorInfo))| {
            format!(
                "{name}\0{file} {:?} {:?} {:?}\0",
                info.dtype, info.shape, info.data_offsets
            )
        };
        let all: Vec<String> = stored.tensors.iter().map(told).collect();
        let key = shard_ops::key_of("contents", &(&all, &stored.remarks));
        let words = || {
            let (n, path) = (stored.tensors.len(), path.display());
            format!("{n} tensors at {path}, whose names, places and remarks have the hash {key:x}")
        };
        ctx.world().check_uniform_as("contents", key, words)?;
        Ok(stored)
    }

    /// Opens a file, the files of an index, or either in a folder.
    fn open(path: &Path) -> Result<Self, String> {
        let mut path = path.to_owned();
        if path.is_dir() {
            let found = USUAL
                .iter()
                .map(|name| path.join(name))
                .find(|p| p.exists());
            path = found.ok_or_else(|| format!("a folder without {}", USUAL.join(" or ")))?;
        }
        let mut stored = Self {
            files: Vec::new(),
            tensors: BTreeMap::new(),
            remarks: BTreeMap::new(),
        };
        if path.extension().is_none_or(|e| e != "json") {
            for (name, info) in stored.add(&path)? {
                stored.tensors.insert(name, (0, info));
            }
            return Ok(stored);
        }
        for (file, names) in files_of(&path)? {
            let within = |e| format!("{}: {e}", file.display());
            let mut infos = stored.add(&file).map_err(within)?;
            let number = stored.files.len() - 1;
            for name in names {
                let info = infos.remove(&name);
                let info = info.ok_or_else(|| {
                    within(format!("no tensor {name:?}, which the index says is there"))
                })?;
                stored.tensors.insert(name, (number, info));
            }
        }
        Ok(stored)
    }

    /// Opens one more file, and tells what is in it.
    fn add(&mut self, path: &Path) -> Result<HashMap<String, TensorInfo>, String> {
        let (mut file, len) = open_regular(path).map_err(text)?;
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(text)?;
        let header = u64::from_le_bytes(prefix);
        if header > LONGEST_HEADER || header + 8 > len {
            return Err(format!("a header of {header} bytes in a file of {len}"));
        }
        let mut json = vec![0; header as usize];
        file.read_exact(&mut json).map_err(text)?;
        // This also sees that tensors follow each other without gap and overlap, and are as long as they must be.
        let header: Metadata =
            serde_json::from_slice(&json).map_err(|e| format!("a malformed header: {e}"))?;
        let start = 8 + json.len() as u64;
        if header.data_len() as u64 != len - start {
            let said = header.data_len();
            return Err(format!(
                "{} bytes of tensors where the header says {said}",
                len - start
            ));
        }
        self.files.push(One { file, start });
        let remarks = header.metadata().iter().flatten();
        self.remarks
            .extend(remarks.map(|(k, v)| (k.clone(), v.clone())));
        let infos = header.tensors().into_iter();
        Ok(infos.map(|(name, info)| (name, info.clone())).collect())
    }

    /// The tensors' names, types and shapes.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&String, &TensorInfo)> {
        self.tensors.iter().map(|(name, (_, info))| (name, info))
    }

    /// The first few names that are wanted and are not there, beside the first that are.
    pub(super) fn lacks(&self, wanted: &State) -> Option<String> {
        let tensors = wanted.tensors.iter().map(|(name, _)| name);
        let numbers = wanted.numbers.iter().map(|(name, _)| name);
        let missing = [
            (
                "tensor",
                listed(tensors.filter(|name| !self.tensors.contains_key(*name))),
            ),
            (
                "number",
                listed(numbers.filter(|name| !self.remarks.contains_key(*name))),
            ),
        ];
        let missing: Vec<String> = (missing.into_iter())
            .filter_map(|(kind, names)| Some(format!("no {kind} {}", names?)))
            .collect();
        let there = listed(self.tensors.keys()).unwrap_or_else(|| "none".to_owned());
        (!missing.is_empty()).then(|| format!("{}; its tensors: {there}", missing.join(", ")))
    }

    /// What a file says of a tensor.
    pub(super) fn info(&self, name: &str) -> Result<&TensorInfo, String> {
        Ok(&self.found(name)?.1)
    }

    fn found(&self, name: &str) -> Result<&(usize, TensorInfo), String> {
        let found = self.tensors.get(name);
        found.ok_or_else(|| format!("no tensor {name:?}"))
    }

    /// A number.
    pub(super) fn number(&self, name: &str) -> Result<StateNumber, String> {
        let remark = self.remarks.get(name);
        let remark = remark.ok_or_else(|| format!("no number {name:?}"))?;
        remark.parse().map_err(|e| format!("{name:?}: {e}"))
    }

    /// This rank's piece of what is stored for a tensor, `None` off its mesh.
    pub(super) fn piece_like(
        &self,
        name: &str,
        tensor: &ShardTensor,
    ) -> Result<Option<Buffer>, String> {
        let (info, dtype, shape) = (self.info(name)?, tensor.dtype(), tensor.shape());
        if info.dtype != dtype_of(dtype) || info.shape != shape {
            return Err(format!(
                "{name:?}: {:?} {:?}, where {dtype} {shape:?} is wanted",
                info.dtype, info.shape
            ));
        }
        self.piece(name, dtype, tensor.layout(), tensor.context())
    }

    /// This rank's piece of a tensor of this type and the layout's shape, `None` off the mesh.
    pub(super) fn piece(
        &self,
        name: &str,
        dtype: DType,
        layout: &Layout,
        ctx: &Context,
    ) -> Result<Option<Buffer>, String> {
        let (file, info) = self.found(name)?;
        let One { file, start } = &self.files[*file];
        let Some(held) = layout.local_parts(ctx.rank()) else {
            return Ok(None);
        };
        let place = Place {
            at: start + info.data_offsets.0 as u64,
            shape: layout.shape().to_vec(),
            size: dtype.size(),
        };
        let len = numel(&layout.local_shape(ctx.rank()).unwrap_or_default());
        let read = |into: &mut [u8]| place.read(file, &held, into).map_err(text);
        let buffer = filled(ctx.device(), dtype, len, read);
        buffer.map(Some).map_err(|e| format!("{name:?}: {e}"))
    }
}

/// The first few names, and how many more there are; `None` if there are none.
fn listed<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    const FEW: usize = 4;
    let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    let few = names[..names.len().min(FEW)].join(", ");
    match names.len() {
        0 => None,
        n if n > FEW => Some(format!("{few} and {} more", n - FEW)),
        _ => Some(few),
    }
}

/// An index as Hugging Face writes it.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files that an index names, each with the tensors in it.
fn files_of(index: &Path) -> Result<BTreeMap<PathBuf, Vec<String>>, String> {
    let (file, len) = open_regular(index).map_err(text)?;
    if len > LONGEST_HEADER {
        return Err(format!("an index of {len} bytes"));
    }
    let mut json = Vec::new();
    file.take(LONGEST_HEADER)
        .read_to_end(&mut json)
        .map_err(text)?;
    let read: Index =
        serde_json::from_slice(&json).map_err(|e| format!("a malformed index: {e}"))?;
    let mut files = BTreeMap::<PathBuf, Vec<String>>::new();
    for (tensor, file) in read.weight_map {
        // Of the index's folder: no other file is anyone's to name.
        if Path::new(&file).file_name() != Some(file.as_ref()) {
            return Err(format!(
                "an index that names {file:?}, which is no file beside it"
            ));
        }
        files
            .entry(index.with_file_name(file))
            .or_default()
            .push(tensor);
    }
    Ok(files)
}
