use shard_device::{DType, DeviceError, ErrorClass, Host, TestDevice};

#[test]
fn shared_memory_is_not_given_out_for_writing() {
    let host = Host::new();
    let a = host.upload_slice(&[1.0f64, 2.0]).unwrap();
    let b = a.clone();
    let a = a.into_mut().unwrap_err();
    drop(b);
    let mut a = a.into_mut().unwrap();
    a.as_mut_slice::<f64>().unwrap()[0] = 5.0;
    assert_eq!(a.freeze().as_slice::<f64>().unwrap(), &[5.0, 2.0]);
}

#[test]
fn slices_share_and_keep_alive() {
    let host = Host::new();
    let a = host.upload_slice(&[1i32, 2, 3, 4]).unwrap();
    let part = a.slice(1..4).slice(1..2);
    assert!(!part.ptr_eq(&a) && a.slice(0..4).ptr_eq(&a));
    drop(a);
    assert_eq!(part.as_slice::<i32>().unwrap(), &[3]);
    assert!(part.try_slice(0..2).is_err());
    drop(part);
    assert_eq!(host.memory().live, 0);
}

#[test]
fn wrong_type_and_device_memory_are_typed_errors() {
    let a = Host::new().alloc(DType::F32, 1).unwrap().freeze();
    assert!(matches!(
        a.as_slice::<f64>(),
        Err(DeviceError::Invalid { .. })
    ));
    let b = TestDevice::new().alloc(DType::F32, 1).unwrap().freeze();
    let error = b.as_slice::<f32>().unwrap_err();
    assert!(matches!(error, DeviceError::HostOnly { .. }));
    assert_eq!(error.class(), ErrorClass::Uniform);
}

#[test]
fn elements_are_aligned_and_stay_so_when_resized() {
    let host = Host::new();
    // Interpreted, a loop over many elements takes long.
    for len in [1, 100, if cfg!(miri) { 7_000 } else { 70_000 }] {
        let mut a = host.alloc(DType::F32, len).unwrap();
        a.as_mut_slice::<f32>().unwrap().fill(3.0);
        let mut a = host.resize(a, 3 * len).unwrap();
        let values = a.as_mut_slice::<f32>().unwrap();
        assert_eq!(values.as_ptr().align_offset(64), 0);
        assert!(values[..len].iter().all(|&v| v == 3.0));
        assert_eq!(host.memory().live, 12 * len);
    }
}

#[test]
fn memory_dropped_on_another_thread_returns_to_its_pool() {
    let host = Host::new();
    let a = host.alloc(DType::U8, 4096).unwrap().freeze();
    std::thread::spawn(move || drop(a)).join().unwrap();
    assert_eq!((host.memory().live, host.memory().cached), (0, 4096));
}
