"""An S3 server on a free port that fails as the names of objects say: python -m tests.object_store prints the port.

`status-500` in a name is answered with that status, and `silent` never; with `-in-part-2` so is the second part of an
upload alone. The server is moto's, which keeps objects in its memory.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest

_DEADLINE = 60.0  # seconds, for the server to start


@dataclass
class ObjectStore:
    """A server that runs.

    Attributes:
      environ: what processes need to reach it.
      bucket: the URL of a bucket that is there.
      client: boto3's, to look at what is in it.
    """

    process: subprocess.Popen
    environ: dict
    client: object
    bucket: str = ""
    name: str = field(default="")

    def keys(self):
        """Of all objects."""
        return [each["Key"] for each in self.client.list_objects_v2(Bucket=self.name).get("Contents", [])]

    def uploads(self):
        """Of which parts have come and no end."""
        return [each["Key"] for each in self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])]

    def read(self, key):
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def put(self, key, data=b"old"):
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    @contextlib.contextmanager
    def stopped(self):
        """The server takes connections and answers none."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def running():
    """A server as a process of its own, which can be stopped and killed."""
    import boto3
    import botocore.config

    process = subprocess.Popen(
        [sys.executable, "-m", "tests.object_store"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        alarm = threading.Timer(_DEADLINE, process.kill)
        alarm.start()
        port = process.stdout.readline().strip()
        alarm.cancel()
        assert port, "the object store has not started"
        environ = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        client = boto3.client(
            "s3", endpoint_url=environ["AWS_ENDPOINT_URL"], region_name="us-east-1", aws_access_key_id="somebody",
            aws_secret_access_key="secret", config=botocore.config.Config(s3={"addressing_style": "path"}),
        )  # fmt: skip
        yield ObjectStore(process, environ, client)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def object_store_process():
    pytest.importorskip("moto", reason="pip install 'tf2dist[test]'")
    with running() as store:
        yield store


@pytest.fixture
def object_store(object_store_process, monkeypatch, tmp_path):
    """The session's server with a bucket for this test alone; this process and those that it starts reach it."""
    name = re.sub("[^a-z0-9]+", "-", tmp_path.name.lower()).strip("-") + f"-{os.getpid()}"
    for variable, value in object_store_process.environ.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("TF2DIST_FILES_TIMEOUT", "100")
    object_store_process.client.create_bucket(Bucket=name)
    return ObjectStore(
        object_store_process.process, object_store_process.environ, object_store_process.client, f"s3://{name}", name
    )


def _main():
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)

    def faulty(environ, start_response):
        path = environ["PATH_INFO"]
        if "-in-part-2" in path and "partNumber=2" not in environ["QUERY_STRING"]:
            return app(environ, start_response)
        if found := re.search(r"status-(\d+)", path):
            start_response(f"{found[1]} Told So", [("Content-Length", "0")])
            return [b""]
        if "silent" in path:
            time.sleep(3600)
        return app(environ, start_response)

    server = make_server("127.0.0.1", 0, faulty, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _main()
