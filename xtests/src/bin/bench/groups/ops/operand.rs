//! Operands as text: `4096x1024` are numbers, `4096<1000` integers below 1000. `torch_ops.py` reads the same.

use crate::numbers::number;
use shard_tensor::{AxisPlacement, DType, Mesh, Result, ShardTensor};

/// What an operand holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Numbers in [-0.5, 1).
    Numbers,
    /// Numbers in [0.25, 1.75).
    Positive,
    /// Numbers in [0.05, 0.95), as probabilities.
    Unit,
    /// Numbers around 0, the smaller the more of them a sum of products takes, so that gates stay open.
    Weights,
    /// Symmetric matrices with positive eigenvalues.
    Definite,
    /// Truth values.
    Bool,
    /// As `Numbers`, in `bf16` whatever the case is asked in.
    Halves,
    /// Integers below an end.
    Below(usize),
    /// Such that rise.
    Sorted(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) shape: Vec<usize>,
    kind: Kind,
    /// Whether it is given, as targets are, and has no gradient.
    given: bool,
}

/// A list of operands, and its text with the extents that they have, which for a quick run are small.
pub(super) fn parse(list: &str, quick: bool) -> (String, Vec<Operand>) {
    let texts: Vec<String> = list.split(", ").map(|text| sized(text, quick)).collect();
    let operands = texts.iter().map(|text| Operand::of(text)).collect();
    (texts.join(", "), operands)
}

/// The text of an operand with other extents in a quick run: of `768~24` the second, and of others above 8 one of two, the same wherever it
/// was the same.
fn sized(text: &str, quick: bool) -> String {
    let (words, extents) = text.rsplit_once(' ').unwrap_or(("", text));
    let sized = |extent: &str| {
        let (full, small) = extent.split_once('~').unwrap_or((extent, ""));
        match (quick, small.is_empty()) {
            (false, _) => full.to_owned(),
            (true, false) => small.to_owned(),
            (true, true) => match full.parse::<usize>() {
                Ok(n) if n > 8 && n % 3 == 1 => "16".to_owned(),
                Ok(n) if n > 8 => "8".to_owned(),
                _ => full.to_owned(),
            },
        }
    };
    let ends: Vec<String> = (extents.split('<'))
        .map(|of| of.split('x').map(sized).collect::<Vec<_>>().join("x"))
        .collect();
    format!("{words} {}", ends.join("<")).trim().to_owned()
}

impl Operand {
    /// What a text of this table says.
    ///
    /// # Panics
    /// If it says nothing.
    fn of(text: &str) -> Self {
        let mut words: Vec<&str> = text.split(' ').collect();
        let extents = words.pop().unwrap_or_default();
        let (shape, end) = match extents.split_once('<') {
            Some((shape, end)) => (shape, Some(count(end))),
            None => (extents, None),
        };
        let given = words.first() == Some(&"given");
        let kind = match (words.last(), end) {
            (Some(&"sorted"), Some(end)) => Kind::Sorted(end),
            (_, Some(end)) => Kind::Below(end),
            (Some(&"positive"), _) => Kind::Positive,
            (Some(&"unit"), _) => Kind::Unit,
            (Some(&"weights"), _) => Kind::Weights,
            (Some(&"definite"), _) => Kind::Definite,
            (Some(&"bool"), _) => Kind::Bool,
            (Some(&"bf16"), _) => Kind::Halves,
            _ => Kind::Numbers,
        };
        Self {
            shape: shape.split('x').map(count).collect(),
            kind,
            given,
        }
    }

    /// Whether a gradient is asked for.
    pub(super) fn is_varied(&self) -> bool {
        !self.given && !matches!(self.kind, Kind::Bool | Kind::Below(_) | Kind::Sorted(_))
    }

    /// A tensor of it, along the first dim as said.
    pub(super) fn fill(&self, mesh: &Mesh, at: AxisPlacement, seed: u64) -> Result<ShardTensor> {
        let dtype = match self.kind {
            Kind::Bool => DType::Bool,
            Kind::Halves => DType::BF16,
            Kind::Below(_) | Kind::Sorted(_) => DType::I64,
            _ => mesh.dtype(),
        };
        mesh.with_dtype(dtype)
            .from_fn(&self.shape[..], [at], |index| self.element(index, seed))
    }

    fn element(&self, index: &[usize], seed: u64) -> f64 {
        let place =
            |index: &[usize]| (index.iter().zip(&self.shape)).fold(0, |at, (&i, &n)| at * n + i);
        let of = |at: usize| number(seed, at as u64);
        let last = self.shape.last().map_or(1.0, |&n| n as f64);
        let at = place(index);
        let share = (of(at) + 0.5) / 1.5;
        match self.kind {
            Kind::Numbers | Kind::Halves => of(at),
            Kind::Positive => of(at) + 0.75,
            Kind::Unit => 0.05 + 0.9 * share,
            Kind::Weights => (of(at) - 0.25) * 2.0 / last.sqrt(),
            Kind::Bool => f64::from(share >= 0.5),
            Kind::Below(end) => (share * end as f64).floor(),
            Kind::Sorted(end) => {
                let all: usize = self.shape.iter().product();
                ((at as f64 + share) * end as f64 / all as f64).floor()
            }
            Kind::Definite => {
                // Both triangles have the numbers of the lower one.
                let mut lower = index.to_vec();
                let row = lower.len() - 2;
                lower[row..].sort_unstable_by(|a, b| b.cmp(a));
                let diagonal = lower[row] == lower[row + 1];
                of(place(&lower)) + if diagonal { last } else { 0.0 }
            }
        }
    }
}

fn count(text: &str) -> usize {
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is no number of elements"))
}
