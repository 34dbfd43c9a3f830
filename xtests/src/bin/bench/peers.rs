//! What other libraries take for the same work: a program beside this one that answers how long its calls took.
//!
//! `torch_reference.py --serve` knows PyTorch's side of cases, and `SciPy`'s search for neighbours. It is asked for one batch
//! of calls after another, in turns with our own, so that whatever else happens on the machine happens to both. For cases on
//! several ranks it is as many processes, of which one answers.

use crate::case::Bench;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The program's source, which the interpreter is given, and those of the modules that it imports.
const SOURCES: [&str; 4] = [
    include_str!("../../../gpu/torch_reference.py"),
    include_str!("../../../gpu/torch_models.py"),
    include_str!("../../../gpu/torch_ops.py"),
    include_str!("../../../gpu/torch_parallel.py"),
];

/// Lets the program import the others, and runs it.
const START: &str = r#"
import importlib.abc, importlib.util, sys
program, *modules = sys.argv[1:5]
del sys.argv[1:5]
modules = dict(zip(("torch_models", "torch_ops", "torch_parallel"), modules))
class Given(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name in modules else None
    def exec_module(self, module):
        exec(modules[module.__name__], module.__dict__)
sys.meta_path.append(Given())
exec(program)
"#;

/// How long a peer may take to start, which is mostly to import.
const START_SECONDS: u64 = 180;

/// A program for each number of ranks that was asked for, started when it is, and again when it has ended.
pub(crate) struct Peers {
    python: PathBuf,
    quick: bool,
    patience: Duration,
    running: BTreeMap<usize, Peer>,
    /// What the first one is, with its version.
    pub(crate) name: String,
}

/// What a peer makes of a case.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// It can be asked for [`seconds`](Peers::seconds).
    Ready,
    /// So it can, but finds something else.
    Differs(String),
    /// It has no such case.
    Absent,
    /// It fails.
    Fails(String),
}

impl Peers {
    /// Starts the first with this Python, which has so long for an answer.
    ///
    /// # Errors
    /// A line that says why it does not run, for instance that this Python has no PyTorch.
    pub(crate) fn start(
        python: PathBuf,
        ranks: usize,
        quick: bool,
        patience: Duration,
    ) -> Result<Self, String> {
        let first = Peer::start(&python, ranks, quick)?;
        Ok(Self {
            python,
            quick,
            patience,
            name: first.name.clone(),
            running: [(ranks, first)].into(),
        })
    }

    /// Makes a case ready on so many ranks: a model is to learn as many parameters as ours, and what is found is to be the same.
    ///
    /// # Errors
    /// That no peer can be started, or that its model learns another number of parameters than ours.
    pub(crate) fn prepare(
        &mut self,
        case: &str,
        ranks: usize,
        ours: &Bench,
    ) -> Result<Answer, String> {
        if !self.running.contains_key(&ranks) {
            let peer = Peer::start(&self.python, ranks, self.quick)?;
            self.running.insert(ranks, peer);
        }
        let told = match self.ask(ranks, &format!("case {case}")) {
            Ok(told) => told,
            Err(told) => return Ok(Answer::Fails(told)),
        };
        if told == "none" {
            return Ok(Answer::Absent);
        }
        let Some(theirs) = told.strip_prefix("ready") else {
            if ranks > 1 {
                // Its ranks end by themselves.
                self.running.remove(&ranks);
            }
            return Ok(Answer::Fails(told));
        };
        compared(theirs, ours)
    }

    /// Seconds that so many calls of the case took together.
    ///
    /// # Errors
    /// That the program ended, or does not answer.
    pub(crate) fn seconds(&mut self, ranks: usize, calls: usize) -> Result<f64, String> {
        let answer = self.ask(ranks, &format!("run {calls}"))?;
        answer
            .parse()
            .map_err(|_| format!("the peer says {answer:?}"))
    }

    /// Asks a peer that runs, which is given up if there is no answer.
    fn ask(&mut self, ranks: usize, line: &str) -> Result<String, String> {
        let Some(peer) = self.running.get_mut(&ranks) else {
            return Err("the peer has ended".to_owned());
        };
        let answer = peer.question(line, self.patience);
        if answer.is_err() {
            self.running.remove(&ranks);
        }
        answer
    }
}

/// Compares what a peer says of a case, how many parameters it learns and then what it finds, with ours.
fn compared(theirs: &str, ours: &Bench) -> Result<Answer, String> {
    let theirs = theirs.trim_start();
    let (count, found) = theirs.split_once(' ').unwrap_or((theirs, ""));
    if let (Ok(count), Some(ours)) = (count.parse::<usize>(), ours.parameters)
        && count != ours
    {
        return Err(format!(
            "the peer's model learns {count} parameters, ours {ours}"
        ));
    }
    let theirs: Vec<f64> = (found.split_whitespace())
        .filter_map(|number| number.parse().ok())
        .collect();
    // What is not a number is not near any.
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= ours.tolerance * b.abs();
    if theirs.iter().zip(&ours.found).all(near) {
        return Ok(Answer::Ready);
    }
    let tell = |found: &[f64]| {
        let texts: Vec<String> = found.iter().map(|x| format!("{x:.4}")).collect();
        texts.join(", ")
    };
    let (theirs, ours) = (tell(&theirs), tell(&ours.found));
    Ok(Answer::Differs(format!("finds {theirs}; ours {ours}")))
}

/// A running program. It ends when it is dropped, which closes what it reads from.
struct Peer {
    child: Child,
    ask: Option<ChildStdin>,
    answers: Receiver<String>,
    name: String,
}

impl Peer {
    /// Starts it, with one thread for each rank.
    fn start(python: &Path, ranks: usize, quick: bool) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", python.display());
        let mut command = Command::new(python);
        command.args(["-c", START]).args(SOURCES);
        command.args(["--serve", "--device", "cpu"]);
        if ranks > 1 {
            command.args(["--ranks", &ranks.to_string()]);
        }
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
        let (tell, told) = channel();
        std::thread::spawn(move || pass_on(answers, &tell));
        let mut peer = Self {
            child,
            ask,
            answers: told,
            name: String::new(),
        };
        peer.name = peer.answer(Duration::from_secs(START_SECONDS))?;
        Ok(peer)
    }

    fn question(&mut self, line: &str, patience: Duration) -> Result<String, String> {
        let Some(ask) = &mut self.ask else {
            return Err("the peer has ended".to_owned());
        };
        writeln!(ask, "{line}").map_err(|e| format!("the peer: {e}"))?;
        self.answer(patience)
    }

    /// The next line. Who is given up is killed, as nothing else might end it.
    fn answer(&mut self, patience: Duration) -> Result<String, String> {
        self.answers.recv_timeout(patience).map_err(|e| match e {
            RecvTimeoutError::Disconnected => "the peer has ended".to_owned(),
            RecvTimeoutError::Timeout => {
                // It may have ended just now.
                let _ = self.child.kill();
                format!("the peer has not answered for {} s", patience.as_secs())
            }
        })
    }
}

/// Passes lines on, until there are no more or nobody waits for them.
fn pass_on(lines: ChildStdout, to: &Sender<String>) {
    for line in BufReader::new(lines).lines() {
        let told = line.is_ok_and(|line| to.send(line.trim_end().to_owned()).is_ok());
        if !told {
            break;
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
