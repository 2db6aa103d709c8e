"""A Hugging Face Hub of our own on loopback: as much of its protocol as huggingface_hub asks for."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(repositories, *, gated=(), token=None):
    """Serve repositories, name -> file name -> bytes; yields the address and the list of requests made."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def reply(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.answer()

        def answer(self):
            path = self.path.partition("?")[0].strip("/")
            asked.append((self.command, path, self.headers.get("Authorization")))
            for name, files in repositories.items():
                if path in (f"api/models/{name}", f"api/models/{name}/revision/main") or path.startswith(
                    f"api/models/{name}/revision/"
                ):
                    return self.information(name, files, path)
                if path.startswith(f"api/models/{name}/tree/"):
                    tree = [self.entry(file, data) for file, data in files.items()]
                    return self.reply(200, json.dumps(tree).encode(), Content_Type="application/json")
                if path.startswith(f"{name}/resolve/"):
                    return self.file(files, path.split("/resolve/")[1].partition("/")[2])
            return self.reply(404, b"{}", X_Error_Code="RepoNotFound")

        def entry(self, file, data):
            return {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

        def information(self, name, files, path):
            if name in gated:
                return self.reply(403, b"{}", X_Error_Code="GatedRepo")
            if token and self.headers.get("Authorization") != f"Bearer {token}":
                return self.reply(401, b"{}", X_Error_Code="RepoNotFound")
            revision = path.partition("/revision/")[2] or "main"
            if revision not in ("main", COMMIT, "v1"):
                return self.reply(404, b"{}", X_Error_Code="RevisionNotFound")
            siblings = [{"rfilename": file, "size": len(data), "blobId": "x"} for file, data in files.items()]
            body = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": False}
            body |= {"tags": [], "downloads": 0, "likes": 0, "disabled": False, "gated": False}
            return self.reply(200, json.dumps(body).encode(), Content_Type="application/json")

        def file(self, files, file):
            if file not in files:
                return self.reply(404, b"{}", X_Error_Code="EntryNotFound")
            about = {"ETag": f'"{hashlib.sha1(files[file]).hexdigest()}"', "X_Repo_Commit": COMMIT}
            return self.reply(200, files[file], Accept_Ranges="bytes", **about)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
