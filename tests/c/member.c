/* One of many programs on one host: listens on its own port, and talks with an echo server for ever.
 *
 * usage: member ADDRESS PORT PEER PEER-PORT
 * Prints a line when it is at work, and one for each thing that should not happen, after which it begins anew. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in endpoint(const char *address, const char *port) {
  struct sockaddr_in made = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
  inet_pton(AF_INET, address, &made.sin_addr);
  return made;
}

static void told(const char *what) {
  printf("%s: %s\n", what, strerror(errno));
  fflush(stdout);
}

int main(int argc, char **argv) {
  if (argc != 5) return 64;
  struct sockaddr_in own = endpoint(argv[1], argv[2]), peer = endpoint(argv[3], argv[4]);
  int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (struct sockaddr *)&own, sizeof own) || listen(listener, 8)) {
    told("listen");
    return 1;
  }
  for (unsigned round = 0, begun = 0;; round = 0) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer)) {
      told("connect");
      close(fd);
      usleep(10000);
      continue;
    }
    for (;; round++) {
      char out[64], in[64];
      memset(out, (int)('a' + round % 26), sizeof out);
      size_t have = 0;
      if (send(fd, out, sizeof out, MSG_NOSIGNAL) != sizeof out) break;
      while (have < sizeof in) {
        ssize_t got = recv(fd, in + have, sizeof in - have, 0);
        if (got <= 0) break;
        have += (size_t)got;
      }
      if (have < sizeof in) break;
      if (memcmp(in, out, sizeof in)) {
        errno = EPROTO;
        break;
      }
      if (!begun) {
        begun = 1;
        printf("at work\n");
        fflush(stdout);
      }
      usleep(5000);
    }
    told("lost");
    close(fd);
  }
}
