//! The place of the recovery helper (reference of smoltcp, section 5).
//!
//! It will watch the segments of a flow as [`Meter`](super::tracker::Meter) does, and on a partial acknowledgement or
//! when a tail-loss probe is due feed the socket the acknowledgements that make it send its first segment again. Until
//! then a second hole in a window waits for smoltcp's time-out of at least 1 s. When to give up on a peer is not its
//! business: that is [`Watchdog`](super::watchdog::Watchdog).
