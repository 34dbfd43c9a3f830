//! Plans kept for next time.

use crate::{CostModel, Plan, Result};
use shard_comm::{Communicator, DType};
use shard_spec::{DeviceMesh, Layout};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// One rank's plans. A plan is made once per pair of layouts and element type; a bounded number is kept, and the oldest is
/// dropped first.
///
/// Without a model the planner makes direct plans, whose exchanges go in stages among many ranks that send messages; with one the
/// [cheapest](Plan::cheapest).
///
/// ```
/// use shard_comm::DType;
/// use shard_redistribute::Planner;
/// use shard_spec::{DeviceMesh, Layout};
/// use std::rc::Rc;
/// let mesh = DeviceMesh::new(&[4])?;
/// let (from, to) = (Layout::parse(&mesh, &[9], "S(0)")?, Layout::parse(&mesh, &[9], "R")?);
/// let planner = Planner::new(0, 100);
/// let first = planner.plan(&from, &to, DType::F32)?;
/// assert!(Rc::ptr_eq(&first, &planner.plan(&from, &to, DType::F32)?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Planner {
    index: usize,
    capacity: usize,
    /// How often a model was set.
    models: Cell<u64>,
    /// What exchanges go in stages by where there is no model.
    unmeasured: CostModel,
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    model: Option<CostModel>,
    plans: HashMap<Key, Rc<Plan>, BuildHasherDefault<Mixed>>,
    /// The keys, oldest first.
    ages: VecDeque<Key>,
}

type Key = (u128, u128, DType);

impl Planner {
    /// A planner for the member of the mesh at row-major position `index`, keeping up to `capacity` plans (at
    /// least one).
    pub fn new(index: usize, capacity: usize) -> Self {
        Self {
            index,
            capacity: capacity.max(1),
            models: Cell::new(0),
            unmeasured: CostModel::default(),
            inner: RefCell::default(),
        }
    }

    /// The planner of a mesh whose communicator is `all`.
    pub(crate) fn of(
        index: usize,
        capacity: usize,
        all: &dyn Communicator,
        mesh: &DeviceMesh,
    ) -> Self {
        Self {
            unmeasured: CostModel::unmeasured(all, mesh),
            ..Self::new(index, capacity)
        }
    }

    /// Chooses by this model from now on, or plans directly with `None`; forgets the plans made so far.
    ///
    /// # Collective
    /// Every rank that moves arrays together with others must set the same model between the same calls. Where ranks set
    /// different models, the next exchange reports a mismatch.
    pub fn set_model(&self, model: Option<CostModel>) {
        *self.inner.borrow_mut() = Inner {
            model,
            ..Inner::default()
        };
        self.models.update(|n| n + 1);
    }

    /// How often a model was [set](Self::set_model): what was chosen by an earlier one is out of date.
    pub fn models_set(&self) -> u64 {
        self.models.get()
    }

    /// The model that plans are chosen by, if there is one.
    pub fn model(&self) -> Option<CostModel> {
        self.inner.borrow().model.clone()
    }

    /// The model, or if there is none the default, which knows of messages what their communicator says.
    pub fn model_or_default(&self) -> CostModel {
        self.model().unwrap_or_else(|| self.unmeasured.clone())
    }

    /// The plan between two layouts, made now if it is not kept already. No communication.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan(&self, from: &Layout, to: &Layout, dtype: DType) -> Result<Rc<Plan>> {
        let key = (from.hash128(), to.hash128(), dtype);
        let mut inner = self.inner.borrow_mut();
        // Plans are found by hash, but the layouts are compared.
        if let Some(found) = inner.plans.get(&key)
            && found.from() == from
            && found.to() == to
        {
            return Ok(found.clone());
        }
        let plan = Rc::new(match &inner.model {
            Some(model) => Plan::cheapest(from, to, self.index, dtype, model)?,
            None => Plan::staged(from, to, self.index, dtype, &self.unmeasured)?,
        });
        while inner.plans.len() >= self.capacity
            && let Some(oldest) = inner.ages.pop_front()
        {
            inner.plans.remove(&oldest);
        }
        if inner.plans.insert(key, plan.clone()).is_none() {
            inner.ages.push_back(key);
        }
        Ok(plan)
    }

    /// How many plans are kept.
    pub fn len(&self) -> usize {
        self.inner.borrow().plans.len()
    }

    /// Whether no plan is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = self.0.rotate_left(23) ^ value;
    }

    fn write_u128(&mut self, value: u128) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
