"""A hub of Hugging Face's kind on loopback, and beside it the host on which its large files lie (another port, so another
origin). What goes wrong is said by `faults`: functions that are asked before an answer."""

import hashlib
import http.server
import json
import ssl
import struct
import threading
import time
import urllib.parse


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def safetensors(tensors):
    """The bytes of a file with these tensors: name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Repo:
    """Files of one commit; those in `lfs` (all .safetensors) lie on the other host."""

    def __init__(self, files, commit="a" * 40, revisions=("main",)):
        self.files = files
        self.commit = commit
        self.revisions = set(revisions) | {commit}

    def lfs(self, name):
        return name.endswith((".safetensors", ".bin"))

    def hash(self, name):
        return sha256(self.files[name]) if self.lfs(name) else git_sha1(self.files[name])


class Request:
    def __init__(self, handler, where):
        self.where = where  # "hub" or "cdn"
        self.method = handler.command
        parts = urllib.parse.urlsplit(handler.path)
        self.path = parts.path
        self.name = parts.path.rsplit("/", 1)[-1]
        self.headers = {key.lower(): value for key, value in handler.headers.items()}
        self.sent = 0  # bytes of the body

    @property
    def begin(self):
        """Of its Range; 0 without."""
        return int(self.headers.get("range", "bytes=0-")[len("bytes="):].split("-")[0])


class Fault:
    """What becomes of one answer. Nothing set: nothing."""

    def __init__(self, status=None, headers=(), cut_after=None, stall_after=None, corrupt=False, bytes_per_s=None,
                 no_ranges=False, at_end=None):
        self.status = status
        self.headers = dict(headers)
        self.cut_after = cut_after
        self.stall_after = stall_after
        self.corrupt = corrupt
        self.bytes_per_s = bytes_per_s
        self.no_ranges = no_ranges
        self.at_end = at_end


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # clients that were killed


class StubHub:
    def __init__(self, repos=None, certificate=None):
        """`certificate`: paths of a PEM certificate and of its key; both servers then speak TLS."""
        self.scheme = "https" if certificate else "http"
        self.tls = None
        if certificate:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(*certificate)
        self.repos = dict(repos or {})
        self.faults = []  # functions of a Request that return a Fault or None; the first Fault is
                          # used
        self.requests = []
        self.token = None  # when set: requests with another token or none get 401
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.hub = self._start("hub")
        self.cdn = self._start("cdn")

    @property
    def endpoint(self):
        return f"{self.scheme}://127.0.0.1:{self.hub.server_address[1]}"

    def close(self):
        self.closing.set()
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()

    def seen(self, method=None, where=None, name=None):
        with self.lock:
            return [r for r in self.requests if method in (None, r.method) and where in (None, r.where)
                    and (name is None or r.name == name)]

    def bytes_of(self, name):
        """Bytes of content that were sent of a file."""
        return sum(r.sent for r in self.seen("GET") if r.name == name)

    def _start(self, where):
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                if stub.tls:
                    # In the connection's own thread: a client that refuses the certificate blocks
                    # no others.
                    self.request = stub.tls.wrap_socket(self.request, server_side=True)
                super().setup()

            def finish(self):
                super().finish()
                if stub.tls:
                    self.request.close()

            def do_GET(self):
                stub._answer(self, where)

            do_HEAD = do_GET

            def log_message(self, *args):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def _answer(self, handler, where):
        request = Request(handler, where)
        with self.lock:
            self.requests.append(request)
        fault = next((f for f in (ask(request) for ask in list(self.faults)) if f), Fault())
        if fault.status is not None:
            return self._plain(handler, fault.status, fault.headers)
        if where == "hub" and self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return self._plain(handler, 401, {"X-Error-Code": "RepoNotFound"})
        parts = urllib.parse.unquote(request.path).strip("/").split("/")
        repo = self.repos.get("/".join(parts[:2]))
        if repo is None:
            return self._plain(handler, 404, {"X-Error-Code": "RepoNotFound"})
        name, revision = parts[-1], "/".join(parts[3:-1])
        if revision not in repo.revisions:
            return self._plain(handler, 404, {"X-Error-Code": "RevisionNotFound"})
        if name not in repo.files:
            return self._plain(handler, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repo.commit})
        if where == "hub" and repo.lfs(name):
            return self._plain(handler, 302, {
                "Location": f"{self.scheme}://127.0.0.1:{self.cdn.server_address[1]}{request.path}?signature=secret",
                "X-Linked-Etag": f'"{repo.hash(name)}"', "X-Linked-Size": len(repo.files[name]), "X-Repo-Commit": repo.commit,
                "ETag": '"of-the-redirect"'})
        return self._file(handler, request, repo, name, fault)

    def _plain(self, handler, status, headers):
        handler.send_response(status)
        for key, value in headers.items():
            handler.send_header(key, str(value))
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def _file(self, handler, request, repo, name, fault):
        content = repo.files[name]
        begin, end = 0, len(content)
        ranged = "range" in request.headers and not fault.no_ranges
        if ranged:
            first, last = request.headers["range"][len("bytes="):].split("-")
            begin, end = int(first), int(last) + 1 if last else len(content)
            end = min(end, len(content))
            if begin >= len(content):
                return self._plain(handler, 416, {})
        handler.send_response(206 if ranged else 200)
        if ranged:
            handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        handler.send_header("Content-Length", str(end - begin))
        handler.send_header("ETag", f'"{repo.hash(name)}"')
        handler.send_header("X-Repo-Commit", repo.commit)
        handler.end_headers()
        if handler.command == "HEAD":
            return None
        body = content[begin:end]
        if fault.corrupt:
            body = bytes(len(body))
        return self._send(handler, request, body, fault)

    def _send(self, handler, request, body, fault):
        piece = 16384 if fault.bytes_per_s is None else max(1, fault.bytes_per_s // 20)
        at = 0
        while at < len(body):
            if fault.cut_after is not None and at >= fault.cut_after:
                handler.close_connection = True
                handler.connection.close()
                return
            if fault.stall_after is not None and at >= fault.stall_after:
                self.closing.wait()
                return
            part = body[at:at + piece]
            if fault.cut_after is not None:
                part = part[:fault.cut_after - at]
            if fault.at_end and at + len(part) == len(body):
                fault.at_end()  # before the client can know of the end
            try:
                handler.wfile.write(part)
                handler.wfile.flush()
            except OSError:
                return
            at += len(part)
            with self.lock:
                request.sent += len(part)
            if fault.bytes_per_s is not None:
                time.sleep(len(part) / fault.bytes_per_s)  # the speed is what is asked for


def tiny_llama(weight_bytes=400_000, shards=1, dtype="BF16", layers=2, architecture="LlamaForCausalLM", hidden=64):
    """The files of a model that could be served by its look, and some that nobody needs. Its weights are not to be loaded."""
    vocabulary = max(256, weight_bytes // shards // (2 * hidden))
    config = {"architectures": [architecture], "model_type": "llama", "hidden_size": hidden, "intermediate_size": 4 * hidden,
              "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocabulary,
              "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
              "tie_word_embeddings": True, "hidden_act": "silu"}
    noise = hashlib.shake_256(b"weights").digest(2 * vocabulary * hidden)
    norm = ("BF16", [hidden], noise[:2 * hidden])
    files = {"config.json": json.dumps(config).encode(), "generation_config.json": b'{"temperature": 0.5}',
             "tokenizer.json": b'{"version": "1.0"}', "tokenizer_config.json": b"{}", "chat_template.jinja": b"{{ messages }}",
             "README.md": b"# not needed\n", "pytorch_model.bin": b"never", "consolidated.safetensors": b"never"}
    tensors = {"model.embed_tokens.weight": (dtype, [vocabulary, hidden], noise), "model.norm.weight": norm}
    rest = {f"model.layers.{i}.input_layernorm.weight": norm for i in range(layers)}
    if shards == 1:
        files["model.safetensors"] = safetensors({**tensors, **rest})
        return files
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    where = {**{name: names[0] for name in tensors}, **{name: names[1] for name in rest}}
    files[names[0]] = safetensors(tensors)
    files[names[1]] = safetensors(rest)
    for i in range(2, shards):
        extra = f"model.layers.{layers - 1}.extra_{i}.weight"
        content = hashlib.shake_256(names[i].encode()).digest(2 * vocabulary * hidden)
        files[names[i]] = safetensors({extra: ("BF16", [vocabulary, hidden], content)})
        where[extra] = names[i]
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": where}).encode()
    return files
