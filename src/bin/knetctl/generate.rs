//! `knetctl generate`: shell completions and manual pages, for whoever makes packages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use knet::config::key::{Effect, Kind};
use knet::config::{self, DEFAULT_PATH};

#[allow(
    dead_code,
    reason = "only the description of the command line is needed here"
)]
#[path = "../knetd/arguments.rs"]
mod knetd;

/// A file could not be written (sysexits.h, EX_CANTCREAT).
const CANNOT_CREATE: u8 = 73;

/// Writes the manual pages and shell completions into a folder.
///
/// man1/knetctl.1 and one page a subcommand, man8/knetd.8, man5/knet_comm.conf.5; completions/knetctl.bash, _knetctl,
/// knetctl.fish, and the same for knetd.
///
/// Exit status: 0 written, 64 wrong usage, 73 a file could not be written.
#[derive(clap::Args, Debug)]
#[command(hide = true)]
pub(crate) struct Generate {
    /// The folder; it is made where it is missing.
    folder: PathBuf,
}

impl Generate {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        match write(&self.folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain!("knetctl: {}: {error}", self.folder.display());
                ExitCode::from(CANNOT_CREATE)
            }
        }
    }
}

fn write(folder: &Path) -> io::Result<()> {
    let sub = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(&path).map(|()| path)
    };
    let (first, fifth, eighth, completions) = (
        sub("man1")?,
        sub("man5")?,
        sub("man8")?,
        sub("completions")?,
    );
    let knetctl = crate::Arguments::command();
    pages(&knetctl, "knetctl", &first)?;
    page(knetd::Arguments::command(), "8", &eighth.join("knetd.8"))?;
    fs::write(fifth.join("knet_comm.conf.5"), config_page())?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(
            shell,
            &mut crate::Arguments::command(),
            "knetctl",
            &completions,
        )?;
        clap_complete::generate_to(
            shell,
            &mut knetd::Arguments::command(),
            "knetd",
            &completions,
        )?;
    }
    Ok(())
}

/// A page for the command and one for each subcommand that is shown.
fn pages(command: &clap::Command, name: &str, folder: &Path) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        // The manual of a subcommand is found by `man knetctl-ss`, and its synopsis says `knetctl ss`.
        let page_name = format!("{name}-{}", sub.get_name());
        let one = sub
            .clone()
            .name(page_name.clone())
            .bin_name(format!("{name} {}", sub.get_name()))
            .version(knet::BUILD_VERSION);
        page(one, "1", &folder.join(format!("{page_name}.1")))?;
    }
    page(command.clone(), "1", &folder.join(format!("{name}.1")))
}

fn page(command: clap::Command, section: &str, path: &Path) -> io::Result<()> {
    let mut out = Vec::new();
    Man::new(command)
        .section(section)
        .source(format!("knet {}", knet::BUILD_VERSION))
        .manual("knet")
        .render(&mut out)?;
    fs::write(path, out)
}

/// knet_comm.conf(5), from the table of keys.
fn config_page() -> String {
    let mut out = format!(
        ".TH knet_comm.conf 5 \"\" \"knet {}\" \"knet\"\n.SH NAME\nknet_comm.conf \\- configuration of knet\n.SH SYNOPSIS\n\
         .B {DEFAULT_PATH}\n.SH DESCRIPTION\nOne JSON file. Comments (//, /* */, #) and trailing commas are accepted. Every key has \
         a default, an unknown key is a fault. The environment variable\n.B KNET_CONF\nnames another file;\n.B knetctl check\nsays \
         what a file would do on this machine. Keys of K-NET are understood with its ranges.\n",
        knet::BUILD_VERSION
    );
    for section in config::sections() {
        out.push_str(&format!(
            ".SH \"SECTION {}\"\n{}\n",
            escape(section.path),
            escape(section.about)
        ));
        for key in section.keys {
            let value = match key.kind {
                Kind::Whole { min, max } => format!("{min} to {max}"),
                Kind::Switch => "true or false".to_owned(),
                Kind::Choice(words) => words.join(", "),
                Kind::Text(form) => form.words.to_owned(),
                Kind::TextList(form) => format!("list of: {}", form.words),
                Kind::WholeList { min, max } => format!("list of: {min} to {max}"),
                Kind::Objects(_) => "list of objects (docs/config.md)".to_owned(),
            };
            let effect = match key.effect {
                Effect::Honoured => String::new(),
                Effect::NoMeaning(why) => format!(" No effect: {why}."),
                Effect::NotServed(instead) => format!(" Not served by this version: {instead}."),
            };
            out.push_str(&format!(
                ".TP\n\\fB{}\\fR (default {})\n{} Value: {}.{}\n",
                escape(key.name),
                escape(key.default),
                escape(key.about),
                escape(&value),
                escape(&effect)
            ));
        }
    }
    out.push_str(".SH SEE ALSO\nknetctl(1), knetd(8)\n");
    out
}

/// Text that roff takes as it stands.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // A line that begins with one of these would be a request.
    if text.starts_with(['.', '\'']) {
        format!("\\&{text}")
    } else {
        text
    }
}
