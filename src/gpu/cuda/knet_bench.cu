// The kernels of the benchmark: all others and its own.
#include "knet.cu"

#include "bench.cuh"

KNET_ENTRY_POINTS(macswap)
KNET_ENTRY_POINTS(peek)
KNET_ENTRY_POINTS(poke)
KNET_ENTRY_POINTS(stall)
KNET_ENTRY_POINTS(crash)
