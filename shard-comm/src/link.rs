//! What a link between ranks costs.

/// What one link costs: `latency + bytes * per_byte` seconds for one message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkCost {
    /// Seconds per message, the model's α.
    pub latency: f64,
    /// Seconds per byte, the model's β: one over the bandwidth.
    pub per_byte: f64,
}

impl LinkCost {
    /// A link of this latency in seconds and bandwidth in bytes per second.
    ///
    /// ```
    /// use shard_comm::LinkCost;
    /// let link = LinkCost::new(10e-6, 50e9);
    /// assert_eq!(link.time(2.0, 0.0), 20e-6);
    /// ```
    pub fn new(latency: f64, bandwidth: f64) -> Self {
        Self {
            latency,
            per_byte: 1.0 / bandwidth,
        }
    }

    /// Seconds for this many messages of this many bytes together.
    pub fn time(&self, messages: f64, bytes: f64) -> f64 {
        messages * self.latency + bytes * self.per_byte
    }

    /// The worse of two links in both respects.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        Self {
            latency: self.latency.max(other.latency),
            per_byte: self.per_byte.max(other.per_byte),
        }
    }
}

impl std::fmt::Display for LinkCost {
    /// Such as `3.00 us + 80.0 GB/s`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (latency, rate) = (1e6 * self.latency, 1e-9 / self.per_byte);
        write!(f, "{latency:.2} us + {rate:.1} GB/s")
    }
}
