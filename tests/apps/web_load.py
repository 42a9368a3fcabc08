#!/usr/bin/env python3
"""wrk and ab: under the shim against nginx on the kernel, and on the kernel against nginx under the shim."""

import os
import re

from harness import CLIENT, SERVER, Lab, main, reached, served, wait_for
from origin import content

PORT = 8080
CONFIG = """
daemon off; pid {work}/{end}.pid; error_log {work}/{end}.log; user root; {processes}
events {{ worker_connections 2048; }}
http {{
  access_log off; sendfile on; keepalive_requests 100000; client_body_temp_path {work}/body-{end};
  proxy_temp_path {work}/proxy-{end}; fastcgi_temp_path {work}/fastcgi-{end}; uwsgi_temp_path {work}/uwsgi-{end};
  scgi_temp_path {work}/scgi-{end};
  server {{ listen {address}:8080 backlog=1024; root {work}/root; }}
}}
"""


class WebLoad:
    def __init__(self):
        self.lab = Lab()
        work = self.lab.work
        os.chmod(work, 0o755)
        os.mkdir(os.path.join(work, "root"))
        for size in (100, 8_192):
            with open(os.path.join(work, "root", str(size)), "wb") as file:
                file.write(content(size))
        for end, address, processes in (("client", CLIENT, ""), ("server", SERVER, "master_process off;")):
            config = os.path.join(work, f"{end}.conf")
            with open(config, "w", encoding="ascii") as file:
                file.write(CONFIG.format(work=work, end=end, address=address, processes=processes))
            self.lab.start(end, "nginx", "-c", config, log=f"nginx-{end}.out")
            wait_for(f"nginx at {address} answers", lambda: self.answers(address), 15)

    @property
    def processes(self):
        return self.lab.processes

    def answers(self, address):
        try:
            self.lab.connect(PORT, 2.0, address).close()
            return True
        except OSError:
            return False


def wrk(run, url):
    out = run("wrk", "-t", "2", "-c", "50", "-d", "1", f"{url}/8192")
    print(re.search("Requests/sec: .*", out)[0], flush=True)
    assert "Socket errors" not in out and "Non-2xx" not in out, out
    assert int(re.search(r"(\d+) requests in", out)[1]) >= 500, out


def ab(run, url):
    for options in (["-k", "-c", "50", "-n", "3000"], ["-c", "20", "-n", "1000"]):
        out = run("ab", "-q", *options, f"{url}/8192")
        assert f"Complete requests:      {options[-1]}\n" in out and "Failed requests:        0\n" in out, out
        assert "Non-2xx" not in out, out


def wrk_under_the_shim(load):
    with reached(load.lab, 50):
        wrk(load.lab.shimmed, f"http://{CLIENT}:{PORT}")


def ab_under_the_shim(load):
    with reached(load.lab, 1_050):
        ab(load.lab.shimmed, f"http://{CLIENT}:{PORT}")


def wrk_on_the_kernel(load):
    with served(load.lab, 50):
        wrk(load.lab.client, f"http://{SERVER}:{PORT}")


def ab_on_the_kernel(load):
    with served(load.lab, 1_050):
        ab(load.lab.client, f"http://{SERVER}:{PORT}")


if __name__ == "__main__":
    main(
        "web_load", [wrk_under_the_shim, ab_under_the_shim, wrk_on_the_kernel, ab_on_the_kernel], WebLoad,
        lambda load: load.lab.close(),
    )
