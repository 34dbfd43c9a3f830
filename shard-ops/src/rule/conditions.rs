//! The conditions that a rule must fulfil.

use super::{Access, Body, Linearity, Meta, Rule};
use crate::{OpError, Result};
use shard_comm::DType;
use shard_spec::numel;
use std::fmt;

impl Rule {
    /// Checks the rule against the operands' shapes.
    pub(super) fn check(&self) -> Result<()> {
        self.check_ranks()?;
        self.check_names()?;
        self.check_sizes()?;
        let metas = (self.metas.iter()).chain(self.outputs.iter().map(|o| &o.meta));
        for (dims, meta) in self.operands().zip(metas) {
            for (access, &extent) in dims.iter().zip(&meta.shape) {
                self.check_extent(access, extent)?;
            }
            self.check_one_dim_each(dims)?;
        }
        self.check_geometry()?;
        self.check_decided_rows()?;
        self.check_routes()
    }

    /// There are as many operands as are described, with as many dims.
    fn check_ranks(&self) -> Result<()> {
        if self.inputs.len() != self.metas.len() {
            return Err(OpError::arity(
                self.name,
                self.inputs.len().to_string(),
                self.metas.len(),
            ));
        }
        for (input, meta) in self.inputs.iter().zip(&self.metas) {
            if input.len() != meta.shape.len() {
                let problem = format!(
                    "expected an operand of {} dims, got {:?}",
                    input.len(),
                    &meta.shape[..]
                );
                return Err(self.misfit(problem, "reshape the operand"));
            }
        }
        Ok(())
    }

    /// Factors and operands that are named by number are there.
    fn check_names(&self) -> Result<()> {
        let beyond = |f: Option<usize>| f.filter(|&f| f >= self.factors.len());
        let missing = |a: &Access| beyond(a.factor_index()).or_else(|| beyond(a.instead()));
        if let Some(factor) = self.operands().flatten().find_map(missing) {
            let problem = format!("factor {factor} of {}", self.factors.len());
            return Err(self.misfit(
                problem,
                "name factors by what `RuleBuilder::factor` returned",
            ));
        }
        let linear = match &self.linearity {
            Linearity::Each(operands) => &operands[..],
            _ => &[],
        };
        let of = |said: &'static str| move |&i: &usize| (said, i);
        let mut operands = (self.unread.iter().map(of("unread")))
            .chain(self.kept_halos.iter().map(of("of a halo that is kept")))
            .chain(linear.iter().map(of("linear")));
        match operands.find(|&(_, i)| i >= self.inputs.len()) {
            None => Ok(()),
            Some((said, i)) => Err(self.misfit(
                format!("operand {i} of {} is called {said}", self.inputs.len()),
                "number operands from 0, in the order of `RuleBuilder::input`",
            )),
        }
    }

    /// The bytes of a result can be counted.
    fn check_sizes(&self) -> Result<()> {
        for Meta { shape, dtype } in self.outputs.iter().map(|o| &o.meta) {
            let bytes = numel(shape).saturating_mul(dtype.size());
            if isize::try_from(bytes).is_err() {
                let shape = &shape[..];
                let problem = format!("a result of shape {shape:?} is larger than any memory");
                return Err(self.misfit(problem, "ask for a smaller one"));
            }
        }
        Ok(())
    }

    /// The extent of a dim is that of its factor, if the access says so.
    fn check_extent(&self, access: &Access, extent: usize) -> Result<()> {
        let wanted = match access {
            Access::Factor { factor, block } => self.factors[*factor].saturating_mul(*block),
            Access::Ring { factor, .. } | Access::Routed { factor } => self.factors[*factor],
            Access::Rows {
                factor,
                cuts: Some(cuts),
            } if cuts.extents() != (self.factors[*factor], extent) => {
                let (indices, rows) = cuts.extents();
                let problem = format!(
                    "cuts of {rows} rows of {indices} indices for {extent} rows of {}",
                    self.factors[*factor]
                );
                return Err(self.misfit(problem, "give the results of one call"));
            }
            _ => return Ok(()),
        };
        if wanted == extent {
            return Ok(());
        }
        let problem = format!("a dim of {extent} does not match the {wanted} of another operand");
        Err(self.misfit(problem, "give operands whose common dims agree"))
    }

    /// Maps and windows are of inputs, and between the extents of a dim and of its factor.
    fn check_geometry(&self) -> Result<()> {
        let inputs = (self.inputs.iter().zip(&self.metas).enumerate())
            .flat_map(|(i, (dims, meta))| places("operand", i, dims, &meta.shape));
        let outputs = (self.outputs.iter().enumerate())
            .flat_map(|(o, output)| places("result", o, &output.dims, &output.meta.shape));
        for (place, access, _) in outputs {
            if access.is_geometric() {
                let problem = format!("{place} is indexed by {access:?}");
                let fix = "index results by factors; windows, adjoints and maps are of operands";
                return Err(self.misfit(problem, fix));
            }
        }
        for (place, access, extent) in inputs {
            self.check_map(place, access, extent)?;
            self.check_window(place, access, extent)?;
        }
        Ok(())
    }

    /// An index map leads from the dim to its factor, in an op that is a move.
    fn check_map(&self, place: Place, access: &Access, extent: usize) -> Result<()> {
        let Access::Map { factor, map, .. } = access else {
            return Ok(());
        };
        if !matches!(self.body, Body::Move { .. }) {
            let problem = format!("{place} is indexed by a map, and the op is no move");
            return Err(self.misfit(
                problem,
                "say `RuleBuilder::moves`, or move the operand first",
            ));
        }
        let (from, to, n) = (map.src_extent(), map.dst_extent(), self.factors[*factor]);
        if (from, to) == (extent, n) {
            return Ok(());
        }
        let problem = format!(
            "{place} has {extent} indices and its factor {n}, and its map leads from {from} to {to}: {map:?}"
        );
        Err(self.misfit(
            problem,
            "make the map for the extents of the dim and of its factor",
        ))
    }

