//! What other libraries take for the same work: a program beside this one that answers how long its calls took.
//!
//! `torch_reference.py --serve` knows PyTorch's side of cases, and `SciPy`'s search for neighbours. It is asked for one batch
//! of calls after another, in turns with our own, so that whatever else happens on the machine happens to both.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The program's source, which the interpreter is given, and that of the models which it imports.
const SOURCES: [&str; 2] = [
    include_str!("../../../gpu/torch_reference.py"),
    include_str!("../../../gpu/torch_models.py"),
];

/// Makes the models a module, unless there is no PyTorch, of which the program tells, and runs the program.
const START: &str = r#"
import sys, types
program, models = sys.argv[1:3]
del sys.argv[1:3]
module = sys.modules["torch_models"] = types.ModuleType("torch_models")
try:
    exec(models, module.__dict__)
except ImportError:
    pass
exec(program)
"#;

/// The running program. It ends when it is dropped, which closes what it reads from.
pub(crate) struct Peer {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// What it is, with its version.
    pub(crate) name: String,
}

impl Peer {
    /// Starts it with this Python, on one thread.
    ///
    /// # Errors
    /// A line that says why it does not run, for instance that this Python has no PyTorch.
    pub(crate) fn start(python: &Path, quick: bool) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", python.display());
        let mut command = Command::new(python);
        command.args(["-c", START]).args(SOURCES);
        command.args(["--serve", "--device", "cpu"]);
        if quick {
            command.arg("--quick");
        }
        let mut child = (command.env("OMP_NUM_THREADS", "1"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (ask, answers) = (child.stdin.take(), child.stdout.take());
        let Some(answers) = answers else {
            return Err(format!("{}: no output", python.display()));
        };
        let mut peer = Self {
            child,
            ask,
            answers: BufReader::new(answers),
            name: String::new(),
        };
        peer.name = peer.answer()?;
        Ok(peer)
    }

    /// Makes a case ready: whether the peer has it.
    ///
    /// # Errors
    /// That the program ended, or that its model learns another number of parameters than ours.
    pub(crate) fn prepare(
        &mut self,
        case: &str,
        parameters: Option<usize>,
    ) -> Result<bool, String> {
        let answer = self.question(&format!("case {case}"))?;
        let Some(theirs) = answer.strip_prefix("ready") else {
            return Ok(false);
        };
        match (theirs.trim().parse::<usize>(), parameters) {
            (Ok(theirs), Some(ours)) if theirs != ours => Err(format!(
                "the peer's model learns {theirs} parameters, ours {ours}"
            )),
            _ => Ok(true),
        }
    }

    /// Seconds that so many calls of the case took together.
    ///
    /// # Errors
    /// That the program ended.
    pub(crate) fn seconds(&mut self, calls: usize) -> Result<f64, String> {
        let answer = self.question(&format!("run {calls}"))?;
        answer
            .parse()
            .map_err(|_| format!("the peer says {answer:?}"))
    }

    fn question(&mut self, line: &str) -> Result<String, String> {
        let Some(ask) = &mut self.ask else {
            return Err("the peer has ended".to_owned());
        };
        writeln!(ask, "{line}").map_err(|e| format!("the peer: {e}"))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err("the peer has ended".to_owned()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(e) => Err(format!("the peer: {e}")),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.ask.take());
        // How it ended is of no interest any more.
        let _ = self.child.wait();
    }
}
