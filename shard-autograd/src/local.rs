//! From a global value to the pieces the ranks hold, and back.
//!
//! A piece is a value on the mesh of one rank alone: the same ops work on it, need no communication, and go on the
//! same tape. The two directions are each other's derivative.

use crate::accumulate::Mover;
use crate::law::gradient_layout;
use crate::node::{Kind, Node, Outlet, Slot};
use crate::{AutogradError, Recorder, Result};
use shard_comm::{AgreedError, Call, DType, Scalar, Strided};
use shard_ops::{Exec, Value, key_of};
use shard_redistribute::{Array, MeshComm, RedistributeError};
use shard_spec::{Layout, ReduceOp};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

/// How the cotangents of the copies of a replicated value combine, once every rank has used its own copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GradAs {
    /// They are copies of one cotangent: the ranks did the same with their copies.
    #[default]
    Replicate,
    /// They are terms of a sum: the ranks did different things, and the loss is the sum over the ranks.
    Partial,
}

/// Pieces.
impl Recorder {
    /// This rank's piece of a value, as a value on [this rank's own mesh](MeshComm::own): its buffer, not a copy.
    ///
    /// The piece stays on the tape. Its cotangent counts as this rank's piece of the value's cotangent, which has the layout
    /// of the value, with replicate in place of partial. Along axes that replicate the value, `grad` says how the ranks'
    /// cotangents combine. A piece of a partial value is this rank's term.
    ///
    /// A rank outside the mesh gets a value without data.
    ///
    /// # Collective
    /// No communication. All ranks of the program: the derivative is taken together.
    ///
    /// # Errors
    /// Only those of values of another tape.
    pub fn to_local(&self, value: &Value, grad: GradAs) -> Result<Value> {
        self.piece_of(value, &cotangent_label(value.layout(), grad)?)
    }

    /// The value whose pieces the ranks have. This is the reverse of [`to_local`](Self::to_local), and its derivative.
    ///
    /// Ranks that hold copies of one piece are trusted to hold equal ones. The cotangent of a piece is the piece of the
    /// value's cotangent. A term of a partial value and a copy get the whole of it.
    ///
    /// Which leaves a piece depends on must not depend on the rank. Where it does, as in a function that has nothing to do for
    /// an empty piece, use [`map_local`](Self::map_local), which takes care of that.
    ///
    /// # Collective
    /// All members of the mesh, with the same layout; one small round, no data.
    ///
    /// # Errors
    /// [`OtherMesh`](RedistributeError::OtherMesh) if the layout is of another mesh than the communicators; an
    /// agreed error naming the lowest rank whose piece is not of the shape the layout gives it, or not on its own
    /// mesh; [`Mismatch`](shard_comm::CommError::Mismatch) if ranks pass different layouts or types, or pieces of
    /// different origin; [`Reduction`](AutogradError::Reduction) for a tracked piece of a value that is a
    /// reduction other than a sum.
    pub fn from_local(&self, piece: &Value, cx: &Rc<MeshComm>, layout: &Layout) -> Result<Value> {
        const OP: &str = "from_local";
        self.agree_on_pieces(OP, cx, &[layout], &Ok(vec![piece.clone()]))?;
        self.check_linear(OP, 0, piece, layout)?;
        self.value_of(piece, cx, layout, layout, true)
    }

    /// The whole value on every member of its mesh; `grad` says how the cotangents of the copies combine.
    ///
    /// With [`GradAs::Replicate`] this is a move like any other.
    ///
    /// # Collective
    /// All members of the value's mesh.
    ///
    /// # Errors
    /// What the communicator reports.
    pub fn full_tensor(&self, value: &Value, grad: GradAs) -> Result<Value> {
        let layout = Layout::replicated(value.layout().mesh(), value.shape());
        let whole = self.redistribute(value, &layout)?;
        match grad {
            GradAs::Replicate => Ok(whole),
            GradAs::Partial => {
                let copy = self.to_local(&whole, grad)?;
                let cx = whole.array().cx();
                self.value_of(&copy, cx, &layout, &layout, true)
            }
        }
    }
}

/// The two directions, without checks.
impl Recorder {
    /// This rank's piece of a value. The cotangents of the pieces are the pieces of a value of the label `cotangent`.
    pub(crate) fn piece_of(&self, value: &Value, cotangent: &Layout) -> Result<Value> {
        let array = value.array();
        let call = Call::new("to_local").of(array.dtype(), array.layout());
        array.cx().record(call.reading(&[array.number()]));
        let own = array.cx().own();
        let layout = piece_layout(&own, value.layout());
        let piece = Array::from_parts(&own, &layout, array.buffer().cloned(), array.dtype())?;
        let parents = self.parents("to_local", &[value])?;
        Ok(self.record1(parents, piece, || Kind::ToLocal {
            cotangent: cotangent.clone(),
            number: self.census().next_piece(),
        }))
    }

