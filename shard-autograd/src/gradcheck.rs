//! Checking derivatives against finite differences.

use crate::{AutogradError, GradMismatch, Recorder, Result};
use shard_comm::{DType, Element, History};
use shard_ops::Value;
use shard_redistribute::Array;
use shard_spec::{DimPart, Layout, ReduceOp, numel};

/// The settings of [`gradcheck`] and [`gradgradcheck`].
///
/// ```
/// use shard_autograd::GradCheck;
/// let thorough = GradCheck { samples: usize::MAX, ..GradCheck::default() };
/// assert_eq!(thorough.eps, 1e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradCheck {
    /// Step of the central differences.
    pub eps: f64,
    /// The difference that is allowed whatever the magnitude.
    pub atol: f64,
    /// The difference that is allowed relative to the finite difference.
    pub rtol: f64,
    /// At most this many elements of each input are perturbed, spread evenly over its global indices.
    pub samples: usize,
}

impl Default for GradCheck {
    /// `eps` 1e-6, `atol` 1e-6, `rtol` 1e-5, 24 samples.
    fn default() -> Self {
        Self {
            eps: 1e-6,
            atol: 1e-6,
            rtol: 1e-5,
            samples: 24,
        }
    }
}

/// The report of a check that found no fault.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GradReport {
    /// Elements compared; 0 on a rank outside the mesh, which cannot know.
    pub compared: usize,
    /// Greatest difference between the tape and finite differences.
    pub max_error: f64,
}

/// A function whose derivative can be checked.
pub type Checked<'a> = &'a dyn Fn(&Recorder, &[Value]) -> Result<Vec<Value>>;

/// Compares the gradients of `f` with central finite differences.
///
/// The outputs are weighted by fixed numbers that look random and depend on their global index only, and summed. The gradients
/// of that sum with respect to every input are compared with the sum's differences when single elements are perturbed. An
/// element is perturbed on all ranks that hold copies of it, but in only one term of a partial sum. This works for inputs of
/// any layout, and the same elements are perturbed under all layouts. Inputs that are not floating-point are passed to `f` as
/// they are; the others must be [`DType::F64`], since differences in lower precision show nothing.
///
/// # Collective
/// All ranks of the program.
///
/// # Errors
/// [`GradMismatch`](AutogradError::GradMismatch) with the worst element, on all ranks of the mesh;
/// [`NotDifferentiable`](AutogradError::NotDifferentiable) and [`Perturb`](AutogradError::Perturb) for inputs
/// that cannot be checked; what `f` reports.
pub fn gradcheck(
    recorder: &Recorder,
    f: Checked<'_>,
    inputs: &[Value],
    how: GradCheck,
) -> Result<GradReport> {
    check("gradcheck", recorder, f, inputs, how)
}

/// Compares the second derivatives of `f` with central finite differences of its gradients.
///
/// # Collective
/// All ranks of the program.
///
/// # Errors
/// As [`gradcheck`].
pub fn gradgradcheck(
    recorder: &Recorder,
    f: Checked<'_>,
    inputs: &[Value],
    how: GradCheck,
) -> Result<GradReport> {
    // The gradients of `f` as a function of the inputs and of the cotangents, which is differentiated by both.
    let outputs = recorder.no_grad(|| f(recorder, inputs))?;
    let outputs: Vec<Value> = outputs
        .into_iter()
        .filter(|v| v.dtype().is_float())
        .collect();
    let seeds = outputs
        .iter()
        .enumerate()
        .map(|(i, v)| weights(i, v))
        .collect::<Result<Vec<_>>>()?;
    let n = inputs.len();
    let gradients = |recorder: &Recorder, all: &[Value]| {
        let (inputs, seeds) = all.split_at(n);
        // Finite differences call this with values that no tape knows, so it puts them on the tape.
        let tracked = (inputs.iter())
            .map(|v| match recorder.is_tracked(v) || !v.dtype().is_float() {
                true => Ok(v.clone()),
                false => recorder.leaf(v.array().clone()),
            })
            .collect::<Result<Vec<_>>>()?;
        let outputs = recorder.enable_grad(|| f(recorder, &tracked))?;
        let outputs: Vec<&Value> = outputs.iter().filter(|v| v.dtype().is_float()).collect();
        let (outputs, seeds): (Vec<&Value>, Vec<Option<&Value>>) = outputs
            .into_iter()
            .zip(seeds)
            .filter(|(v, _)| recorder.is_tracked(v))
            .map(|(v, s)| (v, Some(s)))
            .unzip();
        let wanted: Vec<&Value> = tracked.iter().filter(|v| recorder.is_tracked(v)).collect();
        let found = recorder.grad(&outputs, &wanted, &seeds, true)?;
        Ok(found.into_iter().flatten().collect())
    };
    let all: Vec<Value> = inputs.iter().cloned().chain(seeds).collect();
    check("gradgradcheck", recorder, &gradients, &all, how)
}

