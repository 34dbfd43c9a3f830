//! Layouts to try: every placement of every operand, with even, uneven and partly empty shards.

use shard_ops::testing::Rng;
use shard_spec::{DeviceMesh, Layout, SpecError};
use std::collections::HashSet;
use std::sync::Arc;

pub use shard_ops::testing::{AxisChoice, Split, choices, layout};

/// A tensor for which layouts are wanted.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Global extents.
    pub shape: Vec<usize>,
    /// Whether terms of a sum make sense for it: floats, not indices or masks.
    pub sums: bool,
}

/// Which layouts to make for a list of operands.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Random choices follow from this.
    pub seed: u64,
    /// All placements with all splits, instead of every placement with a few and pairs on 2-D meshes.
    pub exhaustive: bool,
    /// At most this many combinations on one mesh unless exhaustive.
    pub cap: usize,
    /// How many combinations on a mesh of two and more axes unless exhaustive.
    pub sample: usize,
}

impl Plan {
    /// The default amount for a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            exhaustive: false,
            cap: 400,
            sample: 40,
        }
    }
}

/// The layouts of all operands of one run.
pub type Assignment = Vec<Layout>;

/// A combination of layouts, not built yet. There may be many, which share what they have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// What each mesh axis does to each operand, operand by operand.
    axes: Arc<[AxisChoice]>,
    /// How each operand is cut.
    splits: Arc<[Split]>,
    /// Fixes where the cuts are.
    seed: u64,
}

impl Draft {
    /// Builds the layouts for the mesh and operands the draft was made for.
    ///
    /// # Errors
    /// [`SpecError`] if they are others.
    pub fn build(&self, mesh: &DeviceMesh, operands: &[Operand]) -> Result<Assignment, SpecError> {
        let mut rng = Rng::new(self.seed, &[]);
        operands
            .iter()
            .zip(self.axes.chunks(mesh.ndim()))
            .zip(&*self.splits)
            .map(|((o, axes), &split)| layout(mesh, &o.shape, axes, split, &mut rng))
            .collect()
    }
}

/// Combinations of layouts for the operands of one op on a mesh, without repetition, in a random order that
/// the seed fixes. `label` keeps the choices for different ops apart.
///
/// On a 1-D mesh these are all combinations of placements (up to the cap), each with even, uneven and partly
/// empty shards; on others a sample in which every pair of choices occurs as early as possible.
pub fn drafts(mesh: &DeviceMesh, operands: &[Operand], plan: &Plan, label: &str) -> Drafts {
    let mut rng = Rng::new(plan.seed, &[label, &format!("{:?}", mesh.shape())]);
    let slots: Vec<Vec<AxisChoice>> = operands
        .iter()
        .flat_map(|o| std::iter::repeat_n(choices(o.shape.len(), o.sums), mesh.ndim()))
        .collect();
    let total = slots.iter().fold(1_usize, |n, s| n.saturating_mul(s.len()));
    let splits = splits_of(operands.len(), mesh, plan);
    let limit = if plan.exhaustive {
        EXHAUSTED / splits.len()
    } else {
        plan.cap
    };
    let rows = if mesh.ndim() == 1 || plan.exhaustive {
        if total <= limit {
            product(&slots)
        } else {
            pairwise(&slots, limit, &mut rng)
        }
    } else {
        pairwise(&slots, plan.sample, &mut rng)
    };

    let mut unseen = Vec::with_capacity(rows.len() * splits.len());
    for row in rows {
        let axes: Arc<[AxisChoice]> = row.into();
        for splits in &splits {
            let splits = match splits {
                Splits::Given(splits) => Arc::clone(splits),
                Splits::Random => operands
                    .iter()
                    .map(|_| Split::ALL[rng.below(Split::ALL.len())])
                    .collect(),
            };
            unseen.push(Draft {
                axes: Arc::clone(&axes),
                splits,
                seed: rng.next_u64(),
            });
        }
    }
    rng.shuffle(&mut unseen);
    Drafts {
        mesh: mesh.clone(),
        operands: operands.into(),
        most: if plan.exhaustive || mesh.ndim() == 1 {
            usize::MAX
        } else {
            plan.sample
        },
        unseen: unseen.into_iter(),
        seen: HashSet::new(),
        found: Vec::new(),
    }
}

