//! How a formula is written: as arithmetic with symbols.

use shard_kernels::fused::FormulaStep;
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::Unary;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// The steps of a formula so far, none of them twice.
#[derive(Debug, Default)]
pub(super) struct Steps(RefCell<Vec<FormulaStep>>);

impl Steps {
    pub(super) fn of(steps: &[FormulaStep]) -> Self {
        Self(RefCell::new(steps.to_vec()))
    }

    pub(super) fn symbol(&self, step: FormulaStep) -> Symbol<'_> {
        let at = self.find(&step).unwrap_or_else(|| {
            let mut steps = self.0.borrow_mut();
            steps.push(step);
            steps.len() - 1
        });
        Symbol {
            of: self,
            at,
            brand: PhantomData,
        }
    }

    /// The number of a step, if it is there.
    pub(super) fn find(&self, step: &FormulaStep) -> Option<usize> {
        self.0
            .borrow()
            .iter()
            .position(|known| is_same(known, step))
    }

    /// A step that is there already.
    pub(super) fn at(&self, at: usize) -> Symbol<'_> {
        Symbol {
            of: self,
            at,
            brand: PhantomData,
        }
    }

    /// The steps so far.
    pub(super) fn to_vec(&self) -> Vec<FormulaStep> {
        self.0.borrow().clone()
    }

    pub(super) fn into_vec(self) -> Vec<FormulaStep> {
        self.0.into_inner()
    }
}

/// Whether two steps give the same, also where numbers are zeros of either sign.
fn is_same(a: &FormulaStep, b: &FormulaStep) -> bool {
    let bits = |step: &FormulaStep| match step {
        FormulaStep::Number(value) => [value.to_bits(), 0],
        FormulaStep::Map { map, .. } => map.numbers().map(f64::to_bits),
        _ => [0; 2],
    };
    a == b && bits(a) == bits(b)
}

/// A number of each element in a [`Fused`](super::Fused) op: an operand's, or what became of some.
#[derive(Clone, Copy, Debug)]
pub struct Symbol<'f> {
    of: &'f Steps,
    at: usize,
    /// Symbols of different formulas do not mix.
    brand: PhantomData<fn(&'f ()) -> &'f ()>,
}

impl<'f> Symbol<'f> {
    /// The number of its step.
    pub(super) fn at(self) -> usize {
        self.at
    }

    /// A map of it.
    #[must_use]
    pub fn map(self, map: Unary) -> Self {
        self.derived(map, 0)
    }

    /// A derivative of a map at it.
    pub(super) fn derived(self, map: Unary, order: usize) -> Self {
        let of = self.at;
        self.of.symbol(FormulaStep::Map { map, order, of })
    }

    /// `x` where it is below `bound`, and `y` elsewhere. The comparison has no derivative.
    #[must_use]
    pub fn below(
        self,
        bound: impl Into<Side<'f>>,
        x: impl Into<Side<'f>>,
        y: impl Into<Side<'f>>,
    ) -> Self {
        let [bound, x, y] = [bound.into(), x.into(), y.into()].map(|side| side.among(self.of).at);
        self.of.symbol(FormulaStep::Below([self.at, bound, x, y]))
    }

    fn with(self, kind: Binary, other: Self) -> Self {
        let of = [self.at, other.at];
        self.of.symbol(FormulaStep::Binary { kind, of })
    }
}

/// A method for each row of the table.
macro_rules! methods {
    ($_x:ident; $(
        $(#[$doc:meta])*
        $name:ident: $variant:ident $(($($(#[$_about:meta])* $p:ident = $_default:expr),+))? $(, $_form:ident)? {
            $($_formulas:tt)+
        }
    )*) => {
        /// Maps of one number.
        #[expect(clippy::should_implement_trait, reason = "`neg` is a row of the table, and the trait is implemented too")]
        impl Symbol<'_> {$(
            $(#[$doc])*
            #[must_use]
            pub fn $name(self $($(, $p: f64)+)?) -> Self {
                self.map(Unary::$variant $({ $($p),+ })?)
            }
        )*}
    };
}

shard_kernels::unary_table!(methods);

/// A symbol, or a number that is the same for all elements, rounded to their type.
#[derive(Clone, Copy, Debug)]
pub enum Side<'f> {
    /// A symbol.
    Symbol(Symbol<'f>),
    /// A number.
    Number(f64),
}

impl<'f> Side<'f> {
    fn among(self, steps: &'f Steps) -> Symbol<'f> {
        match self {
            Self::Symbol(symbol) => symbol,
            Self::Number(value) => steps.symbol(FormulaStep::Number(value)),
        }
    }
}

impl<'f> From<Symbol<'f>> for Side<'f> {
    fn from(symbol: Symbol<'f>) -> Self {
        Self::Symbol(symbol)
    }
}

impl From<f64> for Side<'_> {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

macro_rules! arithmetic {
    ($($trait:ident::$method:ident)+) => {$(
        impl<'f, O: Into<Side<'f>>> $trait<O> for Symbol<'f> {
            type Output = Self;

            fn $method(self, other: O) -> Self {
                self.with(Binary::$trait, other.into().among(self.of))
            }
        }

        impl<'f> $trait<Symbol<'f>> for f64 {
            type Output = Symbol<'f>;

            fn $method(self, other: Symbol<'f>) -> Symbol<'f> {
                Side::Number(self).among(other.of).with(Binary::$trait, other)
            }
        }
    )+};
}

arithmetic! { Add::add Sub::sub Mul::mul Div::div }

impl Neg for Symbol<'_> {
    type Output = Self;

    fn neg(self) -> Self {
        self.map(Unary::Neg)
    }
}
