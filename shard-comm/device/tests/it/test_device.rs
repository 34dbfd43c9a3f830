use std::sync::Arc;

use shard_device::{DType, DeviceError, HostJob, Strided, TestDevice, Work};

#[test]
fn a_reader_that_does_not_wait_reads_nan() {
    let (a, b) = (TestDevice::new(), TestDevice::new());
    let source = a.upload_slice(&[1.0f32]).unwrap();
    let ready = a.record();
    let one = Strided::contiguous(&[1]);
    let mut early = b.alloc(DType::F32, 1).unwrap();
    b.copy(&source, &one, &mut early, &one).unwrap();
    assert!(early.freeze().to_vec::<f32>().unwrap()[0].is_nan());
    let mut late = b.alloc(DType::F32, 1).unwrap();
    b.wait(&ready).unwrap();
    b.copy(&source, &one, &mut late, &one).unwrap();
    assert_eq!(late.freeze().to_vec::<f32>().unwrap(), [1.0]);
}

#[test]
fn jobs_run_late_and_in_order() {
    let device = TestDevice::new();
    let input = device.upload_slice(&[3i64]).unwrap();
    let output = device.alloc(DType::I64, 1).unwrap();
    let ran = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = Arc::clone(&ran);
    let job = HostJob::new("square", Work::moving(16), move |inputs, outputs| {
        flag.store(true, std::sync::atomic::Ordering::SeqCst);
        let value = inputs[0].as_slice::<i64>().unwrap()[0];
        outputs[0].as_mut_slice::<i64>().unwrap()[0] = value * value;
    });
    let output = device
        .submit(vec![input], vec![output], job)
        .unwrap()
        .pop()
        .unwrap()
        .freeze();
    assert!(!ran.load(std::sync::atomic::Ordering::SeqCst));
    assert_eq!(output.to_vec::<i64>().unwrap(), [9]);
}

#[test]
fn a_panic_in_a_job_fails_the_device_not_the_thread() {
    let device = TestDevice::new();
    device
        .submit(
            vec![],
            vec![],
            HostJob::new("boom", Work::default(), |_, _| panic!("boom")),
        )
        .unwrap();
    let error = device.synchronize().unwrap_err();
    assert!(
        matches!(&error, DeviceError::Queued { cause, .. } if &**cause == "boom"),
        "{error}"
    );
    assert!(device.upload_slice(&[1u8]).unwrap().to_vec::<u8>().is_err());
}

#[test]
fn queues_that_wait_for_each_other_drain_from_both_sides() {
    for _ in 0..50 {
        let devices = [TestDevice::new(), TestDevice::new()];
        for turn in 0..20 {
            let event = devices[turn % 2].record();
            devices[(turn + 1) % 2].wait(&event).unwrap();
        }
        std::thread::scope(|scope| {
            for device in &devices {
                scope.spawn(|| device.synchronize().unwrap());
            }
        });
    }
}

#[test]
fn resizing_keeps_the_elements_and_poisons_the_rest() {
    let device = TestDevice::new();
    let source = device.upload_slice(&[1.0f32, 2.0]).unwrap();
    let two = Strided::contiguous(&[2]);
    let mut a = device.alloc(DType::F32, 2).unwrap();
    device.copy(&source, &two, &mut a, &two).unwrap();
    drop(source);
    let mut a = device.resize(a, 4).unwrap();
    device.copy_within(&mut a, 0..2, 1).unwrap();
    let a = a.freeze();
    let values = a.to_vec::<f32>().unwrap();
    assert_eq!(values[..3], [1.0, 1.0, 2.0]);
    assert!(values[3].is_nan());
    let a = device.resize(a.into_mut().unwrap(), 1).unwrap();
    assert_eq!(device.memory().live, 4);
    assert_eq!(a.freeze().to_vec::<f32>().unwrap(), [1.0]);
}

#[test]
fn queued_readers_keep_a_buffer_shared() {
    let device = TestDevice::new();
    let a = device.upload_slice(&[1.0f64]).unwrap();
    let one = Strided::contiguous(&[1]);
    let mut b = device.alloc(DType::F64, 1).unwrap();
    device.copy(&a, &one, &mut b, &one).unwrap();
    let a = a.into_mut().unwrap_err();
    device.synchronize().unwrap();
    assert!(a.into_mut().is_ok());
}
