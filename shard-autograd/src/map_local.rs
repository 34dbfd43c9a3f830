//! A function of pieces as a function of global values, for code that no op covers.

use crate::law::gradient_layout;
use crate::local::piece_layout;
use crate::{AutogradError, Recorder, Result};
use shard_comm::{DeviceError, Monoid};
use shard_ops::{Exec, OpError, Value};
use shard_redistribute::{Array, MeshComm, RedistributeError};
use shard_spec::{Layout, Placement, ReduceOp};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// What is done with the pieces of one rank.
pub(crate) type OfPieces<'a> = dyn FnOnce(&Recorder, &[Value]) -> Result<Vec<Value>> + 'a;

impl Recorder {
    /// Moves `inputs` to `in_layouts`, calls `f` with this rank's pieces of them, and takes the results as this rank's pieces
    /// of values with `out_layouts`.
    ///
    /// What `f` does with ops goes on the tape. The pieces it gets are values on this rank's
    /// [own mesh](shard_redistribute::MeshComm::own), on which nothing is communicated. `f` is responsible for returning
    /// pieces that fit together: along an axis that replicates a result, every rank must compute the same.
    ///
    /// Gradients follow from the layouts. Along an axis that shards a result, or makes it a sum, each rank sees the derivative
    /// of its own piece only, so the cotangents of copies of an input are terms of a sum. Along an axis that replicates all
    /// results they are copies of one cotangent. `f` need not use its inputs alike on every rank: a piece that it does not use
    /// has a zero cotangent there. But it is an error if no rank uses a tracked input on the tape, or if a rank
    /// [reads](Self::note_read) its piece of one without using it on the tape, since the gradient would be lost silently.
    /// [`map_local_with_grad`](Self::map_local_with_grad) takes a derivative written by hand. Where no derivative is wanted,
    /// call this in [`no_grad`](Self::no_grad), or detach the input.
    ///
    /// On a rank outside the mesh `f` is called with values without data. If it reads them, and so fails with
    /// [`NotMember`](RedistributeError::NotMember), its results are taken to be of the first input's type.
    ///
    /// # Collective
    /// All ranks of the program, with the same layouts. Two small rounds, and one more if an input is tracked.
    ///
    /// # Errors
    /// [`Count`](AutogradError::Count) for no inputs or a wrong number of layouts; [`Meshes`](OpError::Meshes) and
    /// [`OtherMesh`](RedistributeError::OtherMesh); an agreed error naming the lowest rank on which `f` fails, returns pieces
    /// that do not fit, or reads a piece without using it on the tape; [`OffTape`](AutogradError::OffTape) for a tracked input
    /// that no result depends on; otherwise as [`from_local`](Self::from_local).
    ///
    /// ```
    /// use shard_autograd::Recorder;
    /// use shard_comm::{Communicator, local};
    /// use shard_ops::{Engine, EngineOptions, elementwise::mul, reduce::sum};
    /// use shard_redistribute::{Array, MeshComm};
    /// use shard_spec::{DeviceMesh, Layout};
    /// use std::rc::Rc;
    ///
    /// let slopes = local::run(2, |comm| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
    ///     let world: Rc<dyn Communicator> = Rc::new(comm);
    ///     let cx = MeshComm::new(&world, &DeviceMesh::new(&[2])?)?;
    ///     let tape = Recorder::new(Engine::new(EngineOptions::default()));
    ///     let rows = Layout::parse(cx.mesh(), &[3], "S(0)[1,2]")?;
    ///     let whole = Layout::replicated(cx.mesh(), &[1]);
    ///     let x = tape.leaf(Array::from_fn(&cx, &rows, |i| (i[0] + 1) as f64)?)?;
    ///     let w = tape.leaf(Array::from_fn(&cx, &whole, |_| 10.0)?)?;
    ///     let y = tape.map_local(&[&x, &w], &[&rows, &whole], &[&rows], |tape, pieces| {
    ///         Ok(vec![mul(tape, &pieces[0], &pieces[1])?])
    ///     })?;
    ///     let gradients = tape.backward(&sum(&tape, &y[0], &[0], false)?, None)?;
    ///     let dw = gradients.get(&w)?.ok_or("the loss depends on w")?;
    ///     Ok(dw.array().to_vec::<f64>()?)
    /// })?;
    /// assert_eq!(slopes.into_iter().map(|s| s.unwrap()[0]).collect::<Vec<_>>(), [6.0, 6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map_local(
        &self,
        inputs: &[&Value],
        in_layouts: &[&Layout],
        out_layouts: &[&Layout],
        f: impl FnOnce(&Self, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        self.map_pieces("map_local", inputs, in_layouts, out_layouts, Box::new(f))
    }

