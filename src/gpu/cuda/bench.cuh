// Kernels of the benchmark only.
#pragma once

#include "packet.cuh"

namespace knet {

// Swaps the two addresses at the front of an Ethernet frame, for comparison with l2fwd-nv.
__device__ inline void macswap(Packet& packet, u8*, u32*) {
    const u32 lane = lane_of();
    if (packet.len >= 12) {
        const u8 mine = lane < 12 ? packet.payload[lane] : 0;
        __syncwarp(ALL_LANES);
        if (lane < 12) packet.payload[lane < 6 ? lane + 6 : lane - 6] = mine;
    }
}

// Calls `bytes` for what lies before and behind the aligned middle of a packet, and `vectors` for 16 bytes of the middle.
template <typename Bytes, typename Vectors>
__device__ inline void for_all(const Packet& packet, Bytes bytes, Vectors vectors) {
    const u32 lane = lane_of();
    const u32 head = smaller(packet.len, (16u - static_cast<u32>(reinterpret_cast<u64>(packet.payload))) & 15u);
    const u32 middle = (packet.len - head) / 16u;
    if (lane < head) bytes(packet.payload + lane);
    for (u32 at = lane; at < middle; at += 32) vectors(reinterpret_cast<uint4*>(packet.payload + head + at * 16u));
    const u32 tail = head + middle * 16u + lane;
    if (tail < packet.len) bytes(packet.payload + tail);
}

__device__ inline u32 sum_of_bytes(u32 word) {
    const u32 pairs = (word & 0x00ff00ffu) + (word >> 8 & 0x00ff00ffu);
    return (pairs & 0xffffu) + (pairs >> 16);
}

// Reads everything and does next to nothing with it. aux: the sum of all bytes.
__device__ inline void peek(Packet& packet, u8*, u32*) {
    u64 total = 0;
    for_all(
        packet, [&](const u8* byte) { total += *byte; },
        [&](const uint4* at) {
            const uint4 data = *at;
            total += sum_of_bytes(data.x) + sum_of_bytes(data.y) + sum_of_bytes(data.z) + sum_of_bytes(data.w);
        });
    packet.aux = sum(total);
}

// Reads and writes everything: each bit is turned.
__device__ inline void poke(Packet& packet, u8*, u32*) {
    for_all(
        packet, [](u8* byte) { *byte = static_cast<u8>(~*byte); },
        [](uint4* at) {
            uint4 data = *at;
            data.x = ~data.x;
            data.y = ~data.y;
            data.z = ~data.z;
            data.w = ~data.w;
            *at = data;
        });
}

// Takes as many milliseconds as the parameters' first word says: a kernel that is late.
__device__ inline void stall(Packet&, u8* image, u32*) {
    for (u32 left = *reinterpret_cast<const u32*>(image); left > 0; left--) __nanosleep(1000000);
}

// Writes where nothing is: a kernel that is wrong.
__device__ inline void crash(Packet&, u8*, u32*) { *reinterpret_cast<volatile u32*>(16) = 1; }

}  // namespace knet
