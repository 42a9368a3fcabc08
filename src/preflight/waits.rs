//! Does a program wait for its sockets by system calls of its own, which no preloaded library sees?
//!
//! Its sockets would then be on the stack and its waits on the kernel: it would hang. Rust's `polling` and programs on
//! io_uring are of this kind. The machine code of the executable tells: the number of a waiting call put into the
//! register of system calls shortly before one. A library that does it, liburing, is told by the name it is needed
//! under; libc's own calls lie in libc.

use std::fs::File;
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Waiting calls and their numbers on x86-64 (Linux arch/x86/entry/syscalls/syscall_64.tbl).
const WAITS: [(u32, &str); 4] = [
    (232, "epoll_wait"),
    (281, "epoll_pwait"),
    (441, "epoll_pwait2"),
    (426, "io_uring_enter"),
];
/// What is needed by programs that let liburing make their system calls.
const LIBURING: &[u8] = b"liburing.so";

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov eax, imm32`.
const MOV_EAX: u8 = 0xb8;
/// How far before the call its number is loaded: the other six registers come between.
const DISTANCE_BYTES: usize = 48;

/// Bytes of code that are looked at together.
const CHUNK_BYTES: usize = 1 << 20;
/// Program headers that are looked at; a usual program has a dozen.
const HEADERS_MAX: usize = 128;
/// Bytes of the dynamic section, and of one name in it, that are looked at.
const DYNAMIC_MAX: usize = 16 << 10;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PF_X: u32 = 1;
const EM_X86_64: u16 = 62;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// The call by which the executable at `path` waits by itself, or None: it does not, or nothing can be told (another machine
/// type, a script, a file that cannot be read).
///
/// Reads the code once, front to back: some milliseconds for ten megabytes.
#[must_use]
pub fn own_wait(path: &Path) -> Option<&'static str> {
    let file = File::open(path).ok()?;
    let segments = segments(&file)?;
    let mut code = segments
        .iter()
        .filter(|it| it.kind == PT_LOAD && it.flags & PF_X != 0);
    code.find_map(|segment| wait_in(&file, segment))
        .or_else(|| needs_liburing(&file, &segments).then_some("io_uring_enter"))
}

/// A program header (elf(5), Elf64_Phdr).
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    length: u64,
}

fn segments(file: &File) -> Option<Vec<Segment>> {
    let head = read(file, 0, 64)?;
    if !head.starts_with(b"\x7fELF\x02\x01") || u16_at(&head, 18)? != EM_X86_64 {
        return None;
    }
    let (offset, size) = (u64_at(&head, 32)?, u64::from(u16_at(&head, 54)?));
    let count = usize::from(u16_at(&head, 56)?).min(HEADERS_MAX);
    (0..)
        .take(count)
        .map(|index| {
            let header = read(file, offset.checked_add(size * index)?, 56)?;
            Some(Segment {
                kind: u32_at(&header, 0)?,
                flags: u32_at(&header, 4)?,
                offset: u64_at(&header, 8)?,
                address: u64_at(&header, 16)?,
                length: u64_at(&header, 32)?,
            })
        })
        .collect()
}

fn wait_in(file: &File, segment: &Segment) -> Option<&'static str> {
    let mut done = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    while done < segment.length {
        let want = usize::try_from(segment.length - done)
            .map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        let got = file
            .read_at(chunk.get_mut(..want)?, segment.offset.checked_add(done)?)
            .ok()?;
        if let Some(name) = wait_among(chunk.get(..got)?) {
            return Some(name);
        }
        if got <= DISTANCE_BYTES {
            break;
        }
        // What straddles two chunks is whole in the second one.
        let step = if got < want || done + got as u64 >= segment.length {
            got
        } else {
            got - DISTANCE_BYTES
        };
        done += step as u64;
    }
    None
}

/// The first wait in a piece of machine code.
fn wait_among(code: &[u8]) -> Option<&'static str> {
    let mut rest = code;
    // As memchr(3), which the standard library has under this name.
    while let Ok(skipped) = rest.skip_until(SYSCALL[0])
        && skipped > 0
    {
        let at = code.len() - rest.len() - 1;
        if code.get(at..at + 2) != Some(&SYSCALL) {
            continue;
        }
        let before = code.get(at.saturating_sub(DISTANCE_BYTES)..at)?;
        // The last load before the call counts.
        let number = before
            .windows(5)
            .rev()
            .find(|window| window.first() == Some(&MOV_EAX) && window.last() == Some(&0))
            .and_then(|window| u32_at(window, 1));
        let wait = WAITS.iter().find(|(wait, _)| Some(*wait) == number);
        if let Some((_, name)) = wait {
            return Some(name);
        }
    }
    None
}

/// Whether the dynamic section names liburing among what is needed.
fn needs_liburing(file: &File, segments: &[Segment]) -> bool {
    let names = || {
        let dynamic = segments.iter().find(|it| it.kind == PT_DYNAMIC)?;
        let length = usize::try_from(dynamic.length).map_or(DYNAMIC_MAX, |it| it.min(DYNAMIC_MAX));
        let entries = read(file, dynamic.offset, length)?;
        let entry = |bytes: &[u8]| Some((u64_at(bytes, 0)?, u64_at(bytes, 8)?));
        let entries: Vec<_> = entries.chunks_exact(16).filter_map(entry).collect();
        let (_, table) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?;
        let holder = segments.iter().find(|it| {
            it.kind == PT_LOAD
                && table
                    .checked_sub(it.address)
                    .is_some_and(|at| at < it.length)
        })?;
        let table = table - holder.address + holder.offset;
        let is_liburing = |at: u64| {
            let name = table
                .checked_add(at)
                .and_then(|at| read(file, at, LIBURING.len()));
            name.is_some_and(|name| name == LIBURING)
        };
        let mut needed = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
        Some(needed.any(|(_, at)| is_liburing(*at)))
    };
    names().unwrap_or(false)
}

fn read(file: &File, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn u16_at(bytes: &[u8], index: usize) -> Option<u16> {
    let bytes = bytes.get(index..index.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], index: usize) -> Option<u32> {
    let bytes = bytes.get(index..index.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn u64_at(bytes: &[u8], index: usize) -> Option<u64> {
    let bytes = bytes.get(index..index.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov eax, number`, some other loads, `syscall`.
    fn call(number: u32, between: usize) -> Vec<u8> {
        let mut code = vec![MOV_EAX];
        code.extend(number.to_le_bytes());
        code.extend(std::iter::repeat_n(0x90, between));
        code.extend(SYSCALL);
        code
    }

    #[test]
    fn a_wait_is_told_from_other_calls() {
        for (number, name) in WAITS {
            assert_eq!(wait_among(&call(number, 0)), Some(name));
            assert_eq!(wait_among(&call(number, 30)), Some(name));
            assert_eq!(wait_among(&call(number, 60)), None, "not its number");
            let other = [call(1, 3), call(number, 9), call(0, 2)].concat();
            assert_eq!(wait_among(&other), Some(name));
        }
        let overwritten = [call(232, 0)[..5].to_vec(), call(39, 2)].concat();
        assert_eq!(wait_among(&overwritten), None, "the last load counts");
        assert_eq!(wait_among(&[0x0f; 100]), None);
        assert_eq!(wait_among(b""), None);
    }

    #[test]
    fn programs_that_wait_through_libc_are_not_suspected() {
        for name in [
            "/usr/bin/env",
            "/bin/sh",
            "/usr/bin/redis-server",
            "/nonexistent",
            "/etc/hosts",
            "/",
        ] {
            assert_eq!(own_wait(Path::new(name)), None, "{name}");
        }
    }

    #[test]
    fn a_damaged_file_is_not_suspected() {
        let whole = std::fs::read("/usr/bin/env").expect("a program");
        let path = std::env::temp_dir().join(format!("knet-waits-{}", std::process::id()));
        for length in [0, 5, 63, 64, 100, 600, whole.len() / 2] {
            std::fs::write(&path, &whole[..length.min(whole.len())]).expect("a file");
            assert_eq!(own_wait(&path), None);
        }
        let mut wild = whole;
        wild[32..64].fill(0xff);
        std::fs::write(&path, &wild).expect("a file");
        assert_eq!(own_wait(&path), None);
        std::fs::remove_file(&path).expect("it is there");
    }
}
