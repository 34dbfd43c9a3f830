//! Neighbourhood attention (NATTEN, Hassani et al. 2023): every query of a grid attends to the keys of a window around it.
//!
//! Spatial dims are windows that are shifted inwards at the ends of the grid, so a rank gets what it needs of its neighbours as a
//! halo. In the forward pass and for the gradient by the queries this is a halo of keys and values. For the gradient by keys and
//! values it is a halo of queries, their sums and cotangents, so that the gradient is summed where the keys are, in the single
//! device's order. Batch and heads are free. A gradient that is recorded, to be differentiated, is made of ops that have derivatives, and
//! stores the keys and values of every window.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod whole;

use crate::error::InOp;
use crate::families::elementwise::cast;
use crate::families::types::stored_types;
use crate::host::{partial_type, with_stored};
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, KernelCx, Meta, Op, OpError, OperandBox,
    Precision, Result, Rule, Saved, Value, key_of,
};
use shard_comm::Element;
use shard_kernels::attention::Stored;
use shard_kernels::neighborhood::{KeyGrads, Near, QueryGrads, forward, grad_keys, grad_queries};
use shard_spec::{Dims, Window};
use std::ops::Range;
use std::sync::Arc;

/// Which keys a query sees. Lists have one entry per spatial dim; one entry serves all dims.
///
/// ```
/// use shard_ops::neighborhood::Neighborhood;
/// // Three rows of time up to now, seven columns around.
/// let seen = Neighborhood::new([3, 7]).causal([true, false]).scale(0.125);
/// # let _ = seen;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Neighborhood {
    kernel: Vec<usize>,
    dilation: Vec<usize>,
    causal: Vec<bool>,
    scale: Option<f64>,
}

impl Neighborhood {
    /// Windows of this many keys. If the number is even, one more key lies before the query than after it.
    pub fn new(kernel: impl Into<Vec<usize>>) -> Self {
        Self {
            kernel: kernel.into(),
            dilation: vec![1],
            causal: vec![false],
            scale: None,
        }
    }

    /// The distance from one key of a window to the next, instead of 1: a query sees keys of its own index modulo the dilation.
    #[must_use]
    pub fn dilation(self, dilation: impl Into<Vec<usize>>) -> Self {
        Self {
            dilation: dilation.into(),
            ..self
        }
    }

    /// Whether a query sees only its own index and those before it. Then the window ends with the query, and near the front of
    /// the dim it has fewer keys.
    #[must_use]
    pub fn causal(self, causal: impl Into<Vec<bool>>) -> Self {
        Self {
            causal: causal.into(),
            ..self
        }
    }

    /// Multiplies the logits by this instead of `1 / sqrt(dim)`.
    #[must_use]
    pub fn scale(self, scale: f64) -> Self {
        Self {
            scale: Some(scale),
            ..self
        }
    }
}

/// Attention of queries `[batch, spatial..., heads, dim]` to the keys `[batch, spatial..., kv heads, dim]` in a window around
/// each, with values `[batch, spatial..., kv heads, value dim]`: the result is `[batch, spatial..., heads, value dim]`.
///
/// The semantics are those of NATTEN's `na1d`, `na2d` and `na3d`, in any number of spatial dims: each query sees exactly
/// `kernel` keys along each dim, [shifted inwards](Window::neighborhood) at the ends. The number of heads is a multiple of that
/// of kv heads; each kv head serves as many consecutive heads. For 16-bit floats, sums and probabilities are `f32`.
///
/// # Collective
/// All members of the mesh. Where spatial dims are sharded, moves the halo of keys and values, half a window wide away from the
/// ends of the grid. It stays with keys and values, so that the gradient by the queries moves nothing; that by the keys moves a halo
/// of queries and cotangents. The gradient of a gradient moves what [`index_select`](crate::indexing::index_select) of each window's keys and
/// values does, and holds them once for each query that sees them.
///
/// # Errors
/// Shapes, types or lists that do not fit each other; a `kernel` times its dilation above the extent of its dim, or 0; a scale that is not
/// finite.
///
/// ```
/// use shard_ops::neighborhood::{Neighborhood, neighborhood_attention};
/// # use shard_comm::Communicator;
/// # use shard_redistribute::{Array, MeshComm};
/// # use shard_ops::{Engine, EngineOptions, Value};
/// # use shard_spec::{DeviceMesh, Layout};
/// # use std::rc::Rc;
/// let means = shard_comm::local::run(3, |comm| {
///     let world: Rc<dyn Communicator> = Rc::new(comm);
///     let mesh = DeviceMesh::new(&[3]).unwrap();
///     let cx = MeshComm::new(&world, &mesh).unwrap();
///     let engine = Engine::new(EngineOptions::default());
///     // Six sites on a line, more of a window than some rank has.
///     let line = Layout::parse(&mesh, &[1, 6, 1, 1], "S(1)[4,1,1]").unwrap();
///     let sites = Value::new(Array::from_fn(&cx, &line, |i| i[1] as f64).unwrap());
///     // With a scale of 0 all keys count alike.
///     let near = Neighborhood::new([3]).scale(0.0);
///     let y = neighborhood_attention(&*engine, &sites, &sites, &sites, &near).unwrap();
///     assert_eq!(y.layout(), sites.layout());
///     y.array().to_vec::<f64>().unwrap()
/// })
/// .unwrap();
/// for (mean, expected) in means.concat().iter().zip([1.0, 1.0, 2.0, 3.0, 4.0, 4.0]) {
///     assert!((mean - expected).abs() < 1e-12);
/// }
/// ```
pub fn neighborhood_attention(
    exec: &dyn Exec,
    q: &Value,
    k: &Value,
    v: &Value,
    near: &Neighborhood,
) -> Result<Value> {
    let shapes = [q, k, v].map(Value::shape);
    if let Some(scale) = near.scale.filter(|scale| !scale.is_finite()) {
        let problem = format!("logits times {scale}");
        return Err(wrong(shapes, problem, "give a finite scale"));
    }
    let op = Forward {
        windows: windows(near, shapes)?,
        scale: near.scale,
    };
    let [out, _] = exec.apply_n(Arc::new(op), &[q, k, v])?;
    Ok(out)
}

