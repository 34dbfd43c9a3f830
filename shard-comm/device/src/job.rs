//! Host code that a device runs, how much work it is, and how long it took.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{DType, HostSlice, HostSliceMut, Strided};

/// Host code that reads some buffers and writes others, with a name and a measure of its work; see
/// [`Device::submit`](crate::Device::submit).
///
/// ```
/// use shard_device::{DType, Host, HostJob, Work};
/// # fn main() -> Result<(), shard_device::DeviceError> {
/// let host = Host::new();
/// let x = host.upload_slice(&[1.0f64, 2.0])?;
/// let y = host.alloc(DType::F64, 2)?;
/// let job = HostJob::new("double", Work { flops: 2, bytes: 32 }, |inputs, outputs| {
///     let (Ok(x), Ok(y)) = (inputs[0].as_slice::<f64>(), outputs[0].as_mut_slice::<f64>()) else { return };
///     y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
/// });
/// let y = host.submit(vec![x], vec![y], job)?.remove(0).freeze();
/// assert_eq!(y.as_slice::<f64>()?, &[2.0, 4.0]);
/// # Ok(()) }
/// ```
pub struct HostJob {
    name: &'static str,
    work: Work,
    run: Run,
}

type Run = Box<dyn FnOnce(&[HostSlice<'_>], &mut [HostSliceMut<'_>]) + Send>;

impl HostJob {
    /// A job of the op called `name`.
    pub fn new(
        name: &'static str,
        work: Work,
        run: impl FnOnce(&[HostSlice<'_>], &mut [HostSliceMut<'_>]) + Send + 'static,
    ) -> Self {
        Self {
            name,
            work,
            run: Box::new(run),
        }
    }

    /// The op it belongs to.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How much work it is.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Runs the job.
    pub fn run(self, inputs: &[HostSlice<'_>], outputs: &mut [HostSliceMut<'_>]) {
        (self.run)(inputs, outputs);
    }
}

impl fmt::Debug for HostJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostJob({}, {:?})", self.name, self.work)
    }
}

/// The amount of a piece of work. Accounts and forecasts of time use it; devices that only compute ignore it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written, each operand counted once.
    pub bytes: u64,
}

impl Work {
    /// The work of visiting every element of a view `times` times.
    pub fn of_view(dtype: DType, view: &Strided, times: usize) -> Self {
        Self::moving(times * dtype.size() * view.shape.iter().product::<usize>())
    }

    /// Work that only moves memory.
    pub fn moving(bytes: usize) -> Self {
        Self {
            flops: 0,
            bytes: bytes as u64,
        }
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            flops: self.flops.saturating_add(other.flops),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// What all work of one name cost on a device.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct WorkStats {
    /// Pieces of work.
    pub calls: u64,
    /// All of it together.
    pub work: Work,
    /// Time, measured or forecast.
    pub time: Duration,
}

/// A device's account of what it spent, by name.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<BTreeMap<&'static str, WorkStats>>);

impl Meter {
    pub(crate) fn add(&self, name: &'static str, work: Work, time: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let spent = all.entry(name).or_default();
        spent.calls += 1;
        spent.work += work;
        spent.time += time;
    }

    pub(crate) fn read(&self) -> Vec<(&'static str, WorkStats)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(&name, &spent)| (name, spent)).collect()
    }

    pub(crate) fn clear(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clear();
    }
}
