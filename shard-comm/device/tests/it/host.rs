use std::ops::Range;

use shard_device::{
    Buffer, BufferMut, DType, DeviceError, ErrorClass, Host, HostJob, HostOptions, Monoid, Scalar,
    Strided, Work,
};

#[test]
fn impossible_allocations_are_an_error() {
    let error = Host::new().alloc(DType::F64, usize::MAX / 2).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
}

#[test]
fn poisoned_memory_is_nan() {
    let host = Host::with_options(HostOptions {
        poison: true,
        ..HostOptions::default()
    });
    let fresh = host.alloc(DType::F32, 3).unwrap().freeze();
    assert!(fresh.as_slice::<f32>().unwrap().iter().all(|v| v.is_nan()));
}

#[test]
fn jobs_read_and_write() {
    let host = Host::new();
    let a = host.upload_slice(&[1.0f64, 2.0]).unwrap();
    let out = host.alloc(DType::F64, 2).unwrap();
    let done = host
        .submit(
            vec![a],
            vec![out],
            HostJob::new("double", Work::moving(32), |inputs, outputs| {
                let x = inputs[0].as_slice::<f64>().unwrap();
                let y = outputs[0].as_mut_slice::<f64>().unwrap();
                y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
            }),
        )
        .unwrap();
    let y = done.into_iter().next().unwrap().freeze();
    assert_eq!(y.as_slice::<f64>().unwrap(), &[2.0, 4.0]);
}

#[test]
fn a_metered_host_tells_what_was_done() {
    let host = Host::with_options(HostOptions {
        meter: true,
        ..HostOptions::default()
    });
    let a = host.upload_slice(&[1.0f64, 2.0]).unwrap();
    let all = Strided::contiguous(&[2]);
    let mut out = host.alloc(DType::F64, 2).unwrap();
    host.copy(&a, &all, &mut out, &all).unwrap();
    let work = Work { flops: 3, bytes: 5 };
    for _ in 0..2 {
        host.submit(vec![], vec![], HostJob::new("job", work, |_, _| {}))
            .unwrap();
    }
    let seen: Vec<_> = (host.spent().into_iter())
        .map(|(name, spent)| (name, spent.calls, spent.work))
        .collect();
    let twice = Work {
        flops: 6,
        bytes: 10,
    };
    assert_eq!(seen, [("copy", 1, Work::moving(32)), ("job", 2, twice)]);
    host.reset_spent();
    assert!(host.spent().is_empty() && Host::new().spent().is_empty());
}

#[test]
fn parts_of_buffers_are_resized_by_copying() {
    let host = Host::new();
    let whole = host.upload_slice(&[1i64, 2, 3, 4]).unwrap();
    let part = whole.slice(1..3);
    drop(whole);
    let part = part.into_mut().unwrap();
    let mut longer = host.resize(part, 5).unwrap();
    host.copy_within(&mut longer, 0..2, 1).unwrap();
    assert_eq!(longer.as_mut_slice::<i64>().unwrap()[..3], [2, 2, 3]);
    assert_eq!(host.memory().live, 40);
    assert!(host.copy_within(&mut longer, 0..5, 1).is_err());
    assert!(host.resize(longer, usize::MAX / 8).is_err());
    assert_eq!(host.memory().live, 0);
}

#[test]
fn views_are_checked_before_anything_is_touched() {
    let host = Host::new();
    let a = host.upload_slice(&[1u8, 2, 3]).unwrap();
    let mut b = host.alloc(DType::U8, 3).unwrap();
    let (three, four) = (Strided::contiguous(&[3]), Strided::contiguous(&[4]));
    assert!(host.copy(&a, &four, &mut b, &four).is_err());
    assert!(
        host.copy(&a, &three, &mut b, &Strided::contiguous(&[1, 3]))
            .is_err()
    );
    assert!(host.fill(&mut b, &four, Scalar::ZERO).is_err());
    let sum = |terms: &[(&Buffer, usize)], b: &mut BufferMut, view: &Strided| {
        host.reduce(Monoid::SUM, terms, &[1], b, view)
    };
    assert!(sum(&[(&a, 0), (&a, 1)], &mut b, &three).is_err());
    let twice = Strided::new(0, [3][..].into(), [0][..].into());
    assert!(sum(&[(&a, 0)], &mut b, &twice).is_err());
    let empty = Strided::contiguous(&[0]);
    assert!(sum(&[(&a, 9)], &mut b, &empty).is_ok());
    let other = host.upload_slice(&[1.0f32; 3]).unwrap();
    assert!(sum(&[(&a, 0), (&other, 0)], &mut b, &three).is_err());
    assert!(host.upload(DType::F32, &[0; 6]).is_err());
}

#[test]
fn runs_are_copied_or_refused() {
    let host = Host::new();
    let src = host.upload_slice(&[1.0_f32, 2.0, 3.0]).unwrap();
    let copied = |from: Range<usize>, to| {
        let mut dst = host
            .upload_slice(&[0.0_f32; 4])
            .unwrap()
            .into_mut()
            .unwrap();
        host.copy_run(&src, from, &mut dst, to)?;
        dst.freeze().to_vec::<f32>()
    };
    assert_eq!(copied(1..3, 2), Ok(vec![0.0, 0.0, 2.0, 3.0]));
    // A range without elements may lie anywhere.
    let reversed = Range { start: 2, end: 1 };
    for empty in [0..0, 3..3, 9..9, reversed] {
        assert_eq!(copied(empty, 0), Ok(vec![0.0; 4]));
    }
    for (from, to) in [(1..4, 0), (0..3, 2), (0..3, usize::MAX)] {
        assert_eq!(copied(from, to).unwrap_err().class(), ErrorClass::Uniform);
    }
    // Other element types are converted.
    let mut wide = host.alloc(DType::F64, 3).unwrap();
    host.copy_run(&src, 0..3, &mut wide, 0).unwrap();
    assert_eq!(wide.freeze().to_vec::<f64>(), Ok(vec![1.0, 2.0, 3.0]));
}

#[test]
fn runs_of_another_type_are_converted_where_they_belong() {
    let host = Host::new();
    let src: Vec<half::bf16> = (0..12).map(|i| half::bf16::from_f32(i as f32)).collect();
    let src = host.upload_slice(&src).unwrap();
    let copied = |from: usize, shape: &[usize], to: usize| {
        let mut dst = host
            .upload_slice(&[-1.0_f32; 9])
            .unwrap()
            .into_mut()
            .unwrap();
        let [sv, dv] = [from, to].map(|at| Strided::contiguous_at(at, shape));
        host.copy(&src, &sv, &mut dst, &dv)?;
        dst.freeze().to_vec::<f32>()
    };
    let told = [-1.0, -1.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, -1.0];
    assert_eq!(copied(4, &[2, 3], 2).as_deref(), Ok(&told[..]));
    assert_eq!(copied(4, &[0, 3], 2), Ok(vec![-1.0; 9]));
    for (from, to) in [(7, 0), (0, 4)] {
        let error = copied(from, &[2, 3], to).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
    }
}