const NAME: &str = "neighborhood_attention";

fn wrong(shapes: [&[usize]; 3], problem: String, fix: &'static str) -> OpError {
    OpError::Shape {
        op: NAME,
        problem,
        shapes: shapes.map(<[usize]>::to_vec).into(),
        fix,
    }
}

/// The windows of the spatial dims of the queries.
fn windows(near: &Neighborhood, shapes: [&[usize]; 3]) -> Result<Vec<Window>> {
    let [_, spatial @ .., _, _] = shapes[0] else {
        return Err(too_few_dims(shapes));
    };
    let lists = [near.kernel.len(), near.dilation.len(), near.causal.len()];
    if lists.iter().any(|&n| n != 1 && n != spatial.len()) {
        return Err(wrong(
            shapes,
            format!(
                "{lists:?} entries for kernel, dilation and causal of {} spatial dims",
                spatial.len()
            ),
            "give one entry, or one per spatial dim",
        ));
    }
    let of = |d: usize, n: usize| {
        let [kernel, dilation, causal] = lists.map(|count| d.min(count - 1));
        let (kernel, dilation) = (near.kernel[kernel], near.dilation[dilation]);
        Window::neighborhood(n, kernel, dilation, near.causal[causal]).in_op(NAME)
    };
    spatial.iter().enumerate().map(|(d, &n)| of(d, n)).collect()
}

fn too_few_dims(shapes: [&[usize]; 3]) -> OpError {
    let problem = "queries, keys and values have a batch, spatial dims, heads and dim".to_owned();
    let fix = "give [batch, spatial..., heads, dim], reshaping what has fewer dims";
    wrong(shapes, problem, fix)
}

/// The operands' extents, checked.
struct Extents {
    batch: usize,
    spatial: Dims,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    value_dim: usize,
}

impl Extents {
    /// The extents of queries, keys and values.
    fn new(inputs: &[Meta], windows: &[Window]) -> Result<Self> {
        let [q, k, v, ..] = inputs else {
            return Err(OpError::arity(
                NAME,
                "queries, keys and values",
                inputs.len(),
            ));
        };
        let shapes = [&q.shape[..], &k.shape[..], &v.shape[..]];
        let ndim = windows.len() + 3;
        if windows.is_empty() || shapes.iter().any(|s| s.len() != ndim) {
            return Err(too_few_dims(shapes));
        }
        let at = Self {
            batch: q.shape[0],
            spatial: q.shape[1..ndim - 2].into(),
            heads: q.shape[ndim - 2],
            kv_heads: k.shape[ndim - 2],
            dim: q.shape[ndim - 1],
            value_dim: v.shape[ndim - 1],
        };
        let sites = ndim - 2;
        let agree = k.shape[..sites] == q.shape[..sites]
            && v.shape[..ndim - 1] == k.shape[..ndim - 1]
            && k.shape[ndim - 1] == at.dim;
        if !agree {
            return Err(wrong(
                shapes,
                "queries, keys and values do not belong together".into(),
                "give keys of the queries' batch, sites and dim, and as many values as keys",
            ));
        }
        let grouped =
            at.heads == at.kv_heads || (at.kv_heads > 0 && at.heads.is_multiple_of(at.kv_heads));
        if !grouped {
            return Err(wrong(
                shapes,
                "the heads of the keys do not divide those of the queries".into(),
                "give heads that are a multiple of the key-value heads",
            ));
        }
        Ok(at)
    }

