/*
 * client ADDRESS PORT ping BYTES COUNT            -> {"p50": ns, "p99": ns, "p999": ns, "count": n}
 * client ADDRESS PORT send|receive STREAMS MS     -> {"mbit_s": x, "count": streams}
 * client ADDRESS PORT connect PARALLEL MS         -> {"per_s": x, "count": connections}
 * client ADDRESS PORT short PARALLEL COUNT        for each line on stdin so many connections of that kind, however long they take -> "made N"; ends with stdin
 * client ADDRESS PORT hold COUNT BYTES            connections from the addresses in BENCH_LOCAL in turn; one request and answer of BYTES each, then "ready N"; for each line "ping" on
 *                                                 stdin one more on the next connection -> its nanoseconds; ends with stdin
 */
#include "wire.h"

static struct sockaddr_in end;
static char chunk[CHUNK];

/* More connections than one address has ports need several. */
static void leave_from(int fd)
{
	static char *locals, *next;
	struct sockaddr_in local;
	int on = 1;

	if (locals == NULL)
		locals = getenv("BENCH_LOCAL");
	if (locals == NULL)
		return;
	if (next == NULL || *next == 0)
		next = locals;
	local = endpoint(strndupa(next, strcspn(next, ",")), "0");
	next += strcspn(next, ",");
	next += *next == ',';
	setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
	if (bind(fd, (struct sockaddr *)&local, sizeof local) != 0)
		DIE("bind");
}

static int join(int what, int flags)
{
	int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	int on = 1;
	char first = (char)what;

	if (fd < 0)
		DIE("socket");
	leave_from(fd);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	if (connect(fd, (struct sockaddr *)&end, sizeof end) != 0) {
		if (errno == EINPROGRESS)
			return fd;
		DIE("connect");
	}
	if (send(fd, &first, 1, 0) != 1)
		DIE("first byte");
	return fd;
}

