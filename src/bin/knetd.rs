//! knetd: the host process of the data plane.

fn main() {}