/// The combinations that [`drafts`] makes. Only as many as are looked at are compared with those before them.
#[derive(Debug)]
pub struct Drafts {
    mesh: DeviceMesh,
    operands: Box<[Operand]>,
    most: usize,
    unseen: std::vec::IntoIter<Draft>,
    seen: HashSet<Vec<u128>>,
    found: Vec<Draft>,
}

impl Drafts {
    /// The first `count`, or all if there are fewer.
    ///
    /// # Errors
    /// [`SpecError`] if a layout cannot be built, which would be a mistake here.
    pub fn first(&mut self, count: usize) -> Result<&[Draft], SpecError> {
        let count = count.min(self.most);
        while self.found.len() < count {
            let Some(draft) = self.unseen.next() else {
                break;
            };
            let built = draft.build(&self.mesh, &self.operands)?;
            if self
                .seen
                .insert(built.iter().map(Layout::hash128).collect())
            {
                self.found.push(draft);
            }
        }
        Ok(&self.found[..count.min(self.found.len())])
    }

    /// All of them.
    ///
    /// # Errors
    /// As [`first`](Self::first).
    pub fn all(&mut self) -> Result<&[Draft], SpecError> {
        self.first(usize::MAX)
    }
}

/// Beyond this many combinations on one mesh even an exhaustive run is a sample.
const EXHAUSTED: usize = 20_000;

/// How the operands of one run are cut.
enum Splits {
    Given(Arc<[Split]>),
    Random,
}

/// How the operands are cut, for each run of one combination of placements.
fn splits_of(operands: usize, mesh: &DeviceMesh, plan: &Plan) -> Vec<Splits> {
    if plan.exhaustive && operands <= 4 {
        return product(&vec![Split::ALL.to_vec(); operands])
            .into_iter()
            .map(|splits| Splits::Given(splits.into()))
            .collect();
    }
    let mut all = vec![Splits::Random];
    if mesh.ndim() == 1 {
        all.extend(Split::ALL.map(|s| Splits::Given(vec![s; operands].into())));
    }
    all
}

/// Every way to pick one item of each list.
fn product<T: Clone>(lists: &[Vec<T>]) -> Vec<Vec<T>> {
    lists.iter().fold(vec![Vec::new()], |rows, list| {
        rows.iter()
            .flat_map(|row| {
                list.iter().map(move |item| {
                    let mut longer = row.clone();
                    longer.push(item.clone());
                    longer
                })
            })
            .collect()
    })
}

/// `count` rows that pick one item of each list, each row covering as many pairs of items not seen together
/// before as the best of a few random candidates does.
fn pairwise<T: Clone>(lists: &[Vec<T>], count: usize, rng: &mut Rng) -> Vec<Vec<T>> {
    // A place for each pair of items, of one list or of two.
    let starts: Vec<usize> = (lists.iter())
        .scan(0, |next, list| {
            let start = *next;
            *next += list.len();
            Some(start)
        })
        .collect();
    let items = lists.iter().map(Vec::len).sum::<usize>();
    let mut covered = vec![false; items * items];
    let pairs = |row: &[usize]| -> Vec<usize> {
        let items_of: Vec<usize> = row
            .iter()
            .zip(&starts)
            .map(|(i, start)| start + i)
            .collect();
        let after = |i: usize| items_of[i + 1..].iter();
        (items_of.iter().enumerate())
            .flat_map(|(i, &a)| after(i).map(move |&b| a * items + b))
            .collect()
    };
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        let best = (0..12)
            .map(|_| {
                lists
                    .iter()
                    .map(|l| rng.below(l.len()))
                    .collect::<Vec<usize>>()
            })
            .max_by_key(|row| pairs(row).iter().filter(|&&p| !covered[p]).count())
            .unwrap_or_default();
        for pair in pairs(&best) {
            covered[pair] = true;
        }
        rows.push(best.iter().zip(lists).map(|(&i, l)| l[i].clone()).collect());
    }
    rows
}
