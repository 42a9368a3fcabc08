//! Changes of header fields in a finished IPv4 packet, with incremental checksums (RFC 1624).
//!
//! The packets are the stack's own, made by smoltcp, or a received SYN. A change that does not fit
//! the bytes is refused, never made by half.

use super::checksum;
use super::frame::{Checksums, Ipv4Header, PROTOCOL_TCP, TCP_HEADER_BYTES, put_word, word_at};
use super::header_option::{HeaderOption, TCP_OPTION_MSS};

const IPV4_CHECKSUM: usize = 10;
const TCP_WINDOW: usize = 14;
const TCP_CHECKSUM: usize = 16;

/// Sets type of service. `packet` begins at its IPv4 header; None when it is no IPv4 packet.
#[must_use = "None means that nothing was changed"]
pub fn set_tos(packet: &mut [u8], tos: u8, checksums: Checksums) -> Option<()> {
    Ipv4Header::parse(packet).ok()?;
    let [version_ihl, _] = word_at(packet, 0)?.to_be_bytes();
    replace(
        packet,
        0,
        u16::from_be_bytes([version_ihl, tos]),
        IPV4_CHECKSUM,
        checksums,
    )
}

/// Sets time to live. `packet` begins at its IPv4 header; None when it is no IPv4 packet.
#[must_use = "None means that nothing was changed"]
pub fn set_ttl(packet: &mut [u8], ttl: u8, checksums: Checksums) -> Option<()> {
    Ipv4Header::parse(packet).ok()?;
    let [_, protocol] = word_at(packet, 8)?.to_be_bytes();
    replace(
        packet,
        8,
        u16::from_be_bytes([ttl, protocol]),
        IPV4_CHECKSUM,
        checksums,
    )
}

/// Sets the window field of a TCP segment. `packet` begins at its IPv4 header; None when it is no
/// TCP segment.
#[must_use = "None means that nothing was changed"]
pub fn set_window(packet: &mut [u8], window: u16, checksums: Checksums) -> Option<()> {
    let segment = tcp_segment(packet)?;
    replace(segment, TCP_WINDOW, window, TCP_CHECKSUM, checksums)
}

/// Lowers the MSS option to `limit` and returns the value that then stands there; None when the
/// packet is no TCP segment, its options are malformed, or it has no such option.
#[must_use]
pub fn clamp_mss(packet: &mut [u8], limit: u16, checksums: Checksums) -> Option<u16> {
    let segment = tcp_segment(packet)?;
    let at = mss_value_at(segment)?;
    let mss = word_at(segment, at)?;
    if mss <= limit {
        return Some(mss);
    }
    if checksums == Checksums::Full {
        let sum = word_at(segment, TCP_CHECKSUM)?;
        // An option may begin anywhere; the sum pairs octets by their distance from the header's
        // start.
        let updated = if at % 2 == 0 {
            checksum::update(sum, mss, limit)
        } else {
            checksum::update(sum, mss.swap_bytes(), limit.swap_bytes())
        };
        put_word(segment, TCP_CHECKSUM, updated)?;
    }
    put_word(segment, at, limit)?;
    Some(limit)
}

/// The TCP segment of `packet`, at least a fixed header long.
fn tcp_segment(packet: &mut [u8]) -> Option<&mut [u8]> {
    let header = Ipv4Header::parse(packet).ok()?;
    if header.protocol != PROTOCOL_TCP || header.fragment_offset != 0 {
        return None;
    }
    let segment = packet.get_mut(header.header_bytes..header.total_bytes)?;
    (segment.len() >= TCP_HEADER_BYTES).then_some(segment)
}

/// Offset in `segment` of the value of its first well-formed MSS option.
fn mss_value_at(segment: &[u8]) -> Option<usize> {
    let header_bytes = usize::from(segment.get(12)? >> 4) * 4;
    let mut options = segment.get(TCP_HEADER_BYTES..header_bytes)?;
    while let Some(option) = HeaderOption::next(options).ok()? {
        if option.kind == TCP_OPTION_MSS && option.value.len() == 2 {
            return Some(header_bytes - option.rest.len() - 2);
        }
        options = option.rest;
    }
    None
}

