//! Reverse-mode differentiation through sharded arrays: a tape, the gradient law, and gradcheck.
