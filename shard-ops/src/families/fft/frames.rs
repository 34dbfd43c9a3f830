//! Fourier transforms of short stretches of a signal, one after the other, and the way back.

use super::{FourierNorm, fft, irfft, rfft};
use crate::error::InOp;
use crate::families::broadcast::expand_like;
use crate::families::decided::read;
use crate::families::elementwise::{div, lt, mul, mul_scalar, number, unary};
use crate::families::full::{in_full_with, sums};
use crate::families::index::{pad, slice, stack};
use crate::families::reduce::any;
use crate::families::shape::{reshape, transpose};
use crate::families::unfold::{UnfoldOptions, fold, sliding};
use crate::{Exec, OpError, Result, Value};
use shard_comm::{AgreedError, Bool, CommError, DType};
use shard_kernels::unary::Unary;
use shard_spec::{EdgeMap, checked_numel};

/// The stretches of [`stft`] and [`istft`].
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// How many elements one has.
    pub size: usize,
    /// Elements from one to the next.
    pub hop: usize,
    /// What its elements are multiplied by: a list of at most so many, with zeros on both sides if they are fewer. Ones without it.
    pub window: Option<&'a Value>,
    /// Whether they lie around the places that they begin at else, and the signal is padded by half of one on either side.
    pub center: bool,
    /// With what it is padded.
    pub edge: EdgeMap,
    /// How transforms are scaled.
    pub norm: FourierNorm,
    /// Whether there are the `size / 2 + 1` frequencies alone of which the others are mirror images.
    pub onesided: bool,
}

/// The Fourier transforms of stretches of real signals `[.., time]`: `[.., frequencies, stretches, 2]`.
///
/// # Collective
/// All members of the mesh. Where time is sharded, the halos of stretches move and nothing else: stretches are sharded as it was. A partial
/// signal is reduced first.
///
/// # Errors
/// A signal without dims, or shorter than a stretch; no elements of one or between two; a window that is no list of at most as many
/// elements as it; types that differ or are not of floats.
pub fn stft(exec: &dyn Exec, x: &Value, frames: Frames<'_>) -> Result<Value> {
    let Some(last) = x.ndim().checked_sub(1) else {
        return Err(unfit(
            "stft",
            "there is no dim of time",
            &[x],
            "give a signal",
        ));
    };
    in_full_with(exec, [x], [frames.window], |[x], [window]| {
        spectra_of(exec, x, Frames { window, ..frames }, last)
    })
}

fn spectra_of(exec: &dyn Exec, x: &Value, frames: Frames<'_>, last: usize) -> Result<Value> {
    const NAME: &str = "stft";
    let Frames { size, hop, .. } = frames;
    let window = frames.check(exec, NAME, x)?;
    // Stretches overlap, so that there is less of it now.
    let [x] = &sums(exec, [x])?;
    let padded = match frames.center {
        true => {
            let half = (size / 2) as isize;
            let mut pads = vec![(0, 0); x.ndim()];
            pads[last] = (half, half);
            pad(exec, x, &pads, frames.edge, 0.0)?
        }
        false => x.clone(),
    };
    if padded.shape()[last] < size {
        let fix = "give a longer signal, or shorter stretches";
        return Err(unfit(
            NAME,
            "the signal is shorter than a stretch",
            &[x],
            fix,
        ));
    }
    let mut y = sliding(exec, &padded, last, size, hop)?;
    if let Some(window) = &window {
        y = mul(exec, &y, window)?;
    }
    let spectra = match frames.onesided {
        true => rfft(exec, &y, None, last + 1, frames.norm)?,
        false => {
            let none = mul_scalar(exec, &y.detach(), 0.0)?;
            let complex = stack(exec, &[&y, &none], last + 2)?;
            fft(exec, &complex, None, last + 1, frames.norm)?
        }
    };
    transpose(exec, &spectra, last, last + 1)
}

