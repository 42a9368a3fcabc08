//! The reference page and the shipped file, made from the table of keys.

use core::fmt::Write;

use super::key::{Effect, Key, Kind, Origin, Section};
use super::raw::SECTIONS;

/// `docs/config.md`.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for section in SECTIONS {
        table(&mut page, section, section.path);
        for key in section.keys {
            if let Kind::Objects(inside) = key.kind {
                table(&mut page, inside, &format!("{}[]", inside.path));
            }
        }
    }
    page.push_str(CLOSING);
    page
}

fn table(page: &mut String, section: &Section, name: &str) {
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## `{name}`\n\n{}\n\n", section.about);
    page.push_str("| key | value | default | from | meaning |\n|---|---|---|---|---|\n");
    for key in section.keys {
        page.push_str(&row(key));
    }
}

fn row(key: &Key) -> String {
    let value = match key.kind {
        Kind::Whole { min, max } if min == max => format!("{min}"),
        Kind::Whole { min, max } => format!("{min} to {max}"),
        Kind::Switch => "true, false".to_owned(),
        Kind::Choice(words) => words.join(", "),
        Kind::Text(form) => form.words.to_owned(),
        Kind::TextList(form) => format!("list of: {}", form.words),
        Kind::WholeList { min, max } => format!("list of: {min} to {max}"),
        Kind::Objects(section) => format!("list of objects, see `{}[]`", section.path),
    };
    let from = match key.origin {
        Origin::Knet => "K-NET",
        Origin::Ours => "ours",
    };
    let effect = match key.effect {
        Effect::Honoured => String::new(),
        Effect::NoMeaning(why) => format!(" *No effect: {why}.*"),
        Effect::NotServed(instead) => format!(" *Not served by this version: {instead}.*"),
    };
    format!(
        "| `{}` | {value} | `{}` | {from} | {}{effect} |\n",
        key.name, key.default, key.about
    )
}

/// `conf/knet_comm.conf`: every key with its default, and K-NET's example port and address.
///
/// Plain JSON, so that any JSON tool reads and edits it.
#[must_use]
pub fn shipped() -> String {
    let mut text = String::from("{\n");
    let tops: Vec<&Section> = SECTIONS
        .iter()
        .filter(|section| section.parent().is_none())
        .collect();
    for (index, section) in tops.iter().enumerate() {
        object(&mut text, section, 1);
        text.push_str(if index + 1 < tops.len() { ",\n" } else { "\n" });
    }
    text.push_str("}\n");
    text
}

fn object(text: &mut String, section: &Section, depth: usize) {
    let margin = "    ".repeat(depth);
    let _ = writeln!(text, "{margin}\"{}\": {{", section.name());
    let nested: Vec<&Section> = SECTIONS
        .iter()
        .filter(|nested| nested.parent() == Some(section.path))
        .collect();
    for (index, key) in section.keys.iter().enumerate() {
        let value = match (section.path, key.name) {
            ("interface", "bdf_nums") => "[\"0000:06:00.0\"]",
            ("interface", "ip") => "\"192.168.1.6\"",
            _ => key.default,
        };
        let comma = if index + 1 < section.keys.len() || !nested.is_empty() {
            ","
        } else {
            ""
        };
        let _ = writeln!(text, "{margin}    \"{}\": {value}{comma}", key.name);
    }
    for (index, nested_section) in nested.iter().enumerate() {
        object(text, nested_section, depth + 1);
        text.push_str(if index + 1 < nested.len() {
            ",\n"
        } else {
            "\n"
        });
    }
    let _ = write!(text, "{margin}}}");
}

const INTRODUCTION: &str = "\
# Configuration

Made from the table of keys in `src/config/raw.rs`; a test compares the two. `KNET_BLESS=1 cargo test --test
config_files` writes this page, `conf/knet_comm.conf` and `conf/schema.json` anew.

The file is `/etc/knet/knet_comm.conf`; `KNET_CONF` names another one (ignored by set-user-id programs). A K-NET file
works as it is. Every key has a default, so the smallest useful file is

```json
{\"interface\": {\"bdf_nums\": [\"0000:04:00.0\"], \"ip\": \"192.168.1.58\"}}
```

- The text is UTF-8 JSON below 64 KiB. Remarks (`# ...`, `// ...`, `/* ... */`), trailing commas, a byte order mark and CRLF
  are accepted. Keys are known in any letter case; the table shows the exact spelling.
- A key written twice, an unknown key, a value of the wrong type or out of range is a fault. All faults of a file are
  reported at once, each with its line, column, JSON path and the range or the nearest known key.
- A fault makes the whole file unusable: programs run on kernel sockets and say so in one line, or are refused with
  `common.on_error` `\"fail\"` when that key itself could be read.
- An empty list, and an empty text where the table allows one, is the same as the key left out.
- `knetctl check [FILE]` shows every fault, and what the file would do on this machine. Its exit codes: 0 all well, 1 faults
  in the file, 2 the file is right but would not run here, 64 wrong usage.
";

const CLOSING: &str = "
## `version`

Ignored, as K-NET does.

## Rules across keys

- Exactly one of `interface.bdf_nums`, `interface.netdev` and `interface.vdevs` names the port, with one entry.
- `interface.ip` or `interface.addresses` is there; at most 8 addresses in all, each once, each a host's unicast address.
- `interface.gateway` and the next hops of `interface.routes` lie inside one of our networks and are not our own address.
- `hw_offload.tso` and `hw_offload.lro` need `hw_offload.tcp_checksum`.
- `def_sendbuf` is at most `max_sendbuf`, `def_recvbuf` at most `max_recvbuf`.
- `max_mbuf` is at least threads * (`tx_cache_size` + `rx_cache_size`) + 2048.
- `dpdk.socket_limit` is not below `dpdk.socket_mem`.
- `cothread_enable` 1 means `\"progress\": \"inline\"`, and contradicts an explicit `\"dedicated\"`; `mode` 1 contradicts `\"inline\"`.
- `common.accelerate.addresses` are addresses of ours; each list has at most 64 entries.

- A rule of `gpu.pipeline` names its kernel; `pattern` has a `patterns_file`, `chacha20` a `key_file`, `user` a `ptx_file` and a
  `function`; `on_match` and what belongs to it are for `pattern` and `user`; `attach` `packet` is for kernels that only read, and `on_match` `drop` and
  `min_payload` need it.
- `\"kernel\": \"user\"` needs a `gpu.mode` with a GPU, or `\"without_gpu\": \"pass\"`, which a function with `writes` must not have.

## Virtual devices

`interface.vdevs` names ours: `knet_pair` (in memory) and `knet_unix,path=P` (frames over an AF_UNIX socket between two hosts of one
machine, no privilege needed; `loss=`, `dup=`, `reorder=`, `delay_us=` and `seed=` make it worse on purpose). Every other name goes to DPDK as
`--vdev=...`, for example `net_af_packet0,iface=veth0`.
";
