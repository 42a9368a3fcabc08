/*
 * See shim.h. Every function of the receive and transmit path belongs to the thread that owns the
 * queue; none blocks, none allocates outside the mbuf pools.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_interrupts.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_prefetch.h>
#include <rte_tcp.h>
#include <rte_version.h>

_Static_assert(sizeof(struct knet_slot) == 24, "plugin_abi.rs: Slot");
_Static_assert(sizeof(struct knet_stats) == 24, "plugin_abi.rs: QueueStats");
_Static_assert(sizeof(struct knet_chunk) == 16, "plugin_abi.rs: Chunk");

#if RTE_VERSION < RTE_VERSION_NUM(21, 11, 0, 0)
#error "DPDK 21.11 or newer is needed"
#endif

const uint64_t knet_rx_checksum_offloads =
	RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_TCP_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
const uint64_t knet_rx_lro_offloads = RTE_ETH_RX_OFFLOAD_TCP_LRO;
const uint64_t knet_rx_scatter_offload = RTE_ETH_RX_OFFLOAD_SCATTER;
const uint64_t knet_tx_tcp_offload = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
const uint64_t knet_tx_ipv4_offload = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
const uint64_t knet_tx_tso_offload = RTE_ETH_TX_OFFLOAD_TCP_TSO;
const uint64_t knet_tx_fast_free_offload = RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
/* Entries of struct rte_eth_rss_reta_entry64, and the most of all drivers. */
#define KNET_RETA_GROUP 64
#define KNET_RETA_MAX 4096

const uint64_t knet_rss_fields = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
const uint32_t knet_rss_mode = RTE_ETH_MQ_RX_RSS;

struct knet_queue {
	uint16_t port;
	uint16_t queue;
	int epoll;  /* holds the receive interrupt; -1 = none */
	int socket; /* the driver's own packet socket; -1 = none */
	bool interrupt; /* the port has receive interrupts: look again when epoll is -1 */
	uint32_t looks;
	struct rte_mempool *pool;
	struct rte_mempool *large; /* for frames that do not fit into `pool`; may be NULL */
	uint64_t tx_offloads;
	bool peer_decides; /* whether super-frames can be sent (peer.c) */
	struct knet_stats stats;
};

struct knet_queue *knet_queue_new(uint16_t port, uint16_t queue, struct rte_mempool *pool,
				  struct rte_mempool *large, uint64_t tx_offloads, bool peer_decides)
{
	struct knet_queue *q = calloc(1, sizeof(*q));

	if (q == NULL)
		return NULL;
	q->port = port;
	q->queue = queue;
	q->epoll = -1;
	q->socket = -1;
	q->pool = pool;
	q->large = large;
	q->tx_offloads = tx_offloads;
	q->peer_decides = peer_decides;
	return q;
}

void knet_queue_free(struct knet_queue *q)
{
	if (q->epoll >= 0)
		close(q->epoll);
	free(q);
}

/* ---- receive ---- */

/* The IPv4 header checksum holds (virtio vouches for the TCP part only). */
static bool ipv4_header_good(const struct rte_mbuf *m)
{
	const uint8_t *frame = rte_pktmbuf_mtod(m, const uint8_t *);
	uint32_t at = RTE_ETHER_HDR_LEN;
	uint16_t type;
	uint32_t bytes;

	if (m->data_len < RTE_ETHER_HDR_LEN + sizeof(struct rte_vlan_hdr) + sizeof(struct rte_ipv4_hdr))
		return false;
	type = (uint16_t)(frame[12] << 8 | frame[13]);
	if (type == RTE_ETHER_TYPE_VLAN) {
		type = (uint16_t)(frame[16] << 8 | frame[17]);
		at += sizeof(struct rte_vlan_hdr);
	}
	if (type == RTE_ETHER_TYPE_IPV6)
		return true;
	if (type != RTE_ETHER_TYPE_IPV4)
		return false;
	bytes = (frame[at] & 0x0fu) * 4u;
	if (bytes < sizeof(struct rte_ipv4_hdr) || at + bytes > m->data_len)
		return false;
	return rte_raw_cksum(frame + at, bytes) == 0xffff;
}

