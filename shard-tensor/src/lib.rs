//! Distributed tensors for applications: one facade over layouts, communication, operators and gradients.
