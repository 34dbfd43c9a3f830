//! What programs compute, and how nearly the same that is elsewhere.

use super::{Numbers, Program};
use serde::{Deserialize, Serialize};
use shard_tensor::{DType, Result, ShardTensor};

/// What a program computes: values and gradients in full, the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Computed {
    /// What each is, and the bits of its numbers: some may be infinite, which not every text can say.
    pub all: Vec<(String, Vec<u64>)>,
}

impl Computed {
    pub(crate) fn add(&mut self, what: &str, x: &ShardTensor) -> Result<()> {
        let x = x.detach().to(DType::F64)?;
        let numbers = x.to_array::<f64>()?.into_iter().map(f64::to_bits).collect();
        self.all.push((format!("{what} {:?}", x.shape()), numbers));
        Ok(())
    }

    /// What differs from the same elsewhere by more than a bound: of a name, and of the largest magnitude under it.
    pub fn differs(&self, other: &Self, bound: impl Fn(&str, f64) -> f64) -> Option<String> {
        let names =
            |of: &Self| -> Vec<String> { of.all.iter().map(|(name, _)| name.clone()).collect() };
        if names(self) != names(other) {
            return Some(format!("{:?} are not {:?}", names(self), names(other)));
        }
        let mut pairs = self.all.iter().zip(&other.all);
        pairs.find_map(|((name, found), (_, wanted))| {
            let wanted = wanted.iter().copied().map(f64::from_bits);
            let scale = wanted.clone().fold(1.0_f64, |most, v| most.max(v.abs()));
            let bound = bound(name, scale);
            let same =
                |a: f64, b: f64| (a - b).abs() <= bound || a.is_nan() && b.is_nan() || a == b;
            let found = found.iter().copied().map(f64::from_bits);
            let mut pairs = found.zip(wanted).enumerate();
            let (at, (a, b)) = pairs.find(|(_, (a, b))| !same(*a, *b))?;
            Some(format!("{name} at {at}: {a} is not {b}"))
        })
    }
}

impl Program {
    /// By how much numbers of up to `scale` may differ: bits, or, of smooth functions and of gradients, more than rounding. Numbers that are whole and not large are exact, also in 16 bits, where each op's
    /// results are rounded once, from sums that `f32` holds; of gradients ties have fractions.
    pub fn bound(&self, name: &str, scale: f64) -> f64 {
        let (exact, digits) = match self.float {
            DType::F64 => (1e9, 1e-9),
            DType::F32 => (1e5, 1e-4),
            _ => (f64::INFINITY, 0.1),
        };
        match self.numbers {
            Numbers::Whole if scale < exact && !name.contains("gradient") => 0.0,
            _ => digits * scale,
        }
    }
}