fn check(
    op: &'static str,
    recorder: &Recorder,
    f: Checked<'_>,
    inputs: &[Value],
    how: GradCheck,
) -> Result<GradReport> {
    for (input, value) in inputs.iter().enumerate() {
        can_perturb(op, input, value)?;
    }
    let analytic = analytic(recorder, f, inputs)?;
    let mut report = GradReport::default();
    let mut worst: Option<(f64, GradMismatch)> = None;
    let mut point: Vec<Value> = inputs.iter().map(Value::detach).collect();
    for (input, value) in inputs.iter().enumerate() {
        let Some(gradient) = &analytic[input] else {
            continue;
        };
        for at in samples(numel(value.shape()), how.samples) {
            let index = unravel(at, value.shape());
            let mut sides = [None; 2];
            for (side, step) in sides.iter_mut().zip([how.eps, -how.eps]) {
                point[input] = perturbed(value, &index, step)?;
                *side = recorder.no_grad(|| weighted_sum(recorder, &f(recorder, &point)?))?;
            }
            point[input] = value.detach();
            let (Some(analytic), [Some(up), Some(down)]) = (gradient.get(at), sides) else {
                continue;
            };
            let (analytic, numeric) = (*analytic, (up - down) / (2.0 * how.eps));
            let bound = how.atol + how.rtol * numeric.abs();
            let error = (analytic - numeric).abs();
            report.compared += 1;
            report.max_error = report.max_error.max(error);
            // A difference that is NaN is never within bounds.
            let excess = if error.is_nan() {
                f64::INFINITY
            } else {
                error / bound
            };
            if excess > 1.0 && worst.as_ref().is_none_or(|(w, _)| excess > *w) {
                worst = Some((
                    excess,
                    GradMismatch {
                        op,
                        input,
                        index,
                        analytic,
                        numeric,
                        bound,
                    },
                ));
            }
        }
    }
    match worst {
        Some((_, mismatch)) => Err(AutogradError::GradMismatch(Box::new(mismatch))),
        None => Ok(report),
    }
}

/// The whole gradient of the weighted sum for every differentiable input: zeros where the tape has no gradient, `None` off the
/// mesh.
fn analytic(
    recorder: &Recorder,
    f: Checked<'_>,
    inputs: &[Value],
) -> Result<Vec<Option<Vec<f64>>>> {
    let leaves = (inputs.iter())
        .map(|v| {
            if v.dtype().is_float() {
                recorder.leaf(v.array().clone())
            } else {
                Ok(v.detach())
            }
        })
        .collect::<Result<Vec<_>>>()?;
    let outputs = recorder.enable_grad(|| f(recorder, &leaves))?;
    let mut seeds = Vec::new();
    for (i, output) in outputs.iter().filter(|v| v.dtype().is_float()).enumerate() {
        seeds.push((output, weights(i, output)?));
    }
    seeds.retain(|(output, _)| recorder.is_tracked(output));
    let (outputs, cotangents): (Vec<&Value>, Vec<Option<&Value>>) =
        seeds.iter().map(|(o, s)| (*o, Some(s))).unzip();
    let wanted: Vec<&Value> = leaves.iter().filter(|v| recorder.is_tracked(v)).collect();
    let mut found = recorder
        .grad(&outputs, &wanted, &cotangents, false)?
        .into_iter();
    let mut whole = Vec::new();
    for leaf in &leaves {
        whole.push(match recorder.is_tracked(leaf) {
            false => None,
            true => match found.next().flatten() {
                None => Some(vec![0.0; numel(leaf.shape())]),
                Some(gradient) => everywhere(recorder, &gradient)?.or_else(|| Some(Vec::new())),
            },
        });
    }
    Ok(whole)
}

/// `sum_i <weights_i, outputs_i>`, the same bits on every rank; `None` off the mesh.
fn weighted_sum(recorder: &Recorder, outputs: &[Value]) -> Result<Option<f64>> {
    let mut sum = 0.0;
    let mut member = true;
    for (i, output) in outputs.iter().filter(|v| v.dtype().is_float()).enumerate() {
        match everywhere(recorder, output)? {
            Some(all) => {
                let terms = all.iter().enumerate().map(|(at, v)| v * weight(i, at));
                sum += terms.sum::<f64>();
            }
            None => member = false,
        }
    }
    Ok(member.then_some(sum))
}

