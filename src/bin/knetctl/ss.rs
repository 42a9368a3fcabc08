//! `knetctl ss`: the sockets on the stack, as ss(8) shows the kernel's.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::USAGE;
use crate::host::{Hosts, UNAVAILABLE};
use crate::print::{self, number, plain, text};
use crate::process;

/// Shows the sockets on the stack as ss(8) does those of the kernel.
///
/// FILTER, all parts of which must hold: `state STATE` and `exclude STATE` (a name of ss(8), or all, connected,
/// synchronized, listening), `sport PORT`, `dport PORT`, `src ADDRESS[/LEN][:PORT]`, `dst ADDRESS[/LEN][:PORT]`; an `=`
/// or `and` between the words is passed over. Without a filter and without -a or -l, connections are shown.
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
        let filter = match Filter::parse(&self.filter) {
            Ok(filter) => filter.or_default(self.listening, self.all),
            Err(fault) => {
                eprintln!("knetctl: ss: {fault}");
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

/// What is shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Filter {
    states: Option<Vec<&'static str>>,
    excluded: Vec<&'static str>,
    source: Vec<End>,
    destination: Vec<End>,
}

/// An endpoint that a socket's must match.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct End {
    network: Option<(Ipv4Addr, u8)>,
    port: Option<u16>,
}

/// Every state, by the names of ss(8).
const STATES: [&str; 11] = [
    "ESTAB",
    "SYN-SENT",
    "SYN-RECV",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "UNCONN",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
];

/// What ss shows by default: connections.
const CONNECTIONS: [&str; 7] = [
    "ESTAB",
    "SYN-SENT",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "CLOSE-WAIT",
    "LAST-ACK",
    "CLOSING",
];

fn states(name: &str) -> Result<Vec<&'static str>, String> {
    let upper = name.to_ascii_uppercase();
    let without = |not: &[&str]| {
        let all = STATES.iter().copied();
        Ok(all.filter(|state| !not.contains(state)).collect())
    };
    match upper.as_str() {
        "ALL" => without(&[]),
        "CONNECTED" => without(&["LISTEN", "UNCONN"]),
        "SYNCHRONIZED" => without(&["LISTEN", "UNCONN", "SYN-SENT"]),
        "ESTABLISHED" => Ok(vec!["ESTAB"]),
        "LISTENING" => Ok(vec!["LISTEN"]),
        "CLOSED" => Ok(vec!["UNCONN"]),
        other => STATES
            .iter()
            .find(|state| **state == other)
            .map(|state| vec![*state])
            .ok_or_else(|| {
                format!(
                    "no such state: {name}; known: {}",
                    STATES.join(", ").to_lowercase()
                )
            }),
    }
}

impl Filter {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut filter = Self::default();
        let mut words = words
            .iter()
            .flat_map(|word| word.split_whitespace())
            .filter(|word| !matches!(*word, "=" | "==" | "eq" | "and" | "(" | ")"));
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word {
                "state" => {
                    let more = states(value()?)?;
                    filter.states.get_or_insert_with(Vec::new).extend(more);
                }
                "exclude" => filter.excluded.extend(states(value()?)?),
                "sport" => filter.source.push(End::of_port(value()?)?),
                "dport" => filter.destination.push(End::of_port(value()?)?),
                "src" => filter.source.push(End::parse(value()?)?),
                "dst" => filter.destination.push(End::parse(value()?)?),
                other => {
                    return Err(format!(
                        "{other}: a filter is made of state, exclude, sport, dport, src and dst"
                    ));
                }
            }
        }
        Ok(filter)
    }

    /// With the states that the options stand for.
    fn or_default(mut self, listening: bool, all: bool) -> Self {
        if self.states.is_none() && !all {
            self.states = Some(if listening {
                vec!["LISTEN"]
            } else {
                CONNECTIONS.to_vec()
            });
        }
        self
    }

    fn admits(&self, socket: &Value) -> bool {
        let state = text(socket, "state");
        let end = |address: &str, port: &str| {
            let address = text(socket, address).parse::<Ipv4Addr>().ok();
            (address, u16::try_from(number(socket, port)).unwrap_or(0))
        };
        let (local, peer) = (end("local", "local_port"), end("peer", "peer_port"));
        self.states
            .as_ref()
            .is_none_or(|states| states.contains(&state))
            && !self.excluded.contains(&state)
            && self.source.iter().all(|end| end.admits(local))
            && self.destination.iter().all(|end| end.admits(peer))
    }
}

impl End {
    fn of_port(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix(':').unwrap_or(text);
        let port = number.parse().map_err(|_| format!("{text} is no port"))?;
        Ok(Self {
            network: None,
            port: Some(port),
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (network, port) = match text.rsplit_once(':') {
            Some((network, port)) => (network, Self::of_port(port)?.port),
            None => (text, None),
        };
        if matches!(network, "" | "*") {
            return Ok(Self {
                network: None,
                port,
            });
        }
        let (address, len) = network.split_once('/').unwrap_or((network, "32"));
        let bad = || format!("{text} is no ADDRESS[/LEN][:PORT]");
        let address = address.parse().map_err(|_| bad())?;
        let len = len.parse().ok().filter(|len| *len <= 32).ok_or_else(bad)?;
        Ok(Self {
            network: Some((address, len)),
            port,
        })
    }

    fn admits(self, (address, port): (Option<Ipv4Addr>, u16)) -> bool {
        let inside = self.network.is_none_or(|(network, len)| {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            address.is_some_and(|address| (address.to_bits() ^ network.to_bits()) & mask == 0)
        });
        inside && self.port.is_none_or(|wanted| wanted == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Result<Filter, String> {
        Filter::parse(&[text.to_owned()])
    }

    fn admits(text: &str, socket: &Value) -> bool {
        filter(text).unwrap().admits(socket)
    }

    #[test]
    fn filters_mean_what_they_mean_to_ss() {
        let socket = json!({"state": "ESTAB", "local": "10.1.2.3", "local_port": 80, "peer": "10.9.0.1",
            "peer_port": 40_000});
        for yes in [
            "",
            "state established",
            "state all",
            "state connected and sport = :80",
            "sport 80",
            "dport :40000",
            "src 10.1.2.3",
            "src 10.1.0.0/16",
            "src 10.1.2.3:80",
            "dst *:40000",
            "dst 0.0.0.0/0",
            "exclude time-wait",
            "state listening state estab",
        ] {
            assert!(admits(yes, &socket), "{yes}");
        }
        for no in [
            "state time-wait",
            "exclude established",
            "sport 81",
            "dport 80",
            "src 10.2.0.0/16",
            "dst 10.9.0.1:1",
            "sport 80 dport 80",
            "state listening",
        ] {
            assert!(!admits(no, &socket), "{no}");
        }
        for bad in [
            "state",
            "state nothing",
            "sport x",
            "src 300.1.1.1",
            "src 1.1.1.1/33",
            "hello",
        ] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_choose_states() {
        let listen = json!({"state": "LISTEN"});
        let resting = json!({"state": "TIME-WAIT"});
        let plain = filter("").unwrap();
        assert!(!plain.clone().or_default(false, false).admits(&listen));
        assert!(!plain.clone().or_default(false, false).admits(&resting));
        assert!(plain.clone().or_default(true, false).admits(&listen));
        assert!(plain.clone().or_default(false, true).admits(&listen));
        assert!(plain.or_default(false, true).admits(&resting));
        assert!(
            filter("state time-wait")
                .unwrap()
                .or_default(false, false)
                .admits(&resting)
        );
    }
}
