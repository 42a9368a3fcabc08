//! Receive-side scaling: the hash by which a port spreads flows over its queues, computed as the port does.
//!
//! The Toeplitz hash of Microsoft's "RSS hashing types" over source, destination and both TCP ports, and an indirection table in
//! which entry `i` names queue `i % queues`. A port that is given the key and that table agrees with what is computed here.

use core::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of a key. Ports take 40 (most) or 52 (Intel's from 700 on) of them; the hash of an IPv4 flow uses 16.
pub const KEY_BYTES: usize = super::plugin_abi::RSS_KEY_BYTES;
/// Bytes that are hashed: two addresses, two ports.
const INPUT_BYTES: usize = 12;
/// Entries of the indirection table where no port says another number.
pub const TABLE_ENTRIES: u32 = 128;

/// The hash under one key, as a table for each byte of the input.
pub struct Toeplitz {
    tables: Box<[[u32; 256]; INPUT_BYTES]>,
}

impl core::fmt::Debug for Toeplitz {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Toeplitz").finish_non_exhaustive()
    }
}

impl Toeplitz {
    /// The hash under `key`.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        let mut tables = Box::new([[0; 256]; INPUT_BYTES]);
        for (at, table) in tables.iter_mut().enumerate() {
            for (byte, hash) in (0_u8..=255).zip(table) {
                for bit in 0..8 {
                    if byte & (0x80 >> bit) != 0 {
                        *hash ^= window(key, at * 8 + bit);
                    }
                }
            }
        }
        Self { tables }
    }

    /// The hash of a packet from `source` to `destination`.
    #[must_use]
    pub fn hash(&self, source: SocketAddrV4, destination: SocketAddrV4) -> u32 {
        let [a, b, c, d] = source.ip().octets();
        let [e, f, g, h] = destination.ip().octets();
        let [i, j] = source.port().to_be_bytes();
        let [k, l] = destination.port().to_be_bytes();
        let input = [a, b, c, d, e, f, g, h, i, j, k, l];
        self.tables
            .iter()
            .zip(input)
            .fold(0, |hash, (table, byte)| {
                hash ^ table.get(usize::from(byte)).copied().unwrap_or(0)
            })
    }
}

/// The 32 bits of the key from bit `at` on.
fn window(key: &[u8; KEY_BYTES], at: usize) -> u32 {
    let mut bits = 0_u64;
    for byte in key.iter().skip(at / 8).take(5) {
        bits = bits << 8 | u64::from(*byte);
    }
    // Five bytes are 40 bits, of which those before and behind the window fall off.
    u32::try_from(bits >> (8 - at % 8) & 0xffff_ffff).unwrap_or(0)
}

/// A random key under which ports that follow each other, as the ports of one client do, lead to different queues. The hash is linear:
/// under one key in sixteen, sixteen ports in a row lead to one of two queues. `draw` gives random bytes.
///
/// # Errors
/// What `draw` says.
pub fn spreading_key<E>(
    mut draw: impl FnMut() -> Result<[u8; KEY_BYTES], E>,
) -> Result<[u8; KEY_BYTES], E> {
    let mut key = draw()?;
    for _ in 0..DRAWS {
        if spreads(&key) {
            break;
        }
        key = draw()?;
    }
    Ok(key)
}

/// About one key in a hundred will do.
const DRAWS: u32 = 10_000;

/// Whether eight ports that are 1, 2 or 4 apart lead to eight queues, at either end.
fn spreads(key: &[u8; KEY_BYTES]) -> bool {
    LOWEST_BITS.iter().all(|lowest| {
        (0..3).all(|step| {
            let [a, b, c] = [0, 1, 2].map(|bit| window(key, lowest - step - bit) & 7);
            // No sum of some of them is nothing.
            ![a, b, c, a ^ b, a ^ c, b ^ c, a ^ b ^ c].contains(&0)
        })
    })
}

/// Where the lowest bit of each port lies in what is hashed.
const LOWEST_BITS: [usize; 2] = [79, 95];

/// The queue that a hash leads to, by an indirection table of `entries` entries (a power of two).
#[must_use]
pub const fn queue_of(hash: u32, entries: u32, queues: u32) -> u32 {
    (hash & entries.saturating_sub(1)) % if queues == 0 { 1 } else { queues }
}

/// Both ends of the TCP segment in an Ethernet frame: source, then destination. None when it is none, or a fragment, whose ports
/// are not in every part.
#[must_use]
pub fn tcp_ends(frame: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4)> {
    ends_of_packet(frame.get(packet_at(frame)?..)?)
}

