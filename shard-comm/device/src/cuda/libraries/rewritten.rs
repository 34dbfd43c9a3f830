//! Convolutions as other calls. In full precision the library has no fast engine for some gradients, and for others of images of three
//! dims only ones that take thirty times as long as the rest of the work.

use smallvec::SmallVec;

use super::super::Cuda;
use super::super::terms::ConvKind;
use super::conv::ConvCall;
use crate::view::is_dense;
use crate::{Buffer, BufferMut, DType, Device, MatmulPrecision, Result, Scalar, Strided};

type Read<'a> = (&'a Buffer, &'a Strided);
type Write<'a> = (&'a mut BufferMut, &'a Strided);

/// The most bytes of what windows see, each element once for each window that sees it.
const MOST_SEEN: usize = 1 << 30;

impl Cuda {
    /// Computes the convolution by other calls where that is faster; returns whether it did. Which it is depends on extents alone.
    pub(super) fn convolve_otherwise(
        &self,
        call: &ConvCall<'_>,
        reads: [Read<'_>; 2],
        write: Write<'_>,
    ) -> Result<bool> {
        let full = match write.0.dtype() {
            DType::F64 => true,
            DType::F32 => call.precision == MatmulPrecision::Full,
            _ => false,
        };
        let found = self.libraries();
        let views = [reads[0].1, reads[1].1, write.1];
        let there = found.cublaslt.is_found() && found.cudnn.is_found();
        if !full || !there || call.groups != 1 || views.iter().any(|view| view.numel() == 0) {
            return Ok(false);
        }
        let [x, w, y] = match call.kind {
            ConvKind::Forward => return Ok(false),
            ConvKind::InputGrad => [write.1, reads[1].1, reads[0].1],
            ConvKind::WeightGrad => [reads[0].1, write.1, reads[1].1],
        };
        let meets = (0..call.stride.len()).all(|d| {
            let end = reach(call, d, w.shape[2 + d], y.shape[2 + d]) as isize + call.origin[d];
            call.origin[d] < x.shape[2 + d] as isize && end > 0
        });
        if !meets {
            return Ok(false);
        }
        let deep = call.stride.len() == 3;
        let steps = call.stride.iter().all(|&stride| stride == 1);
        match call.kind {
            ConvKind::InputGrad if deep && steps => self.turned(call, reads, write),
            ConvKind::InputGrad => self.spread(call, reads, write),
            ConvKind::WeightGrad if deep => self.seen(call, reads, write),
            _ => Ok(false),
        }
    }

    /// The gradient by the input of windows one step apart: the convolution of the gradient by the output with the filter back to front.
    /// An input meets tap `k` where `output = input - k * dilation - origin`, so it meets tap `K - 1 - k` where `output = input + k *
    /// dilation - ((K - 1) * dilation + origin)`.
    fn turned(
        &self,
        call: &ConvCall<'_>,
        [dy, (w, at)]: [Read<'_>; 2],
        write: Write<'_>,
    ) -> Result<bool> {
        let mut back = at.clone();
        back.shape.swap(0, 1);
        back.strides.swap(0, 1);
        let mut origin: SmallVec<[isize; 3]> = SmallVec::new();
        for d in 2..at.ndim() {
            let last = at.shape[d] as isize - 1;
            let begin = back.offset as isize + last * at.strides[d];
            back.offset = begin as usize;
            back.strides[d] = -at.strides[d];
            origin.push(-(last * call.dilation[d - 2] as isize + call.origin[d - 2]));
        }
        let line = Strided::contiguous(&back.shape);
        let mut turned = self.alloc(w.dtype(), line.numel())?;
        self.copy(w, &back, &mut turned, &line)?;
        let turned = turned.freeze();
        let call = ConvCall {
            kind: ConvKind::Forward,
            origin: &origin,
            ..*call
        };
        self.convolve(&call, [dy, (&turned, &line)], write)
    }

    /// The gradient by the input of windows that do not overlap and lie inside the input: a product, whose elements are those of the
    /// gradient in another order.
    fn spread(
        &self,
        call: &ConvCall<'_>,
        [(dy, of_y), (w, of_w)]: [Read<'_>; 2],
        (dx, of_x): Write<'_>,
    ) -> Result<bool> {
        let nd = call.stride.len();
        let apart = (0..nd).all(|d| {
            let end = reach(call, d, of_w.shape[2 + d], of_y.shape[2 + d]) as isize;
            let inside = call.origin[d] >= 0 && end + call.origin[d] <= of_x.shape[2 + d] as isize;
            inside && call.stride[d] >= reach(call, d, of_w.shape[2 + d], 1)
        });
        let (taps, outputs) = (&of_w.shape[1..], &of_y.shape[2..]);
        if !apart || !of_w.is_contiguous() || !is_dense(outputs, &of_y.strides[2..]) {
            return Ok(false);
        }
        let (samples, channels) = (of_y.shape[0], of_w.shape[0]);
        let (taps, outputs) = (numel(taps), numel(outputs));
        let filter = Strided::new(
            of_w.offset,
            [samples, taps, channels].as_slice().into(),
            [0, 1, taps as isize].as_slice().into(),
        );
        let gradient = Strided::new(
            of_y.offset,
            [samples, channels, outputs].as_slice().into(),
            [of_y.strides[0], of_y.strides[1], 1].as_slice().into(),
        );
        let product = Strided::contiguous(&[samples, taps, outputs]);
        let mut seen = self.alloc(dx.dtype(), product.numel())?;
        let into = (&mut seen, &product);
        if !self.matmul((w, &filter), (dy, &gradient), None, into, call.precision)? {
            return Ok(false);
        }
        if product.numel() < of_x.numel() {
            self.fill(dx, of_x, Scalar::ZERO)?;
        }
        let (taps, outputs) = (&of_w.shape[2..], &of_y.shape[2..]);
        let windows = windows(call, (of_x, call.origin), taps, outputs);
        let line = Strided::contiguous(&windows.shape);
        self.copy(&seen.freeze(), &line, dx, &windows)?;
        Ok(true)
    }

    /// The gradient by the filter: a product with what the windows see.
    fn seen(
        &self,
        call: &ConvCall<'_>,
        [(x, of_x), (dy, of_y)]: [Read<'_>; 2],
        (dw, of_w): Write<'_>,
    ) -> Result<bool> {
        let (taps, outputs) = (&of_w.shape[2..], &of_y.shape[2..]);
        let (samples, filters, channels) = (of_y.shape[0], of_w.shape[0], of_w.shape[1]);
        let (columns, rows) = (samples * numel(outputs), channels * numel(taps));
        let size = dw.dtype().size();
        let fits = columns.checked_mul(rows * size);
        if fits.is_none_or(|bytes| bytes > MOST_SEEN) || !of_w.is_contiguous() {
            return Ok(false);
        }
        let padded = self.padded(call, (x, of_x), taps, outputs)?;
        let (x, of_x, origin) = match &padded {
            Some((padded, line)) => (padded, line, &[0; 3][..]),
            None => (x, of_x, call.origin),
        };
        // Samples last, beside the outputs: (channels, taps, samples, outputs).
        let nd = taps.len();
        let mut windows = windows(call, (of_x, origin), taps, outputs);
        let sample = (windows.shape.remove(0), windows.strides.remove(0));
        windows.shape.insert(1 + nd, sample.0);
        windows.strides.insert(1 + nd, sample.1);
        let line = Strided::contiguous(&windows.shape);
        let mut seen = self.alloc(dw.dtype(), line.numel())?;
        self.copy(x, &windows, &mut seen, &line)?;
        let seen = seen.freeze();
        let seen_at = Strided::new(
            0,
            [columns, rows].as_slice().into(),
            [1, columns as isize].as_slice().into(),
        );
        // The gradient by the output, samples beside outputs too.
        let mut by_filter = of_y.clone();
        by_filter.shape.swap(0, 1);
        by_filter.strides.swap(0, 1);
        let lies = by_filter.is_contiguous();
        let (gradient, offset) = match lies {
            true => (dy.clone(), of_y.offset),
            false => {
                let line = Strided::contiguous(&by_filter.shape);
                let mut dense = self.alloc(dy.dtype(), line.numel())?;
                self.copy(dy, &by_filter, &mut dense, &line)?;
                (dense.freeze(), 0)
            }
        };
        let gradient_at = Strided::new(
            offset,
            [filters, columns].as_slice().into(),
            [columns as isize, 1].as_slice().into(),
        );
        let mut to = Strided::contiguous(&[filters, rows]);
        to.offset = of_w.offset;
        self.matmul(
            (&gradient, &gradient_at),
            (&seen, &seen_at),
            None,
            (dw, &to),
            call.precision,
        )
    }

    /// The inputs that windows see from the first one on, with zeros where there are none, and how they lie; `None` if all windows lie
    /// inside the input.
    fn padded(
        &self,
        call: &ConvCall<'_>,
        (x, of_x): Read<'_>,
        taps: &[usize],
        outputs: &[usize],
    ) -> Result<Option<(Buffer, Strided)>> {
        let (mut from, mut shape) = (of_x.clone(), of_x.shape.clone());
        let mut before: SmallVec<[usize; 3]> = SmallVec::new();
        for d in 0..taps.len() {
            let (begin, extent) = (call.origin[d], of_x.shape[2 + d] as isize);
            let reach = reach(call, d, taps[d], outputs[d]);
            let end = begin + reach as isize;
            let first = begin.clamp(0, extent);
            let taken = (end.clamp(first, extent) - first) as usize;
            from.offset = (from.offset as isize + first * of_x.strides[2 + d]) as usize;
            from.shape[2 + d] = taken;
            shape[2 + d] = reach;
            before.push((first - begin) as usize);
        }
        // As many as the windows reach over, and none in front: then there are also none behind.
        if from.shape == shape && before.iter().all(|&before| before == 0) {
            return Ok(None);
        }
        let line = Strided::contiguous(&shape);
        let mut padded = self.alloc(x.dtype(), line.numel())?;
        self.fill(&mut padded, &line, Scalar::ZERO)?;
        let mut to = line.clone();
        to.shape = from.shape.clone();
        for (d, &before) in before.iter().enumerate() {
            to.offset += before * line.strides[2 + d] as usize;
        }
        if from.numel() > 0 {
            self.copy(x, &from, &mut padded, &to)?;
        }
        Ok(Some((padded.freeze(), line)))
    }
}

/// How many inputs lie from the first one that the windows of some outputs see to the last one.
fn reach(call: &ConvCall<'_>, d: usize, taps: usize, outputs: usize) -> usize {
    (outputs - 1) * call.stride[d] + (taps - 1) * call.dilation[d] + 1
}

/// What windows see of x, of which the first begins at `origin`: (samples, channels, taps, outputs).
fn windows(
    call: &ConvCall<'_>,
    (x, origin): (&Strided, &[isize]),
    taps: &[usize],
    outputs: &[usize],
) -> Strided {
    let mut view = Strided::new(x.offset, x.shape[..2].into(), x.strides[..2].into());
    for (d, &origin) in origin.iter().enumerate() {
        view.offset = (view.offset as isize + origin * x.strides[2 + d]) as usize;
    }
    for (extents, steps) in [(taps, call.dilation), (outputs, call.stride)] {
        for (d, (&extent, &step)) in extents.iter().zip(steps).enumerate() {
            view.shape.push(extent);
            view.strides.push(step as isize * x.strides[2 + d]);
        }
    }
    view
}

fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}
