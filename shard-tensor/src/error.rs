//! What can go wrong in a program.

use shard_autograd::AutogradError;
use shard_comm::{AgreedError, Calling, CommError, DeviceError, ErrorClass, LaunchError, SiteText};
use shard_ops::OpError;
use shard_redistribute::RedistributeError;
use shard_spec::SpecError;
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. [`class`](Self::class) says who learns of it and what is left of the group.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mesh, placement or layout is impossible.
    #[error(transparent)]
    Spec(Located<SpecError>),
    /// The device or the communicator reported an error.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// An array could not be made or moved.
    #[error(transparent)]
    Redistribute(Located<RedistributeError>),
    /// An op could not be applied.
    #[error(transparent)]
    Op(Located<OpError>),
    /// A gradient could not be computed.
    #[error(transparent)]
    Autograd(Located<AutogradError>),
    /// An argument makes no sense for the call; the same on every rank that passes it.
    #[error("{op}: expected {expected}, got {got}; {remedy} (at {site})")]
    Argument {
        /// The call.
        op: &'static str,
        /// What it accepts.
        expected: String,
        /// What it was given.
        got: String,
        /// What to do about it.
        remedy: &'static str,
        /// Where the program called.
        site: SiteText,
    },
    /// The ranks could not be started, or one of them panicked.
    #[error(transparent)]
    Launch(Arc<LaunchError>),
    /// What one rank of a launch returned, where others were fine or only heard of it.
    #[error("rank {rank}: {source}")]
    OnRank {
        /// The rank.
        rank: usize,
        /// What it returned.
        source: Box<Self>,
    },
    /// The program's own error.
    #[error("{0}")]
    Custom(Arc<str>),
    /// An error of another library that the program uses.
    #[error(transparent)]
    Other(Arc<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// A program's own error, to be returned from a launch.
    ///
    /// ```
    /// use shard_tensor::Error;
    /// assert_eq!(Error::custom("the field has no rows").to_string(), "the field has no rows");
    /// ```
    pub fn custom(text: impl std::fmt::Display) -> Self {
        Self::Custom(text.to_string().into())
    }

    /// An error of another library, or a text, to be returned from a launch. Errors of files, of numbers in texts, of shapes of arrays, and
    /// `Box<dyn Error + Send + Sync>` need no call: `?` makes them such.
    ///
    /// ```
    /// use shard_tensor::{Error, Result, ndarray::Array2};
    /// fn rows(text: &str, numbers: Vec<f32>) -> Result<Array2<f32>> {
    ///     let rows = text.parse()?;
    ///     Ok(Array2::from_shape_vec((rows, 2), numbers)?)
    /// }
    /// assert_eq!(rows("two", vec![]).unwrap_err().to_string(), "invalid digit found in string");
    /// assert!(rows("2", vec![1.0]).is_err());
    /// assert_eq!(Error::other("a text").to_string(), "a text");
    /// ```
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into().into())
    }

    /// Decided by arguments alone, agreed on among ranks, or a failure of the group.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Spec(_) | Self::Argument { .. } => ErrorClass::Uniform,
            Self::Comm(source) => source.class(),
            Self::Redistribute(source) => source.class(),
            Self::Op(source) => source.class(),
            Self::Autograd(source) => source.class(),
            Self::OnRank { source, .. } => source.class(),
            Self::Launch(launch) => launch.class(),
            Self::Custom(_) | Self::Other(_) => ErrorClass::Failure,
        }
    }

    /// The rank this error began at, where it is one rank's.
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::OnRank { rank, .. } => Some(*rank),
            Self::Launch(launch) => match &**launch {
                LaunchError::Panicked { rank, .. } | LaunchError::Spawn { rank, .. } => Some(*rank),
                _ => None,
            },
            other => match other.comm()? {
                CommError::PeerFailed { origin, .. } => Some(*origin),
                CommError::Agreed(agreed) => Some(agreed.rank),
                _ => None,
            },
        }
    }

    /// The communicator's error inside, if that is what it is: the cause that all ranks have in common, whatever they were
    /// doing when they heard of it.
    pub fn comm(&self) -> Option<&CommError> {
        match self {
            Self::Comm(source) => Some(source),
            Self::Redistribute(source) => of_move(source),
            Self::Op(source) => of_op(source),
            Self::Autograd(source) => match source.error() {
                AutogradError::Comm(source) => Some(source),
                AutogradError::Redistribute(source) => of_move(source),
                AutogradError::Op(source) => of_op(source),
                _ => None,
            },
            Self::OnRank { source, .. } => source.comm(),
            _ => None,
        }
    }

    #[track_caller]
    pub(crate) fn argument(
        op: &'static str,
        expected: impl Into<String>,
        got: impl Into<String>,
        remedy: &'static str,
    ) -> Self {
        Self::Argument {
            op,
            expected: expected.into(),
            got: got.into(),
            remedy,
            site: Calling::site().unwrap_or(Location::caller()).into(),
        }
    }
}

