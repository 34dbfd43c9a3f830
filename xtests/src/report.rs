//! What came out, for people and as JSON.

use serde::Serialize;
use std::fmt::Write as _;

/// What became of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every layout that was tried gave the reference, or was refused by the op's rule.
    Pass,
    /// At least one did not, or none was computed.
    Fail,
    /// The op is not built, or time ran out before the first layout.
    Skipped,
}

/// A layout that did not pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Incident {
    /// Shape of the mesh.
    pub mesh: Vec<usize>,
    /// The layouts of the inputs, element type and device.
    pub layouts: String,
    /// What was wrong, or the reason of the refusal.
    pub reason: String,
}

/// One case's results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseReport {
    /// The case.
    pub name: String,
    /// Its op.
    pub op: String,
    /// What became of it.
    pub status: Status,
    /// Why it was skipped, or could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Layouts that were tried.
    pub layouts: usize,
    /// Layouts that failed; the first are in `failures`.
    pub failed: usize,
    /// The first failures.
    pub failures: Vec<Incident>,
    /// Layouts the op's rule refused.
    pub refused: Vec<Incident>,
}

/// All results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// Cases in order of their names.
    pub cases: Vec<CaseReport>,
}

impl CaseReport {
    /// A case that was not run.
    pub fn skipped(name: &str, op: &str, reason: &str) -> Self {
        Self {
            reason: Some(reason.to_owned()),
            ..Self::new(name, op, Status::Skipped)
        }
    }

    /// A case that failed as a whole.
    pub fn failed(name: &str, op: &str, reason: &str) -> Self {
        Self {
            reason: Some(reason.to_owned()),
            ..Self::new(name, op, Status::Fail)
        }
    }

    /// A case without results yet.
    pub fn new(name: &str, op: &str, status: Status) -> Self {
        Self {
            name: name.to_owned(),
            op: op.to_owned(),
            status,
            reason: None,
            layouts: 0,
            failed: 0,
            failures: Vec::new(),
            refused: Vec::new(),
        }
    }
}

impl Report {
    /// How many cases ended so.
    pub fn count(&self, status: Status) -> usize {
        self.cases.iter().filter(|c| c.status == status).count()
    }

    /// Whether no case failed.
    pub fn is_good(&self) -> bool {
        self.count(Status::Fail) == 0
    }

    /// The report in lines; the last is `N passed, N failed, N skipped`, the one before says how many layouts
    /// were refused.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for case in &self.cases {
            case.write(&mut out);
        }
        let refused: usize = self.cases.iter().map(|c| c.refused.len()).sum();
        let layouts: usize = self.cases.iter().map(|c| c.layouts).sum();
        let (passed, failed, skipped) = (
            self.count(Status::Pass),
            self.count(Status::Fail),
            self.count(Status::Skipped),
        );
        // Writing to a string cannot fail.
        let _ = writeln!(out, "refused: {refused} layouts of {layouts}");
        let _ = writeln!(out, "{passed} passed, {failed} failed, {skipped} skipped");
        out
    }
}

impl CaseReport {
    fn write(&self, out: &mut String) {
        let Self {
            name, op, layouts, ..
        } = self;
        let reason = self.reason.as_deref().unwrap_or("");
        let _ = match self.status {
            Status::Pass => writeln!(out, "pass    {name}: {layouts} layouts"),
            Status::Skipped => writeln!(out, "skipped {name}: {op}: {reason}"),
            Status::Fail if layouts == &0 => writeln!(out, "fail    {name}: {reason}"),
            Status::Fail if self.failed == 0 => writeln!(out, "fail    {name}: {op}: {reason}"),
            Status::Fail => {
                writeln!(
                    out,
                    "fail    {name}: {op}: {} of {layouts} layouts{}{reason}",
                    self.failed,
                    if reason.is_empty() { "" } else { ": " }
                )
            }
        };
        for f in &self.failures {
            let _ = writeln!(out, "        mesh {:?} {}: {}", f.mesh, f.layouts, f.reason);
        }
        // Refusals for one reason are listed once, with one example.
        let mut reasons: Vec<(&str, &Incident, usize)> = Vec::new();
        for r in &self.refused {
            match reasons.iter_mut().find(|(text, ..)| *text == r.reason) {
                Some((.., n)) => *n += 1,
                None => reasons.push((&r.reason, r, 1)),
            }
        }
        for (reason, example, n) in reasons {
            let _ = writeln!(
                out,
                "refused {name}: {n} layouts, such as mesh {:?} {}: {reason}",
                example.mesh, example.layouts
            );
        }
    }
}
