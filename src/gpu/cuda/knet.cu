// The GPU kernels: entry points. knet_ring.h is the contract with the host.
#include "batch.cuh"
#include "chacha20.cuh"
#include "crc32c.cuh"
#include "pattern.cuh"
#include "stats.cuh"

#define KNET_ENTRY_POINTS(kernel)                                                                                       \
    extern "C" __global__ void knet_##kernel##_launch(struct knet_batch* batch) { knet::launch<knet::kernel>(batch); } \
    extern "C" __global__ void knet_##kernel##_persistent(struct knet_ring* ring) { knet::persist<knet::kernel>(ring); }

KNET_ENTRY_POINTS(pattern)
KNET_ENTRY_POINTS(stats)
KNET_ENTRY_POINTS(chacha20)
KNET_ENTRY_POINTS(crc32c)
