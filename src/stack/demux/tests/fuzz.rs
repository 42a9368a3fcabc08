//! Frames of any bytes.

use super::*;
use crate::seeded::Seeded;

/// Whatever the class says lies inside the frame.
fn check_places(bytes: &[u8], class: &Class) {
    let len = bytes.len();
    match class {
        Class::Tcp(frame) => {
            assert!(frame.ip.start < frame.tcp && frame.tcp + 20 <= frame.payload);
            assert_eq!(frame.payload + frame.payload_len, frame.ip.end);
            assert!(frame.ip.end <= len);
        }
        Class::Udp(frame) => {
            assert!(frame.payload.start <= frame.payload.end && frame.payload.end <= frame.ip.end);
            assert!(frame.ip.end <= len);
        }
        Class::Icmp(frame) => {
            assert!(
                frame.message.len() >= 8
                    && frame.message.end == frame.ip.end
                    && frame.ip.end <= len
            );
        }
        Class::Arp(place) => assert!(place.start <= place.end && place.end <= len),
        Class::NotOurs(_) | Class::Bad(_) => {}
    }
}

#[test]
fn random_mutated_and_cut_frames_are_always_classified() {
    let mut random = Seeded::new(4);
    let trusting = Rules {
        trust_checksum: true,
        ..rules()
    };
    let mut accepted = 0_u32;
    for round in 0..200_000 {
        let payload = vec![0x55; random.below(40)];
        let options = vec![random.byte(); random.below(11) * 4];
        let mut bytes = match random.below(5) {
            0 => (0..random.below(100)).map(|_| random.byte()).collect(),
            1 => Made::udp(&payload).bytes(),
            2 => Made::icmp(&payload).bytes(),
            _ => Made::tcp(random.byte(), &options, &payload).bytes(),
        };
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] = random.byte();
            }
        }
        bytes.truncate(
            bytes.len() - random.below(bytes.len() + 1) * usize::from(random.below(3) == 0),
        );
        // Repairing the header checksum lets damaged frames reach the later checks.
        if bytes.len() >= 34 && random.below(2) == 0 {
            let header_bytes = (usize::from(bytes[14] & 15) * 4).clamp(20, bytes.len() - 14);
            put_word(&mut bytes, 24, 0).unwrap();
            let sum = checksum::checksum(&bytes[14..14 + header_bytes]);
            put_word(&mut bytes, 24, sum).unwrap();
        }
        let chosen = if round % 2 == 0 { &trusting } else { &rules() };
        let class = classify(&bytes, RxMeta::default(), chosen);
        check_places(&bytes, &class);
        accepted += u32::from(!matches!(class, Class::Bad(_) | Class::NotOurs(_)));
        check_places(&bytes, &classify_looped(&bytes, chosen));
    }
    assert!(
        accepted > 10_000,
        "the frames are too damaged to test anything: {accepted}"
    );
}
