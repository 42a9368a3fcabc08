//! Frames by hand.

/// The EtherType, or 0 of a runt.
pub(crate) fn ether_type(frame: &[u8]) -> u16 {
    frame
        .get(12..14)
        .map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
}

fn ethernet(to: [u8; 6], from: [u8; 6], kind: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(64);
    frame.extend(to);
    frame.extend(from);
    frame.extend(kind.to_be_bytes());
    frame
}

fn arp(operation: u8, from: ([u8; 6], [u8; 4]), to: ([u8; 6], [u8; 4])) -> Vec<u8> {
    let mut frame = ethernet(
        if operation == 1 { [0xff; 6] } else { to.0 },
        from.0,
        0x0806,
    );
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(from.0);
    frame.extend(from.1);
    frame.extend(if operation == 1 { [0; 6] } else { to.0 });
    frame.extend(to.1);
    frame.resize(60, 0);
    frame
}

/// Who has `wanted`?
pub(crate) fn arp_request(mac: [u8; 6], ip: [u8; 4], wanted: [u8; 4]) -> Vec<u8> {
    arp(1, (mac, ip), ([0; 6], wanted))
}

/// The MAC address that an ARP reply gives for `ip`.
pub(crate) fn arp_reply_from(frame: &[u8], ip: [u8; 4]) -> Option<[u8; 6]> {
    let reply = ether_type(frame) == 0x0806 && frame.len() >= 42 && frame[20..22] == [0, 2];
    (reply && frame[28..32] == ip).then(|| frame[22..28].try_into().unwrap())
}

/// The answer to an ARP request for `ip` or to an ICMP echo request.
pub(crate) fn reply(frame: &[u8], mac: [u8; 6], ip: [u8; 4]) -> Option<Vec<u8>> {
    let sender: [u8; 6] = frame.get(6..12)?.try_into().ok()?;
    match ether_type(frame) {
        0x0806 if frame.get(20..22)? == [0, 1] && frame.get(38..42)? == ip => {
            Some(arp(2, (mac, ip), (sender, frame[28..32].try_into().ok()?)))
        }
        0x0800 if frame.get(23) == Some(&1) && frame.get(34) == Some(&8) => {
            let mut answer = frame.to_vec();
            answer[..6].copy_from_slice(&sender);
            answer[6..12].copy_from_slice(&mac);
            answer[26..30].copy_from_slice(&frame[30..34]);
            answer[30..34].copy_from_slice(&frame[26..30]);
            answer[34] = 0;
            answer[36..38].fill(0);
            let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            let sum = checksum(answer.get(34..end)?, 0);
            answer[36..38].copy_from_slice(&sum.to_be_bytes());
            Some(answer)
        }
        _ => None,
    }
}

/// The Internet checksum (RFC 1071) over `bytes`, starting from `sum`.
pub(crate) fn checksum(bytes: &[u8], mut sum: u32) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

fn ipv4(frame: &mut Vec<u8>, protocol: u8, from: [u8; 4], to: [u8; 4], payload: usize) {
    let start = frame.len();
    frame.extend([0x45, 0]);
    frame.extend(u16::try_from(20 + payload).unwrap().to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(from);
    frame.extend(to);
    let sum = checksum(&frame[start..], 0);
    frame[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
}

/// A UDP datagram without a checksum.
pub(crate) fn udp(
    from_mac: [u8; 6],
    to_mac: [u8; 6],
    from: [u8; 4],
    to: [u8; 4],
    port: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = ethernet(to_mac, from_mac, 0x0800);
    ipv4(&mut frame, 17, from, to, 8 + payload.len());
    frame.extend(5000_u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(u16::try_from(8 + payload.len()).unwrap().to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// A TCP segment with rubbish where the checksums go.
pub(crate) fn tcp_unsummed(from_mac: [u8; 6], to_mac: [u8; 6], payload: usize) -> Vec<u8> {
    let mut frame = ethernet(to_mac, from_mac, 0x0800);
    ipv4(&mut frame, 6, [10, 0, 0, 1], [10, 0, 0, 2], 20 + payload);
    frame[24..26].copy_from_slice(&[0xde, 0xad]);
    frame.extend(1000_u16.to_be_bytes());
    frame.extend(2000_u16.to_be_bytes());
    frame.extend([
        0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0xbe, 0xef, 0, 0,
    ]);
    frame.extend((0..payload).map(|index| u8::try_from(index % 251).unwrap()));
    frame
}

/// A frame of the local experimental EtherType.
pub(crate) fn note(payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet([0xff; 6], [2, 0, 0, 0, 0, 9], 0x88b5);
    frame.extend(payload);
    frame.resize(60, 0);
    frame
}

/// The payload of such a frame.
pub(crate) fn note_in(frame: &[u8]) -> Option<&[u8]> {
    (ether_type(frame) == 0x88b5).then(|| &frame[14..])
}
