/*
 * What the peer of a vhost port agreed to. The driver declares no segmentation offload, but the header of a super-frame is
 * written by librte_vhost whatever the port declares, and a peer that agreed to VIRTIO_NET_F_GUEST_TSO4 takes it. Its features
 * are asked in the callback of librte_vhost's own thread in which they cannot go away, each time that a peer comes.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>

#include <rte_ethdev.h>
#include <rte_pause.h>

/* Bits of the virtio specification (sections 5.1.3 and 6): partial checksums, segments to be, frames across buffers. */
#define GUEST_CSUM (UINT64_C(1) << 1)
#define GUEST_TSO4 (UINT64_C(1) << 7)
#define MRG_RXBUF (UINT64_C(1) << 15)
#define NEEDED (GUEST_CSUM | GUEST_TSO4 | MRG_RXBUF)

/* The only port of the process; the calls are the driver's and librte_vhost's, NULL where the port is another one. */
static struct {
	int (*device_of)(uint16_t port);
	int (*features_of)(int device, uint64_t *features);
	uint16_t port;
	uint32_t changes; /* times that a peer came or went */
	uint32_t agreed;  /* the peer takes super-frames */
	uint32_t sending; /* queues that send some because of it */
} peer;

/* Held from the question to the answer, so that no peer goes or comes in between. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

/* Nobody sends a super-frame once this is back. */
static void withdraw(void)
{
	__atomic_store_n(&peer.agreed, 0, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&peer.sending, __ATOMIC_SEQ_CST) != 0)
		rte_pause();
}

/* With the lock. An answer about a peer of before counts for none: the callback that waits for the lock asks anew. */
static void ask(void)
{
	const uint32_t before = __atomic_load_n(&peer.changes, __ATOMIC_SEQ_CST);
	uint64_t features = 0;
	const int device = peer.device_of(peer.port);
	const bool takes = device >= 0 && peer.features_of(device, &features) == 0 && (features & NEEDED) == NEEDED;

	if (takes && __atomic_load_n(&peer.changes, __ATOMIC_SEQ_CST) == before)
		__atomic_store_n(&peer.agreed, 1, __ATOMIC_SEQ_CST);
	else
		withdraw();
}

void knet_peer_ask(void)
{
	if (peer.device_of == NULL)
		return;
	pthread_mutex_lock(&asking);
	ask();
	pthread_mutex_unlock(&asking);
}

/* A peer came or went. The driver lets frames through to a new one before it tells; it told before that the old one went. */
static int on_link(uint16_t port, enum rte_eth_event_type event, void *unused, void *result)
{
	(void)port;
	(void)event;
	(void)unused;
	(void)result;
	__atomic_add_fetch(&peer.changes, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&asking);
	withdraw();
	ask();
	pthread_mutex_unlock(&asking);
	return 0;
}

int knet_peer_watch(uint16_t port, const char *driver_name)
{
	Dl_info driver;
	void *object;

	/* The name is a literal of the driver, which EAL loaded for itself only. */
	if (dladdr(driver_name, &driver) == 0 || driver.dli_fname == NULL)
		return -ENOENT;
	object = dlopen(driver.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	if (object == NULL)
		return -ENOENT;
	*(void **)&peer.device_of = dlsym(object, "rte_eth_vhost_get_vid_from_port_id");
	*(void **)&peer.features_of = dlsym(object, "rte_vhost_get_negotiated_features");
	/* EAL holds it as long as the port is there. */
	dlclose(object);
	peer.port = port;
	if (peer.device_of == NULL || peer.features_of == NULL ||
	    rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_LSC, on_link, NULL) != 0) {
		peer.device_of = NULL;
		return -ENOTSUP;
	}
	return 0;
}

void knet_peer_unwatch(void)
{
	if (peer.device_of == NULL)
		return;
	/* In the middle of one it says so. */
	while (rte_eth_dev_callback_unregister(peer.port, RTE_ETH_EVENT_INTR_LSC, on_link, NULL) == -EAGAIN)
		rte_pause();
	peer.device_of = NULL;
	__atomic_store_n(&peer.agreed, 0, __ATOMIC_SEQ_CST);
}

bool knet_peer_agrees(void)
{
	return __atomic_load_n(&peer.agreed, __ATOMIC_RELAXED) != 0;
}

bool knet_peer_enter(void)
{
	__atomic_add_fetch(&peer.sending, 1, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&peer.agreed, __ATOMIC_SEQ_CST) != 0;
}

void knet_peer_leave(void)
{
	__atomic_sub_fetch(&peer.sending, 1, __ATOMIC_RELEASE);
}
