//! Tensors from nothing.

use super::{Mesh, Steps};
use crate::{Error, Placements, Result, Shape, ShardTensor};
use shard_comm::half::{bf16, f16};
use shard_comm::{Bool, Call, Calling, DType, Element, Monoid, Scalar, Strided};
use shard_ops::random::{Distribution, random};
use shard_ops::{holds, key_of};
use shard_redistribute::Array;
use std::ops::Range;

/// Tensors from nothing. No communication.
impl Mesh {
    /// A tensor of zeros.
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    #[track_caller]
    pub fn zeros(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("zeros");
        self.full(shape, 0.0, placements)
    }

    /// A tensor of ones.
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    #[track_caller]
    pub fn ones(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("ones");
        self.full(shape, 1.0, placements)
    }

    /// A tensor of one value: of numbers, or, as of `true`, of truth values whatever the mesh's type is. Whole numbers are exact
    /// in `i64`.
    ///
    /// ```
    /// use shard_tensor::{DType, launch, shard};
    /// let dtypes = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (halves, all) = (mesh.full([3], 0.5, shard(0))?, mesh.full([3], true, shard(0))?);
    ///     Ok([halves.dtype(), all.dtype()])
    /// })?;
    /// assert_eq!(dtypes[0], [DType::F32, DType::Bool]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) for a value that the type cannot hold: a fraction in integers,
    /// or a number beyond the type's range.
    #[track_caller]
    pub fn full(
        &self,
        shape: impl Into<Shape>,
        value: impl Into<Scalar>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("full");
        let (shape, value, placements) = (shape.into(), value.into(), placements.into());
        match value {
            Scalar::Bool(_) => self.with_dtype(DType::Bool).all(&shape, value, &placements),
            value => self.all(&shape, value, &placements),
        }
    }

    /// [`full`](Self::full), once for all kinds of arguments.
    #[track_caller]
    fn all(&self, shape: &Shape, value: Scalar, placements: &Placements) -> Result<ShardTensor> {
        match value {
            // Not by way of f64, which holds fewer.
            Scalar::I64(_) if self.dtype == DType::I64 => {}
            value => self.check_holds("full", value.to_f64())?,
        }
        let layout = self.laid_out(shape, placements)?;
        let call = Call::new("full").with(value.to_bits().into());
        let number = self.cx.record(call.constant().of(self.dtype, &layout));
        let Some(local) = layout.local_shape(self.ctx.rank()) else {
            let nothing = Array::from_parts(&self.cx, &layout, None, self.dtype)?;
            return self.wrap(nothing.with_number(number));
        };
        // The terms of a partial tensor: the value at coordinate 0, the identity elsewhere.
        let holds = self
            .coords()
            .is_some_and(|c| layout.partial_axes().iter().all(|&a| c[a] == 0));
        let scalar = match layout.partial_op() {
            Some(op) if !holds => Monoid::Op(op).identity(self.dtype)[0],
            _ => value,
        };
        let device = self.ctx.device();
        let mut buffer = device.alloc(self.dtype, local.iter().product())?;
        device.fill(&mut buffer, &Strided::contiguous(&local), scalar)?;
        let full = Array::from_parts(&self.cx, &layout, Some(buffer.freeze()), self.dtype)?;
        self.wrap(full.with_number(number))
    }

    /// A tensor whose contents do not matter.
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    #[track_caller]
    pub fn empty(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("empty");
        let layout = self.layout(shape, placements)?;
        (self.cx).record(Call::new("empty").of(self.dtype, &layout));
        let local = match layout.local_shape(self.ctx.rank()) {
            Some(shape) => Some(
                self.ctx
                    .device()
                    .alloc(self.dtype, shape.iter().product())?
                    .freeze(),
            ),
            None => None,
        };
        self.wrap(Array::from_parts(&self.cx, &layout, local, self.dtype)?)
    }

