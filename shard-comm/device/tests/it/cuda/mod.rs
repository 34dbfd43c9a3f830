//! GPUs against the host, and what only they have.

mod libraries;

use proptest::prelude::*;
use shard_device::cuda::{Availability, Cuda, availability};
use shard_device::view::steps_apart;
use shard_device::{
    Buffer, DType, DeviceError, DeviceKind, DeviceRef, Host, HostJob, Monoid, Result, Scalar,
    Strided, Work,
};
use shard_spec::{ReduceOp, Strides};

/// The emulation, where it is built, and a GPU, where there is one.
fn kinds() -> Vec<DeviceKind> {
    let mut kinds = Vec::new();
    if cfg!(feature = "cuda-emulated") {
        kinds.push(DeviceKind::EmulatedCuda);
    }
    if matches!(availability(), Availability::Ready { .. }) {
        kinds.push(DeviceKind::Cuda);
    }
    kinds
}

fn devices() -> Vec<DeviceRef> {
    kinds().into_iter().map(|kind| device_of(kind, 0)).collect()
}

fn device_of(kind: DeviceKind, rank: usize) -> DeviceRef {
    match kind {
        #[cfg(feature = "cuda-emulated")]
        DeviceKind::EmulatedCuda => Cuda::emulated().unwrap(),
        _ => Cuda::of_rank(rank).unwrap(),
    }
}

/// Makes the same calls on the host and on GPUs; all elements of the destination must be equal bit for bit.
fn alike(test: impl Fn(&DeviceRef) -> Result<Buffer>) {
    let host = Host::new();
    let expected = host.download(&test(&host).unwrap()).unwrap();
    for cuda in devices() {
        let got = cuda.download(&test(&cuda).unwrap()).unwrap();
        assert_eq!(got, expected, "{cuda:?}");
    }
}

#[test]
fn where_there_is_no_gpu_asking_for_one_is_a_typed_error() {
    if !matches!(availability(), Availability::Ready { .. }) {
        let error = Cuda::new(0).unwrap_err();
        assert!(
            matches!(&error, DeviceError::Library { call: "probe", .. }),
            "{error}"
        );
    }
}

/// A job is a function of this program: a GPU cannot run it, and must not be asked to.
#[test]
fn gpus_run_no_jobs_of_the_host() {
    assert!(Host::new().runs_host_jobs());
    for cuda in devices() {
        assert!(!cuda.runs_host_jobs(), "{cuda:?}");
    }
}

/// All kinds of values that a conversion may meet: ends of ranges, halves between 16-bit floats, subnormals, NaN.
fn hard_numbers() -> Vec<f64> {
    let mut all = vec![
        0.0, -0.0, 1.0, -1.0, 1.5, 2.5, 254.5, 255.0, 256.0, 300.0, -0.5,
    ];
    all.extend([
        65504.0, 65519.9, 65520.0, 6e-8, 2.9e-8, 3.0e-8, 6.1e-5, 1e300, -1e300,
    ]);
    all.extend([
        2f64.powi(31) - 1.0,
        2f64.powi(31),
        2f64.powi(63),
        -(2f64.powi(63)),
    ]);
    all.extend([
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1e-45,
        1.17e-38,
        3.39e38,
    ]);
    // Just above and below the middle between two neighbours, where rounding twice goes wrong.
    for bits in [10, 7, 23] {
        let half = 2f64.powi(-bits - 1);
        all.extend([
            1.0 + half,
            1.0 + half + 1e-13,
            1.0 + 3.0 * half,
            1.0 + half - 1e-13,
        ]);
    }
    all
}

