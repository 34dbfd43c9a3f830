//! Sums of products, from their definition: all products of elements, summed.

use crate::case::Case;
use crate::differentiate::numbers;
use crate::dispatch::ApplyError;
use crate::trial::with_reference;
use serde_json::json;
use shard_ops::elementwise::mul;
use shard_ops::reduce::sum;
use shard_ops::shape::{permute, reshape};
use shard_ops::triangle::diagonal;
use shard_ops::{Exec, Value};

/// Cases of `einsum`: every kind of letter, alone and several at a time.
pub(super) fn cases() -> Vec<Case> {
    let made: [(&str, &str, &[&[usize]]); 14] = [
        ("chain", "ij,jk,kl->il", &[&[4, 7], &[7, 3], &[3, 5]]),
        ("swapped", "kbm,nkb->nbm", &[&[5, 2, 4], &[3, 5, 2]]),
        (
            "interleaved",
            "aibj,jcbk->kaci",
            &[&[2, 3, 4, 5], &[5, 2, 4, 3]],
        ),
        ("alone", "abc,cd->ad", &[&[3, 4, 5], &[5, 2]]),
        ("diagonal", "iij,jk->ik", &[&[5, 5, 3], &[3, 2]]),
        ("trace", "ii", &[&[7, 7]]),
        ("all", "ij,ij->", &[&[5, 6], &[5, 6]]),
        ("dots_of_rows", "bd,bd->b", &[&[6, 4], &[6, 4]]),
        ("products", "ab,cb,b->bca", &[&[3, 5], &[2, 5], &[5]]),
        ("nothing", "ij,jk->ik", &[&[3, 0], &[0, 4]]),
        ("none_left", "ij,jk->ik", &[&[0, 3], &[3, 4]]),
        ("one", "ijk->ki", &[&[3, 4, 5]]),
        ("broadcast", "bij,bjk->bik", &[&[1, 3, 4], &[5, 4, 2]]),
        ("implied", "ba,cb", &[&[3, 4], &[5, 3]]),
    ];
    let of = |((name, equation, shapes), seed): ((&str, &str, &[&[usize]]), u64)| {
        let inputs = shapes.iter().enumerate();
        let inputs =
            inputs.map(|(i, shape)| (format!("x{i}"), numbers(shape, seed + 100 * i as u64)));
        let (name, note) = (format!("einsum_made_{name}"), "all products, summed");
        let attributes = json!({"equation": equation});
        let case = Case::without_reference(name, "einsum", attributes, inputs.collect(), note);
        let all: Vec<usize> = (0..shapes.len()).collect();
        with_reference(case, by_definition, &all, seed)
    };
    made.into_iter().zip(500..).map(of).collect()
}

/// The op by its definition. The equation has no dots.
fn by_definition(exec: &dyn Exec, case: &Case, values: &[Value]) -> Result<Vec<Value>, ApplyError> {
    let equation = case.attributes.text("equation", "")?;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_owned(), right.to_owned()),
        None => {
            let mut once: Vec<char> = equation.chars().filter(|c| c.is_alphabetic()).collect();
            once.sort_unstable();
            let count = |c: &char| equation.matches(*c).count() == 1;
            let once = once.into_iter().filter(count).collect();
            (equation.clone(), once)
        }
    };
    let summed = left
        .chars()
        .filter(|c| c.is_alphabetic() && !right.contains(*c));
    let mut all: Vec<char> = right.chars().collect();
    for letter in summed {
        if !all.contains(&letter) {
            all.push(letter);
        }
    }
    let mut product: Option<Value> = None;
    for (letters, x) in left.split(',').zip(values) {
        let (mut letters, mut x): (Vec<char>, Value) = (letters.chars().collect(), x.clone());
        while let Some(j) = (0..letters.len()).find(|&j| letters[..j].contains(&letters[j])) {
            let i = letters.iter().position(|l| *l == letters[j]).unwrap_or(0);
            x = diagonal(exec, &x, 0, i, j)?;
            let letter = letters.remove(j);
            letters.remove(i);
            letters.push(letter);
        }
        let place = |l: &char| letters.iter().position(|m| m == l);
        let order: Vec<usize> = all.iter().filter_map(place).collect();
        let shape: Vec<usize> = (all.iter())
            .map(|l| place(l).map_or(1, |d| x.shape()[d]))
            .collect();
        let x = reshape(exec, &permute(exec, &x, &order)?, &shape)?;
        product = Some(match product {
            None => x,
            Some(before) => mul(exec, &before, &x)?,
        });
    }
    let product = product.unwrap_or_else(|| unreachable!("cases have operands"));
    let dims: Vec<usize> = (right.chars().count()..all.len()).collect();
    Ok(vec![sum(exec, &product, &dims, false)?])
}
