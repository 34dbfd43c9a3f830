//! Products of matrices in the form that cuBLASLt takes.

use super::super::terms::{Gemm, Matrix};
use super::super::{Cuda, Strided};
use crate::{Buffer, BufferMut, DType, DeviceError, MatmulPrecision, Result};

impl Cuda {
    /// `y = a b`, plus a bias in every row, by cuBLASLt. The views are (batch..., m, k), (batch..., k, n), (batch..., m, n) and
    /// (n), with equal batch dims; along some of these `a` and `b` may repeat with a stride of 0. `y` must overlap none of the
    /// operands, nor itself. All are of one type; of operands of 16 bits `y` and the bias may also be `f32`.
    ///
    /// Returns false, and does nothing, if the library is [not there](Self::libraries), or its terms do not describe the views:
    /// it takes floats, matrices whose rows or whose columns are contiguous (for `y` the rows), and one regular stride from
    /// batch to batch.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for views that do not fit each other or their buffers, or buffers of other types or devices;
    /// otherwise whatever the library or the driver reports.
    pub fn matmul(
        &self,
        a: (&Buffer, &Strided),
        b: (&Buffer, &Strided),
        bias: Option<(&Buffer, &Strided)>,
        (y, at): (&mut BufferMut, &Strided),
        precision: MatmulPrecision,
    ) -> Result<bool> {
        let (dtype, result) = (a.0.dtype(), y.dtype());
        let given = [Some(a), Some(b), bias];
        let rounded = dtype == result || (dtype.is_half() && result == DType::F32);
        for ((buffer, view), expected) in (given.iter().flatten()).zip([dtype, dtype, result]) {
            view.validate(buffer.len())?;
            if buffer.dtype() != expected || !rounded {
                return Err(DeviceError::dtype("matmul", result, buffer.dtype()));
            }
        }
        at.validate(y.len())?;
        check_shapes(a.1, b.1, bias.map(|bias| bias.1), at)?;
        let Some(mut gemm) = described([dtype, result], a.1, b.1, bias.map(|bias| bias.1), at)
        else {
            return Ok(false);
        };
        gemm.precision = precision;
        // Only now, because asking for the address to write to makes this stream wait for the buffer's readers.
        let place = |buffer: &Buffer, view: &Strided| {
            let offset = view.offset * buffer.dtype().size();
            Ok::<u64, DeviceError>(self.address(buffer)? + offset as u64)
        };
        gemm.a.address = place(b.0, b.1)?;
        gemm.b.address = place(a.0, a.1)?;
        if let Some((buffer, view)) = bias {
            gemm.bias = Some(place(buffer, view)?);
        }
        gemm.d.address = self.address_mut(y)? + (at.offset * result.size()) as u64;
        let Some(bytes) = self.driver.plan_gemm(&gemm).map_err(|r| self.refused(r))? else {
            return Ok(false);
        };
        let mut scratch = self.workspace(bytes)?;
        let workspace = (self.address_mut(&mut scratch)?, bytes);
        // SAFETY: the description is of views that were checked against their buffers, which are this device's; the workspace
        // has the bytes that were asked for, and is given back in the order of the stream.
        #[expect(unsafe_code, reason = "the library writes where it is told")]
        unsafe { self.driver.gemm(&gemm, workspace) }.map_err(|r| self.refused(r))?;
        let reads: Vec<&Buffer> = given.iter().flatten().map(|(buffer, _)| *buffer).collect();
        self.writes(y)?;
        self.has_read(&reads)?;
        tracing::trace!(target: "shard_device::cuda", ?gemm, "cuBLASLt");
        Ok(true)
    }
}

fn check_shapes(a: &Strided, b: &Strided, bias: Option<&Strided>, y: &Strided) -> Result<()> {
    let nd = y.ndim();
    let fits = nd >= 2
        && (a.ndim(), b.ndim()) == (nd, nd)
        && a.shape[..nd - 2] == y.shape[..nd - 2]
        && b.shape[..nd - 2] == y.shape[..nd - 2]
        && a.shape[nd - 2] == y.shape[nd - 2]
        && b.shape[nd - 1] == y.shape[nd - 1]
        && a.shape[nd - 1] == b.shape[nd - 2]
        && bias.is_none_or(|bias| bias.shape[..] == y.shape[nd - 1..]);
    if fits {
        return Ok(());
    }
    Err(DeviceError::invalid(
        "matmul",
        "views (batch..., m, k), (batch..., k, n), (n) and (batch..., m, n)",
        format!("{a:?}, {b:?}, {bias:?} and {y:?}"),
        "repeat batch dims that an operand lacks with a step of 0",
    ))
}

