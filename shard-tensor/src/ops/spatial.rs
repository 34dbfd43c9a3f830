//! Windows: convolution, pooling, resampling, and norms.
