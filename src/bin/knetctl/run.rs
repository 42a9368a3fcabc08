//! `knetctl run`: starts one program with the library preloaded.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use knet::preflight::install::{FRAME, Places};

use crate::program::{self, Missing, Obstacle};

/// As env(1): the tool itself failed.
const FAILED: u8 = 125;
/// As env(1): the program is there but cannot be started.
const NOT_EXECUTABLE: u8 = 126;
/// As env(1): the program is not there.
const NOT_FOUND: u8 = 127;

/// Runs a program with its TCP on the stack.
///
/// Exit status: the program's own; 125 the library is not found, 126 the program cannot be started, 127 it is not
/// found, 64 wrong usage.
#[derive(clap::Args, Debug)]
pub(crate) struct Run {
    /// The config of this run (KNET_CONF) [default: $KNET_CONF, else /etc/knet/knet_comm.conf]
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

impl Run {
    /// Replaces this process by the program; comes back only when that fails.
    pub(crate) fn execute(self) -> ExitCode {
        let Some((name, arguments)) = self.command.split_first() else {
            return ExitCode::from(FAILED);
        };
        let shown = name.to_string_lossy();
        let library = match Places::of_this_process() {
            Ok(places) => places.frame(),
            Err(error) => {
                complain!("knetctl: cannot tell where it lies itself: {error}");
                return ExitCode::from(FAILED);
            }
        };
        let Some(library) = library else {
            complain!(
                "knetctl: {FRAME} is neither beside knetctl nor in /usr/lib64: install the package"
            );
            return ExitCode::from(FAILED);
        };
        let path = std::env::var_os("PATH");
        let program = match program::find(name, path.as_deref()) {
            Ok(program) => program,
            Err(Missing::NotFound) => {
                complain!("knetctl: {shown}: there is no such program");
                return ExitCode::from(NOT_FOUND);
            }
            Err(Missing::NotExecutable(path)) => {
                complain!("knetctl: {}: is not an executable file", path.display());
                return ExitCode::from(NOT_EXECUTABLE);
            }
        };
        match program::obstacle(&program) {
            None | Some(Obstacle::OwnWait(_)) if program::is_go(&program) => complain!(
                "knetctl: {shown} is a Go program: it makes its system calls itself, it runs on kernel sockets"
            ),
            None => {}
            Some(Obstacle::OwnWait(call)) => complain!(
                "knetctl: {shown} waits for sockets by system calls of its own ({call}): it runs on kernel sockets"
            ),
            Some(Obstacle::Static) => complain!(
                "knetctl: {shown} is linked statically: nothing can be preloaded, it runs on kernel sockets"
            ),
            Some(Obstacle::Foreign) => complain!(
                "knetctl: {shown} is for another machine type than the library: it runs on kernel sockets"
            ),
            Some(Obstacle::Privileged(why)) => complain!(
                "knetctl: {shown} has {why}: the loader ignores LD_PRELOAD paths for it, it runs on kernel sockets (use a copy without, or the service)"
            ),
        }
        let mut command = Command::new(&program);
        command.arg0(name).args(arguments);
        command.env(
            "LD_PRELOAD",
            preload(std::env::var_os("LD_PRELOAD"), library.as_os_str()),
        );
        if let Some(conf) = self.conf {
            // The program may change its folder before the host opens the file.
            match std::path::absolute(&conf) {
                Ok(conf) => command.env("KNET_CONF", conf),
                Err(error) => {
                    complain!("knetctl: {}: {error}", conf.display());
                    return ExitCode::from(FAILED);
                }
            };
        }
        let error = command.exec();
        complain!("knetctl: {}: {error}", program.display());
        ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
            NOT_FOUND
        } else {
            NOT_EXECUTABLE
        })
    }
}

/// LD_PRELOAD with the library behind what is there, once.
fn preload(present: Option<OsString>, library: &OsStr) -> OsString {
    let Some(mut list) = present.filter(|list| !list.is_empty()) else {
        return library.to_owned();
    };
    // ld.so(8): spaces and colons separate.
    let bytes = list.as_encoded_bytes();
    if bytes
        .split(|byte| b": ".contains(byte))
        .any(|entry| entry == library.as_encoded_bytes())
    {
        return list;
    }
    list.push(":");
    list.push(library);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_behind_what_is_preloaded() {
        let library = OsStr::new("/usr/lib64/libknet_frame.so");
        let with = |present: &str| preload(Some(OsString::from(present)), library);
        assert_eq!(preload(None, library), library);
        assert_eq!(with(""), library);
        assert_eq!(with("/a.so"), "/a.so:/usr/lib64/libknet_frame.so");
        assert_eq!(
            with("/a.so:/usr/lib64/libknet_frame.so"),
            "/a.so:/usr/lib64/libknet_frame.so"
        );
    }
}