static uint16_t rx_flags(const struct rte_mbuf *m)
{
	const uint64_t l4 = m->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
	const uint64_t ip = m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
	uint16_t flags = 0;

	if (l4 == RTE_MBUF_F_RX_L4_CKSUM_BAD || ip == RTE_MBUF_F_RX_IP_CKSUM_BAD)
		return KNET_RX_CHECKSUM_BAD;
	/* NONE: not right in the frame, but the data is known to be (virtio, never left the machine). */
	if (l4 == RTE_MBUF_F_RX_L4_CKSUM_NONE)
		flags |= KNET_RX_CHECKSUM_PARTIAL;
	if (l4 != RTE_MBUF_F_RX_L4_CKSUM_UNKNOWN &&
	    (ip == RTE_MBUF_F_RX_IP_CKSUM_GOOD || ipv4_header_good(m)))
		flags |= KNET_RX_CHECKSUM_GOOD;
	return flags;
}

/* Makes one piece of a chain, or returns NULL and frees it. */
static struct rte_mbuf *linear(struct knet_queue *q, struct rte_mbuf *chain)
{
	struct rte_mbuf *whole;
	const struct rte_mbuf *part;
	uint8_t *to;

	if (rte_pktmbuf_linearize(chain) == 0)
		return chain;
	whole = q->large == NULL ? NULL : rte_pktmbuf_alloc(q->large);
	if (whole == NULL || rte_pktmbuf_tailroom(whole) < chain->pkt_len) {
		rte_pktmbuf_free(whole);
		rte_pktmbuf_free(chain);
		q->stats.rx_dropped_chained++;
		return NULL;
	}
	to = rte_pktmbuf_mtod(whole, uint8_t *);
	for (part = chain; part != NULL; part = part->next) {
		memcpy(to, rte_pktmbuf_mtod(part, const void *), part->data_len);
		to += part->data_len;
	}
	whole->data_len = (uint16_t)chain->pkt_len;
	whole->pkt_len = chain->pkt_len;
	whole->ol_flags |= chain->ol_flags & (RTE_MBUF_F_RX_L4_CKSUM_MASK | RTE_MBUF_F_RX_IP_CKSUM_MASK);
	rte_pktmbuf_free(chain);
	return whole;
}

uint32_t knet_rx_burst(struct knet_queue *q, struct knet_slot *slots, uint32_t max)
{
	struct rte_mbuf *burst[KNET_BURST_MAX];
	uint32_t used = 0;
	uint16_t count;
	uint16_t i;

	if (max > KNET_BURST_MAX)
		max = KNET_BURST_MAX;
	count = rte_eth_rx_burst(q->port, q->queue, burst, (uint16_t)max);
	for (i = 0; i < count; i++)
		rte_prefetch0(rte_pktmbuf_mtod(burst[i], const void *));
	for (i = 0; i < count; i++) {
		struct rte_mbuf *m = burst[i];

		if (unlikely(m->nb_segs > 1)) {
			m = linear(q, m);
			if (m == NULL)
				continue;
		}
		slots[used].handle = m;
		slots[used].data = rte_pktmbuf_mtod(m, uint8_t *);
		slots[used].len = m->data_len;
		slots[used].flags = rx_flags(m);
		slots[used].segment_bytes = 0;
		used++;
	}
	return used;
}

void knet_rx_free(struct knet_queue *q, const struct knet_slot *slots, uint32_t count)
{
	struct rte_mbuf *burst[KNET_BURST_MAX];
	uint32_t i;

	(void)q;
	if (count > KNET_BURST_MAX)
		count = KNET_BURST_MAX;
	for (i = 0; i < count; i++)
		burst[i] = slots[i].handle;
	rte_pktmbuf_free_bulk(burst, count);
}

/* ---- transmit ---- */

