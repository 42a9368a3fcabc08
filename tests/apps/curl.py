#!/usr/bin/env python3
"""curl under the shim against nginx on the kernel; and the other way round a large file, as one stream of each version."""

import hashlib
import os

from harness import CLIENT, SERVER, Lab, certificate, main, reached, served, wait_for
from origin import Origin, content

PLAIN, SECURE, ORIGIN = 8080, 8443, 9000
LONG = os.environ.get("KNET_TEST_LONG") == "1"
LARGE = (1024 if LONG else 64) << 20

CONFIG = """
daemon off; pid {work}/{end}.pid; error_log {work}/{end}.log; user root; {processes}
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; client_max_body_size 0; client_body_temp_path {work}/body-{end}; proxy_temp_path {work}/proxy-{end};
  fastcgi_temp_path {work}/fastcgi-{end}; uwsgi_temp_path {work}/uwsgi-{end}; scgi_temp_path {work}/scgi-{end};
  server {{
    listen {address}:8080; listen {address}:8443 ssl http2; root {work}/root;
    ssl_certificate {cert}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;
    location /origin/ {{ proxy_pass http://{client}:9000/; proxy_request_buffering off; }}
    location /moved {{ return 302 /1460; }}
    location /slow/ {{ alias {work}/root/; limit_rate 300k; }}
  }}
}}
"""