    /// The value of this layout whose pieces the ranks have. The value's cotangent is handed to the pieces under the label
    /// `cotangent`, which differs in sums only, and to this rank's piece only if it `counts`.
    pub(crate) fn value_of(
        &self,
        piece: &Value,
        cx: &Rc<MeshComm>,
        layout: &Layout,
        cotangent: &Layout,
        counts: bool,
    ) -> Result<Value> {
        let parents = self.parents("from_local", &[piece])?;
        let buffer = piece.array().buffer().cloned();
        // Pieces have numbers of their ranks' own.
        let number = cx.record(Call::new("from_local").of(piece.dtype(), layout));
        let value = Array::from_parts(cx, layout, buffer, piece.dtype())?.with_number(number);
        Ok(self.record1(parents, value, || Kind::FromLocal {
            cotangent: cotangent.clone(),
            counts,
        }))
    }

    /// The same value, recorded as depending on other values too, since it may on another rank.
    pub(crate) fn anchored(&self, value: &Value, to: &[Value]) -> Result<Value> {
        let values: SmallVec<[&Value; 4]> = std::iter::once(value).chain(to).collect();
        let parents = self.parents("map_local", &values)?;
        Ok(self.record1(parents, value.array().clone(), || Kind::Anchor))
    }

    /// Tells all members of a mesh whether the pieces of some values fit, or why a rank has none.
    pub(crate) fn agree_on_pieces(
        &self,
        op: &'static str,
        cx: &Rc<MeshComm>,
        layouts: &[&Layout],
        pieces: &Result<Vec<Value>>,
    ) -> Result<()> {
        if layouts.iter().any(|l| l.mesh() != cx.mesh()) {
            return Err(RedistributeError::OtherMesh { op }.into());
        }
        let Some(comm) = cx.all() else {
            return Ok(());
        };
        let pieces = match pieces {
            Ok(pieces) => check_pieces(op, cx, layouts, pieces).map(|()| &pieces[..]),
            Err(error) => Err(AgreedError::new(
                op,
                "pieces of the results from every rank",
                error.to_string(),
                "see there",
            )),
        };
        let status = pieces.as_ref().map(|_| ()).map_err(Clone::clone);
        comm.agree(status)?;
        let told: Vec<_> = (layouts.iter().zip(pieces.unwrap_or_default()))
            .map(|(layout, piece)| (layout.hash128(), piece.dtype(), self.origin(piece)))
            .collect();
        let words = || {
            let of =
                |(layout, (_, dtype, origin)): (&&Layout, &(_, DType, Option<BTreeSet<u64>>))| {
                    match origin {
                        None => format!("{dtype} {:?} {layout}", layout.shape()),
                        Some(from) => {
                            format!("{dtype} {:?} {layout} (of pieces {from:?})", layout.shape())
                        }
                    }
                };
            layouts
                .iter()
                .zip(&told)
                .map(of)
                .collect::<Vec<_>>()
                .join(", ")
        };
        Ok(comm.check_uniform_as(op, key_of(op, &told), words)?)
    }

    /// Refuses a tracked piece where a cotangent cannot be handed to the pieces. The cotangent of a maximum, for example,
    /// belongs to one of the terms, and no rank knows to which.
    pub(crate) fn check_linear(
        &self,
        op: &'static str,
        piece: usize,
        value: &Value,
        layout: &Layout,
    ) -> Result<()> {
        match layout.partial_op() {
            None | Some(ReduceOp::Sum) => Ok(()),
            Some(_) if !self.is_recording() || !self.is_tracked(value) => Ok(()),
            Some(_) => Err(AutogradError::Reduction {
                op,
                piece,
                layout: layout.to_string(),
            }),
        }
    }

    /// The global values that a piece was computed from; `None` if the piece is not tracked.
    pub(crate) fn origin(&self, piece: &Value) -> Option<BTreeSet<u64>> {
        let slot = self.own_slot(piece)?;
        let (mut found, mut seen) = (BTreeSet::new(), HashSet::new());
        let mut stack: Vec<Rc<Node>> = vec![slot.node.clone()];
        while let Some(node) = stack.pop() {
            if let Kind::ToLocal { number, .. } = node.kind {
                found.insert(number);
            } else if seen.insert(node.id) {
                stack.extend(node.parents.iter().flatten().map(|p| p.node.clone()));
            }
        }
        Some(found)
    }
}

