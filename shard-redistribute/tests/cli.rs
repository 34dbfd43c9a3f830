//! The `plan` program: what it prints, and how it refuses.

use std::process::{Command, Output};

fn plan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plan"))
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn it_prints_the_plan_the_methods_and_the_traffic() {
    let svg = std::env::temp_dir().join(format!("plan-{}.svg", std::process::id()));
    let out = plan(&[
        "--mesh",
        "2x2",
        "--shape",
        "8x4",
        "--from",
        "S(0) S(1)",
        "--to",
        "S(1) S(0)",
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}");
    assert!(
        text.starts_with("S(0) S(1) → S(1) S(0)  (relabel)"),
        "{text}"
    );
    assert!(text.contains("axis by axis"), "{text}");
    // Rank 1 holds the upper right and wants the lower left, which rank 2 has.
    let line = text
        .lines()
        .find(|l| l.trim_start().starts_with("1  0..4 x 2..4"))
        .unwrap();
    let fields: Vec<&str> = line.split_whitespace().rev().take(4).collect();
    assert_eq!(fields, ["32", "32", "1", "32"], "{line}");
    let picture = std::fs::read_to_string(&svg).unwrap();
    std::fs::remove_file(&svg).unwrap();
    assert!(picture.contains("<title>2 to 1: 32 B</title>"));
    assert!(picture.trim_end().ends_with("</svg>"));
}

#[test]
fn bad_arguments_are_one_line_and_exit_code_2() {
    let good = ["--mesh", "2", "--shape", "8", "--from", "S(0)", "--to", "R"];
    assert!(plan(&good).status.success());
    let mut cases: Vec<Vec<&str>> = vec![vec!["--mesh", "2"], vec!["--nonsense"]];
    for (at, bad) in [
        (1, "2x"),
        (1, "0"),
        (1, "100000x100000"),
        (3, "8x8x"),
        (5, "S(1)"),
        (3, "4611686018427387904"),
        (5, "Q"),
        (7, "R R"),
        (7, "P(max)"),
    ] {
        let mut args = good.to_vec();
        args[at] = bad;
        cases.push(args);
    }
    cases.push([&good[..], &["--rank", "2"]].concat());
    cases.push([&good[..], &["--dtype", "f8"]].concat());
    cases.push([&good[..], &["--bandwidth", "0"]].concat());
    for args in cases {
        let out = plan(&args);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{args:?}: {text}");
        assert!(text.starts_with("error: "), "{args:?}: {text}");
    }
}

/// Each rank has fifty billion intervals, of which a few are shown.
#[test]
fn stripes_of_any_extent_are_explained() {
    for to in ["S(0)", "R", "S(0)[0:3,1:2]*"] {
        let shape = ["--mesh", "2", "--shape", "100000000000"];
        let svg = std::env::temp_dir().join(format!("stripes-{}.svg", std::process::id()));
        let picture = ["--svg", svg.to_str().unwrap()];
        let layouts = ["--from", "S(0)[0:1,1:1]*", "--to", to];
        let out = plan(&[&shape[..], &layouts, &picture].concat());
        let (text, err) = (
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr),
        );
        assert!(out.status.success(), "{to}: {err}");
        assert!(text.contains("0..1+2..3+4..5+..."), "{to}: {text}");
        std::fs::remove_file(&svg).unwrap();
    }
}
