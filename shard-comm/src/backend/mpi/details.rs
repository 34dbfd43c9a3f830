//! The full description of an operation, which ranks exchange once their fingerprints differ, so that all name the same cause.

use serde::{Deserialize, Serialize};
use shard_spec::ReduceOp;

use super::codes::failure;
use super::wire::{Wire, WireMessage};
use crate::fingerprint::Fingerprint;
use crate::plan::Traffic;
use crate::validate::{Claim, label, validate};
use crate::{AgreedError, CommError, DType, ExchangePlan, Monoid, Past, Result, SiteText, Told};

/// The name of the operation that every rank ends with.
pub(super) const END: &str = "end of the program";

/// One rank's part in an operation.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Details {
    op: String,
    site: (String, u32, u32),
    turn: Option<u64>,
    status: Option<Status>,
    argument: Option<(String, u128)>,
    past: Option<u64>,
    calls: Vec<Call>,
    dtype: Option<String>,
    exchanges: Vec<Exchange>,
    /// A fingerprint of the stages, if they are others than the exchange.
    stages: [u64; 2],
}

/// One of the calls that came before.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Call {
    number: u64,
    after: u64,
    what: String,
    reads: Vec<String>,
    tracked: bool,
    site: Option<(String, u32, u32)>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Status {
    op: String,
    expected: String,
    got: String,
    remedy: String,
}

#[derive(Serialize, Deserialize, Debug)]
struct Exchange {
    name: String,
    fold: Option<String>,
    id: u128,
    sources: Vec<usize>,
    incoming: Vec<Pair>,
    outgoing: Vec<Pair>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Pair {
    peer: usize,
    pieces: usize,
    elements: usize,
    extents: Vec<(usize, usize)>,
    print: Option<[u64; 2]>,
}

/// A rank's description of itself.
#[derive(Clone, Debug)]
pub(super) struct Own<'a> {
    pub(super) op: &'static str,
    pub(super) site: SiteText,
    pub(super) turn: Option<u64>,
    pub(super) status: Option<&'a AgreedError>,
    pub(super) argument: Option<(&'static str, u128)>,
    pub(super) past: Option<&'a Past>,
    pub(super) dtype: Option<DType>,
}

impl Details {
    /// The details of an operation without its exchanges.
    pub(super) fn new(own: Own<'_>) -> Self {
        let status = |error: &AgreedError| Status {
            op: error.op.clone(),
            expected: error.expected.clone(),
            got: error.got.clone(),
            remedy: error.remedy.clone(),
        };
        Self {
            op: own.op.to_owned(),
            site: place(own.site),
            turn: own.turn,
            status: own.status.map(status),
            argument: own.argument.map(|(name, value)| (name.to_owned(), value)),
            past: own.past.map(Past::print),
            calls: own.past.map_or(Vec::new(), |past| {
                past.told().into_iter().map(Call::from).collect()
            }),
            dtype: own.dtype.map(|t| t.name().to_owned()),
            exchanges: Vec::new(),
            stages: [0; 2],
        }
    }

    /// Notes the stages that the operation has in place of its one exchange, by their fingerprints.
    pub(super) fn follow(&mut self, stages: impl Iterator<Item = [u64; 2]>) {
        let mut print = Fingerprint::new();
        stages.for_each(|stage| print.print(stage));
        self.stages = print.done();
    }

    /// Adds the next exchange, which reads from sources of these lengths.
    pub(super) fn push(&mut self, plan: &ExchangePlan, wire: &Wire, sources: Vec<usize>) {
        let pairs = |traffic: &[Traffic], messages: &[WireMessage]| {
            let pair = |t: &Traffic| Pair {
                peer: t.peer,
                pieces: t.pieces,
                elements: t.elements,
                extents: t.extents.to_vec(),
                print: messages.iter().find(|l| l.peer == t.peer).map(|l| l.print),
            };
            traffic.iter().map(pair).collect()
        };
        self.exchanges.push(Exchange {
            name: plan.name.to_owned(),
            fold: plan.fold.map(|op| op.name().to_owned()),
            id: plan.id,
            sources,
            incoming: pairs(plan.incoming(), &wire.incoming),
            outgoing: pairs(plan.outgoing(), &wire.outgoing),
        });
    }

