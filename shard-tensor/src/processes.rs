//! What the environment says of the processes that were started together with this one.

use shard_comm::LaunchError;

/// Processes that one launcher started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Processes {
    /// How many.
    pub count: usize,
    /// The variable that says so.
    pub variable: &'static str,
    /// The launcher that sets it.
    launcher: &'static str,
}

/// Variables that hold the number of processes, and who sets them. Those of a job step come before those of the job.
const VARIABLES: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_SIZE", "Open MPI"),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH"),
    ("PMI_SIZE", "a PMI launcher"),
    ("SLURM_STEP_NUM_TASKS", "srun"),
    ("PALS_SIZE", "PALS"),
    ("WORLD_SIZE", "torchrun"),
];

impl Processes {
    /// The processes a launcher started, if there are several.
    pub(crate) fn started() -> Option<Self> {
        Self::found(|variable| std::env::var(variable).ok())
    }

    /// Those of which variables of these values tell.
    pub fn found(value: impl Fn(&str) -> Option<String>) -> Option<Self> {
        VARIABLES.into_iter().find_map(|(variable, launcher)| {
            let count: usize = value(variable)?.trim().parse().ok()?;
            (count > 1).then_some(Self {
                count,
                variable,
                launcher,
            })
        })
    }

    /// Why they cannot work together, if this program was built without what that takes.
    ///
    /// # Errors
    /// [`LaunchError::Processes`].
    pub fn check(&self) -> Result<(), LaunchError> {
        let remedy = if !cfg!(feature = "mpi") {
            "build with the feature `mpi`, or start it without a launcher: ranks are threads then"
        } else if self.variable == "WORLD_SIZE" {
            "start it with mpirun or srun, by which processes find each other"
        } else {
            return Ok(());
        };
        Err(self.alone(remedy))
    }

    fn alone(&self, remedy: &'static str) -> LaunchError {
        LaunchError::Processes {
            cause: format!(
                "{} started {} processes ({}={}), each of which would run alone",
                self.launcher, self.count, self.variable, self.count
            ),
            remedy,
        }
    }
}

/// Why a program whose ranks are threads must not run here: a launcher started several processes, each of which would run
/// alone. [`launch`](crate::launch()) asks by itself; programs that make their own ranks ask first.
///
/// # Errors
/// [`LaunchError::Processes`].
pub fn refuse_copies() -> Result<(), LaunchError> {
    Processes::started().map_or(Ok(()), |started| {
        Err(started.alone("start it without a launcher, or ask for ranks that are processes"))
    })
}

/// A number that the environment may hold.
///
/// # Errors
/// [`LaunchError::Processes`] if it holds something else.
pub(crate) fn number(
    variable: &'static str,
    remedy: &'static str,
) -> Result<Option<u64>, LaunchError> {
    let Some(text) = std::env::var_os(variable) else {
        return Ok(None);
    };
    let number = text.to_str().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| LaunchError::Processes {
        cause: format!("{variable}={}", text.display()),
        remedy,
    })
}
