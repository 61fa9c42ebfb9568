"""Files at paths, in a store of objects (S3), and in memory, which stands for stores whose writes can be seen."""

import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest

from tests.object_store import running
from tf2dist.errors import UsageError
from tf2dist.system import files
from tf2dist.system.atomic_files import replacing

LARGE = os.urandom(1 << 20) * 20  # bytes; an upload of three parts


@pytest.fixture(params=["path", "file", pytest.param("s3", marks=pytest.mark.slow), "memory"])
def place(request, tmp_path):
    """A directory that is there, as a path or a URL."""
    if request.param == "s3":
        return f"{request.getfixturevalue('object_store').bucket}/folder"
    if request.param == "memory":
        return f"memory://{tmp_path.name}-{os.getpid()}"
    return {"path": str(tmp_path), "file": f"file://{tmp_path}"}[request.param]


def write(path, data):
    with replacing(path) as (part,), open(part, "wb") as file:
        file.write(data)


def read(path):
    with files.open_binary(path) as file:
        return file.read()


def test_what_was_written_is_there(place):
    assert not files.exists(f"{place}/one")
    files.make_directories(f"{place}/below")
    write(f"{place}/one", b"first")
    write(f"{place}/below/two", LARGE)
    assert read(f"{place}/one") == b"first"
    assert read(f"{place}/below/two") == LARGE
    assert files.size(f"{place}/below/two") == len(LARGE)
    assert files.list_names(place) == ["below", "one"]
    assert files.list_names(f"{place}/below/") == ["two"]
    assert [files.is_directory(each) for each in (place, f"{place}/below", f"{place}/one", f"{place}/no")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert [files.is_file(each) for each in (f"{place}/below", f"{place}/one", f"{place}/no")] == [False, True, False]
    write(f"{place}/one", b"second")
    assert read(f"{place}/one") == b"second"
    files.remove(f"{place}/below/two")
    files.remove(f"{place}/below/two")
    assert not files.exists(f"{place}/below/two")
    assert files.is_file(f"{place}/one")


def test_what_is_missing(place):
    for call in (files.open_binary, files.size, files.list_names):
        with pytest.raises(FileNotFoundError):
            call(f"{place}/no")
    with pytest.raises(OSError):
        files.open_binary(os.path.dirname(f"{place}/x"))  # a directory, or nothing


def test_a_reader_seeks(place):
    write(f"{place}/one", gzip.compress(b"text") + LARGE)
    with files.open_binary(f"{place}/one") as file:
        assert file.read(2) == b"\x1f\x8b"
        assert file.seek(-3, os.SEEK_END) == files.size(f"{place}/one") - 3
        assert file.read() == LARGE[-3:]
        file.seek(0)
        assert file.read(2) == b"\x1f\x8b"


def test_text(place):
    write(f"{place}/one", "eins\nzwölf\n".encode())
    with files.open_text(f"{place}/one") as file:
        assert list(file) == ["eins\n", "zwölf\n"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_body_that_fails_leaves_the_old(place, error):
    def body():
        with replacing(f"{place}/one", f"{place}/two") as parts:
            for part in parts:
                with open(part, "w") as file:
                    file.write("half")
            raise error

    write(f"{place}/one", b"old")
    with pytest.raises(error):
        body()
    assert files.list_names(place) == ["one"]
    assert read(f"{place}/one") == b"old"


def test_what_is_written_for_a_store_has_no_name(object_store, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with replacing(f"{object_store.bucket}/x") as (part,):
        with open(part, "w") as file:
            file.write("text")
        assert os.listdir(tmp_path) == []
    assert object_store.read("x") == b"text"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3:///", "names nothing in the store; a URL is s3://BUCKET/NAME"),
        ("new+store://bucket/x", "is a URL of an unknown scheme; file://, s3://"),
        ("https://host/x", "is a URL of an unknown scheme"),
        ("file://host/x", "names a file of another host; one of this host has three slashes, file:///host/x"),
    ],
)
def test_urls_that_cannot_be(url, said):
    with pytest.raises(UsageError) as raised:
        files.check(f"--report={url}", url)
    assert str(raised.value).startswith(f"--report={url} {said}")


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gcsfs" else object())
    files.check("--report=s3://bucket/x", "s3://bucket/x")
    with pytest.raises(UsageError, match=r"gs://b/x needs the package gcsfs, .* \(pip install gcsfs\)"):
        files.check("--report=gs://b/x", "gs://b/x")


def test_a_place_to_write(object_store):
    files.check_writable("--out", f"{object_store.bucket}/new/x")
    assert object_store.keys() == []
    for url, said in (
        (object_store.bucket, "--out is a directory; name a file in it"),
        (f"{object_store.bucket}/x/", "--out is a directory; name a file in it"),
        ("s3://no-such-bucket/x", "--out cannot be written: there is no bucket no-such-bucket"),
        ("s3://status-403/x", "--out cannot be written: permission denied (Forbidden)"),
    ):
        with pytest.raises(UsageError) as raised:
            files.check_writable("--out", url)
        assert str(raised.value) == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("status-403", "permission denied"),
        pytest.param("status-500", "500", marks=pytest.mark.slow),
        pytest.param("silent", "has not answered within 2 s", marks=pytest.mark.slow),
    ],
)
def test_failures_are_one_line(object_store, monkeypatch, name, said):
    monkeypatch.setenv("TF2DIST_FILES_TIMEOUT", "2" if name == "silent" else "100")
    url = f"{object_store.bucket}/{name}"
    for call in (files.exists, files.open_binary, lambda url: write(url, b"new")):
        with pytest.raises(files.StoreError) as raised:
            call(url)
        assert said in str(raised.value)
        assert str(raised.value).startswith(f"{url} cannot be ")
        assert "\n" not in str(raised.value)
    assert object_store.keys() == []


