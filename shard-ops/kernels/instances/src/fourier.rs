//! Plans of Fourier transforms, by `rustfft` and `realfft`.

use core::cell::RefCell;
use realfft::RealFftPlanner;
use rustfft::{FftNum, FftPlanner};
use std::sync::Arc;

pub use realfft::{ComplexToReal, RealToComplex};
pub use rustfft::Fft;
pub use rustfft::num_complex::Complex;

/// An element type that has plans of transforms: `f32` and `f64`.
///
/// A plan is made once per length and thread; asked for again, it is looked up. A length must not be 0.
pub trait Transforms: FftNum {
    /// Transforms `n` complex numbers in place, `x[j]` into `Σ x[j] e^(∓2πi jk/n)`: minus forward, plus `inverse`.
    fn complex(n: usize, inverse: bool) -> Arc<dyn Fft<Self>>;

    /// Transforms `n` real numbers into the first `n/2 + 1` results of the forward transform.
    fn from_real(n: usize) -> Arc<dyn RealToComplex<Self>>;

    /// Transforms the first `n/2 + 1` numbers of a spectrum, whose others mirror them, back into `n` real ones, times `n`.
    fn to_real(n: usize) -> Arc<dyn ComplexToReal<Self>>;
}

/// Plans that exist.
struct Plans<T: FftNum> {
    complex: FftPlanner<T>,
    real: RealFftPlanner<T>,
}

macro_rules! transforms {
    ($($t:ty, $plans:ident;)*) => {$(
        thread_local! {
            static $plans: RefCell<Plans<$t>> = RefCell::new(Plans {
                complex: FftPlanner::new(),
                real: RealFftPlanner::new(),
            });
        }

        impl Transforms for $t {
            fn complex(n: usize, inverse: bool) -> Arc<dyn Fft<Self>> {
                $plans.with_borrow_mut(|plans| match inverse {
                    false => plans.complex.plan_fft_forward(n),
                    true => plans.complex.plan_fft_inverse(n),
                })
            }

            fn from_real(n: usize) -> Arc<dyn RealToComplex<Self>> {
                $plans.with_borrow_mut(|plans| plans.real.plan_fft_forward(n))
            }

            fn to_real(n: usize) -> Arc<dyn ComplexToReal<Self>> {
                $plans.with_borrow_mut(|plans| plans.real.plan_fft_inverse(n))
            }
        }
    )*};
}

transforms! {
    f32, PLANS_F32;
    f64, PLANS_F64;
}
