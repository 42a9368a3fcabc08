//! Which sockets are shown: the filters of ss(8).
//!
//! States first (`state` and `exclude`), then an expression. A state may stand in the expression as well, which ss has not.

use std::fs;
use std::net::Ipv4Addr;

use knet::expression::{Expression, Term, Words};
use serde_json::Value;

use crate::print::{number, text};

/// A checked filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Filter {
    states: Option<Vec<&'static str>>,
    expression: Option<Expression<Test>>,
}

/// One question about a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Test {
    State(Vec<&'static str>),
    Address(Side, Ipv4Addr, u8),
    Port(Side, Comparison, u16),
    /// A host of any address and port.
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Source,
    Destination,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Every state, by the names that ss shows.
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

/// What ss calls minisockets.
const BUCKET: [&str; 2] = ["SYN-RECV", "TIME-WAIT"];

fn all_but(not: &[&str]) -> Vec<&'static str> {
    let states = STATES.iter().copied();
    states.filter(|state| !not.contains(state)).collect()
}

fn states(name: &str) -> Result<Vec<&'static str>, String> {
    let upper = name.to_ascii_uppercase();
    Ok(match upper.as_str() {
        "ALL" => all_but(&[]),
        "CONNECTED" => all_but(&["LISTEN", "UNCONN"]),
        "SYNCHRONIZED" => all_but(&["LISTEN", "UNCONN", "SYN-SENT"]),
        "BUCKET" => BUCKET.to_vec(),
        "BIG" => all_but(&BUCKET),
        "ESTABLISHED" => vec!["ESTAB"],
        "LISTENING" => vec!["LISTEN"],
        "CLOSED" | "CLOSE" | "UNCONNECTED" => vec!["UNCONN"],
        "SYN-RCV" => vec!["SYN-RECV"],
        other => match STATES.iter().find(|state| **state == other) {
            Some(state) => vec![*state],
            None => {
                return Err(format!(
                    "no such state: {name}; known: all, connected, synchronized, bucket, big, {}",
                    STATES.join(", ").to_lowercase()
                ));
            }
        },
    })
}

impl Filter {
    /// Reads the words behind the options; `listening` and `all` are those of ss, which say what is shown where no state is
    /// named.
    pub(super) fn parse(text: &str, listening: bool, all: bool) -> Result<Self, String> {
        let mut words = Words::of(text)?;
        let mut named = None;
        loop {
            if words.take(&["state"]) {
                let more = states(&words.value("state")?)?;
                named.get_or_insert_with(Vec::new).extend(more);
            } else if words.take(&["exclude", "excl"]) {
                let less = states(&words.value("exclude")?)?;
                named
                    .get_or_insert_with(|| all_but(&[]))
                    .retain(|state| !less.contains(state));
            } else {
                break;
            }
        }
        if named.is_some() {
            words.take(&["and", "&&", "&"]);
        }
        let expression = Expression::parse(&mut words)?;
        let is_named = expression.as_ref().is_some_and(|expression| {
            expression.names(&|test: &Test| matches!(test, Test::State(_)))
        });
        let states = named.or_else(|| match (listening, all) {
            (_, true) => None,
            _ if is_named => None,
            (true, false) => Some(vec!["LISTEN"]),
            (false, false) => Some(all_but(&["LISTEN", "UNCONN", "TIME-WAIT", "SYN-RECV"])),
        });
        Ok(Self { states, expression })
    }

    /// Whether a socket, as the host tells it, is shown.
    pub(super) fn admits(&self, socket: &Value) -> bool {
        let state = text(socket, "state");
        let in_state = self.states.as_ref();
        in_state.is_none_or(|states| states.contains(&state))
            && self
                .expression
                .as_ref()
                .is_none_or(|expression| expression.holds(&|test: &Test| test.admits(socket)))
    }
}

impl Term for Test {
    const SIDE_BY_SIDE: bool = true;

    fn parse(words: &mut Words) -> Result<Expression<Self>, String> {
        let word = words.value("the filter")?;
        match word.as_str() {
            "state" => Ok(Expression::Is(Self::State(states(&words.value(&word)?)?))),
            "exclude" | "excl" => {
                let is = Expression::Is(Self::State(states(&words.value(&word)?)?));
                Ok(Expression::Not(Box::new(is)))
            }
            "src" | "sport" => Self::end(Side::Source, &word, words),
            "dst" | "dport" => Self::end(Side::Destination, &word, words),
            other => Err(format!(
                "{other}: a filter is made of state, exclude, sport, dport, src, dst, and, or, not and parentheses"
            )),
        }
    }
}

