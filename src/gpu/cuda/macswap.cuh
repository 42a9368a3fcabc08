// Swaps the two addresses at the front of an Ethernet frame: of the benchmark only, for comparison with l2fwd-nv.
#pragma once

#include "packet.cuh"

namespace knet {

__device__ inline void macswap(Packet& packet, u8*, u32*) {
    const u32 lane = lane_of();
    if (packet.len >= 12) {
        const u8 mine = lane < 12 ? packet.payload[lane] : 0;
        __syncwarp(ALL_LANES);
        if (lane < 12) packet.payload[lane < 6 ? lane + 6 : lane - 6] = mine;
    }
}

}  // namespace knet
