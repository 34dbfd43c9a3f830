//! The gradient of attention by whole matrices of queries by keys: larger and slower than the op that finds it block by block, and made of
//! ops that have derivatives themselves.

use super::options::Attention;
use super::rule::{Extents, Masks};
use super::weights::{of_each_head, probabilities};
use crate::families::broadcast::{sum, sum_to};
use crate::families::elementwise::{eq, logical_and, mul, mul_scalar, sub};
use crate::families::full::each_of_all_rounded_once;
use crate::families::matmul::matmul;
use crate::families::random::{Distribution, random};
use crate::families::shape::{reshape, transpose};
use crate::{Exec, Grads, Meta, Result, Saved, Value};

/// What the operands of attention get, for a cotangent of its result.
///
/// With `p` the probabilities, `m` the factors of what is kept of them and `g` the cotangent, `dv = (m p)ᵀ g`, logits get
/// `p (dp - Σ p dp)` with `dp = m (g vᵀ)`, and queries and keys what a product gives its factors (Vaswani et al. 2017, section 3.2.1,
/// differentiated).
///
/// # Collective
/// All members of the mesh; as [`matmul`](fn@crate::matmul::matmul) and [`softmax`](fn@crate::softmax::softmax).
///
/// # Errors
/// What the communicator or the device reports.
pub(super) fn gradients(
    exec: &dyn Exec,
    options: &Attention,
    masks: Masks,
    saved: &Saved<'_>,
    dout: &Value,
) -> Result<Grads> {
    let inputs = saved.inputs;
    let mask = masks.mask.and(inputs.get(3));
    let added = mask.filter(|_| masks.is_added());
    let seen = seen(
        exec,
        mask.filter(|_| !masks.is_added()),
        segments(inputs, masks),
    )?;
    let metas: Vec<Meta> = inputs.iter().map(Meta::of).collect();
    let at = Extents::new(&metas[0], &metas[1], &metas[2], masks.of(&metas))?;
    let wants = |operand: usize| saved.needs.get(operand).is_some_and(|&wanted| wanted);

    let operands: Vec<&Value> = inputs[..3].iter().chain([dout]).chain(added).collect();
    let mut grads = each_of_all_rounded_once(exec, &operands, |operands| {
        let (q, dout, added) = (operands[0], operands[3], operands.get(4).copied());
        let [k, v] = [operands[1], operands[2]].map(|x| of_each_head(exec, x, at.group()));
        let (k, v) = (k?, v?);
        let p = probabilities(exec, [q, &k], added, seen.as_ref(), options)?;
        let kept = kept(&p, options)?;
        let of_kept = |x: Value| match &kept {
            Some(kept) => mul(exec, &x, kept),
            None => Ok(x),
        };
        let turned = |x: &Value| transpose(exec, x, 2, 3);
        // Of the heads that share them, keys and values get the sum.
        let shared = |x: Value| match at.group() {
            1 => Ok(x),
            group => {
                let [b, _, n, d] = [0, 1, 2, 3].map(|dim| x.shape()[dim]);
                let apart = reshape(exec, &x, &[b, at.heads / group, group, n, d])?;
                sum(exec, &apart, &[2], false)
            }
        };
        let mut grads = vec![None; operands.len() - 1];
        if wants(2) {
            grads[2] = Some(shared(matmul(exec, &turned(&of_kept(p.clone())?)?, dout)?)?);
        }
        if wants(0) || wants(1) || added.is_some() && wants(3) {
            let dp = of_kept(matmul(exec, dout, &turned(&v)?)?)?;
            let mean = sum(exec, &mul(exec, &dp, &p)?, &[3], true)?;
            let logits = mul(exec, &p, &sub(exec, &dp, &mean)?)?;
            let scaled = mul_scalar(exec, &logits, options.scale_of(at.dim))?;
            if wants(0) {
                grads[0] = Some(matmul(exec, &scaled, &k)?);
            }
            if wants(1) {
                grads[1] = Some(shared(matmul(exec, &turned(&scaled)?, q)?)?);
            }
            if let Some(added) = added.filter(|_| wants(3)) {
                grads[3] = Some(sum_to(exec, &logits, added.shape())?);
            }
        }
        Ok(grads)
    })?;
    grads.resize(inputs.len(), None);
    Ok(grads)
}

/// What probabilities are multiplied by of which some are dropped: the stream says which, wherever they lie.
fn kept(p: &Value, options: &Attention) -> Result<Option<Value>> {
    let Some((rate, stream)) = options.dropout else {
        return Ok(None);
    };
    let how = Distribution::Kept { rate };
    random(p.array().cx(), p.layout(), p.dtype(), &stream, how).map(|kept| Some(Value::new(kept)))
}

fn segments(inputs: &[Value], masks: Masks) -> Option<[&Value; 2]> {
    let first = masks.first_segments();
    (masks.segments).then(|| [&inputs[first], &inputs[first + 1]])
}

/// Which keys each query sees, by a mask and by segments; `None` if all.
fn seen(
    exec: &dyn Exec,
    mask: Option<&Value>,
    segments: Option<[&Value; 2]>,
) -> Result<Option<Value>> {
    let Some([of_queries, of_keys]) = segments else {
        return Ok(mask.cloned());
    };
    let [rows, columns] = [of_queries, of_keys].map(|of| [of.shape()[0], of.shape()[1]]);
    let of_queries = reshape(exec, of_queries, &[rows[0], 1, rows[1], 1])?;
    let of_keys = reshape(exec, of_keys, &[columns[0], 1, 1, columns[1]])?;
    let same = eq(exec, &of_queries, &of_keys)?;
    match mask {
        Some(mask) => logical_and(exec, mask, &same).map(Some),
        None => Ok(Some(same)),
    }
}