    /// [`map_local`](Self::map_local), with the caller's name in errors.
    pub(crate) fn map_pieces(
        &self,
        op: &'static str,
        inputs: &[&Value],
        in_layouts: &[&Layout],
        out_layouts: &[&Layout],
        f: Box<OfPieces<'_>>,
    ) -> Result<Vec<Value>> {
        let first = check_arguments(op, inputs, in_layouts, out_layouts)?;
        let cx = first.array().cx();
        let split = split_along(cx.mesh().ndim(), out_layouts);
        let mut pieces = Vec::with_capacity(inputs.len());
        for (input, layout) in inputs.iter().zip(in_layouts) {
            let moved = self.redistribute(input, layout)?;
            pieces.push(self.piece_of(&moved, &summed_along(&split, layout)?)?);
        }
        let (results, read) = self.noting_reads(|| f(self, &pieces));
        let results = match results {
            Err(error) if !cx.is_member() && is_not_member(&error) => {
                Ok(nothing(first, out_layouts)?)
            }
            other => other,
        };
        let sources: Vec<Option<u64>> = pieces.iter().map(|p| self.piece_number(p)).collect();
        let used = results.as_deref().map(|results| self.origins(results));
        let used = used.unwrap_or_default();
        let results = results.and_then(|results| {
            self.check_reads(op, &results, &sources, &used, &read)?;
            (results.iter())
                .map(|result| self.anchored(result, &pieces))
                .collect::<Result<Vec<_>>>()
        });
        self.agree_on_pieces(op, cx, out_layouts, &results)?;
        let results = results?;
        agree_on_use(op, cx, &sources, &used)?;
        if results.len() != out_layouts.len() {
            // This happens only off the mesh, since members have agreed.
            return Err(count(
                op,
                "results of the function",
                out_layouts.len(),
                results.len(),
            ));
        }
        (results.iter().zip(out_layouts).enumerate())
            .map(|(i, (result, layout))| {
                self.check_linear(op, i, result, layout)?;
                self.put_together(cx, result, layout, &split)
            })
            .collect()
    }

    /// The value of which this rank's piece is a result of the function, where ranks along the axes `split` compute different things.
    fn put_together(
        &self,
        cx: &Rc<MeshComm>,
        result: &Value,
        layout: &Layout,
        split: &[usize],
    ) -> Result<Value> {
        // Along an axis over which inputs sum their cotangents, only one of the copies counts.
        let counts = cx
            .coords()
            .is_none_or(|c| copies(split, layout).all(|axis| c[axis] == 0));
        let label = match layout.partial_op() {
            None | Some(ReduceOp::Sum) => {
                layout.with_partial(&copies(split, layout).collect::<Vec<_>>(), ReduceOp::Sum)?
            }
            Some(_) => layout.clone(),
        };
        self.value_of(result, cx, layout, &label, counts)
    }
}

/// Elements that leave the tape.
impl Recorder {
    /// Tells the tape that the host reads the elements of a value. This is how [`map_local`](Self::map_local) finds out which
    /// pieces are used off the tape.
    pub fn note_read(&self, value: &Value) {
        let mut reads = self.reads().borrow_mut();
        if let (Some(read), true) = (reads.last_mut(), self.is_recording()) {
            read.extend(self.origin(value).into_iter().flatten());
        }
    }

    /// The result of `f`, and the numbers of the pieces that the host read while `f` ran.
    fn noting_reads<T>(&self, f: impl FnOnce() -> T) -> (T, BTreeSet<u64>) {
        /// Ends the list, even after a panic.
        struct List<'a>(&'a RefCell<Vec<BTreeSet<u64>>>);
        impl Drop for List<'_> {
            fn drop(&mut self) {
                self.0.borrow_mut().pop();
            }
        }
        self.reads().borrow_mut().push(BTreeSet::new());
        let list = List(self.reads());
        let result = f();
        let read = (list.0.borrow_mut().last_mut()).map_or_else(BTreeSet::new, std::mem::take);
        (result, read)
    }

    /// The numbers of the pieces that some values were computed from.
    fn origins(&self, values: &[Value]) -> BTreeSet<u64> {
        (values.iter())
            .filter_map(|v| self.origin(v))
            .flatten()
            .collect()
    }

    /// Refuses a piece that the host read and that no result was computed from on the tape. Where any piece was read, it also
    /// refuses a result that was computed from no piece.
    fn check_reads(
        &self,
        op: &'static str,
        results: &[Value],
        sources: &[Option<u64>],
        used: &BTreeSet<u64>,
        read: &BTreeSet<u64>,
    ) -> Result<()> {
        let is_lost = |number: &Option<u64>| {
            number.is_some_and(|number| read.contains(&number) && !used.contains(&number))
        };
        if let Some(input) = sources.iter().position(is_lost) {
            return Err(AutogradError::OffTape {
                op,
                from: format!("input {input}, which the function read as an array,"),
                to: "its results".into(),
            });
        }
        let is_constant = |v: &Value| v.dtype().is_float() && !self.is_tracked(v);
        match results.iter().position(is_constant) {
            Some(result) if !read.is_empty() => Err(AutogradError::OffTape {
                op,
                from: "the input that the function read as an array".into(),
                to: format!("result {result}"),
            }),
            _ => Ok(()),
        }
    }
}

