//! Comparisons and logic, of all types but 16-bit floats: truth values come out, and no derivative goes back.

use super::number::number;
use crate::families::types::number_types;
use crate::host::with_number;
use crate::{Exec, HostCall, Keeps, Linearity, Meta, Op, Result, Rule, Value, key_of};
use shard_comm::{Bool, DType};
use shard_kernels::whole::{self, Compare};
use std::sync::Arc;

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// The result is `bool`. Shapes broadcast as in NumPy.
            ///
            /// # Collective
            /// All members of the mesh; communicates only to align operands whose boundaries differ, and to reduce partial ones.
            ///
            /// # Errors
            /// Shapes that do not broadcast; types that differ, or are 16-bit floats.
            pub fn $name(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
                exec.apply1(Arc::new(Comparison(Compare::$kind)), &[a, b])
            }
        )*

        fn name(kind: Compare) -> &'static str {
            match kind {
                $(Compare::$kind => stringify!($name),)*
            }
        }
    };
}

comparisons! {
    /// Whether `a > b`.
    gt => Gt;
    /// Whether `a >= b`.
    ge => Ge;
    /// Whether `a < b`.
    lt => Lt;
    /// Whether `a <= b`.
    le => Le;
    /// Whether `a == b`; NaN is equal to nothing.
    eq => Eq;
    /// Whether `a != b`.
    ne => Ne;
    /// Whether neither is zero.
    logical_and => And;
    /// Whether one of them is not zero, or both.
    logical_or => Or;
    /// Whether exactly one of them is not zero.
    logical_xor => Xor;
}

/// Whether an element is zero.
///
/// # Collective
/// As [`eq`].
///
/// # Errors
/// A 16-bit float.
pub fn logical_not(exec: &dyn Exec, x: &Value) -> Result<Value> {
    eq(exec, x, &number("logical_not", x, 0.0)?)
}

/// A comparison of two numbers, element by element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison(pub(crate) Compare);

impl Op for Comparison {
    fn name(&self) -> &'static str {
        name(self.0)
    }

    fn key(&self) -> u128 {
        key_of("compare", &self.0)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        number_types(self.name(), inputs)?;
        Rule::pointwise(self.name(), inputs, DType::Bool, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_number!(call.inputs[0].dtype(), T => {
            let (a, b) = (call.elements::<T>(0), call.elements::<T>(1));
            let mut out = call.elements_out::<Bool>(0);
            if let (Some(a), Some(b)) = (a.shaped(out.shape()), b.shaped(out.shape())) {
                whole::compare(self.0, &a, &b, &mut out);
            }
        });
    }

    crate::kernel::gpu_kernel!(halves);

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}
