//! Which op of the workspace a case is about.

mod folds;
mod indexing;
mod math;
mod moves;
mod stats;
mod transforms;
mod types;
mod windows;

use crate::case::{Case, CaseError};
use shard_kernels::unary::Unary;
use shard_ops::{Exec, OpError, Value};

/// Applies a case's op to its inputs, in argument order.
pub type Apply = fn(&dyn Exec, &Case, &[Value]) -> Result<Vec<Value>, ApplyError>;

/// Why an op could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The op reported an error.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The case does not describe the op.
    #[error(transparent)]
    Case(#[from] CaseError),
}

/// Shorthand for results of this module.
type Applied = Result<Vec<Value>, ApplyError>;

/// One line of the table: an op's name in the cases, what applies it, and whether some of its attributes are
/// not built.
pub(crate) struct Entry {
    name: &'static str,
    apply: Apply,
    /// The reason why this case's attributes are not built, if they are not.
    lacks: fn(&Case) -> Option<String>,
}

pub(crate) const fn built(name: &'static str, apply: Apply) -> Entry {
    Entry {
        name,
        apply,
        lacks: |_| None,
    }
}

const TABLES: [&[Entry]; 8] = [
    moves::TABLE,
    math::TABLE,
    types::TABLE,
    windows::TABLE,
    folds::TABLE,
    indexing::TABLE,
    transforms::TABLE,
    stats::TABLE,
];

/// The names of all ops, but for those of the table of maps of one number.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.into_iter().flatten().map(|entry| entry.name)
}

/// What applies the op of a case, or why it is not built.
///
/// # Errors
/// The reason for skipping the case.
pub fn find(case: &Case) -> Result<Apply, String> {
    if let Some(entry) = TABLES.into_iter().flatten().find(|e| e.name == case.op) {
        return (entry.lacks)(case).map_or(Ok(entry.apply), Err);
    }
    // Ops of one number need no entry: a name that no entry has may be a row of their table.
    if Unary::ALL.iter().any(|map| map.name() == case.op) {
        return Ok(math::map_of_table);
    }
    Err("not built".to_owned())
}

pub(crate) use transforms::norm as norm_of;

/// Whether an error is an op's declared refusal of a placement, as against a mistake.
pub fn is_refusal(_error: &OpError) -> bool {
    // No rule built so far refuses a placement: the engine moves what does not fit.
    false
}

/// A case's inputs by name.
pub(crate) struct Args<'a> {
    case: &'a Case,
    values: &'a [Value],
}

impl<'a> Args<'a> {
    pub(crate) fn new(case: &'a Case, values: &'a [Value]) -> Self {
        Self { case, values }
    }

    /// An input that may be left out.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.values
            .get(self.case.inputs.iter().position(|(n, _)| n == name)?)
    }

    /// An input the op cannot do without.
    pub(crate) fn need(&self, name: &str) -> Result<&'a Value, CaseError> {
        self.get(name).ok_or_else(|| CaseError::Attribute {
            name: format!("in.{name}"),
            expected: "an input of this name",
            got: format!(
                "{:?}",
                self.case.inputs.iter().map(|(n, _)| n).collect::<Vec<_>>()
            ),
        })
    }

    /// A dim given by an attribute, the first if it is left out; negative ones count from the end.
    pub(crate) fn dim(&self, name: &str, ndim: usize) -> Result<usize, CaseError> {
        self.index(name, 0, ndim)
    }

    /// An index into `n` things given by an attribute; negative ones count from the end.
    pub(crate) fn index(&self, name: &str, default: i64, n: usize) -> Result<usize, CaseError> {
        resolve(name, self.case.attributes.int(name, default)?, n)
    }

    /// A boundary given by an attribute, as Python slices take it: negative ones count from the end, and what
    /// lies outside is moved to the nearest end.
    pub(crate) fn bound(&self, name: &str, default: usize, n: usize) -> Result<usize, CaseError> {
        let default = i64::try_from(default).unwrap_or(i64::MAX);
        let given = self.case.attributes.int(name, default)?;
        let from_end = if given < 0 {
            given.saturating_add_unsigned(n as u64)
        } else {
            given
        };
        Ok(usize::try_from(from_end).unwrap_or(0).min(n))
    }

    /// Dims given by an attribute, all if it is left out.
    pub(crate) fn dims(&self, name: &str, ndim: usize) -> Result<Vec<usize>, CaseError> {
        match self.case.attributes.ints(name)? {
            None => Ok((0..ndim).collect()),
            Some(given) => given.into_iter().map(|d| resolve(name, d, ndim)).collect(),
        }
    }
}

/// A case that describes something its op cannot be.
pub(crate) fn unfit(name: &str, expected: &'static str, got: &impl std::fmt::Debug) -> CaseError {
    CaseError::Attribute {
        name: name.to_owned(),
        expected,
        got: format!("{got:?}"),
    }
}

fn resolve(name: &str, given: i64, ndim: usize) -> Result<usize, CaseError> {
    let from_end = if given < 0 {
        given + i64::try_from(ndim).unwrap_or(i64::MAX)
    } else {
        given
    };
    let dim = usize::try_from(from_end).ok().filter(|&d| d < ndim);
    dim.ok_or_else(|| unfit(name, "a dim or index of the operand", &given))
}
