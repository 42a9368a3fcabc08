#!/usr/bin/env python3
"""nginx and lighttpd, unmodified, under the shim: the listener made before the fork serves after the parent is gone."""

import os
import signal

from harness import SERVER, Lab, main, passive_opens_unmoved, wait_for

PAGE = b"<html>" + b"knet " * 20_000 + b"</html>"


class Web:
    def __init__(self):
        self.lab = Lab()
        self.root = os.path.join(self.lab.work, "root")
        os.mkdir(self.root)
        os.chmod(self.lab.work, 0o755)
        with open(os.path.join(self.root, "page.html"), "wb") as file:
            file.write(PAGE)

    @property
    def processes(self):
        return self.lab.processes

    def get(self, port, path="/page.html"):
        peer = self.lab.connect(port)
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n".encode())
        parts = []
        while part := peer.recv(1 << 16):
            parts.append(part)
        peer.close()
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        return head.split(b"\r\n")[0], body

    def serves(self, port):
        def answers():
            try:
                return self.get(port)
            except OSError:
                return None

        wait_for("the server answers", answers, 15)
        before, accepted = self.lab.kernel_tcp(), self.lab.stats().get("flows_accepted", 0)
        for _ in range(50):
            status, body = self.get(port)
            assert status.endswith(b"200 OK"), status
            assert body == PAGE, (len(body), len(PAGE))
        passive_opens_unmoved(self.lab, before, accepted, 50)

    def stop(self, pidfile):
        with open(pidfile, encoding="ascii") as file:
            pid = int(file.read())
        os.kill(pid, signal.SIGTERM)
        wait_for("the server ends", lambda: not os.path.exists(f"/proc/{pid}"))


def nginx_as_a_daemon_of_one_process(web):
    config = os.path.join(web.lab.work, "nginx.conf")
    pidfile = os.path.join(web.lab.work, "nginx.pid")
    with open(config, "w", encoding="ascii") as file:
        file.write(
            f"daemon on; master_process off; pid {pidfile}; error_log {web.lab.work}/nginx.log;\n"
            "events { worker_connections 512; }\n"
            f"http {{ access_log off; sendfile on; server {{ listen {SERVER}:8080; root {web.root}; }} }}\n"
        )
    parent = web.lab.start("server", "nginx", "-c", config, log="nginx.out")
    parent.wait(15)
    assert parent.returncode == 0
    web.serves(8080)
    web.stop(pidfile)


def lighttpd_as_a_daemon(web):
    config = os.path.join(web.lab.work, "lighttpd.conf")
    pidfile = os.path.join(web.lab.work, "lighttpd.pid")
    with open(config, "w", encoding="ascii") as file:
        file.write(
            f'server.document-root = "{web.root}"\nserver.bind = "{SERVER}"\nserver.port = 8081\n'
            f'server.pid-file = "{pidfile}"\nserver.errorlog = "{web.lab.work}/lighttpd.log"\n'
        )
    parent = web.lab.start("server", "lighttpd", "-f", config, log="lighttpd.out")
    parent.wait(15)
    assert parent.returncode == 0
    web.serves(8081)
    web.stop(pidfile)


if __name__ == "__main__":
    main("web", [nginx_as_a_daemon_of_one_process, lighttpd_as_a_daemon], Web, lambda web: web.lab.close())
