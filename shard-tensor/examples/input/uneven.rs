//! Uneven parts.

/// Each part two thirds as large as the one before.
pub(crate) fn uneven(parts: usize) -> Vec<f64> {
    (0..parts)
        .map(|part| (2f64 / 3.0).powi(part as i32))
        .collect()
}
