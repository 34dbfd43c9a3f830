//! What a program did before an operation: a running fingerprint that ranks compare, and the last calls, which they tell each
//! other where it differs.

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shard_spec::Layout;
use smallvec::SmallVec;

use crate::validate::label;
use crate::{Calling, CommError, DType, ErrorClass, Mismatch, Result, Site, SiteText};

/// How many of the last calls are kept.
pub(crate) const KEPT: usize = 512;

/// Of how many of the values that a call reads it is kept which they were.
const READ: usize = 3;

/// What a program did, as its ranks do alike: a running fingerprint, and the last calls. Clones are the same history.
///
/// Ranks run one program, so their histories are equal wherever they meet. A request that [carries](crate::Request::past)
/// the history has all ranks compare it, whatever the operation: where one took another turn in which nothing had to be sent
/// (another pointwise op, other extents, another of two tensors), all are told which call that was.
///
/// ```
/// use shard_comm::{Call, Calling, ExchangePlan, History, Request, local};
/// use std::{panic::Location, sync::Arc};
/// let errors = local::run(2, |comm| {
///     let _call = Calling::of("keep");
///     let history = History::new();
///     history.record(Call::new(["load", "store"][comm.rank()]));
///     let barrier = ExchangePlan::new("barrier", 0, [].into(), [].into(), None, None);
///     let mut request = Request::status(Arc::new(barrier), Ok(()), Location::caller());
///     request.past = history.past();
///     comm.call(request).unwrap_err().to_string()
/// })
/// .unwrap();
/// assert_eq!(errors[0], errors[1]);
/// assert!(errors[0].contains("rank 0 called keep (load) at"), "{}", errors[0]);
/// assert!(errors[0].contains("rank 1 called keep (store) at"), "{}", errors[0]);
/// ```
#[derive(Clone, Debug)]
pub struct History {
    now: Rc<Cell<Now>>,
    tracked: Rc<Cell<bool>>,
    /// Whether an operation failed, after which ranks may do as they please.
    failed: Rc<Cell<bool>>,
    calls: Option<Rc<Kept>>,
}

/// The last calls: those that nobody has been shown yet, and those that other ranks may look at. Most calls meet no other rank.
#[derive(Default, Debug)]
struct Kept {
    recent: RefCell<Calls>,
    /// Another one after a disagreement: others may still be looking for it in what they were shown.
    shown: RefCell<Arc<Mutex<Calls>>>,
    /// How many calls have been shown.
    count: Cell<u64>,
}

/// The fingerprint of what was done, and how many calls that were, since it was forgotten for the last time.
#[derive(Clone, Copy, Default, Debug)]
struct Now {
    print: u64,
    /// The fingerprint of the calls that made [new](Call::anew) values.
    made: u64,
    count: u64,
    forgotten: u64,
}

/// A call as a history records it. What must be equal on all ranks is in it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    op: &'static str,
    key: u64,
    of: Option<(DType, &'a Layout)>,
    reads: &'a [u64],
    /// Whether what it makes follows from more than what is in here; unless said, that is so if it reads nothing.
    anew: Option<bool>,
}

impl<'a> Call<'a> {
    /// A call of this name.
    pub fn new(op: &'static str) -> Self {
        let name = op.bytes().fold(0, |name, byte| mix(name, u64::from(byte)));
        Self::keyed(op, u128::from(name))
    }

    /// A call of this name, for which a fingerprint of name and arguments is at hand.
    #[inline]
    pub fn keyed(op: &'static str, key: u128) -> Self {
        Self {
            op,
            key: key as u64 ^ (key >> 64) as u64,
            of: None,
            reads: &[],
            anew: None,
        }
    }

    /// With an argument more.
    #[inline]
    #[must_use]
    pub fn with(self, argument: u128) -> Self {
        let key = mix(mix(self.key, argument as u64), (argument >> 64) as u64);
        Self { key, ..self }
    }

    /// Of a tensor of this type and layout: what it reads first, or makes.
    #[inline]
    #[must_use]
    pub fn of(self, dtype: DType, layout: &'a Layout) -> Self {
        Self {
            of: Some((dtype, layout)),
            ..self
        }
    }

    /// Which values it reads, by their [numbers](History::number).
    #[inline]
    #[must_use]
    pub fn reading(self, values: &'a [u64]) -> Self {
        Self {
            reads: values,
            ..self
        }
    }

    /// What it makes follows from more than its arguments and what it reads, as what a file has: each such call makes another value.
    /// Calls that read nothing are taken for such, unless they are [constant](Self::constant).
    #[inline]
    #[must_use]
    pub fn anew(self) -> Self {
        Self {
            anew: Some(true),
            ..self
        }
    }

