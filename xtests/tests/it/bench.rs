//! The benchmark program: that it runs, says what it measured, and finds every result right.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn every_line_of_json_has_its_figures() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench.json");
    let _ = std::fs::remove_file(&file);
    let output = bench(&[
        "redistribute",
        "conv",
        "dispatch",
        "--quick",
        "--ranks",
        "1,3",
        "--uneven",
        "--only",
        "S",
        "--json",
        file.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(records.len() > 20, "{} records", records.len());
    for r in &records {
        let number = |key: &str| r[key].as_f64().unwrap_or_else(|| panic!("{key} of {r}"));
        assert_eq!((&r["peer"], &r["threads"]), (&"rust".into(), &1.into()));
        assert_eq!(r["split"], "uneven");
        assert!(
            number("min_s") > 0.0 && number("min_s") <= number("median_s"),
            "{r}"
        );
        assert!(number("reps") >= 2.0);
        if r["case"].as_str().unwrap().starts_with("redist/") {
            assert_eq!(number("ranks"), 3.0);
            assert_eq!(number("check"), 0.0, "moves are exact: {r}");
            let ratio = number("median_s") / number("limit_s");
            assert!((number("ratio") / ratio - 1.0).abs() < 1e-6, "{r}");
        }
    }
}

#[test]
fn a_group_that_is_not_there_is_refused() {
    let output = bench(&["nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("redistribute"));
}

/// A reader that leaves, as `head` does, is no error: results go to the file all the same, and without one nothing more is measured.
#[test]
fn nobody_need_read_what_is_printed() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unheard.json");
    let _ = std::fs::remove_file(&file);
    let args = ["dispatch", "--quick", "--ranks", "1"];
    let kept = ["--json", file.to_str().unwrap()];
    for (json, records) in [(&kept[..], 4..), (&[][..], 0..)] {
        let (unread, stdout) = std::io::pipe().unwrap();
        drop(unread);
        let output = Command::new(env!("CARGO_BIN_EXE_bench"))
            .args([&args[..], json].concat())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(records.contains(&text.lines().count()), "{text}");
        let _ = std::fs::write(&file, "");
    }
}

/// A disk that is full is one, which is told.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_printed_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["dispatch", "--quick", "--ranks", "1"])
        .stdout(full.unwrap())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.starts_with("standard output: "), "{told}");
}
