// The kernels of src/gpu/cuda under the emulator.
#pragma once

#include <cstdint>

// Runs the entry point `name` with its one argument, a struct knet_batch or knet_ring, to its end. 0: done; 1: a fault, with
// a line on stderr; 2: there is no such entry point.
extern "C" int knet_simt_launch(const char* name, unsigned blocks, unsigned threads, void* argument, uint64_t seed);