uint32_t knet_tx_alloc(struct knet_queue *q, struct knet_slot *slots, uint32_t count, uint32_t bytes)
{
	struct rte_mempool *pool = q->pool;
	struct rte_mbuf *burst[KNET_BURST_MAX];
	uint32_t i;

	if (count > KNET_BURST_MAX)
		count = KNET_BURST_MAX;
	if (bytes + RTE_PKTMBUF_HEADROOM > rte_pktmbuf_data_room_size(pool)) {
		pool = q->large;
		if (pool == NULL || bytes + RTE_PKTMBUF_HEADROOM > rte_pktmbuf_data_room_size(pool))
			return 0;
	}
	/* The bulk call is all or nothing: near the bottom of the pool take them one by one. */
	if (rte_pktmbuf_alloc_bulk(pool, burst, count) != 0) {
		for (i = 0; i < count; i++) {
			burst[i] = rte_pktmbuf_alloc(pool);
			if (burst[i] == NULL)
				break;
		}
		count = i;
	}
	for (i = 0; i < count; i++) {
		slots[i].handle = burst[i];
		slots[i].data = rte_pktmbuf_mtod(burst[i], uint8_t *);
		slots[i].len = rte_pktmbuf_tailroom(burst[i]);
		slots[i].flags = 0;
		slots[i].segment_bytes = 0;
	}
	return count;
}

/* 1 = super-frames can be sent now. */
uint32_t knet_tx_cuts(struct knet_queue *q)
{
	return (q->tx_offloads & RTE_ETH_TX_OFFLOAD_TCP_TSO) != 0 || (q->peer_decides && knet_peer_agrees());
}

/*
 * Writes what the port needs to fill in checksums and, when it `cuts`, to cut; false = the headers make no sense, or nobody
 * is there to cut.
 */
static bool offload(const struct knet_queue *q, struct rte_mbuf *m, uint16_t segment_bytes, bool cuts)
{
	uint8_t *frame = rte_pktmbuf_mtod(m, uint8_t *);
	uint32_t l2 = RTE_ETHER_HDR_LEN;
	uint32_t l3;
	uint32_t l4;
	uint16_t type;
	struct rte_tcp_hdr *tcp;

	if (m->data_len < l2 + sizeof(struct rte_vlan_hdr))
		return false;
	type = (uint16_t)(frame[12] << 8 | frame[13]);
	if (type == RTE_ETHER_TYPE_VLAN) {
		type = (uint16_t)(frame[16] << 8 | frame[17]);
		l2 += sizeof(struct rte_vlan_hdr);
	}
	if (type == RTE_ETHER_TYPE_IPV4) {
		if (m->data_len < l2 + sizeof(struct rte_ipv4_hdr))
			return false;
		l3 = (frame[l2] & 0x0fu) * 4u;
		if (l3 < sizeof(struct rte_ipv4_hdr) || frame[l2 + 9] != IPPROTO_TCP)
			return false;
	} else if (type == RTE_ETHER_TYPE_IPV6) {
		l3 = sizeof(struct rte_ipv6_hdr);
		if (m->data_len < l2 + l3 || frame[l2 + 6] != IPPROTO_TCP)
			return false;
	} else {
		return false;
	}
	if (m->data_len < l2 + l3 + sizeof(struct rte_tcp_hdr))
		return false;
	tcp = (struct rte_tcp_hdr *)(frame + l2 + l3);
	l4 = (uint32_t)(tcp->data_off >> 4) * 4u;
	if (l4 < sizeof(*tcp) || l2 + l3 + l4 > m->data_len)
		return false;
	m->l2_len = l2;
	m->l3_len = l3;
	m->l4_len = l4;
	m->ol_flags |= RTE_MBUF_F_TX_TCP_CKSUM;
	if (segment_bytes != 0 && l2 + l3 + l4 + segment_bytes < m->data_len) {
		if (!cuts || (q->peer_decides && type != RTE_ETHER_TYPE_IPV4))
			return false;
		m->ol_flags |= RTE_MBUF_F_TX_TCP_SEG;
		m->tso_segsz = segment_bytes;
	}
	if (type == RTE_ETHER_TYPE_IPV4) {
		struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)(frame + l2);

		m->ol_flags |= RTE_MBUF_F_TX_IPV4;
		ip->hdr_checksum = 0;
		if ((q->tx_offloads & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM) != 0)
			m->ol_flags |= RTE_MBUF_F_TX_IP_CKSUM;
		else
			ip->hdr_checksum = (uint16_t)~rte_raw_cksum(ip, l3);
		/* A card wants the sum without the length, which differs from segment to segment; virtio wants it as it is. */
		tcp->cksum = rte_ipv4_phdr_cksum(ip, q->peer_decides ? 0 : m->ol_flags);
	} else {
		m->ol_flags |= RTE_MBUF_F_TX_IPV6;
		tcp->cksum = rte_ipv6_phdr_cksum((struct rte_ipv6_hdr *)(frame + l2), m->ol_flags);
	}
	return true;
}

