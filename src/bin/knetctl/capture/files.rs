//! A capture in files of a limited size, of which the last ones stay.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes of a block before its body: its type and its length.
const HEAD: usize = 8;
/// A block with no body: its length stands at its end again.
const EMPTY: usize = 12;
/// Types of the blocks that each file begins with: Section Header and Interface Description.
const OPENING: [u32; 2] = [0x0a0d_0d0a, 1];

/// Takes a pcapng stream, as many bytes at a time as the present block lacks, and puts whole blocks into files.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    /// Bytes of a file at most, but for a single frame that is longer.
    limit: u64,
    /// Files that stay; 0 = all.
    stay: u64,
    /// The present file, its number and how long it is.
    file: File,
    number: u64,
    written: u64,
    /// There is more in it than what each file begins with.
    has_frames: bool,
    /// What each file begins with.
    opening: Vec<u8>,
    /// What has come of the present block.
    block: Vec<u8>,
}

impl Files {
    /// Creates the first file beside `path`.
    ///
    /// # Errors
    /// Why it cannot be created.
    pub(super) fn create(path: &Path, limit: u64, stay: u64) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            limit,
            stay,
            file: File::create(numbered(path, 1))?,
            number: 1,
            written: 0,
            has_frames: false,
            opening: Vec::new(),
            block: Vec::new(),
        })
    }

    /// The word of the block that begins at byte `at`, when it has come.
    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.block.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// How long the present block is, as far as that has come.
    fn length(&self) -> io::Result<usize> {
        let Some(length) = self.word(4) else {
            return Ok(HEAD);
        };
        usize::try_from(length)
            .ok()
            .filter(|length| *length >= EMPTY)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Puts the block, which is whole, into the present file or the next one.
    fn place(&mut self) -> io::Result<()> {
        let opens = self.word(0).is_some_and(|kind| OPENING.contains(&kind));
        let length = self.block.len() as u64;
        if self.has_frames && !opens && self.written + length > self.limit {
            self.next()?;
        }
        self.file.write_all(&self.block)?;
        self.written += length;
        if opens {
            self.opening.append(&mut self.block);
        } else {
            self.has_frames = true;
        }
        self.block.clear();
        Ok(())
    }

    fn next(&mut self) -> io::Result<()> {
        // Room first: the disk may be full but for it.
        if let Some(oldest) = (self.number + 1).checked_sub(self.stay)
            && self.stay > 0
            && oldest > 0
        {
            match fs::remove_file(numbered(&self.path, oldest)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.number += 1;
        self.file = File::create(numbered(&self.path, self.number))?;
        self.file.write_all(&self.opening)?;
        self.written = self.opening.len() as u64;
        self.has_frames = false;
        Ok(())
    }
}

impl Write for Files {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let lacks = self.length()?.saturating_sub(self.block.len());
        let part = bytes.get(..lacks).unwrap_or(bytes);
        self.block.extend_from_slice(part);
        if self.block.len() > HEAD && self.block.len() == self.length()? {
            self.place()?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The name of file `number`: the number stands before the extension, so that names in order are files in order.
fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path
        .file_stem()
        .map_or_else(OsString::new, |stem| stem.to_owned());
    name.push(format!("_{number:05}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of `kind` whose body is `body` bytes of `fill`.
    fn block(kind: u32, body: usize, fill: u8) -> Vec<u8> {
        let length = u32::try_from(EMPTY + body).unwrap().to_le_bytes();
        [&kind.to_le_bytes()[..], &length, &vec![fill; body], &length].concat()
    }

    fn put(files: &mut Files, stream: &[u8], step: usize) -> io::Result<()> {
        stream
            .chunks(step)
            .try_for_each(|part| files.write_all(part))
    }

    #[test]
    fn each_file_begins_as_the_first_one_and_the_last_ones_stay() {
        let opening = [block(OPENING[0], 16, 1), block(OPENING[1], 8, 2)].concat();
        let frames: Vec<_> = (10..17).map(|fill| block(6, 28, fill)).collect();
        let stream = [&opening[..], &frames.concat()].concat();
        // Room for two frames.
        let limit = (opening.len() + 2 * 40) as u64;
        for (step, stay, left) in [
            (1, 2, 3..=4),
            (7, 0, 1..=4),
            (1000, 1, 4..=4),
            (64, 9, 1..=4),
        ] {
            let folder = tempfile(step);
            let path = folder.join("a.b.pcapng");
            let mut files = Files::create(&path, limit, stay).unwrap();
            put(&mut files, &stream, step).unwrap();
            let mut names: Vec<_> = fs::read_dir(&folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            let wanted: Vec<_> = left
                .clone()
                .map(|number| format!("a.b_{number:05}.pcapng"))
                .collect();
            assert_eq!(names, wanted, "{step}");
            for (name, number) in names.iter().zip(left) {
                let pair = frames.chunks(2).nth(number - 1).unwrap().concat();
                let bytes = fs::read(folder.join(name)).unwrap();
                assert_eq!(bytes, [&opening[..], &pair].concat(), "{name}");
            }
            fs::remove_dir_all(&folder).unwrap();
        }
    }

    fn tempfile(number: usize) -> PathBuf {
        let name = format!("knet-files-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_frame_longer_than_a_file_has_one_of_its_own() {
        let folder = tempfile(0);
        let mut files = Files::create(&folder.join("x"), 100, 0).unwrap();
        let stream = [block(6, 20, 1), block(6, 400, 2), block(6, 20, 3)].concat();
        put(&mut files, &stream, 50).unwrap();
        let sizes: Vec<_> = (1..=3)
            .map(|number| {
                fs::metadata(folder.join(format!("x_0000{number}")))
                    .unwrap()
                    .len()
            })
            .collect();
        assert_eq!(sizes, [32, 412, 32]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_stream_that_is_none_is_refused() {
        let folder = tempfile(2);
        let mut files = Files::create(&folder.join("x"), 100, 0).unwrap();
        let error = put(&mut files, &[0; 40], 40).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        fs::remove_dir_all(&folder).unwrap();
        let missing = Files::create(Path::new("/no/such/folder/x"), 1, 0);
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
