//! Sharded arrays and the plans that move them from any layout to any other.
