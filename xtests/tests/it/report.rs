//! What a report says.

use xtests::report::{CaseReport, Incident, Report, Status};

#[test]
fn the_last_lines_are_as_promised() {
    let incident = |reason: &str| Incident {
        mesh: vec![2],
        layouts: "[R]".into(),
        reason: reason.into(),
    };
    let mut pass = CaseReport::new("a", "relu", Status::Pass);
    pass.layouts = 7;
    pass.refused = vec![incident("too odd"), incident("too odd")];
    let mut fail = CaseReport::new("b", "conv", Status::Fail);
    (fail.layouts, fail.failed, fail.failures) = (5, 1, vec![incident("off")]);
    let skipped = CaseReport::skipped("c", "sort", "not built");
    let report = Report {
        seed: 0,
        cases: vec![pass, fail, skipped],
    };
    let text = report.text();
    let lines: Vec<&str> = text.lines().rev().take(2).collect();
    assert_eq!(
        lines,
        ["1 passed, 1 failed, 1 skipped", "refused: 2 layouts of 12"]
    );
    assert!(
        text.contains("refused a: 2 layouts, such as mesh [2] [R]: too odd"),
        "{text}"
    );
    assert!(text.contains("skipped c: sort: not built"), "{text}");
    assert!(!report.is_good());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][1]["status"], "fail");
}