/// Refuses a tracked input that no result of any rank was computed from.
fn agree_on_use(
    op: &'static str,
    cx: &MeshComm,
    sources: &[Option<u64>],
    used: &BTreeSet<u64>,
) -> Result<()> {
    let Some(comm) = cx.all() else {
        return Ok(());
    };
    let tracked: Vec<(usize, u64)> = (sources.iter().enumerate())
        .filter_map(|(input, number)| Some((input, (*number)?)))
        .collect();
    if tracked.is_empty() {
        return Ok(());
    }
    let mine: Vec<u8> = (tracked.iter())
        .map(|(_, n)| u8::from(used.contains(n)))
        .collect();
    let device = cx.device();
    let anywhere = comm.all_reduce(&device.upload_slice(&mine)?, Monoid::MAX)?;
    let anywhere = match device.download_vec::<u8>(&anywhere) {
        // A simulated rank knows nothing of the others.
        Err(DeviceError::NoData { .. }) => return Ok(()),
        anywhere => anywhere?,
    };
    match tracked.iter().zip(anywhere).find(|(_, used)| *used == 0) {
        None => Ok(()),
        Some(((input, _), _)) => Err(AutogradError::OffTape {
            op,
            from: format!("input {input}"),
            to: "the results of any rank".into(),
        }),
    }
}

/// The first input, if the arguments fit together.
fn check_arguments<'a>(
    op: &'static str,
    inputs: &[&'a Value],
    in_layouts: &[&Layout],
    out_layouts: &[&Layout],
) -> Result<&'a Value> {
    let Some(&first) = inputs.first() else {
        return Err(count(op, "inputs", 1, 0));
    };
    if inputs.len() != in_layouts.len() {
        return Err(count(
            op,
            "layouts of inputs",
            inputs.len(),
            in_layouts.len(),
        ));
    }
    let mesh = first.layout().mesh();
    if let Some(operand) = inputs.iter().position(|v| v.layout().mesh() != mesh) {
        return Err(OpError::Meshes { op, operand }.into());
    }
    if in_layouts
        .iter()
        .chain(out_layouts)
        .any(|l| l.mesh() != mesh)
    {
        return Err(RedistributeError::OtherMesh { op }.into());
    }
    Ok(first)
}

/// The pieces of results on a rank outside the mesh: without data, of the first input's type.
pub(crate) fn nothing(first: &Value, out_layouts: &[&Layout]) -> Result<Vec<Value>> {
    let own = first.array().cx().own();
    let piece = |l: &&Layout| {
        let layout = piece_layout(&own, l);
        Ok(Value::new(Array::from_parts(
            &own,
            &layout,
            None,
            first.dtype(),
        )?))
    };
    out_layouts.iter().map(piece).collect()
}

/// The label of the cotangent of an input: a sum along the axes of `split` that replicate it.
fn summed_along(split: &[usize], layout: &Layout) -> Result<Layout> {
    let axes: SmallVec<[usize; 4]> = copies(split, layout).collect();
    Ok(gradient_layout(layout).with_partial(&axes, ReduceOp::Sum)?)
}

/// The axes along which ranks compute different things.
fn split_along(axes: usize, out_layouts: &[&Layout]) -> SmallVec<[usize; 4]> {
    let replicates = |axis, layout: &Layout| layout.placements()[axis] == Placement::Replicate;
    (0..axes)
        .filter(|&axis| !out_layouts.iter().all(|layout| replicates(axis, layout)))
        .collect()
}

/// The axes of `split` that replicate a value.
fn copies(split: &[usize], layout: &Layout) -> impl Iterator<Item = usize> {
    (split.iter().copied()).filter(|axis| layout.placements()[*axis] == Placement::Replicate)
}

fn is_not_member(error: &AutogradError) -> bool {
    match error {
        AutogradError::Redistribute(e) => matches!(e, RedistributeError::NotMember { .. }),
        AutogradError::Op(OpError::Redistribute { source, .. }) => {
            matches!(**source, RedistributeError::NotMember { .. })
        }
        _ => false,
    }
}

fn count(op: &'static str, what: &'static str, expected: usize, got: usize) -> AutogradError {
    AutogradError::Count {
        op,
        what,
        expected,
        got,
        fix: "give one layout per input, and one piece per result",
    }
}
