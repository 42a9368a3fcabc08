/*
 * See shim.h. What DPDK does to the process around it, and what the kernel says of its interfaces. None of this is on
 * the path of a frame.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>

/* The open AF_PACKET sockets that are bound to an interface, and the AF_XDP ones, by number. */
uint32_t knet_packet_sockets(int *out, uint32_t max)
{
	DIR *folder = opendir("/proc/self/fd");
	const struct dirent *entry;
	uint32_t found = 0;

	if (folder == NULL)
		return 0;
	while (found < max && (entry = readdir(folder)) != NULL) {
		const int fd = atoi(entry->d_name);
		int domain = 0;
		socklen_t bytes = sizeof(domain);

		if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0)
			continue;
		if (domain == AF_PACKET) {
			struct sockaddr_ll name = {0};
			socklen_t room = sizeof(name);

			if (getsockname(fd, (struct sockaddr *)&name, &room) != 0 || name.sll_ifindex == 0)
				continue;
		} else if (domain != AF_XDP) {
			continue;
		}
		out[found++] = fd;
	}
	closedir(folder);
	return found;
}

/* ---- odds and ends ---- */

int knet_errno(void)
{
	return rte_errno;
}

int knet_has_lcore(void)
{
	return rte_lcore_id() != LCORE_ID_ANY;
}

/*
 * The number (and with it the buffer caches) of those threads that drive a queue pair in turn. A number each
 * would leave buffers behind in every thread's cache, and DPDK has only 128 of them. The first one is
 * registered for good, the others carry its number while they drive.
 */
static unsigned int shared_lcore = LCORE_ID_ANY;

void knet_thread_borrow(void)
{
	if (RTE_PER_LCORE(_lcore_id) != LCORE_ID_ANY)
		return;
	if (shared_lcore == LCORE_ID_ANY && rte_thread_register() == 0)
		shared_lcore = rte_lcore_id();
	RTE_PER_LCORE(_lcore_id) = shared_lcore;
}

void knet_thread_return(void)
{
	if (RTE_PER_LCORE(_lcore_id) == shared_lcore)
		RTE_PER_LCORE(_lcore_id) = LCORE_ID_ANY;
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[8192];
static size_t log_used;

static ssize_t log_write(void *cookie, const char *bytes, size_t count)
{
	const size_t room = sizeof(log_text);
	const size_t all = count;

	(void)cookie;
	if (count > room / 2) {
		bytes += count - room / 2;
		count = room / 2;
	}
	pthread_mutex_lock(&log_lock);
	if (log_used + count > room) {
		memmove(log_text, log_text + log_used - room / 2, room / 2);
		log_used = room / 2;
	}
	memcpy(log_text + log_used, bytes, count);
	log_used += count;
	pthread_mutex_unlock(&log_lock);
	return (ssize_t)all;
}

static FILE *log_stream;

/* From here on DPDK's log goes into memory; nothing is written to the program's descriptors. */
int knet_log_open(void)
{
	const cookie_io_functions_t calls = {.write = log_write};
	FILE *stream = fopencookie(NULL, "w", calls);

	if (stream == NULL)
		return -errno;
	setvbuf(stream, NULL, _IOLBF, 1024);
	log_stream = stream;
	return rte_openlog_stream(stream);
}

/*
 * EAL prints its usage on standard output when it dislikes an argument, getopt and libxdp complain on
 * standard error. In a process of the host's own the first is dropped and the second joins the log;
 * in somebody else's process another thread may be printing, so there nothing is diverted.
 */
static FILE *saved_output;
static FILE *saved_errors;
static FILE *nowhere;

void knet_output_divert(void)
{
#ifdef __GLIBC__
	nowhere = fopen("/dev/null", "we");
	if (nowhere == NULL || log_stream == NULL)
		return;
	saved_output = stdout;
	saved_errors = stderr;
	stdout = nowhere;
	stderr = log_stream;
#endif
}

void knet_output_restore(void)
{
#ifdef __GLIBC__
	if (saved_output != NULL) {
		fflush(log_stream);
		stdout = saved_output;
		stderr = saved_errors;
		saved_output = NULL;
	}
	if (nowhere != NULL) {
		fclose(nowhere);
		nowhere = NULL;
	}
#endif
}

/* Copies the end of the log, at most `room` bytes. */
size_t knet_log_tail(char *out, size_t room)
{
	size_t count;

	pthread_mutex_lock(&log_lock);
	count = log_used < room ? log_used : room;
	memcpy(out, log_text + log_used - count, count);
	pthread_mutex_unlock(&log_lock);
	return count;
}

/* Asks the kernel about an interface: `request` with a name in `ask`. */
static int ask_interface(unsigned int index, unsigned long request, struct ifreq *ask)
{
	int fd;
	int rc;

	memset(ask, 0, sizeof(*ask));
	if (if_indextoname(index, ask->ifr_name) == NULL)
		return -errno;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	rc = ioctl(fd, request, ask) == 0 ? 0 : -errno;
	close(fd);
	return rc;
}

int knet_interface_mtu(unsigned int index)
{
	struct ifreq ask;
	const int rc = ask_interface(index, SIOCGIFMTU, &ask);

	return rc == 0 ? ask.ifr_mtu : rc;
}

/* `out` has IF_NAMESIZE (16) bytes. */
int knet_interface_name(unsigned int index, char *out)
{
	return if_indextoname(index, out) == NULL ? -errno : 0;
}

/*
 * 1 up, 0 down or gone, negative errno. A driver on top of a kernel interface is asked through the
 * kernel: af_packet itself always says up.
 */
int knet_link_up(uint16_t port)
{
	struct rte_eth_dev_info info;
	struct rte_eth_link link;
	struct ifreq ask;
	int rc = rte_eth_dev_info_get(port, &info);

	if (rc != 0)
		return rc;
	if (info.if_index != 0) {
		rc = ask_interface(info.if_index, SIOCGIFFLAGS, &ask);
		return rc == 0 && (ask.ifr_flags & IFF_UP) != 0 && (ask.ifr_flags & IFF_RUNNING) != 0;
	}
	memset(&link, 0, sizeof(link));
	rc = rte_eth_link_get_nowait(port, &link);
	return rc != 0 ? rc : link.link_status == RTE_ETH_LINK_UP;
}

int knet_affinity_save(void *out, size_t room)
{
	memset(out, 0, room);
	return pthread_getaffinity_np(pthread_self(), room, out);
}

void knet_affinity_restore(const void *saved, size_t bytes)
{
	(void)pthread_setaffinity_np(pthread_self(), bytes, saved);
}
