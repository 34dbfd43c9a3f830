//! The benchmark program: that it runs, says what it measured, and finds every result right.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

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

/// A stand-in for a Python with PyTorch: it has every case, and any number of calls takes it half a second.
#[cfg(unix)]
#[test]
fn a_peer_takes_turns_on_one_rank() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (peer, file) = (dir.join("peer.sh"), dir.join("beside.json"));
    let answers = "#!/bin/sh\necho Peer 1.0\nwhile read -r what rest; do case $what in\n\
        case) echo ready;;\nrun) echo 0.5;;\nesac; done\n";
    std::fs::write(&peer, answers).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let _ = std::fs::remove_file(&file);
    let [peer, to] = [&peer, &file].map(|p| p.to_str().unwrap());
    let asked = ["--quick", "--only", "elem/add", "--json", to];
    let output = bench(&[&["elementwise", "--beside-torch", peer], &asked[..]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("(Peer 1.0)"));
    let text = std::fs::read_to_string(&file).unwrap();
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(records.len(), 2);
    for r in &records {
        if r["ranks"] == 2 {
            assert!(r["beside_s"].is_null(), "{r}");
            continue;
        }
        assert_eq!(r["beside_s"], 0.5, "{r}");
        let ratio = r["min_s"].as_f64().unwrap() / 0.5;
        let told = r["beside_min_ratio"].as_f64().unwrap();
        assert!((told / ratio - 1.0).abs() < 1e-6, "{r}");
    }
}

#[test]
fn a_peer_that_does_not_run_is_told() {
    let output = bench(&["elementwise", "--quick", "--beside-torch", "/nowhere/python"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/python"));
}

#[test]
fn a_group_that_is_not_there_is_refused() {
    let output = bench(&["nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("redistribute"));
}