/* As knet_tx_burst; `cuts`: super-frames can be sent. */
static uint32_t send_burst(struct knet_queue *q, const struct knet_slot *slots, uint32_t count, bool cuts)
{
	struct rte_mbuf *burst[KNET_BURST_MAX];
	bool prepare = false;
	uint16_t ready;
	uint16_t sent;
	uint32_t i;

	for (i = 0; i < count; i++) {
		struct rte_mbuf *m = slots[i].handle;
		bool good = slots[i].len <= (uint32_t)(m->buf_len - m->data_off);

		if (good) {
			m->data_len = (uint16_t)slots[i].len;
			m->pkt_len = slots[i].len;
			m->ol_flags = 0;
			if ((slots[i].flags & KNET_TX_CHECKSUM) != 0 || slots[i].segment_bytes != 0) {
				good = offload(q, m, slots[i].segment_bytes, cuts);
				prepare = true;
			}
		}
		if (!good) {
			/* What is before it goes first; the caller comes again with it at the front. */
			if (i == 0) {
				rte_pktmbuf_free(m);
				q->stats.tx_dropped_malformed++;
				return 1;
			}
			break;
		}
		burst[i] = m;
	}
	ready = (uint16_t)i;
	if (ready == 0)
		return 0;
	if (prepare) {
		const uint16_t wanted = ready;

		ready = rte_eth_tx_prepare(q->port, q->queue, burst, wanted);
		if (ready == 0) {
			rte_pktmbuf_free(burst[0]);
			q->stats.tx_dropped_refused++;
			return 1;
		}
	}
	sent = rte_eth_tx_burst(q->port, q->queue, burst, ready);
	return sent;
}

/*
 * Sends from the front and returns how many slots are done with: sent, or dropped because nobody
 * could ever send them (counted). The others stay the caller's, untouched but for their checksums.
 * A super-frame that was made before a peer came which takes none is among those that are dropped.
 */
uint32_t knet_tx_burst(struct knet_queue *q, const struct knet_slot *slots, uint32_t count)
{
	const bool cuts = (q->tx_offloads & RTE_ETH_TX_OFFLOAD_TCP_TSO) != 0;
	bool large = false;
	uint32_t done;
	uint32_t i;

	if (count > KNET_BURST_MAX)
		count = KNET_BURST_MAX;
	for (i = 0; q->peer_decides && i < count; i++)
		large |= slots[i].segment_bytes != 0;
	if (!large)
		return send_burst(q, slots, count, cuts);
	done = send_burst(q, slots, count, knet_peer_enter());
	knet_peer_leave();
	return done;
}

void knet_queue_stats(const struct knet_queue *q, struct knet_stats *out)
{
	/* Written by the lcore, read now and then by another thread. */
	out->rx_dropped_chained = __atomic_load_n(&q->stats.rx_dropped_chained, __ATOMIC_RELAXED);
	out->tx_dropped_refused = __atomic_load_n(&q->stats.tx_dropped_refused, __ATOMIC_RELAXED);
	out->tx_dropped_malformed = __atomic_load_n(&q->stats.tx_dropped_malformed, __ATOMIC_RELAXED);
}

/* ---- sleeping ---- */

void knet_queue_use_socket(struct knet_queue *q, int fd)
{
	/*
	 * af_packet leaves the rest of a burst in its ring until the next one when the send buffer is full
	 * (208 KiB by default, less than 100 frames). Without the privilege the default stays.
	 */
	const int bytes = 16 << 20;

	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) != 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	q->socket = fd;
}

/*
 * Puts the queue's receive interrupt into an epoll of the queue's own, so that EAL knows how to
 * acknowledge it. vhost has its descriptor only once a peer is there: then a later call finds it.
 */
