//! Where the parameters of a model lie: parallelism is placements.

use super::{Buffer, LeafMut, Tree};
use crate::placements::divided_further;
use crate::{Error, Placements, Result, ShardTensor};
use shard_spec::{Layout, Partition, Placement};

/// What becomes of one tensor of a model.
pub(super) struct Place {
    /// Where it lies.
    pub(super) own: Layout,
    /// Where ops have it.
    pub(super) used_as: Layout,
}

/// Replaces the tensors of a model by ones that lie elsewhere. `None` leaves one as it is.
#[track_caller]
pub(super) fn replace(
    op: &'static str,
    model: &mut dyn Tree,
    place: &mut dyn FnMut(&str, &ShardTensor) -> Result<Option<Place>>,
) -> Result<()> {
    // All is found out first, so that after an error nothing has moved.
    let mut places = Vec::new();
    for (name, leaf) in model.leaves_mut() {
        places.push(match leaf {
            LeafMut::Tensor(tensor) => place(&name, tensor)?,
            LeafMut::Buffer(buffer) => place(&name, &buffer.get())?,
            LeafMut::Training(_) => None,
        });
    }
    check_tied(op, model, &places)?;
    // An optimizer that has an old one would wait for gradients in vain.
    renew(model, places, &mut |old| old.set_replaced(op))
}

/// Gives a model parameters and buffers of its own, that are and lie as those which it has in common with others.
#[track_caller]
pub(super) fn own(model: &mut dyn Tree) -> Result<()> {
    let mut buffers: Vec<(Buffer, Buffer)> = Vec::new();
    let mut places = Vec::new();
    for (_, leaf) in model.leaves_mut() {
        places.push(match leaf {
            LeafMut::Tensor(tensor) => Some(present(tensor)),
            LeafMut::Training(_) => None,
            LeafMut::Buffer(buffer) => {
                let tied = buffers.iter().find(|(old, _)| old.is_same(buffer));
                let new = tied.map_or_else(|| Buffer::new(&buffer.get()), |(_, new)| new.clone());
                buffers.push((std::mem::replace(buffer, new.clone()), new));
                None
            }
        });
    }
    renew(model, places, &mut |_| {})
}

/// Puts new tensors in places, of tied parameters one, and shows the parameters that were there.
#[track_caller]
fn renew(
    model: &mut dyn Tree,
    places: Vec<Option<Place>>,
    replaced: &mut dyn FnMut(&ShardTensor),
) -> Result<()> {
    let mut known: Vec<(ShardTensor, ShardTensor)> = Vec::new();
    for ((_, leaf), place) in model.leaves_mut().into_iter().zip(places) {
        let Some(Place { own, used_as }) = place else {
            continue;
        };
        match leaf {
            LeafMut::Training(_) => {}
            LeafMut::Buffer(buffer) => buffer.settle(&own)?,
            LeafMut::Tensor(tensor) if !tensor.is_parameter() => *tensor = tensor.settled(&own)?,
            LeafMut::Tensor(tensor) => {
                let tied = known.iter().find(|(old, _)| old.is_same_parameter(tensor));
                let new = match tied {
                    Some((_, new)) => new.clone(),
                    None => {
                        let new = tensor.settled(&own)?.requires_grad_used_as(&used_as)?;
                        new.set_requires_grad(tensor.is_tracked())?;
                        new
                    }
                };
                let old = std::mem::replace(tensor, new.clone());
                replaced(&old);
                known.push((old, new));
            }
        }
    }
    Ok(())
}

/// Refuses to place one parameter at two places.
fn check_tied(op: &'static str, model: &mut dyn Tree, places: &[Option<Place>]) -> Result<()> {
    let mut seen: Vec<(String, &ShardTensor, &Option<Place>)> = Vec::new();
    let leaves = model.leaves();
    for ((name, leaf), place) in leaves.iter().zip(places) {
        let super::Leaf::Tensor(tensor) = leaf else {
            continue;
        };
        let twin = seen.iter().find(|(_, t, _)| t.is_same_parameter(tensor));
        if let Some((first, _, other)) = twin {
            let own = |place: &Option<Place>| place.as_ref().map(|p| p.own.clone());
            if own(place) != own(other) {
                let said = |place: &Option<Place>| match place {
                    Some(place) => place.own.to_string(),
                    None => "where it lies".to_owned(),
                };
                return Err(Error::argument(
                    op,
                    format!("one place for {first:?} and {name:?}, which are one parameter"),
                    format!("{} and {}", said(other), said(place)),
                    "place both names alike",
                ));
            }
        }
        seen.push((name.clone(), tensor, place));
    }
    Ok(())
}

/// Where a tensor is now.
pub(super) fn present(tensor: &ShardTensor) -> Place {
    Place {
        own: tensor.layout().clone(),
        used_as: tensor.layout_in_use(),
    }
}

/// The place that placements give a tensor.
pub(super) fn placed(placements: &Placements, tensor: &ShardTensor) -> Result<Place> {
    let own = tensor.target(placements)?;
    Ok(Place {
        used_as: own.clone(),
        own,
    })
}

/// The place of a parameter that is divided over one more mesh axis and whole along it where ops use it: along its longest dim
/// that no other axis divides, or else along the longest.
pub(super) fn divided(op: &'static str, name: &str, axis: &str, place: Place) -> Result<Place> {
    let Place { own, used_as } = &place;
    let longest = |dims: &mut dyn Iterator<Item = usize>| {
        dims.max_by_key(|&d| (own.shape()[d], std::cmp::Reverse(d)))
    };
    let free = longest(&mut (0..own.ndim()).filter(|&d| own.sharding(d).is_none()));
    match free.or_else(|| longest(&mut (0..own.ndim()))) {
        Some(dim) => Ok(Place {
            own: split(op, name, own, axis, (dim, 1))?,
            used_as: used_as.clone(),
        }),
        // A number is not divided.
        None => Ok(place),
    }
}

/// A layout that divides a dim over one more axis, in parts of so many whole units that they differ by at most one. What other axes
/// divide stays divided, so that this one's parts are parts of theirs.
pub(super) fn split(
    op: &'static str,
    name: &str,
    own: &Layout,
    axis: &str,
    (dim, unit): (usize, usize),
) -> Result<Layout> {
    let mesh = own.mesh();
    let index = mesh.axis(axis)?;
    if dim >= own.ndim() || own.placements()[index] != Placement::Replicate {
        return Err(Error::argument(
            op,
            format!("a tensor of more than {dim} dims that is whole along the axis {axis:?}"),
            format!("{name:?} of shape {:?} placed {own}", own.shape()),
            "divide another dim, or over an axis that does not divide the tensor yet",
        ));
    }
    let parts = mesh.axis_size(index);
    divided_further(own, dim, index, |size| {
        if unit == 0 || !size.is_multiple_of(unit) {
            return Err(Error::argument(
                op,
                format!("parts of whole heads of {unit} features"),
                format!(
                    "dim {dim} of {name:?} of shape {:?} placed {own}",
                    own.shape()
                ),
                "give the width of a head, which divides the features that ranks have",
            ));
        }
        in_units(size, parts, unit)
    })
}

/// Parts of whole units, of which some have one more than others.
fn in_units(size: usize, parts: usize, unit: usize) -> Result<Partition> {
    let units = Partition::balanced(size / unit, parts);
    let sizes: Vec<usize> = units.sizes().map(|n| n * unit).collect();
    Ok(Partition::from_sizes(&sizes)?)
}
