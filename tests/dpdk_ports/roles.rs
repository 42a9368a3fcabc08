//! Cases of several processes: a vhost end, and peers that come one after the other. Each is this test binary, and has a role.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::wait_until;

/// What a process of a case is.
const ROLE: &str = "KNET_TEST_ROLE";
/// The socket between them.
const SOCKET: &str = "KNET_TEST_VHOST";

/// The role of this process and its socket, where it is one of several.
pub(super) fn ours() -> Option<(String, String)> {
    Some((std::env::var(ROLE).ok()?, std::env::var(SOCKET).ok()?))
}

/// The vhost end of a case; it ends with this.
pub(super) struct Process {
    case: &'static str,
    child: Child,
    socket: PathBuf,
}

impl Process {
    /// Starts the role `vhost` of the case, and waits until it listens.
    pub(super) fn vhost(case: &'static str) -> Self {
        let socket = format!("r{}", std::process::id());
        let socket = Path::new(env!("CARGO_TARGET_TMPDIR")).join(socket);
        let vhost = Self {
            case,
            child: start(case, "vhost", &socket),
            socket,
        };
        wait_until("the vhost end listens", || vhost.socket.exists());
        vhost
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs a peer of this role to its end, which has to be a good one.
    pub(super) fn peer(&self, role: &str) {
        let status = start(self.case, role, &self.socket).wait().unwrap();
        assert!(status.success(), "the peer that {role}: {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // It was killed, so it could not remove its socket.
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn start(case: &str, role: &str, socket: &Path) -> Child {
    use rustix::process::{Signal, set_parent_process_death_signal};
    use std::os::unix::process::CommandExt as _;

    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([case, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(SOCKET, socket);
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command.spawn().unwrap()
}
