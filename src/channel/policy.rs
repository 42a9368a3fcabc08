//! What the program side must know of the config, as plain numbers in the header.
//!
//! Written once by the host before the hand-shake ends, read by the program.

use core::net::Ipv4Addr;

use super::sync::{AtomicU32, Ordering};

/// Addresses of ours that fit.
pub const ADDRESSES_MAX: usize = 16;
/// Port ranges of `common.accelerate.ports` that fit.
pub const PORT_RANGES_MAX: usize = 32;

/// Bits of [`PolicyPage::flags`].
pub mod policy_flag {
    /// `common.on_error: "fail"`.
    pub const ON_ERROR_FAIL: u32 = 1;
    /// `common.on_host_lost: "wait"`.
    pub const ON_HOST_LOST_WAIT: u32 = 2;
    /// `common.accelerate` lists programs, and this one is not among them (the host compares).
    pub const PROGRAM_EXCLUDED: u32 = 4;
    /// The host is the system's: when it is lost no private one takes its place.
    pub const SYSTEM_HOST: u32 = 8;
}

/// The page. Zero means none or default.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct PolicyPage {
    /// See [`policy_flag`].
    pub flags: AtomicU32,
    /// Number of `addresses`.
    pub address_count: AtomicU32,
    /// Our addresses in host order.
    pub addresses: [AtomicU32; ADDRESSES_MAX],
    /// Number of `ports`; 0 = all ports.
    pub port_range_count: AtomicU32,
    /// First port (bits 16 to 31) and last port (bits 0 to 15) of each accelerated range.
    pub ports: [AtomicU32; PORT_RANGES_MAX],
    /// Largest SO_RCVBUF (`max_recvbuf`).
    pub max_recvbuf: AtomicU32,
    /// Largest SO_SNDBUF (`max_sendbuf`).
    pub max_sendbuf: AtomicU32,
    /// Number of the kernel's interface that is the port (`interface.netdev`), in the host's network; 0 = the kernel has none.
    pub interface: AtomicU32,
}

impl PolicyPage {
    /// Whether `address` is one of ours.
    #[must_use]
    pub fn is_ours(&self, address: Ipv4Addr) -> bool {
        let count = self.address_count.load(Ordering::Relaxed) as usize;
        let bits = address.to_bits();
        self.addresses
            .iter()
            .take(count)
            .any(|ours| ours.load(Ordering::Relaxed) == bits)
    }

    /// Whether `port` is among the accelerated ones.
    #[must_use]
    pub fn accelerates_port(&self, port: u16) -> bool {
        let count = self.port_range_count.load(Ordering::Relaxed) as usize;
        count == 0
            || self.ports.iter().take(count).any(|range| {
                let range = range.load(Ordering::Relaxed);
                (range >> 16..=range & 0xffff).contains(&u32::from(port))
            })
    }

    /// Whether a bit of `flags` is set.
    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }
}