@pytest.mark.parametrize("fault", ["status-400", pytest.param("silent", marks=pytest.mark.slow)])
def test_an_upload_that_breaks_off_leaves_the_old(object_store, monkeypatch, fault):
    monkeypatch.setenv("TF2DIST_FILES_TIMEOUT", "2" if fault == "silent" else "100")
    key = f"{fault}-in-part-2"
    object_store.put(key)
    with pytest.raises(files.StoreError, match="cannot be written"):
        write(f"{object_store.bucket}/{key}", LARGE)
    assert (object_store.keys(), object_store.read(key)) == ([key], b"old")
    if fault != "silent":
        assert object_store.uploads() == []


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_the_old(object_store, tmp_path):
    key = "silent-in-part-2"
    object_store.put(key)
    code = """
import sys
from tf2dist.system.atomic_files import replacing
with replacing(sys.argv[1]) as (part,):
    with open(part, "wb") as file:
        file.write(b"x" * 20_000_000)
    print("written", flush=True)
"""
    env = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code, f"{object_store.bucket}/{key}"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"written\n"
        deadline = time.monotonic() + 100
        while not object_store.uploads():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert object_store.read(key) == b"old"
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_server_that_is_stopped_or_gone(monkeypatch):
    """Both have one line within the limit, and none is retried for ever."""
    with running() as store:
        for variable, value in store.environ.items():
            monkeypatch.setenv(variable, value)
        store.client.create_bucket(Bucket="stopped")
        monkeypatch.setenv("TF2DIST_FILES_TIMEOUT", "100")
        write("s3://stopped/x", LARGE)
        reader = files.open_binary("s3://stopped/x")
        assert reader.read(10) == LARGE[:10]
        monkeypatch.setenv("TF2DIST_FILES_TIMEOUT", "1")
        with store.stopped():
            with pytest.raises(files.StoreError, match="has not answered within 1 s"):
                reader.read()
            with pytest.raises(files.StoreError, match="has not answered within 1 s"):
                write("s3://stopped/y", b"new")
        reader.close()
        store.process.kill()
        store.process.wait()
        monkeypatch.setenv("TF2DIST_FILES_TIMEOUT", "100")
        with pytest.raises(files.StoreError, match="Could not connect to the endpoint"):
            files.exists("s3://gone/x")


def test_no_credentials(object_store, monkeypatch, tmp_path):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    with pytest.raises(files.StoreError, match="Unable to locate credentials"):
        files.exists("s3://without-credentials/x")


def test_a_limit_that_is_no_number(object_store, monkeypatch):
    monkeypatch.setenv("TF2DIST_FILES_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="TF2DIST_FILES_TIMEOUT is 'soon'; it must be a number"):
        files.exists(f"{object_store.bucket}/x")


def test_a_copy_that_is_short_is_refused(object_store, monkeypatch, tmp_path):
    object_store.put("x", b"whole")
    monkeypatch.setattr(files, "_info", lambda url: {"size": 6, "type": "file"})
    with pytest.raises(files.StoreError, match="5 of 6 bytes have come"):
        files.fetch(f"{object_store.bucket}/x", str(tmp_path / "copy"))


def test_no_name_is_no_file():
    """And not the working directory."""
    assert [files.exists(""), files.is_directory(""), files.is_file("")] == [False] * 3


def test_names_with_characters_of_patterns(place):
    for text in (b"old", b"new"):
        write(f"{place}/run[1]*.json", text)
    assert read(f"{place}/run[1]*.json") == b"new"
    assert files.list_names(place) == ["run[1]*.json"]


@pytest.mark.parametrize("url", ["hdfs:///user/me/x.json", "hdfs://host:9000/x.json", "s3://bucket/x"])
def test_the_configured_host_of_hdfs(url):
    assert files.absolute(url) == url


def test_what_fsspec_is_configured_with_stays(monkeypatch):
    import fsspec

    theirs = {"s3": {"addressing_style": "path"}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": theirs})
    for scheme in ("s3", "s3a"):
        found = files._with_configured(files._STORES[scheme].options, scheme)
        assert found == {"config_kwargs": {**theirs, "retries": {"max_attempts": 1}}}


@pytest.mark.slow
def test_large_objects_come_and_go_in_one_stream(object_store, monkeypatch, tmp_path):
    """More than the 50 MiB from which on s3fs would ask for all parts at once, and say nothing until they are there."""
    data, path = os.urandom(1 << 20) * 60, tmp_path / "x"
    write(f"{object_store.bucket}/x", data)
    beats = []
    monitored = files._transfer

    def transfer(url, action, call):
        def counting(system, place, progress):
            progress.hooks["count"] = lambda size, value, **_: beats.append(value)
            call(system, place, progress)

        monitored(url, action, counting)

    monkeypatch.setattr(files, "_transfer", transfer)
    files.fetch(f"{object_store.bucket}/x", str(path))
    assert path.read_bytes() == data
    assert len({*beats}) > 60


def test_a_transfer_that_was_given_up_ends_when_it_comes_on(monkeypatch):
    monkeypatch.setenv("TF2DIST_FILES_TIMEOUT", "0.1")
    goes_on, ended = threading.Event(), Future()

    def work(beat):
        goes_on.wait(30)
        try:
            beat()
        except BaseException as error:
            ended.set_result(error)
            raise

    with pytest.raises(files.StoreError, match="has not answered"):
        files._within_limit("s3://bucket/x", "read", work)
    goes_on.set()
    assert isinstance(ended.result(30), TimeoutError)
