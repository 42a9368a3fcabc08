//! The page that says what stands behind each name.

use super::{ABNORMAL, BUFFERS, CONNECTIONS, MEMORY, PACKETS, TCP};

/// The page that says what stands behind each name.
pub(super) fn reference() -> String {
    let mut out = String::from(
        "# Telemetry: K-NET's names\n\nMade from the code (`KNET_BLESS=1 cargo test --lib telemetry` writes it anew).\n\n\
         A name of K-NET is the sum of the counters behind it, as `knetctl stats` shows them (`stack.` is left out). A dash says \
         that there is no counterpart here: the name is there and 0.\n",
    );
    for (command, names) in [
        ("tcp_stat", TCP),
        ("pkt_stat", PACKETS),
        ("abn_stat", ABNORMAL),
        ("mem_stat", MEMORY),
        ("pbuf_stat", BUFFERS),
    ] {
        out.push_str(&format!(
            "\n## /knet/stack/{command}\n\n{}| name | counters |\n|---|---|\n",
            words(command)
        ));
        for (name, counters) in names {
            let counters = if counters.is_empty() {
                "-".to_owned()
            } else {
                counters.join(" + ")
            };
            out.push_str(&format!("| {name} | {counters} |\n"));
        }
    }
    out.push_str(&format!(
        "\n## /knet/stack/conn_stat\n\nConnections by state now: PA made by accept, AC by connect. Those in TIME-WAIT all count as \
         PATimeWait, because who made them is forgotten; Abort are those that are over and still read from.\n\n{}\n",
        CONNECTIONS.join(" ")
    ));
    out
}

/// What must be known of a command before its table.
fn words(command: &str) -> &'static str {
    match command {
        "mem_stat" => {
            "Bytes. `InitMem` is what has been taken, `FreeMem` what of it nobody uses now. K-NET's modules are not here; \
             four of them stand for what is like them: Pbuf for the port's buffers (0 where the port has none of its own), Shm for \
             the pages behind the channel, Socket for the rings of the connections among them, Tcp for the engine's send \
             buffers (resident where they were touched). All are the host's, whatever process is named.\n\n"
        }
        "pbuf_stat" => {
            "Bytes lie in rings and not in chained buffers. So they are counted in segments of their connections: \
             `flows.segments_to_send` is what is not acknowledged or not sent, `flows.segments_to_read` what the programs have \
             not read. Neither is among `knetctl stats`, where `knetctl ss` shows them as Send-Q and Recv-Q.\n\n"
        }
        _ => "",
    }
}