class Curl:
    def __init__(self):
        self.lab = Lab()
        work = self.lab.work
        os.chmod(work, 0o755)
        os.mkdir(os.path.join(work, "root"))
        for size in (1, 1_460, 65_536, 1 << 20):
            with open(os.path.join(work, "root", str(size)), "wb") as file:
                file.write(content(size))
        block, digest = content(1 << 20), hashlib.sha256()
        with open(os.path.join(work, "root", "large"), "wb") as file:
            for n in range(LARGE >> 20):
                part = n.to_bytes(8, "big") + block[8:]
                file.write(part)
                digest.update(part)
        self.digest = digest.hexdigest()
        self.cert, key = certificate(work)
        for end, address, processes in (("client", CLIENT, ""), ("server", SERVER, "master_process off;")):
            config = os.path.join(work, f"{end}.conf")
            with open(config, "w", encoding="ascii") as file:
                file.write(CONFIG.format(
                    work=work, end=end, address=address, cert=self.cert, key=key, client=CLIENT, processes=processes
                ))
            self.lab.start(end, "nginx", "-c", config, log=f"nginx-{end}.out")
        for address in (CLIENT, SERVER):
            wait_for(f"nginx at {address} answers", lambda: self.lab.listens(PLAIN, address), 15)
        self.origin = Origin(self.lab, ORIGIN)

    @property
    def processes(self):
        return self.lab.processes

    def path(self, name):
        return os.path.join(self.lab.work, name)

    def shimmed(self, *words, seconds=120):
        return self.lab.shimmed("curl", "--no-progress-meter", "--fail", "--cacert", self.cert, *words, seconds=seconds)

    def kernel(self, *words, seconds=120):
        return self.lab.client("curl", "--no-progress-meter", "--fail", "--cacert", self.cert, *words, seconds=seconds)

    def same(self, name):
        with open(self.path(name), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def close(self):
        self.origin.close()
        self.lab.close()


PLAIN_URL, SECURE_URL = f"http://{CLIENT}:{PLAIN}", f"https://{CLIENT}:{SECURE}"


def one_file_after_the_other(curl):
    """One connection each, then all over one."""
    with reached(curl.lab, 11):
        for n in range(10):
            size = (1, 1_460, 65_536, 1 << 20)[n % 4]
            curl.shimmed("-o", curl.path("got"), f"{PLAIN_URL}/{size}")
            assert curl.same("got") == hashlib.sha256(content(size)).hexdigest(), size
        words = [word for n in range(20) for word in ("-o", curl.path(f"got{n}"), f"{PLAIN_URL}/{(1, 65_536)[n % 2]}")]
        assert curl.shimmed("-w", "%{num_connects}", *words) == "1" + "0" * 19
        for n in range(20):
            assert curl.same(f"got{n}") == hashlib.sha256(content((1, 65_536)[n % 2])).hexdigest()


def http_2_and_tls(curl):
    with reached(curl.lab, 3):
        for version, shown in (("--http1.1", "1.1"), ("--http2", "2")):
            sizes = [1, 1_460, 65_536, 1 << 20] * 5
            words = [word for n, size in enumerate(sizes) for word in ("-o", curl.path(f"got{n}"), f"{SECURE_URL}/{size}")]
            out = curl.shimmed(version, "-Z", "--parallel-max", "8", "-w", "%{http_version}\n", *words)
            assert out.split() == [shown] * len(sizes), out
            for n, size in enumerate(sizes):
                assert curl.same(f"got{n}") == hashlib.sha256(content(size)).hexdigest(), (version, n, size)
        answer = curl.lab.shimmed("curl", "-sS", f"{SECURE_URL}/1", check=False)
        assert "self-signed certificate" in answer or "self signed certificate" in answer, answer


def uploads(curl):
    with reached(curl.lab, 4):
        for words in (["--http1.1"], ["--http2"]):
            for url in (PLAIN_URL, SECURE_URL):
                answer = curl.shimmed(*words, "--data-binary", f"@{curl.path('root/1048576')}", f"{url}/origin/")
                assert answer == hashlib.sha256(content(1 << 20)).hexdigest(), (words, url)


def resume_after_an_interruption(curl):
    """The first transfer is cut by a limit on time, the second one takes the rest."""
    with reached(curl.lab, 2):
        curl.lab.shimmed("curl", "-sS", "--max-time", "1", "-o", curl.path("part"), f"{PLAIN_URL}/slow/1048576", check=False)
        got = os.path.getsize(curl.path("part"))
        assert 0 < got < 1 << 20, got
        curl.shimmed("-C", "-", "-o", curl.path("part"), f"{PLAIN_URL}/1048576")
        assert curl.same("part") == hashlib.sha256(content(1 << 20)).hexdigest()


def what_fails_fails_as_on_the_kernel(curl):
    """Exit status: refused 7, no such file 22, time-out 28; redirections are followed."""
    for words, status in (
        ([f"http://{CLIENT}:9999/"], 7),
        (["--fail", f"{PLAIN_URL}/none"], 22),
        (["--max-time", "1", f"{PLAIN_URL}/slow/1048576"], 28),
        (["--connect-timeout", "1", "http://10.77.0.77/"], 28),
        (["-L", f"{PLAIN_URL}/moved"], 0),
    ):
        out = curl.lab.shimmed("sh", "-c", 'curl -sS -o /dev/null "$@"; echo "status $?"', "curl", *words)
        assert out.splitlines()[-1] == f"status {status}", (words, out)


def a_large_file(curl):
    """Down over each version and up, curl under the shim; then curl on the kernel, nginx under the shim."""
    seconds = 60 + LARGE // (4 << 20)
    with reached(curl.lab, 4):
        for words in (["--http1.1", f"{PLAIN_URL}/large"], ["--http1.1", f"{SECURE_URL}/large"], ["--http2", f"{SECURE_URL}/large"]):
            curl.shimmed("-o", curl.path("got"), *words, seconds=seconds)
            assert curl.same("got") == curl.digest, words
        assert curl.shimmed("-T", curl.path("root/large"), "-X", "POST", f"{PLAIN_URL}/origin/", seconds=seconds) == curl.digest
    with served(curl.lab, 3):
        for words in (["--http1.1", f"http://{SERVER}:{PLAIN}/large"], ["--http2", f"https://{SERVER}:{SECURE}/large"]):
            curl.kernel("-o", curl.path("got"), *words, seconds=seconds)
            assert curl.same("got") == curl.digest, words
        url = f"http://{SERVER}:{PLAIN}/origin/"
        assert curl.kernel("-T", curl.path("root/large"), "-X", "POST", url, seconds=seconds) == curl.digest


CASES = [
    one_file_after_the_other, http_2_and_tls, uploads, resume_after_an_interruption, what_fails_fails_as_on_the_kernel, a_large_file,
]

if __name__ == "__main__":
    main("curl", CASES, Curl, Curl.close)
