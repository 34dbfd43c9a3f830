//! Recurrent layers: plain and gated recurrent units, and long short-term memory.

use super::{Leaf, LeafMut, Module, Training, Tree, layers_of, under, uniform};
use crate::{DType, Error, Mesh, Result, ShardTensor, tree};
use shard_comm::Calling;
use shard_ops::fused as ops;

/// A step of a recurrent layer, which [`Recurrent`] repeats: [`RnnCell`], [`GruCell`] or [`LstmCell`].
pub trait RecurrentCell: Tree + Clone {
    /// What goes from step to step, each tensor `[batch, hidden]`.
    type State: Clone;

    /// What layers of it are called in errors.
    const LAYERS: &'static str = "Recurrent";

    /// A cell of so many inputs and hidden features, uniform in `±1/√hidden`.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    fn new(mesh: &Mesh, inputs: usize, hidden: usize) -> Result<Self>;

    /// The cell without biases.
    #[must_use]
    fn without_bias(self) -> Self;

    /// What the gates get of the input, `[.., inputs]`, of one step or of many at once.
    ///
    /// # Collective
    /// As [`ShardTensor::linear`].
    ///
    /// # Errors
    /// As [`ShardTensor::linear`].
    fn gates(&self, x: &ShardTensor) -> Result<ShardTensor>;

    /// The next state from what [`gates`](Self::gates) gave for this step, `[batch, gates]`; at first from zeros.
    ///
    /// # Collective
    /// All members of the mesh. Nothing moves where the batch is sharded.
    ///
    /// # Errors
    /// If shapes or types do not fit; what the communicator reports.
    fn step(&self, gates: &ShardTensor, state: Option<&Self::State>) -> Result<Self::State>;

    /// What of a state is the output.
    fn output(state: &Self::State) -> &ShardTensor;

    /// The next state where `valid`, a mask `[batch, 1]`, is true, and elsewhere the one before, at first zeros.
    ///
    /// # Collective
    /// As [`ShardTensor::where_`].
    ///
    /// # Errors
    /// As [`ShardTensor::where_`].
    fn held(
        valid: &ShardTensor,
        next: &Self::State,
        before: Option<&Self::State>,
    ) -> Result<Self::State>;

    /// The next state from an input `[batch, inputs]`, as PyTorch's cell is called.
    ///
    /// # Collective
    /// As [`step`](Self::step).
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn next(&self, x: &ShardTensor, state: Option<&Self::State>) -> Result<Self::State> {
        self.step(&self.gates(x)?, state)
    }
}

