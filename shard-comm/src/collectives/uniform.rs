//! Whether ranks pass the same.

use std::panic::Location;
use std::sync::Arc;

use crate::{CommError, Communicator, Mismatch, Result};

impl dyn Communicator + '_ {
    /// Checks that all ranks pass the same value, for instance a fingerprint of what they must agree on.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// If values differ, the same [`Mismatch`](CommError::Mismatch) on every rank, naming `what`; or a failure.
    #[track_caller]
    pub fn check_uniform(&self, what: &'static str, value: u128) -> Result<()> {
        let site = Location::caller();
        self.tell("check_uniform", Ok(()), Some((what, value)), site)
    }

    /// [`check_uniform`](#method.check_uniform) of what has words: where ranks disagree they tell each other in them.
    ///
    /// ```
    /// use shard_comm::local;
    /// let errors = local::run(3, |comm| {
    ///     let shape = if comm.rank() == 1 { [4, 7] } else { [4, 6] };
    ///     let hash = shape.iter().fold(0, |h: u128, &n| (h << 64) + n);
    ///     comm.check_uniform_as("shape", hash, || format!("{shape:?}")).unwrap_err().to_string()
    /// })
    /// .unwrap();
    /// assert_eq!(errors[0], errors[2]);
    /// assert!(errors[0].contains("rank 0 has [4, 6]") && errors[0].contains("rank 1 has [4, 7]"));
    /// ```
    ///
    /// # Collective
    /// Every rank of the group. Two rounds more where ranks disagree.
    ///
    /// # Errors
    /// As [`check_uniform`](#method.check_uniform).
    #[track_caller]
    pub fn check_uniform_as(
        &self,
        what: &'static str,
        value: u128,
        words: impl FnOnce() -> String,
    ) -> Result<()> {
        let site = Location::caller();
        let told = self.tell("check_uniform", Ok(()), Some((what, value)), site);
        match told {
            // All ranks have heard the same, and wait for nothing else.
            Err(CommError::Mismatch(found)) if found.field == what => {
                let error = self.in_words(&found, &words());
                Err(error.unwrap_or(CommError::Mismatch(found)))
            }
            other => other,
        }
    }

    /// The same disagreement in the words of the two ranks.
    #[cold]
    fn in_words(&self, found: &Mismatch, mine: &str) -> Result<CommError> {
        let (device, size) = (self.device(), self.size());
        let len = device.upload_slice(&[mine.len() as i64])?;
        let lens = self.all_gather_v(&len, &vec![1; size])?;
        let lens: Vec<usize> = (device.download_vec::<i64>(&lens)?.into_iter())
            .map(|len| len as usize)
            .collect();
        let all = self.all_gather_v(&device.upload_slice(mine.as_bytes())?, &lens)?;
        let all = device.download_vec::<u8>(&all)?;
        let of = |rank: usize| {
            let index = self.members().iter().position(|&r| r == rank).unwrap_or(0);
            let start = lens[..index].iter().sum();
            let text = all.get(start..start + lens[index]);
            String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
        };
        Ok(CommError::Mismatch(Arc::new(Mismatch {
            a: of(found.rank_a),
            b: of(found.rank_b),
            ..found.clone()
        })))
    }
}