#[test]
fn conversions_have_the_hosts_bits() {
    let numbers = hard_numbers();
    let all = Strided::contiguous(&[numbers.len()]);
    for from in DType::ALL {
        for to in DType::ALL {
            // The payload of 16-bit NaNs may differ: nothing promises it.
            let clean: Vec<f64> = numbers.iter().copied().filter(|v| !v.is_nan()).collect();
            let all = Strided::contiguous(&[clean.len()]);
            alike(|device| {
                let doubles = device.upload_slice(&clean)?;
                let mut middle = device.alloc(from, clean.len())?;
                device.copy(&doubles, &all, &mut middle, &all)?;
                let mut last = device.alloc(to, clean.len())?;
                device.copy(&middle.freeze(), &all, &mut last, &all)?;
                Ok(last.freeze())
            });
        }
        for cuda in devices().into_iter().filter(|_| from.is_float()) {
            let doubles = cuda.upload_slice(&numbers).unwrap();
            let mut middle = cuda.alloc(from, numbers.len()).unwrap();
            cuda.copy(&doubles, &all, &mut middle, &all).unwrap();
            let mut last = cuda.alloc(DType::F64, numbers.len()).unwrap();
            cuda.copy(&middle.freeze(), &all, &mut last, &all).unwrap();
            let back = last.freeze().to_vec::<f64>().unwrap();
            let kept = numbers
                .iter()
                .zip(back)
                .all(|(a, b)| a.is_nan() == b.is_nan());
            assert!(kept, "{from} loses NaN");
        }
    }
}

#[test]
fn fills_write_every_type() {
    for dtype in DType::ALL {
        for value in [Scalar::F64(-2.5), Scalar::I64(300), Scalar::Bool(true)] {
            alike(|device| {
                let mut a = device.alloc(dtype, 12)?;
                device.fill(&mut a, &Strided::contiguous(&[12]), Scalar::ZERO)?;
                let some = Strided::new(10, [3, 2][..].into(), [-4, 1][..].into());
                device.fill(&mut a, &some, value)?;
                Ok(a.freeze())
            });
        }
    }
}

#[test]
fn many_axes_and_many_pieces_are_unrolled() {
    // Ten axes that do not merge: each has two elements and skips every other one.
    let shape = [2usize; 10];
    let dense: Vec<isize> = (0..10).rev().map(|d| 1 << d).collect();
    let sparse: Vec<isize> = (0..10).map(|d| 1 << (9 - (d * 3) % 10)).collect();
    let view = |steps: &[isize]| Strided::new(0, shape[..].into(), steps.into());
    alike(|device| {
        let values: Vec<i32> = (0..1024).collect();
        let source = device.upload_slice(&values)?;
        let mut target = device.alloc(DType::I32, 1024)?;
        device.copy(&source, &view(&sparse), &mut target, &view(&dense))?;
        device.fold(
            Monoid::SUM,
            &source,
            &view(&dense),
            &mut target,
            &view(&sparse),
        )?;
        Ok(target.freeze())
    });
    alike(|device| {
        let values: Vec<u8> = (0..200).collect();
        let source = device.upload_slice(&values)?;
        let mut target = device.alloc(DType::U8, 200)?;
        let piece = |k: usize| {
            let part = |at| Strided::contiguous_at(at, &[5]);
            (&source, part(5 * k), part(195 - 5 * k))
        };
        device.copy_pieces(&(0..40).map(piece).collect::<Vec<_>>(), &mut target)?;
        Ok(target.freeze())
    });
}

#[test]
fn more_terms_than_a_launch_holds() {
    alike(|device| {
        let source = device.upload_slice(&(0..400).map(|i| i as f32 * 0.1).collect::<Vec<_>>())?;
        let parts: Vec<Buffer> = (0..100).map(|k| source.slice(k..k + 200)).collect();
        let terms: Vec<(&Buffer, usize)> = parts.iter().map(|part| (part, 3)).collect();
        let mut target = device.alloc(DType::F32, 12)?;
        let dv = Strided::new(11, [3, 4][..].into(), [-4, -1][..].into());
        device.reduce(Monoid::SUM, &terms, &[7, 2], &mut target, &dv)?;
        Ok(target.freeze())
    });
}

#[test]
fn memory_counts_and_sticks_to_its_device() {
    for kind in kinds() {
        memory_of_two(&device_of(kind, 0), &device_of(kind, 1));
    }
}

