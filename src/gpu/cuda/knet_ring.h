/*
 * What the host and the GPU kernels share, in C: the mirror of src/gpu/ring.rs, whose layout test compares every offset.
 * It names no other header, so that NVRTC takes it as it is. A change of a layout or of a meaning raises KNET_RING_ABI.
 *
 * ENTRY POINTS, extern "C" __global__ void, for each kernel `pattern`, `stats`, `chacha20`, `crc32c`, ...:
 *   knet_<kernel>_launch(struct knet_batch *batch)      works on one batch and ends;
 *   knet_<kernel>_persistent(struct knet_ring *ring)    serves the slots 0, 1, ... slots - 1, 0, ... until `quit`.
 * The only argument is a device pointer. One warp works on one packet: the warps of the grid take the packets in turn
 * (grid stride), so that any grid of blocks of a multiple of 32 threads is right. No dynamic shared memory.
 *
 * ORDER. The host fills `packets`, zeroes `verdict` of `results`, sets `count` and `seq`, and stores KNET_READY with release.
 * The kernel reads `status` with acquire at system scope. When every result is written (and the payload, for a kernel that
 * writes), each block fences at system scope (__threadfence_system) and counts itself done in `scratch`; the last one leaves
 * `scratch` zero again and stores KNET_DONE, or KNET_ERROR with `error`, with release at system scope. Nothing of the batch
 * is touched afterwards: the host may use it again at once. A batch with count 0 is answered KNET_DONE. `launch` answers a
 * batch whose status is not KNET_READY with nothing.
 */
#ifndef KNET_RING_H
#define KNET_RING_H

typedef unsigned int knet_u32;
typedef unsigned long long knet_u64;

#define KNET_RING_ABI 1u

/* knet_batch.status: gpudev's states, with its numbers. */
#define KNET_FREE 0u  /* the host's */
#define KNET_READY 1u /* the GPU's */
#define KNET_DONE 2u  /* the host's: results are there */
#define KNET_ERROR 3u /* the host's: `error` says why */

/* knet_batch.error */
#define KNET_ERROR_ABI 1u    /* `abi` is not KNET_RING_ABI */
#define KNET_ERROR_PARAMS 2u /* the parameters cannot be used */
#define KNET_ERROR_KERNEL 3u /* anything else that the kernel noticed */

/* knet_packet.flags */
#define KNET_SENT 1u    /* the program sends it; else it was received */
#define KNET_SEGMENT 2u /* attach point `packet`: no offset and no state is known */

/* knet_result.verdict */
#define KNET_NOT_WRITTEN 0u /* the host's mark, an error when it comes back */
#define KNET_PASS 1u
#define KNET_MATCH 2u  /* found what it looks for: `value` says what */
#define KNET_DROP 3u   /* `user` only, as the next three: what the function returned */
#define KNET_RESET 4u
#define KNET_MARK 5u   /* with the number in `value` */
#define KNET_MIRROR 6u
#define KNET_FAILED 7u /* could not work on it: the bytes must not go on */

/* Packets of a batch at most. */
#define KNET_BATCH_MAX 1024u
/* Bytes of a packet at most. */
#define KNET_PACKET_BYTES_MAX 16384u

/* One packet, in: one line. */
struct knet_packet {
    knet_u64 addr;     /*  0: device pointer to the payload, 16 bytes aligned */
    knet_u32 len;      /*  8: 1 .. KNET_PACKET_BYTES_MAX */
    knet_u32 flags;    /* 12 */
    knet_u64 offset;   /* 16: stream offset of the first byte; 0 for a segment */
    knet_u32 flow;     /* 24: the same number for the packets of a flow of this batch */
    knet_u32 ends[3];  /* 28: sender's address, receiver's address, sender's port, receiver's port as on the wire: chacha20's nonce */
    knet_u64 state[2]; /* 40: what `state` of the result was for the packet before it; 0 at the start of a stream */
    knet_u64 reserved; /* 56 */
};

/* One packet, out. */
struct knet_result {
    knet_u32 verdict;  /*  0: written last of its packet */
    knet_u32 value;    /*  4: what was found (the first match), or the mark */
    knet_u64 aux;      /*  8: of the kernel's own, below */
    knet_u64 state[2]; /* 16: what is kept for the next packet of this direction of the flow */
};