int knet_queue_use_interrupt(struct knet_queue *q)
{
	int epoll;
	int rc;

	q->interrupt = true;
	if (rte_eth_dev_rx_intr_ctl_q_get_fd(q->port, q->queue) < 0)
		return -ENOENT;
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		return -errno;
	rc = rte_eth_dev_rx_intr_ctl_q(q->port, q->queue, epoll, RTE_INTR_EVENT_ADD, NULL);
	if (rc != 0) {
		close(epoll);
		return rc;
	}
	q->epoll = epoll;
	return 0;
}

int knet_wait_fd(struct knet_queue *q)
{
	if (q->socket >= 0)
		return q->socket;
	if (q->epoll < 0 && q->interrupt && (q->looks++ & 0x3f) == 0)
		(void)knet_queue_use_interrupt(q);
	return q->epoll;
}

int knet_arm(struct knet_queue *q, uint32_t on)
{
	struct rte_epoll_event event;
	int rc = 0;

	if (q->socket >= 0) {
		/* An interface that went down left its error here; it would end every later sleep at once. */
		int error = 0;
		socklen_t bytes = sizeof(error);

		if (on)
			(void)getsockopt(q->socket, SOL_SOCKET, SO_ERROR, &error, &bytes);
		return 0;
	}
	if (q->epoll < 0)
		return -ENOENT;
	if (on) {
		rc = rte_eth_dev_rx_intr_enable(q->port, q->queue);
		/* tap: a level descriptor that needs no arming */
		return rc == -ENOTSUP ? 0 : rc;
	}
	rc = rte_eth_dev_rx_intr_disable(q->port, q->queue);
	while (rte_epoll_wait(q->epoll, &event, 1, 0) > 0)
		;
	return rc == -ENOTSUP ? 0 : rc;
}

/* ---- buffers ---- */

/*
 * As rte_pktmbuf_pool_create, for a driver that copies every frame: no buffer has to be contiguous for a
 * card, so that without hugepages not each one takes a page of its own.
 */
struct rte_mempool *knet_copied_pool(const char *name, uint32_t count, uint32_t cache, uint16_t room,
				     int socket)
{
	struct rte_pktmbuf_pool_private facts = {.mbuf_data_room_size = room};
	struct rte_mempool *pool =
		rte_mempool_create_empty(name, count, sizeof(struct rte_mbuf) + room, cache,
					 sizeof(facts), socket, RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	int rc;

	if (pool == NULL)
		return NULL;
	rc = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	if (rc == 0) {
		rte_pktmbuf_pool_init(pool, &facts);
		rc = rte_mempool_populate_default(pool);
	}
	if (rc < 0) {
		rte_mempool_free(pool);
		rte_errno = -rc;
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

struct chunks {
	struct knet_chunk *places;
	uint32_t room;
	uint32_t used;
};

static void note_chunk(struct rte_mempool *pool, void *to, struct rte_mempool_memhdr *chunk, unsigned index)
{
	struct chunks *all = to;

	(void)pool;
	(void)index;
	if (all->used < all->room) {
		all->places[all->used].start = chunk->addr;
		all->places[all->used].bytes = chunk->len;
	}
	all->used++;
}

/* Notes the memory of a pool, which may be NULL, behind `used` places; returns how many are used then, or would be. */
uint32_t knet_pool_chunks(struct rte_mempool *pool, struct knet_chunk *chunks, uint32_t room, uint32_t used)
{
	struct chunks all = {.places = chunks, .room = room, .used = used};

	if (pool != NULL)
		(void)rte_mempool_mem_iter(pool, note_chunk, &all);
	return all.used;
}

/* Entry i of the indirection table, of which a port has at most as many as one field can number, leads to queue i % queues. */
int knet_spread(uint16_t port, uint16_t entries, uint16_t queues)
{
	struct rte_eth_rss_reta_entry64 table[KNET_RETA_MAX / KNET_RETA_GROUP];
	uint16_t at;

	if (entries > KNET_RETA_MAX)
		return -EINVAL;
	memset(table, 0, sizeof(table));
	for (at = 0; at < entries; at++) {
		table[at / KNET_RETA_GROUP].mask |= UINT64_C(1) << (at % KNET_RETA_GROUP);
		table[at / KNET_RETA_GROUP].reta[at % KNET_RETA_GROUP] = at % queues;
	}
	return rte_eth_dev_rss_reta_update(port, table, entries);
}
