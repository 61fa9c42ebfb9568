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
    nccl="2.27.7",
    without=(),
    parts=0,
):
    """Puts an nvidia-smi that tells of `count` GPUs first on the PATH, and CUDA's wheels; no GPU is hidden yet.

    `without` are wheels that are not there, as "cublas"; `parts` into how many each GPU is divided (MIG). Before
    version 510 it knows no compute capability.
    """
    uuids = [f"GPU-{number}{number}{number}" for number in range(count)]
    listing = "\n".join(
        line
        for n, uuid in enumerate(uuids)
        for line in (
            f"GPU {n}: NVIDIA Fake (UUID: {uuid})",
            *(f"  MIG 1g.5gb      Device  {part}: (UUID: MIG-{n}{part})" for part in range(parts)),
        )
    )
    # What it is asked for: index, uuid, total and free memory in the launcher; also driver and name, and what a card
    # can compute, in the doctor.
    totals = mib if isinstance(mib, tuple) else (mib,) * count
    there = zip(uuids, totals, strict=True)
    rows = [
        f"{n}, {uuid}, {total}, {max(0, total - 300) if free is None else free}"
        for n, (uuid, total) in enumerate(there)
    ]
    memory = "\n".join(rows)
    detailed = "\n".join(f"{row}, {driver}, NVIDIA Fake" for row in rows)
    capabilities = "\n".join(f"{n}, 8.0" for n in range(count))
    script = _SCRIPT.format(listing=listing, memory=memory, topology=topology, peers=peers, status=status)
    details = f"*driver_version*) cat <<'END'\n{detailed}\nEND\n;;\n*--query-gpu*)"
    capable = f"*compute_cap*) cat <<'END'\n{capabilities}\nEND\n;;\n"
    if int(driver.partition(".")[0]) < 510:
        capable = "*compute_cap*) echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2;;\n"
    details = capable + details
    script = script.replace("*--query-gpu*)", details, 1)
    path = directory / "nvidia-smi"
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    wheels = {"cuda_runtime": "12.9.79", "cudnn": cudnn, "nccl": nccl, "cublas": "12.9.1.4", "cufft": "11.4.1.4",
              "cusolver": "11.7.5.82", "cusparse": "12.5.10.65"}  # fmt: skip
    for wheel in wheels.keys() - {*without}:
        metadata = directory / "wheels" / f"nvidia_{wheel}_cu12-{wheels[wheel]}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: nvidia-{wheel}-cu12\nVersion: {wheels[wheel]}\n")
    path_of_python = os.pathsep.join(filter(None, [str(directory / "wheels"), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path_of_python)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
