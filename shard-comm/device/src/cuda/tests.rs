use proptest::prelude::*;
use shard_spec::{ReduceOp, Strides};

use super::staging::{BLOCK, DIRECT, MOST};
use super::*;
use crate::Host;
use crate::view::steps_apart;

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
    let job = HostJob::new("nothing", crate::Work::default(), |_, _| ());
    assert!(b.submit(vec![], vec![], job).is_err());
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) * 31 % 251) as u8).collect()
}

#[test]
fn transfers_of_any_length_keep_their_bytes() {
    for device in devices() {
        let sibling = Cuda::of(&*device).unwrap().sibling().unwrap();
        for device in [&device, &sibling] {
            let mut lens = vec![0, 1, 4 * BLOCK + 17, MOST * BLOCK + BLOCK / 2];
            for edge in [DIRECT, BLOCK, 2 * BLOCK] {
                lens.extend([edge - 1, edge, edge + 1]);
            }
            for len in lens {
                let sent = bytes(len, len);
                let got = device.download(&device.upload(DType::U8, &sent).unwrap());
                assert!(got.unwrap() == sent, "{len} bytes");
            }
            let made = Cuda::of(&**device).unwrap().staging.made();
            assert!((1..=MOST).contains(&made), "{made} blocks");
        }
    }
}

/// A stream that does no work until a message is sent or the sender is dropped.
#[cfg(feature = "cuda-emulated")]
fn held_back() -> (DeviceRef, std::sync::mpsc::Sender<()>) {
    let device = Cuda::emulated().unwrap();
    let stream = Cuda::of(&*device).unwrap().sibling().unwrap();
    let (open, gate) = std::sync::mpsc::channel();
    let wait = move || {
        // A test that has failed drops the sender.
        let _ = gate.recv();
    };
    Cuda::of(&*stream).unwrap().queue_emulated(wait).unwrap();
    (stream, open)
}

#[cfg(feature = "cuda-emulated")]
#[test]
fn uploads_return_before_they_are_done_and_their_blocks_are_used_again_only_after() {
    let (stream, open) = held_back();
    let staging = || Cuda::of(&*stream).unwrap().staging.made();
    let sent: Vec<Vec<u8>> = (0..4).map(|seed| bytes(2 * BLOCK, seed)).collect();
    let up = |bytes: &Vec<u8>| stream.upload(DType::U8, bytes).unwrap();
    let there: Vec<Buffer> = sent.iter().map(up).collect();
    assert_eq!(staging(), 8, "all are under way");
    open.send(()).unwrap();
    stream.synchronize().unwrap();
    for (there, sent) in there.iter().zip(&sent) {
        assert!(stream.download(there).unwrap() == *sent);
    }
    let more = up(&sent[1]);
    assert!(stream.download(&more).unwrap() == sent[1]);
    assert_eq!(staging(), 8, "blocks that are free are used again");
}

#[cfg(feature = "cuda-emulated")]
#[test]
fn what_is_under_way_is_never_more_than_all_blocks() {
    let (stream, open) = held_back();
    let staging = Arc::clone(&Cuda::of(&*stream).unwrap().staging);
    let opened = std::thread::spawn(move || {
        let mut turns = 0;
        while staging.made() < MOST && turns < 10_000 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            turns += 1;
        }
        let opened = std::time::Instant::now();
        open.send(()).unwrap();
        opened
    });
    let sent = bytes((MOST + 3) * BLOCK, 5);
    let there = stream.upload(DType::U8, &sent).unwrap();
    let returned = std::time::Instant::now();
    assert!(opened.join().unwrap() < returned, "it waited for a block");
    assert_eq!(Cuda::of(&*stream).unwrap().staging.made(), MOST);
    assert!(stream.download(&there).unwrap() == sent);
}

#[test]
fn every_kernel_compiles_to_ptx_where_there_is_a_compiler() {
    for dtype in DType::ALL {
        let name = type_name(dtype);
        let defines = format!(
            "#define COPY\n#define FILL\n#define CONVERT\n#define OP 0\n#define WIDTH 1\n#define SRC {name}\n#define DST {name}\n"
        );
        match compile_to_ptx(&strided::SOURCE, &defines, "compute_80") {
            Ok(bytes) => assert!(bytes > 1000),
            Err(DeviceError::Library { call: "nvrtc", .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A kernel is the GPU's own code where the compiler knows the GPU, for drivers older than the compiler; otherwise PTX of the
/// newest capability that the compiler knows.
#[test]
fn kernels_are_compiled_for_the_gpu_itself() {
    assert_eq!(nvidia::architecture(90, &[80, 90, 100]), "sm_90");
    assert_eq!(nvidia::architecture(121, &[80, 90, 100]), "compute_100");
    assert_eq!(nvidia::architecture(90, &[]), "sm_90");
    let known = nvidia::known_architectures();
    let Some(&newest) = known.iter().max() else {
        return;
    };
    let defines = "#define COPY\n#define SRC u8\n#define DST u8\n";
    for (capability, is_code) in [(newest, true), (newest + 1, false)] {
        let architecture = nvidia::architecture(capability, &known);
        let image = nvidia::compile(&strided::SOURCE, defines, &architecture).unwrap();
        let magic: Vec<u8> = image[..4].iter().map(|&c| c as u8).collect();
        assert_eq!(magic == b"\x7fELF", is_code, "{architecture}");
    }
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

/// Memory that another stream reads in every step remembers the reads in flight, not those of all steps.
#[test]
fn memory_remembers_readers_in_flight_only() {
    for device in devices() {
        let beside = Cuda::of(&*device).unwrap().sibling().unwrap();
        let constant = device.upload_slice(&[1.0f32; 64]).unwrap();
        let row = Strided::contiguous(&[64]);
        for _ in 0..500 {
            let mut read = beside.alloc(DType::F32, 64).unwrap();
            beside.copy(&constant, &row, &mut read, &row).unwrap();
            beside.synchronize().unwrap();
        }
        let readers = memory(constant.opaque()).unwrap().readers();
        assert!((1..=32).contains(&readers), "{readers} of 500");
    }
}

/// Kernels are not loaded from folders that others can write to.
#[cfg(all(feature = "cuda-emulated", unix))]
#[test]
fn kernels_are_loaded_from_a_folder_of_ones_own() {
    use std::os::unix::fs::PermissionsExt;
    let shared = std::env::temp_dir().join(format!("shard-test-{}", std::process::id()));
    std::fs::create_dir(&shared).unwrap();
    let first = emulated::private_folder(&shared).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&first) & 0o777, 0o700);
    // Another process of the same user shares it.
    assert_eq!(emulated::private_folder(&shared).unwrap(), first);
    // Somebody else was there before, and left the folder open to all.
    std::fs::set_permissions(&first, PermissionsExt::from_mode(0o777)).unwrap();
    let other = emulated::private_folder(&shared).unwrap();
    assert_ne!(other, first);
    assert_eq!(mode(&other) & 0o777, 0o700);
    // Or the name is a symbolic link to elsewhere.
    std::fs::remove_dir(&first).unwrap();
    std::os::unix::fs::symlink(&other, &first).unwrap();
    assert_ne!(emulated::private_folder(&shared).unwrap(), first);
    std::fs::remove_dir_all(&shared).unwrap();
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
