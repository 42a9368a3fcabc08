// CRC-32C (RFC 3720 section 12.1): each lane a slice that ends at a multiple of its length from the tile's end, then
// pairs of lanes are joined: the left digest is moved over the bytes of the right one by a multiplication.
#pragma once

#include "packet.cuh"

namespace knet {

// The polynomial with its bits reversed: bit 31 is x^0.
constexpr u32 CRC32C = 0x82f63b78u;

// a * b modulo the polynomial.
__host__ __device__ constexpr u32 product(u32 a, u32 b) {
    u32 result = 0;
    for (u32 bit = 0; bit < 32; bit++) {
        result ^= (a >> 31) * b;
        a <<= 1;
        b = b >> 1 ^ (b & 1u) * CRC32C;
    }
    return result;
}

struct Crc32cTables {
    // The digest of one byte.
    u32 byte[256];
    // x to the bits of (at + 1) * 16 * 2^level bytes.
    u32 shift[4][5];

    __host__ __device__ constexpr Crc32cTables() : byte(), shift() {
        for (u32 value = 0; value < 256; value++) {
            u32 digest = value;
            for (u32 bit = 0; bit < 8; bit++) digest = digest >> 1 ^ (digest & 1u) * CRC32C;
            byte[value] = digest;
        }
        u32 unit = 0x40000000u;  // x
        for (u32 square = 0; square < 7; square++) unit = product(unit, unit);  // x^128
        u32 power = unit;
        for (u32 at = 0; at < 4; at++) {
            u32 factor = power;
            for (u32 level = 0; level < 5; level++) {
                shift[at][level] = factor;
                factor = product(factor, factor);
            }
            power = product(power, unit);
        }
    }
};

__device__ constexpr Crc32cTables CRC32C_TABLES;

// state[0] and aux: the digest of all bytes so far.
__device__ inline void crc32c(Packet& packet, u8*, u32* shared) {
    const u32 lane = lane_of();
    Tile tile(shared);
    u32 digest = ~static_cast<u32>(packet.state[0]);
    for (u32 begin = 0; begin < packet.len; begin += TILE) {
        const u32 count = smaller(TILE, packet.len - begin);
        tile.stage(packet.payload + begin, count);
        // Whole sixteens, so that few lengths need a factor; the lanes at the left may have less, or nothing.
        const u32 sixteens = (count + 511u) / 512u;
        const u32 slice = sixteens * 16u;
        const u32 behind = (31u - lane) * slice;
        const u32 end = count > behind ? count - behind : 0;
        const u32 from = end > slice ? end - slice : 0;
        u32 mine = from == 0 && end > 0 ? digest : 0;
        for (u32 position = from; position < end; position++)
            mine = mine >> 8 ^ CRC32C_TABLES.byte[(mine ^ tile[position]) & 255u];
        for (u32 level = 0; level < 5; level++) {
            const u32 left = __shfl_up_sync(ALL_LANES, mine, 1u << level);
            if (lane >= 1u << level) mine ^= product(CRC32C_TABLES.shift[sixteens - 1][level], left);
        }
        digest = __shfl_sync(ALL_LANES, mine, 31);
    }
    packet.aux = packet.state[0] = static_cast<u32>(~digest);
}

}  // namespace knet
