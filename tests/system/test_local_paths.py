"""URLs are no paths."""

import pathlib

import pytest

from tf2dist.errors import UsageError
from tf2dist.system.local_paths import check_local


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("gs://bucket/x", "/mnt/bucket/x"),
        ("s3://bucket", "/mnt/bucket"),
        ("hdfs://host:9000/x", "/mnt/host:9000/x"),
        ("file:///tmp/x", "/tmp/x"),
        (str(pathlib.Path("gs://bucket/x")), "/mnt/bucket/x"),
        ("new+store://bucket/x", "/mnt/bucket/x"),
    ],
)
def test_a_url_is_refused(url, right):
    with pytest.raises(UsageError) as raised:
        check_local(f"--logdir={url}", url)
    assert str(raised.value).startswith(f"--logdir={url} is a URL, and files are")
    assert str(raised.value).endswith(f"as {right}")


@pytest.mark.parametrize("path", ["", "x", "/tmp/x", "a:/b", "gs:", "./gs://x", "x:/y", pathlib.Path("/tmp/x")])
def test_paths_are_taken(path):
    check_local("--logdir", path)
