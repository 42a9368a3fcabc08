//! `knetctl ss`: the sockets on the stack, as ss(8) shows the kernel's.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::USAGE;
use crate::host::{Hosts, UNAVAILABLE};
use crate::print::{self, number, plain, text};
use crate::process;

#[path = "ss/filter.rs"]
mod filter;

use filter::Filter;

/// Shows the sockets on the stack as ss(8) does those of the kernel.
///
/// FILTER, as there: `state STATE` and `exclude STATE` (a name of ss(8), or all, connected, synchronized, bucket, big), then
/// `sport [OP] PORT`, `dport [OP] PORT`, `src [OP] ADDRESS[/LEN][:PORT]`, `dst [OP] ADDRESS[/LEN][:PORT]`, joined by `and`, `or`
/// and `not` (`!`) with parentheses; what stands side by side must all hold. OP is =, !=, <, <=, > or >=, for addresses = or !=.
/// `and` and `or` bind equally, from left to right. A shell wants parentheses and signs quoted. Without a state and without -a
/// or -l, connections are shown.
///
/// RTT is smoothed, in milliseconds; Cwnd in segments, when the congestion window was in the way last. A dash stands for what is
/// not known: nothing was timed, or the window never held the connection up.
///
/// Exit status: 0 told, 69 no host answers, 64 wrong usage.
#[derive(clap::Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the options of ss(8)")]
pub(crate) struct Ss {
    #[command(flatten)]
    hosts: Hosts,
    /// Listening sockets only.
    #[arg(short, long)]
    listening: bool,
    /// Listening sockets and connections.
    #[arg(short, long)]
    all: bool,
    /// TCP; nothing else is on the stack.
    #[arg(short, long)]
    tcp: bool,
    /// Ports as numbers; they always are.
    #[arg(short, long)]
    numeric: bool,
    /// The processes; they always are shown.
    #[arg(short, long)]
    processes: bool,
    /// One more line a socket with the rest that is known.
    #[arg(short, long)]
    info: bool,
    /// No header.
    #[arg(short = 'H', long)]
    no_header: bool,
    /// One JSON array on stdout, an object a socket.
    #[arg(long)]
    json: bool,
    /// What to show.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

impl Ss {
    /// Runs the command.
    pub(crate) fn execute(self) -> ExitCode {
        let filter = match Filter::parse(&self.filter.join(" "), self.listening, self.all) {
            Ok(filter) => filter,
            Err(fault) => {
                complain!("knetctl: ss: {fault}");
                return ExitCode::from(USAGE);
            }
        };
        let Some(answers) = self.hosts.ask(&json!({"query": "sockets"})) else {
            return ExitCode::from(UNAVAILABLE);
        };
        let mut sockets = Vec::new();
        for (_, lines) in answers {
            let host = lines.first().map_or(0, |host| number(host, "process"));
            sockets.extend(
                lines
                    .into_iter()
                    .skip(1)
                    .filter(|line| filter.admits(line))
                    .map(|mut line| {
                        if let Some(line) = line.as_object_mut() {
                            line.insert("host".to_owned(), json!(host));
                        }
                        line
                    }),
            );
        }
        if self.json {
            print::json(&Value::Array(sockets));
        } else {
            // A closed pipe takes nothing from the answer.
            let _ = print::line(self.table(&sockets).trim_end());
        }
        ExitCode::SUCCESS
    }

    fn table(&self, sockets: &[Value]) -> String {
        let mut rows = Vec::new();
        if !self.no_header {
            let header = [
                "State", "Recv-Q", "Send-Q", "Local", "Peer", "RTT", "Cwnd", "Retr", "Process",
            ];
            rows.push(header.map(str::to_owned).to_vec());
        }
        rows.extend(sockets.iter().map(row));
        let table = print::table(&rows);
        if !self.info {
            return table;
        }
        let mut lines = table.lines();
        let mut out = String::new();
        if !self.no_header {
            out.push_str(lines.next().unwrap_or_default());
            out.push('\n');
        }
        for (line, socket) in lines.zip(sockets) {
            out.push_str(&format!("{line}\n{}", details(socket)));
        }
        out
    }
}

fn row(socket: &Value) -> Vec<String> {
    let endpoint = |address: &str, port: &str| {
        let port = match number(socket, port) {
            0 => "*".to_owned(),
            port => port.to_string(),
        };
        format!("{}:{port}", text(socket, address))
    };
    let rtt = socket.get("rtt_us").and_then(Value::as_u64);
    vec![
        text(socket, "state").to_owned(),
        number(socket, "recv_q").to_string(),
        number(socket, "send_q").to_string(),
        endpoint("local", "local_port"),
        endpoint("peer", "peer_port"),
        rtt.map_or_else(
            || "-".to_owned(),
            |us| format!("{}.{:03}", us / 1_000, us % 1_000),
        ),
        plain(socket.get("cwnd")),
        plain(socket.get("retransmits")),
        users(socket),
    ]
}

/// As ss -p writes it.
fn users(socket: &Value) -> String {
    let fd = socket.get("fd").and_then(Value::as_u64);
    let users: Vec<String> = socket
        .get("processes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|pid| {
            let program = process::name(pid, text(socket, "program"));
            match fd {
                Some(fd) => format!("(\"{program}\",pid={pid},fd={fd})"),
                None => format!("(\"{program}\",pid={pid})"),
            }
        })
        .collect();
    if users.is_empty() {
        return text(socket, "stage").to_owned();
    }
    format!("users:({})", users.join(","))
}

fn details(socket: &Value) -> String {
    const SHOWN: [&str; 9] = [
        "state",
        "recv_q",
        "send_q",
        "local",
        "local_port",
        "peer",
        "peer_port",
        "processes",
        "program",
    ];
    let parts: Vec<String> = socket
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, value)| !SHOWN.contains(&name.as_str()) && !value.is_null())
        .map(|(name, value)| format!("{name}:{}", plain(Some(value))))
        .collect();
    format!("\t {}\n", parts.join(" "))
}
