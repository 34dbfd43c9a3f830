//! Sums of products over named indices: Einstein's notation.
//!
//! Every letter is a factor of the engine, so that any of them may be sharded. Of two operands, letters that only one has and the
//! result lacks are summed first, repeated ones are diagonals, and what is left is one product of matrices (`Contract`), or a
//! product element by element where nothing is summed. Several operands are taken two by two, those first that take the fewest
//! operations.

mod contract;
#[cfg(feature = "cuda")]
mod cuda;
mod equation;

use self::contract::{Letters, pair};
use self::equation::Equation;
use crate::families::elementwise::{bitwise_and, cast, mul, number, shift_left, shift_right};
use crate::families::full::all_rounded_once;
use crate::families::reduce::sum;
use crate::families::shape::{permute, reshape};
use crate::families::triangle::diagonal;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use smallvec::SmallVec;

/// The sum of products that an equation such as `"bij,bjk->bik"` describes, by PyTorch's rules: letters that the result lacks
/// are summed, a letter that stands twice in an operand is its diagonal, `...` stands for any dims, which broadcast, and without
/// `->` the result has the letters that stand once, in alphabetical order. Floats of 16 bits that take several products go through them as
/// `f32` and are rounded once.
///
/// # Collective
/// All members of the mesh. Operands that shard the same letters alike do not move. A sharded letter that is summed makes the
/// result `P(sum)` over its axes, and nothing is sent for it.
///
/// # Errors
/// An equation that cannot be read or does not fit the operands; types that differ.
pub fn einsum(exec: &dyn Exec, equation: &str, operands: &[&Value]) -> Result<Value> {
    let read = Equation::read(equation, operands)?;
    match takes_steps(&read) {
        true => all_rounded_once(exec, operands, |operands| {
            product(exec, equation, &read, operands)
        }),
        false => product(exec, equation, &read, operands),
    }
}

/// Whether several ops that round make the product: more operands than two, or sums of one of two before.
fn takes_steps(read: &Equation) -> bool {
    let alone = |i: usize| {
        let others = (0..read.operands.len()).filter(move |&j| j != i);
        let needed = |l: &u32| {
            read.result.contains(l) || others.clone().any(|j| read.operands[j].contains(l))
        };
        !read.operands[i].iter().all(needed)
    };
    match read.operands.len() {
        0 | 1 => false,
        2 => alone(0) || alone(1),
        _ => true,
    }
}

/// The product that was read, of operands two by two.
fn product(exec: &dyn Exec, equation: &str, read: &Equation, operands: &[&Value]) -> Result<Value> {
    let mut terms: Vec<Term> = (operands.iter().zip(&read.operands))
        .map(|(&x, letters)| Term::of(exec, x, letters, read))
        .collect::<Result<_>>()?;
    while terms.len() > 1 {
        let (first, second) = cheapest(&terms, read);
        let right = terms.remove(second).alone(exec, &terms, read)?;
        terms.push(right);
        let left = terms.remove(first).alone(exec, &terms, read)?;
        let Some(right) = terms.pop() else { break };
        let letters = kept(&left, &right, &terms, read);
        let value = pair(
            exec,
            (&left.value, &left.letters),
            (&right.value, &right.letters),
            &letters,
        )?;
        terms.push(Term { value, letters });
    }
    match terms.pop() {
        Some(last) => last.alone(exec, &[], read)?.ordered(exec, &read.result),
        None => Err(equation::refusal(equation, "no operands", operands)),
    }
}

