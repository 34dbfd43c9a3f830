//! What the environment says of the processes that were started together with this one.

use shard_comm::LaunchError;

/// Processes that one launcher started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Processes {
    /// How many.
    pub(crate) count: usize,
    /// The variable that says so.
    pub(crate) variable: &'static str,
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

    fn found(value: impl Fn(&str) -> Option<String>) -> Option<Self> {
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
    pub(crate) fn check(&self) -> Result<(), LaunchError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Option<Processes> {
        Processes::found(|wanted| {
            let known = variables.iter().find(|(name, _)| *name == wanted);
            known.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_recognised() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("OMPI_COMM_WORLD_SIZE", "1")]), None);
        // A batch script that starts the program itself starts one.
        assert_eq!(found(&[("SLURM_NTASKS", "8")]), None);
        let count = |variables: &[(&str, &str)]| found(variables).map(|p| (p.count, p.variable));
        assert_eq!(
            count(&[("SLURM_STEP_NUM_TASKS", "8"), ("PMI_SIZE", "8")]),
            Some((8, "PMI_SIZE"))
        );
        assert_eq!(
            count(&[("WORLD_SIZE", "4"), ("RANK", "1")]),
            Some((4, "WORLD_SIZE"))
        );
    }

    #[test]
    fn several_processes_never_run_alone() {
        let torchrun = found(&[("WORLD_SIZE", "4")]).unwrap();
        let text = torchrun.check().unwrap_err().to_string();
        assert!(
            text.contains("torchrun started 4 processes (WORLD_SIZE=4)"),
            "{text}"
        );
        let mpirun = found(&[("OMPI_COMM_WORLD_SIZE", "3")]).unwrap();
        assert_eq!(mpirun.check().is_ok(), cfg!(feature = "mpi"));
    }
}