    /// What it makes follows from its arguments alone: equal calls make equal values, which have one number.
    #[inline]
    #[must_use]
    pub fn constant(self) -> Self {
        Self {
            anew: Some(false),
            ..self
        }
    }

    /// A fingerprint of all that is in it.
    #[inline]
    fn print(&self) -> u64 {
        let of = self.of.map_or(self.key, |(dtype, layout)| {
            mix(self.key, layout.hash128() as u64 ^ dtype as u64)
        });
        self.reads
            .iter()
            .fold(of, |print, &value| mix(print, value))
    }
}

impl History {
    /// An empty history.
    #[expect(
        clippy::new_without_default,
        reason = "two kinds of histories are made by name"
    )]
    pub fn new() -> Self {
        Self {
            calls: Some(Rc::default()),
            ..Self::alone()
        }
    }

    /// The history of a rank that meets no other: it gives values their numbers, and is not compared.
    pub fn alone() -> Self {
        Self {
            now: Rc::default(),
            tracked: Rc::default(),
            failed: Rc::default(),
            calls: None,
        }
    }

    /// Adds a call, made where the program [is](Calling). Gives the number of what it makes, which follows from the call, and for
    /// what is [new](Call::anew) from how many new values were made before; and from nothing else that was done, as ranks need not
    /// do everything that others do with a mesh that they are not on.
    ///
    /// ```
    /// use shard_comm::{Call, History};
    /// let (member, other) = (History::new(), History::alone());
    /// let load = |history: &History| history.record(Call::new("load"));
    /// let square = |history: &History, x| history.record(Call::new("square").reading(&[x]));
    /// let [x, y] = [&member, &other].map(load);
    /// member.record(Call::new("read").reading(&[x])); // by members alone
    /// assert_eq!(square(&member, x), square(&other, y));
    /// assert_ne!(load(&member), x); // another value
    /// ```
    #[inline]
    pub fn record(&self, call: Call<'_>) -> u64 {
        let before = self.now.get();
        let tracked = self.tracked.take();
        let print = call.print();
        let mut after = mix(before.print, print);
        if tracked {
            after = mix(after, 1);
        }
        let mut now = Now {
            print: after,
            count: before.count + 1,
            ..before
        };
        let number = match call.anew.unwrap_or(call.reads.is_empty()) {
            true => {
                now.made = mix(before.made, print);
                now.made
            }
            false => mix(0, print),
        };
        self.now.set(now);
        if let Some(calls) = &self.calls {
            calls.keep(&call, number, before, after, tracked);
        }
        number
    }

    /// The next call's results have gradients.
    #[inline]
    pub fn will_track(&self) {
        self.tracked.set(true);
    }

    /// The number of a value that is made now without a call: that of the last [new](Call::anew) one.
    #[inline]
    pub fn number(&self) -> u64 {
        self.now.get().made
    }

    /// The number of the result at place `output` of a call that [gave](Self::record) this number, or of a value that follows
    /// from one in another way.
    #[inline]
    #[must_use]
    pub fn derived(number: u64, output: u64) -> u64 {
        mix(number, !output)
    }

    /// What was done so far, for a request.
    #[inline]
    pub fn past(&self) -> Option<Past> {
        let calls = self.calls.as_ref()?;
        let now = self.now.get();
        if calls.count.get() != now.count {
            calls.show(now.count);
        }
        Some(Past {
            now,
            calls: Arc::clone(&calls.shown.borrow()),
        })
    }

    /// Passes on what came of an operation, and [starts anew](Self::forget) if that was a disagreement.
    #[inline]
    pub fn heard<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| match error {
            CommError::Mismatch(_) => self.forget(),
            error if error.class() == ErrorClass::Failure => self.failed.set(true),
            _ => {}
        })
    }

    /// What was done, for a rank that ends: ranks that [compare](Past::compare) it find out where they differ after the last operation.
    /// `None` where an operation failed.
    pub fn at_end(&self) -> Option<Past> {
        self.past().filter(|_| !self.failed.get())
    }

    /// Starts anew, after all ranks have learnt of a disagreement.
    pub fn forget(&self) {
        self.now.set(Now {
            forgotten: self.now.get().forgotten + 1,
            ..Now::default()
        });
        if let Some(calls) = &self.calls {
            calls.count.set(0);
            calls.recent.borrow_mut().slots.clear();
            *calls.shown.borrow_mut() = Arc::default();
        }
    }
}

