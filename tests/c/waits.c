/*
 * An echo server that counts its waits: `waits ADDRESS PORT THREADS [compute]`. Each thread has an epoll and a listener of
 * its own at PORT, PORT + 1 ...; with `compute` one more thread computes for a second at a time. A line that begins with
 * 'C' is answered after a second of computing. At SIGTERM it tells what it counted and exits.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *address;
static atomic_ulong waits, echoes, interrupted;
static volatile sig_atomic_t over;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void end(int signal)
{
	(void)signal;
	over = 1;
}

static void compute(void)
{
	struct timespec now, until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while (!over && (now.tv_sec < until.tv_sec ||
			 (now.tv_sec == until.tv_sec && now.tv_nsec < until.tv_nsec)));
}

static void *computes(void *unused)
{
	(void)unused;
	while (!over)
		compute();
	return NULL;
}

static void *serves(void *number)
{
	const int one = 1;
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(long)number)};
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	int epoll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};

	if (inet_aton(address, &name.sin_addr) == 0 || listener < 0 || epoll < 0)
		die("socket");
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&name, sizeof(name)) != 0 || listen(listener, 64) != 0)
		die("listen");
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0)
		die("epoll_ctl");
	printf("listening %ld process %d\n", (long)number, (int)getpid());
	fflush(stdout);
	while (!over) {
		int count = epoll_wait(epoll, &event, 1, -1);

		waits++;
		if (count < 0) {
			if (errno != EINTR)
				die("epoll_wait");
			interrupted++;
			continue;
		}
		if (event.data.fd == listener) {
			event.data.fd = accept(listener, NULL, NULL);
			if (event.data.fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event) != 0)
				die("accept");
			continue;
		}
		char bytes[16384];
		ssize_t got = recv(event.data.fd, bytes, sizeof(bytes), 0);

		if (got <= 0) {
			close(event.data.fd);
			continue;
		}
		if (bytes[0] == 'C')
			compute();
		if (send(event.data.fd, bytes, (size_t)got, MSG_NOSIGNAL) != got)
			close(event.data.fd);
		echoes++;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = end};
	pthread_t threads[64];
	long first, count;

	if (argc < 4)
		return 64;
	address = argv[1];
	first = atol(argv[2]);
	count = atol(argv[3]);
	sigaction(SIGTERM, &action, NULL);
	if (count == 1 && argc == 4) {
		serves((void *)first);
	} else {
		for (long at = 0; at < count; at++)
			pthread_create(&threads[at], NULL, serves, (void *)(first + at));
		if (argc > 4)
			pthread_create(&threads[count], NULL, computes, NULL);
		/* The signal may be another thread's. */
		while (!over)
			usleep(10000);
	}
	printf("waits %lu echoes %lu interrupted %lu\n", waits, echoes, interrupted);
	fflush(stdout);
	exit(0);
}
