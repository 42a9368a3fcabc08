// A SIMT emulator: the CUDA names that src/gpu/cuda uses, for a host compiler.
//
// Every thread of a grid is a fiber, and one of them runs at a time: from one point where the lanes of a warp or of a
// block meet to the next, in an order that a seed decides. What the hardware only promises behind a barrier is therefore
// soon missing when the barrier is. A meeting that not everybody comes to, or at which lanes stand at different places
// of the program, ends the run with a line that says where.
//
// It knows nothing of time, of caches and of the order in which other hardware sees stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#define __device__
#define __host__
#define __global__

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace simt {

struct Dim {
    unsigned x;
};

struct Place {
    Dim thread, block, threads, blocks;
};

// Of the fiber that runs.
extern thread_local Place place;

// Block memory: the same address for the n-th call of every thread of a block.
void* shared(size_t bytes);

enum class Exchange { Sync, Ballot, Shuffle };

// Meets the lanes of `mask`. Returns what the lane `from` brought (Shuffle), or a bit for each lane that brought
// something else than 0 (Ballot).
uint64_t meet_warp(Exchange kind, uint32_t mask, uint64_t value, unsigned from, const char* file, int line);
void meet_block(const char* file, int line);

// Lets others run.
void nap();

// Called just before a 32-bit store that the host orders itself by; set by the thread that calls `run`.
extern thread_local void (*on_release)(const void* to, uint32_t value);
inline void released(const void* to, uint32_t value) {
    if (on_release != nullptr) on_release(to, value);
}

// Runs `entry` in each thread of a grid, whose blocks run all at once, or one by one. False: there was a fault, and a
// line on stderr says which.
bool run(void (*entry)(void*), void* argument, unsigned blocks, unsigned threads, uint64_t seed, bool all_at_once);

}  // namespace simt

#define threadIdx (simt::place.thread)
#define blockIdx (simt::place.block)
#define blockDim (simt::place.threads)
#define gridDim (simt::place.blocks)

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    simt::meet_block(file, line);
}
inline void __syncwarp(unsigned mask, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    simt::meet_warp(simt::Exchange::Sync, mask, 0, 0, file, line);
}
inline unsigned __ballot_sync(unsigned mask, bool vote, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return static_cast<unsigned>(simt::meet_warp(simt::Exchange::Ballot, mask, vote, 0, file, line));
}
template <typename T>
T __shfl_sync(unsigned mask, T value, unsigned from, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return static_cast<T>(simt::meet_warp(simt::Exchange::Shuffle, mask, value, from & 31, file, line));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const unsigned lane = threadIdx.x & 31;
    return __shfl_sync(mask, value, lane < by ? lane : lane - by, file, line);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned with, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return __shfl_sync(mask, value, (threadIdx.x & 31) ^ with, file, line);
}

template <typename T>
T atomicAdd(T* to, T value) {
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { simt::nap(); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value)); }
inline int __ffs(unsigned value) { return __builtin_ffs(static_cast<int>(value)); }
