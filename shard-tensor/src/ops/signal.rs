//! Spectra of short stretches of a signal, and windows.

use crate::{Mesh, Placements, Result, ShardTensor};
use shard_comm::{Call, Calling};
use shard_ops::fft::{self, FourierNorm, Frames};
use shard_ops::{Exec, OpError, Value};
use shard_spec::EdgeMap;
use std::f64::consts::TAU;

/// The stretches of [`ShardTensor::stft`] and [`ShardTensor::istft`], as the arguments of `torch.stft`.
///
/// ```
/// use shard_tensor::{Stft, launch, replicate};
/// launch(1, |ctx| {
///     let window = ctx.mesh_of(1)?.hann_window(400, true, replicate())?;
///     let spoken = Stft::new(512).hop(160).window(&window);
///     # let _ = spoken;
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Stft {
    size: usize,
    hop: usize,
    window: Option<ShardTensor>,
    center: bool,
    edge: EdgeMap,
    norm: FourierNorm,
    onesided: bool,
}

impl Stft {
    /// Stretches of so many elements, a quarter of them from one to the next, around their places, with the signal reflected at its ends;
    /// and the frequencies alone of which the others are mirror images.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            hop: (size / 4).max(1),
            window: None,
            center: true,
            edge: EdgeMap::Reflect,
            norm: FourierNorm::Backward,
            onesided: true,
        }
    }

    /// Elements from one stretch to the next.
    pub fn hop(self, hop: usize) -> Self {
        Self { hop, ..self }
    }

    /// What the elements of a stretch are multiplied by: a list of as many, or of fewer, which then has zeros on both sides.
    pub fn window(self, window: &ShardTensor) -> Self {
        let window = Some(window.clone());
        Self { window, ..self }
    }

    /// Stretches that begin at their places, none of which reaches beyond the signal.
    pub fn from_start(self) -> Self {
        Self {
            center: false,
            ..self
        }
    }

    /// What stands beyond the ends of the signal, where stretches are around their places.
    pub fn edge(self, edge: EdgeMap) -> Self {
        Self { edge, ..self }
    }

    /// How transforms are scaled: [`FourierNorm::Ortho`] is PyTorch's `normalized`.
    pub fn norm(self, norm: FourierNorm) -> Self {
        Self { norm, ..self }
    }

    /// All frequencies, as many as a stretch has elements.
    pub fn two_sided(self) -> Self {
        Self {
            onesided: false,
            ..self
        }
    }

    #[track_caller]
    fn applied(
        &self,
        x: &ShardTensor,
        f: impl Fn(&dyn Exec, &Value, Frames<'_>) -> Result<Value, OpError>,
    ) -> Result<ShardTensor> {
        match &self.window {
            None => x.run(|exec, x| f(exec, x, self.frames(None))),
            Some(window) => x.run2(window, |exec, x, window| {
                f(exec, x, self.frames(Some(window)))
            }),
        }
    }

    fn frames<'a>(&self, window: Option<&'a Value>) -> Frames<'a> {
        Frames {
            size: self.size,
            hop: self.hop,
            window,
            center: self.center,
            edge: self.edge,
            norm: self.norm,
            onesided: self.onesided,
        }
    }
}

/// Spectra of short stretches of signals.
impl ShardTensor {
    /// The Fourier transforms of short stretches of real signals `[.., time]`, one after the other: `[.., frequencies, stretches, 2]`, complex
    /// numbers being in the last dim.
    ///
    /// ```
    /// use shard_tensor::{Stft, launch, replicate, shard};
    /// launch(3, |ctx| {
    ///     let mesh = ctx.mesh_of(3)?;
    ///     let frames = Stft::new(16).hop(4).window(&mesh.hann_window(16, true, replicate())?);
    ///     let x = mesh.randn([2, 100], shard(1))?;
    ///     let spectra = x.stft(&frames)?;
    ///     assert_eq!(spectra.shape(), [2, 9, 26, 2]);
    ///     assert!(spectra.layout().sharding(2).is_some()); // stretches lie where their time does
    ///     let back = spectra.istft(&frames, Some(100))?;
    ///     assert!(back.allclose(&x, 1e-4, 1e-5, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where time is sharded, the halos of stretches move, and nothing else; a partial tensor is
    /// reduced first.
    ///
    /// # Errors
    /// For a signal without dims, or shorter than a stretch; for stretches of nothing, windows that do not fit, and types that differ or are
    /// not `f32` or `f64`.
    #[track_caller]
    pub fn stft(&self, frames: &Stft) -> Result<Self> {
        let _call = Calling::of("stft");
        frames.applied(self, fft::stft)
    }

