// A batch of packets, one warp each, and the two ways to run it: a launch per batch, and a grid that stays and polls.
#pragma once

#include "order.cuh"
#include "packet.cuh"

namespace knet {

// Threads of a block at most.
constexpr u32 THREADS_MAX = 256;
constexpr u32 WARPS_MAX = THREADS_MAX / 32;

// Works on a packet; all lanes of the warp call it. `shared` is TILE_WORDS for the warp.
typedef void (*Kernel)(Packet& packet, u8* image, u32* shared);

// What a block needs to know of a batch.
struct Work {
    const knet_packet* packets;
    knet_result* results;
    u8* image;
    u32 count;
    u32 error;
};

__device__ inline Work work_of(const knet_batch& batch) {
    Work work;
    work.packets = reinterpret_cast<const knet_packet*>(batch.packets);
    work.results = reinterpret_cast<knet_result*>(batch.results);
    work.image = reinterpret_cast<u8*>(batch.params);
    work.count = batch.count;
    work.error = batch.abi != KNET_RING_ABI ? KNET_ERROR_ABI : batch.count > KNET_BATCH_MAX ? KNET_ERROR_KERNEL : 0;
    return work;
}

// This block's share of the packets.
template <Kernel KERNEL>
__device__ inline void work_on(const Work& work, u32* shared) {
    if (work.error != 0) return;
    const u32 warps = blockDim.x / 32u;
    const u32 warp = threadIdx.x / 32u;
    for (u32 at = blockIdx.x * warps + warp; at < work.count; at += gridDim.x * warps) {
        const knet_packet* record = work.packets + at;
        knet_result* result = work.results + at;
        Packet packet;
        packet.payload = reinterpret_cast<u8*>(record->addr);
        packet.len = record->len;
        packet.record = record;
        packet.state[0] = record->state[0];
        packet.state[1] = record->state[1];
        packet.verdict = KNET_PASS;
        packet.value = 0;
        packet.aux = 0;
        KERNEL(packet, work.image, shared + warp * TILE_WORDS);
        if (lane_of() == 0) {
            result->value = packet.value;
            result->aux = packet.aux;
            result->state[0] = packet.state[0];
            result->state[1] = packet.state[1];
            *static_cast<volatile u32*>(&result->verdict) = packet.verdict;
        }
    }
}

// The batch is the host's again.
__device__ inline void answer(knet_batch* batch, u32 error) {
    batch->error = error;
    store_release_system(&batch->status, error == 0 ? KNET_DONE : KNET_ERROR);
}

template <Kernel KERNEL>
__device__ inline void launch(knet_batch* batch) {
    KNET_SHARED(u32, shared, WARPS_MAX * TILE_WORDS);
    KNET_SHARED(Work, work, 1);
    KNET_SHARED(u32, ready, 1);
    if (threadIdx.x == 0) {
        *ready = load_acquire_system(&batch->status) == KNET_READY;
        *work = work_of(*batch);
    }
    __syncthreads();
    if (!*ready) return;
    work_on<KERNEL>(*work, shared);
    __syncthreads();
    if (threadIdx.x == 0 && last_of(reinterpret_cast<u32*>(batch->scratch), gridDim.x)) answer(batch, work->error);
}

// Where block 0, which alone reads the host's flags, tells the others of a batch: in device memory.
struct Notice {
    // Number of the batch, counted from 1; written last.
    u64 number;
    // The last batch of this place whose blocks are all through.
    u64 finished;
    // Blocks that are through.
    u32 through;
    // There is no batch: the grid ends.
    u32 quit;
    knet_batch* batch;
    Work work;
};
constexpr u32 NOTICES = 16;
static_assert(sizeof(Notice) * NOTICES <= KNET_RING_SCRATCH_BYTES, "the notices fit");

// How block 0 looks at the host's flags.
struct Look {
    u64 beat;
    u32 looks;
};
// A look at `quit` costs as much as one at the batch: one for so many.
constexpr u32 LOOKS_A_BEAT = 8;
// The longest sleep between two looks, in nanoseconds.
constexpr u32 NAP_NS = 256;

// Waits for batch `number` of the ring, or for the end, and tells it.
__device__ inline void publish(knet_ring* ring, Notice& notice, u64 number, Look& look) {
    // Whoever is still busy with the batch before it in this place.
    while (number > NOTICES && load_acquire_device(&notice.finished) != number - NOTICES) __nanosleep(32);
    knet_batch* batch = reinterpret_cast<knet_batch*>(ring->batches + (number - 1) % ring->slots * ring->stride);
    for (u32 nap = 32;; nap = smaller(nap * 2, NAP_NS)) {
        u32 quit = 0;
        if (look.looks++ % LOOKS_A_BEAT == 0) {
            store_release_system(&ring->heartbeat, ++look.beat);
            quit = load_acquire_system(&ring->quit);
        }
        // In this order: a batch that was made ready before the wish to end is served.
        const bool ready = load_acquire_system(&batch->status) == KNET_READY;
        notice.quit = quit >= 2 || (quit != 0 && !ready);
        if (notice.quit) break;
        if (ready) {
            notice.batch = batch;
            notice.work = work_of(*batch);
            break;
        }
        __nanosleep(nap);
    }
    store_release_device(&notice.number, number);
}

template <Kernel KERNEL>
__device__ inline void persist(knet_ring* ring) {
    KNET_SHARED(u32, shared, WARPS_MAX * TILE_WORDS);
    Notice* notices = reinterpret_cast<Notice*>(ring->scratch);
    Look look = {0, 0};
    for (u64 number = 1;; number++) {
        Notice& notice = notices[number % NOTICES];
        if (threadIdx.x == 0) {
            if (blockIdx.x == 0) publish(ring, notice, number, look);
            while (load_acquire_device(&notice.number) != number) __nanosleep(32);
        }
        __syncthreads();
        const bool quit = notice.quit != 0;
        if (!quit) work_on<KERNEL>(notice.work, shared);
        __syncthreads();
        if (threadIdx.x == 0) {
            // Once counted, the notice may be another batch's.
            knet_batch* batch = notice.batch;
            const u32 error = notice.work.error;
            if (last_of(&notice.through, gridDim.x)) {
                if (quit) {
                    store_release_system(&ring->ended, 1ull);
                } else {
                    answer(batch, error);
                    store_release_device(&notice.finished, number);
                }
            }
        }
        if (quit) return;
    }
}

}  // namespace knet
