//! The values of a program that runs, and what a step takes from them.

use super::Numbers;
use crate::layouts::{Split, choices};
use crate::strategies::{Recipe, resolve};
use shard_ops::testing::Rng;
use shard_spec::Layout;
use shard_tensor::{DType, Mesh, Result, ShardTensor};

/// Elements of a value at most; what is larger is not kept.
const LARGEST: usize = 2500;

/// The values of a program so far, each with a number that none of its elements exceeds.
#[derive(Clone)]
pub(super) struct Values {
    pub(super) mesh: Mesh,
    pub(super) numbers: Numbers,
    /// Whether these steps run again, or are not differentiated: they make no parameters, and no gradients.
    pub(super) nested: bool,
    /// What gradients are taken by.
    pub(super) parameters: Vec<ShardTensor>,
    all: Vec<(ShardTensor, f64)>,
    /// Which step made each.
    by: Vec<&'static str>,
}

impl Values {
    pub(super) fn new(mesh: &Mesh, numbers: Numbers) -> Self {
        Self {
            mesh: mesh.clone(),
            numbers,
            nested: false,
            parameters: Vec::new(),
            all: Vec::new(),
            by: Vec::new(),
        }
    }

    /// None yet, for steps that run again.
    pub(super) fn within(values: &Self) -> Self {
        Self {
            nested: true,
            ..Self::new(&values.mesh, values.numbers)
        }
    }

    /// Each, and which step made it.
    pub(super) fn named(&self) -> impl Iterator<Item = (&ShardTensor, &'static str)> {
        self.tensors().zip(self.by.iter().copied())
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &ShardTensor> {
        self.all.iter().map(|(x, _)| x)
    }

    pub(super) fn keep(&mut self, by: &'static str, x: ShardTensor, bound: f64) {
        if x.numel() <= LARGEST {
            self.all.push((x, bound));
            self.by.push(by);
        }
    }

    pub(super) fn last(&self) -> (ShardTensor, f64) {
        self.all[self.all.len() - 1].clone()
    }

    /// One to three of them, and their bounds.
    pub(super) fn some(&self, seed: u64) -> (Vec<ShardTensor>, Vec<f64>) {
        let mut rng = Rng::new(seed, &["some"]);
        let count = 1 + rng.below(3);
        (0..count)
            .map(|_| self.all[self.place(&mut rng)].clone())
            .unzip()
    }

    /// The place of any value, of a late one more often than not.
    fn place(&self, rng: &mut Rng) -> usize {
        let n = self.all.len();
        if rng.one_in(3) {
            rng.below(n)
        } else {
            n - 1 - rng.below(n.min(3))
        }
    }
}

/// A step that runs: the values it reads and adds to, and what it draws.
pub(super) struct At<'a> {
    values: &'a mut Values,
    rng: Rng,
    name: &'static str,
}

impl<'a> At<'a> {
    pub(super) fn new(values: &'a mut Values, name: &'static str, seed: u64) -> Self {
        Self {
            values,
            rng: Rng::new(seed, &[name]),
            name,
        }
    }

