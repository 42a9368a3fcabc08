// The function of a user's PTX, called by each lane of the warp.
#pragma once

#include "packet.cuh"

// The linker puts the user's function here.
extern "C" __device__ unsigned int knet_user_function(const struct knet_packet* packet, struct knet_result* result,
                                                      unsigned int lane, void* params);

namespace knet {

__device__ inline void user(Packet& packet, u8* image, u32*) {
    knet_result result;
    result.verdict = KNET_NOT_WRITTEN;
    result.value = 0;
    result.aux = 0;
    result.state[0] = packet.state[0];
    result.state[1] = packet.state[1];
    const u32 verdict = knet_user_function(packet.record, &result, lane_of(), image);
    __syncwarp(ALL_LANES);
    packet.verdict = verdict >= KNET_PASS && verdict <= KNET_FAILED ? verdict : KNET_FAILED;
    packet.value = result.value;
    packet.aux = result.aux;
    packet.state[0] = result.state[0];
    packet.state[1] = result.state[1];
}

}  // namespace knet