    /// As bytes of a message.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| failure("details", &e.to_string()))
    }

    /// From bytes of a message, with zeros after them.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let end = bytes.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
        serde_json::from_slice(&bytes[..end]).map_err(|e| failure("details", &e.to_string()))
    }

    /// The error that this rank had to report, if any.
    pub(super) fn status(&self) -> Option<AgreedError> {
        let s = self.status.as_ref()?;
        Some(AgreedError::new(&s.op, &s.expected, &s.got, &s.remedy))
    }
}

impl From<Told> for Call {
    fn from(told: Told) -> Self {
        Self {
            number: told.number,
            after: told.after,
            what: told.what,
            reads: told.reads.into_vec(),
            tracked: told.tracked,
            site: told.site.map(place),
        }
    }
}

impl Call {
    /// What a rank tells of what it did, as text.
    pub(super) fn written(past: &Past) -> Result<String> {
        let calls: Vec<Self> = past.told().into_iter().map(Self::from).collect();
        serde_json::to_string(&calls).map_err(|e| failure("details", &e.to_string()))
    }

    /// What another rank told.
    pub(super) fn read(text: &str) -> Result<Vec<Told>> {
        let calls: Vec<Self> =
            serde_json::from_str(text).map_err(|e| failure("details", &e.to_string()))?;
        Ok(calls.iter().map(Self::told).collect())
    }

    fn told(&self) -> Told {
        Told {
            number: self.number,
            after: self.after,
            what: self.what.clone(),
            reads: self.reads.iter().cloned().collect(),
            tracked: self.tracked,
            site: self.site.as_ref().map(site),
        }
    }
}

fn place(site: SiteText) -> (String, u32, u32) {
    (site.file.into_owned(), site.line, site.column)
}

fn site((file, line, column): &(String, u32, u32)) -> SiteText {
    SiteText {
        file: file.clone().into(),
        line: *line,
        column: *column,
    }
}

/// The error for ranks whose fingerprints differ.
pub(super) fn disagreement(sequence: u64, members: &[usize], all: &[Details]) -> CommError {
    if let Some(ended) = abandoned(sequence, members, all) {
        return ended;
    }
    let exchanges = all.iter().map(|d| d.exchanges.len()).max().unwrap_or(0);
    for stage in 0..exchanges.max(1) {
        let claims: Vec<StageClaim<'_>> = all.iter().map(|d| StageClaim::new(d, stage)).collect();
        let claims: Vec<_> = claims.iter().collect();
        if let Err(error) = validate(sequence, members, &claims) {
            return error;
        }
    }
    // What no pair of ranks has to do with: the counts of others, for instance.
    let claims: Vec<StageClaim<'_>> = (all.iter())
        .map(|details| {
            let [a, b] = details.stages;
            let mut claim = StageClaim::new(details, 0);
            claim.id = u128::from(a) << 64 | u128::from(b);
            claim
        })
        .collect();
    match validate(sequence, members, &claims.iter().collect::<Vec<_>>()) {
        Err(error) => error,
        Ok(()) => failure("agreement", "fingerprints differ where nothing else does"),
    }
}

/// The error if some rank has ended while others still operate.
fn abandoned(sequence: u64, members: &[usize], all: &[Details]) -> Option<CommError> {
    let ended = all.iter().position(|d| d.op == END)?;
    let (rank, other) = all.iter().enumerate().find(|(_, d)| d.op != END)?;
    let (file, line, column) = &other.site;
    let cause = format!(
        "it ended without joining {} (operation {sequence} of {}), which rank {} called at {file}:{line}:{column}",
        other.op,
        label(members),
        members[rank],
    );
    Some(CommError::PeerFailed {
        origin: members[ended],
        cause: cause.into(),
    })
}

