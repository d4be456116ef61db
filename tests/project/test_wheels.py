"""The contents of wheels that tools/wheels.py writes."""

import base64
import csv
import hashlib
import importlib.util
import os
import zipfile

from support.paths import ROOT


def tool():
    spec = importlib.util.spec_from_file_location(
        "mpgluon_wheels", os.path.join(ROOT, "tools", "wheels.py")
    )
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_wheel_bundles_onednn(tmp_path):
    about, wheel = "mpgluon-1.dist-info/", str(tmp_path / "mpgluon-1-py3-none-any.whl")
    metadata = (
        "Metadata-Version: 2.4\nName: mpgluon\nVersion: 1\nRequires-Dist: numpy>=1.26\n"
        "Requires-Dist: onednn-cpu-gomp==2023.2.0; platform_machine == 'x86_64'\n"
        "Requires-Dist: tqdm\n\nonednn-text\n"
    )
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("mpgluon/_core.so", b"\0core")
        file.writestr(about + "METADATA", metadata)
        file.writestr(about + "RECORD", f"mpgluon/_core.so,sha256=old,1\n{about}RECORD,,\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libdnnl.so.3").write_bytes(b"\0library")
    (tmp_path / "share" / "doc" / "dnnl").mkdir(parents=True)
    for name in ("LICENSE", "THIRD-PARTY-PROGRAMS"):
        (tmp_path / "share" / "doc" / "dnnl" / name).write_text(name)
    tool().with_onednn(wheel, str(tmp_path))
    with zipfile.ZipFile(wheel) as file:
        found = {name: file.read(name) for name in file.namelist()}
    assert found["mpgluon/_libraries/libdnnl.so.3"] == b"\0library"
    assert found["mpgluon/_core.so"] == b"\0core"
    assert found[about + "licenses/oneDNN-LICENSE"] == b"LICENSE"
    wanted = metadata.replace(
        "Requires-Dist: onednn-cpu-gomp==2023.2.0; platform_machine == 'x86_64'\n", ""
    )
    assert found[about + "METADATA"].decode() == wanted
    rows = {name: row for name, *row in csv.reader(found[about + "RECORD"].decode().splitlines())}
    assert rows.pop(about + "RECORD") == ["", ""] and set(rows) == set(found) - {about + "RECORD"}
    for name, (digest, size) in rows.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(found[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={sha}", len(found[name]))
