//! What processes of a job tell each other, and who started it, without MPI: files in a folder of the job's own. By them a test
//! waits for what has happened, not for as long as it mostly takes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Names the folder to the ranks.
const MARKS: &str = "SHARD_TEST_MARKS";

/// The marks of a job, which are gone with this.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static JOBS: AtomicUsize = AtomicUsize::new(0);
        let job = JOBS.fetch_add(1, Ordering::Relaxed);
        let name = format!("shard-comm-marks-{}-{job}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        Self(folder)
    }

    /// What a rank's environment says of it.
    pub(crate) fn variable(&self) -> (&'static str, &PathBuf) {
        (MARKS, &self.0)
    }

    pub(crate) fn has(&self, mark: &str) -> bool {
        self.0.join(mark).exists()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a process that is not to end yet has open is the system's to remove.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn path(mark: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(MARKS).expect("the folder of the job")).join(mark)
}

/// Leaves a mark for the others.
pub(crate) fn leave(mark: &str) {
    std::fs::write(path(mark), []).expect("a file");
}

/// Waits until a rank has left a mark, and makes no calls meanwhile. One that has failed never leaves it.
pub(crate) fn wait_for(mark: &str) {
    let path = path(mark);
    let begun = Instant::now();
    while !path.exists() {
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(300), "no mark '{mark}'");
        std::thread::sleep(Duration::from_millis(1));
    }
}
