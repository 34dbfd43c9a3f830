//! How the operands of both directions are indexed.

use super::NAME;
use crate::families::types::stored_types;
use crate::{Access, Meta, OpError, Result, RuleBuilder};
use shard_comm::DType;

/// The operands behind queries, keys and values that say which pairs count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Masks {
    /// The type of the mask, if there is one.
    pub(super) mask: Option<DType>,
    /// Whether the segments of queries and of keys follow.
    pub(super) segments: bool,
}

impl Masks {
    /// The place of the first operand behind these.
    pub(super) fn end(self) -> usize {
        self.first_segments() + 2 * usize::from(self.segments)
    }

    /// The place of the queries' segments, if there are any.
    pub(super) fn first_segments(self) -> usize {
        3 + usize::from(self.mask.is_some())
    }

    /// The mask among a rule's inputs.
    pub(super) fn of(self, inputs: &[Meta]) -> Option<&Meta> {
        self.mask.and(inputs.get(3))
    }

    /// Whether the mask is added to logits.
    pub(super) fn is_added(self) -> bool {
        self.mask.is_some_and(|dtype| dtype != DType::Bool)
    }
}

/// The operands' extents, checked.
pub(super) struct Extents {
    pub(super) batch: usize,
    pub(super) heads: usize,
    kv_heads: usize,
    pub(super) queries: usize,
    keys: usize,
    pub(super) dim: usize,
    pub(super) value_dim: usize,
}

impl Extents {
    pub(super) fn new(q: &Meta, k: &Meta, v: &Meta, mask: Option<&Meta>) -> Result<Self> {
        let shapes = || -> Vec<Vec<usize>> {
            let all = [Some(q), Some(k), Some(v), mask].into_iter().flatten();
            all.map(|m| m.shape.to_vec()).collect()
        };
        let wrong = |problem: &str, fix: &'static str| OpError::Shape {
            op: NAME,
            problem: problem.to_owned(),
            shapes: shapes(),
            fix,
        };
        if [q, k, v].iter().any(|m| m.shape.len() != 4) {
            return Err(wrong(
                "queries, keys and values have four dims",
                "give [batch, heads, sequence, dim], reshaping what has fewer dims",
            ));
        }
        let at = Self {
            batch: q.shape[0],
            heads: q.shape[1],
            kv_heads: k.shape[1],
            queries: q.shape[2],
            keys: k.shape[2],
            dim: q.shape[3],
            value_dim: v.shape[3],
        };
        let agree = k.shape[0] == at.batch && k.shape[3] == at.dim && v.shape[..3] == k.shape[..3];
        if !agree {
            return Err(wrong(
                "queries, keys and values do not belong together",
                "give keys of the queries' batch and dim, and as many values as keys",
            ));
        }
        let grouped =
            at.heads == at.kv_heads || (at.kv_heads > 0 && at.heads.is_multiple_of(at.kv_heads));
        if !grouped {
            return Err(wrong(
                "the heads of the keys do not divide those of the queries",
                "give heads that are a multiple of the key-value heads",
            ));
        }
        let full = [at.batch, at.heads, at.queries, at.keys];
        if let Some(mask) = mask {
            let fits = mask.shape.len() == 4
                && mask.shape.iter().zip(full).all(|(&m, n)| m == n || m == 1);
            if !fits {
                return Err(wrong(
                    "the mask does not broadcast to [batch, heads, queries, keys]",
                    "give a mask whose extents are those or 1",
                ));
            }
        }
        Ok(at)
    }

    /// Floating-point operations per batch entry, kv head, query and key, for these numbers of products with keys and with
    /// values.
    pub(super) fn flops(&self, with_keys: usize, with_values: usize) -> f64 {
        2.0 * self.group() as f64 * (with_keys * self.dim + with_values * self.value_dim) as f64
    }

    /// Heads per kv head.
    pub(super) fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(1).max(1)
    }
}

/// The factors and accesses that both directions share.
pub(super) struct Accesses {
    pub(super) query: Vec<Access>,
    pub(super) key: Vec<Access>,
    pub(super) sums: Vec<Access>,
    pub(super) mask: Option<Vec<Access>>,
    /// Of the segments of queries and of keys, if there are any.
    pub(super) segments: Vec<Vec<Access>>,
}

/// Adds the factors of attention to a rule, and says how its operands are indexed.
pub(super) fn accesses(
    rule: &mut RuleBuilder,
    at: &Extents,
    masks: Masks,
    inputs: &[Meta],
) -> Accesses {
    let mask = masks.of(inputs);
    let batch = Access::factor(rule.factor(at.batch));
    let heads = rule.factor(at.kv_heads);
    let queries = rule.factor(at.queries);
    let keys = Access::Ring {
        factor: rule.factor(at.keys),
        instead: Some(queries),
    };
    let rest = Access::Whole {
        instead: Some(queries),
    };
    let grouped = Access::Factor {
        factor: heads,
        block: at.group(),
    };
    let rows = [batch.clone(), grouped.clone(), Access::factor(queries)];
    let pairs = [
        batch.clone(),
        grouped,
        Access::factor(queries),
        keys.clone(),
    ];
    let full = [at.batch, at.heads, at.queries, at.keys];
    let of_entries = |meta: &Meta| match meta.shape[0] == 1 && at.batch != 1 {
        true => Access::WHOLE,
        false => batch.clone(),
    };
    let segments = match masks.segments {
        true => &inputs[masks.first_segments()..masks.end()],
        false => &[],
    };
    let tokens = [Access::factor(queries), keys.clone()];
    let segments = segments.iter().zip(tokens);
    let segments = segments.map(|(meta, tokens)| vec![of_entries(meta), tokens]);
    Accesses {
        segments: segments.collect(),
        query: rows.iter().cloned().chain([rest.clone()]).collect(),
        key: vec![batch, Access::factor(heads), keys, rest],
        sums: rows.to_vec(),
        mask: mask.map(|mask| {
            let dims = pairs.iter().zip(full).zip(&mask.shape);
            dims.map(|((access, n), &m)| {
                if m == 1 && n != 1 {
                    Access::WHOLE
                } else {
                    access.clone()
                }
            })
            .collect()
        }),
    }
}

/// The operands' common type.
pub(super) fn types(inputs: &[Meta], masks: Masks) -> Result<DType> {
    if let Some(got) = masks.mask.filter(|m| !m.is_float() && *m != DType::Bool) {
        // Ones that say which keys count would be added to logits, if they were converted to the queries' type.
        let float = inputs[0].dtype;
        return Err(OpError::dtype(
            NAME,
            3,
            format!("bool, true where a key counts, or {float}, which is added to the logits"),
            got,
        ));
    }
    stored_types(NAME, &inputs[..3 + usize::from(masks.is_added())])
}
