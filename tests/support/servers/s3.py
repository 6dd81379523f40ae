"""An S3 server on this host, in a process of its own, and a bucket in it."""

import io
import json
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import EndpointConnectionError

PATIENCE_SECONDS = 120
BUCKET = "lake"
SERVER = """
import sys, time
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3:
    """The server, as a client that knows nothing of this package sees it.

    Spark would hide the secret if it had a word such as secret in it.
    """

    endpoint: str
    secret: str = "for-the-bucket-6pLw"
    key: str = "a-key"
    user: str = ""
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options.update(
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            aws_region="us-east-1",
            aws_endpoint_url=self.endpoint,
        )

    @property
    def iceberg_properties(self) -> dict[str, str]:
        """How pyiceberg accesses the server."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "s3.region": "us-east-1",
        }

    @property
    def client(self):  # type: ignore[no-untyped-def]
        return self._client("s3")

    def _client(self, service: str):  # type: ignore[no-untyped-def]
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )

    def login(self, *actions: str) -> "S3":
        """The server for a new login that has the rights to these actions."""
        iam, name = self._client("iam"), uuid.uuid4().hex
        iam.create_user(UserName=name)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        login = S3(self.endpoint, made["SecretAccessKey"], made["AccessKeyId"], name)
        self.allow(login, *actions)
        return login

    def allow(self, login: "S3", *actions: str) -> None:
        """Gives a login the rights to these actions and no others."""
        effect = "Allow" if actions else "Deny"
        rights = {"Effect": effect, "Action": list(actions) or "*", "Resource": "*"}
        self._client("iam").put_user_policy(
            UserName=login.user,
            PolicyName="rights",
            PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [rights]}),
        )

    def check_access(self) -> None:
        """Has the server refuse requests of unknown logins, and those that a login may not make."""
        url = f"{self.endpoint}/moto-api/reset-auth"
        headers = {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, data=b"0", headers=headers)).close()

    def url(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}"

    def names(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def read_parquet(self, name: str) -> pa.Table:
        body = self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return pq.read_table(io.BytesIO(body))


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server with an empty bucket."""
    command = (sys.executable, "-c", SERVER)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            server = S3(f"http://127.0.0.1:{process.stdout.readline().strip()}")
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    server.client.create_bucket(Bucket=BUCKET)
                    break
                except EndpointConnectionError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            yield server
        finally:
            process.kill()
