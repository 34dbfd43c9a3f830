//! A short run of the conformance suite.

use xtests::case::Case;
use xtests::made::project_cases;
use xtests::report::Status;
use xtests::run::{Options, run};

#[test]
fn the_references_hold_on_a_few_layouts_each() {
    let cases: Vec<Case> = project_cases()
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let options = Options {
        ranks: vec![1, 2, 3, 4, 6],
        most: 4,
        ..Options::default()
    };
    let report = run(&cases, &options, &|report| {
        // Hung ranks cannot be joined: say so and end the test process.
        eprintln!("{}", report.text());
        std::process::exit(101);
    });
    let failed: Vec<&str> = report
        .cases
        .iter()
        .filter(|c| c.status == Status::Fail)
        .map(|c| c.name.as_str())
        .collect();
    assert!(failed.is_empty(), "{}", report.text());
    assert!(report.count(Status::Pass) >= 120, "{}", report.text());
}
