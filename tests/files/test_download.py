"""Limits and checks of downloads from a local server."""

import contextlib
import hashlib
import http.server
import os
import threading
import time

import pytest

import mpgluon as mx
from mpgluon import gluon


class Server(http.server.BaseHTTPRequestHandler):
    """Serves 4 MiB, or nothing under /slow."""

    def do_GET(self):
        if self.path == "/slow":
            time.sleep(0.5)
            return
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(bytes(4 << 20))

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_download_has_limits_and_checks_sha256(server, tmp_path):
    path = str(tmp_path / "got")
    sha256 = hashlib.sha256(bytes(4 << 20)).hexdigest()
    fetch = lambda name, **options: gluon.utils.download(f"{server}/{name}", path, **options)
    with pytest.warns(UserWarning, match="without encryption"):
        assert fetch("file") == path
    assert os.path.getsize(path) == 4 << 20
    assert fetch("file", sha256_hash=sha256) == path
    os.remove(path)
    for options, words in (
        ({"sha256_hash": "0" * 64}, "do not have the SHA-256 0000"),
        ({"sha256_hash": sha256, "max_size": 1 << 20}, "more than the 1048576 bytes of max_size"),
    ):
        with pytest.raises(mx.MXNetError, match=words):
            fetch("file", **options)
    with pytest.raises(mx.MXNetError, match="cannot read .*timed out"):
        fetch("slow", sha256_hash=sha256, retries=0, timeout=0.1)
    assert os.listdir(tmp_path) == []
