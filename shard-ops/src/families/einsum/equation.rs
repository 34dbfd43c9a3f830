//! Equations of letters.

use super::contract::Letters;
use crate::{OpError, Result, Value};
use std::collections::BTreeMap;

/// An equation and what its letters stand for. Letters are numbers: those of the alphabet are their code points, and dims of `...`
/// are numbered beyond, so that the last dims have the same number in all operands.
pub(super) struct Equation {
    /// A letter for each dim of each operand.
    pub(super) operands: Vec<Letters>,
    /// A letter for each dim of the result.
    pub(super) result: Letters,
    /// How many indices each letter has.
    pub(super) extents: BTreeMap<u32, usize>,
}

/// The number of the first dim of `...`.
const DOTS: u32 = 256;

impl Equation {
    /// Reads an equation for these operands.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(text: &str, operands: &[&Value]) -> Result<Self> {
        let refuse = |problem: String| refusal(text, &problem, operands);
        let spaceless: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match spaceless.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (spaceless.as_str(), None),
        };
        let sides: Vec<Side> = left
            .split(',')
            .map(|t| Side::read(t).map_err(refuse))
            .collect::<Result<_>>()?;
        if sides.len() != operands.len() {
            return Err(refuse(format!(
                "{} operands are named, and {} given",
                sides.len(),
                operands.len()
            )));
        }
        let mut dots = 0;
        for (side, x) in sides.iter().zip(operands) {
            let given = x.ndim().checked_sub(side.letters());
            match given {
                Some(more) if more == 0 || side.dots => dots = dots.max(more),
                _ => {
                    let wanted = side.letters();
                    return Err(refuse(format!("{wanted} letters for {} dims", x.ndim())));
                }
            }
        }
        let named: Vec<Letters> = (sides.iter().zip(operands))
            .map(|(side, x)| side.named(dots, x.ndim() - side.letters()))
            .collect();
        let result = match right {
            Some(right) => Side::read(right).map_err(refuse)?.named(dots, dots),
            None => implied(&named, dots),
        };
        let extents = extents(&named, operands).map_err(refuse)?;
        for (i, letter) in result.iter().enumerate() {
            if result[..i].contains(letter) || !extents.contains_key(letter) {
                let letter = shown(*letter);
                let problem = format!("the result's {letter} stands there twice, or in no operand");
                return Err(refuse(problem));
            }
        }
        Ok(Self {
            operands: named,
            result,
            extents,
        })
    }
}

/// The error that an equation is refused with.
pub(super) fn refusal(text: &str, problem: &str, operands: &[&Value]) -> OpError {
    OpError::Shape {
        op: "einsum",
        problem: format!("`{text}`: {problem}"),
        shapes: operands.iter().map(|x| x.shape().to_vec()).collect(),
        fix: "give one letter per dim, `...` at most once per operand, and commas between operands, such as `bij,bjk->bik`",
    }
}

/// The letters of one operand or of the result.
struct Side {
    before: Letters,
    dots: bool,
    after: Letters,
}

impl Side {
    fn read(text: &str) -> std::result::Result<Self, String> {
        let (before, after) = match text.split_once("...") {
            Some((before, after)) => (before, Some(after)),
            None => (text, None),
        };
        let letters = |text: &str| -> std::result::Result<Letters, String> {
            match text.chars().find(|c| !c.is_ascii_alphabetic()) {
                Some(c) => Err(format!("{c:?} is no letter")),
                None => Ok(text.chars().map(u32::from).collect()),
            }
        };
        Ok(Self {
            before: letters(before)?,
            dots: after.is_some(),
            after: letters(after.unwrap_or(""))?,
        })
    }

    fn letters(&self) -> usize {
        self.before.len() + self.after.len()
    }

    /// With the last `count` of the `dots` dims that `...` stands for.
    fn named(&self, dots: usize, count: usize) -> Letters {
        let mut all = self.before.clone();
        if self.dots {
            all.extend((dots - count..dots).map(|d| DOTS + d as u32));
        }
        all.extend_from_slice(&self.after);
        all
    }
}

/// The letters that stand once, after the dims of `...`.
fn implied(named: &[Letters], dots: usize) -> Letters {
    let mut counts = BTreeMap::new();
    for letter in named.iter().flatten().filter(|&&l| l < DOTS) {
        *counts.entry(*letter).or_insert(0) += 1;
    }
    let once = counts.into_iter().filter(|(_, n)| *n == 1).map(|(l, _)| l);
    (0..dots as u32).map(|d| DOTS + d).chain(once).collect()
}

/// How many indices each letter has: dims of one letter agree, or are 1.
fn extents(
    named: &[Letters],
    operands: &[&Value],
) -> std::result::Result<BTreeMap<u32, usize>, String> {
    let mut extents = BTreeMap::new();
    for (letters, x) in named.iter().zip(operands) {
        for (d, letter) in letters.iter().enumerate() {
            let n = x.shape()[d];
            if let Some(e) = letters[..d].iter().position(|l| l == letter)
                && x.shape()[e] != n
            {
                let letter = shown(*letter);
                return Err(format!(
                    "{letter} is {} and {n} of one operand",
                    x.shape()[e]
                ));
            }
            let known = extents.entry(*letter).or_insert(n);
            if *known == 1 {
                *known = n;
            } else if n != 1 && n != *known {
                return Err(format!("{} is {known} and {n}", shown(*letter)));
            }
        }
    }
    Ok(extents)
}

fn shown(letter: u32) -> String {
    match char::from_u32(letter).filter(|_| letter < DOTS) {
        Some(c) => format!("`{c}`"),
        None => "a dim of `...`".into(),
    }
}