macro_rules! cells {
    ($(
        $(#[$doc:meta])*
        $cell:ident $(with $(#[$about:meta])* $more:ident)?: $gates:literal, $state:ty, $output:expr, $held:expr;
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $cell {
            /// `[gates * hidden, inputs]`
            pub weight_ih: ShardTensor,
            /// `[gates * hidden, hidden]`
            pub weight_hh: ShardTensor,
            /// `[gates * hidden]`
            pub bias_ih: Option<ShardTensor>,
            /// `[gates * hidden]`
            pub bias_hh: Option<ShardTensor>,
            $($(#[$about])* pub $more: Option<ShardTensor>,)?
        }

        tree!($cell { weight_ih, weight_hh, bias_ih, bias_hh $(, $more)? });

        impl RecurrentCell for $cell {
            type State = $state;

            // The name of a cell ends with four letters more.
            const LAYERS: &'static str = {
                let name = stringify!($cell);
                name.split_at(name.len() - "Cell".len()).0
            };

            #[track_caller]
            fn new(mesh: &Mesh, inputs: usize, hidden: usize) -> Result<Self> {
                let _call = Calling::of(stringify!($cell));
                let rows = hidden.saturating_mul($gates);
                Ok(Self {
                    weight_ih: uniform(mesh, [rows, inputs], hidden)?,
                    weight_hh: uniform(mesh, [rows, hidden], hidden)?,
                    bias_ih: Some(uniform(mesh, rows, hidden)?),
                    bias_hh: Some(uniform(mesh, rows, hidden)?),
                    $($more: None,)?
                })
            }

            fn without_bias(self) -> Self {
                Self { bias_ih: None, bias_hh: None, ..self }
            }

            #[track_caller]
            fn gates(&self, x: &ShardTensor) -> Result<ShardTensor> {
                x.linear(&self.weight_ih, self.bias_ih.as_ref())
            }

            #[track_caller]
            fn step(&self, gates: &ShardTensor, state: Option<&$state>) -> Result<$state> {
                self.advance(gates, state)
            }

            fn output(state: &$state) -> &ShardTensor {
                let output: fn(&$state) -> &ShardTensor = $output;
                output(state)
            }

            #[track_caller]
            fn held(
                valid: &ShardTensor,
                next: &$state,
                before: Option<&$state>,
            ) -> Result<$state> {
                let held: Held<$state> = $held;
                held(valid, next, before)
            }
        }
    )*};
}

cells! {
    /// A step of plain recurrent units, `tanh` of what input and state give, with PyTorch's names.
    RnnCell: 1, ShardTensor, |h| h, hold;
    /// A step of gated recurrent units, with PyTorch's names and order of gates: reset, update, new.
    GruCell: 3, ShardTensor, |h| h, hold;
    /// A step of long short-term memory, with PyTorch's names and order of gates: input, forget, cell, output. Its state is what it puts
    /// out and what it remembers.
    LstmCell with
        /// `[outputs, hidden]`: what projects the output, if it is [projected](Recurrent::projected).
        weight_hr:
        4, (ShardTensor, ShardTensor), |state| &state.0, |valid, (h, c), before| {
        let h = hold(valid, h, before.map(|before| &before.0))?;
        Ok((h, hold(valid, c, before.map(|before| &before.1))?))
    };
}

/// How a mask chooses between two states.
type Held<S> = fn(&ShardTensor, &S, Option<&S>) -> Result<S>;

#[track_caller]
fn hold(
    valid: &ShardTensor,
    next: &ShardTensor,
    before: Option<&ShardTensor>,
) -> Result<ShardTensor> {
    match before {
        Some(before) => valid.where_(next, before),
        None => valid.where_(next, 0.0),
    }
}

impl RnnCell {
    #[track_caller]
    fn advance(&self, of_input: &ShardTensor, h: Option<&ShardTensor>) -> Result<ShardTensor> {
        let hidden = hidden_of("RnnCell", of_input, &self.weight_hh, 1)?;
        let h = h.map_or_else(|| none(of_input, hidden), |h| Ok(h.clone()))?;
        of_input
            .add(&h.linear(&self.weight_hh, self.bias_hh.as_ref())?)?
            .tanh()
    }
}

impl GruCell {
    #[track_caller]
    fn advance(&self, of_input: &ShardTensor, h: Option<&ShardTensor>) -> Result<ShardTensor> {
        let hidden = hidden_of("GruCell", of_input, &self.weight_hh, 3)?;
        let h = h.map_or_else(|| none(of_input, hidden), |h| Ok(h.clone()))?;
        let of_state = h.linear(&self.weight_hh, self.bias_hh.as_ref())?;
        let gates = [of_input, &of_state].map(|x| apart(x, 3));
        let gates = gates.into_iter().collect::<Result<Vec<_>>>()?;
        let (of_input, of_state, state) = (gates[0].value(), gates[1].value(), h.value());
        let tape = h.context().tape();
        Ok(h.lift(ops::gru(tape, [&of_input, &of_state], &state)?))
    }
}

impl LstmCell {
    #[track_caller]
    fn advance(
        &self,
        of_input: &ShardTensor,
        state: Option<&(ShardTensor, ShardTensor)>,
    ) -> Result<(ShardTensor, ShardTensor)> {
        let hidden = hidden_of("LstmCell", of_input, &self.weight_hh, 4)?;
        let (h, c) = match state {
            Some(state) => state.clone(),
            None => {
                let outputs = (self.weight_hr.as_ref()).map_or(hidden, |weight| weight.shape()[0]);
                (none(of_input, outputs)?, none(of_input, hidden)?)
            }
        };
        let of_state = h.linear(&self.weight_hh, self.bias_hh.as_ref())?;
        let gates = [apart(of_input, 4)?.value(), apart(&of_state, 4)?.value()];
        let found = ops::lstm(c.context().tape(), [&gates[0], &gates[1]], &c.value())?;
        let [h, c] = found.map(|value| c.lift(value));
        Ok(match &self.weight_hr {
            Some(weight) => (h.linear(weight, None)?, c),
            None => (h, c),
        })
    }
}

/// Gates along a dim of their own, `[batch, gates, hidden]`.
#[track_caller]
fn apart(gates: &ShardTensor, count: usize) -> Result<ShardTensor> {
    let features = gates.shape().last().map_or(0, |features| features / count);
    gates.unflatten(-1, [count, features])
}

/// How many hidden features a cell has, of which these are what its gates got of an input.
#[track_caller]
fn hidden_of(
    cell: &'static str,
    of_input: &ShardTensor,
    weight: &ShardTensor,
    gates: usize,
) -> Result<usize> {
    let (features, rows) = (of_input.shape().last(), weight.shape()[0]);
    match features {
        Some(&features) if features == rows => Ok(rows / gates),
        _ => Err(Error::argument(
            cell,
            format!(
                "{rows} features, {} for each of {gates} gates",
                rows / gates
            ),
            format!("shape {:?}", of_input.shape()),
            "give what `gates` makes of an input",
        )),
    }
}

/// Zeros of so many features, which lie as what they meet, so that gradients do not move either.
#[track_caller]
fn none(of_input: &ShardTensor, features: usize) -> Result<ShardTensor> {
    of_input.narrow(-1, 0..features)?.zeros_like()
}

/// A recurrent layer over sequences `[batch, time, features]`, or several on top of each other, one way or both: [`Rnn`], [`Gru`] and [`Lstm`].
///
/// Names are PyTorch's, so that its weights [load](super::load_state_with): `weight_ih_l0`, `weight_hh_l0_reverse`, ..; the batch comes
/// first, as with `batch_first=True`. The products with the inputs of all steps are one. Where weights are copies, the sum over ranks of their
/// gradients is taken once; where they are [fully sharded](super::ModelExt::fully_sharded), a layer's are gathered once for all its steps, forward and
/// backward.
///
/// ```
/// use shard_tensor::nn::{Lstm, Module};
/// use shard_tensor::{launch, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let lstm = Lstm::new(&mesh, 3, 4, 2)?;
///     let x = mesh.randn([5, 7, 3], shard(0))?;
///     let before = ctx.ledger().snapshot();
///     // Truncated backpropagation: what was remembered goes on, its history does not.
///     let (_, state) = lstm.forward_from(&x.narrow(1, 0..4)?, None)?;
///     let state: Vec<_> = state.iter().map(|(h, c)| (h.detach(), c.detach())).collect();
///     let (y, _) = lstm.forward_from(&x.narrow(1, 4..7)?, Some(&state))?;
///     assert_eq!(y.shape(), [5, 3, 4]);
///     assert_eq!(ctx.ledger().since(&before).bytes, 0);
///     let whole = lstm.forward(&x)?.narrow(1, 4..7)?;
///     assert!(whole.allclose(&y, 1e-5, 1e-6, false)?);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Recurrent<C> {
    /// By layers, and within a layer by directions.
    cells: Vec<C>,
    directions: usize,
    /// The probability with which what goes from a layer to the next is dropped.
    dropout: f64,
    training: Training,
}

/// Layers of plain recurrent units: `torch.nn.RNN`, of which `tanh` is the map.
pub type Rnn = Recurrent<RnnCell>;

/// Layers of gated recurrent units: `torch.nn.GRU`.
pub type Gru = Recurrent<GruCell>;

/// Layers of long short-term memory: `torch.nn.LSTM`.
pub type Lstm = Recurrent<LstmCell>;

impl<C: RecurrentCell> Recurrent<C> {
    /// So many layers, which go forwards.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for no layers, and for more than memory holds; if the sizes are too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, inputs: usize, hidden: usize, layers: usize) -> Result<Self> {
        Self::with_directions(mesh, [inputs, hidden, layers], 1)
    }

    /// So many layers, each of which goes forwards and backwards: a result has the features of both, those of the way forwards first.
    ///
    /// # Collective
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn bidirectional(mesh: &Mesh, inputs: usize, hidden: usize, layers: usize) -> Result<Self> {
        Self::with_directions(mesh, [inputs, hidden, layers], 2)
    }

    #[track_caller]
    fn with_directions(
        mesh: &Mesh,
        [inputs, hidden, layers]: [usize; 3],
        directions: usize,
    ) -> Result<Self> {
        let _call = Calling::of(C::LAYERS);
        if layers == 0 {
            return Err(Error::argument(
                C::LAYERS,
                "at least one layer",
                "none",
                "give a number of layers from 1 on",
            ));
        }
        let inputs = |layer| match layer {
            0 => inputs,
            _ => hidden.saturating_mul(directions),
        };
        let count = layers.saturating_mul(directions);
        let cell = |i| C::new(mesh, inputs(i / directions), hidden);
        Ok(Self {
            cells: layers_of(C::LAYERS, count, cell)?,
            directions,
            dropout: 0.0,
            training: Training::default(),
        })
    }

    /// The layers without biases.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self {
            cells: self.cells.into_iter().map(C::without_bias).collect(),
            ..self
        }
    }

    /// While it [trains](super::ModelExt::train), drops what goes from a layer to the next with this probability, as PyTorch's `dropout`.
    #[must_use]
    pub fn dropout(self, p: f64) -> Self {
        Self { dropout: p, ..self }
    }

    /// The outputs of all steps, `[batch, time, directions * hidden]`, and the last states, by layers and within a layer by directions. It
    /// begins with such states, or with zeros.
    ///
    /// # Collective
    /// All members of the input's mesh. Nothing moves where the batch is sharded. Steps follow each other: of a sequence that is divided
    /// along time each step moves by itself.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for an input that is not `[batch, time, features]` or has no steps, and for another number of
    /// states; what its ops report.
    #[track_caller]
    pub fn forward_from(
        &self,
        x: &ShardTensor,
        states: Option<&[C::State]>,
    ) -> Result<(ShardTensor, Vec<C::State>)> {
        self.through(x, None, states)
    }

    /// As [`forward_from`](Self::forward_from), of sequences of different lengths: where `mask`, `[batch, time]`, is false, a step leaves a
    /// sample's state as it is, and puts out zeros. So the last states are those of each sample's last step, and the way backwards begins
    /// there: what PyTorch has packed sequences for.
    ///
    /// ```
    /// use shard_tensor::nn::Gru;
    /// use shard_tensor::{DType, launch, ndarray::array, replicate, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let gru = Gru::bidirectional(&mesh, 3, 4, 2)?.dropout(0.1);
    ///     let x = mesh.randn([4, 7, 3], shard(0))?;
    ///     let lengths = mesh.distribute(&array![7_i64, 2, 5, 3], shard(0))?;
    ///     let time = mesh.with_dtype(DType::I64).arange(7, replicate())?;
    ///     let (y, _) = gru.forward_masked(&x, &lengths.unsqueeze(1)?.gt(&time)?, None)?;
    ///     assert_eq!(y.select(0, 1)?.narrow(0, 2..7)?.abs()?.sum_all()?.item()?, 0.0);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`forward_from`](Self::forward_from). Nothing moves where the mask's batch is sharded as the input's.
    ///
    /// # Errors
    /// As [`forward_from`](Self::forward_from); [`Argument`](Error::Argument) for a mask that is not `bool`, or of another shape.
    #[track_caller]
    pub fn forward_masked(
        &self,
        x: &ShardTensor,
        mask: &ShardTensor,
        states: Option<&[C::State]>,
    ) -> Result<(ShardTensor, Vec<C::State>)> {
        let _call = Calling::of(C::LAYERS);
        if x.ndim() != 3 || x.shape()[1] == 0 {
            return Err(not_a_sequence(C::LAYERS, x));
        }
        if mask.dtype() != DType::Bool || mask.shape() != &x.shape()[..2] {
            return Err(Error::argument(
                C::LAYERS,
                format!("a mask, bool {:?}", &x.shape()[..2]),
                format!("{} {:?}", mask.dtype(), mask.shape()),
                "say of every step of every sample whether it is one",
            ));
        }
        self.through(x, Some(&mask.unsqueeze(2)?.unbind(1)?), states)
    }

    /// Through all layers; steps count where masks say so, one for each step.
    #[track_caller]
    fn through(
        &self,
        x: &ShardTensor,
        masks: Option<&[ShardTensor]>,
        states: Option<&[C::State]>,
    ) -> Result<(ShardTensor, Vec<C::State>)> {
        let _call = Calling::of(C::LAYERS);
        if x.ndim() != 3 || x.shape()[1] == 0 {
            return Err(not_a_sequence(C::LAYERS, x));
        }
        if let Some(states) = states.filter(|states| states.len() != self.cells.len()) {
            return Err(Error::argument(
                C::LAYERS,
                format!("{} states", self.cells.len()),
                states.len().to_string(),
                "give one for each layer and direction, as they come out",
            ));
        }
        let (mut x, mut last) = (x.clone(), Vec::new());
        let drops = self.training.is_on() && self.dropout != 0.0;
        for (layer, cells) in self.cells.chunks(self.directions).enumerate() {
            if layer > 0 && drops {
                x = x.dropout(self.dropout)?;
            }
            let mut outputs = Vec::new();
            for (direction, cell) in cells.iter().enumerate() {
                let first = states.map(|states| &states[layer * self.directions + direction]);
                let (y, state) = along(cell, &x, masks, first, direction == 1)?;
                outputs.push(y);
                last.push(state);
            }
            x = match &outputs[..] {
                [only] => only.clone(),
                both => ShardTensor::cat(both, -1)?,
            };
        }
        Ok((x, last))
    }
}