/// All elements of a value, `None` off the mesh.
fn everywhere(recorder: &Recorder, value: &Value) -> Result<Option<Vec<f64>>> {
    if value.dtype() != DType::F64 {
        return Err(not_f64("gradcheck", value.dtype()));
    }
    let whole = Layout::replicated(value.layout().mesh(), value.shape());
    let all = recorder.inner().redistribute(&value.detach(), &whole)?;
    if all.array().buffer().is_none() {
        return Ok(None);
    }
    Ok(Some(all.array().to_vec::<f64>()?))
}

/// The weights of an output, as a cotangent in the layout of the gradient law.
fn weights(output: usize, like: &Value) -> Result<Value> {
    let shape = like.shape().to_vec();
    let layout = crate::gradient_layout(like.layout());
    let array = Array::from_fn::<f64>(like.array().cx(), &layout, |index| {
        weight(output, ravel(index, &shape))
    })?;
    Ok(Value::new(array))
}

/// A fixed number in ±[0.5, 1.5) that looks random: splitmix64 of the output and the index.
fn weight(output: usize, at: usize) -> f64 {
    let mut z = ((output as u64) << 40 ^ at as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    let magnitude = 0.5 + (z >> 11) as f64 / (1_u64 << 53) as f64;
    if z & 1 == 0 { magnitude } else { -magnitude }
}

/// The value with `step` added to its element at a global index.
fn perturbed(value: &Value, index: &[usize], step: f64) -> Result<Value> {
    let array = value.array();
    let layout = array.layout();
    let held = layout
        .local_parts(array.cx().rank())
        .and_then(|held| local_index(&held, index));
    // In a partial sum one term takes the step. In other reductions every term does, so the result does too.
    let takes = layout.partial_op() != Some(ReduceOp::Sum)
        || array
            .cx()
            .coords()
            .is_some_and(|c| layout.partial_axes().iter().all(|&a| c[a] == 0));
    // It is another value on every rank, those that hold nothing of the element too.
    let number = History::derived(array.number(), step.to_bits());
    let (Some(at), true) = (held, takes) else {
        return Ok(Value::new(array.clone().with_number(number)));
    };
    let mut data = array.to_vec::<f64>()?;
    data[at] += step;
    let buffer = array.cx().device().upload_slice(&data)?;
    let array = Array::from_parts(array.cx(), layout, Some(buffer), f64::DTYPE)?;
    Ok(Value::new(array.with_number(number)))
}

fn can_perturb(op: &'static str, input: usize, value: &Value) -> Result<()> {
    if !value.dtype().is_float() {
        return Ok(());
    }
    if value.dtype() != DType::F64 {
        return Err(not_f64(op, value.dtype()));
    }
    match value.layout().partial_op() {
        None | Some(ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min) => Ok(()),
        Some(_) => Err(AutogradError::Perturb {
            op,
            input,
            layout: value.layout().to_string(),
            fix: "redistribute it to a layout without this partial placement",
        }),
    }
}

fn not_f64(op: &'static str, dtype: DType) -> AutogradError {
    AutogradError::NotDifferentiable {
        op,
        expected: "f64",
        dtype,
    }
}

/// At most `most` positions spread over `0..len`, the first and the last among them.
fn samples(len: usize, most: usize) -> Vec<usize> {
    if len <= most {
        return (0..len).collect();
    }
    match most {
        0 => Vec::new(),
        1 => vec![0],
        _ => (0..most)
            .map(|i| (i as u128 * (len - 1) as u128 / (most - 1) as u128) as usize)
            .collect(),
    }
}

fn unravel(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, &n) in index.iter_mut().zip(shape).rev() {
        *i = at % n;
        at /= n;
    }
    index
}

fn ravel(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |at, (&i, &n)| at * n + i)
}

/// The place of a global index in the row-major piece that holds these parts.
fn local_index(held: &[DimPart], index: &[usize]) -> Option<usize> {
    let local = held.iter().zip(index).map(|(part, &i)| part.position(i));
    let local: Vec<usize> = local.collect::<Option<_>>()?;
    let shape: Vec<usize> = held.iter().map(DimPart::len).collect();
    Some(ravel(&local, &shape))
}
