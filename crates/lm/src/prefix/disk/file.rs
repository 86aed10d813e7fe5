//! A file that is there whole or not at all.
//!
//! Owns writing beside the old one, waiting for the disk, and taking its place; and that of two writers at once one waits
//! for the other. Refuses to know what is in the file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Where the contents go.
pub(super) struct Output<W: Write> {
    to: BufWriter<W>,
    bytes: u64,
}

impl<W: Write> Output<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to: BufWriter::with_capacity(1 << 20, to), bytes: 0 }
    }

    /// # Errors
    /// The disk is full, or failed.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes).map_err(unwritable)
    }

    /// What it went to and how many bytes that was, once all have left this program.
    fn finish(self) -> Result<(W, u64)> {
        let bytes = self.bytes;
        self.to.into_inner().map(|to| (to, bytes)).map_err(|e| unwritable(e.into_error()))
    }
}

fn unwritable(error: io::Error) -> Error {
    let hint = "make room on the disk, or name another folder that can be written to";
    Error::file(format!("cannot be written: {error}")).hint(hint)
}

/// Puts what `fill` writes at `path` in place of what is there, and makes the folder if there is none. Gives the bytes.
/// What was there stays until all is written, and for good if anything fails. Only the user may read the file.
///
/// # Errors
/// The folder or the file can't be written, or `fill` failed.
pub(super) fn replace(
    path: &Path,
    fill: impl FnOnce(&mut Output<File>) -> Result<()>,
) -> Result<u64> {
    let at = |path: &Path| path.display().to_string();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| unwritable(e).at(at(folder)))?;
    }
    // The lock lies in a file of its own: the others change places. It goes with the handle, whatever happens.
    let lock = path.with_extension("lock");
    let lock = open(&lock).and_then(|lock| lock.lock().map(|()| lock));
    let _lock = lock.map_err(|e| unwritable(e).at(at(path)))?;
    let temporary = path.with_extension("new");
    let done = open(&temporary).map_err(unwritable).and_then(|file| {
        let mut out = Output::new(file);
        fill(&mut out)?;
        let (file, bytes) = out.finish()?;
        file.sync_all().map_err(unwritable)?;
        fs::rename(&temporary, path).map_err(unwritable)?;
        Ok(bytes)
    });
    if done.is_err() {
        // It may not be there; if it can't go, the next writer begins by emptying it.
        let _ = fs::remove_file(&temporary);
    }
    if let Some(folder) = path.parent() {
        // Not every system can wait for a folder. Then a crash of the machine may bring the old file back, whole.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    done.map_err(|e| e.at(at(path)))
}

/// An empty file to write to.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.0);
            self.0 -= n;
            match n {
                0 => Err(io::ErrorKind::StorageFull.into()),
                n => Ok(n),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_an_error_wherever_it_shows() {
        for room in [0, 1, 999, 1000, 1 << 20, 3 << 20] {
            let mut out = Output::new(Disk(room));
            let written = [1000, 2 << 20].iter().try_for_each(|n| out.put(&vec![1; *n]));
            let done = written.and_then(|()| out.finish().map(|(_, bytes)| bytes));
            match done {
                Ok(bytes) => assert!(room >= 1000 + (2 << 20) && bytes == 1000 + (2 << 20)),
                Err(e) => assert!(room < 1000 + (2 << 20) && e.to_string().contains("room"), "{e}"),
            }
        }
    }
}