fn memory_of_two(a: &DeviceRef, b: &DeviceRef) {
    let buffer = a.upload_slice(&[1.0f64; 10]).unwrap();
    let mut copy = b.alloc(DType::F64, 10).unwrap();
    let all = Strided::contiguous(&[10]);
    b.copy(&buffer, &all, &mut copy, &all).unwrap();
    drop(buffer);
    assert_eq!(
        (a.memory().live, a.memory().peak, b.memory().live),
        (0, 80, 80)
    );
    let host = Host::new().upload_slice(&[1.0f64; 10]).unwrap();
    let error = b.copy(&host, &all, &mut copy, &all).unwrap_err();
    assert!(matches!(error, DeviceError::Invalid { .. }), "{error}");
    let job = HostJob::new("nothing", Work::default(), |_, _| ());
    assert!(b.submit(vec![], vec![], job).is_err());
}

/// Kernels stay valid while no device of their GPU exists, as between two launches of a program.
#[cfg(feature = "cuda-emulated")]
#[test]
fn kernels_outlive_the_devices_they_were_compiled_on() {
    const GPU: usize = 19;
    let double = || -> Result<Vec<f32>> {
        let device = Cuda::emulated_on(GPU, true)?;
        let numbers = device.upload_slice(&[1.0f32, 2.0, 3.0])?;
        let mut sum = device.alloc(DType::F32, 3)?;
        let row = Strided::contiguous(&[3]);
        device.fill(&mut sum, &row, Scalar::ZERO)?;
        for _ in 0..2 {
            device.fold(Monoid::SUM, &numbers, &row, &mut sum, &row)?;
        }
        sum.freeze().to_vec()
    };
    for _ in 0..2 {
        assert_eq!(double(), Ok(vec![2.0, 4.0, 6.0]));
    }
}

