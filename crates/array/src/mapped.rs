//! A file mapped read-only into memory, so that weights are paged in as they are packed.
//!
//! Owns the mapping and its paging advice. Refuses to write, and to know what the bytes mean.

use std::fs::{self, File};
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;

/// Granule of [`MappedFile::forget_pages`], a multiple of every page size in use (4, 16, 64 KiB).
#[cfg(unix)]
const GRANULE: usize = 64 << 10;

/// The bytes of a regular file, read-only.
///
/// The file must not be written or truncated while it is mapped: writes show through, and touching
/// a page behind a new, shorter end kills the process (`SIGBUS`). Replacing the file by renaming
/// another over it is safe.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole of the regular file at `path`. An empty file gives an empty slice.
    ///
    /// # Errors
    /// Those of opening and mapping, and `InvalidInput` for anything but a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Before opening: opening a pipe would wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is read-only and is unmapped only by our drop, which no borrow of the
        // slice outlives. That nobody changes the file under the map cannot be enforced; it is the
        // documented contract, as for every engine that maps weights. Bytes are only ever read as
        // plain numbers after bounds were checked against the length at mapping, so a change gives
        // wrong numbers, or SIGBUS if the file shrank, and no reference leaves the mapping.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map })
    }

    /// Tells the system that the file will be read from front to back. Advice only: never fails.
    pub fn advise_sequential(&self) {
        #[cfg(unix)]
        let _ = self.map.advise(memmap2::Advice::Sequential);
    }

    /// Lets go of the memory of all pages with bytes of `range`: what lies between two ranges goes too. Reading them
    /// again is correct and reads the file again. Advice only: a range outside the file is clipped.
    pub fn forget_pages(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let len = self.map.len();
            let start = range.start.min(len) / GRANULE * GRANULE;
            let end = range.end.min(len).next_multiple_of(GRANULE).min(len);
            if range.start < range.end && start < end {
                // SAFETY: the mapping is shared, file-backed and never written, so a dropped page
                // is filled from the same file at the next touch: the slice keeps its contents
                // under the contract of `open`, and live borrows of it stay valid.
                let _ = unsafe {
                    self.map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::MappedFile;
    use std::fs;
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("longrun-mapped-{}-{name}", std::process::id()))
    }

    #[test]
    fn forgotten_pages_read_the_same_again() {
        let path = scratch("pages");
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let file = MappedFile::open(&path).unwrap();
        file.advise_sequential();
        assert_eq!(&file[..], &bytes[..]);
        for range in [0..bytes.len(), 1..2, 70_000..400_000, 5..usize::MAX, usize::MAX..usize::MAX]
        {
            file.forget_pages(range);
            assert_eq!(&file[..], &bytes[..]);
        }
        fs::remove_file(path).unwrap();
    }

    /// Tensors lie side by side, and none ends where a page does.
    #[cfg(target_os = "linux")]
    #[test]
    fn ranges_that_touch_leave_nothing_behind() {
        let path = scratch("edges");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = MappedFile::open(&path).unwrap();
        let resident = || {
            let maps = fs::read_to_string("/proc/self/smaps").unwrap();
            let mine = maps.split_once(path.to_str().unwrap()).unwrap().1;
            let line = mine.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
        };
        assert!(file.iter().all(|byte| *byte == 1) && resident() > 0);
        for ends in [0, 70_001, 70_008, 500_000, 1 << 20].windows(2) {
            file.forget_pages(ends[0]..ends[1]);
        }
        assert_eq!(resident(), 0);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let path = scratch("empty");
        fs::write(&path, b"").unwrap();
        let file = MappedFile::open(&path).unwrap();
        assert!(file.is_empty());
        file.forget_pages(0..10);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_folder_is_refused() {
        let error = MappedFile::open(&std::env::temp_dir()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(MappedFile::open(&scratch("missing")).is_err());
    }
}
