// Loads and stores that the host or another block orders itself by.
#pragma once

#include "packet.cuh"

namespace knet {

#ifdef KNET_SIMT

__device__ inline u32 load_acquire_system(const u32* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
__device__ inline void store_release_system(u32* to, u32 value) {
    simt::released(to, value);
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}
__device__ inline void store_release_system(u64* to, u64 value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
__device__ inline u64 load_acquire_device(const u64* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
__device__ inline void store_release_device(u64* to, u64 value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }

#else

__device__ inline u32 load_acquire_system(const u32* from) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ inline void store_release_system(u32* to, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline void store_release_system(u64* to, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline u64 load_acquire_device(const u64* from) {
    u64 value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ inline void store_release_device(u64* to, u64 value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

#endif

// Counts one up; true for the last of `all`, which sees what the others wrote before they counted, and leaves 0.
__device__ inline bool last_of(u32* counter, u32 all) {
    __threadfence_system();
    if (atomicAdd(counter, 1u) + 1 != all) return false;
    __threadfence_system();
    *counter = 0;
    return true;
}

}  // namespace knet