    /// The signal `[.., time]` whose [`stft`](Self::stft) is nearest to these spectra: `length` elements of it, or as many as stretches cover,
    /// less what they reach beyond the ends, and zeros after that.
    ///
    /// # Collective
    /// All members of the mesh. Where stretches are sharded, what of them belongs to others' parts of the time. With a window the ranks read
    /// whether it covers the signal, which takes a round.
    ///
    /// # Errors
    /// As [`stft`](Self::stft); for another number of frequencies, no stretches, or a length that is more than can be counted; on all ranks,
    /// if windows leave an element of what stretches cover with no weight, as in PyTorch.
    #[track_caller]
    pub fn istft(&self, frames: &Stft, length: Option<usize>) -> Result<Self> {
        let _call = Calling::of("istft");
        frames.applied(self, |exec, x, frames| fft::istft(exec, x, frames, length))
    }
}

macro_rules! windows {
    ($($(#[$doc:meta])* $name:ident: $parts:expr;)*) => {
        /// Windows, by which stretches of a signal fade in and out: lists of `n` numbers. Those for spectra are `periodic`, as if another
        /// one followed; those for filters are not, and symmetric.
        impl Mesh {$(
            $(#[$doc])*
            ///
            /// # Collective
            /// All members of the mesh, with equal arguments. No communication.
            ///
            /// # Errors
            /// As [`from_fn`](Self::from_fn).
            #[track_caller]
            pub fn $name(
                &self,
                n: usize,
                periodic: bool,
                placements: impl Into<Placements>,
            ) -> Result<ShardTensor> {
                let _call = Calling::of(stringify!($name));
                let [a, b, c]: [f64; 3] = $parts;
                let waves = |share: f64| {
                    let angle = TAU * share;
                    a - b * angle.cos() + c * (2.0 * angle).cos()
                };
                let call = Call::new(stringify!($name));
                self.window(call, n, periodic, &placements.into(), waves)
            }
        )*}
    };
}

windows! {
    /// Hann's: `sin²` of half the angle.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let window = launch(2, |ctx| ctx.mesh_of(2)?.hann_window(4, true, shard(0))?.to_array::<f32>())?;
    /// assert!((window[0][[1]] - 0.5).abs() < 1e-6 && window[0][[2]] == 1.0);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    hann_window: [0.5, 0.5, 0.0];
    /// Hamming's, which does not fade to zero.
    hamming_window: [0.54, 0.46, 0.0];
    /// Blackman's.
    blackman_window: [0.42, 0.5, 0.08];
}

/// Windows that are no sums of waves.
impl Mesh {
    /// Bartlett's window: a triangle.
    ///
    /// # Collective
    /// As [`hann_window`](Self::hann_window).
    ///
    /// # Errors
    /// As [`hann_window`](Self::hann_window).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let window = launch(2, |ctx| ctx.mesh_of(2)?.bartlett_window(5, false, shard(0))?.to_array::<f32>())?;
    /// assert_eq!(window[0].as_slice(), Some(&[0.0, 0.5, 1.0, 0.5, 0.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn bartlett_window(
        &self,
        n: usize,
        periodic: bool,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        const OP: &str = "bartlett_window";
        let _call = Calling::of(OP);
        let triangle = |share: f64| 1.0 - (2.0 * share - 1.0).abs();
        self.window(Call::new(OP), n, periodic, &placements.into(), triangle)
    }

    /// Kaiser's window, the narrower the larger `beta` is: PyTorch's is 12.
    ///
    /// # Collective
    /// As [`hann_window`](Self::hann_window).
    ///
    /// # Errors
    /// As [`hann_window`](Self::hann_window).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let window = launch(2, |ctx| ctx.mesh_of(2)?.kaiser_window(5, false, 12.0, shard(0))?.to_array::<f32>())?;
    /// assert!((window[0][[1]] - 0.215_672_7).abs() < 1e-6 && window[0][[2]] == 1.0);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn kaiser_window(
        &self,
        n: usize,
        periodic: bool,
        beta: f64,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        const OP: &str = "kaiser_window";
        let _call = Calling::of(OP);
        let whole = bessel(beta);
        let share = |share: f64| {
            let high = (1.0 - (2.0 * share - 1.0).powi(2)).max(0.0);
            bessel(beta * high.sqrt()) / whole
        };
        let call = Call::new(OP).with(beta.to_bits().into());
        self.window(call, n, periodic, &placements.into(), share)
    }

    /// What a function gives of the shares of the way from the first to the last number, or to the first of another window.
    #[track_caller]
    fn window(
        &self,
        call: Call<'_>,
        n: usize,
        periodic: bool,
        placements: &Placements,
        f: impl Fn(f64) -> f64,
    ) -> Result<ShardTensor> {
        let step = 1.0 / (if periodic { n } else { n.saturating_sub(1) }).max(1) as f64;
        let call = call.constant().with(periodic.into());
        self.filled(&call, &n.into(), placements, &|i| match n {
            1 => 1.0,
            _ => f(step * i[0] as f64),
        })
    }
}

/// The modified Bessel function of the first kind of order 0: its series, whose terms are all above 0.
fn bessel(x: f64) -> f64 {
    let square = 0.25 * x * x;
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..=1000 {
        term *= square / f64::from(k).powi(2);
        sum += term;
        if term <= f64::EPSILON * 0.5 * sum {
            break;
        }
    }
    sum
}
