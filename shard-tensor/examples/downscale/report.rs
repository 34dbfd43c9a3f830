//! The tables at the end.

use crate::train::Outcome;

/// Prints errors per level, and time, memory and messages per rank.
pub(crate) fn print(outcome: &Outcome) {
    for s in &outcome.scores {
        println!(
            "{:.4} {:.4} {:.3}",
            s.bilinear,
            s.model,
            s.model / s.bilinear
        );
    }
    println!("{:?}", outcome.time);
    for r in &outcome.ranks {
        println!("{:?} {} {:?}", r.piece, r.peak, r.moved);
    }
}