/// The product in the library's terms, without addresses; `None` if the terms cannot describe it.
///
/// To the library, which stores matrices by columns, a matrix stored by rows is its transpose. So it is asked for
/// `yᵀ = bᵀ aᵀ`, whose columns are the rows of `y`, and the bias of `y`'s columns lies along the columns of the result.
fn described(
    [dtype, result]: [DType; 2],
    a: &Strided,
    b: &Strided,
    bias: Option<&Strided>,
    y: &Strided,
) -> Option<Gemm> {
    let nd = y.ndim();
    let rows = y.shape[nd - 2];
    let dense_bias = bias.is_none_or(|bias| bias.shape[0] == 1 || bias.strides[0] == 1);
    if !dtype.is_float() || y.numel() == 0 || a.shape[nd - 1] == 0 || !dense_bias {
        return None;
    }
    let steps = (a.strides.iter().zip(&b.strides).zip(&y.strides)).map(|((&a, &b), &y)| [a, b, y]);
    let batch = Batch::of(y.shape[..nd - 2].iter().zip(steps))?;
    let apart = Rows {
        count: rows,
        of_a: a.strides[nd - 2],
        of_y: y.strides[nd - 2],
    };
    let gemm = |rows: Rows, batch: Batch| -> Option<Gemm> {
        let (m, n, k) = (rows.count, y.shape[nd - 1], a.shape[nd - 1]);
        // The library counts in 32 bits, and a grid has at most this many layers.
        if [m, n, k].iter().any(|&e| i32::try_from(e).is_err()) || batch.count > MOST_BATCHES {
            return None;
        }
        let (left, transpose_a) = stored([n, k], [b.strides[nd - 1], b.strides[nd - 2]])?;
        let (right, transpose_b) = stored([k, m], [a.strides[nd - 1], rows.of_a])?;
        let (product, false) = stored([n, m], [y.strides[nd - 1], rows.of_y])? else {
            return None;
        };
        let [step_a, step_b, step_y] = batch.steps.map(|step| step as i64);
        let with = |step: i64, matrix: Matrix| Matrix { step, ..matrix };
        Some(Gemm {
            dtype,
            result,
            precision: MatmulPrecision::Full,
            a: with(step_b, left),
            b: with(step_a, right),
            d: with(step_y, product),
            transpose_a,
            transpose_b,
            bias: bias.map(|_| 0),
            batches: batch.count as i32,
        })
    };
    // Batches that share the right side are further rows of one product.
    let together = apart
        .with(&batch)
        .and_then(|rows| gemm(rows, Batch::default()));
    together.or_else(|| gemm(apart, batch))
}

/// The most batches of one call.
const MOST_BATCHES: usize = u16::MAX as usize;

/// The rows of a and y, and the strides between them.
#[derive(Clone, Copy, Debug)]
struct Rows {
    count: usize,
    of_a: isize,
    of_y: isize,
}

impl Rows {
    /// The rows of all batches, if b is the same for all and the row strides continue from batch to batch.
    fn with(self, batch: &Batch) -> Option<Self> {
        let [step_a, step_b, step_y] = batch.steps;
        let own = self.count as isize;
        let (of_a, of_y) = match self.count {
            1 => (step_a, step_y),
            _ => (self.of_a, self.of_y),
        };
        let goes_on = (step_a, step_y) == (own * of_a, own * of_y);
        (batch.count > 1 && step_b == 0 && goes_on).then_some(Self {
            count: self.count * batch.count,
            of_a,
            of_y,
        })
    }
}

/// Batches at a regular stride.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Batch {
    count: usize,
    /// The strides of a, b and y.
    steps: [isize; 3],
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            count: 1,
            steps: [0; 3],
        }
    }
}

impl Batch {
    /// All batch dims as one, if their strides allow it. The dims come outermost first.
    fn of<'a>(dims: impl Iterator<Item = (&'a usize, [isize; 3])>) -> Option<Self> {
        let mut all = Self::default();
        for (&extent, steps) in dims.filter(|&(&extent, _)| extent != 1) {
            let goes_on = |d: usize| all.steps[d] == steps[d] * extent as isize;
            if all.count != 1 && !(0..3).all(goes_on) {
                return None;
            }
            all = Self {
                count: all.count * extent,
                steps,
            };
        }
        all.steps.iter().all(|&step| step >= 0).then_some(all)
    }
}

/// A matrix of these extents and strides, stored by columns, and whether what is stored is its transpose.
fn stored([rows, columns]: [usize; 2], [down, across]: [isize; 2]) -> Option<(Matrix, bool)> {
    let by_columns = |rows: usize, columns: usize, down: isize, across: isize| {
        // A stride that is never used may be any number.
        let leading = if columns == 1 { rows as isize } else { across };
        ((rows == 1 || down == 1) && leading >= rows as isize).then_some(Matrix {
            address: 0,
            rows: rows as u64,
            columns: columns as u64,
            leading: leading as i64,
            step: 0,
        })
    };
    let plain = by_columns(rows, columns, down, across).map(|matrix| (matrix, false));
    plain.or_else(|| by_columns(columns, rows, across, down).map(|matrix| (matrix, true)))
}
