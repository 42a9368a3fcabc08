//! The stack alone on the in-memory device: what one request and its answer cost with 1 to 1 000 000 open flows.
//!
//! A request of 64 bytes comes in, an answer of 64 bytes goes out, flow after flow in random order, in bursts of 32. Measured
//! is what an lcore does for it: receive and ingress, changes, facts, send, consumed, expire, transmit and flush. What the peer
//! does is not. Sizes take turns, so that whatever else the machine does hits all of them.
//!
//! ```text
//! cargo bench --bench flows -- --flows 100,100000 --rounds 5
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*serve_burst*' target/release/deps/flows-* --flows 100 --rounds 1
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock, prints, and stops at the first surprise"
)]

#[path = "flows/host.rs"]
mod host;
#[path = "flows/peer.rs"]
mod peer;

use std::time::Instant as Clock;

use host::Host;
use peer::Peer;

/// Frames of one burst, and so requests.
const BURST: usize = 32;
/// Bytes of a request and of an answer.
const MESSAGE: usize = 64;

#[derive(Debug)]
struct Options {
    flows: Vec<usize>,
    rounds: usize,
    transactions: usize,
    prefetch: bool,
}

impl Options {
    fn parse() -> Self {
        let mut options = Self {
            flows: vec![1, 100, 1_000, 10_000, 100_000],
            rounds: 5,
            transactions: 200_000,
            prefetch: true,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("the option needs a value");
            match word.as_str() {
                "--flows" => {
                    options.flows = value().split(',').map(|n| n.parse().unwrap()).collect();
                }
                "--rounds" => options.rounds = value().parse().unwrap(),
                "--transactions" => options.transactions = value().parse().unwrap(),
                "--prefetch" => options.prefetch = value() == "on",
                // cargo bench adds it.
                "--bench" => {}
                other => panic!("no option {other}"),
            }
        }
        options
    }
}

/// One size: a stack with so many flows, and the peer that asks.
struct Size {
    flows: usize,
    host: Host,
    peer: Peer,
}

impl Size {
    fn new(flows: usize, options: &Options) -> Self {
        let mut host = Host::new(flows);
        let mut peer = Peer::new(flows, host.take_peer());
        peer.open_all(&mut host);
        // A first pass touches every ring and buffer once.
        let mut size = Self { flows, host, peer };
        size.host.prefetch(options.prefetch);
        size.run(flows.max(BURST));
        size
    }

    /// Nanoseconds a transaction: the median burst of `transactions`.
    fn run(&mut self, transactions: usize) -> f64 {
        let burst = BURST.min(self.flows);
        let bursts = transactions.div_ceil(burst);
        let mut times = Vec::with_capacity(bursts);
        for _ in 0..bursts {
            self.peer.ask(burst);
            let begin = Clock::now();
            let served = host::serve_burst(&mut self.host);
            times.push(begin.elapsed());
            assert_eq!(served, burst, "a request was lost");
            self.peer.hear(burst);
        }
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e9 / burst as f64
    }
}

fn main() {
    let options = Options::parse();
    let mut sizes: Vec<Size> = options
        .flows
        .iter()
        .map(|flows| Size::new(*flows, &options))
        .collect();
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); sizes.len()];
    for _ in 0..options.rounds {
        for (size, values) in sizes.iter_mut().zip(&mut rounds) {
            values.push(size.run(options.transactions));
        }
    }
    for (size, values) in sizes.iter().zip(&rounds) {
        let list: Vec<String> = values.iter().map(|ns| format!("{ns:.1}")).collect();
        println!(
            "{{\"flows\": {}, \"prefetch\": {}, \"transactions\": {}, \"table_bytes\": {}, \"ns\": [{}]}}",
            size.flows,
            options.prefetch,
            options.rounds * options.transactions,
            size.host.table_bytes(),
            list.join(", ")
        );
    }
}