/// Replaces the word at the even offset `at`; the checksum at `sum_at` follows unless the port
/// makes it.
fn replace(
    bytes: &mut [u8],
    at: usize,
    new: u16,
    sum_at: usize,
    checksums: Checksums,
) -> Option<()> {
    let old = word_at(bytes, at)?;
    let sum = word_at(bytes, sum_at)?;
    put_word(bytes, at, new)?;
    if checksums == Checksums::Full {
        put_word(bytes, sum_at, checksum::update(sum, old, new))?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::seeded::Seeded;
    use crate::stack::frame::Ipv4Repr;

    /// A TCP packet with right checksums.
    fn packet(options: &[u8], payload: &[u8]) -> Vec<u8> {
        let offset = u8::try_from((20 + options.len()) / 4).unwrap() << 4;
        let mut segment = vec![
            0x18, 0xeb, 0x9c, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, offset, 2, 0x20, 0, 0, 0, 0, 0,
        ];
        segment.extend_from_slice(options);
        segment.extend_from_slice(payload);
        let repr = Ipv4Repr {
            tos: 0,
            ttl: 64,
            protocol: PROTOCOL_TCP,
            source: Ipv4Addr::new(10, 77, 0, 1),
            destination: Ipv4Addr::new(10, 77, 0, 2),
        };
        let mut packet = vec![0; 20];
        repr.emit(segment.len(), Checksums::Full, &mut packet)
            .unwrap();
        packet.extend_from_slice(&segment);
        let sum = !segment_sum(&packet);
        put_word(&mut packet, 36, sum).unwrap();
        packet
    }

    fn segment_sum(packet: &[u8]) -> u16 {
        let header = Ipv4Header::parse(packet).unwrap();
        let len = u16::try_from(packet.len() - 20).unwrap();
        let pseudo = checksum::pseudo_header(header.source, header.destination, PROTOCOL_TCP, len);
        checksum::add(pseudo, checksum::sum(&packet[20..]))
    }

    fn assert_right(packet: &[u8]) {
        assert!(checksum::verify(&packet[..20]));
        assert_eq!(segment_sum(packet), 0xffff);
    }

    #[test]
    fn changed_fields_leave_right_checksums() {
        let mut random = Seeded::new(6);
        for _ in 0..5_000 {
            let payload: Vec<u8> = (0..random.below(9)).map(|_| random.byte()).collect();
            let mut packet = packet(&[], &payload);
            let (tos, ttl, window) = (random.byte(), random.byte(), random.word());
            set_tos(&mut packet, tos, Checksums::Full).unwrap();
            set_ttl(&mut packet, ttl, Checksums::Full).unwrap();
            set_window(&mut packet, window, Checksums::Full).unwrap();
            assert_right(&packet);
            let header = Ipv4Header::parse(&packet).unwrap();
            assert_eq!(
                (header.tos, header.ttl, word_at(&packet, 34)),
                (tos, ttl, Some(window))
            );
        }
    }

    #[test]
    fn an_mss_is_lowered_at_even_and_odd_offsets() {
        for options in [
            &[2, 4, 0x23, 0x28][..],
            &[1, 2, 4, 0x23, 0x28, 1, 1, 0],
            &[3, 3, 7, 2, 4, 0x23, 0x28, 0],
        ] {
            let mut packet = packet(options, b"");
            assert_eq!(clamp_mss(&mut packet, 9_000, Checksums::Full), Some(9_000));
            assert_right(&packet);
            assert_eq!(clamp_mss(&mut packet, 1_460, Checksums::Full), Some(1_460));
            assert_right(&packet);
            assert_eq!(clamp_mss(&mut packet, 1_461, Checksums::Full), Some(1_460));
            let sum = word_at(&packet, 36);
            assert_eq!(clamp_mss(&mut packet, 536, Checksums::Port), Some(536));
            assert_eq!(
                word_at(&packet, 36),
                sum,
                "the port's checksum field holds no segment bytes"
            );
        }
    }

    #[test]
    fn a_packet_without_a_good_mss_option_is_left_alone() {
        for options in [
            &[][..],
            &[1, 1, 1, 0],
            &[8, 0, 2, 4],
            &[0, 2, 4, 9],
            &[2, 3, 9, 0],
        ] {
            let mut packet = packet(options, b"\x02\x04\x23\x28");
            let before = packet.clone();
            assert_eq!(clamp_mss(&mut packet, 100, Checksums::Full), None);
            assert_eq!(packet, before);
        }
    }

    #[test]
    fn random_and_cut_bytes_are_refused_or_changed_never_more() {
        let mut random = Seeded::new(7);
        for _ in 0..50_000 {
            let mut bytes = packet(&[2, 4, 0xff, 0xff], b"xyz");
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = random.byte();
            }
            bytes.truncate(random.below(bytes.len() + 1));
            let before = bytes.clone();
            let outcomes = [
                set_tos(&mut bytes, 1, Checksums::Full),
                set_ttl(&mut bytes, 2, Checksums::Full),
                set_window(&mut bytes, 3, Checksums::Full),
                clamp_mss(&mut bytes, 4, Checksums::Full).map(|_| ()),
            ];
            assert_eq!(bytes.len(), before.len());
            if outcomes.iter().all(Option::is_none) {
                assert_eq!(bytes, before);
            }
        }
    }
}
