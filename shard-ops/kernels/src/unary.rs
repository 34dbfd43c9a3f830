//! Maps of one number with their first three derivatives: every activation of the library.
//!
//! Values, and (sub)gradients where a map has a kink, are PyTorch's. A map is a row of the [table](crate::unary_table!). Each
//! formula is one line in f64 over [`Math`](super::math::Math): f64 elements use the standard library's functions, and f32
//! elements use vectorised polynomials whose result is rounded once; a few, of which there is much, are computed in f32.

use super::compiled::compiled;
use super::pointwise::{assert_shapes, scale};
use super::prefetch::prefetch;
use super::view::for_each_row;
use super::{Real, View, ViewMut};
use half::bf16;

mod formulas;
mod gelu;
mod single;
mod table;

/// The form of a map, apart from its formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `f(x) = c x`: the map of a sum is the sum of the maps, and the derivative needs no operand.
    Linear,
    /// `f(x) = x + c`: the derivative is 1.
    Shift,
    /// Anything else.
    Curved,
}

impl Form {
    const fn of_row(given: &[Self]) -> Self {
        match given {
            [form, ..] => *form,
            [] => Self::Curved,
        }
    }
}

/// A row of the table as text, for code that writes the formulas in another language.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// The map's name.
    pub name: &'static str,
    /// Names of [`Unary::numbers`].
    pub numbers: &'static [&'static str],
    /// An expression that formulas may share: its name, and its text.
    pub shared: Option<(&'static str, &'static str)>,
    /// The formulas, each with the orders of derivative that it gives in front. Orders that are missing are zero.
    pub formulas: &'static [(&'static [usize], &'static str)],
}

macro_rules! maps {
    ($_x:ident; $(
        $(#[$doc:meta])*
        $name:ident: $variant:ident $(($($(#[$about:meta])* $p:ident = $default:expr),+))? $(, $form:ident)? {
            $(with $($c:ident = $value:expr),+;)?
            $(let $t:ident = $shared:expr;)?
            $($($order:literal)|+ => $formula:expr;)+
        }
    )*) => {
        /// A map of one number. Parameters are rounded to the element type before use, as PyTorch does.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Unary {
            $($(#[$doc])* $variant $({ $($(#[$about])* $p: f64),+ })?,)*
        }

        impl Unary {
            /// Every map, with its default parameters.
            pub const ALL: &'static [Self] = &[$(Self::$variant $({ $($p: $default),+ })?),*];

            /// Every map's formulas, in the order of [`ALL`](Self::ALL).
            pub const TEXTS: &'static [Text] = &[$(Text {
                name: stringify!($name),
                numbers: &[$($(stringify!($p),)+)? $($(stringify!($c),)+)?],
                shared: Text::of_row(&[$((stringify!($t), stringify!($shared)))?]),
                formulas: &[$((&[$($order),+], stringify!($formula))),+],
            }),*];

            /// The map's name, which is that of the tensor's method.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => stringify!($name),)*
                }
            }

            /// What the map is beside its formulas.
            pub const fn form(self) -> Form {
                match self {
                    $(Self::$variant { .. } => Form::of_row(&[$(Form::$form)?]),)*
                }
            }

            /// The parameters and constants of the map's formulas; zeros where there are fewer than two.
            pub const fn numbers(self) -> [f64; 2] {
                match self {
                    $(Self::$variant $({ $($p),+ })? => two(&[$($($p,)+)? $($($value,)+)?]),)*
                }
            }

            /// The map of a name, whose parameters are asked for by name and default; `None` if there is no such map.
            ///
            /// # Errors
            /// What `parameter` reports.
            pub fn named<E>(
                name: &str,
                mut parameter: impl FnMut(&str, f64) -> Result<f64, E>,
            ) -> Result<Option<Self>, E> {
                Ok(Some(match name {
                    $(stringify!($name) => Self::$variant $({ $($p: parameter(stringify!($p), $default)?),+ })?,)*
                    _ => return Ok(None),
                }))
            }
        }
    };
}

crate::unary_table!(maps);

impl Text {
    const fn of_row(
        shared: &[(&'static str, &'static str)],
    ) -> Option<(&'static str, &'static str)> {
        match shared {
            [shared, ..] => Some(*shared),
            [] => None,
        }
    }
}

const fn two(given: &[f64]) -> [f64; 2] {
    match given {
        [] => [0.0; 2],
        [a] => [*a, 0.0],
        [a, b, ..] => [*a, *b],
    }
}