    /// A window has as many outputs as the extents of its two sides say; of an adjoint, the dim may leave out the last ones.
    fn check_window(&self, place: Place, access: &Access, extent: usize) -> Result<()> {
        let (window, read, made, fits): (_, _, _, fn(usize, usize) -> bool) = match access {
            Access::Window { factor, window } => {
                (window, extent, self.factors[*factor], |n, made| n == made)
            }
            Access::Adjoint { factor, window } => {
                (window, self.factors[*factor], extent, |n, made| n >= made)
            }
            _ => return Ok(()),
        };
        let outputs = window.output_extent(read);
        // Where no window fits there are no outputs.
        if fits(outputs.as_ref().map_or(0, |&n| n), made) {
            return Ok(());
        }
        let has = match &outputs {
            Ok(n) => format!("{n} outputs"),
            Err(error) => format!("no outputs ({error})"),
        };
        let problem =
            format!("{place}: of {read} inputs the window has {has}, not {made}: {window:?}");
        Err(self.misfit(
            problem,
            "give the factor of `Access::Window` the window's `output_extent`, and that of `Access::Adjoint` its inputs",
        ))
    }

    /// A factor indexes one dim of an operand at most: pieces are boxes, and where it indexes two a rank needs a diagonal.
    fn check_one_dim_each(&self, dims: &[Access]) -> Result<()> {
        let factor = |d: usize| dims[d].factor_index();
        let twice = (0..dims.len())
            .flat_map(|b| (0..b).map(move |a| (a, b)))
            .find(|&(a, b)| factor(a).is_some() && factor(a) == factor(b));
        match twice {
            None => Ok(()),
            Some((a, b)) => Err(self.misfit(
                format!("dims {a} and {b} of an operand are indexed by one factor"),
                "let the factor index one of them, and take the other as a whole",
            )),
        }
    }

    /// Only outputs have numbers of rows that depend on the data, and only those of one factor.
    fn check_decided_rows(&self) -> Result<()> {
        let decided = |access: &Access| match access {
            Access::Rows { factor, cuts: None } => Some(*factor),
            _ => None,
        };
        let read = self.inputs.iter().flatten().find_map(decided);
        let outputs = self.outputs.iter().flat_map(|o| &o.dims);
        let mut made = outputs.filter_map(decided);
        let first = made.next();
        if read.is_none() && made.all(|f| Some(f) == first) {
            return Ok(());
        }
        Err(self.misfit(
            "rows that the data decides are an operand's, or of two factors".into(),
            "give the cuts of rows that exist, and let the data decide the rows of one factor",
        ))
    }

    /// All routed dims have the same factor, and each operand has at most one. Another operand, of integers, names their indices;
    /// its dims, and the other dims of routed operands, are plain factors.
    fn check_routes(&self) -> Result<()> {
        let outputs = self.outputs.iter().map(|o| &o.dims);
        let operands = || self.inputs.iter().chain(outputs.clone());
        let count = |dims: &Vec<Access>| dims.iter().filter(|a| a.is_routed()).count();
        let mut factors = operands().flatten().filter(|a| a.is_routed());
        let factor = factors.next().and_then(Access::factor_index);
        let Some(factor) = factor else {
            return Ok(());
        };
        let index = self.routes.as_ref().map(|r| r.index);
        let names = index.and_then(|i| Some((self.inputs.get(i)?, &self.metas[i])));
        let merges = self.routes.as_ref().is_some_and(|r| r.merging.is_some());
        let plain =
            |a: &Access| matches!(a, Access::Factor { factor: f, block: 1 } if *f != factor);
        let fits = factors.all(|a| a.factor_index() == Some(factor))
            && operands().all(|dims| count(dims) <= 1)
            && names.is_some_and(|(dims, meta)| {
                dims.iter().all(plain) && (merges || matches!(meta.dtype, DType::I64 | DType::I32))
            });
        let others = operands().filter(|dims| count(dims) == 1).flatten();
        let fits = fits && others.into_iter().all(|a| a.is_routed() || plain(a));
        if fits {
            return Ok(());
        }
        Err(self.misfit(
            "indices of a dim are named by no operand of i64 or i32, or of a dim that others share".into(),
            "name the indices of one dim by an operand of i64 or i32, and have all other dims be factors",
        ))
    }

    fn misfit(&self, problem: String, fix: &'static str) -> OpError {
        OpError::Shape {
            op: self.name,
            problem,
            shapes: self.metas.iter().map(|m| m.shape.to_vec()).collect(),
            fix,
        }
    }
}

/// The dims of an operand, with how they are indexed and their extents.
fn places<'a>(
    what: &'static str,
    number: usize,
    dims: &'a [Access],
    shape: &'a [usize],
) -> impl Iterator<Item = (Place, &'a Access, usize)> {
    let dims = dims.iter().zip(shape).enumerate();
    dims.map(move |(dim, (access, &n))| (Place { what, number, dim }, access, n))
}

/// Which dim it is, as errors call it.
#[derive(Clone, Copy)]
struct Place {
    what: &'static str,
    number: usize,
    dim: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dim {} of {} {}", self.dim, self.what, self.number)
    }
}
