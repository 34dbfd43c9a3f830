//! Where the library is found.

use super::library::{Library, Version};
use super::nvidia;

/// NVIDIA's packages put a number into the name of the library's file, and the library is found by that name: the test makes such
/// a file, with all functions and version 2.28.7, and starts a process that looks for it there.
#[test]
fn the_library_is_found_by_the_name_it_has() {
    use std::process::Command;
    const CHILD: &str = "SHARD_TEST_NCCL";
    const NAME: &str = "backend::nccl::found::the_library_is_found_by_the_name_it_has";
    if std::env::var_os(CHILD).is_some() {
        let library = nvidia::Nccl::load().map(|library| library.version());
        assert_eq!(library, Ok(Version(22807)));
        return;
    }
    let functions = include_str!("functions.rs").lines();
    let names = functions.filter_map(|line| line.trim().split_once(": ("));
    let names = names
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("nccl"));
    let mut text = "int ncclGetVersion(int *v) { *v = 22807; return 0; }\n".to_owned();
    for name in names {
        text += &format!("int {name}(void) {{ return 0; }}\n");
    }
    let folder = std::env::temp_dir().join(format!("shard-test-nccl-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("nccl.c"), text).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "libnccl.so.2", "nccl.c"])
        .current_dir(&folder)
        .status();
    if compiled.is_ok_and(|status| status.success()) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact"])
            .env(CHILD, "1")
            .env("LD_LIBRARY_PATH", &folder)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
