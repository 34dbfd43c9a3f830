//! Plans that are used again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::collectives::Step;
use crate::{ExchangePlan, Monoid};

/// The plans that a rank used last, so that a collective repeated with the same counts need not be planned again.
#[derive(Debug, Default)]
pub struct PlanCache {
    plans: Latest<ExchangePlan>,
    steps: Latest<[Step]>,
}

impl PlanCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn get(
        &self,
        name: &'static str,
        op: Option<Monoid>,
        a: &[usize],
        b: &[usize],
        build: impl FnOnce() -> ExchangePlan,
    ) -> Arc<ExchangePlan> {
        (self.plans).get(name, op, a, b, || Arc::new(build()))
    }

    /// The steps of a collective in stages; none if it is to be one of plans without stages.
    pub(crate) fn staged(
        &self,
        name: &'static str,
        op: Option<Monoid>,
        a: &[usize],
        b: &[usize],
        build: impl FnOnce() -> Vec<Step>,
    ) -> Arc<[Step]> {
        (self.steps).get(name, op, a, b, || build().into())
    }
}

/// What was made last for collectives, the latest first.
#[derive(Debug)]
struct Latest<T: ?Sized> {
    entries: RefCell<VecDeque<(PlanKey, Arc<T>)>>,
    /// The index of the entry that was found last.
    last: Cell<usize>,
}

#[derive(PartialEq, Debug)]
struct PlanKey {
    name: &'static str,
    op: Option<Monoid>,
    a: SmallVec<[usize; 2]>,
    b: SmallVec<[usize; 2]>,
}

impl<T: ?Sized> Default for Latest<T> {
    fn default() -> Self {
        Self {
            entries: RefCell::default(),
            last: Cell::default(),
        }
    }
}

impl<T: ?Sized> Latest<T> {
    /// How many entries are kept.
    const CAPACITY: usize = 32;

    // A short list compared word by word is faster than hashing the counts.
    fn get(
        &self,
        name: &'static str,
        op: Option<Monoid>,
        a: &[usize],
        b: &[usize],
        build: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let entries = self.entries.borrow();
        let is_it = |key: &PlanKey| {
            is(key.name, name) && key.op == op && same(&key.a, a) && same(&key.b, b)
        };
        // What was asked for last is mostly asked for again.
        let last = self.last.get();
        if let Some((key, found)) = entries.get(last)
            && is_it(key)
        {
            return Arc::clone(found);
        }
        if let Some(at) = entries.iter().position(|(key, _)| is_it(key)) {
            self.last.set(at);
            return Arc::clone(&entries[at].1);
        }
        drop(entries);
        self.keep(name, op, a, b, build)
    }

    /// Makes an entry and keeps it.
    ///
    /// A function of its own, because a plan is large: calls that find their plan should not reserve stack for one.
    #[cold]
    #[inline(never)]
    fn keep(
        &self,
        name: &'static str,
        op: Option<Monoid>,
        a: &[usize],
        b: &[usize],
        build: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let made = build();
        let mut entries = self.entries.borrow_mut();
        if entries.len() == Self::CAPACITY {
            entries.pop_back();
        }
        let (a, b) = (a.into(), b.into());
        entries.push_front((PlanKey { name, op, a, b }, Arc::clone(&made)));
        self.last.set(0);
        made
    }
}

/// Whether two names are equal; mostly they are the same text in memory.
fn is(known: &'static str, name: &'static str) -> bool {
    std::ptr::eq(known, name) || known == name
}

/// Whether the counts are equal. Empty lists are not compared: their pointers are dangling, and on some processors the masked
/// loads of a vectorised comparison of no bytes at such an address cost 80 ns.
fn same(a: &[usize], b: &[usize]) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_kept_and_bounded() {
        let cache = PlanCache::new();
        let get = |n: usize| cache.get("t", None, &[n], &[], || ExchangePlan::empty("t"));
        let first = get(0);
        assert!(Arc::ptr_eq(&first, &get(0)));
        for n in 1..100 {
            get(n);
        }
        assert_eq!(cache.plans.entries.borrow().len(), 32);
        assert!(!Arc::ptr_eq(&first, &get(0)));
    }
}
