//! The conformance program: what it prints, and how it exits.

use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use xtests::case::default_dir;

fn conformance(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conformance"))
        .args(args)
        .output()
        .unwrap()
}

/// Standard output in lines, and the exit code.
fn lines(output: &Output) -> (Vec<String>, i32) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (
        text.lines().map(str::to_owned).collect(),
        output.status.code().unwrap(),
    )
}

/// A fresh folder for one test's files.
fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Writes a case `op([1, 2, 3, 4]) = result` whose gradient is `gradient` for a cotangent of ones.
fn write_case(dir: &Path, name: &str, op: &str, result: [f64; 4], gradient: [f64; 4]) {
    let bytes = |v: [f64; 4]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let data = [
        ("in.input", bytes([1.0, -2.0, 3.0, -4.0])),
        ("out.0", bytes(result)),
        ("cot.0", bytes([1.0; 4])),
        ("grad.input", bytes(gradient)),
    ];
    let views: BTreeMap<&str, TensorView<'_>> = data
        .iter()
        .map(|(k, b)| (*k, TensorView::new(Dtype::F64, vec![4], b).unwrap()))
        .collect();
    std::fs::write(
        dir.join(format!("{name}.safetensors")),
        safetensors::serialize(views, None).unwrap(),
    )
    .unwrap();
    let text = format!(
        r#"{{"name": "{name}", "file": "{name}.safetensors", "op": "{op}", "inputs": ["input"], "outputs": 1,
            "differentiable_outputs": [0], "gradients": ["input"]}}"#
    );
    std::fs::write(dir.join(format!("{name}.json")), text).unwrap();
}

const RELU: ([f64; 4], [f64; 4]) = ([1.0, 0.0, 3.0, 0.0], [1.0, 0.0, 1.0, 0.0]);

#[test]
fn passes_end_in_the_promised_lines() {
    let json = folder("passes").join("report.json");
    let args = [
        "--filter",
        "act_relu",
        "--ranks",
        "1,2,4",
        "--seed",
        "3",
        "--json",
        json.to_str().unwrap(),
    ];
    let (printed, code) = lines(&conformance(&args));
    assert_eq!(code, 0, "{printed:?}");
    let [.., refused, totals] = &printed[..] else {
        panic!("{printed:?}")
    };
    assert!(refused.starts_with("refused: 0 layouts of "), "{printed:?}");
    assert_eq!(totals, "1 passed, 0 failed, 0 skipped");
    let first = std::fs::read(&json).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(report["cases"][0]["status"], "pass");
    assert!(report["cases"][0]["layouts"].as_u64().unwrap() > 20);
    conformance(&[&args[..], &["--jobs", "1"]].concat());
    assert_eq!(
        first,
        std::fs::read(&json).unwrap(),
        "the seed fixes what is run"
    );
}

#[test]
fn wrong_results_wrong_gradients_and_unreadable_files_fail() {
    let dir = folder("wrong");
    let (result, gradient) = RELU;
    write_case(&dir, "right", "relu", result, gradient);
    write_case(&dir, "forward", "relu", [1.0, 0.0, 3.0, 1e-6], gradient);
    write_case(&dir, "backward", "relu", result, [1.0, 0.0, 1.0, 0.5]);
    write_case(&dir, "unknown", "telepathy", result, gradient);
    std::fs::write(dir.join("broken.json"), b"{").unwrap();
    let (printed, code) = lines(&conformance(&[dir.to_str().unwrap(), "--ranks", "1,3"]));
    assert_eq!(code, 1);
    assert_eq!(
        printed.last().unwrap(),
        "1 passed, 3 failed, 1 skipped",
        "{printed:#?}"
    );
    let has = |part: &str| {
        assert!(
            printed.iter().any(|l| l.contains(part)),
            "{part}: {printed:#?}"
        );
    };
    has("output 0: 1 of 4 elements differ");
    has("gradient of input: 1 of 4 elements differ");
    has("skipped unknown: telepathy: not built");
    has("broken.json: not a case description");
}

#[test]
fn what_cannot_start_exits_otherwise() {
    let dir = folder("empty");
    for args in [
        vec![dir.to_str().unwrap()],
        vec!["/nowhere/at/all"],
        vec!["--ranks", "0"],
        vec!["--ranks", "two"],
        vec!["--budget", "-1"],
        vec!["--filter", "no such case"],
    ] {
        let output = conformance(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_budget_bounds_the_time_and_still_visits_cases_in_turn() {
    let start = std::time::Instant::now();
    let (printed, code) = lines(&conformance(&["--budget", "2", "--filter", "conv"]));
    assert_eq!(code, 0, "{printed:#?}");
    assert!(start.elapsed().as_secs() < 15);
    let of = |line: &String| ["pass ", "skipped "].iter().any(|s| line.starts_with(s));
    let all = std::fs::read_dir(default_dir())
        .unwrap()
        .map(|e| e.unwrap().file_name());
    let convs = all
        .filter(|n| {
            n.to_str()
                .is_some_and(|n| n.contains("conv") && n.ends_with(".json"))
        })
        .count();
    // The network's op names a convolution too, and so does a case that is made.
    assert_eq!(
        printed.iter().filter(|l| of(l)).count(),
        convs + 2,
        "{printed:#?}"
    );
}

#[test]
fn a_hang_is_a_failure() {
    // With no patience at all, whatever runs when the watchdog looks is a hang.
    let (printed, code) = lines(&conformance(&["--patience", "0", "--filter", "conv"]));
    assert_eq!(code, 1, "{printed:#?}");
    assert!(
        printed
            .iter()
            .any(|l| l.contains("hang: no result after 0 s")),
        "{printed:#?}"
    );
    assert!(printed.last().unwrap().contains("1 failed"), "{printed:#?}");
}

/// A reader that leaves, as `head` does, is no error: what the program found is in its file and in its exit code.
#[test]
fn nobody_need_read_what_is_printed() {
    let dir = folder("unheard");
    write_case(&dir, "right", "relu", RELU.0, RELU.1);
    write_case(&dir, "wrong", "neg", RELU.0, RELU.1);
    let json = dir.join("report.json");
    for (filter, code) in [("right", 0), ("wrong", 1)] {
        let (unread, stdout) = std::io::pipe().unwrap();
        drop(unread);
        let output = Command::new(env!("CARGO_BIN_EXE_conformance"))
            .args([dir.to_str().unwrap(), "--filter", filter, "--ranks", "1"])
            .args(["--json", json.to_str().unwrap()])
            .stdout(stdout)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let report = std::fs::read(&json).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        assert_eq!(report["cases"][0]["name"], filter);
        std::fs::remove_file(&json).unwrap();
    }
}
