//! A save that is under way.

use super::{agree_on_state, check_names, dtype_of};
use crate::files::{Part, SharedFile};
use crate::{Context, Error, Result, State};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Serialize;
use shard_comm::Calling;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread::JoinHandle;

/// A save that goes on while the program does something else: see [`Checkpoint::start_save`](super::Checkpoint::start_save).
///
/// It keeps the values it began with, which take memory until it is done. If it is dropped, it ends, and the old file stays.
#[must_use = "wait for it: only then the file is there"]
#[derive(Debug)]
pub struct Saving {
    file: Option<SharedFile>,
    writer: Option<JoinHandle<Result<(), String>>>,
}

impl Saving {
    /// Returns when the file is in its place.
    ///
    /// # Collective
    /// All ranks of the program. Two small rounds.
    ///
    /// # Errors
    /// An agreed error if a rank could not write; the old file stays.
    #[track_caller]
    pub fn wait(mut self) -> Result<()> {
        let _call = Calling::of("wait");
        let written = self.join();
        self.file.take().map_or(Ok(()), |file| file.put(written))
    }

    fn join(&mut self) -> Result<(), String> {
        let joined = self.writer.take().map(JoinHandle::join);
        match joined {
            None => Ok(()),
            Some(Ok(written)) => written,
            Some(Err(_)) => Err("the thread that wrote it panicked".to_owned()),
        }
    }
}

impl Drop for Saving {
    /// The file beside is in use until the thread ends.
    fn drop(&mut self) {
        self.join().ok();
    }
}

/// A file that is open on every rank, and what this one writes to it.
pub(super) struct Begun {
    op: &'static str,
    file: SharedFile,
    part: Part,
}

impl Begun {
    /// Writes now.
    #[track_caller]
    pub(super) fn now(self) -> Result<()> {
        let written = self.part.write();
        self.file.put(written)
    }

    /// Writes on a thread.
    #[track_caller]
    pub(super) fn meanwhile(self) -> Result<Saving> {
        let part = self.part;
        let thread = std::thread::Builder::new().name(self.op.to_owned());
        let (writer, status) = match thread.spawn(move || part.write()) {
            Ok(writer) => (Some(writer), Ok(())),
            Err(e) => (None, Err(e.to_string())),
        };
        // Dropped with its thread, if another rank has none.
        let mut saving = Saving { file: None, writer };
        self.file.agree(status)?;
        saving.file = Some(self.file);
        Ok(saving)
    }
}

/// Opens the file and settles what each rank writes where.
///
/// # Collective
/// All ranks of the program. Terms of sums are added.
#[track_caller]
pub(super) fn begin(op: &'static str, ctx: &Context, path: &Path, state: &State) -> Result<Begun> {
    check_names(op, state)?;
    agree_on_state(op, ctx, path, state)?;
    let (head, starts, len) = header(op, state)?;
    let (file, mut part) = SharedFile::begin(op, ctx, path, len)?;
    for ((_, tensor), at) in state.tensors.iter().zip(starts) {
        part.add(tensor, at)?;
    }
    if ctx.rank() == 0 {
        part.head = head;
    }
    Ok(Begun { op, file, part })
}

/// A header whose entries are in the order of their names: equal states make equal files.
#[derive(Serialize)]
struct Header<'a> {
    #[serde(rename = "__metadata__", skip_serializing_if = "Option::is_none")]
    remarks: Option<BTreeMap<&'a str, String>>,
    #[serde(flatten)]
    tensors: BTreeMap<String, TensorInfo>,
}

/// A file's first bytes, where each tensor begins, and how long the file is.
#[track_caller]
fn header(op: &'static str, state: &State) -> Result<(Vec<u8>, Vec<u64>, u64)> {
    let tensors = &state.tensors;
    // The largest elements first, as the reference implementation has them: all are aligned then.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| {
        (
            std::cmp::Reverse(dtype_of(tensors[i].1.dtype())),
            &tensors[i].0,
        )
    });
    let (mut infos, mut starts, mut end) = (Vec::new(), vec![0; tensors.len()], 0);
    for i in order {
        let (name, tensor) = &tensors[i];
        let begin = end;
        end += tensor.numel() * tensor.dtype().size();
        starts[i] = begin as u64;
        let info = TensorInfo {
            dtype: dtype_of(tensor.dtype()),
            shape: tensor.shape().to_vec(),
            data_offsets: (begin, end),
        };
        infos.push((name.clone(), info));
    }
    let refused = |e: String| {
        let remedy = "save fewer, or in several files";
        Error::argument(op, "tensors that the format can hold", e, remedy)
    };
    Metadata::new(None, infos.clone()).map_err(|e| refused(e.to_string()))?;
    let numbers = state.numbers.iter();
    let numbers = numbers.map(|(name, n)| (name.as_str(), n.to_string()));
    let header = Header {
        remarks: Some(numbers.collect()).filter(|all: &BTreeMap<_, _>| !all.is_empty()),
        tensors: infos.into_iter().collect(),
    };
    let mut json = serde_json::to_vec(&header).map_err(|e| refused(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.append(&mut json);
    let data = head.len() as u64;
    let starts = starts.into_iter().map(|at| data + at).collect();
    Ok((head, starts, data + end as u64))
}