static uint64_t ask(int fd, size_t bytes)
{
	uint64_t begin = now_ns();
	size_t done = 0;

	if (send(fd, chunk, bytes, 0) != (ssize_t)bytes)
		DIE("send");
	while (done < bytes) {
		ssize_t got = recv(fd, chunk, sizeof chunk, 0);

		if (got <= 0)
			DIE("receive");
		done += (size_t)got;
	}
	return now_ns() - begin;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void ping(size_t bytes, size_t count)
{
	uint64_t *times = calloc(count, sizeof *times);
	int fd = join(WHAT_ECHO, 0);

	for (size_t i = 0; i < count / 10 + 10; i++)
		ask(fd, bytes);
	for (size_t i = 0; i < count; i++)
		times[i] = ask(fd, bytes);
	qsort(times, count, sizeof *times, by_value);
	printf("{\"p50\": %lu, \"p99\": %lu, \"p999\": %lu, \"count\": 1}\n", (unsigned long)times[count / 2],
	       (unsigned long)times[count * 99 / 100], (unsigned long)times[count * 999 / 1000]);
}

static void stream(int what, int streams, uint64_t ms)
{
	struct epoll_event events[MANY];
	int epoll = epoll_create1(0);
	uint64_t begin, stop, bytes = 0;

	for (int i = 0; i < streams; i++) {
		int fd = join(what, 0);
		struct epoll_event event = {.events = what == WHAT_SINK ? EPOLLOUT : EPOLLIN, .data.fd = fd};

		fcntl(fd, F_SETFL, O_NONBLOCK);
		epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	}
	/* The first fifth is slow start and is not counted. */
	begin = now_ns() + ms * 200000u;
	stop = begin + ms * 800000u;
	for (uint64_t now = now_ns(); now < stop; now = now_ns()) {
		int count = epoll_wait(epoll, events, MANY, 100);

		for (int i = 0; i < count; i++) {
			int fd = events[i].data.fd;
			ssize_t part = what == WHAT_SINK ? send(fd, chunk, sizeof chunk, MSG_NOSIGNAL)
							 : recv(fd, chunk, sizeof chunk, 0);

			if (part < 0 && errno != EAGAIN)
				DIE("stream");
			if (part > 0 && now >= begin)
				bytes += (uint64_t)part;
		}
	}
	printf("{\"mbit_s\": %.1f, \"count\": %d}\n", (double)bytes * 8000 / ((double)ms * 800000u), streams);
}

/* Short connections: made, 64 bytes each way, closed by the server; PARALLEL at a time. Returns how many. */
static unsigned long short_ones(int parallel, uint64_t stop, unsigned long most)
{
	struct epoll_event events[MANY];
	int epoll = epoll_create1(0);
	unsigned long made = 0, open = 0, done = 0;

	while (open > 0 || (now_ns() < stop && made < most)) {
		int count;

		while (open < (unsigned long)parallel && now_ns() < stop && made < most) {
			int fd = join(WHAT_ONCE, SOCK_NONBLOCK);
			struct epoll_event event = {.events = EPOLLOUT, .data.fd = fd};

			epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
			open++;
			made++;
		}
		count = epoll_wait(epoll, events, MANY, 1000);
		for (int i = 0; i < count; i++) {
			int fd = events[i].data.fd;
			struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

			if (events[i].events & EPOLLOUT) {
				chunk[0] = WHAT_ONCE;
				if (send(fd, chunk, MESSAGE, MSG_NOSIGNAL) != MESSAGE)
					DIE("request");
				epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
				continue;
			}
			if (recv(fd, chunk, sizeof chunk, 0) > 0)
				continue; /* the end of the stream follows */
			close(fd);
			open--;
			done++;
		}
		if (count == 0)
			DIE("no answer on %lu of %lu connections", open, made);
	}
	close(epoll);
	return done;
}

static void connect_often(int parallel, uint64_t ms)
{
	/* The first connection of a program starts what it needs. */
	unsigned long first = short_ones(1, UINT64_MAX, 10);
	uint64_t begin = now_ns();
	unsigned long done = short_ones(parallel, begin + ms * 1000000u, ULONG_MAX);

	printf("{\"per_s\": %.1f, \"count\": %lu}\n", (double)done * 1e9 / (double)(now_ns() - begin), first + done);
}

static void connect_when_asked(int parallel, unsigned long count)
{
	char line[64];

	while (fgets(line, sizeof line, stdin) != NULL) {
		printf("made %lu\n", short_ones(parallel, UINT64_MAX, count));
		fflush(stdout);
	}
}

/* Many connections at once: one round trip each takes long. */
static void join_all(int *fds, int count, size_t bytes)
{
	for (int i = 0; i < count; i++)
		fds[i] = join(WHAT_ECHO, SOCK_NONBLOCK);
	for (int i = 0; i < count; i++) {
		struct pollfd ready = {.fd = fds[i], .events = POLLOUT};
		char first = WHAT_ECHO;

		if (poll(&ready, 1, 10000) != 1 || !(ready.revents & POLLOUT) || (ready.revents & POLLERR))
			DIE("connect");
		fcntl(fds[i], F_SETFL, 0);
		if (send(fds[i], &first, 1, 0) != 1)
			DIE("first byte");
	}
	for (int i = 0; i < count; i++)
		ask(fds[i], bytes);
}

static void hold(int count, size_t bytes)
{
	int *fds = calloc((size_t)count, sizeof *fds);
	char line[64];
	int at = 0;

	for (int i = 0; i < count; i += MANY)
		join_all(fds + i, count - i < MANY ? count - i : MANY, bytes);
	printf("ready %d\n", count);
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) != NULL) {
		printf("%lu\n", (unsigned long)ask(fds[at++ % count], bytes));
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 64;
	end = endpoint(argv[1], argv[2]);
	more_descriptors();
	if (strcmp(argv[3], "ping") == 0)
		ping((size_t)atol(argv[4]), (size_t)atol(argv[5]));
	else if (strcmp(argv[3], "send") == 0)
		stream(WHAT_SINK, atoi(argv[4]), (uint64_t)atol(argv[5]));
	else if (strcmp(argv[3], "receive") == 0)
		stream(WHAT_SOURCE, atoi(argv[4]), (uint64_t)atol(argv[5]));
	else if (strcmp(argv[3], "connect") == 0)
		connect_often(atoi(argv[4]), (uint64_t)atol(argv[5]));
	else if (strcmp(argv[3], "short") == 0)
		connect_when_asked(atoi(argv[4]), (unsigned long)atol(argv[5]));
	else if (strcmp(argv[3], "hold") == 0)
		hold(atoi(argv[4]), (size_t)atol(argv[5]));
	else
		return 64;
	return 0;
}
