//! Where a file goes, and how it gets there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::path::{Path, PathBuf};

/// Links followed before they are taken for a loop.
const MOST_LINKS: usize = 40;

/// A file to be replaced, or made, at once: whoever opens it finds all of the old one or all of the new one.
#[derive(Debug)]
pub(super) struct Target {
    /// Where links lead.
    path: PathBuf,
    /// A file of this rank's own beside it.
    beside: PathBuf,
    /// What the old file has, or a new one would have.
    permissions: Permissions,
}

impl Target {
    /// The file that is written first, in the folder of [`path`](Self::path).
    pub(super) fn beside(&self) -> &Path {
        &self.beside
    }

    /// The file of this name beside the one where links lead: where another rank that has the same path writes first.
    pub(super) fn named_beside(path: &Path, name: &str) -> Result<PathBuf, String> {
        let path = follow(path).map_err(|e| e.to_string())?;
        Ok(path.with_file_name(name))
    }

    /// Follows links, and refuses what is there and is no regular file: a device or a folder is not to be replaced.
    pub(super) fn at(path: &Path) -> Result<Self, String> {
        let path = follow(path).map_err(|e| e.to_string())?;
        let old = match fs::metadata(&path) {
            Ok(old) if !old.is_file() => {
                return Err(format!("{}, which is no regular file", path.display()));
            }
            Ok(old) => Some(old.permissions()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e.to_string()),
        };
        let (beside, made) = file_beside(&path).map_err(|e| e.to_string())?;
        let usual = made.metadata().map(|m| m.permissions());
        let target = Self {
            path,
            beside,
            permissions: match old {
                Some(old) => old,
                None => usual.map_err(|e| e.to_string())?,
            },
        };
        Ok(target)
    }

    /// Puts the file that was written in its place, for good: the system is asked to have it on the disk.
    pub(super) fn put(self) -> Result<(), String> {
        let placed = fs::set_permissions(&self.beside, self.permissions.clone())
            .and_then(|()| fs::rename(&self.beside, &self.path));
        placed.map_err(|e| e.to_string())?;
        // The name too is data, of the folder. Not every system can be asked.
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        if let Ok(folder) = File::open(folder.unwrap_or(Path::new("."))) {
            folder.sync_all().ok();
        }
        Ok(())
    }
}

impl Drop for Target {
    /// Leaves nothing behind where writing failed; otherwise there is nothing.
    fn drop(&mut self) {
        fs::remove_file(&self.beside).ok();
    }
}

/// Where links lead, whether something is there or not.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            // A relative link begins at the folder it is in.
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other(format!("more than {MOST_LINKS} links")))
}

/// A new file in the same folder, under a name no other has.
fn file_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A name may have 255 bytes, and what follows needs some of them.
    let name: String = name.chars().take(50).collect();
    let process = std::process::id();
    let mut number = 0;
    loop {
        let beside = path.with_file_name(format!(".{name}.{process}.{number}"));
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&beside)
        {
            Ok(file) => return Ok((beside, file)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(e) => return Err(e),
        }
    }
}
