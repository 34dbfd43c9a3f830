//! Reference cases in floats of 16 bits: their operands rounded to the type, and what double precision gives of them.

use crate::case::Case;
use crate::dispatch::Apply;
use crate::harness::{On, on_threads};
use crate::trial::{Trial, compute, recorder};
use shard_comm::DType;
use shard_ops::testing::{Data, Tensor, Tolerance, tensor};
use shard_spec::{DeviceMesh, Layout};

/// Cases whose gradients are differences of larger numbers that are rounded before, and the size of these: products of a result, which is
/// stored in 16 bits, and large keys; losses of single elements and their mean.
const DIFFERENCES: [(&str, f64); 2] =
    [("sdpa_large_logits", 16.0), ("stats_cross_entropy_39", 4.0)];

/// How close results in this type of 16 bits are to those of double precision: some roundings of the type.
pub fn tolerance(name: &str, float: DType) -> Tolerance {
    let digits = if float == DType::F16 { 11 } else { 8 };
    // Half the distance from 1 to the next number, the error of one rounding.
    let rounding = 2f64.powi(-digits);
    // Numbers below have fewer digits, or none.
    let least = match float {
        DType::F16 => shard_comm::half::f16::MIN_POSITIVE.to_f64() * rounding,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    let terms = DIFFERENCES.iter().find(|(known, _)| *known == name);
    Tolerance {
        relative: 8.0 * rounding,
        absolute: terms.map_or(least, |(_, size)| 8.0 * rounding * size),
    }
}

/// The case with operands and cotangents that the type can hold, and with the results and gradients that one rank has of these in double
/// precision.
///
/// # Errors
/// Why one rank has none.
pub fn case(case: Case, apply: Apply, float: DType) -> Result<Case, String> {
    let mut case = rounded(case, float);
    let mesh = DeviceMesh::new(&[1]).map_err(|e| e.to_string())?;
    let whole = |(_, t): &(String, Tensor)| Layout::replicated(&mesh, &t.shape);
    let trial = Trial::new(case.inputs.iter().map(whole).collect());
    let mut found = on_threads(&mesh, On::Host, |cx| {
        compute(cx, &recorder(), &case, apply, &trial).map_err(|e| e.to_string())
    });
    let found = (found.pop()).unwrap_or_else(|| Err("no rank".to_owned()));
    let found = found.map_err(|e| format!("{}: {e}", case.name))?;
    case.outputs = found.outputs;
    for ((_, gradient), found) in case.gradients.iter_mut().zip(found.gradients) {
        *gradient = found.unwrap_or_else(|| tensor(&gradient.shape, |_| 0.0));
    }
    Ok(case)
}

/// The case with operands and cotangents that the type can hold.
fn rounded(mut case: Case, float: DType) -> Case {
    let inputs = case.inputs.iter_mut().map(|(_, tensor)| tensor);
    let cotangents = case.cotangents.iter_mut().map(|(_, tensor)| tensor);
    for tensor in inputs.chain(cotangents) {
        let Data::F64(values) = &*tensor.data else {
            continue;
        };
        let round = |&x: &f64| match float {
            DType::F16 => shard_comm::half::f16::from_f64(x).to_f64(),
            _ => shard_comm::half::bf16::from_f64(x).to_f64(),
        };
        let values: Vec<f64> = values.iter().map(round).collect();
        *tensor = Tensor::new(tensor.shape.clone(), values);
    }
    case
}
