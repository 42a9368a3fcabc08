// ChaCha20 (RFC 8439) by stream offset: each lane makes one block of key stream, then all lanes apply them together.
#pragma once

#include "packet.cuh"

namespace knet {

__device__ inline u32 rotated(u32 word, u32 by) { return word << by | word >> (32u - by); }

__device__ inline void quarter_round(u32* x, u32 a, u32 b, u32 c, u32 d) {
    x[a] += x[b];
    x[d] = rotated(x[d] ^ x[a], 16);
    x[c] += x[d];
    x[b] = rotated(x[b] ^ x[c], 12);
    x[a] += x[b];
    x[d] = rotated(x[d] ^ x[a], 8);
    x[c] += x[d];
    x[b] = rotated(x[b] ^ x[c], 7);
}

// RFC 8439 section 2.3: 64 bytes of key stream.
__device__ inline void key_stream(const u32* key, const u32* nonce, u32 block, u32* out) {
    u32 x[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
    for (u32 at = 0; at < 8; at++) x[4 + at] = key[at];
    x[12] = block;
    for (u32 at = 0; at < 3; at++) x[13 + at] = nonce[at];
    u32 before[16];
    for (u32 at = 0; at < 16; at++) before[at] = x[at];
    for (u32 round = 0; round < 10; round++) {
        quarter_round(x, 0, 4, 8, 12);
        quarter_round(x, 1, 5, 9, 13);
        quarter_round(x, 2, 6, 10, 14);
        quarter_round(x, 3, 7, 11, 15);
        quarter_round(x, 0, 5, 10, 15);
        quarter_round(x, 1, 6, 11, 12);
        quarter_round(x, 2, 7, 8, 13);
        quarter_round(x, 3, 4, 9, 14);
    }
    for (u32 at = 0; at < 16; at++) out[at] = x[at] + before[at];
}

// Bytes of key stream: 2^32 blocks of 64 but for the last one, which the CPU version does not use either.
constexpr u64 STREAM_BYTES = (1ull << 38) - 64;

// As knet_chacha20_params says.
__device__ inline void chacha20(Packet& packet, u8* image, u32* shared) {
    const u32 lane = lane_of();
    const u8* stream = reinterpret_cast<const u8*>(shared);
    const u32* key = reinterpret_cast<const knet_chacha20_params*>(image)->key;
    const u64 first = packet.record->offset;
    // Behind the last block there is no key stream, and nothing may leave as it is.
    if (first > STREAM_BYTES || packet.len > STREAM_BYTES - first) {
        packet.verdict = KNET_FAILED;
        return;
    }
    for (u32 begin = 0; begin < packet.len;) {
        const u64 offset = first + begin;
        const u32 skip = static_cast<u32>(offset % TILE);
        const u32 count = smaller(TILE - skip, packet.len - begin);
        // Bytes of the piece before this one may still be read.
        __syncwarp(ALL_LANES);
        key_stream(key, packet.record->ends, static_cast<u32>(offset / TILE * (TILE / 64)) + lane, shared + lane * 17);
        __syncwarp(ALL_LANES);

        u8* to = packet.payload + begin;
        const auto key_byte = [stream, skip](u32 position) -> u32 {
            const u32 at = position + skip;
            return stream[at + at / 64u * 4u];
        };
        const u32 head = smaller(count, (4u - static_cast<u32>(reinterpret_cast<u64>(to))) & 3u);
        const u32 middle = (count - head) / 4u;
        if (lane < head) to[lane] ^= static_cast<u8>(key_byte(lane));
        for (u32 at = lane; at < middle; at += 32) {
            const u32 position = head + at * 4u;
            u32* word = reinterpret_cast<u32*>(to + position);
            *word ^= key_byte(position) | key_byte(position + 1) << 8 | key_byte(position + 2) << 16 |
                     key_byte(position + 3) << 24;
        }
        const u32 tail = head + middle * 4u + lane;
        if (tail < count) to[tail] ^= static_cast<u8>(key_byte(tail));
        begin += count;
    }
}

}  // namespace knet