/// As [`tcp_ends`] of an IPv4 packet, of which only the first 8 bytes behind the header need be there.
#[must_use]
pub fn ends_of_packet(packet: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4)> {
    let (head, _) = packet.split_first_chunk::<20>()?;
    let [version, _, _, _, _, _, f, g, _, protocol, _, _, rest @ ..] = *head;
    // More fragments, or an offset (RFC 791 section 3.1).
    let is_fragment = f & 0x3f != 0 || g != 0;
    if version >> 4 != 4 || protocol != TCP || is_fragment {
        return None;
    }
    let ports = packet.get(usize::from(version & 0xf) * 4..)?;
    let [i, j, k, l] = *ports.first_chunk::<4>()?;
    let [a, b, c, d, e, f, g, h] = rest;
    let end = |address: [u8; 4], port: [u8; 2]| {
        SocketAddrV4::new(Ipv4Addr::from(address), u16::from_be_bytes(port))
    };
    Some((end([a, b, c, d], [i, j]), end([e, f, g, h], [k, l])))
}

/// Where the IPv4 packet of a frame begins; None for what carries none.
#[must_use]
pub fn packet_at(frame: &[u8]) -> Option<usize> {
    match (ether_type(frame, 12)?, ether_type(frame, 16)) {
        (IPV4, _) => Some(14),
        (VLAN, Some(IPV4)) => Some(18),
        _ => None,
    }
}

/// Whether a frame carries ARP.
#[must_use]
pub fn is_arp(frame: &[u8]) -> bool {
    match ether_type(frame, 12) {
        Some(ARP) => true,
        Some(VLAN) => ether_type(frame, 16) == Some(ARP),
        _ => false,
    }
}

fn ether_type(frame: &[u8], at: usize) -> Option<u16> {
    let [high, low] = *frame.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes([high, low]))
}

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const TCP: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the IPv4 rows of Microsoft's "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn known() -> Toeplitz {
        let mut key = [0; KEY_BYTES];
        key[..40].copy_from_slice(&KEY);
        Toeplitz::new(&key)
    }

    #[test]
    fn the_hash_is_the_one_that_ports_compute() {
        let hash = known();
        for (source, destination, wanted) in [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
            ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
            ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f),
            ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2),
        ] {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(hash.hash(source, destination), wanted);
        }
    }

    #[test]
    fn flows_are_spread_evenly() {
        let hash = known();
        for queues in 1..=8 {
            let mut counts = vec![0_u32; queues as usize];
            for port in 0..8_000 {
                let source = SocketAddrV4::new([10, 0, 0, 2].into(), 20_000 + port);
                let to = SocketAddrV4::new([10, 0, 0, 1].into(), 80);
                let queue = queue_of(hash.hash(source, to), TABLE_ENTRIES, queues);
                counts[queue as usize] += 1;
            }
            let even = 8_000 / queues;
            for count in counts {
                assert!(
                    (even * 8 / 10..=even * 12 / 10).contains(&count),
                    "{count} of {even}"
                );
            }
        }
    }

    #[test]
    fn ports_that_follow_each_other_lead_to_all_queues() {
        let mut random = crate::seeded::Seeded::new(1);
        for _ in 0..20 {
            let draw = || Ok::<_, ()>([(); KEY_BYTES].map(|()| random.byte()));
            let hash = Toeplitz::new(&spreading_key(draw).unwrap());
            for (queues, step) in [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (8, 4)] {
                let mut counts = vec![0; queues as usize];
                for number in 0..8 {
                    // As many as differ in three bits only.
                    let near = SocketAddrV4::new([10, 0, 0, 2].into(), 40_000 + number * step);
                    let far = SocketAddrV4::new([10, 0, 0, 1].into(), 80);
                    for hash in [hash.hash(near, far), hash.hash(far, near)] {
                        counts[queue_of(hash, TABLE_ENTRIES, queues) as usize] += 1;
                    }
                }
                let even = 16 / queues;
                assert!(counts.iter().all(|&count| count == even), "{counts:?}");
            }
        }
    }

    fn frame(vlan: bool, fragment: u8, protocol: u8) -> Vec<u8> {
        let mut frame = vec![2; 12];
        if vlan {
            frame.extend([0x81, 0, 0, 5]);
        }
        frame.extend([8, 0, 0x46, 0, 0, 44, 0, 1, fragment, 0, 64, protocol, 0, 0]);
        frame.extend([10, 0, 0, 2, 10, 0, 0, 1, 1, 1, 1, 1]);
        frame.extend([0x9c, 0x40, 0, 80]);
        frame
    }

    #[test]
    fn ends_are_found_behind_tags_and_options_and_not_in_fragments() {
        let ends = Some((
            "10.0.0.2:40000".parse().unwrap(),
            "10.0.0.1:80".parse().unwrap(),
        ));
        for vlan in [false, true] {
            assert_eq!(tcp_ends(&frame(vlan, 0x40, 6)), ends);
            assert_eq!(tcp_ends(&frame(vlan, 0x20, 6)), None);
            assert_eq!(tcp_ends(&frame(vlan, 0, 17)), None);
            let whole = frame(vlan, 0, 6);
            for len in 0..whole.len() {
                assert_eq!(tcp_ends(&whole[..len]), None);
            }
        }
        let mut arp = frame(true, 0, 6);
        arp[16..18].copy_from_slice(&[8, 6]);
        assert!(is_arp(&arp) && tcp_ends(&arp).is_none());
        assert!(!is_arp(&arp[..13]));
    }
}
