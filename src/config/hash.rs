//! One number for one file, so that hosts and programs of the same config find each other.

/// FNV-1a, 64 bits, over the file's bytes (design D14: CONFHASH). Stable for ever: it is in socket names
/// and both sides of an upgrade compute it.
#[must_use]
pub fn config_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vectors_hold() {
        assert_eq!(config_hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(config_hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(config_hash(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
