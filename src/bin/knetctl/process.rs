//! What /proc tells of a process and its sockets (proc(5)).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    folder: PathBuf,
}

/// A socket of the kernel behind a descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Socket {
    pub(crate) fd: u32,
    pub(crate) inode: u64,
    pub(crate) kind: Kind,
}

/// What a socket is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// TCP over IPv4 or IPv6.
    Tcp(Internet),
    /// UDP over IPv4 or IPv6.
    Udp(Internet),
    /// AF_UNIX.
    Unix,
    /// AF_NETLINK.
    Netlink,
    /// Raw or packet sockets.
    Raw,
    /// In no table: neither bound nor connected, or of a kind that has none.
    Unbound,
}

/// The ends of an internet socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Internet {
    pub(crate) local: (IpAddr, u16),
    pub(crate) remote: (IpAddr, u16),
    /// TCP_LISTEN of the kernel.
    pub(crate) listens: bool,
}

impl Process {
    /// The process, if it is there.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        folder.is_dir().then_some(Self { pid, folder })
    }

    /// Its name as ps(1) shows it.
    pub(crate) fn name(&self) -> Option<String> {
        let name = fs::read_to_string(self.folder.join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    }

    /// Its program.
    ///
    /// # Errors
    /// EACCES when it is somebody else's.
    pub(crate) fn program(&self) -> io::Result<PathBuf> {
        fs::read_link(self.folder.join("exe"))
    }

    /// Its real user and group, which ld.so compares with the effective ones; ours when they cannot be read.
    pub(crate) fn real_ids(&self) -> (u32, u32) {
        let status = fs::read_to_string(self.folder.join("status")).unwrap_or_default();
        let id = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        let own = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        (id("Uid:").unwrap_or(own.0), id("Gid:").unwrap_or(own.1))
    }

    /// A variable of the environment that it was started with.
    pub(crate) fn variable(&self, name: &str) -> Option<std::ffi::OsString> {
        let environment = fs::read(self.folder.join("environ")).ok()?;
        environment.split(|byte| *byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(std::ffi::OsString::from_vec(value.to_vec()))
        })
    }

    /// Whether it has written its title over its environment, as Redis and PostgreSQL do: nothing is known of that then.
    pub(crate) fn has_overwritten_its_environment(&self) -> bool {
        let environment = fs::read(self.folder.join("environ")).unwrap_or_default();
        !environment.is_empty() && !environment.contains(&b'=')
    }

    /// A path as the process means it, which may have another root or other mounts.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        let link = |folder: &Path, name: &str| fs::read_link(folder.join(name)).ok();
        let own = Path::new("/proc/self");
        let is_same = ["root", "ns/mnt"]
            .iter()
            .all(|name| link(&self.folder, name) == link(own, name));
        match path.strip_prefix("/") {
            Ok(inner) if !is_same => self.folder.join("root").join(inner),
            _ => path.to_path_buf(),
        }
    }

    /// The mapped file whose name begins with `name`.
    ///
    /// # Errors
    /// EACCES when it is somebody else's.
    pub(crate) fn mapped(&self, name: &str) -> io::Result<Option<PathBuf>> {
        let maps = fs::read_to_string(self.folder.join("maps"))?;
        Ok(maps.lines().find_map(|line| {
            let path = Path::new(line.get(line.find('/')?..)?);
            let file = path.file_name()?.to_str()?;
            file.starts_with(name).then(|| path.to_path_buf())
        }))
    }

    /// The inode of the socket behind a descriptor.
    pub(crate) fn socket_inode(&self, fd: u32) -> Option<u64> {
        inode(&fs::read_link(self.folder.join(format!("fd/{fd}"))).ok()?)
    }

    /// The file, program path included, that its descriptors and tables are read from.
    pub(crate) fn program_file(&self) -> PathBuf {
        self.folder.join("exe")
    }

    /// Its sockets, by descriptor.
    ///
    /// # Errors
    /// EACCES when it is somebody else's.
    pub(crate) fn sockets(&self) -> io::Result<Vec<Socket>> {
        let kinds = self.kinds();
        let mut sockets: Vec<Socket> = fs::read_dir(self.folder.join("fd"))?
            .filter_map(Result::ok)
            .filter_map(|entry| {
                let fd = entry.file_name().to_str()?.parse().ok()?;
                let inode = inode(&fs::read_link(entry.path()).ok()?)?;
                let kind = kinds.get(&inode).cloned().unwrap_or(Kind::Unbound);
                Some(Socket { fd, inode, kind })
            })
            .collect();
        sockets.sort_by_key(|socket| socket.fd);
        Ok(sockets)
    }

    /// Every socket in the tables of its network namespace.
    fn kinds(&self) -> HashMap<u64, Kind> {
        let table =
            |name: &str| fs::read_to_string(self.folder.join("net").join(name)).unwrap_or_default();
        let mut kinds = HashMap::new();
        for (name, is_tcp) in [
            ("tcp", true),
            ("tcp6", true),
            ("udp", false),
            ("udp6", false),
        ] {
            for (inode, ends) in table(name).lines().filter_map(internet) {
                let kind = if is_tcp {
                    Kind::Tcp(ends)
                } else {
                    Kind::Udp(ends)
                };
                kinds.insert(inode, kind);
            }
        }
        // Which column the inode stands in.
        for (name, column, kind) in [
            ("unix", 6, Kind::Unix),
            ("netlink", 9, Kind::Netlink),
            ("packet", 8, Kind::Raw),
            ("raw", 9, Kind::Raw),
            ("raw6", 9, Kind::Raw),
            ("icmp", 9, Kind::Raw),
        ] {
            for line in table(name).lines().skip(1) {
                let inode = line
                    .split_whitespace()
                    .nth(column)
                    .and_then(|word| word.parse().ok());
                kinds.extend(inode.map(|inode: u64| (inode, kind.clone())));
            }
        }
        kinds
    }
}

