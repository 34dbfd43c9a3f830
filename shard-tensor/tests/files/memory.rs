//! What a process holds while its ranks save, by the system's own account of its memory.

use crate::scratch;
use shard_tensor::{Launch, checkpoint, shard};
use std::path::Path;
use std::process::Command;

const CHILD: &str = "SHARD_TENSOR_TESTS_SAVE_WITH_LITTLE_MEMORY";
/// Of the whole tensor: 256 MiB.
const SHAPE: [usize; 2] = [8 << 10, 8 << 10];
const STAGING: usize = 64 << 20;

/// Bytes of this process that the system's account of it has under a name.
pub(crate) fn held(name: &str) -> Option<usize> {
    let told = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.trim_start_matches(':').trim().strip_suffix("kB")?;
    Some(number.trim().parse::<usize>().ok()? << 10)
}

/// What `f` makes the process hold at most beyond what it holds already, if the system tells.
pub(crate) fn beyond<T>(f: impl FnOnce() -> T) -> (T, Option<usize>) {
    // The peak is from now on.
    let reset = std::fs::write("/proc/self/clear_refs", "5");
    let before = reset.ok().and_then(|()| held("VmRSS"));
    let done = f();
    let peak = held("VmHWM");
    (done, peak.zip(before).map(|(peak, before)| peak - before))
}

/// Two ranks save halves of a tensor, whose rows lie in pieces in the file.
fn save(path: &Path) {
    let beyond = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.full(SHAPE, 3.0, shard(1).sizes([1 << 10, 7 << 10]))?;
        ctx.world().barrier()?;
        let (saved, beyond) = beyond(|| checkpoint::save(path, &[("x".to_owned(), x)]));
        saved?;
        ctx.world().barrier()?;
        Ok(beyond)
    });
    for beyond in beyond.unwrap() {
        // Both ranks together, though each may need so much.
        let beyond = beyond.unwrap_or_default();
        assert!(beyond < STAGING, "{beyond} bytes beyond the pieces");
        println!("{beyond} bytes beyond the pieces");
    }
}

#[test]
fn saving_takes_a_block_of_memory_beyond_the_pieces() {
    if let Some(path) = std::env::var_os(CHILD) {
        return save(path.as_ref());
    }
    let path = scratch("memory.safetensors");
    let name = "memory::saving_takes_a_block_of_memory_beyond_the_pieces";
    // A process of its own: other tests take memory, too.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, &path)
        .output()
        .unwrap();
    let [said, wrong] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}{wrong}");
    assert!(said.contains("bytes beyond the pieces"), "{said}");
    let len = std::fs::metadata(&path).unwrap().len() as usize;
    assert!(len > SHAPE[0] * SHAPE[1] * 4);
    std::fs::remove_file(&path).unwrap();
}
