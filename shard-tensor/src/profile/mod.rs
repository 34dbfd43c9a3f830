//! Where time and memory go: what a piece of a program spent on each op, and on waiting for other ranks.

mod listener;
mod table;
mod trace;

use crate::{Context, Result};
use listener::Listener;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a rank spent on one op, or on what is done between ops. All but [`time`](Self::time) and [`peak`](Self::peak) are without what was
/// spent in ops within, so that they add up over the rows of a [`Profile`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// The op, as in errors; `vjp of` an op; `redistribute` for moves that no op asked for, `reduce_gradients` for sums of
    /// gradients over ranks; or `elsewhere` for all that was none of these.
    pub name: String,
    /// How often it began.
    pub calls: u64,
    /// From its begin to its end, with all within.
    pub time: Duration,
    /// Computing: that time without what was waited, and without ops within.
    pub own: Duration,
    /// Waiting for other ranks, and taking what arrived from them.
    pub waiting: Duration,
    /// Messages that this rank received.
    pub messages: u64,
    /// Bytes that it received.
    pub received: u64,
    /// Bytes of buffers that are in use after it and were not before: below 0 where it gave back more than it took.
    pub kept: i64,
    /// Most bytes of buffers in use while it ran, those that were before and those of ops within too.
    pub peak: u64,
}

/// What a piece of a program spent its time on at one rank; prints itself as a table. [`Context::profile`] makes one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The rank.
    pub rank: usize,
    /// All the time that was spent.
    pub time: Duration,
    /// Most bytes of buffers that the rank's device had in use at once, those from before too.
    pub peak: u64,
    /// By op, those that spent most first, waiting included.
    pub rows: Vec<Spent>,
    /// What was when.
    slices: Vec<Slice>,
    /// What slices are named by.
    names: Vec<String>,
    /// From the beginning of 1970 to when it began.
    began: Duration,
}

/// A stretch of time that was spent on one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Slice {
    /// Which of the names.
    name: usize,
    /// Since the profile began.
    from: Duration,
    time: Duration,
}

impl Profile {
    /// What was spent on an op, if it was called.
    pub fn get(&self, name: &str) -> Option<&Spent> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// How long this rank waited for others, and took what arrived from them.
    pub fn waiting(&self) -> Duration {
        self.rows.iter().map(|row| row.waiting).sum()
    }

    /// How many bytes this rank received.
    pub fn received(&self) -> u64 {
        self.rows.iter().map(|row| row.received).sum()
    }

    /// How many messages this rank received.
    pub fn messages(&self) -> u64 {
        self.rows.iter().map(|row| row.messages).sum()
    }

    /// Bytes of buffers in use at the end that were not at the beginning: below 0 where more was given back than taken.
    pub fn kept(&self) -> i64 {
        self.rows.iter().map(|row| row.kept).sum()
    }

    /// The profiles of one or several ranks as a trace: JSON that <https://ui.perfetto.dev> and Chrome's `about:tracing` show, a
    /// process per rank. Ranks lie side by side as their machines' clocks say.
    pub fn trace(ranks: &[Self]) -> String {
        trace::written(ranks)
    }
}

impl Context {
    /// Runs `f` and tells what its ops spent their time on at this rank, and what memory they took, those of backward passes too. Nothing
    /// moves for it, so that some ranks may profile and others not; [`gather`](Self::gather) brings the profiles of all ranks to all.
    ///
    /// ```
    /// use shard_tensor::{Profile, prelude::*};
    /// let profiles = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (x, w) = (mesh.randn([64, 32], shard(0))?, mesh.randn([32, 8], shard(0))?.requires_grad()?);
    ///     let step = || x.matmul(&w)?.gelu()?.mean_all()?.backward();
    ///     step()?; // plans and strategies are made at the first time
    ///     let (gradients, profile) = ctx.profile(step)?;
    ///     assert_eq!(gradients.iter()?.count(), 1);
    ///     Ok(profile)
    /// })?;
    /// println!("{}", profiles[0]);
    /// let gelu = profiles[0].get("gelu").unwrap();
    /// assert_eq!((gelu.calls, gelu.messages), (1, 0));
    /// assert!(profiles[0].received() > 0); // w is in pieces
    /// assert!(profiles[0].peak >= gelu.peak); // bytes in use at once
    /// assert!(Profile::trace(&profiles).contains("vjp of matmul"));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// What is measured are the crates' `tracing` spans of this thread: 0.4 us for each op and 0.3 us for each wait (on a Xeon of model
    /// 207), and 40 bytes. On a GPU an op returns before its kernels have run, so that their time is that of whoever waits for them. What a
    /// program logs itself goes where it goes otherwise; its own spans are not entered meanwhile. A profile within another takes its
    /// part from it. Where a feature of `tracing` has left spans out of the program, all is `elsewhere`.
    ///
    /// Memory is that of buffers of the rank's device, and not what kernels or the program have beside them. A buffer is in use as long as
    /// another rank reads it, so that where ranks read from each other what an op kept may differ from run to run.
    ///
    /// # Collective
    /// As `f`.
    ///
    /// # Errors
    /// What `f` reports.
    pub fn profile<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<(T, Profile)> {
        let (result, profile) = Listener::listen(self.rank(), self.device(), f);
        Ok((result?, profile))
    }
}
