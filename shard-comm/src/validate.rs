//! The validation of what the ranks of an operation must agree on, before anything moves.

use std::sync::Arc;

use crate::history::first_difference;
use crate::plan::{Traffic, traffic_with};
use crate::{AgreedError, CommError, DType, Mismatch, Monoid, Result, SiteText, Told};

/// One rank's statement about its part in an exchange, which [`validate`] compares. [`Post`](crate::backend::Post) is a claim, and so may be
/// what came from another process: texts are the claim's own.
///
/// ```
/// use shard_comm::backend::{Claim, Traffic, validate};
/// use shard_comm::{AgreedError, CommError, DType, Monoid, SiteText, Told};
///
/// /// What a backend between processes may send of a post, and read again.
/// struct Heard {
///     called: String,
///     site: (String, u32, u32),
///     argument: (String, u128),
/// }
///
/// impl Claim for Heard {
///     fn called(&self) -> &str {
///         &self.called
///     }
///     fn site(&self) -> SiteText {
///         let (file, line, column) = self.site.clone();
///         SiteText { file: file.into(), line, column }
///     }
///     fn name(&self) -> &str {
///         &self.called
///     }
///     fn argument(&self) -> Option<(&str, u128)> {
///         Some((&self.argument.0, self.argument.1))
///     }
///     // What is left out here is sent in the same way.
/// #   fn turn(&self) -> Option<u64> { None }
/// #   fn status(&self) -> Option<&AgreedError> { None }
/// #   fn past(&self) -> Option<u64> { None }
/// #   fn told(&self) -> Vec<Told> { Vec::new() }
/// #   fn dtype(&self) -> Option<DType> { None }
/// #   fn fold(&self) -> Option<Monoid> { None }
/// #   fn id(&self) -> u128 { 1 }
/// #   fn incoming(&self) -> &[Traffic] { &[] }
/// #   fn outgoing(&self) -> &[Traffic] { &[] }
/// #   fn source_len(&self, _: usize) -> usize { 0 }
/// }
///
/// let heard = |line, root| Heard {
///     called: "reduce".to_owned(),
///     site: ("main.rs".to_owned(), line, 5),
///     argument: ("root".to_owned(), root),
/// };
/// let claims = [heard(7, 0), heard(9, 1)];
/// let Err(CommError::Mismatch(found)) = validate(3, &[4, 6], &[&claims[0], &claims[1]]) else {
///     panic!("another error");
/// };
/// // It outlives what it tells of.
/// drop(claims);
/// assert_eq!((&*found.field, &*found.a, &*found.b), ("root", "0", "1"));
/// assert_eq!((&*found.op_b, found.site_b.to_string()), ("reduce", "main.rs:9:5".to_owned()));
/// ```
pub trait Claim {
    /// What the user called, for messages.
    fn called(&self) -> &str;
    /// Where the call was made.
    fn site(&self) -> SiteText;
    /// The name of the plan, which must agree.
    fn name(&self) -> &str;
    /// The number of the operation by the caller's count.
    fn turn(&self) -> Option<u64>;
    /// An error that all ranks must learn of.
    fn status(&self) -> Option<&AgreedError>;
    /// An argument that must be equal on all ranks: its name and value.
    fn argument(&self) -> Option<(&str, u128)>;
    /// What the program did before, as a fingerprint, if that is to be compared.
    fn past(&self) -> Option<u64>;
    /// The last of it, oldest first: asked for where fingerprints differ.
    fn told(&self) -> Vec<Told>;
    /// The type of the elements, if any move.
    fn dtype(&self) -> Option<DType>;
    /// How the plan combines pieces.
    fn fold(&self) -> Option<Monoid>;
    /// The plan's fingerprint.
    fn id(&self) -> u128;
    /// What the plan [receives](crate::ExchangePlan::incoming); compared where a fingerprint is zero.
    fn incoming(&self) -> &[Traffic];
    /// What the plan [sends](crate::ExchangePlan::outgoing); compared where a fingerprint is zero.
    fn outgoing(&self) -> &[Traffic];
    /// The length of a source; zero if there is no such source.
    fn source_len(&self, source: usize) -> usize;
}

/// The name of a group in messages: its ranks of the launch.
///
/// ```
/// use shard_comm::backend::label;
/// assert_eq!(label(&[2, 3, 4, 5]), "ranks 2..=5");
/// assert_eq!(label(&[5, 0]), "ranks [5, 0]");
/// ```
pub fn label(members: &[usize]) -> String {
    let consecutive = members.windows(2).all(|w| w[1] == w[0] + 1);
    match members {
        [first, .., last] if consecutive && members.len() > 2 => format!("ranks {first}..={last}"),
        _ => format!("ranks {members:?}"),
    }
}

