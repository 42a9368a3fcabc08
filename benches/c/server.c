/*
 * server ADDRESS PORT [PROCESSES]: serves all kinds of connections of wire.h until it is ended; each process has one thread and
 * one epoll, and accepts as long as it has descriptors.
 */
#include "wire.h"

struct peer {
	int kind;
	int got;  /* bytes of a WHAT_ONCE request */
	int want; /* bytes of an echo that could not be sent yet */
	int from;
	char *bytes;
};

static struct peer *peers;
static int peers_max, peers_now;
static int watched = 1; /* the listener */
static char chunk[CHUNK];

static void ended(int fd)
{
	free(peers[fd].bytes);
	peers[fd] = (struct peer){0};
	peers_now--;
	close(fd);
}

static void accept_all(int listener, int epoll)
{
	while (watched) {
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
		int on = 1;
		struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

		if (fd < 0)
			return;
		if (fd >= peers_max) {
			close(fd);
			continue;
		}
		if (++peers_now >= peers_max - 100) {
			/* The other processes go on. */
			epoll_ctl(epoll, EPOLL_CTL_DEL, listener, NULL);
			watched = 0;
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		peers[fd] = (struct peer){0};
		epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	}
}

static void watch(int epoll, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};

	epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

/* Sends what is left of an echo; waits for room by EPOLLOUT. */
static void flush_echo(int epoll, int fd)
{
	struct peer *peer = &peers[fd];
	ssize_t sent = send(fd, peer->bytes + peer->from, (size_t)peer->want, MSG_NOSIGNAL);

	if (sent < 0 && errno != EAGAIN)
		return ended(fd);
	if (sent > 0) {
		peer->from += (int)sent;
		peer->want -= (int)sent;
	}
	if (peer->want == 0)
		watch(epoll, fd, EPOLLIN);
}

static void echo(int epoll, int fd, const char *bytes, int count)
{
	ssize_t sent = send(fd, bytes, (size_t)count, MSG_NOSIGNAL);
	struct peer *peer = &peers[fd];

	if (sent == count)
		return;
	if (sent < 0 && errno != EAGAIN)
		return ended(fd);
	if (sent < 0)
		sent = 0;
	if (peer->bytes == NULL)
		peer->bytes = malloc(CHUNK);
	peer->from = 0;
	peer->want = count - (int)sent;
	memcpy(peer->bytes, bytes + sent, (size_t)peer->want);
	watch(epoll, fd, EPOLLOUT);
}

static void pour(int fd)
{
	ssize_t sent;

	do
		sent = send(fd, chunk, sizeof chunk, MSG_NOSIGNAL);
	while (sent > 0);
	if (errno != EAGAIN)
		ended(fd);
}

static void readable(int epoll, int fd)
{
	struct peer *peer = &peers[fd];
	ssize_t got = recv(fd, chunk, sizeof chunk, 0);
	char *bytes = chunk;

	if (got == 0 || (got < 0 && errno != EAGAIN))
		return ended(fd);
	if (got < 0)
		return;
	if (peer->kind == 0) {
		peer->kind = *bytes++;
		got--;
		if (peer->kind == WHAT_SOURCE)
			return watch(epoll, fd, EPOLLOUT);
	}
	switch (peer->kind) {
	case WHAT_ECHO:
		if (got > 0)
			echo(epoll, fd, bytes, (int)got);
		break;
	case WHAT_ONCE:
		peer->got += (int)got;
		if (peer->got >= MESSAGE - 1) {
			if (send(fd, chunk, MESSAGE, MSG_NOSIGNAL) != MESSAGE)
				DIE("answer");
			ended(fd);
		}
		break;
	default:
		break;
	}
}

int main(int argc, char **argv)
{
	struct epoll_event events[MANY];
	struct sockaddr_in end;
	int on = 1;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
	struct rlimit limit;
	int epoll;

	if (argc < 3)
		return 64;
	end = endpoint(argv[1], argv[2]);
	more_descriptors();
	getrlimit(RLIMIT_NOFILE, &limit);
	peers_max = limit.rlim_cur > 1 << 20 ? 1 << 20 : (int)limit.rlim_cur;
	peers = calloc((size_t)peers_max, sizeof *peers);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (peers == NULL || bind(listener, (struct sockaddr *)&end, sizeof end) != 0 || listen(listener, 4096) != 0)
		DIE("listen");
	for (int others = argc > 3 ? atoi(argv[3]) - 1 : 0; others > 0; others--)
		if (fork() == 0)
			break;
	epoll = epoll_create1(0);
	epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
	for (;;) {
		int count = epoll_wait(epoll, events, MANY, -1);

		for (int i = 0; i < count; i++) {
			int fd = events[i].data.fd;

			if (fd == listener && watched)
				accept_all(listener, epoll);
			else if (fd == listener)
				continue;
			else if (peers[fd].kind == WHAT_SOURCE)
				events[i].events & (EPOLLHUP | EPOLLERR) ? ended(fd) : pour(fd);
			else if (peers[fd].want > 0)
				flush_echo(epoll, fd);
			else
				readable(epoll, fd);
		}
	}
}