/// The sum of products over dims of two operands: dims `of_a` of the first meet dims `of_b` of the second. The result has the
/// other dims of the first, then those of the second.
///
/// # Collective
/// As [`einsum`].
///
/// # Errors
/// Dims that do not exist, are named twice, or have different extents; types that differ.
pub fn tensordot(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    of_a: &[usize],
    of_b: &[usize],
) -> Result<Value> {
    let named = |x: &Value, dims: &[usize]| {
        dims.iter()
            .enumerate()
            .all(|(i, d)| *d < x.ndim() && !dims[..i].contains(d))
    };
    let fits = of_a.len() == of_b.len()
        && named(a, of_a)
        && named(b, of_b)
        && of_a
            .iter()
            .zip(of_b)
            .all(|(&i, &j)| a.shape()[i] == b.shape()[j]);
    if !fits {
        return Err(OpError::Shape {
            op: "tensordot",
            problem: format!("dims {of_a:?} of the first do not meet dims {of_b:?} of the second"),
            shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
            fix: "name as many dims of each, once, with equal extents",
        });
    }
    let left: Letters = (0..a.ndim() as u32).collect();
    let mut right: Letters = (0..b.ndim() as u32).map(|d| a.ndim() as u32 + d).collect();
    for (&i, &j) in of_a.iter().zip(of_b) {
        right[j] = i as u32;
    }
    let both = left.iter().chain(&right);
    let out: Letters = both
        .filter(|l| !(left.contains(l) && right.contains(l)))
        .copied()
        .collect();
    pair(exec, (a, &left), (b, &right), &out)
}

/// All products of an element of one operand with one of the other, both with one dim.
///
/// # Collective
/// All members of the mesh; communicates only if both shard over one mesh axis.
///
/// # Errors
/// Operands that have not one dim; types that differ.
pub fn outer(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    if a.ndim() != 1 || b.ndim() != 1 {
        return Err(OpError::Shape {
            op: "outer",
            problem: "operands must have one dim".into(),
            shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
            fix: "use einsum",
        });
    }
    pair(exec, (a, &[0]), (b, &[1]), &[0, 1])
}

/// The Kronecker product: every element of `a` times all of `b`, so that element `i m + j` of a dim is that of `a` at `i` and that of `b`
/// at `j`, of `m`. Of two operands with different numbers of dims one has dims of 1 in front.
///
/// # Collective
/// All members of the mesh; communicates to align operands that shard over one mesh axis, and what of `b` a dim of `a` is merged with.
///
/// # Errors
/// Types that differ.
pub fn kron(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    let ndim = a.ndim().max(b.ndim());
    let extents = |x: &Value| -> Vec<usize> {
        let before = std::iter::repeat_n(1, ndim - x.ndim());
        before.chain(x.shape().iter().copied()).collect()
    };
    let (of_a, of_b) = (extents(a), extents(b));
    let apart: Vec<usize> = of_a.iter().flat_map(|&n| [n, 1]).collect();
    let a = reshape(exec, a, &apart)?;
    let apart: Vec<usize> = of_b.iter().flat_map(|&n| [1, n]).collect();
    let product = mul(exec, &a, &reshape(exec, b, &apart)?)?;
    let extents = product.shape().chunks(2).map(|pair| pair[0] * pair[1]);
    reshape(exec, &product, &extents.collect::<Vec<usize>>())
}

/// The sums of products over the last dims of both operands; a product with a number if either has no dims.
///
/// # Collective
/// As [`einsum`].
///
/// # Errors
/// Last dims of different extents; types that differ.
pub fn inner(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    match (a.ndim().checked_sub(1), b.ndim().checked_sub(1)) {
        (Some(i), Some(j)) => tensordot(exec, a, b, &[i], &[j]),
        _ => mul(exec, a, b),
    }
}

/// An operand or an intermediate result, with a letter for each dim.
struct Term {
    value: Value,
    letters: Letters,
}

impl Term {
    /// An operand without repeated letters, and without dims of extent 1 that broadcast.
    fn of(exec: &dyn Exec, x: &Value, letters: &Letters, read: &Equation) -> Result<Self> {
        let (mut value, mut letters) = (x.clone(), letters.clone());
        while let Some((i, j)) = repeated(&letters) {
            value = diagonal(exec, &value, 0, i, j)?;
            let letter = letters.remove(j);
            letters.remove(i);
            letters.push(letter);
        }
        let stays = |d: &usize| value.shape()[*d] == read.extents[&letters[*d]];
        let dims: Vec<usize> = (0..letters.len()).filter(stays).collect();
        if dims.len() < letters.len() {
            let shape: Vec<usize> = dims.iter().map(|&d| value.shape()[d]).collect();
            value = reshape(exec, &value, &shape)?;
            letters = dims.iter().map(|&d| letters[d]).collect();
        }
        Ok(Self { value, letters })
    }

