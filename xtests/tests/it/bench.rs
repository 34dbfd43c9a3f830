//! The benchmark program: that it runs, says what it measured, and finds every result right.

use serde_json::Value;
use std::collections::BTreeSet;
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

/// Cases on several ranks beside a peer that this repository plays, and what each line says of it.
fn beside(only: &str, more: &[&str]) -> (Output, Vec<Value>) {
    let name = format!(
        "beside-{}.json",
        only.replace(|c: char| !c.is_alphanumeric(), "-")
    );
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&file);
    let peer = concat!(env!("CARGO_MANIFEST_DIR"), "/data/peer.sh");
    let args = ["parallel", "--quick", "--ranks", "2", "--only", only];
    let beside = ["--beside-torch", peer, "--json", file.to_str().unwrap()];
    let output = bench(&[&args[..], &beside[..], more].concat());
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let records = text.lines().map(|l| serde_json::from_str(l).unwrap());
    let records = records.collect();
    (output, records)
}

/// A peer that has a case takes turns with it; one that has not, or ends, is told of, and asked for the next case all the same.
#[cfg(unix)]
#[test]
fn a_peer_on_several_ranks_takes_turns() {
    let (output, records) = beside(" 16", &[]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("(a peer of 2)"), "{told}");
    let by_name = |name: &str| records.iter().find(|r| r["case"] == name).unwrap();
    let turns = by_name("parallel/add of 16, S(0)");
    assert_eq!(turns["beside_fails"], Value::Null);
    let calls = 0.5 / turns["beside_min_s"].as_f64().unwrap();
    assert_eq!(calls, 1.0, "one call of half a second is a batch: {turns}");
    let ratio = turns["min_s"].as_f64().unwrap() / 0.5;
    assert!((turns["beside_min_ratio"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9);
    let wrong = by_name("parallel/ten maps of 16, S(0)");
    assert_eq!(wrong["beside_fails"], "Wrong: by much");
    assert_eq!(wrong["beside_s"], Value::Null);
    assert!(told.contains("Wrong: by much"), "{told}");
}

#[cfg(unix)]
#[test]
fn a_peer_that_ends_or_hangs_holds_nobody() {
    let (output, records) = beside("sum 65x32", &["--patience", "1"]);
    assert!(output.status.success(), "{output:?}");
    let [record] = &records[..] else {
        panic!("{records:?}")
    };
    let told = "the peer has not answered for 1 s";
    assert_eq!(record["beside_fails"], told);
    let (output, records) = beside("U-Net", &[]);
    assert!(output.status.success(), "{output:?}");
    let told: Vec<&Value> = records.iter().map(|r| &r["beside_fails"]).collect();
    // The one that ends, and one started anew that has no such case.
    assert_eq!(told, [&"the peer has ended".into(), &Value::Null]);
}

/// The same parameters and batches have the same losses, whoever trains and however it is divided.
#[cfg(unix)]
#[test]
fn a_peer_has_to_learn_the_same() {
    let (output, records) = beside("Llama", &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(records.len(), 3);
    let losses = records[0]["beside_fails"].as_str().unwrap();
    let begins = "finds 1.0000, 2.0000, 3.0000; ours 4.56";
    assert!(losses.starts_with(begins), "{losses}");
    assert!(records[0]["beside_ratio"].is_number(), "{:?}", records[0]);
    // Of the second it tells no losses, and it has no third.
    assert!(records[1]["beside_ratio"].is_number(), "{:?}", records[1]);
    assert!(records[2]["beside_ratio"].is_null());
    assert_eq!(records[2]["beside_lacks"], true);
    let told = String::from_utf8_lossy(&output.stdout);
    let named = records[2]["case"].as_str().unwrap();
    assert!(
        told.contains(&format!("has not: 1, the first of them {named}")),
        "{told}"
    );
    for record in &records {
        assert!(record["check"].as_f64().unwrap() < 1e-4, "{record}");
    }
}

/// Of every op of the survey PyTorch's program has a function by its name, and it has no others.
#[test]
fn ops_have_their_peers() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops.json");
    let _ = std::fs::remove_file(&file);
    let args = ["ops", "--quick", "--ranks", "1", "--json"];
    let output = bench(&[&args[..], &[file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let cases = text.lines().map(|line| {
        let record: Value = serde_json::from_str(line).unwrap();
        record["case"].as_str().unwrap().to_owned()
    });
    let op_of = |case: String| {
        let (op, _) = case.strip_prefix("ops/").unwrap().split_once(": ").unwrap();
        op.to_owned()
    };
    let ours: BTreeSet<String> = cases.map(op_of).collect();
    let (_, table) = include_str!("../../gpu/torch_ops.py")
        .split_once("\nOPS = {\n")
        .unwrap();
    let name_of = |line: &str| {
        Some(
            line.strip_prefix("    \"")?
                .split_once("\": ")?
                .0
                .to_owned(),
        )
    };
    let theirs: BTreeSet<String> = table.lines().filter_map(name_of).collect();
    let without: Vec<&String> = ours.difference(&theirs).collect();
    assert!(without.is_empty(), "{without:?}");
    // Factors of matrices are asked for by a feature.
    let unasked: Vec<&String> = theirs.difference(&ours).collect();
    let known = if cfg!(feature = "linalg") { 0 } else { 7 };
    assert_eq!(unasked.len(), known, "{unasked:?}");
}
