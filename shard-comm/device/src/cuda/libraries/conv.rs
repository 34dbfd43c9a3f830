//! Convolutions in the form that cuDNN takes.

use smallvec::SmallVec;

use super::super::Cuda;
use super::super::terms::{ConvKind, Convolution, Numbers, Tensor};
use crate::view::is_dense;
use crate::{
    Buffer, BufferMut, DType, Device, DeviceError, MatmulPrecision, Result, Scalar, Strided,
};

/// A convolution between boxes. Along a spatial dim, element `i` of x, `o` of y and `k` of w meet where
/// `i = o * stride + k * dilation + origin`; where x has no such element, zero takes its place. Lists have one entry per
/// spatial dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvCall<'a> {
    /// Which of the three products is computed.
    pub kind: ConvKind,
    /// Inputs from one output to the next.
    pub stride: &'a [usize],
    /// Inputs from one tap to the next.
    pub dilation: &'a [usize],
    /// The index of the input at which the first output and the first tap meet.
    pub origin: &'a [isize],
    /// Channels are cut into this many groups that do not mix.
    pub groups: usize,
    /// How exact products are.
    pub precision: MatmulPrecision,
}

impl Cuda {
    /// A convolution by cuDNN. x is (N, C, spatial...), w is (O, C / groups, kernel...), y is (N, O, spatial...), with one to
    /// three spatial dims. The call reads two of x, w and y (or their gradients) and writes the third, as `kind` says.
    ///
    /// In full precision, some gradients are other calls of the libraries, where cuDNN has no fast engine: those of windows
    /// that do not overlap are products, and of images of three dims the gradient by the input is a convolution with the filter back to
    /// front, and that by the filter a product with what the windows see.
    ///
    /// Views that the library does not take as they lie are packed before the call, and a packed result is copied to its view
    /// afterwards. The library has no padding that differs between the two sides of a dim: such padding is packed as zeros.
    ///
    /// Returns false, and does nothing, if the library is [not there](Self::libraries) or cannot describe the call: it takes
    /// floats, less than 2^31 elements to a tensor, and no empty tensor.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for views that do not fit each other or their buffers, or buffers of other types or devices;
    /// otherwise whatever the library or the driver reports.
    pub fn convolve(
        &self,
        call: &ConvCall<'_>,
        reads: [(&Buffer, &Strided); 2],
        write: (&mut BufferMut, &Strided),
    ) -> Result<bool> {
        let dtype = write.0.dtype();
        for (buffer, view) in &reads {
            view.validate(buffer.len())?;
            if buffer.dtype() != dtype {
                return Err(DeviceError::dtype("convolve", dtype, buffer.dtype()));
            }
        }
        write.1.validate(write.0.len())?;
        let views = match call.kind {
            ConvKind::Forward => [reads[0].1, reads[1].1, write.1],
            ConvKind::InputGrad => [write.1, reads[1].1, reads[0].1],
            ConvKind::WeightGrad => [reads[0].1, write.1, reads[1].1],
        };
        check_shapes(call, views)?;
        if !dtype.is_float() {
            return Ok(false);
        }
        let (buffer, at) = write;
        if self.convolve_otherwise(call, reads, (&mut *buffer, at))? {
            return Ok(true);
        }
        let write = (buffer, at);
        for pack in [false, true] {
            let Some(terms) = Terms::new(call, views, pack) else {
                continue;
            };
            let Some(mut convolution) = terms.convolution(call, dtype) else {
                continue;
            };
            // What the library reads and writes as it lies; new memory is aligned.
            let (from, to) = terms.by_role(call.kind);
            for ((tensor, place), (buffer, _)) in
                convolution.read().into_iter().zip(from).zip(reads)
            {
                if place.packed.is_none() {
                    tensor.address = self.address(buffer)? + place.offset(dtype);
                }
            }
            if to.packed.is_none() {
                convolution.written().address = self.address_mut(write.0)? + to.offset(dtype);
            }
            let plan = self.driver.plan_convolution(&convolution);
            if let Some(bytes) = plan.map_err(|r| self.refused(r))? {
                self.run(&terms, convolution, bytes, reads, write)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Packs the operands, calls the library, and copies a packed result to its view.
    fn run(
        &self,
        terms: &Terms,
        mut convolution: Convolution,
        bytes: usize,
        reads: [(&Buffer, &Strided); 2],
        write: (&mut BufferMut, &Strided),
    ) -> Result<()> {
        let dtype = write.0.dtype();
        let (from, to) = terms.by_role(convolution.kind);
        let mut packed: SmallVec<[Buffer; 2]> = SmallVec::new();
        for ((tensor, place), (buffer, _)) in convolution.read().into_iter().zip(from).zip(reads) {
            if let Some(inside) = &place.packed {
                let mut dense = self.alloc(dtype, place.elements())?;
                if inside.numel() < place.elements() {
                    let all = Strided::contiguous(&[place.elements()]);
                    self.fill(&mut dense, &all, Scalar::ZERO)?;
                }
                self.copy(buffer, &place.view, &mut dense, inside)?;
                let dense = dense.freeze();
                tensor.address = self.address(&dense)?;
                packed.push(dense);
            }
        }
        let (buffer, whole) = write;
        if to.view.numel() < whole.numel() {
            // The gradient of inputs that no output reads is zero.
            self.fill(buffer, whole, Scalar::ZERO)?;
        }
        let mut spread = None;
        if to.packed.is_some() {
            let mut dense = self.alloc(dtype, to.elements())?;
            convolution.written().address = self.address_mut(&mut dense)?;
            spread = Some(dense);
        }
        let mut workspace = self.workspace(bytes)?;
        let at = self.address_mut(&mut workspace)?;
        // SAFETY: addresses, extents and strides are those of views that were checked against their buffers, which are this
        // device's, or those of dense memory of that size; the workspace has the bytes that were asked for. All memory that was
        // allocated here is given back in the order of the stream.
        #[expect(unsafe_code, reason = "the library writes where it is told")]
        unsafe { self.driver.convolve(&convolution, (at, bytes)) }.map_err(|r| self.refused(r))?;
        if let (Some(dense), Some(inside)) = (spread, &to.packed) {
            self.copy(&dense.freeze(), inside, buffer, &to.view)?;
        }
        self.writes(buffer)?;
        self.has_read(&[reads[0].0, reads[1].0])?;
        tracing::trace!(target: "shard_device::cuda", ?convolution, "cuDNN");
        Ok(())
    }
}

fn check_shapes(call: &ConvCall<'_>, [x, w, y]: [&Strided; 3]) -> Result<()> {
    let nd = call.stride.len();
    let fits = (1..=3).contains(&nd)
        && (call.dilation.len(), call.origin.len()) == (nd, nd)
        && !call.stride.contains(&0)
        && !call.dilation.contains(&0)
        && [x, w, y].iter().all(|view| view.ndim() == nd + 2)
        && x.shape[0] == y.shape[0]
        && w.shape[0] == y.shape[1]
        && w.shape[1].checked_mul(call.groups) == Some(x.shape[1]);
    if fits {
        return Ok(());
    }
    Err(DeviceError::invalid(
        "convolve",
        "(N, C, spatial...), (O, C / groups, kernel...) and (N, O, spatial...) of one to three spatial dims",
        format!("{call:?} of {x:?}, {w:?} and {y:?}"),
        "give views whose extents agree, and one stride, dilation and origin per spatial dim",
    ))
}

/// Where a tensor is handed to the library.
#[derive(Debug)]
struct Place {
    /// The part of the caller's view that the library works on.
    view: Strided,
    /// The extents of the tensor.
    shape: SmallVec<[usize; 5]>,
    /// Where that part lies in dense memory of the extents `shape`, if it is packed.
    packed: Option<Strided>,
}

impl Place {
    fn new(view: &Strided, packed: bool) -> Self {
        Self {
            shape: view.shape.iter().copied().collect(),
            packed: packed.then(|| Strided::contiguous(&view.shape)),
            view: view.clone(),
        }
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes in front of the part, where it is not packed.
    fn offset(&self, dtype: DType) -> u64 {
        (self.view.offset * dtype.size()) as u64
    }

    /// The tensor, without its address; one spatial dim becomes two.
    fn tensor(&self) -> Option<Tensor> {
        let dense = Strided::contiguous(&self.shape);
        let strides = match &self.packed {
            None => &self.view.strides,
            Some(_) => &dense.strides,
        };
        let mut tensor = Tensor {
            address: 0,
            dims: Numbers::new(),
            strides: Numbers::new(),
        };
        let mut reach = 0_i32;
        for (d, &extent) in self.shape.iter().enumerate() {
            // The stride of a dim of extent 1 is never used and may be any number; the library wants it to be that of a dense
            // tensor.
            let stride = if extent == 1 {
                dense.strides[d]
            } else {
                strides[d]
            };
            let (extent, stride) = (i32::try_from(extent).ok()?, i32::try_from(stride).ok()?);
            if extent == 0 || stride <= 0 {
                return None;
            }
            reach = reach.checked_add((extent - 1).checked_mul(stride)?)?;
            if d == 2 && self.shape.len() == 3 {
                tensor.dims.push(1);
                tensor.strides.push(extent.checked_mul(stride)?);
            }
            tensor.dims.push(extent);
            tensor.strides.push(stride);
        }
        (reach < i32::MAX).then_some(tensor)
    }
}

/// Where x, w and y are, and the padding of x.
#[derive(Debug)]
struct Terms {
    places: [Place; 3],
    pad: SmallVec<[usize; 3]>,
}

impl Terms {
    /// `None` if the views cannot be taken as they lie, or, where `pack` allows packing, if they cannot be taken at all.
    fn new(call: &ConvCall<'_>, [x, w, y]: [&Strided; 3], pack: bool) -> Option<Self> {
        let dense = |view: &Strided| is_dense(&view.shape, &view.strides);
        // The library's descriptions of filters have no strides.
        if !dense(w) && !pack {
            return None;
        }
        let mut used = Place::new(x, false);
        // Where the used part of x begins in a packed tensor that holds its padding too.
        let mut before: SmallVec<[usize; 5]> = SmallVec::from_slice(&[0, 0]);
        let mut pad = SmallVec::new();
        for d in 0..call.stride.len() {
            let at = Meeting::new(
                [x.shape[2 + d], w.shape[2 + d], y.shape[2 + d]],
                [call.stride[d], call.dilation[d]],
                call.origin[d],
            )?;
            used.view.offset =
                (used.view.offset).checked_add_signed(at.skip as isize * x.strides[2 + d])?;
            used.view.shape[2 + d] = at.take;
            let even = at.is_even();
            if !even && !pack {
                return None;
            }
            pad.push(if even { at.low } else { 0 });
            before.push(if even { 0 } else { at.low });
            used.shape[2 + d] = if even {
                at.take
            } else {
                at.low + at.take + at.high
            };
        }
        let uneven = used.shape[..] != used.view.shape[..];
        if uneven || (pack && !dense(&used.view)) {
            let mut inside = Strided::contiguous(&used.shape);
            inside.offset = (before.iter().zip(&inside.strides))
                .map(|(&at, &step)| at * step as usize)
                .sum();
            inside.shape = used.view.shape.clone();
            used.packed = Some(inside);
        }
        Some(Self {
            places: [
                used,
                Place::new(w, pack && !dense(w)),
                Place::new(y, pack && !dense(y)),
            ],
            pad,
        })
    }

    /// What is read, in the order of an op's operands, and what is written.
    fn by_role(&self, kind: ConvKind) -> ([&Place; 2], &Place) {
        let [x, w, y] = &self.places;
        match kind {
            ConvKind::Forward => ([x, w], y),
            ConvKind::InputGrad => ([y, w], x),
            ConvKind::WeightGrad => ([x, y], w),
        }
    }

    /// The call, without addresses; `None` where its numbers are too large.
    fn convolution(&self, call: &ConvCall<'_>, dtype: DType) -> Option<Convolution> {
        let [x, w, y] = &self.places;
        let numbers = |of: &[usize], missing: i32| -> Option<Numbers> {
            let front = (of.len() == 1).then_some(Some(missing)).into_iter();
            let all = front.chain(of.iter().map(|&n| i32::try_from(n).ok()));
            all.collect()
        };
        Some(Convolution {
            kind: call.kind,
            dtype,
            precision: call.precision,
            x: x.tensor()?,
            w: w.tensor()?,
            y: y.tensor()?,
            pad: numbers(&self.pad, 0)?,
            stride: numbers(call.stride, 1)?,
            dilation: numbers(call.dilation, 1)?,
            groups: i32::try_from(call.groups).ok()?,
        })
    }
}

/// How the windows of the outputs lie on the inputs, along one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meeting {
    /// Inputs in front of all windows; they are not used.
    skip: usize,
    /// Inputs used from there on: until the last one that a window needs, or the last one there is.
    take: usize,
    /// How far the windows reach in front of the first input and behind the last one.
    low: usize,
    high: usize,
    stride: usize,
}

impl Meeting {
    /// `None` if no window meets an input, or the numbers are too large.
    fn new(
        [inputs, taps, outputs]: [usize; 3],
        [stride, dilation]: [usize; 2],
        origin: isize,
    ) -> Option<Self> {
        let span = taps.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
        // Positions from the begin of the first window to the end of the last one.
        let all = (outputs.checked_sub(1)?.checked_mul(stride)?).checked_add(span)?;
        let (low, skip) = match origin < 0 {
            true => (origin.unsigned_abs(), 0),
            false => (0, origin.unsigned_abs()),
        };
        let there = inputs.checked_sub(skip)?;
        let needed = all.checked_sub(low)?;
        let take = there.min(needed);
        (take > 0).then_some(Self {
            skip,
            take,
            low,
            high: needed - take,
            stride,
        })
    }

    /// Whether padding both sides by `low` gives the same windows: the padding this adds behind is less than one stride.
    fn is_even(&self) -> bool {
        self.low >= self.high && self.low - self.high < self.stride
    }
}
