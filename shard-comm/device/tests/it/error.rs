use shard_device::{DType, DeviceError, ErrorClass};

/// Of what only one rank knows no other hears: the group does not go on as if nothing had happened.
#[test]
fn what_one_rank_alone_knows_is_a_failure() {
    let device = || "cuda:0".to_owned();
    let failures = [
        DeviceError::OutOfMemory {
            device: device(),
            bytes: 8,
            dtype: DType::F32,
            len: 2,
        },
        DeviceError::Closed { op: "alloc" },
        DeviceError::Library {
            library: "cublas",
            call: "gemm",
            cause: "no".into(),
        },
        DeviceError::Queued {
            device: device(),
            cause: "no".into(),
        },
    ];
    for error in failures {
        assert_eq!(error.class(), ErrorClass::Failure, "{error}");
    }
    let wrong = DeviceError::dtype("copy", DType::F32, DType::F64);
    assert_eq!(wrong.class(), ErrorClass::Uniform);
}
