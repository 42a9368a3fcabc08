// A kernel of one's own for the payload stage: says "found" of a packet with many bytes that are 0.
//
// To PTX, with the CUDA toolkit:  nvcc -ptx -rdc=true -arch=compute_80 -I src/gpu/cuda count_zeros.cu
#include "knet_ring.h"

// All 32 lanes of a warp call it for the same packet; lane 0's answer counts.
extern "C" __device__ unsigned int count_zeros(const struct knet_packet* packet, struct knet_result* result,
                                               unsigned int lane, void* params) {
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(packet->addr);
    unsigned int zeros = 0;
    for (unsigned int at = lane; at < packet->len; at += 32) zeros += bytes[at] == 0;
    for (unsigned int step = 16; step > 0; step /= 2) zeros += __shfl_xor_sync(0xffffffffu, zeros, step);
    // The stream's own count goes on from packet to packet.
    result->state[0] = packet->state[0] + zeros;
    result->aux = result->state[0];
    result->value = zeros;
    (void)params;
    return zeros * 4 > packet->len ? KNET_MATCH : KNET_PASS;
}