/* A batch: one line. */
struct knet_batch {
    knet_u32 status;   /*  0: volatile for both sides */
    knet_u32 count;    /*  4: 0 .. KNET_BATCH_MAX */
    knet_u64 seq;      /*  8: counts the batches of the ring from 1 */
    knet_u32 abi;      /* 16 */
    knet_u32 error;    /* 20 */
    knet_u64 params;   /* 24: device pointer to the kernel's parameters */
    knet_u64 scratch;  /* 32: device pointer to 64 bytes, zero when the batch begins and when it ends */
    knet_u64 packets;  /* 40: device pointer to struct knet_packet[count] */
    knet_u64 results;  /* 48: device pointer to struct knet_result[count] */
    knet_u64 reserved; /* 56 */
};

/* What a persistent kernel is started with: the host's line, and the kernel's. */
struct knet_ring {
    knet_u32 abi;           /*   0 */
    knet_u32 slots;         /*   4 */
    knet_u64 batches;       /*   8: device pointer to the batch of slot 0 */
    knet_u64 stride;        /*  16: bytes from batch to batch */
    knet_u64 scratch;       /*  24: device pointer to KNET_RING_SCRATCH_BYTES, zero at the start */
    knet_u32 quit;          /*  32: the host sets 1: end when no slot is KNET_READY, or at once when it is 2 */
    knet_u32 reserved[7];   /*  36 */
    knet_u64 heartbeat;     /*  64: the kernel counts up while it polls, and before each batch */
    knet_u64 ended;         /*  72: the kernel's last store: 1 */
    knet_u64 reserved2[6];  /*  80 */
};

#define KNET_RING_SCRATCH_BYTES 4096u

/*
 * Parameters, uploaded once, to memory that the kernel may write. Places in them (`..._at`) are bytes from the beginning of
 * the parameters; every table begins at a multiple of 16.
 *
 * pattern: state[0] is the state of `exact` and state[1] that of `any_case`; 0 is the start of both. The byte b (`any_case`: in
 * lower case) leads from state s to edges[s + b].to if edges[s + b].from is s; else it leads to where it leads from fail[s], or,
 * if s is 0, to 0. The top bit of `to` is no part of the state: it says that a pattern ends there, and found[to] is then 1 + the
 * number of the first that does. depth[s] is how many bytes s remembers. value = the pattern of the first match of `exact`, else
 * the first of `any_case`; aux = how many bytes ended in a state where one is found, of both.
 */
struct knet_automaton {
    knet_u32 states;   /*  0: a number above every state; 1: there are no patterns */
    knet_u32 reserved; /*  4 */
    knet_u64 edges_at; /*  8: { knet_u32 from, to; }[states + 256] */
    knet_u64 fail_at;  /* 16: knet_u32[states] */
    knet_u64 depth_at; /* 24: knet_u32[states] */
    knet_u64 found_at; /* 32: knet_u32[states] */
};
struct knet_pattern_params {
    struct knet_automaton exact;    /*  0 */
    struct knet_automaton any_case; /* 40 */
};

/* chacha20 (RFC 8439): block counter = offset / 64, nonce = ends. Fails where block 2^32 - 1 would be needed. */
struct knet_chacha20_params {
    knet_u32 key[8]; /* 0: little endian words, as in RFC 8439 */
};

/*
 * stats: value = entropy in bits a byte, with 16 binary places; aux = printable bytes (0x20 .. 0x7e) | random << 32, where random
 * is 1 for 512 bytes and more with at least 7.2 bits of entropy a byte. The kernel adds what it saw to the parameters.
 */
struct knet_stats_params {
    knet_u64 histogram[256]; /* 0 */
};

/*
 * crc32c: state[0] = digest of all bytes so far (CRC-32C, as printed), aux = the same. No parameters.
 *
 * macswap, peek, poke, stall, crash: of the benchmark only, see bench.cuh.
 *
 * user: the function of the user's PTX, which all lanes of the warp call together and whose answer lane 0 gives:
 *   extern "C" __device__ unsigned int NAME(const struct knet_packet *packet, struct knet_result *result,
 *                                           unsigned int lane, void *params);
 * `addr` of the packet is the payload. `result` is lane 0's to fill but for the verdict, which is what the function returns:
 * KNET_PASS to KNET_FAILED; anything else is KNET_FAILED. The others write into a copy that nobody reads.
 */

#endif