/// What [`Display`](fmt::Display) says: a `main` that returns the error prints it so.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<AgreedError> for Error {
    fn from(error: AgreedError) -> Self {
        Self::Comm(error.into())
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        Self::Comm(error.into())
    }
}

/// What programs meet on the way to tensors: files, texts, and arrays.
macro_rules! others {
    ($($error:ty)*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::other(error)
            }
        }
    )*};
}

others! {
    std::io::Error
    std::num::ParseFloatError
    std::num::ParseIntError
    std::num::TryFromIntError
    ndarray::ShapeError
    Box<dyn std::error::Error + Send + Sync>
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::Launch(Arc::new(error))
    }
}

impl From<SpecError> for Error {
    fn from(error: SpecError) -> Self {
        Self::Spec(Located::new(error))
    }
}

impl From<RedistributeError> for Error {
    fn from(error: RedistributeError) -> Self {
        Self::Redistribute(Located::new(error))
    }
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Self {
        Self::Op(Located::new(error))
    }
}

impl From<AutogradError> for Error {
    fn from(error: AutogradError) -> Self {
        Self::Autograd(Located::new(error))
    }
}

/// An error of a crate below, and the program's call that failed with it.
#[derive(Clone, Debug)]
pub struct Located<E> {
    error: Box<E>,
    method: Option<&'static str>,
    site: Option<SiteText>,
}

impl<E> Located<E> {
    /// The error, in the call that this rank is in.
    pub(crate) fn new(error: E) -> Self {
        Self {
            error: Box::new(error),
            method: Calling::method(),
            site: Calling::site().map(SiteText::from),
        }
    }

    /// The error.
    pub fn error(&self) -> &E {
        &self.error
    }

    /// The error alone.
    pub fn into_error(self) -> E {
        *self.error
    }

    /// Where the program called, if it called a method of this crate.
    pub fn site(&self) -> Option<SiteText> {
        self.site.clone()
    }
}

impl<E> Deref for Located<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.error
    }
}

impl<E: fmt::Display> fmt::Display for Located<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.error.to_string();
        // A method may be several ops, one of which failed.
        if let Some(method) = self.method.filter(|method| !begins_with(&text, method)) {
            write!(f, "{method}: ")?;
        }
        f.write_str(&text)?;
        // What ranks tell each other says where each of them was.
        match &self.site {
            Some(site) if !text.contains(&site.to_string()) => write!(f, " (at {site})"),
            _ => Ok(()),
        }
    }
}

/// Whether a text begins with this name, and not with one that begins so.
fn begins_with(text: &str, name: &str) -> bool {
    let behind = text.strip_prefix(name);
    behind.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

impl<E: std::error::Error> std::error::Error for Located<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

fn of_op(error: &OpError) -> Option<&CommError> {
    match error {
        OpError::Comm { source, .. } => Some(source),
        OpError::Redistribute { source, .. } => of_move(source),
        _ => None,
    }
}

fn of_move(error: &RedistributeError) -> Option<&CommError> {
    match error {
        RedistributeError::Comm(source) => Some(source),
        _ => None,
    }
}