fn not_a_sequence(layers: &'static str, x: &ShardTensor) -> Error {
    Error::argument(
        layers,
        "an input of [batch, time, features] with a step at least",
        format!("shape {:?}", x.shape()),
        "add the missing dims with `unsqueeze`, and bring the batch to the front: `movedim(1, 0)`",
    )
}

/// One layer in one direction: the outputs of all steps, and the last state.
#[track_caller]
fn along<C: RecurrentCell>(
    cell: &C,
    x: &ShardTensor,
    masks: Option<&[ShardTensor]>,
    first: Option<&C::State>,
    backwards: bool,
) -> Result<(ShardTensor, C::State)> {
    let cell = in_use(cell)?;
    let steps = cell.gates(x)?.unbind(1)?;
    let mut order: Vec<usize> = (0..steps.len()).collect();
    if backwards {
        order.reverse();
    }
    let mut state: Option<C::State> = None;
    let mut outputs = Vec::with_capacity(steps.len());
    for at in order {
        let before = state.as_ref().or(first);
        let mut next = cell.step(&steps[at], before)?;
        let mut output = C::output(&next).clone();
        if let Some(masks) = masks {
            output = masks[at].where_(&output, 0.0)?;
            next = C::held(&masks[at], &next, before)?;
        }
        outputs.push(output);
        state = Some(next);
    }
    if backwards {
        outputs.reverse();
    }
    let last = state.ok_or_else(|| not_a_sequence(C::LAYERS, x))?;
    Ok((ShardTensor::stack(&outputs, 1)?, last))
}