    /// The numbers 0, 1, ... `n - 1`, or those of a range, or from a start to an end by a step, in the handle's type. The end is left out.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let rows = [shard(0)];
    ///     let all = [mesh.arange(3, rows.clone())?, mesh.arange((7, 1, -2), rows.clone())?, mesh.arange((0.0, 1.0, 0.5), rows)?];
    ///     all.iter().map(|x| x.to_array::<f32>()).collect::<shard_tensor::Result<Vec<_>>>()
    /// })?;
    /// assert_eq!(found[0][0].as_slice(), Some(&[0.0, 1.0, 2.0][..]));
    /// assert_eq!(found[0][1].as_slice(), Some(&[7.0, 5.0, 3.0][..]));
    /// assert_eq!(found[0][2].as_slice(), Some(&[0.0, 0.5][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) if the type cannot hold the first and the last, and for a step that leads away
    /// from the end.
    #[track_caller]
    pub fn arange(
        &self,
        numbers: impl Into<Steps>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("arange");
        let numbers = numbers.into();
        let count = numbers.count()?;
        let call = (numbers.key().into_iter())
            .fold(Call::new("arange").constant(), |call, part| call.with(part));
        let ends = [0, count.saturating_sub(1)];
        let exact = self.dtype == DType::I64 && ends.iter().all(|&i| numbers.whole(i).is_some());
        if count > 0 && !exact {
            for end in ends.map(|i| numbers.at(i)) {
                // Fractions are cut towards zero, as PyTorch cuts them.
                let kept = if self.dtype.is_float() {
                    end
                } else {
                    end.trunc()
                };
                self.check_holds("arange", kept)?;
            }
        }
        if !exact {
            return self.filled(&call, &count.into(), &placements.into(), &|i| {
                numbers.at(i[0])
            });
        }
        // Not by way of f64, which holds fewer.
        let layout = self.layout(count, placements)?;
        let known = self.cx.record(call.of(self.dtype, &layout));
        let number = |i: &[usize]| numbers.whole(i[0]).unwrap_or_default();
        self.wrap(Array::from_fn(&self.cx, &layout, number)?.with_number(known))
    }

