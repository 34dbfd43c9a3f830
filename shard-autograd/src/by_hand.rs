//! A function of pieces whose derivative is written by hand: for code that leaves the tape.

use crate::accumulate::Mover;
use crate::local::zeros;
use crate::map_local::{OfPieces, nothing};
use crate::node::{Kind, Node, Outlet};
use crate::{AutogradError, Recorder, Result};
use shard_comm::AgreedError;
use shard_ops::{OpError, Value};
use shard_redistribute::{Array, MeshComm};
use shard_spec::Layout;
use std::rc::Rc;

const OP: &str = "map_local_with_grad";

/// Computes the cotangents of the inputs from the inputs, the outputs, and the outputs' cotangents.
pub(crate) type Backward =
    dyn Fn(&Recorder, &[Value], &[Value], &[Value]) -> Result<Vec<Option<Value>>>;

/// What the derivative of one call reads.
pub(crate) struct ByHand {
    backward: Rc<Backward>,
    inputs: Vec<Array>,
    outputs: Vec<Array>,
    /// The mesh of the values whose pieces these are.
    cx: Rc<MeshComm>,
}

impl Recorder {
    /// As [`map_local`](Self::map_local), for a function that computes as it likes, through arrays, libraries or files. The
    /// function is not recorded, and `backward` says what its derivative is.
    ///
    /// `backward` gets this rank's pieces of the inputs, what `forward` made of them, and the cotangents of these results
    /// (zeros where none arrived), all off the tape. It returns one cotangent per input, of the shape and type of that input's
    /// piece, or `None` for zeros. `map_local` determines how the ranks' cotangents of copies combine. The cotangents that
    /// `backward` returns are not differentiated again.
    ///
    /// # Collective
    /// As [`map_local`](Self::map_local); in a backward pass, all members of the mesh agree that every rank's `backward` succeeded.
    ///
    /// # Errors
    /// As [`map_local`](Self::map_local), except that neither function is called outside the mesh. In a backward pass: an
    /// agreed error naming the lowest rank on which `backward` fails or returns cotangents that do not fit;
    /// [`NoVjp`](OpError::NoVjp) if the pass is itself recorded.
    ///
    /// ```
    /// use shard_autograd::Recorder;
    /// use shard_comm::{Communicator, local};
    /// use shard_ops::{Engine, EngineOptions, Value, reduce::sum};
    /// use shard_redistribute::{Array, MeshComm};
    /// use shard_spec::{DeviceMesh, Layout};
    /// use std::rc::Rc;
    ///
    /// let slopes = local::run(2, |comm| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
    ///     let world: Rc<dyn Communicator> = Rc::new(comm);
    ///     let cx = MeshComm::new(&world, &DeviceMesh::new(&[2])?)?;
    ///     let tape = Recorder::new(Engine::new(EngineOptions::default()));
    ///     let rows = Layout::parse(cx.mesh(), &[3], "S(0)[1,2]")?;
    ///     let x = tape.leaf(Array::from_fn(&cx, &rows, |i| (i[0] + 1) as f64)?)?;
    ///     // A piece of the same layout, whose element `i` is a function of the elements of two others.
    ///     let zip = |x: &Value, y: &Value, f: fn(f64, f64) -> f64| -> shard_autograd::Result<_> {
    ///         let (x, y, a) = (x.array().to_vec::<f64>()?, y.array().to_vec::<f64>()?, x.array());
    ///         Ok(Value::new(Array::from_fn(a.cx(), a.layout(), |i| f(x[i[0]], y[i[0]]))?))
    ///     };
    ///     let y = tape.map_local_with_grad(
    ///         &[&x],
    ///         &[&rows],
    ///         &[&rows],
    ///         move |_, x| Ok(vec![zip(&x[0], &x[0], |a, b| a * b)?]),
    ///         move |_, x, _, dy| Ok(vec![Some(zip(&x[0], &dy[0], |a, g| 2.0 * a * g)?)]),
    ///     )?;
    ///     let gradients = tape.backward(&sum(&tape, &y[0], &[0], false)?, None)?;
    ///     let dx = gradients.get(&x)?.ok_or("the loss depends on x")?;
    ///     Ok(dx.array().to_vec::<f64>()?)
    /// })?;
    /// let slopes: Vec<_> = slopes.into_iter().map(Result::unwrap).collect();
    /// assert_eq!(slopes, [vec![2.0], vec![4.0, 6.0]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map_local_with_grad(
        &self,
        inputs: &[&Value],
        in_layouts: &[&Layout],
        out_layouts: &[&Layout],
        forward: impl FnOnce(&Self, &[Value]) -> Result<Vec<Value>>,
        backward: impl Fn(&Self, &[Value], &[Value], &[Value]) -> Result<Vec<Option<Value>>> + 'static,
    ) -> Result<Vec<Value>> {
        let (forward, backward) = (Box::new(forward), Rc::new(backward));
        self.by_hand(inputs, in_layouts, out_layouts, forward, backward)
    }

    /// [`map_local_with_grad`](Self::map_local_with_grad), once for all functions.
    fn by_hand(
        &self,
        inputs: &[&Value],
        in_layouts: &[&Layout],
        out_layouts: &[&Layout],
        forward: Box<OfPieces<'_>>,
        backward: Rc<Backward>,
    ) -> Result<Vec<Value>> {
        let of_pieces = |tape: &Self, pieces: &[Value]| {
            let untracked: Vec<Value> = pieces.iter().map(Value::detach).collect();
            // There is a first input: `map_pieces` has checked that.
            let first = inputs[0];
            let cx = first.array().cx().clone();
            let results = match cx.is_member() {
                true => tape.no_grad(|| forward(tape, &untracked))?,
                false => nothing(first, out_layouts)?,
            };
            let parents = tape.parents(OP, &pieces.iter().collect::<Vec<_>>())?;
            let mut outputs: Vec<Value> = results.iter().map(Value::detach).collect();
            let inputs = untracked.into_iter().map(|v| v.array().clone()).collect();
            tape.record(parents, &mut outputs, |outputs| {
                Kind::ByHand(ByHand {
                    backward,
                    inputs,
                    outputs: outputs.iter().map(|v| v.array().clone()).collect(),
                    cx,
                })
            });
            Ok(outputs)
        };
        self.map_pieces(OP, inputs, in_layouts, out_layouts, Box::new(of_pieces))
    }
}