    /// Floating-point operations per batch entry, site and kv head, for these numbers of products with keys and with values.
    fn flops(&self, windows: &[Window], with_keys: usize, with_values: usize) -> f64 {
        let group = self.heads.checked_div(self.kv_heads).unwrap_or(1);
        let seen = |window: &Window| match window {
            Window::Neighborhood { kernel, .. } => *kernel as f64,
            _ => 1.0,
        };
        let keys: f64 = windows.iter().map(seen).product();
        2.0 * keys * (group * (with_keys * self.dim + with_values * self.value_dim)) as f64
    }

    /// `[batch, spatial..., heads]`, followed by `last` if given.
    fn queries(&self, last: Option<usize>) -> Dims {
        let lead = std::iter::once(self.batch).chain(self.spatial.iter().copied());
        lead.chain([self.heads]).chain(last).collect()
    }
}

/// How the operands of one direction are indexed.
struct Accesses {
    queries: Vec<Access>,
    keys: Vec<Access>,
    /// The sums per query and head.
    sums: Vec<Access>,
}

/// Adds the factors to a rule. The spatial ones are those of the queries or, for the gradients by the keys, those of the keys.
fn accesses(
    rule: &mut crate::RuleBuilder,
    at: &Extents,
    windows: &[Window],
    by_keys: bool,
) -> Accesses {
    let batch = Access::factor(rule.factor(at.batch));
    let sites: Vec<usize> = at.spatial.iter().map(|&n| rule.factor(n)).collect();
    let heads = rule.factor(at.kv_heads);
    let own = sites.iter().map(|&f| Access::factor(f));
    let own: Vec<Access> = std::iter::once(batch.clone()).chain(own).collect();
    let around = sites.iter().zip(windows).map(|(&factor, window)| {
        let window = window.clone();
        if by_keys {
            Access::Adjoint { factor, window }
        } else {
            Access::Window { factor, window }
        }
    });
    let around: Vec<Access> = std::iter::once(batch).chain(around).collect();
    let (mut sums, mut keys) = if by_keys {
        (around, own)
    } else {
        (own, around)
    };
    let rest = Access::Whole {
        instead: sites.first().copied(),
    };
    sums.push(Access::Factor {
        factor: heads,
        block: at.heads.checked_div(at.kv_heads).unwrap_or(1).max(1),
    });
    keys.extend([Access::factor(heads), rest.clone()]);
    let queries = sums.iter().cloned().chain([rest]).collect();
    Accesses {
        queries,
        keys,
        sums,
    }
}

/// The global indices of a box along the spatial dims.
pub(crate) fn sites(of: &OperandBox, count: usize) -> Vec<Range<usize>> {
    let dims = of.start.iter().zip(&of.shape).skip(1).take(count);
    dims.map(|(&start, &n)| start..start + n).collect()
}

/// The neighbours and the scale of a kernel call, whose first two operands are queries and keys.
fn problem(call: &HostCall<'_, '_>, windows: &[Window], scale: Option<f64>) -> (Near, f64) {
    let [queries, keys] = [0, 1].map(|i| sites(&call.cx.inputs[i], windows.len()));
    let near = Near::new(windows, &queries, &keys);
    (near, scale_of(call.cx, scale))
}

/// The factor of products of queries and keys in a kernel call.
pub(crate) fn scale_of(cx: &KernelCx, scale: Option<f64>) -> f64 {
    let dim = cx.inputs[0].global.last().copied().unwrap_or(0);
    scaled_for(dim, scale)
}

/// The factor of products of queries and keys of so many elements.
fn scaled_for(dim: usize, scale: Option<f64>) -> f64 {
    scale.unwrap_or_else(|| 1.0 / (dim.max(1) as f64).sqrt())
}

#[derive(Clone, Debug)]
pub(crate) struct Forward {
    pub(crate) windows: Vec<Window>,
    pub(crate) scale: Option<f64>,
}

