//! Numbers of a command line, as `2x2`.

/// So many numbers from 1 to 4096 with an `x` between them.
///
/// # Errors
/// What was expected, if it was something else.
pub(crate) fn numbers<const N: usize>(text: &str) -> Result<[usize; N], String> {
    let all: Option<Vec<usize>> = text.split('x').map(|n| n.parse().ok()).collect();
    let numbers = all.and_then(|all| <[usize; N]>::try_from(all).ok());
    numbers
        .filter(|numbers| numbers.iter().all(|n| (1..=4096).contains(n)))
        .ok_or_else(|| {
            format!(
                "expected {N} numbers from 1 to 4096, as {}",
                ["2"; N].join("x")
            )
        })
}
