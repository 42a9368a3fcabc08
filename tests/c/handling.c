/* A server that does all of its work in a signal handler, which interrupts malloc: poll, select, accept, recv, send and close
 * are async-signal-safe (POSIX 2.4.3).
 *
 *   handling ADDRESS PORT CONNECTIONS       serves so many, one byte back for each, and ends
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { PEERS = 8, BLOCKS = 64 };
static int listener, peers[PEERS];
static volatile sig_atomic_t served;

static void serve(int signal)
{
    (void)signal;
    int error = errno;
    struct pollfd one = {listener, POLLIN, 0};
    if (poll(&one, 1, 0) > 0) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        int place = 0;
        while (place < PEERS && peers[place] >= 0) place++;
        if (fd >= 0 && place < PEERS)
            peers[place] = fd;
        else if (fd >= 0)
            close(fd);
    }
    fd_set all;
    FD_ZERO(&all);
    int most = -1;
    for (int n = 0; n < PEERS; n++) {
        if (peers[n] < 0) continue;
        FD_SET(peers[n], &all);
        if (peers[n] > most) most = peers[n];
    }
    struct timeval now = {0, 0};
    if (most >= 0 && select(most + 1, &all, NULL, NULL, &now) > 0)
        for (int n = 0; n < PEERS; n++) {
            char byte;
            if (peers[n] < 0 || !FD_ISSET(peers[n], &all)) continue;
            if (recv(peers[n], &byte, 1, MSG_DONTWAIT) == 1) {
                send(peers[n], &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
                continue;
            }
            close(peers[n]);
            peers[n] = -1;
            served++;
        }
    errno = error;
}

int main(int count, char **words)
{
    if (count != 4) return 64;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[2]))};
    inet_pton(AF_INET, words[1], &here.sin_addr);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    memset(peers, -1, sizeof peers);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 64)) return perror("listen"), 1;
    struct sigaction action = {.sa_handler = serve, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, NULL);
    puts("ready");
    fflush(stdout);
    void *blocks[BLOCKS] = {0};
    for (unsigned n = 0; served < atoi(words[3]); n++) {
        unsigned place = n * 2654435761u % BLOCKS;
        free(blocks[place]);
        size_t size = 1 + n * 40503u % 4000;
        blocks[place] = malloc(size);
        if (!blocks[place]) return 2;
        memset(blocks[place], 7, size);
    }
    signal(SIGALRM, SIG_IGN);
    for (int n = 0; n < BLOCKS; n++) free(blocks[n]);
    puts("served");
    return 0;
}
