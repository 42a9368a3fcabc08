//! The GPU kernels of src/gpu/cuda, built for the host under the emulator of tests/simt: they must do what the CPU
//! versions do, byte for byte, in whatever order the lanes come.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "in a test a surprise is a failure, and numbers are small"
)]

mod batches;
mod bench;
mod emulator;
mod planted;
mod random;

use batches::{Oracle, Shape, compare};
use emulator::Emulator;
use knet::gpu::Builtin;
use random::Random;

/// Seeds a kernel and mode.
fn rounds() -> u64 {
    let long = std::env::var_os("KNET_TEST_LONG").is_some_and(|long| long == "1");
    if long { 100 } else { 4 }
}

fn equal(kernel: &Builtin, text: fn(&mut Random, usize) -> Vec<u8>) {
    let mut oracle = Oracle::new(kernel);
    let emulator = Emulator::shipped();
    for round in 0..rounds() {
        for ring in [false, true] {
            let seed = 1_000 * round + u64::from(ring);
            let shape = Shape::random(seed, ring);
            println!("seed {seed}: {shape:?}");
            compare(&emulator, &mut oracle, shape, text).unwrap_or_else(|fault| panic!("{fault}"));
        }
    }
}

#[test]
fn pattern_finds_what_the_cpu_finds_in_every_order_of_lanes() {
    equal(&random::few_rules(), random::near_matches);
}

#[test]
fn pattern_with_10_000_rules_finds_what_the_cpu_finds() {
    equal(&random::many_rules(), random::words);
}

#[test]
fn a_literal_longer_than_a_tile_of_the_gpu_is_found() {
    equal(&random::long_rules(), random::repetitive);
}

#[test]
fn stats_counts_what_the_cpu_counts() {
    equal(&Builtin::Stats, random::mixed);
}

#[test]
fn chacha20_writes_what_the_cpu_writes() {
    equal(&Builtin::Chacha20([0x5a; 32]), random::mixed);
}

#[test]
fn crc32c_comes_to_the_digest_of_the_cpu() {
    equal(&Builtin::Crc32c, random::mixed);
}

#[test]
fn the_kernels_of_the_benchmark_do_what_the_cpu_does() {
    for kernel in [Builtin::Macswap, Builtin::Peek, Builtin::Poke] {
        equal(&kernel, random::mixed);
    }
}

#[test]
fn a_users_function_is_called_for_every_packet() {
    equal(&Builtin::CountZeros, random::mixed);
}
