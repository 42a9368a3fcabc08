//! Faults put into the kernels on purpose: the comparison must find each of them.

use knet::gpu::Builtin;

use super::batches::{Oracle, Shape, compare};
use super::emulator::Emulator;
use super::random::{self, Random};

/// Runs until a difference shows; a fault that no run finds fails the test.
fn found(
    name: &str,
    (file, from, to): (&str, &str, &str),
    kernel: &Builtin,
    text: fn(&mut Random, usize) -> Vec<u8>,
) -> String {
    let emulator = Emulator::changed(name, file, from, to);
    let mut oracle = Oracle::new(kernel);
    for seed in 0..20 {
        let shape = Shape::random(seed, seed % 2 == 1);
        if let Err(words) = compare(&emulator, &mut oracle, shape, text) {
            println!("{name}: found with seed {seed}: {words}");
            return words;
        }
    }
    panic!("{name}: 20 random batches show no difference");
}

#[test]
fn a_tile_that_is_read_before_it_is_there_is_found() {
    let barrier = (
        "packet.cuh",
        "bytes_[place(tail)] = from[tail];\n        __syncwarp(ALL_LANES);",
        "bytes_[place(tail)] = from[tail];",
    );
    found("staged", barrier, &Builtin::Crc32c, random::mixed);
}

#[test]
fn a_tile_that_is_overwritten_too_early_is_found() {
    let barrier = (
        "chacha20.cuh",
        "        __syncwarp(ALL_LANES);\n        key_stream",
        "        key_stream",
    );
    found(
        "overwritten",
        barrier,
        &Builtin::Chacha20([1; 32]),
        random::mixed,
    );
}

#[test]
fn a_vote_that_not_everybody_is_asked_for_is_found() {
    let vote = (
        "pattern.cuh",
        "__ballot_sync(ALL_LANES,",
        "__ballot_sync(ALL_LANES - 1,",
    );
    let words = found("vote", vote, &random::few_rules(), random::near_matches);
    assert!(words.contains("not in its own mask"), "{words}");
}

#[test]
fn key_stream_that_is_used_before_it_is_made_is_found() {
    let barrier = (
        "chacha20.cuh",
        "shared + lane * 17);\n        __syncwarp(ALL_LANES);",
        "shared + lane * 17);",
    );
    found(
        "key-stream",
        barrier,
        &Builtin::Chacha20([1; 32]),
        random::mixed,
    );
}

#[test]
fn counts_that_are_summed_before_all_are_counted_are_found() {
    let barrier = (
        "stats.cuh",
        "atomicAdd(&shared[packet.payload[tail]], 1u);\n    __syncwarp(ALL_LANES);",
        "atomicAdd(&shared[packet.payload[tail]], 1u);",
    );
    found("counted", barrier, &Builtin::Stats, random::mixed);
}

#[test]
fn a_block_that_answers_before_its_warps_are_through_is_found() {
    let barrier = (
        "batch.cuh",
        "work_on<KERNEL>(*work, shared);\n    __syncthreads();",
        "work_on<KERNEL>(*work, shared);",
    );
    found("answered", barrier, &Builtin::Crc32c, random::mixed);
}

#[test]
fn a_barrier_that_only_some_lanes_reach_is_found() {
    let divergent = (
        "bench.cuh",
        "        __syncwarp(ALL_LANES);",
        "        if (lane < 12) __syncwarp(ALL_LANES);",
    );
    let words = found("divergent", divergent, &Builtin::Macswap, random::mixed);
    assert!(words.contains("simt:"), "{words}");
}

#[test]
fn lanes_that_forget_the_literal_that_began_before_their_slice_are_found() {
    let depth = (
        "pattern.cuh",
        "automaton.depth[at] > position - end",
        "false",
    );
    found("overlap", depth, &random::few_rules(), random::near_matches);
}

#[test]
fn a_literal_that_two_lanes_count_is_found() {
    let twice = (
        "pattern.cuh",
        "if (truth > begin && mine.count > 0)",
        "if (false)",
    );
    found("twice", twice, &random::few_rules(), random::near_matches);
}

#[test]
fn a_load_beyond_the_payload_is_found() {
    let beyond = ("packet.cuh", "if (tail < count)", "if (tail <= count)");
    found("beyond", beyond, &Builtin::Crc32c, random::mixed);
}