/// Checks claims, one per member. An error is the same for all members, because it is a function of the claims alone.
///
/// `sequence` counts the operations of these members. Members are numbered as in the launch.
///
/// Fields are compared in an order in which a difference explains later ones: the turn, what was done before (unless some rank has
/// an error to report), the operation, errors that ranks have to report, arguments, the plan, types, and last the sizes of every
/// pair.
///
/// # Errors
/// [`OutOfStep`](CommError::OutOfStep) if some rank has lost or repeated an operation, [`Mismatch`](CommError::Mismatch) if two
/// claims differ, [`Agreed`](CommError::Agreed) with the error of the lowest member that has one to tell.
pub fn validate<C: Claim>(sequence: u64, members: &[usize], claims: &[&C]) -> Result<()> {
    if agree_plainly(claims.iter().copied()) {
        return Ok(());
    }
    let check = Check {
        sequence,
        members,
        claims,
    };
    check.in_step()?;
    let status = |c: &&C| c.status().is_some();
    if !claims.iter().any(status) {
        check.same_past()?;
    }
    check.same("operation", |c| c.name(), |name| (*name).to_owned())?;
    if let Some((rank, error)) = members
        .iter()
        .zip(claims)
        .find_map(|(&r, c)| Some((r, c.status()?)))
    {
        let mut error = error.clone();
        error.rank = rank;
        return Err(error.into());
    }
    check.same(
        "argument",
        |c| c.argument().map(|a| a.0),
        |name| format!("{name:?}"),
    )?;
    let argument = claims
        .first()
        .and_then(|c| c.argument())
        .map_or("argument", |a| a.0);
    check.same(
        argument,
        |c| c.argument().map(|a| a.1),
        |value| match value {
            // A fingerprint, which says nothing to anybody.
            Some(value) if *value > u128::from(u64::MAX) => "one of its own".to_owned(),
            Some(value) => value.to_string(),
            None => "nothing".to_owned(),
        },
    )?;
    check.same("element type", C::dtype, |dtype| {
        dtype.map_or("no elements".to_owned(), |t| t.name().to_owned())
    })?;
    check.same("reduction", C::fold, |fold| {
        fold.map_or("none".to_owned(), |op| op.name().to_owned())
    })?;
    check.same("plan", C::id, |_| "one of its own".to_owned())?;
    // Where fingerprints stand for the pieces, no comparison is needed; each rank has checked its own buffers.
    if claims.iter().all(|c| c.id() != 0) {
        return Ok(());
    }
    check.pairs()
}

/// Whether claims agree in all fields and have fingerprints for the rest. That is nearly always so, and found in one pass.
pub(crate) fn agree_plainly<'a, C: Claim + 'a>(claims: impl IntoIterator<Item = &'a C>) -> bool {
    let mut claims = claims.into_iter();
    let Some(first) = claims.next() else {
        return false;
    };
    let (name, argument, id) = (first.name(), first.argument(), first.id());
    let (turn, dtype, fold) = (first.turn(), first.dtype(), first.fold());
    let past = first.past();
    // Names are mostly the same text in memory, and then need not be read.
    let same = |a: &str, b: &str| std::ptr::eq(a, b) || a == b;
    let agrees = |claim: &C| {
        claim.id() == id
            && claim.status().is_none()
            && claim.dtype() == dtype
            && same(claim.name(), name)
            && match (claim.argument(), argument) {
                (Some(a), Some(b)) => a.1 == b.1 && same(a.0, b.0),
                (None, None) => true,
                _ => false,
            }
            && claim.past() == past
            && claim.turn() == turn
            && claim.fold() == fold
    };
    id != 0 && first.status().is_none() && claims.all(agrees)
}

struct Check<'a, C> {
    sequence: u64,
    members: &'a [usize],
    claims: &'a [&'a C],
}