    /// A number below `limit`; 0 if that is 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { self.rng.below(limit) }
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.rng.one_in(n)
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        self.rng.shuffle(items);
    }

    pub(super) fn is_nested(&self) -> bool {
        self.values.nested
    }

    /// Whether a gradient that is taken now may be differentiated.
    pub(super) fn twice(&mut self) -> bool {
        self.one_in(2)
    }

    pub(super) fn parameters(&self) -> Vec<ShardTensor> {
        self.values.parameters.clone()
    }

    pub(super) fn last(&self) -> ShardTensor {
        self.values.last().0
    }

    /// The type of this program's numbers.
    pub(super) fn float(&self) -> DType {
        self.values.mesh.dtype()
    }

    pub(super) fn mesh(&self) -> Mesh {
        self.values.mesh.clone()
    }

    /// A value, and what its elements do not exceed.
    pub(super) fn any(&mut self) -> (ShardTensor, f64) {
        let at = self.values.place(&mut self.rng);
        self.values.all[at].clone()
    }

    /// A value of at least so many dims and at most four: dims of extent 1 are added in front.
    pub(super) fn of_dims(&mut self, least: usize) -> Result<(ShardTensor, f64)> {
        let (mut x, bound) = self.any();
        while x.ndim() < least {
            x = x.unsqueeze(0)?;
        }
        while x.ndim() > 4 {
            x = x.flatten_dims(0, 1)?;
        }
        Ok((x, bound))
    }

    /// A value of exactly so many dims.
    pub(super) fn of_exactly(&mut self, dims: usize) -> Result<(ShardTensor, f64)> {
        let (mut x, bound) = self.of_dims(dims)?;
        while x.ndim() > dims {
            x = x.flatten_dims(0, 1)?;
        }
        Ok((x, bound))
    }

    /// One that has elements, of at least so many dims.
    pub(super) fn filled(&mut self, least: usize) -> Result<(ShardTensor, f64)> {
        let (x, bound) = self.of_dims(least)?;
        if x.numel() > 0 {
            return Ok((x, bound));
        }
        let shape: Vec<usize> = x.shape().iter().map(|&n| n.max(2)).collect();
        Ok((self.numbers(&shape)?, 4.0))
    }

    /// A value of at least one dim, and one of its dims.
    pub(super) fn dim(&mut self) -> Result<(ShardTensor, f64, usize)> {
        let (x, bound) = self.of_dims(1)?;
        let dim = self.below(x.ndim());
        Ok((x, bound, dim))
    }

    /// A value that broadcasts with another: one that is there, if one does.
    pub(super) fn partner(&mut self, x: &ShardTensor) -> Result<(ShardTensor, f64)> {
        let fits = |y: &ShardTensor| {
            let pairs = x.shape().iter().rev().zip(y.shape().iter().rev());
            pairs.into_iter().all(|(a, b)| a == b || *a == 1 || *b == 1)
        };
        let n = self.values.all.len();
        let from = self.values.place(&mut self.rng);
        let mut there = (0..n).map(|i| &self.values.all[(from + i) % n]);
        match there.find(|(y, _)| fits(y)) {
            Some(found) => Ok(found.clone()),
            None => Ok((self.numbers(x.shape())?, 4.0)),
        }
    }

    /// A value of the shape of another.
    pub(super) fn alike(&mut self, x: &ShardTensor) -> Result<(ShardTensor, f64)> {
        let n = self.values.all.len();
        let from = self.values.place(&mut self.rng);
        let mut there = (0..n).map(|i| &self.values.all[(from + i) % n]);
        match there.find(|(y, _)| y.shape() == x.shape()) {
            Some(found) => Ok(found.clone()),
            None => Ok((self.numbers(x.shape())?, 4.0)),
        }
    }

    /// Small whole numbers, in a layout of their own. Which ones does not depend on what the step draws: ranks cannot know that a function
    /// is another one.
    pub(super) fn numbers(&mut self, shape: &[usize]) -> Result<ShardTensor> {
        let salt = 61 * self.values.all.len() + self.name.len();
        let layout = self.layout(shape);
        self.values.mesh.from_fn(shape.to_vec(), layout, move |i| {
            let hash = i.iter().fold(salt + 7, |h, &i| (h * 37 + i + 1) % 1013);
            (hash % 9) as f64 - 4.0
        })
    }

    /// The same as a parameter of the program, where it may make some.
    pub(super) fn parameter(&mut self, shape: &[usize]) -> Result<ShardTensor> {
        let x = self.numbers(shape)?;
        if self.values.nested {
            return Ok(x);
        }
        let x = x.requires_grad()?;
        self.values.parameters.push(x.clone());
        Ok(x)
    }

    /// Indices below `limit`, in a layout of their own.
    pub(super) fn indices(&mut self, shape: &[usize], limit: usize) -> Result<ShardTensor> {
        let limit = limit.max(1) as f64;
        self.numbers(shape)?
            .mul_scalar(5.0)?
            .remainder_scalar(limit)?
            .to(DType::I64)
    }

    /// Truth values that depend on a value, or on nothing.
    pub(super) fn mask(&mut self, x: &ShardTensor) -> Result<ShardTensor> {
        match self.below(3) {
            0 => x.gt_scalar(0.0),
            1 => self.alike(x)?.0.lt_scalar(1.0),
            _ => self.numbers(x.shape())?.ne_scalar(2.0),
        }
    }

    /// A layout for a shape on the mesh of this program.
    pub(super) fn layout(&mut self, shape: &[usize]) -> Layout {
        let mesh = self.values.mesh.mesh();
        let all = choices(shape.len(), false);
        let axes = (0..mesh.ndim())
            .map(|_| all[self.rng.below(all.len())])
            .collect();
        let split = Split::ALL[self.rng.below(Split::ALL.len())];
        let recipe = Recipe {
            axes,
            split,
            seed: self.rng.next_u64(),
        };
        resolve(&recipe, mesh, shape)
    }

    /// A range of a dim of so many indices: its start and its length.
    pub(super) fn range(&mut self, n: usize) -> (usize, usize) {
        let start = self.below(n + 1);
        (start, self.below(n - start + 1))
    }

    /// Adds a value, none of whose elements exceeds `bound`, to those that others read: made smaller where it may be large.
    pub(super) fn add(&mut self, x: ShardTensor, bound: f64) -> Result<()> {
        if x.numel() > LARGEST {
            return Ok(());
        }
        let (x, bound) = match self.values.numbers {
            Numbers::Whole if bound > 16.0 => (x.remainder_scalar(5.0)?, 4.0),
            Numbers::Smooth if bound > 4.0 => (x.mul_scalar(2.0 / bound)?.tanh()?, 1.0),
            _ => (x, bound),
        };
        self.values.keep(self.name, x, bound);
        Ok(())
    }
}

impl At<'_> {
    /// Adds a gradient, in which ties may have fractions: never rounded where rounding decides.
    pub(super) fn add_gradient(&mut self, gradient: &ShardTensor) -> Result<()> {
        match self.values.numbers {
            Numbers::Whole => {
                let whole = gradient.mul_scalar(7.0)?.add_scalar(0.123)?.round()?;
                self.add(whole, f64::INFINITY)
            }
            Numbers::Smooth => self.add(gradient.tanh()?, 1.0),
        }
    }
}

impl At<'_> {
    /// Extents whose product is this.
    pub(super) fn other_shape(&mut self, mut n: usize) -> Vec<usize> {
        if n == 0 {
            return vec![2, 0];
        }
        let mut shape = Vec::new();
        while shape.len() < 3 && n > 1 {
            let divisors: Vec<usize> = (1..=n.min(12)).filter(|d| n.is_multiple_of(*d)).collect();
            let extent = divisors[self.below(divisors.len())];
            shape.push(extent);
            n /= extent;
        }
        shape.push(n);
        shape
    }
}