/// The details of one exchange, as the claim that validation checks.
struct StageClaim<'a> {
    called: &'a str,
    site: SiteText,
    name: &'a str,
    turn: Option<u64>,
    status: Option<AgreedError>,
    argument: Option<(&'a str, u128)>,
    past: Option<u64>,
    told: Vec<Told>,
    dtype: Option<DType>,
    fold: Option<Monoid>,
    id: u128,
    sources: Vec<usize>,
    incoming: Vec<Traffic>,
    outgoing: Vec<Traffic>,
}

impl<'a> StageClaim<'a> {
    fn new(details: &'a Details, stage: usize) -> Self {
        let exchange = details.exchanges.get(stage);
        let traffic = |pairs: &[Pair]| {
            let one = |p: &Pair| Traffic::new(p.peer, p.pieces, p.elements, &p.extents, p.print);
            pairs.iter().map(one).collect()
        };
        let argument = details.argument.as_ref();
        Self {
            called: &details.op,
            site: site(&details.site),
            name: exchange.map_or("nothing", |e| &e.name[..]),
            turn: details.turn,
            status: details.status().filter(|_| stage == 0),
            argument: argument.map(|(name, value)| (&name[..], *value)),
            past: details.past,
            told: details.calls.iter().map(Call::told).collect(),
            dtype: details
                .dtype
                .as_ref()
                .and_then(|name| DType::ALL.into_iter().find(|t| t.name() == name)),
            fold: exchange.and_then(|e| monoid(e.fold.as_ref()?)),
            id: exchange.map_or(0, |e| e.id),
            sources: exchange.map_or(Vec::new(), |e| e.sources.clone()),
            incoming: exchange.map_or(Vec::new(), |e| traffic(&e.incoming)),
            outgoing: exchange.map_or(Vec::new(), |e| traffic(&e.outgoing)),
        }
    }
}

impl Claim for StageClaim<'_> {
    fn called(&self) -> &str {
        self.called
    }

    fn site(&self) -> SiteText {
        self.site.clone()
    }

    fn name(&self) -> &str {
        self.name
    }

    fn turn(&self) -> Option<u64> {
        self.turn
    }

    fn status(&self) -> Option<&AgreedError> {
        self.status.as_ref()
    }

    fn argument(&self) -> Option<(&str, u128)> {
        self.argument
    }

    fn past(&self) -> Option<u64> {
        self.past
    }

    fn told(&self) -> Vec<Told> {
        self.told.clone()
    }

    fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    fn fold(&self) -> Option<Monoid> {
        self.fold
    }

    fn id(&self) -> u128 {
        self.id
    }

    fn incoming(&self) -> &[Traffic] {
        &self.incoming
    }

    fn outgoing(&self) -> &[Traffic] {
        &self.outgoing
    }

    fn source_len(&self, source: usize) -> usize {
        self.sources.get(source).copied().unwrap_or(0)
    }
}

fn monoid(name: &str) -> Option<Monoid> {
    let ops = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Any,
        ReduceOp::All,
    ];
    let others = [
        Monoid::Moments,
        Monoid::MaxSumExp,
        Monoid::ArgMax,
        Monoid::ArgMin,
    ];
    let mut all = ops.into_iter().map(Monoid::Op).chain(others);
    all.find(|op| op.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pieces;

    /// Ranks that differ only in a later exchange learn which two ranks differ, and in what.
    #[test]
    fn later_exchanges_are_compared() {
        let rank = |later: &'static str| {
            let mut details = Details::new(Own {
                op: "all_reduce",
                site: SiteText {
                    file: "main.rs".into(),
                    line: 1,
                    column: 2,
                },
                turn: None,
                status: None,
                argument: None,
                past: None,
                dtype: Some(DType::F32),
            });
            for name in ["one", later] {
                let plan =
                    ExchangePlan::new(name, 0, Pieces::default(), Pieces::default(), None, None);
                details.push(&plan, &Wire::new(&plan, 0), Vec::new());
            }
            details
        };
        let all = [rank("two"), rank("two"), rank("other")];
        let CommError::Mismatch(found) = disagreement(4, &[5, 6, 8], &all) else {
            panic!("another error");
        };
        assert_eq!((found.rank_a, found.rank_b), (5, 8));
        assert!(
            found.a.contains("two") && found.b.contains("other"),
            "{found:?}"
        );
    }
}