impl Test {
    /// What follows `src`, `dst`, `sport` or `dport`: a comparison, or none, and what the end is compared with.
    fn end(side: Side, name: &str, words: &mut Words) -> Result<Expression<Self>, String> {
        let comparison = Comparison::parse(words);
        let value = words.value(name)?;
        if matches!(name, "sport" | "dport") {
            let port = port(value.trim_start_matches(':'))?;
            return Ok(Expression::Is(Self::Port(side, comparison, port)));
        }
        let host = Self::host(side, &value)?;
        match comparison {
            Comparison::Equal => Ok(host),
            Comparison::NotEqual => Ok(Expression::Not(Box::new(host))),
            _ => Err(format!(
                "{name} is the same or not (=, !=), never more or less"
            )),
        }
    }

    /// `[inet:]ADDRESS[/LEN][:PORT]`, where each of both may be `*` or missing.
    fn host(side: Side, value: &str) -> Result<Expression<Self>, String> {
        let host = value.strip_prefix("inet:").unwrap_or(value);
        let (network, port_text) = host.rsplit_once(':').unwrap_or((host, "*"));
        let address = match network {
            "" | "*" => None,
            _ => {
                let (address, len) = network.split_once('/').unwrap_or((network, "32"));
                let bad = || format!("{value} is no ADDRESS[/LEN][:PORT]");
                let address = address.parse().map_err(|_| bad())?;
                let len = len.parse().ok().filter(|len| *len <= 32).ok_or_else(bad)?;
                Some(Expression::Is(Self::Address(side, address, len)))
            }
        };
        let port = match port_text {
            "*" => None,
            text => Some(Expression::Is(Self::Port(
                side,
                Comparison::Equal,
                port(text)?,
            ))),
        };
        Ok(match (address, port) {
            (Some(address), Some(port)) => Expression::And(Box::new(address), Box::new(port)),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => Expression::Is(Self::Any),
        })
    }

    fn admits(&self, socket: &Value) -> bool {
        match self {
            Self::State(states) => states.contains(&text(socket, "state")),
            Self::Address(side, network, len) => {
                let name = side.of("local", "peer");
                let mask = u32::MAX.checked_shl(32 - u32::from(*len)).unwrap_or(0);
                text(socket, name)
                    .parse::<Ipv4Addr>()
                    .is_ok_and(|address| (address.to_bits() ^ network.to_bits()) & mask == 0)
            }
            Self::Port(side, comparison, port) => {
                let own = number(socket, side.of("local_port", "peer_port"));
                comparison.holds(own, u64::from(*port))
            }
            Self::Any => true,
        }
    }
}

impl Side {
    const fn of(self, source: &'static str, destination: &'static str) -> &'static str {
        match self {
            Self::Source => source,
            Self::Destination => destination,
        }
    }
}

impl Comparison {
    /// Takes a comparison off the words; without one it is `=`.
    fn parse(words: &mut Words) -> Self {
        let names: [(&[&str], Self); 6] = [
            (&["=", "==", "eq"], Self::Equal),
            (&["!=", "ne", "neq"], Self::NotEqual),
            (&["<", "lt"], Self::Less),
            (&["<=", "le", "leq"], Self::LessOrEqual),
            (&[">", "gt"], Self::Greater),
            (&[">=", "ge", "geq"], Self::GreaterOrEqual),
        ];
        let taken = names.iter().find(|(names, _)| words.take(names));
        taken.map_or(Self::Equal, |(_, comparison)| *comparison)
    }

    const fn holds(self, one: u64, other: u64) -> bool {
        match self {
            Self::Equal => one == other,
            Self::NotEqual => one != other,
            Self::Less => one < other,
            Self::LessOrEqual => one <= other,
            Self::Greater => one > other,
            Self::GreaterOrEqual => one >= other,
        }
    }
}

/// A port's number, or the name of its service in services(5).
fn port(text: &str) -> Result<u16, String> {
    if let Ok(port) = text.parse() {
        return Ok(port);
    }
    let services = fs::read_to_string("/etc/services").unwrap_or_default();
    service(&services, text)
        .ok_or_else(|| format!("{text} is no port and no service of /etc/services"))
}