compiled! { trait Compiled for Real: f32 f64; {
    /// `out = f⁽ᵒʳᵈᵉʳ⁾(x)` element by element: the map itself for order 0, its derivatives for 1, 2 and 3.
    ///
    /// ```
    /// use shard_kernels::{unary::{unary, Unary}, View, ViewMut};
    /// let x = [-1.0f32, 0.0, 2.0];
    /// let mut out = [9.0; 3];
    /// unary(Unary::Relu, 1, &View::contiguous(&x, &[3]), &mut ViewMut::contiguous(&mut out, &[3]));
    /// assert_eq!(out, [0.0, 0.0, 1.0]);
    /// ```
    ///
    /// # Panics
    /// When the shapes differ or `order` exceeds 3.
    pub fn unary<T>(op: Unary, order: usize, x: &View<'_, T>, out: &mut ViewMut<'_, T>) = plain;

    /// `out = g · f⁽ᵒʳᵈᵉʳ⁾(x)` element by element: one step of the chain rule.
    ///
    /// # Panics
    /// When the shapes differ or `order` exceeds 3.
    pub fn unary_scaled<T>(op: Unary, order: usize, x: &View<'_, T>, g: &View<'_, T>, out: &mut ViewMut<'_, T>) = scaled;

    fn each_element<T>(op: Unary, order: usize, x: &[T], y: &mut [T]) = each;
} }

impl Unary {
    /// `f⁽ᵒʳᵈᵉʳ⁾(x)` of every element of `x`, written to `y`.
    ///
    /// # Panics
    /// When the lengths differ or `order` exceeds 3.
    pub fn eval<T: Real>(self, order: usize, x: &[T], y: &mut [T]) {
        each_element(self, order, x, y);
    }
}

/// The map of numbers of `bf16`, or its first derivative times `g`, each widened and rounded once in registers. Returns false, and has done nothing,
/// for maps that are not written so: those whose formulas take longer than that.
///
/// ```
/// use half::bf16;
/// use shard_kernels::unary::{Unary, unary_halves};
/// let [x, g] = [[3.0, -1.0, 0.5], [2.0, 10.0, 4.0]].map(|x| x.map(bf16::from_f32));
/// let mut out = [bf16::ZERO; 3];
/// assert!(unary_halves(Unary::Square, &x, None, &mut out));
/// assert_eq!(out.map(f32::from), [9.0, 1.0, 0.25]);
/// assert!(unary_halves(Unary::Square, &x, Some(&g), &mut out));
/// assert_eq!(out.map(f32::from), [12.0, -20.0, 4.0]);
/// ```
///
/// # Panics
/// When the lengths differ.
pub fn unary_halves(op: Unary, x: &[bf16], g: Option<&[bf16]>, out: &mut [bf16]) -> bool {
    let lens = [x.len(), g.map_or(x.len(), <[_]>::len)];
    assert!(
        lens == [out.len(); 2],
        "unary: {lens:?} elements into {}",
        out.len()
    );
    match g {
        None => single::run_halves(op, x, out),
        Some(g) => single::run_slopes_of_halves(op, x, g, out),
    }
}

fn plain<T: Real>(op: Unary, order: usize, x: &View<'_, T>, out: &mut ViewMut<'_, T>) {
    run(op, order, x, None, out);
}

fn scaled<T: Real>(
    op: Unary,
    order: usize,
    x: &View<'_, T>,
    g: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    run(op, order, x, Some(g), out);
}

fn each<T: Real>(op: Unary, order: usize, x: &[T], y: &mut [T]) {
    assert!(
        x.len() == y.len(),
        "unary: {} elements into {}",
        x.len(),
        y.len()
    );
    assert!(
        order <= 3,
        "unary: derivatives up to the third exist, not order {order}"
    );
    formulas::run(op, order, x, y);
}

/// Elements per step through the buffers of strided or scaled maps: small enough to stay in the first cache, and for those of the next
/// step to be asked for at once.
const CHUNK: usize = 256;

fn run<T: Real>(
    op: Unary,
    order: usize,
    x: &View<'_, T>,
    g: Option<&View<'_, T>>,
    out: &mut ViewMut<'_, T>,
) {
    let g = g.unwrap_or(x);
    assert_shapes(&[x.shape(), g.shape()], out.shape());
    let scaled = !core::ptr::eq(g, x);
    let (shape, strides, offset, data) = out.parts();
    // Most maps are of elements side by side, and need no room.
    let (mut input, mut result) = (Vec::new(), Vec::new());
    for_each_row(
        shape,
        [x.strides(), g.strides(), strides],
        [x.offset(), g.offset(), offset],
        |at, n, steps| {
            for first in (0..n).step_by(CHUNK) {
                let len = CHUNK.min(n - first);
                let [p, q, r] =
                    core::array::from_fn(|k| at[k].wrapping_add_signed(first as isize * steps[k]));
                let source = if steps[0] == 1 {
                    &x.data()[p..p + len]
                } else {
                    let at = |i: usize| p.wrapping_add_signed(i as isize * steps[0]);
                    input.clear();
                    input.extend((0..len).map(|i| x.data()[at(i)]));
                    &input[..]
                };
                // While a step is computed from the cache, memory would have nothing to do.
                let ahead = CHUNK.min(n - first - len);
                if scaled && steps[0] == 1 {
                    prefetch(x.data(), p + len, ahead);
                }
                let direct = steps[2] == 1;
                if scaled && direct {
                    prefetch(data, r + len, ahead);
                }
                let target = if direct {
                    &mut data[r..r + len]
                } else {
                    result.resize(CHUNK, T::zero());
                    &mut result[..len]
                };
                each(op, order, source, target);
                if scaled && steps[1] == 1 {
                    prefetch(g.data(), q + len, ahead);
                    scale(target, &g.data()[q..q + len]);
                } else if scaled {
                    for (i, v) in target.iter_mut().enumerate() {
                        *v *= g.data()[q.wrapping_add_signed(i as isize * steps[1])];
                    }
                }
                if !direct {
                    for (i, v) in result[..len].iter().enumerate() {
                        data[r.wrapping_add_signed(i as isize * steps[2])] = *v;
                    }
                }
            }
        },
    );
}
