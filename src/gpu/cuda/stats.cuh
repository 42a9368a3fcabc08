// Byte histogram and entropy.
#pragma once

#include "packet.cuh"

namespace knet {

// log2 with 16 binary places, rounded down; `value` is not 0. src/gpu/stats.rs has the same steps: both must agree in
// every bit.
__device__ inline u32 log2_q16(u32 value) {
    const u32 whole = 31u - static_cast<u32>(__clz(static_cast<int>(value)));
    u64 rest = static_cast<u64>(value) << (31u - whole);
    u32 result = whole;
    for (u32 place = 0; place < 16; place++) {
        rest = rest * rest >> 31;
        const u32 bit = static_cast<u32>(rest >> 32);
        rest >>= bit;
        result = result << 1 | bit;
    }
    return result;
}

// A shorter packet cannot show more than its own length.
constexpr u32 SAMPLE_MIN = 512;
// 7.2 bits a byte.
constexpr u64 RANDOM_Q16 = 471859;

// As knet_stats_params says.
__device__ inline void stats(Packet& packet, u8* image, u32* shared) {
    const u32 lane = lane_of();
    u64* totals = reinterpret_cast<knet_stats_params*>(image)->histogram;
    // Counts of the packet before this one may still be read.
    __syncwarp(ALL_LANES);
    for (u32 value = lane; value < 256; value += 32) shared[value] = 0;
    __syncwarp(ALL_LANES);
    const u32 head = smaller(packet.len, (16u - static_cast<u32>(reinterpret_cast<u64>(packet.payload))) & 15u);
    const u32 middle = (packet.len - head) / 16u;
    if (lane < head) atomicAdd(&shared[packet.payload[lane]], 1u);
    for (u32 at = lane; at < middle; at += 32) {
        const uint4 data = *reinterpret_cast<const uint4*>(packet.payload + head + at * 16u);
        const u32 words[4] = {data.x, data.y, data.z, data.w};
        for (u32 word = 0; word < 4; word++)
            for (u32 bits = 0; bits < 32; bits += 8) atomicAdd(&shared[words[word] >> bits & 255u], 1u);
    }
    const u32 tail = head + middle * 16u + lane;
    if (tail < packet.len) atomicAdd(&shared[packet.payload[tail]], 1u);
    __syncwarp(ALL_LANES);

    u64 known = 0;
    u64 printable = 0;
    for (u32 value = lane; value < 256; value += 32) {
        const u32 count = shared[value];
        if (count == 0) continue;
        known += static_cast<u64>(count) * log2_q16(count);
        printable += value - 0x20u < 0x5fu ? count : 0;
        atomicAdd(&totals[value], static_cast<u64>(count));
    }
    const u64 entropy = static_cast<u64>(packet.len) * log2_q16(packet.len) - sum(known);
    const u64 random = packet.len >= SAMPLE_MIN && entropy >= RANDOM_Q16 * packet.len;
    packet.value = static_cast<u32>(entropy / packet.len);
    packet.aux = sum(printable) | random << 32;
}

}  // namespace knet