/// A cell whose parameters all steps use as they were brought to their use once.
#[track_caller]
fn in_use<C: RecurrentCell>(cell: &C) -> Result<C> {
    let mut cell = cell.clone();
    for (_, leaf) in cell.leaves_mut() {
        if let LeafMut::Tensor(parameter) = leaf {
            *parameter = parameter.in_use()?;
        }
    }
    Ok(cell)
}

impl Recurrent<LstmCell> {
    /// The layers with outputs of fewer features than what they remember, by a projection: PyTorch's `proj_size`. Draws the weights of what
    /// outputs go to anew, which are narrower, and projections.
    ///
    /// ```
    /// use shard_tensor::nn::{Lstm, Module};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let lstm = Lstm::new(&mesh, 3, 8, 2)?.projected(4)?;
    ///     let (y, states) = lstm.forward_from(&mesh.randn([5, 7, 3], shard(0))?, None)?;
    ///     assert_eq!(y.shape(), [5, 7, 4]);
    ///     assert_eq!((states[1].0.shape(), states[1].1.shape()), (&[5, 4][..], &[5, 8][..]));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for no outputs, and not fewer than what is remembered.
    #[track_caller]
    pub fn projected(mut self, outputs: usize) -> Result<Self> {
        let _call = Calling::of(LstmCell::LAYERS);
        let directions = self.directions;
        for (i, cell) in self.cells.iter_mut().enumerate() {
            let (mesh, rows) = (cell.weight_hh.mesh(), cell.weight_hh.shape()[0]);
            let hidden = rows / 4;
            if outputs == 0 || outputs >= hidden {
                return Err(Error::argument(
                    LstmCell::LAYERS,
                    format!("from 1 to {} outputs", hidden.saturating_sub(1)),
                    outputs.to_string(),
                    "project to fewer features than are remembered",
                ));
            }
            if i >= directions {
                cell.weight_ih = uniform(&mesh, [rows, directions * outputs], hidden)?;
            }
            cell.weight_hh = uniform(&mesh, [rows, outputs], hidden)?;
            cell.weight_hr = Some(uniform(&mesh, [outputs, hidden], hidden)?);
        }
        Ok(self)
    }
}

impl<C: RecurrentCell> Recurrent<C> {
    /// What PyTorch puts behind the names of a cell's weights.
    fn suffix(&self, cell: usize) -> String {
        let way = ["", "_reverse"][cell % self.directions];
        format!("_l{}{way}", cell / self.directions)
    }
}

impl<C: RecurrentCell> Tree for Recurrent<C> {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        (self.cells.iter().enumerate())
            .flat_map(|(i, cell)| {
                let (suffix, leaves) = (self.suffix(i), cell.leaves().into_iter());
                leaves.map(move |(name, leaf)| (name + &suffix, leaf))
            })
            .chain(under("training", self.training.leaves()))
            .collect()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        let suffixes: Vec<_> = (0..self.cells.len()).map(|i| self.suffix(i)).collect();
        (self.cells.iter_mut().zip(suffixes))
            .flat_map(|(cell, suffix)| {
                let leaves = cell.leaves_mut().into_iter();
                leaves.map(move |(name, leaf)| (name + &suffix, leaf))
            })
            .chain(under("training", self.training.leaves_mut()))
            .collect()
    }
}

impl<C: RecurrentCell> Module for Recurrent<C> {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        Ok(self.forward_from(x, None)?.0)
    }
}