    /// Sums letters that no other operand and not the result has.
    fn alone(self, exec: &dyn Exec, others: &[Self], read: &Equation) -> Result<Self> {
        let needed = |l: &u32| {
            read.result.contains(l) || others.iter().any(|other| other.letters.contains(l))
        };
        let dims: Vec<usize> = (0..self.letters.len())
            .filter(|&d| !needed(&self.letters[d]))
            .collect();
        if dims.is_empty() {
            return Ok(self);
        }
        let value = sum(exec, &self.value, &dims, false)?;
        Ok(Self {
            value: wrapped(exec, &value, self.value.dtype())?,
            letters: self.letters.iter().copied().filter(needed).collect(),
        })
    }

    /// The value with dims in this order.
    fn ordered(self, exec: &dyn Exec, to: &[u32]) -> Result<Value> {
        match self.letters[..] == *to {
            true => Ok(self.value),
            false => permute(exec, &self.value, &order(&self.letters, to)),
        }
    }
}

/// A sum as the type of its terms, into which integers wrap as products do, where a cast would take the nearest one.
fn wrapped(exec: &dyn Exec, sum: &Value, dtype: DType) -> Result<Value> {
    let number = |value| number("einsum", sum, value);
    let low = match dtype {
        DType::U8 => bitwise_and(exec, sum, &number(255.0)?)?,
        DType::I32 => {
            let bits = number(32.0)?;
            shift_right(exec, &shift_left(exec, sum, &bits)?, &bits)?
        }
        _ => sum.clone(),
    };
    cast(exec, &low, dtype)
}

/// The first two dims that have one letter.
fn repeated(letters: &[u32]) -> Option<(usize, usize)> {
    let pairs = (0..letters.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
    pairs.into_iter().find(|&(i, j)| letters[i] == letters[j])
}

/// For each letter of `to`, where `from` has it.
fn order(from: &[u32], to: &[u32]) -> Vec<usize> {
    to.iter()
        .filter_map(|l| from.iter().position(|m| m == l))
        .collect()
}

/// The letters of a product of two: those that the result or another operand needs.
fn kept(a: &Term, b: &Term, others: &[Term], read: &Equation) -> Letters {
    let needed =
        |l: &u32| read.result.contains(l) || others.iter().any(|other| other.letters.contains(l));
    let mut out: Letters = a.letters.iter().copied().filter(needed).collect();
    let more: SmallVec<[u32; 6]> = (b.letters.iter().copied())
        .filter(|l| needed(l) && !out.contains(l))
        .collect();
    out.extend(more);
    // The last product is made in the result's order, if that has no letter of another operand.
    if others.is_empty() {
        out = read.result.clone();
    }
    out
}

/// Which two operands to multiply next: those whose product takes the fewest operations, and of these the smallest result.
fn cheapest(terms: &[Term], read: &Equation) -> (usize, usize) {
    let cost = |&(i, j): &(usize, usize)| {
        let extent = |l: &u32| read.extents[l] as u128;
        let (a, b) = (&terms[i].letters, &terms[j].letters);
        let union = a.iter().chain(b.iter().filter(|l| !a.contains(l)));
        let work: u128 = union.clone().map(extent).fold(1, u128::saturating_mul);
        let stays = |l: &&u32| {
            let elsewhere = (0..terms.len()).filter(|&k| k != i && k != j);
            read.result.contains(l) || elsewhere.into_iter().any(|k| terms[k].letters.contains(l))
        };
        let size: u128 = union
            .filter(stays)
            .map(extent)
            .fold(1, u128::saturating_mul);
        (work, size, i, j)
    };
    let pairs = (1..terms.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
    pairs.min_by_key(cost).unwrap_or((0, 1))
}