fn service(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (first, place) = (words.next()?, words.next()?);
        let port = place.strip_suffix("/tcp")?;
        let is = first == name || words.any(|alias| alias == name);
        port.parse().ok().filter(|_| is)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn admits(text: &str, socket: &Value) -> bool {
        Filter::parse(text, false, false).unwrap().admits(socket)
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
            "state big sport 80",
            "sport 80",
            "sport = :80",
            "( sport = :80 )",
            "(sport=:80)",
            "dport :40000",
            "dport >= :40000 dport le 40000",
            "dport gt :39999 and dport < 40001",
            "sport != :443",
            "sport neq 443",
            "src 10.1.2.3",
            "src = 10.1.0.0/16",
            "src 10.1.2.3:80",
            "src :80",
            "src inet:10.1.2.3:*",
            "src != 10.9.0.1",
            "dst *:40000",
            "dst *",
            "dst 0.0.0.0/0",
            "exclude time-wait",
            "state listening state estab",
            "sport = :80 or sport = :443",
            "sport = :443 or sport = :80",
            "not sport = :443",
            "! sport = :443",
            "!sport = :443",
            "not ( sport = :443 or dport = :443 )",
            "( sport = :443 or sport = :80 ) and ( dst 10.9.0.0/16 or dst 127.0.0.1 )",
            "not sport = :81 sport = :80",
            // From left to right, as ss does, whatever its manual says.
            "src 1.1.1.1 and sport = :443 or sport = :80",
            "sport 443 || sport 80 && dport 40000",
            "sport 80 state established",
            "sport 443 or not state time-wait",
        ] {
            assert!(admits(yes, &socket), "{yes}");
        }
        for no in [
            "state time-wait",
            "state bucket",
            "exclude established",
            "state connected exclude estab",
            "sport 81",
            "dport 80",
            "sport ne 80",
            "sport < :80",
            "src 10.2.0.0/16",
            "dst 10.9.0.1:1",
            "sport 80 dport 80",
            "state listening",
            "not sport = :80",
            "! ( sport = :80 or sport = :443 )",
            "sport = :80 or sport = :443 and src 1.1.1.1",
            "sport 80 exclude estab",
        ] {
            assert!(!admits(no, &socket), "{no}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for bad in [
            "state",
            "state nothing",
            "exclude",
            "sport",
            "sport x",
            "sport = ",
            "sport 65536",
            "src 300.1.1.1",
            "src 1.1.1.1/33",
            "src > 1.1.1.1",
            "sport 80 or",
            "( sport 80",
            "sport 80 )",
            "not",
            "hello",
        ] {
            assert!(Filter::parse(bad, false, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_choose_states() {
        let shown = |text: &str, listening, all| {
            let filter = Filter::parse(text, listening, all).unwrap();
            let states = STATES.iter().copied();
            let of = |state: &str| json!({"state": state, "local_port": 80});
            states
                .filter(|state| filter.admits(&of(state)))
                .collect::<Vec<_>>()
        };
        let connections = [
            "ESTAB",
            "SYN-SENT",
            "FIN-WAIT-1",
            "FIN-WAIT-2",
            "CLOSE-WAIT",
            "LAST-ACK",
            "CLOSING",
        ];
        assert_eq!(shown("", false, false), connections);
        assert_eq!(shown("sport 80", false, false), connections);
        assert_eq!(shown("", true, false), ["LISTEN"]);
        assert_eq!(shown("", false, true), STATES);
        assert_eq!(shown("state time-wait", false, false), ["TIME-WAIT"]);
        assert_eq!(shown("state time-wait", true, false), ["TIME-WAIT"]);
        // As ss: whoever excludes begins with all.
        assert_eq!(shown("exclude big", false, false), BUCKET);
        assert_eq!(
            shown("sport 81 or state listening", false, false),
            ["LISTEN"]
        );
        assert_eq!(
            shown("not state connected", false, false),
            ["UNCONN", "LISTEN"]
        );
    }

    #[test]
    fn a_service_is_its_tcp_port() {
        let services = "# name port\ndomain\t53/udp\nhttp\t80/tcp\twww # the web\nbad\n";
        assert_eq!(service(services, "http"), Some(80));
        assert_eq!(service(services, "www"), Some(80));
        assert_eq!(service(services, "domain"), None);
        assert_eq!(service(services, "web"), None);
    }
}
