//! Plans of Fourier transforms, by `rustfft`.

use core::cell::RefCell;
use rustfft::{FftNum, FftPlanner};
use std::collections::HashMap;
use std::sync::Arc;

pub use rustfft::Fft;
pub use rustfft::num_complex::Complex;

/// An element type that has plans of transforms: `f32` and `f64`.
///
/// What is made once per length and thread is looked up when it is asked for again. A length must not be 0.
pub trait Transforms: FftNum {
    /// Transforms `n` complex numbers, `x[j]` into `Σ x[j] e^(∓2πi jk/n)`: minus forward, plus `inverse`.
    fn complex(n: usize, inverse: bool) -> Arc<dyn Fft<Self>>;

    /// The first half of the `n`-th roots of unity.
    fn roots(n: usize) -> Arc<Roots<Self>>;
}

/// `e^(2πi k/n)` for `k` below `n/2`, each part rounded once.
#[derive(Debug)]
pub struct Roots<T> {
    /// The real parts.
    pub cos: Vec<T>,
    /// The imaginary parts.
    pub sin: Vec<T>,
}

impl<T: FftNum> Roots<T> {
    fn new(n: usize) -> Self {
        let of = |x: f64| T::from_f64(x).unwrap_or_else(T::zero);
        let parts = |k: usize| {
            let (sin, cos) = (core::f64::consts::TAU * k as f64 / n as f64).sin_cos();
            (of(cos), of(sin))
        };
        let (cos, sin) = (0..n / 2).map(parts).unzip();
        Self { cos, sin }
    }
}

/// What was made.
struct Made<T: FftNum> {
    complex: FftPlanner<T>,
    roots: HashMap<usize, Arc<Roots<T>>>,
}

macro_rules! transforms {
    ($($t:ty, $made:ident;)*) => {$(
        thread_local! {
            static $made: RefCell<Made<$t>> = RefCell::new(Made {
                complex: FftPlanner::new(),
                roots: HashMap::new(),
            });
        }

        impl Transforms for $t {
            fn complex(n: usize, inverse: bool) -> Arc<dyn Fft<Self>> {
                $made.with_borrow_mut(|made| match inverse {
                    false => made.complex.plan_fft_forward(n),
                    true => made.complex.plan_fft_inverse(n),
                })
            }

            fn roots(n: usize) -> Arc<Roots<Self>> {
                $made.with_borrow_mut(|made| {
                    let new = || Arc::new(Roots::new(n));
                    made.roots.entry(n).or_insert_with(new).clone()
                })
            }
        }
    )*};
}

transforms! {
    f32, MADE_F32;
    f64, MADE_F64;
}