impl Kept {
    /// Keeps a call, made where the program is, with the number of what it makes and the fingerprints before and after it.
    fn keep(&self, call: &Call<'_>, makes: u64, before: Now, after: u64, tracked: bool) {
        let mut reads = [0; READ];
        for (to, &value) in reads.iter_mut().zip(call.reads) {
            *to = value;
        }
        self.recent.borrow_mut().push(Entry {
            number: before.count,
            forgotten: before.forgotten,
            after,
            makes,
            op: call.op,
            method: Calling::method(),
            site: Calling::site(),
            of: call.of.map(|(dtype, layout)| (dtype, layout.clone())),
            reads,
            read: call.reads.len().min(READ),
            tracked,
        });
    }

    /// Shows what was recorded since the last time, up to call number `end`.
    fn show(&self, end: u64) {
        let begin = self.count.replace(end).max(end.saturating_sub(KEPT as u64));
        let (mut recent, shown) = (self.recent.borrow_mut(), self.shown.borrow());
        let mut shown = lock(&shown);
        for entry in (begin..end).filter_map(|number| recent.take(number)) {
            shown.push(entry);
        }
    }
}

/// What a rank did before an operation, as it brings it along.
#[derive(Clone, Debug)]
pub struct Past {
    now: Now,
    calls: Arc<Mutex<Calls>>,
}

impl Past {
    /// What must be equal on all ranks.
    #[inline]
    pub fn print(&self) -> u64 {
        self.now.print
    }

    /// Compares what the ranks of a group did in the end, in the order of their ranks.
    ///
    /// ```
    /// use shard_comm::{Call, History, Past};
    /// let of = |calls: &[&'static str]| {
    ///     let history = History::new();
    ///     calls.iter().for_each(|&call| drop(history.record(Call::new(call))));
    ///     history.at_end().unwrap()
    /// };
    /// assert!(Past::compare(&[(0, of(&["load", "step"])), (1, of(&["load", "step"]))]).is_ok());
    /// let error = Past::compare(&[(0, of(&["load", "step"])), (3, of(&["load"]))]).unwrap_err().to_string();
    /// assert!(error.contains("of ranks [0, 3]: rank 0 called step, rank 3 called nothing more"), "{error}");
    /// ```
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch) naming the first calls that differ.
    #[track_caller]
    pub fn compare(ranks: &[(usize, Self)]) -> Result<()> {
        let prints = ranks.iter().map(|(_, past)| past.print());
        let Some([a, b]) = unlike_the_first(prints) else {
            return Ok(());
        };
        let group: Vec<usize> = ranks.iter().map(|(rank, _)| *rank).collect();
        let told = [a, b].map(|at| ranks[at].1.told());
        let site = SiteText::from(Calling::site().unwrap_or(Location::caller()));
        Err(unlike_ends(&group, [group[a], group[b]], &told, site))
    }

    /// The last calls before the operation, oldest first.
    pub fn told(&self) -> Vec<Told> {
        let calls = lock(&self.calls);
        // What came since may have taken the places of the oldest.
        let mut before: Vec<&Entry> = (calls.slots.iter().flatten())
            .filter(|e| e.number < self.now.count && e.forgotten == self.now.forgotten)
            .collect();
        before.sort_by_key(|entry| entry.number);
        before.iter().map(|entry| entry.told(&before)).collect()
    }
}

/// Where among ranks the first is, and the first whose print is another.
pub(crate) fn unlike_the_first(prints: impl IntoIterator<Item = u64>) -> Option<[usize; 2]> {
    let mut prints = prints.into_iter();
    let first = prints.next()?;
    Some([0, 1 + prints.position(|print| print != first)?])
}

/// That of the ranks of a group two did not do the same in the end, of which they tell this.
pub(crate) fn unlike_ends(
    group: &[usize],
    ranks: [usize; 2],
    told: &[Vec<Told>; 2],
    site: SiteText,
) -> CommError {
    let (is_first, [a, b]) = first_difference(&told[0], &told[1]);
    let said = |call: String| match is_first {
        true => call,
        false => format!("something else long before, and at last {call}"),
    };
    CommError::Mismatch(Arc::new(Mismatch {
        field: Mismatch::LAST_CALLS.to_owned(),
        group: label(group),
        sequence: 0,
        rank_a: ranks[0],
        a: said(a),
        op_a: "end".to_owned(),
        site_a: site.clone(),
        rank_b: ranks[1],
        b: said(b),
        op_b: "end".to_owned(),
        site_b: site,
    }))
}

/// The last calls, each in the place of its number.
#[derive(Default, Debug)]
struct Calls {
    /// None before the first call, [`KEPT`] afterwards.
    slots: Vec<Option<Entry>>,
}

impl Calls {
    #[inline]
    fn push(&mut self, entry: Entry) {
        if self.slots.is_empty() {
            self.slots.resize_with(KEPT, || None);
        }
        let at = entry.number as usize % KEPT;
        self.slots[at] = Some(entry);
    }