/// The name of the process that a host tells by its number, else the file name of `program`.
pub(crate) fn name(pid: &serde_json::Value, program: &str) -> String {
    let pid = pid.as_u64().and_then(|pid| u32::try_from(pid).ok());
    let living = pid
        .and_then(Process::find)
        .and_then(|process| process.name());
    living.unwrap_or_else(|| program.rsplit('/').next().unwrap_or_default().to_owned())
}

/// `socket:[N]`
fn inode(link: &Path) -> Option<u64> {
    let text = link.to_str()?;
    text.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// A line of /proc/net/tcp and its kin.
fn internet(line: &str) -> Option<(u64, Internet)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (local, remote) = (endpoint(words.get(1)?)?, endpoint(words.get(2)?)?);
    let listens = *words.get(3)? == "0A";
    let inode = words.get(9)?.parse().ok()?;
    Some((
        inode,
        Internet {
            local,
            remote,
            listens,
        },
    ))
}

/// `0100007F:1F90`: the address as words in the machine's order, the port as a number.
fn endpoint(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, place) in bytes.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&word(at * 8)?);
            }
            let address = Ipv6Addr::from(bytes);
            address
                .to_ipv4_mapped()
                .map_or(IpAddr::V6(address), IpAddr::V4)
        }
        _ => return None,
    };
    Some((address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_tables_are_read() {
        let line = "   1: 01004D0A:1B59 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7091787 1 0 100 0 0 10 0";
        let (inode, ends) = internet(line).unwrap();
        assert_eq!(inode, 7_091_787);
        assert_eq!(ends.local, (IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 7_001));
        assert!(ends.listens);
        assert_eq!(
            endpoint("0000000000000000FFFF00000100007F:0016"),
            Some((IpAddr::V4(Ipv4Addr::LOCALHOST), 22))
        );
        assert_eq!(
            endpoint("00000000000000000000000001000000:0016"),
            Some((IpAddr::V6(Ipv6Addr::LOCALHOST), 22))
        );
        assert_eq!(endpoint("sl"), None);
    }

    #[test]
    fn our_own_sockets_are_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = Process::find(std::process::id()).unwrap();
        let found = own.sockets().unwrap();
        let is_ours = |socket: &&Socket| matches!(&socket.kind, Kind::Tcp(ends) if ends.listens && ends.local.1 == port);
        let socket = found.iter().find(is_ours).unwrap();
        assert_eq!(own.socket_inode(socket.fd), Some(socket.inode));
        assert!(own.mapped("no-such-library").unwrap().is_none());
        assert!(own.variable("PATH").is_some() && own.variable("KNET_NO_SUCH").is_none());
        assert!(Process::find(u32::MAX).is_none());
    }
}
