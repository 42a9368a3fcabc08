/* What the benchmark's server and client share. Plain POSIX: the same binaries run on the kernel and under the shim. */
#ifndef KNET_BENCH_WIRE_H
#define KNET_BENCH_WIRE_H

#define _GNU_SOURCE /* accept4 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The first byte of a connection says what it is for. */
enum what {
	WHAT_ECHO = 'e',   /* every byte comes back */
	WHAT_SINK = 'k',   /* bytes are thrown away */
	WHAT_SOURCE = 's', /* bytes come until the client closes */
	WHAT_ONCE = 'o',   /* 64 bytes in, 64 bytes out, the server closes */
};

enum { MESSAGE = 64, CHUNK = 64 << 10, MANY = 256 };

#define DIE(...)                                                          \
	do {                                                              \
		fprintf(stderr, __VA_ARGS__);                             \
		fprintf(stderr, ": %s\n", strerror(errno));               \
		exit(1);                                                  \
	} while (0)

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline struct sockaddr_in endpoint(const char *address, const char *port)
{
	struct sockaddr_in end = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, address, &end.sin_addr) != 1)
		DIE("address %s", address);
	return end;
}

static inline void more_descriptors(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

#endif
