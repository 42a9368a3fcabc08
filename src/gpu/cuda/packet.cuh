// What every kernel is made of: the packet as a warp sees it, and the tile of shared memory it is staged in.
//
// One warp works on one packet. The same text is compiled twice: by NVRTC to PTX, and by a host compiler under an
// emulator (KNET_SIMT) that supplies the CUDA names used here.
#pragma once

#include "knet_ring.h"

#ifdef KNET_SIMT
#include "simt.h"
#define KNET_SHARED(type, name, count) type* name = static_cast<type*>(simt::shared(sizeof(type) * (count)))
#else
#define KNET_SHARED(type, name, count) __shared__ type name[count]
#endif

namespace knet {

typedef unsigned char u8;
typedef knet_u32 u32;
typedef knet_u64 u64;

constexpr u32 ALL_LANES = 0xffffffffu;

// A packet and what was found in it; every lane of the warp holds the same values.
struct Packet {
    // Any alignment.
    u8* payload;
    u32 len;
    const knet_packet* record;
    // In: what was kept of the stream so far, all zero at its beginning. Out: what is to be kept.
    u64 state[2];
    // Out, as in knet_result.
    u32 verdict;
    u32 value;
    u64 aux;
};

// Payload is worked on in tiles of 64 bytes a lane.
constexpr u32 TILE = 2048;
// 15 bytes of misalignment, and 4 bytes behind each 64 so that lanes that walk 64 bytes apart meet different banks.
constexpr u32 TILE_BYTES = (TILE + 16) / 64 * 68 + 68;
constexpr u32 TILE_WORDS = TILE_BYTES / 4;

__device__ inline u32 lane_of() { return threadIdx.x & 31u; }

__device__ inline u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

// A piece of payload in shared memory.
class Tile {
  public:
    __device__ explicit Tile(u32* words) : bytes_(reinterpret_cast<u8*>(words)), shift_(0) {}

    // Copies `count` bytes (at most TILE) with all lanes, 16 bytes each where the address allows; PCIe likes whole
    // 128 byte requests. The tile is as misaligned as the payload is.
    __device__ void stage(const u8* from, u32 count) {
        const u32 lane = lane_of();
        shift_ = static_cast<u32>(reinterpret_cast<u64>(from)) & 15u;
        const u32 head = smaller(count, (16u - shift_) & 15u);
        const u32 middle = (count - head) / 16u;
        // Who still reads the piece before this one is waited for.
        __syncwarp(ALL_LANES);
        if (lane < head) bytes_[place(lane)] = from[lane];
        for (u32 at = lane; at < middle; at += 32) {
            const u32 position = head + at * 16u;
            const uint4 data = *reinterpret_cast<const uint4*>(from + position);
            u32* to = reinterpret_cast<u32*>(bytes_ + place(position));
            to[0] = data.x;
            to[1] = data.y;
            to[2] = data.z;
            to[3] = data.w;
        }
        const u32 tail = head + middle * 16u + lane;
        if (tail < count) bytes_[place(tail)] = from[tail];
        __syncwarp(ALL_LANES);
    }

    __device__ u32 operator[](u32 position) const { return bytes_[place(position)]; }

  private:
    __device__ u32 place(u32 position) const {
        const u32 at = position + shift_;
        return at + (at / 64u) * 4u;
    }

    u8* bytes_;
    u32 shift_;
};

// The sum over the warp, in every lane.
__device__ inline u64 sum(u64 value) {
    for (u32 step = 16; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

}  // namespace knet