/// Runs the derivative on this rank, and tells the other ranks whether it succeeded.
pub(crate) fn vjp(
    mover: Mover<'_>,
    node: &Node,
    by_hand: &ByHand,
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    if mover.recorded {
        return Err(OpError::NoVjp { op: OP, operand: 0 }.into());
    }
    let Some(comm) = by_hand.cx.all() else {
        // Off the mesh there is nothing to differentiate.
        return Ok(vec![None; node.parents.len()]);
    };
    let terms = run(mover.recorder, node, by_hand, cotangents);
    comm.agree(terms.as_ref().map(|_| ()).map_err(|error| {
        AgreedError::new(
            OP,
            "cotangents of the inputs from every rank's `backward`",
            error.to_string(),
            "see there",
        )
    }))?;
    terms
}

fn run(
    recorder: &Recorder,
    node: &Node,
    by_hand: &ByHand,
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    let values = |arrays: &[Array]| arrays.iter().cloned().map(Value::new).collect::<Vec<_>>();
    let seen = (cotangents.iter().zip(&node.outlets))
        .map(|(cotangent, outlet)| cotangent.clone().map_or_else(|| zeros(outlet), Ok))
        .collect::<Result<Vec<_>>>()?;
    let (inputs, outputs) = (values(&by_hand.inputs), values(&by_hand.outputs));
    let terms = (by_hand.backward)(recorder, &inputs, &outputs, &seen)?;
    if terms.len() != inputs.len() {
        return Err(AutogradError::Count {
            op: OP,
            what: "cotangents from `backward`",
            expected: inputs.len(),
            got: terms.len(),
            fix: "give one per input, `None` for zeros",
        });
    }
    for (i, (term, input)) in terms.iter().zip(&by_hand.inputs).enumerate() {
        if let Some(term) = term {
            crate::backward::check_cotangent(
                OP,
                || format!("the cotangent of input {i}"),
                &Outlet::of(input),
                term,
                "give one of the piece's",
            )?;
        }
    }
    Ok(terms.into_iter().map(|t| t.map(|t| t.detach())).collect())
}