    /// `base` to the powers of [`linspace`](Self::linspace): `steps` numbers from `base^start` to `base^end`, each as many times the one before.
    ///
    /// # Collective
    /// As [`linspace`](Self::linspace).
    ///
    /// # Errors
    /// As [`linspace`](Self::linspace); [`Argument`](Error::Argument) for a base that is not finite.
    ///
    /// ```
    /// let x = shard_tensor::launch(2, |ctx| {
    ///     ctx.mesh_of(2)?.logspace(-1.0, 1.0, 3, 10.0, [shard_tensor::shard(0)])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(x[0], ndarray::arr1(&[0.1, 1.0, 10.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn logspace(
        &self,
        start: f64,
        end: f64,
        steps: usize,
        base: f64,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        const OP: &str = "logspace";
        let _call = Calling::of(OP);
        for value in [start, end, base] {
            if !value.is_finite() {
                return Err(Error::argument(
                    OP,
                    "ends and a base that are finite",
                    format!("{base} to the powers of {start} to {end}"),
                    "choose others",
                ));
            }
        }
        for value in [base.powf(start), base.powf(end)] {
            self.check_holds(OP, value)?;
        }
        let call = [start, end, base]
            .iter()
            .fold(Call::new(OP).constant(), |call, value| {
                call.with(value.to_bits().into())
            });
        self.filled(&call, &steps.into(), &placements.into(), &|i| {
            base.powf(between(start, end, steps, i[0]))
        })
    }

    /// `steps` numbers from `start` to `end`, both included, as far from each other as the next; of integers, cut towards
    /// zero. As PyTorch's, they are counted from the nearer end.
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) for ends that are not finite, or that the type cannot hold.
    ///
    /// ```
    /// let x = shard_tensor::launch(2, |ctx| {
    ///     ctx.mesh_of(2)?.linspace(-1.0, 1.0, 5, [shard_tensor::shard(0)])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(x[0], ndarray::arr1(&[-1.0, -0.5, 0.0, 0.5, 1.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn linspace(
        &self,
        start: f64,
        end: f64,
        steps: usize,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("linspace");
        for value in [start, end] {
            if !value.is_finite() {
                return Err(Error::argument(
                    "linspace",
                    "ends that are finite",
                    format!("{start} to {end}"),
                    "choose other ends",
                ));
            }
            self.check_holds("linspace", value)?;
        }
        let call = Call::new("linspace")
            .constant()
            .with(start.to_bits().into());
        let call = call.with(end.to_bits().into());
        self.filled(&call, &steps.into(), &placements.into(), &|i| {
            between(start, end, steps, i[0])
        })
    }

    /// Matrices of this shape with ones on the main diagonal and zeros elsewhere: the identity, where they are square. A number, `n`, is
    /// `[n, n]`.
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication.
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) for no dims.
    #[track_caller]
    pub fn eye(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let shape = match *shape.into() {
            [] => {
                return Err(Error::argument(
                    "eye",
                    "a shape with dims",
                    "no dims",
                    "give the number of rows, or rows and columns: `mesh.eye([n, m], ..)`",
                ));
            }
            [n] => Shape::from([n, n]),
            ref dims => dims.into(),
        };
        let ndim = shape.len();
        let _call = Calling::of("eye");
        self.filled(
            &Call::new("eye").constant(),
            &shape,
            &placements.into(),
            &|i| f64::from(u8::from(i[ndim - 2] == i[ndim - 1])),
        )
    }

    /// A tensor whose elements are a function of the global index, converted to the handle's type: rounded to floating-point
    /// types, cut towards zero and to the range of integers.
    ///
    /// ```
    /// let x = shard_tensor::launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([3, 2], [shard_tensor::shard(0)], |i| (10 * i[0] + i[1]) as f64)?;
    ///     x.to_array::<f32>()
    /// })?;
    /// assert_eq!(x[1], ndarray::arr2(&[[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh, with equal arguments. No communication. All ranks of the program, if what comes of it goes to another
    /// mesh: which function it was, ranks know by counting.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    #[track_caller]
    pub fn from_fn(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
        f: impl Fn(&[usize]) -> f64,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("from_fn");
        self.filled(&Call::new("from_fn"), &shape.into(), &placements.into(), &f)
    }

    /// [`from_fn`](Self::from_fn), once for all functions: it is compiled for eight element types. The call has what the function
    /// depends on, as far as it is known.
    #[track_caller]
    pub(crate) fn filled(
        &self,
        call: &Call<'_>,
        shape: &Shape,
        placements: &Placements,
        f: &dyn Fn(&[usize]) -> f64,
    ) -> Result<ShardTensor> {
        let layout = &self.laid_out(shape, placements)?;
        let cx = &self.cx;
        let number = cx.record(call.of(self.dtype, layout));
        let filled = match self.dtype {
            DType::F64 => Array::from_fn(cx, layout, f),
            DType::F32 => Array::from_fn(cx, layout, |i| f32::from_f64(f(i))),
            DType::F16 => Array::from_fn(cx, layout, |i| f16::from_f64(f(i))),
            DType::BF16 => Array::from_fn(cx, layout, |i| bf16::from_f64(f(i))),
            DType::I64 => Array::from_fn(cx, layout, |i| i64::from_f64(f(i))),
            DType::I32 => Array::from_fn(cx, layout, |i| i32::from_f64(f(i))),
            DType::U8 => Array::from_fn(cx, layout, |i| u8::from_f64(f(i))),
            DType::Bool => Array::from_fn(cx, layout, |i| Bool::from_f64(f(i))),
        };
        self.wrap(filled?.with_number(number))
    }

    /// Uniform random numbers in `[0, 1)`: the same tensor under any placements and on any number of ranks.
    ///
    /// # Collective
    /// All ranks of the program must draw the same tensors in the same order.
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) for integers, which have no number in between: give
    /// [`uniform`](Self::uniform) their range.
    #[track_caller]
    pub fn rand(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("rand");
        self.check_float("rand")?;
        self.random(&shape.into(), &placements.into(), Distribution::Unit)
    }

    /// Uniform random numbers in a range, without its end; of integers those in the range, each as often.
    ///
    /// # Collective
    /// As [`rand`](Self::rand).
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) for a range that ends before it starts, is not finite, or
    /// leaves the type's; of integers for one that has none, more than 2^53, or such that are as far from 0.
    #[track_caller]
    pub fn uniform(
        &self,
        shape: impl Into<Shape>,
        range: Range<f64>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("uniform");
        self.uniform_as("uniform", &shape.into(), range, &placements.into())
    }

    /// [`uniform`](Self::uniform), by another name.
    #[track_caller]
    pub(crate) fn uniform_as(
        &self,
        op: &'static str,
        shape: &Shape,
        range: Range<f64>,
        placements: &Placements,
    ) -> Result<ShardTensor> {
        let (start, end) = match self.dtype.is_float() {
            true => (range.start, range.end),
            // From the first integer of the range to behind the last.
            false => (range.start.ceil(), range.end.ceil()),
        };
        let width = end - start;
        if !(width.is_finite() && width >= 0.0) {
            return Err(Error::argument(
                op,
                "a finite range that does not end before it starts",
                format!("{range:?}"),
                "swap its ends",
            ));
        }
        let last = match self.dtype.is_float() {
            true => end,
            false => {
                check_tells_apart(op, &range, start..end)?;
                end - 1.0
            }
        };
        self.check_holds(op, start)?;
        self.check_holds(op, last)?;
        // Rounded, it may lead beyond the end.
        let width = if start + width > end {
            width.next_down()
        } else {
            width
        };
        self.random(shape, placements, Distribution::Uniform { start, width })
    }

    /// Standard normal random numbers: the same tensor under any placements and on any number of ranks.
    ///
    /// # Collective
    /// As [`rand`](Self::rand).
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) for integers.
    #[track_caller]
    pub fn randn(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("randn");
        self.check_float("randn")?;
        self.random(&shape.into(), &placements.into(), Distribution::Normal)
    }

    /// Refuses a number that would become another one.
    fn check_holds(&self, op: &'static str, value: f64) -> Result<()> {
        match holds(self.dtype, value) {
            true => Ok(()),
            false => Err(Error::argument(
                op,
                format!("numbers that {} holds", self.dtype),
                format!("{value}"),
                "choose another number, or another type: `mesh.with_dtype(..)`",
            )),
        }
    }

    fn check_float(&self, op: &'static str) -> Result<()> {
        match self.dtype.is_float() {
            true => Ok(()),
            false => Err(Error::argument(
                op,
                "a floating-point type",
                self.dtype.name(),
                "draw integers from their range: `mesh.randint(shape, 0..10, ..)`; or choose another type: `mesh.with_dtype(..)`",
            )),
        }
    }

    /// The numbers of the context's next stream.
    #[track_caller]
    fn random(
        &self,
        shape: &Shape,
        placements: &Placements,
        how: Distribution,
    ) -> Result<ShardTensor> {
        let stream = self.ctx.next_stream();
        let layout = self.laid_out(shape, placements)?;
        let call = Call::keyed("random", key_of("random", &(stream, format!("{how:?}"))));
        let number = self.cx.record(call.constant().of(self.dtype, &layout));
        let drawn = random(&self.cx, &layout, self.dtype, &stream, how)?;
        self.wrap(drawn.with_number(number))
    }
}

/// Refuses a range without integers, which are those from the first to behind the last, and one whose integers `f64` does not tell apart.
#[track_caller]
fn check_tells_apart(op: &'static str, range: &Range<f64>, integers: Range<f64>) -> Result<()> {
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    let ends = [integers.start, integers.end];
    let width = integers.end - integers.start;
    match width > 0.0 && width <= LIMIT && ends.iter().all(|end| end.abs() < LIMIT) {
        true => Ok(()),
        false => Err(Error::argument(
            op,
            "a range of 1 to 2^53 integers, all of them nearer to 0 than 2^53",
            format!("{range:?}"),
            "give a range whose integers f64 tells apart",
        )),
    }
}

/// Number `i` of so many from `start` to `end`, counted from the nearer end.
fn between(start: f64, end: f64, steps: usize, i: usize) -> f64 {
    let parts = steps.saturating_sub(1).max(1) as f64;
    // Ends may be further apart than any number is from 0.
    let step = match (end - start).is_finite() {
        true => (end - start) / parts,
        false => end / parts - start / parts,
    };
    match i < steps / 2 || steps == 1 {
        true => start + i as f64 * step,
        false => end - (steps - 1 - i) as f64 * step,
    }
}