impl<'a, C: Claim> Check<'a, C> {
    fn same<T: PartialEq>(
        &self,
        field: &str,
        of: impl Fn(&'a C) -> T,
        show: impl Fn(&T) -> String,
    ) -> Result<()> {
        let Some((first, rest)) = self.claims.split_first() else {
            return Ok(());
        };
        let expected = of(first);
        for (i, claim) in rest.iter().enumerate() {
            let got = of(claim);
            if got != expected {
                return Err(self.mismatch(field.to_owned(), 0, show(&expected), i + 1, show(&got)));
            }
        }
        Ok(())
    }

    /// Checks that ranks that count their operations have the same count: a lost or repeated operation shows.
    fn in_step(&self) -> Result<()> {
        let turns = || self.claims.iter().enumerate();
        let mut counted = turns().filter_map(|(i, c)| Some((i, c.turn()?)));
        let Some((first, expected)) = counted.next() else {
            return Ok(());
        };
        match counted.find(|&(_, turn)| turn != expected) {
            None => Ok(()),
            Some((other, turn)) => Err(CommError::OutOfStep(self.difference(
                "turn".to_owned(),
                (first, expected.to_string()),
                (other, turn.to_string()),
            ))),
        }
    }

    /// Whether ranks that compare what they did have done the same; the first call that differs shows if not.
    fn same_past(&self) -> Result<()> {
        let Some((first, rest)) = self.claims.split_first() else {
            return Ok(());
        };
        let Some(other) = rest.iter().position(|c| c.past() != first.past()) else {
            return Ok(());
        };
        let (is_first, [a, b]) = first_difference(&first.told(), &rest[other].told());
        let field = match is_first {
            true => Mismatch::CALLS,
            false => Mismatch::OLD_CALLS,
        };
        Err(self.mismatch(field.to_owned(), 0, a, other + 1, b))
    }

    /// Checks that each rank sends to each other what that rank expects.
    fn pairs(&self) -> Result<()> {
        let mut matched = 0;
        for (reader, claim) in self.claims.iter().enumerate() {
            for expected in claim.incoming() {
                let owner = &self.claims[expected.peer];
                let sent = traffic_with(owner.outgoing(), reader);
                self.same_traffic(expected.peer, sent, reader, Some(expected))?;
                matched += 1;
                for &(source, end) in &expected.extents {
                    let len = owner.source_len(source);
                    if end > len {
                        return Err(self.unequal(
                            format!(
                                "length of source {source} of rank {}",
                                self.members[expected.peer]
                            ),
                            (expected.peer, len.to_string()),
                            (reader, format!("at least {end}")),
                        ));
                    }
                }
                self.same_places(expected.peer, sent, reader, expected)?;
            }
        }
        let sends: usize = self.claims.iter().map(|c| c.outgoing().len()).sum();
        if sends == matched {
            return Ok(());
        }
        for (owner, claim) in self.claims.iter().enumerate() {
            for sent in claim.outgoing() {
                let expected = traffic_with(self.claims[sent.peer].incoming(), owner);
                self.same_traffic(owner, Some(sent), sent.peer, expected)?;
            }
        }
        Ok(())
    }

    fn same_traffic(
        &self,
        owner: usize,
        sent_to: Option<&Traffic>,
        reader: usize,
        expected_by: Option<&Traffic>,
    ) -> Result<()> {
        let of = |t: Option<&Traffic>| t.map_or((0, 0), |t| (t.elements, t.pieces));
        let (sent, expected) = (of(sent_to), of(expected_by));
        if sent == expected {
            return Ok(());
        }
        let (what, sent, expected) = if sent.0 == expected.0 {
            ("pieces", sent.1, expected.1)
        } else {
            ("elements", sent.0, expected.0)
        };
        Err(self.unequal(
            format!(
                "{what} from rank {} to rank {}",
                self.members[owner], self.members[reader]
            ),
            (owner, format!("{sent} to send")),
            (reader, format!("{expected} to receive")),
        ))
    }

    /// Checks that as many elements are those from the same places, where both ends say from which they are read.
    fn same_places(
        &self,
        owner: usize,
        sent_to: Option<&Traffic>,
        reader: usize,
        expected_by: &Traffic,
    ) -> Result<()> {
        let (Some(sent), Some(expected)) = (sent_to.and_then(|t| t.print), expected_by.print)
        else {
            return Ok(());
        };
        if sent == expected {
            return Ok(());
        }
        let says = |what| format!("other elements {what}, or the same in another order");
        Err(self.unequal(
            format!(
                "pieces from rank {} to rank {}",
                self.members[owner], self.members[reader]
            ),
            (owner, says("sent")),
            (reader, says("expected")),
        ))
    }

    fn unequal(&self, field: String, a: (usize, String), b: (usize, String)) -> CommError {
        let (a, b) = if self.members[a.0] <= self.members[b.0] {
            (a, b)
        } else {
            (b, a)
        };
        self.mismatch(field, a.0, a.1, b.0, b.1)
    }

    fn mismatch(
        &self,
        field: String,
        a: usize,
        has_a: String,
        b: usize,
        has_b: String,
    ) -> CommError {
        CommError::Mismatch(self.difference(field, (a, has_a), (b, has_b)))
    }

    fn difference(&self, field: String, a: (usize, String), b: (usize, String)) -> Arc<Mismatch> {
        let ((a, has_a), (b, has_b)) = (a, b);
        let (claim_a, claim_b) = (&self.claims[a], &self.claims[b]);
        Arc::new(Mismatch {
            field,
            group: label(self.members),
            sequence: self.sequence,
            rank_a: self.members[a],
            a: has_a,
            op_a: claim_a.called().to_owned(),
            site_a: claim_a.site(),
            rank_b: self.members[b],
            b: has_b,
            op_b: claim_b.called().to_owned(),
            site_b: claim_b.site(),
        })
    }
}