/// The cotangents of the pieces are the pieces of the value's cotangent.
pub(crate) fn vjp_of_to_local(
    recorder: &Recorder,
    node: &Node,
    label: &Layout,
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    let Some(parent) = node.parents.first().and_then(Option::as_ref) else {
        return Ok(vec![None]);
    };
    let piece = match cotangents.first().and_then(Option::as_ref) {
        Some(piece) => piece.clone(),
        None => zeros(&node.outlets[0])?,
    };
    let cx = &parent.outlet().cx;
    let value = recorder.value_of(&piece, cx, label, label, true)?;
    Ok(vec![Some(value)])
}

/// The pieces of the value's cotangent are the cotangents of the pieces.
pub(crate) fn vjp_of_from_local(
    recorder: &Recorder,
    label: &Layout,
    counts: bool,
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    let Some(cotangent) = cotangents.first().and_then(Option::as_ref) else {
        return Ok(vec![None]);
    };
    let piece = recorder.piece_of(cotangent, label)?;
    if counts {
        return Ok(vec![Some(piece)]);
    }
    let nothing = zeros(&Outlet::of(piece.array()))?;
    Ok(vec![Some(recorder.anchored(&nothing, &[piece])?)])
}

/// The first parent gets the value's cotangent. The others get zeros, recorded as depending on whatever the cotangents of
/// other ranks may depend on.
pub(crate) fn vjp_of_anchor(
    mover: Mover<'_>,
    node: &Node,
    needs: &[bool],
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    let cotangent = cotangents.first().cloned().flatten();
    let mut terms = vec![None; node.parents.len()];
    if mover.recorded
        && let Some(cotangent) = &cotangent
    {
        let anchors = || {
            let mut anchors: SmallVec<[Option<Rc<Slot>>; 3]> = smallvec![None];
            anchors.push(mover.recorder.own_slot(cotangent));
            anchors.extend(node.parents[1..].iter().cloned());
            anchors
        };
        for (i, parent) in node.parents.iter().enumerate().skip(1) {
            if let (Some(parent), true) = (parent, needs[i]) {
                let nothing = zeros(parent.outlet())?.array().clone();
                terms[i] = Some(mover.recorder.record1(anchors(), nothing, || Kind::Anchor));
            }
        }
    }
    terms[0] = cotangent;
    Ok(terms)
}

/// The label of the cotangent of a value with this layout.
fn cotangent_label(value: &Layout, grad: GradAs) -> Result<Layout> {
    let law = gradient_layout(value);
    Ok(match grad {
        GradAs::Replicate => law,
        GradAs::Partial => law.with_partial(value.replicate_axes(), ReduceOp::Sum)?,
    })
}

/// The layout of this rank's piece of a value, or, off the mesh, of the first rank's piece.
pub(crate) fn piece_layout(own: &MeshComm, value: &Layout) -> Layout {
    let rank = own.mesh().ranks()[0];
    Layout::replicated(own.mesh(), &value.local_shape(rank).unwrap_or_default())
}

/// Whether every piece is on this rank's own mesh and has the shape that its layout gives it.
fn check_pieces(
    op: &'static str,
    cx: &MeshComm,
    layouts: &[&Layout],
    pieces: &[Value],
) -> Result<(), AgreedError> {
    let own = cx.own();
    if pieces.len() != layouts.len() {
        return Err(AgreedError::new(
            op,
            format!("{} pieces, one per layout", layouts.len()),
            pieces.len().to_string(),
            "give one for each result",
        ));
    }
    for (i, (piece, layout)) in pieces.iter().zip(layouts).enumerate() {
        if piece.layout().mesh() != own.mesh() {
            return Err(AgreedError::new(
                op,
                format!("piece {i} on this rank's own mesh, {}", own.mesh()),
                format!("one on {}", piece.layout().mesh()),
                "make it from what `to_local` gives",
            ));
        }
        let shape = layout.local_shape(cx.rank()).unwrap_or_default();
        if piece.shape() != &shape[..] {
            return Err(AgreedError::new(
                op,
                format!(
                    "piece {i} of shape {:?} (layout {layout} of {:?})",
                    &shape[..],
                    layout.shape()
                ),
                format!("{:?}", piece.shape()),
                "give the layout with the sizes of the pieces, or pieces of the layout's sizes",
            ));
        }
    }
    Ok(())
}

/// A value of zeros.
pub(crate) fn zeros(like: &Outlet) -> Result<Value> {
    let number = like.cx.history().number();
    let Some(shape) = like.layout.local_shape(like.cx.rank()) else {
        return Ok(like.value(None, number));
    };
    let device = like.cx.device();
    let all = Strided::contiguous(&[shape.iter().product()]);
    let mut buffer = device.alloc(like.dtype, shape.iter().product())?;
    device.fill(&mut buffer, &all, Scalar::F64(0.0))?;
    Ok(like.value(Some(buffer.freeze()), number))
}