/// The signal `[.., time]` whose [`stft`] is nearest to these spectra, `[.., frequencies, stretches, 2]`: what they are transformed back to is
/// multiplied by the window again, summed where stretches overlap, and divided by the sum of the window's squares there. Without a `length`
/// there is as much of it as stretches cover, less the padding; beyond that it is 0. Of all frequencies those that mirror others are not
/// looked at.
///
/// # Collective
/// All members of the mesh. Where stretches are sharded, what of them belongs to other ranks' parts of the time. Whether windows cover the
/// signal is one truth value, which all ranks read.
///
/// # Errors
/// As [`stft`]; spectra of another number of frequencies, or of no stretches; a length that is more than can be counted; and, on all ranks,
/// windows that leave an element of what stretches cover with no weight.
pub fn istft(
    exec: &dyn Exec,
    spectra: &Value,
    frames: Frames<'_>,
    length: Option<usize>,
) -> Result<Value> {
    in_full_with(exec, [spectra], [frames.window], |[spectra], [window]| {
        signal_of(exec, spectra, Frames { window, ..frames }, length)
    })
}

fn signal_of(
    exec: &dyn Exec,
    spectra: &Value,
    frames: Frames<'_>,
    length: Option<usize>,
) -> Result<Value> {
    const NAME: &str = "istft";
    let window = frames.check(exec, NAME, spectra)?;
    let stretches = frames.stretches(NAME, spectra, length)?;
    let mut y = stretches_of(exec, spectra, frames)?;
    let mut squares = number(NAME, &y, 1.0)?;
    if let Some(window) = &window {
        y = mul(exec, &y, window)?;
        squares = unary(exec, window, Unary::Square)?;
    }
    let weight = stretches.summed(exec, &expand_like(exec, &squares, &y.detach())?)?;
    // Without a window each element that a stretch reaches counts.
    if window.is_some() || frames.hop > frames.size {
        check_covered(exec, NAME, &weight.detach(), spectra)?;
    }
    let signal = div(exec, &stretches.summed(exec, &y)?, &weight)?;
    let missing = stretches.length - (stretches.end - stretches.start);
    let signal = padded(exec, &signal, 0, missing as isize)?;
    reshape(exec, &signal, &stretches.shape)
}

/// The stretches `[.., stretches, size]` of which these are the spectra.
fn stretches_of(exec: &dyn Exec, spectra: &Value, frames: Frames<'_>) -> Result<Value> {
    let at = spectra.ndim() - 3;
    let turned = transpose(exec, spectra, at, at + 1)?;
    // Of signals that are real the others are mirror images.
    let half = match frames.onesided {
        true => turned,
        false => slice(exec, &turned, at + 1, 0, 1, frames.size / 2 + 1)?,
    };
    irfft(exec, &half, Some(frames.size), at + 1, frames.norm)
}

/// Where stretches lie in a signal.
struct Stretches {
    size: usize,
    hop: usize,
    count: usize,
    /// How many signals there are.
    signals: usize,
    /// How many elements stretches cover.
    covered: usize,
    /// Which of these are the signal's, and how many it has with those that are 0.
    start: usize,
    end: usize,
    length: usize,
    /// The shape of all signals.
    shape: Vec<usize>,
}

impl Stretches {
    /// The sum of stretches where they overlap, of the part that is the signal's.
    fn summed(&self, exec: &dyn Exec, y: &Value) -> Result<Value> {
        let at = y.ndim() - 2;
        let columns = transpose(exec, y, at, at + 1)?;
        let columns = reshape(exec, &columns, &[self.signals, self.size, self.count])?;
        let windows = UnfoldOptions {
            stride: vec![self.hop],
            ..UnfoldOptions::new([self.size])
        };
        let sum = fold(exec, &columns, &[self.covered], &windows)?;
        let [sum] = &sums(exec, [&sum])?;
        // Of what is cropped the windows may be zeros.
        let after = self.end as isize - self.covered as isize;
        padded(exec, sum, -(self.start as isize), after)
    }
}

fn padded(exec: &dyn Exec, x: &Value, before: isize, after: isize) -> Result<Value> {
    let pads = [(0, 0), (0, 0), (before, after)];
    pad(exec, x, &pads, EdgeMap::Zeros, 0.0)
}

