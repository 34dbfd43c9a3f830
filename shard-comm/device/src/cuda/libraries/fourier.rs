//! Fourier transforms in the form that cuFFT takes.

use super::super::Cuda;
use super::super::terms::{Fourier, FourierKind};
use crate::{BufferMut, DType, DeviceError, Result};

impl Cuda {
    /// Fourier transforms of `lines` lines by cuFFT, of `n` elements each, of `f32` or `f64`. Lines lie one behind the other from
    /// the buffers' beginnings, complex numbers as real and imaginary parts side by side. What is in `x` afterwards is not
    /// defined.
    ///
    /// Returns false, and does nothing, if the library is [not there](Self::libraries), cannot transform such lines, or there
    /// are none.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for buffers that are too short, or of other types or devices; otherwise whatever the library or
    /// the driver reports.
    pub fn fourier(
        &self,
        kind: FourierKind,
        (lines, n): (usize, usize),
        x: &mut BufferMut,
        y: &mut BufferMut,
    ) -> Result<bool> {
        let dtype = y.dtype();
        if x.dtype() != dtype {
            return Err(DeviceError::dtype("fourier", dtype, x.dtype()));
        }
        let [read, written] = kind.widths(n).map(|width| width.checked_mul(lines));
        let fits = |len: usize, needed: Option<usize>| needed.is_some_and(|needed| needed <= len);
        if !fits(x.len(), read) || !fits(y.len(), written) {
            return Err(DeviceError::invalid(
                "fourier",
                "all lines in the buffers",
                format!(
                    "{lines} lines of {n} in {} and {} elements",
                    x.len(),
                    y.len()
                ),
                "complex numbers take two elements; of transforms of real numbers n / 2 + 1 are there",
            ));
        }
        if lines == 0 || n == 0 || !matches!(dtype, DType::F32 | DType::F64) {
            return Ok(false);
        }
        let call = Fourier {
            kind,
            dtype,
            n,
            lines,
            x: self.address_mut(x)?,
            y: self.address_mut(y)?,
        };
        let planned = self.driver.plan_fourier(&call);
        let Some(bytes) = planned.map_err(|r| self.refused(r))? else {
            return Ok(false);
        };
        let mut scratch = self.workspace(bytes)?;
        let workspace = (self.address_mut(&mut scratch)?, bytes);
        // SAFETY: the lines lie inside the buffers, which are this device's and lent for writing; the workspace has the bytes
        // that were asked for, and is given back in the order of the stream.
        #[expect(unsafe_code, reason = "the library writes where it is told")]
        unsafe { self.driver.fourier(&call, workspace) }.map_err(|r| self.refused(r))?;
        self.writes(x)?;
        self.writes(y)?;
        tracing::trace!(target: "shard_device::cuda", ?call, "cuFFT");
        Ok(true)
    }
}
