//! What is not seen from outside: how transfers are staged, and how kernels are compiled and loaded. All else is in `tests/it/cuda`.

use super::staging::{BLOCK, DIRECT, MOST};
use super::*;

/// The emulation, where it is built, and a GPU, where there is one.
fn devices() -> Vec<DeviceRef> {
    let mut devices = Vec::new();
    #[cfg(feature = "cuda-emulated")]
    devices.push(Cuda::emulated().unwrap());
    if matches!(availability(), Availability::Ready { .. }) {
        devices.push(Cuda::of_rank(0).unwrap());
    }
    devices
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
        assert_eq!(image.starts_with(b"\x7fELF"), is_code, "{architecture}");
    }
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
#[cfg(unix)]
#[test]
fn kernels_are_loaded_from_a_folder_of_ones_own() {
    use std::os::unix::fs::PermissionsExt;
    let shared = std::env::temp_dir().join(format!("shard-test-{}", std::process::id()));
    std::fs::create_dir(&shared).unwrap();
    let first = cache::private_folder(&shared).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&first) & 0o777, 0o700);
    // Another process of the same user shares it.
    assert_eq!(cache::private_folder(&shared).unwrap(), first);
    // Somebody else was there before, and left the folder open to all.
    std::fs::set_permissions(&first, PermissionsExt::from_mode(0o777)).unwrap();
    let other = cache::private_folder(&shared).unwrap();
    assert_ne!(other, first);
    assert_eq!(mode(&other) & 0o777, 0o700);
    // Or the name is a symbolic link to elsewhere.
    std::fs::remove_dir(&first).unwrap();
    std::os::unix::fs::symlink(&other, &first).unwrap();
    assert_ne!(cache::private_folder(&shared).unwrap(), first);
    std::fs::remove_dir_all(&shared).unwrap();
}

/// Of texts that are kept, each gives what was made of it; one that was cut short gives nothing.
#[test]
fn what_was_compiled_is_kept_for_its_text_alone() {
    let text = |k: u32| format!("text {k} of process {}", std::process::id());
    for (k, made) in [(1, &b"one"[..]), (2, b"two"), (3, b"")] {
        assert_eq!(cache::read("kept", &text(k)), None);
        cache::write("kept", &text(k), made);
    }
    assert_eq!(cache::read("kept", &text(1)).unwrap(), b"one");
    assert_eq!(cache::read("kept", &text(2)).unwrap(), b"two");
    assert_eq!(cache::read("kept", &text(3)).unwrap(), b"");
    let mine = format!("of process {}", std::process::id());
    let files = std::fs::read_dir(cache::folder().unwrap()).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let of_test = |path: &std::path::PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        let named = path.file_name().unwrap().to_string_lossy().into_owned();
        named.starts_with("kept-")
            && bytes
                .windows(mine.len())
                .any(|part| part == mine.as_bytes())
    };
    let kept: Vec<_> = paths.filter(of_test).collect();
    assert_eq!(kept.len(), 3);
    for path in &kept {
        let whole = std::fs::read(path).unwrap();
        std::fs::write(path, &whole[..whole.len() - 1]).unwrap();
    }
    assert!((1..=3).all(|k| cache::read("kept", &text(k)).is_none()));
    for path in kept {
        std::fs::remove_file(path).unwrap();
    }
}