impl Op for Forward {
    fn name(&self) -> &'static str {
        NAME
    }

    fn precision(&self) -> Precision {
        Precision::Sixteen
    }

    fn key(&self) -> u128 {
        key_of(NAME, &(&self.windows, self.scale.map(f64::to_bits)))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let at = Extents::new(inputs, &self.windows)?;
        let dtype = stored_types(NAME, inputs)?;
        let mut rule = Rule::builder(NAME, inputs).any_order();
        let a = accesses(&mut rule, &at, &self.windows, false);
        rule.input(a.queries.clone())
            .input(a.keys.clone())
            .input(a.keys)
            .output(a.queries, at.queries(Some(at.value_dim)), dtype)
            .output(a.sums, at.queries(None), partial_type(dtype))
            .keeps_halo(1)
            .keeps_halo(2)
            .flops(at.flops(&self.windows, 1, 1))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.dtype(), E => self.attend::<E>(call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::ALL
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let ([q, k, v], [out, lse], Some(dout)) = (saved.inputs, saved.outputs, &cotangents[0])
        else {
            return Ok(vec![None; saved.inputs.len()]);
        };
        if exec.records() {
            return whole::gradients(exec, self, saved, dout);
        }
        let op = |by_keys| {
            Arc::new(Backward {
                forward: self.clone(),
                by_keys,
            })
        };
        // Gradients come in the type of the sums, and are rounded once here.
        let rounded = |grad: &Value| cast(exec, grad, q.dtype()).map(Some);
        let [dq, delta] = &exec.apply_n(op(false), &[q, k, v, out, lse, dout])?;
        let (mut dk, mut dv) = (None, None);
        if saved.needs[1] || saved.needs[2] {
            let [by_key, by_value] = &exec.apply_n(op(true), &[q, k, v, lse, delta, dout])?;
            (dk, dv) = (rounded(by_key)?, rounded(by_value)?);
        }
        Ok(vec![rounded(dq)?, dk, dv])
    }
}

impl Forward {
    fn attend<E: Stored + Element>(&self, call: &mut HostCall<'_, '_>)
    where
        E::Acc: Element + Stored<Acc = E::Acc>,
    {
        let (near, scale) = problem(call, &self.windows, self.scale);
        let [q, k, v] = [0, 1, 2].map(|i| call.input::<E>(i));
        let (mut out, mut lse) = call.output_pair::<E, E::Acc>();
        forward(&near, scale, [&q, &k, &v], &mut out, &mut lse);
    }
}

/// The gradient by the queries (inputs: those of the op, its outputs, the cotangent; the second output is what the other gradient
/// needs), or by keys and values (inputs: those of the op, the sums, that second output, the cotangent).
#[derive(Clone, Debug)]
pub(crate) struct Backward {
    pub(crate) forward: Forward,
    pub(crate) by_keys: bool,
}

impl Op for Backward {
    fn name(&self) -> &'static str {
        if self.by_keys {
            "neighborhood_attention_grad_keys"
        } else {
            "neighborhood_attention_grad_queries"
        }
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.forward.key())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let windows = &self.forward.windows;
        let at = Extents::new(inputs, windows)?;
        let dtype = partial_type(stored_types(NAME, &inputs[..3])?);
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let a = accesses(&mut rule, &at, windows, self.by_keys);
        let rule = rule
            .input(a.queries.clone())
            .input(a.keys.clone())
            .input(a.keys.clone());
        if self.by_keys {
            rule.input(a.sums.clone())
                .input(a.sums)
                .input(a.queries)
                .output(a.keys.clone(), inputs[1].shape.clone(), dtype)
                .output(a.keys, inputs[2].shape.clone(), dtype)
        } else {
            rule.input(a.queries.clone())
                .input(a.sums.clone())
                .input(a.queries.clone())
                .output(a.queries, inputs[0].shape.clone(), dtype)
                .output(a.sums, at.queries(None), dtype)
                .keeps_halo(1)
                .keeps_halo(2)
        }
        .flops(at.flops(windows, 2, 1 + usize::from(self.by_keys)))
        .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.inputs[0].dtype(), E => self.differentiate::<E>(call));
    }
}

impl Backward {
    fn differentiate<E: Stored + Element>(&self, call: &mut HostCall<'_, '_>)
    where
        E::Acc: Element + Stored<Acc = E::Acc>,
    {
        let Forward { windows, scale } = &self.forward;
        let (near, scale) = problem(call, windows, *scale);
        let operands = [0, 1, 2].map(|i| call.input::<E>(i));
        let operands = operands.each_ref();
        let dout = call.input::<E>(5);
        if self.by_keys {
            let [lse, delta] = [3, 4].map(|i| call.input::<E::Acc>(i));
            let (dk, dv) = call.output_pair::<E::Acc, E::Acc>();
            let mut grads = KeyGrads { dk, dv };
            grad_keys(&near, scale, operands, &dout, [&lse, &delta], &mut grads);
        } else {
            let (out, lse) = (call.input::<E>(3), call.input::<E::Acc>(4));
            let (dq, delta) = call.output_pair::<E::Acc, E::Acc>();
            let mut grads = QueryGrads { dq, delta };
            grad_queries(&near, scale, operands, [&out, &dout], &lse, &mut grads);
        }
    }
}
