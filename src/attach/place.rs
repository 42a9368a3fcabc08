//! Where things lie: this object, this program, the host's binary.

use core::ffi::CStr;

use rustix::fs::{Access, Mode, OFlags};

use super::fault::{Fault, reason};
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, environment};
use crate::rendezvous::{PATH_BYTES, Path};

/// A place inside this object, whose address finds its line in /proc/self/maps.
static MARK: u8 = 0;

/// The absolute path of the object that this code was loaded from, whatever name LD_PRELOAD gave it.
pub(super) fn frame() -> Result<Path> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = descriptor::raw(rustix::fs::open(c"/proc/self/maps", flags, Mode::empty())?);
    let found = mapped_at(maps, (&raw const MARK).addr() as u64);
    descriptor::close(maps);
    found
}

fn mapped_at(maps: i32, address: u64) -> Result<Path> {
    let file = descriptor::lend(maps)?;
    let mut buffer = [0; 4_096];
    let mut used = 0;
    loop {
        let space = buffer.get_mut(used..).unwrap_or(&mut []);
        let count = match rustix::io::read(file, space) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if count == 0 {
            return Err(Errno::NOENT);
        }
        used += count;
        let full = buffer.get(..used).unwrap_or(&[]);
        let end = full
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let lines = full.get(..end).unwrap_or(&[]);
        if let Some(path) = lines
            .split(|byte| *byte == b'\n')
            .find_map(|line| path_of(line, address))
        {
            return Path::new(path);
        }
        if end == 0 && used == buffer.len() {
            return Err(Errno::NAMETOOLONG);
        }
        buffer.copy_within(end..used, 0);
        used -= end;
    }
}

/// The path in a line of maps when `address` lies in its range (proc_pid_maps(5)).
fn path_of(line: &[u8], address: u64) -> Option<&[u8]> {
    let line = core::str::from_utf8(line).ok()?;
    let (range, rest) = line.split_once(' ')?;
    let (first, end) = range.split_once('-')?;
    let first = u64::from_str_radix(first, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let path = rest.get(rest.find('/')?..)?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    (first..end).contains(&address).then_some(path.as_bytes())
}

/// The absolute path of this program.
pub(super) fn program() -> Path {
    let mut buffer = [core::mem::MaybeUninit::uninit(); PATH_BYTES];
    let link = rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/self/exe", &mut buffer);
    match link {
        Ok((path, _)) if path.len() < PATH_BYTES => {
            Path::new(path).unwrap_or_else(|_| Path::empty())
        }
        _ => Path::empty(),
    }
}

/// Bytes of address space that this process uses (VmSize of proc_pid_status(5)).
pub(super) fn address_space() -> Result<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let status = descriptor::raw(rustix::fs::open(
        c"/proc/self/status",
        flags,
        Mode::empty(),
    )?);
    let mut buffer = [0; 4_096];
    let read = descriptor::lend(status).and_then(|file| rustix::io::read(file, &mut buffer));
    descriptor::close(status);
    let text = buffer.get(..read?).unwrap_or(&[]);
    let kilobytes = text
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"VmSize:"))
        .and_then(|rest| core::str::from_utf8(rest).ok())
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.map(|count| count << 10).ok_or(Errno::PROTO)
}

/// The last part of a path.
pub(super) fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// The host's binary: `KNET_HOST`, else beside this object, else /usr/bin/knetd.
pub(super) fn host() -> core::result::Result<Path, Fault> {
    if let Some(named) = environment::secure_value(b"KNET_HOST") {
        let path = Path::new(named.to_bytes()).map_err(|e| Fault::step("host", named, e))?;
        return executable(&path)
            .map(|()| path)
            .map_err(|e| Fault::step("host (named by KNET_HOST)", named, e));
    }
    let installed = Path::new(b"/usr/bin/knetd").unwrap_or_else(|_| Path::empty());
    let beside = frame()
        .and_then(|frame| beside(&frame))
        .unwrap_or(installed);
    if executable(&beside).is_ok() {
        return Ok(beside);
    }
    executable(&installed)
        .map(|()| installed)
        .map_err(|_| match there_but_not_allowed(&[beside, installed]) {
            Some((path, why)) => Fault::new(format_args!(
                "host {path}: {}; kernel sockets are used (this program may not start one: use the service, common.mode 1)",
                reason(why)
            )),
            None => Fault::new(format_args!(
                "no host binary at {beside} or {installed}; kernel sockets are used (install knetd or name it by KNET_HOST)"
            )),
        })
}

/// The first of `places` where a host is, and why it may not be executed (NoExecPaths= of a unit, for one).
fn there_but_not_allowed(places: &[Path]) -> Option<(&Path, Errno)> {
    places.iter().find_map(|path| {
        rustix::fs::stat(path.as_c_str()).ok()?;
        Some((path, executable(path).err()?))
    })
}

fn beside(frame: &Path) -> Result<Path> {
    let bytes = frame.as_bytes();
    let folder = bytes.len() - name_of(bytes).len();
    let mut path = Path::new(bytes.get(..folder).unwrap_or(&[]))?;
    path.push(b"knetd")?;
    Ok(path)
}

pub(super) fn executable(path: &Path) -> Result<()> {
    let path: &CStr = path.as_c_str();
    rustix::fs::access(path, Access::EXEC_OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_object_and_this_program_are_found() {
        let exe = std::env::current_exe().unwrap();
        assert_eq!(program().to_string(), exe.to_str().unwrap());
        assert_eq!(frame().unwrap().to_string(), exe.to_str().unwrap());
        assert_eq!(
            beside(&Path::new(b"/a/b.so").unwrap()).unwrap().to_string(),
            "/a/knetd"
        );
    }

    #[test]
    fn this_process_uses_some_address_space() {
        let bytes = address_space().unwrap();
        assert!((1 << 20..1 << 47).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_line_of_maps_is_read_with_spaces_and_deletion() {
        let line = b"7f00-8000 r-xp 00000000 08:01 12   /opt/my lib/x.so (deleted)";
        assert_eq!(path_of(line, 0x7f00), Some(&b"/opt/my lib/x.so"[..]));
        assert_eq!(path_of(line, 0x8000), None);
        assert_eq!(path_of(b"7f00-8000 r-xp 0 0:0 0 [heap]", 0x7f00), None);
    }
}
