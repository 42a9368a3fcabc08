/*
 * The calls that DPDK has only as inline functions or macros, one a burst: a frame never costs a
 * crossing. The slot and the statistics are defined in src/device/plugin_abi.rs; the sizes are
 * asserted on both sides.
 */
#ifndef KNET_SHIM_H
#define KNET_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_mempool;

/* Slots moved by one call at most (BURST_MAX of the device trait). */
#define KNET_BURST_MAX 32

/* Flags of a received slot. */
#define KNET_RX_CHECKSUM_GOOD 1u
#define KNET_RX_CHECKSUM_BAD 2u
#define KNET_RX_CHECKSUM_PARTIAL 4u
/* Flag of a slot to send. */
#define KNET_TX_CHECKSUM 1u

/* One frame: a received one, or one to fill and send. */
struct knet_slot {
	void *handle;
	uint8_t *data;
	uint32_t len;
	uint16_t flags;
	uint16_t segment_bytes;
};

/* What the C side dropped. */
struct knet_stats {
	uint64_t rx_dropped_chained;
	uint64_t tx_dropped_refused;
	uint64_t tx_dropped_malformed;
};

/* Memory in which frames lie. */
struct knet_chunk {
	uint8_t *start;
	uint64_t bytes;
};

struct knet_queue;

/* Offload and hash bits, which are macros in DPDK. */
extern const uint64_t knet_rx_checksum_offloads;
extern const uint64_t knet_rx_lro_offloads;
extern const uint64_t knet_rx_scatter_offload;
extern const uint64_t knet_tx_tcp_offload;
extern const uint64_t knet_tx_ipv4_offload;
extern const uint64_t knet_tx_tso_offload;
extern const uint64_t knet_tx_fast_free_offload;
int knet_spread(uint16_t port, uint16_t entries, uint16_t queues);
extern const uint64_t knet_rss_fields;
extern const uint32_t knet_rss_mode;

struct rte_mempool *knet_copied_pool(const char *name, uint32_t count, uint32_t cache, uint16_t room,
				     int socket);

uint32_t knet_pool_chunks(struct rte_mempool *pool, struct knet_chunk *chunks, uint32_t room, uint32_t used);

struct knet_queue *knet_queue_new(uint16_t port, uint16_t queue, struct rte_mempool *pool,
				  struct rte_mempool *large, uint64_t tx_offloads, bool peer_decides);
void knet_queue_free(struct knet_queue *q);

uint32_t knet_rx_burst(struct knet_queue *q, struct knet_slot *slots, uint32_t max);
void knet_rx_free(struct knet_queue *q, const struct knet_slot *slots, uint32_t count);
uint32_t knet_tx_alloc(struct knet_queue *q, struct knet_slot *slots, uint32_t count, uint32_t bytes);
uint32_t knet_tx_burst(struct knet_queue *q, const struct knet_slot *slots, uint32_t count);
uint32_t knet_tx_cuts(struct knet_queue *q);
void knet_queue_stats(const struct knet_queue *q, struct knet_stats *out);

/* What the peer of a vhost port agreed to. `driver_name` is the driver's own literal. */
int knet_peer_watch(uint16_t port, const char *driver_name);
void knet_peer_unwatch(void);
/* Asks anew: for a peer that was there before the port was started. */
void knet_peer_ask(void);
/* Whether super-frames may be made now. */
bool knet_peer_agrees(void);
/* Whether they may be sent, from here to knet_peer_leave. */
bool knet_peer_enter(void);
void knet_peer_leave(void);

/* Sleeping. */
void knet_queue_use_socket(struct knet_queue *q, int fd);
int knet_queue_use_interrupt(struct knet_queue *q);
int knet_wait_fd(struct knet_queue *q);
int knet_arm(struct knet_queue *q, uint32_t on);
uint32_t knet_packet_sockets(int *out, uint32_t max);

/* Odds and ends. */
int knet_errno(void);
int knet_has_lcore(void);
void knet_thread_borrow(void);
void knet_thread_return(void);
int knet_log_open(void);
void knet_output_divert(void);
void knet_output_restore(void);
size_t knet_log_tail(char *out, size_t room);
int knet_link_up(uint16_t port);
int knet_interface_mtu(unsigned int index);
int knet_interface_name(unsigned int index, char *out);
int knet_affinity_save(void *out, size_t room);
void knet_affinity_restore(const void *saved, size_t bytes);

#endif
