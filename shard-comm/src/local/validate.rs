//! What the ranks of a rendezvous must agree on, checked by the last of them before anything moves.

use std::sync::Arc;

use super::world::{Group, Key, Post};
use crate::plan::Traffic;
use crate::{CommError, Mismatch, Result, SiteText};

/// Checks posts, one per member; the error, if any, is for all of them.
///
/// Fields are compared in the order in which a difference explains the later ones: another operation, a rank that has
/// an error to tell, arguments, the plan, types, and last the sizes of every pair.
pub(super) fn validate(key: Key, members: &Arc<[usize]>, posts: &[Post]) -> Result<()> {
    let check = Check {
        key,
        members,
        posts,
    };
    check.same("operation", |p| p.plan.name, |name| (*name).to_owned())?;
    // Equal operations that are not the same one: a lost or repeated one shows.
    check.same(
        "turn",
        |p| p.guard.turn,
        |turn| turn.map_or("none".to_owned(), |turn| turn.to_string()),
    )?;
    if let Some((rank, error)) = members
        .iter()
        .zip(posts)
        .find_map(|(&r, p)| Some((r, p.status.as_ref().err()?)))
    {
        let mut error = error.clone();
        error.rank = rank;
        return Err(error.into());
    }
    check.same(
        "argument",
        |p| p.argument.map(|a| a.0),
        |name| format!("{name:?}"),
    )?;
    let argument = posts
        .first()
        .and_then(|p| p.argument)
        .map_or("argument", |a| a.0);
    check.same(
        argument,
        |p| p.argument.map(|a| a.1),
        |value| match value {
            Some(value) if *value > u128::from(u64::MAX) => format!("{value:#034x}"),
            Some(value) => value.to_string(),
            None => "nothing".to_owned(),
        },
    )?;
    check.same(
        "element type",
        |p| p.dtype,
        |dtype| dtype.map_or("no elements".to_owned(), |t| t.name().to_owned()),
    )?;
    check.same(
        "reduction",
        |p| p.plan.fold,
        |fold| fold.map_or("none".to_owned(), |op| op.name().to_owned()),
    )?;
    check.same("plan", |p| p.plan.id, |id| format!("{id:#x}"))?;
    // What a fingerprint stands for needs no comparison; each rank has checked its own buffers.
    if posts.iter().all(|p| p.plan.id != 0) {
        return Ok(());
    }
    check.pairs()
}

struct Check<'a> {
    key: Key,
    members: &'a Arc<[usize]>,
    posts: &'a [Post],
}

impl Check<'_> {
    fn same<T: PartialEq>(
        &self,
        field: &str,
        of: impl Fn(&Post) -> T,
        show: impl Fn(&T) -> String,
    ) -> Result<()> {
        let Some((first, rest)) = self.posts.split_first() else {
            return Ok(());
        };
        let expected = of(first);
        for (i, post) in rest.iter().enumerate() {
            let got = of(post);
            if got != expected {
                return Err(self.mismatch(field.to_owned(), 0, show(&expected), i + 1, show(&got)));
            }
        }
        Ok(())
    }

    /// What each rank sends to each other must be what that one expects.
    fn pairs(&self) -> Result<()> {
        let mut matched = 0;
        for (reader, post) in self.posts.iter().enumerate() {
            for expected in post.plan.incoming() {
                let owner = &self.posts[expected.peer];
                let sent = find(owner.plan.outgoing(), reader);
                self.same_traffic(expected.peer, sent, reader, Some(expected))?;
                matched += 1;
                for &(source, end) in &expected.extents {
                    let len = owner.sources.get(source).map_or(0, crate::Buffer::len);
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
            }
        }
        let sends: usize = self.posts.iter().map(|p| p.plan.outgoing().len()).sum();
        if sends == matched {
            return Ok(());
        }
        for (owner, post) in self.posts.iter().enumerate() {
            for sent in post.plan.outgoing() {
                let expected = find(self.posts[sent.peer].plan.incoming(), owner);
                self.same_traffic(owner, Some(sent), sent.peer, expected)?;
            }
        }
        Ok(())
    }

    fn same_traffic(
        &self,
        owner: usize,
        sent: Option<&Traffic>,
        reader: usize,
        expected: Option<&Traffic>,
    ) -> Result<()> {
        let of = |t: Option<&Traffic>| t.map_or((0, 0), |t| (t.elements, t.pieces));
        let (sent, expected) = (of(sent), of(expected));
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
        let (post_a, post_b) = (&self.posts[a], &self.posts[b]);
        CommError::Mismatch(Arc::new(Mismatch {
            field,
            group: Group {
                id: self.key.group,
                members: Arc::clone(self.members),
            }
            .label(),
            sequence: self.key.sequence,
            rank_a: self.members[a],
            a: has_a,
            op_a: post_a.op,
            site_a: SiteText(post_a.site),
            rank_b: self.members[b],
            b: has_b,
            op_b: post_b.op,
            site_b: SiteText(post_b.site),
        }))
    }
}

/// The traffic with a peer. Where everybody talks to everybody it is at its own index.
fn find(traffic: &[Traffic], peer: usize) -> Option<&Traffic> {
    if let Some(t) = traffic.get(peer)
        && t.peer == peer
    {
        return Some(t);
    }
    traffic
        .binary_search_by_key(&peer, |t| t.peer)
        .ok()
        .map(|at| &traffic[at])
}
