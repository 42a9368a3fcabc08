//! knetctl: the operator's tool.

fn main() {}