/// Refuses windows whose squares come to nothing somewhere, by the bound of PyTorch's.
fn check_covered(exec: &dyn Exec, op: &'static str, weight: &Value, of: &Value) -> Result<()> {
    let bare = lt(exec, weight, &number(op, weight, 1e-11)?)?;
    let all: Vec<usize> = (0..weight.ndim()).collect();
    let bare = read::<Bool>(exec, op, &any(exec, &bare, &all, false)?)?;
    if !bare.is_some_and(Bool::get) {
        return Ok(());
    }
    let fix = "leave less between stretches, take a window that does not fade to 0 there, or ask for the part that is covered";
    let got = format!(
        "elements that no window covers, of spectra {:?}",
        of.shape()
    );
    let error = AgreedError::new(op, "windows that overlap enough", got, fix);
    Err(CommError::Agreed(Box::new(error))).in_op(op)
}

impl Frames<'_> {
    /// Where the stretches of these spectra lie, in signals of that `length` if one is given.
    fn stretches(
        &self,
        op: &'static str,
        spectra: &Value,
        length: Option<usize>,
    ) -> Result<Stretches> {
        let Self { size, hop, .. } = *self;
        let refused = |problem: &str, fix| unfit(op, problem, &[spectra], fix);
        let [batch @ .., frequencies, count, 2] = spectra.shape() else {
            let fix = "give [.., frequencies, stretches, 2]";
            return Err(refused("these are no spectra", fix));
        };
        let expected = if self.onesided { size / 2 + 1 } else { size };
        if *frequencies != expected || *count == 0 {
            let problem = format!("{frequencies} frequencies of {count} stretches");
            let fix = "give as many frequencies as `stft` with these options does, of one stretch at least";
            return Err(refused(&problem, fix));
        }
        let between = hop.checked_mul(count - 1);
        let covered = between.and_then(|between| between.checked_add(size));
        let covered = covered.filter(|&n| isize::try_from(n).is_ok());
        let covered = covered.ok_or_else(|| {
            let problem = format!("{count} stretches, {hop} elements from one to the next");
            refused(&problem, "name fewer elements")
        })?;
        let start = if self.center { size / 2 } else { 0 };
        let start = start.min(covered);
        let length = length.unwrap_or_else(|| covered.saturating_sub(2 * start));
        let shape: Vec<usize> = batch.iter().copied().chain([length]).collect();
        let bytes = checked_numel(&shape).ok();
        let bytes = bytes.and_then(|n| n.checked_mul(DType::F64.size()));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            let problem = format!("a signal of {length} elements");
            return Err(refused(&problem, "ask for a shorter one"));
        }
        Ok(Stretches {
            size,
            hop,
            count: *count,
            signals: batch.iter().product(),
            covered,
            start,
            end: start.saturating_add(length).min(covered),
            length,
            shape,
        })
    }

    /// The window, as long as a stretch, if there is one.
    fn check(&self, exec: &dyn Exec, op: &'static str, x: &Value) -> Result<Option<Value>> {
        // Positions are signed.
        let most = isize::MAX as usize / 2;
        if [self.size, self.hop].iter().any(|&n| n == 0 || n > most) {
            let problem = format!("stretches of {} elements, {} apart", self.size, self.hop);
            let fix = "give one element of each at least, and no more than can be counted";
            return Err(unfit(op, &problem, &[x], fix));
        }
        let Some(window) = self.window else {
            return Ok(None);
        };
        let missing = match window.shape() {
            [n] => self.size.checked_sub(*n),
            _ => None,
        };
        let missing = missing.ok_or_else(|| {
            let problem = format!("a window for stretches of {} elements", self.size);
            unfit(op, &problem, &[x, window], "give a list of at most as many")
        })?;
        let before = (missing / 2) as isize;
        let pads = [(before, missing as isize - before)];
        pad(exec, window, &pads, EdgeMap::Zeros, 0.0).map(Some)
    }
}

fn unfit(op: &'static str, problem: &str, of: &[&Value], fix: &'static str) -> OpError {
    OpError::Shape {
        op,
        problem: problem.to_owned(),
        shapes: of.iter().map(|x| x.shape().to_vec()).collect(),
        fix,
    }
}
