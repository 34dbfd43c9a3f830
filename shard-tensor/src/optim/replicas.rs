//! Whether copies of parameters are still copies.

use crate::{Context, Result, ShardTensor};
use shard_comm::{AgreedError, Calling, Communicator, Monoid};
use shard_redistribute::MeshComm;
use shard_spec::Placement;
use std::rc::Rc;

/// Compares the pieces that several ranks hold copies of, to the bit. They stay equal, because all ranks compute the same from the
/// same; a fault in memory, a kernel of one's own, or a value that one rank set alone may part them.
///
/// ```
/// use shard_tensor::{launch, nn::{Linear, ModelExt}, optim::check_replicas};
/// launch(3, |ctx| check_replicas(&Linear::new(&ctx.mesh_of(3)?, 4, 8)?.parameters()))?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// All ranks of the program, with the same tensors. Reads every piece that has copies; two numbers per tensor are reduced, once
/// for all tensors with copies along the same axes of a mesh, and a status word is agreed on.
///
/// # Errors
/// An agreed error that names the tensor, and the ranks whose pieces differ from that of the first rank that holds one.
#[track_caller]
pub fn check_replicas(tensors: &[(String, ShardTensor)]) -> Result<()> {
    let _call = Calling::of("check_replicas");
    let Some((_, first)) = tensors.first() else {
        return Ok(());
    };
    let ctx = first.context();
    let mut found = Ok(());
    for copied in Copied::of(tensors) {
        let differs = copied.compare(ctx)?;
        found = found.and(differs);
    }
    Ok(ctx.world().agree(found)?)
}

/// Tensors with copies along the same axes of a mesh.
struct Copied<'a> {
    cx: Rc<MeshComm>,
    axes: Vec<usize>,
    tensors: Vec<&'a (String, ShardTensor)>,
}

impl<'a> Copied<'a> {
    /// In the order of the first of each.
    fn of(tensors: &'a [(String, ShardTensor)]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for tensor in tensors {
            let value = tensor.1.value();
            let (cx, placements) = (value.array().cx(), tensor.1.placements());
            let axes: Vec<usize> = (0..placements.len())
                .filter(|&axis| matches!(placements[axis], Placement::Replicate))
                .collect();
            if axes.is_empty() {
                continue;
            }
            match all
                .iter_mut()
                .find(|c| Rc::ptr_eq(&c.cx, cx) && c.axes == axes)
            {
                Some(alike) => alike.tensors.push(tensor),
                None => all.push(Self {
                    cx: cx.clone(),
                    axes,
                    tensors: vec![tensor],
                }),
            }
        }
        all
    }

    /// What differs among the ranks that hold copies of what this rank holds, if anything.
    #[track_caller]
    fn compare(&self, ctx: &Context) -> Result<Result<(), AgreedError>> {
        // Off the mesh there is nothing to compare.
        let Some(comm) = self.cx.along(&self.axes) else {
            return Ok(Ok(()));
        };
        let device = ctx.device();
        let mut marks = Vec::with_capacity(2 * self.tensors.len());
        for (_, tensor) in &self.tensors {
            let mark = match tensor.value().array().buffer() {
                Some(buffer) => fingerprint(&device.download(buffer)?),
                None => 0,
            };
            // The greatest of these is the complement of the least of those.
            marks.extend([mark, !mark]);
        }
        let greatest = comm.all_reduce(&device.upload_slice(&marks)?, Monoid::MAX)?;
        let greatest = device.download_vec::<i64>(&greatest)?;
        let differs = greatest
            .chunks_exact(2)
            .position(|pair| pair[0] != !pair[1]);
        match differs {
            None => Ok(Ok(())),
            Some(i) => self
                .tell(comm.as_ref(), &self.tensors[i].0, marks[2 * i])
                .map(Err),
        }
    }

    /// Which ranks have another fingerprint than the first.
    #[track_caller]
    fn tell(&self, comm: &dyn Communicator, name: &str, mark: i64) -> Result<AgreedError> {
        let device = comm.device();
        let all = comm.all_gather(&device.upload_slice(&[mark])?)?;
        let all = device.download_vec::<i64>(&all)?;
        let members = comm.members();
        let others: Vec<String> = (members.iter().zip(&all))
            .filter(|&(_, mark)| *mark != all[0])
            .map(|(rank, _)| rank.to_string())
            .collect();
        Ok(AgreedError::new(
            "check_replicas",
            format!("equal copies of {name:?} on ranks {members:?}"),
            format!(
                "another on rank {} than on rank {}",
                others.join(", "),
                members[0]
            ),
            "let all ranks compute the same from the same; `full_tensor` of one rank's value, or a checkpoint, makes them equal again",
        ))
    }
}

fn fingerprint(bytes: &[u8]) -> i64 {
    let key = shard_ops::key_of("replica", bytes);
    (key ^ (key >> 64)) as i64
}
