"""TLS with a private authority, for `ramp` and `probe`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.cli.probe.test_probe import probe
from tests.cli.ramp.process import ramp
from tests.cli.ramp.stub import MODEL, Stub, stub_server
from tests.cli.ramp.test_servers import WORDS

AUTHORITY = trustme.CA()


def served_as(name: str) -> Stub:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert(name).configure_cert(context)
    return Stub(tls=context)


@pytest.fixture
def server() -> Iterator[Stub]:
    with stub_server(served_as("127.0.0.1")) as stub:
        yield stub


@pytest.fixture
def ca_file(tmp_path: Path) -> str:
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


@pytest.mark.parametrize("trust", [["--ca-file"], ["--insecure"]])
def test_a_private_authority(server: Stub, ca_file: str, trust: list[str], tmp_path: Path) -> None:
    words = [*trust, ca_file] if trust == ["--ca-file"] else trust
    found = ramp(tmp_path, server.url, MODEL, *WORDS, *words)
    assert (found.code, found.counts) == (0, [(2, 4, 0)])


def test_an_authority_that_is_not_trusted(server: Stub, tmp_path: Path) -> None:
    found = ramp(tmp_path, server.url, MODEL, *WORDS)
    assert (found.code, found.document["verdict"]) == (1, "inconclusive")
    assert "certificate verify failed" in found.document["stopped"]
    assert not server.paths and "Traceback" not in found.err


def test_a_certificate_of_another_host(ca_file: str, tmp_path: Path) -> None:
    with stub_server(served_as("another.example")) as stub:
        found = ramp(tmp_path, stub.url, MODEL, *WORDS, "--ca-file", ca_file)
        done = probe(stub.url, "--ca-file", ca_file)
    assert found.code == 1 and "certificate" in found.document["stopped"]
    assert done.returncode == 1 and "not answered" in done.stdout
    assert not stub.paths


def test_a_file_without_certificates_is_wrong_usage(server: Stub, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing\n")
    found = ramp(tmp_path, server.url, MODEL, *WORDS, "--ca-file", tmp_path / "ca.pem")
    assert found.code == 2 and found.err.count("\n") == 1


def test_the_environment_changes_nothing(server: Stub, ca_file: str, tmp_path: Path) -> None:
    """No proxy is asked, and no key of a connection is written."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = ("http_proxy", "https_proxy", "all_proxy")
        env = {name: url for one in names for name in (one, one.upper())}
        env |= {"NO_PROXY": "", "no_proxy": "", "SSLKEYLOGFILE": str(tmp_path / "keys")}
        with stub_server(Stub()) as plain:
            for one in (server, plain):
                found = ramp(tmp_path, one.url, MODEL, *WORDS, "--ca-file", ca_file, env=env)
                assert found.code == 0, found.out
                done = probe(one.url, "--ca-file", ca_file, **env)
                assert done.returncode == 0, done.stdout
        proxy.settimeout(0.1)
        with pytest.raises(TimeoutError):
            proxy.accept()
    assert not (tmp_path / "keys").exists()


def test_probe(server: Stub, ca_file: str) -> None:
    done = probe(server.url, "--ca-file", ca_file)
    assert (done.returncode, done.stderr) == (0, "")
    done = probe(server.url)
    assert done.returncode == 1 and "certificate verify failed" in done.stdout
