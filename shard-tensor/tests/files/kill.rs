//! Programs that are killed while they save.

use crate::scratch;
use safetensors::SafeTensors;
use shard_tensor::{Launch, checkpoint, shard};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const CHILD: &str = "SHARD_TENSOR_TESTS_SAVE_AGAIN_AND_AGAIN";
const LEN: usize = 300_000;

/// Saves ones, twos, threes and so on until it is killed.
fn save_again_and_again(path: &Path) {
    let ended = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        for turn in 1.. {
            let x = mesh.full([LEN], f64::from(turn), shard(0))?;
            checkpoint::save(path, &[("x".to_owned(), x)])?;
        }
        Ok(())
    });
    panic!("nobody killed it: {ended:?}");
}

#[test]
fn whenever_a_program_is_killed_the_file_is_whole() {
    if let Some(path) = std::env::var_os(CHILD) {
        return save_again_and_again(path.as_ref());
    }
    let folder = scratch("kill");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("x.safetensors");
    let mut seen = Vec::new();
    for turn in 0..8_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "kill::whenever_a_program_is_killed_the_file_is_whole",
            ])
            .env(CHILD, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It has saved once more, and is killed some time after.
        let before = std::fs::metadata(&path).and_then(|m| m.modified()).ok();
        let changed = || std::fs::metadata(&path).and_then(|m| m.modified()).ok() != before;
        let started = (0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            changed()
        });
        std::thread::sleep(Duration::from_micros(turn * 3_700));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(started, "it has not saved");
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let x: &[f32] = bytemuck::cast_slice(file.tensor("x").unwrap().data());
        assert_eq!(x.len(), LEN);
        assert!(x[0] >= 1.0 && x.iter().all(|v| *v == x[0]), "turn {turn}");
        seen.push(x[0]);
    }
    // What was killed is no obstacle to those who come after.
    let sum = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        checkpoint::save(&path, &[("x".to_owned(), mesh.ones([3], shard(0))?)])?;
        checkpoint::read(&path, "x", &mesh, shard(0))?
            .sum_all()?
            .item()
    });
    assert_eq!(sum.unwrap(), [3.0; 2], "{seen:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}
