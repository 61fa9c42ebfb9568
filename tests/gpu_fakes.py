"""A fake `nvidia-smi` on the PATH, for tests of what is decided before TensorFlow and without CUDA."""

import os
import stat

_SCRIPT = """#!/bin/sh
case "$*" in
--list-gpus) cat <<'END'
{listing}
END
;;
*--query-gpu*) cat <<'END'
{memory}
END
;;
"topo -p2p r") cat <<'END'
{peers}
END
;;
topo*) cat <<'END'
{topology}
END
;;
*) exit 6;;
esac
exit {status}
"""


def fake_nvidia_smi(
    directory,
    monkeypatch,
    count,
    *,
    mib=16384,
    free=None,
    topology="",
    peers="",
    status=0,
    driver="550.54.14",
    cudnn="9.10.2",
):
    """Puts an nvidia-smi that tells of `count` GPUs first on the PATH, and CUDA's wheels; no GPU is hidden yet."""
    uuids = [f"GPU-{number}{number}{number}" for number in range(count)]
    listing = "\n".join(f"GPU {n}: NVIDIA Fake (UUID: {uuid})" for n, uuid in enumerate(uuids))
    # What it is asked for: index, uuid, total and free memory in the launcher; also capability, driver and name in the
    # doctor.
    totals = mib if isinstance(mib, tuple) else (mib,) * count
    there = zip(uuids, totals, strict=True)
    rows = [
        f"{n}, {uuid}, {total}, {max(0, total - 300) if free is None else free}"
        for n, (uuid, total) in enumerate(there)
    ]
    memory = "\n".join(rows)
    detailed = "\n".join(f"{row}, 8.0, {driver}, NVIDIA Fake" for row in rows)
    script = _SCRIPT.format(listing=listing, memory=memory, topology=topology, peers=peers, status=status)
    details = f"*driver_version*) cat <<'END'\n{detailed}\nEND\n;;\n*--query-gpu*)"
    script = script.replace("*--query-gpu*)", details, 1)
    path = directory / "nvidia-smi"
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    for wheel, version in (("nvidia_cuda_runtime_cu12", "12.9.79"), ("nvidia_cudnn_cu12", cudnn)):
        metadata = directory / "wheels" / f"{wheel}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {wheel.replace('_', '-')}\nVersion: {version}\n")
    path_of_python = os.pathsep.join(filter(None, [str(directory / "wheels"), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path_of_python)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