    fn take(&mut self, number: u64) -> Option<Entry> {
        self.slots.get_mut(number as usize % KEPT)?.take()
    }
}

#[derive(Debug)]
struct Entry {
    /// How many calls came before.
    number: u64,
    /// How many times all was forgotten before.
    forgotten: u64,
    after: u64,
    /// The number of what it made.
    makes: u64,
    op: &'static str,
    method: Option<&'static str>,
    site: Option<Site>,
    of: Option<(DType, Layout)>,
    reads: [u64; READ],
    read: usize,
    tracked: bool,
}

impl Entry {
    fn told(&self, before: &[&Self]) -> Told {
        let mut what = self.op.to_owned();
        if let Some((dtype, layout)) = &self.of {
            // Writing to a text does not fail.
            let _ = write!(what, " of {dtype} {:?} {layout}", layout.shape());
        }
        if let Some(method) = self.method.filter(|method| *method != self.op) {
            what = format!("{method} ({what})");
        }
        Told {
            number: self.number,
            after: self.after,
            what,
            reads: (self.reads[..self.read].iter())
                .map(|&value| origin(value, before))
                .collect(),
            tracked: self.tracked,
            site: self.site.map(SiteText::from),
        }
    }

    /// Whether this call made the value of this number.
    fn made(&self, value: u64) -> bool {
        value == self.makes || (0..8).any(|at| value == History::derived(self.makes, at))
    }
}

/// Where the value of this number comes from.
fn origin(value: u64, calls: &[&Entry]) -> String {
    match calls.iter().find(|entry| entry.made(value)) {
        Some(Entry {
            op,
            site: Some(site),
            ..
        }) => format!("what {op} made at {site}"),
        Some(Entry { op, .. }) => format!("what {op} made"),
        None => "a tensor made before".to_owned(),
    }
}

/// A call, as a rank tells the others of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// How many calls came before.
    pub number: u64,
    /// The fingerprint of all calls up to this one.
    pub after: u64,
    /// The method and the op, and of what.
    pub what: String,
    /// Where the values it reads come from.
    pub reads: SmallVec<[String; 1]>,
    /// Whether its results have gradients.
    pub tracked: bool,
    /// Where the program called it, if that is known.
    pub site: Option<SiteText>,
}

/// The first calls of two ranks that differ, in words that differ; false if neither knows any more which were the first.
pub(crate) fn first_difference(a: &[Told], b: &[Told]) -> (bool, [String; 2]) {
    let at = |calls: &[Told], number: u64| calls.iter().find(|c| c.number == number).cloned();
    let end = |calls: &[Told]| calls.last().map_or(0, |c| c.number + 1);
    let start = |calls: &[Told]| calls.first().map_or(0, |c| c.number);
    let known = start(a).max(start(b));
    let after = |calls: &[Told], number| at(calls, number).map(|c| c.after);
    let first = (known..end(a).max(end(b))).find(|&n| after(a, n) != after(b, n));
    match first {
        // What they have in common before it shows that it is the first; or nothing was before it.
        Some(number) if number == 0 || number > known => {
            let (a, b) = (at(a, number), at(b, number));
            let more = match (&a, &b) {
                (Some(a), Some(b)) if a.what == b.what => unlike(a, b),
                _ => Default::default(),
            };
            (true, in_words([a.as_ref(), b.as_ref()], more))
        }
        _ => (false, in_words([a.last(), b.last()], Default::default())),
    }
}

fn in_words([a, b]: [Option<&Told>; 2], [more_a, more_b]: [String; 2]) -> [String; 2] {
    [(a, more_a), (b, more_b)].map(|(call, more)| match call {
        None => "nothing more".to_owned(),
        Some(Told {
            what,
            site: Some(site),
            ..
        }) => format!("{what}{more} at {site}"),
        Some(Told { what, .. }) => format!("{what}{more}"),
    })
}

/// What is to be said of two calls of one op on equal layouts.
fn unlike(a: &Told, b: &Told) -> [String; 2] {
    if a.reads != b.reads {
        return [a, b].map(|call| format!(" (it reads {})", call.reads.join(", ")));
    }
    if a.tracked != b.tracked {
        return [a, b].map(|call| match call.tracked {
            true => " with gradients".to_owned(),
            false => " without gradients".to_owned(),
        });
    }
    let other = match a.reads.is_empty() {
        true => " with other arguments",
        false => " with other arguments, or of another tensor",
    };
    [String::new(), other.to_owned()]
}

/// One step of the fingerprint: a bijection of either argument while the other stays.
#[inline]
fn mix(print: u64, word: u64) -> u64 {
    (print ^ word)
        .wrapping_add(0x2545_f491_4f6c_dd1d)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// No code that can panic runs under this lock, so what it guards is whole.
fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}