/// Data on a GPU whose memory this one does not reach is copied here before a kernel reads it.
#[cfg(feature = "cuda-emulated")]
#[test]
fn memory_that_is_not_reached_is_brought_here() {
    let [far, near] = [20, 21].map(|gpu| Cuda::emulated_on(gpu, false).unwrap());
    let numbers = far
        .upload_slice(&[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .unwrap();
    let numbers = numbers.slice(1..7);
    let error = Cuda::of(&*near).unwrap().address(&numbers).unwrap_err();
    assert!(matches!(error, DeviceError::Invalid { .. }), "{error}");
    // The elements 6, 4, 2 of 1 to 6.
    let view = Strided::new(5, [3][..].into(), [-2][..].into());
    let row = Strided::contiguous(&[3]);
    let mut dst = near.alloc(DType::F32, 3).unwrap();
    near.copy(&numbers, &view, &mut dst, &row).unwrap();
    near.fold(Monoid::SUM, &numbers, &view, &mut dst, &row)
        .unwrap();
    let sum = dst.freeze();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [12.0, 8.0, 4.0]);
    let mut dst = near.alloc(DType::F32, 3).unwrap();
    let terms = [(&numbers, 5), (&sum, 2)];
    near.reduce(Monoid::SUM, &terms, &[-2], &mut dst, &row)
        .unwrap_err();
    let terms = [(&numbers, 3), (&sum, 0)];
    near.reduce(Monoid::SUM, &terms, &[1], &mut dst, &row)
        .unwrap();
    assert_eq!(dst.freeze().to_vec::<f32>().unwrap(), [16.0, 13.0, 10.0]);
    let mut dst = near.alloc(DType::F32, 3).unwrap();
    let one = |at: usize| Strided::run_at(at, 1);
    let pieces = [
        (&numbers, one(5), one(0)),
        (&sum, one(1), one(1)),
        (&numbers, one(0), one(2)),
    ];
    near.copy_pieces(&pieces, &mut dst).unwrap();
    assert_eq!(dst.freeze().to_vec::<f32>().unwrap(), [6.0, 8.0, 1.0]);
}

/// A shape, and a source and a destination view of it in 4096 elements; the destination may have steps of 0.
fn views(overlap: bool) -> impl Strategy<Value = (Strided, Strided)> {
    prop::collection::vec(0..5usize, 0..5).prop_flat_map(move |shape| {
        let n = shape.len();
        let order = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
        let kinds = prop::collection::vec(0..if overlap { 4 } else { 3 }, n);
        let steps = prop::collection::vec(-20..20isize, n);
        (order, kinds, steps).prop_map(move |(order, kinds, steps)| {
            let mut strides = Strides::from_elem(0, n);
            let (mut step, mut offset) = (1, 0);
            for &d in &order {
                if kinds[d] == 3 {
                    continue;
                }
                step *= 1 + isize::from(kinds[d] == 2);
                strides[d] = if kinds[d] == 1 { -step } else { step };
                if kinds[d] == 1 {
                    offset += shape[d].saturating_sub(1) * step as usize;
                }
                step *= shape[d].max(1) as isize;
            }
            let sv = Strided::new(2000, shape[..].into(), steps[..].into());
            (sv, Strided::new(offset, shape[..].into(), strides))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn moves_have_the_hosts_bits(
        (sv, dv) in views(true),
        shift in 0..4usize,
        count in 1..90usize,
        dtype in prop::sample::select(DType::ALL.to_vec()),
        op in prop::sample::select(vec![ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Any, ReduceOp::All]),
    ) {
        let values: Vec<f64> = (0..4096).map(|i| f64::from(i * 37 % 101) * 0.37 - 9.0).collect();
        let all = Strided::contiguous(&[4096]);
        alike(|device| {
            let doubles = device.upload_slice(&values)?;
            let mut source = device.alloc(dtype, 4096)?;
            device.copy(&doubles, &all, &mut source, &all)?;
            let source = source.freeze().slice(shift..4096);
            let mut target = device.alloc(dtype, 4096)?;
            device.copy(&doubles, &all, &mut target, &all)?;
            device.fold(Monoid::Op(op), &source, &sv, &mut target, &dv)?;
            if steps_apart(&dv.shape, &dv.strides) {
                device.copy(&source, &sv, &mut target, &Strided { offset: dv.offset + shift, ..dv.clone() })?;
                let terms: Vec<_> = (0..count).map(|k| (&source, sv.offset + k % 7)).collect();
                device.reduce(Monoid::Op(op), &terms, &sv.strides, &mut target, &dv)?;
            }
            device.copy_within(&mut target, shift..900, 2 * shift)?;
            Ok(target.freeze())
        });
    }

    #[test]
    fn groups_have_the_hosts_bits(
        groups in 1..5usize,
        rows in 1..4usize,
        which in 0..3usize,
        count in 1..20usize,
        single in any::<bool>(),
    ) {
        let op = [Monoid::Moments, Monoid::ArgMax, Monoid::ArgMin][which];
        let dtype = if single { DType::F32 } else { DType::F64 };
        let n = groups * op.width();
        let values: Vec<f64> = (0..4 * n * rows).map(|i| f64::from(i as u32 * 7 % 5)).collect();
        let all = Strided::contiguous(&[values.len()]);
        alike(|device| {
            let doubles = device.upload_slice(&values)?;
            let mut source = device.alloc(dtype, values.len())?;
            device.copy(&doubles, &all, &mut source, &all)?;
            let source = source.freeze();
            let mut target = device.alloc(dtype, values.len())?;
            device.copy(&source, &all, &mut target, &all)?;
            let sv = Strided::new(n, [rows, n][..].into(), [n as isize, 1][..].into());
            let dv = Strided::new(0, [rows, n][..].into(), [2 * n as isize, 1][..].into());
            device.fold(op, &source, &sv, &mut target, &dv)?;
            let terms: Vec<_> = (0..count).map(|k| (&source, n * (1 - k % 2))).collect();
            device.reduce(op, &terms, &[n as isize, 1], &mut target, &dv)?;
            Ok(target.freeze())
        });
    }
}
