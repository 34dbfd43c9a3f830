//! Compiled kernels as files, for the next process: to compile all kernels of a model takes longer than its first steps.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What was made of a text by an earlier process, if it is still there. `name` is for the eye.
pub(super) fn read(name: &str, text: &str) -> Option<Vec<u8>> {
    let mut file = std::fs::read(path(name, text).ok()?).ok()?;
    // A file is what was made, the text, and the length of the text. Files of other texts with the same name are none.
    let (rest, length) = file.split_last_chunk::<8>()?;
    let begin = rest
        .len()
        .checked_sub(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    if rest[begin..] != *text.as_bytes() {
        return None;
    }
    file.truncate(begin);
    Some(file)
}

/// Keeps what was made of a text. That it cannot be kept is no error: the next process makes it again.
pub(super) fn write(name: &str, text: &str, made: &[u8]) {
    let kept = path(name, text).and_then(|path| {
        // Another process may write the same file: the last to rename its own wins.
        let own = path.with_extension(format!("{}.tmp", unique()));
        let length = (text.len() as u64).to_le_bytes();
        std::fs::write(&own, [made, text.as_bytes(), &length].concat())?;
        std::fs::rename(&own, &path)
    });
    if let Err(error) = kept {
        tracing::debug!(target: "shard_device::cuda", %error, "a compiled kernel is not kept");
    }
}

fn path(name: &str, text: &str) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let hash = hasher.finish();
    Ok(folder()?.join(format!("{name}-{hash:016x}.bin")))
}

/// A number that no other call, here or in another process, is likely to get. The standard library draws the keys at random.
fn unique() -> String {
    let number = RandomState::new().hash_one(std::process::id());
    format!("{number:016x}")
}

/// The folder of what was compiled.
pub(super) fn folder() -> Result<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if FOLDER.get().is_none() {
        drop(FOLDER.set(private_folder(&std::env::temp_dir())?));
    }
    let folder = FOLDER.get().map(PathBuf::as_path);
    folder.ok_or_else(|| Error::other("no folder for kernels"))
}

/// A folder inside `shared`, a folder that everybody may write to. Nobody else can have put files into it, which matters because
/// its files are executed. All processes of a user share it, unless somebody else has taken its name: then this process gets a
/// folder of its own.
pub(super) fn private_folder(shared: &Path) -> Result<PathBuf> {
    let user = std::env::var("USER").unwrap_or_default();
    let user: String = user.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let folder = shared.join(format!("shard-kernels-{user}"));
    if make_private(&folder).is_ok() || is_private(&folder)? {
        return Ok(folder);
    }
    let folder = shared.join(format!("shard-kernels-{}", unique()));
    make_private(&folder)?;
    Ok(folder)
}

/// Makes a folder that nobody else may write to; an error if the name is taken.
fn make_private(folder: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Whether this is a folder that belongs to this user and that nobody else may write to.
#[cfg(unix)]
fn is_private(folder: &Path) -> Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.mode() & 0o077 != 0 {
        return Ok(false);
    }
    // A file that this process makes belongs to its user.
    let mine = folder.join(format!("{}.tmp", unique()));
    let Ok(file) = std::fs::File::create_new(&mine) else {
        return Ok(false);
    };
    let owner = file.metadata()?.uid();
    std::fs::remove_file(&mine)?;
    Ok(found.uid() == owner)
}

/// On systems whose folders have no owners.
#[cfg(not(unix))]
fn is_private(folder: &Path) -> Result<bool> {
    Ok(folder.is_dir())
}
