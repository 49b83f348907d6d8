"""vLLM's build class on its real releases, on derived trees, and on copies edited one way each."""

from __future__ import annotations

import compileall
import sys
from pathlib import Path

import pytest

from hisparse_guard.runtime.telemetry.build_class import build_class
from tests.conformance import harness
from tests.support import environments

FIXED = ("fixed-backend", "fixed-choice")
CONFIG = "vllm/config/attention.py"
HELPER = "vllm/utils/flashinfer_rules.py"


@pytest.mark.parametrize(
    ("name", "label", "parameter"),
    [
        *[(name, "no-hisparse", None) for name in ("0.19.1", "0.24.0", "0.25.1", "0.29.0")],
        *[(name, "unguarded", None) for name in ("0.30.0", "0.31.0", "0.32.0", "0.33.0")],
        ("0.34.0", "fixed", "resolved_backend"),
        ("leaky", "leaky", None),
        ("fixed-backend", "fixed", "backend"),
        ("fixed-choice", "fixed", "chosen"),
        *[(name, "unguarded", None) for name in ("fork-0.24", "fork-0.25", "fork-device")],
        *[(name, "unguarded", None) for name in ("keyword-group", "odd-shape")],
    ],
)
def test_releases_and_derived_trees(name: str, label: str, parameter: str | None) -> None:
    found = build_class([str(harness.tree(name) / "vllm")])
    assert (found.label, found.parameter) == (label, parameter)
    assert all(found.reasons)
    assert "vllm" not in sys.modules


def copy(home: Path, release: str = "0.34.0", **texts: str | None) -> Path:
    """The parts of a release that the class rests on; `texts` replaces them, None leaves out."""
    source = environments.vllm_release(release)
    paths = ["vllm/__init__.py", harness.MODULE]
    paths += [str(f.relative_to(source)) for f in (source / "vllm/config").glob("*.py")]
    held = {path: (source / path).read_text() for path in paths}
    named = {"module": harness.MODULE, "config": CONFIG, "helper": HELPER}
    for path, text in {**held, **{named[k]: v for k, v in texts.items()}}.items():
        if text is not None:
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
    return home / "vllm"


def edited(path: str, *edits: tuple[str, str], release: str = "0.34.0") -> str:
    text = (environments.vllm_release(release) / path).read_text()
    for old, new in edits:
        assert old in text, f"{release} no longer holds {old!r}"
        text = text.replace(old, new)
    return text


READS = "config is not None and config.attention_config.hisparse_config is not None"


def test_a_helper_in_another_module_reads_hisparse(tmp_path: Path) -> None:
    module = edited(
        harness.MODULE,
        (READS, "needs_trtllm()"),
        (
            "import vllm.envs as envs",
            "from vllm.utils.flashinfer_rules import needs as needs_trtllm",
        ),
    )
    helper = "def needs():\n    return inner()\n\ndef inner():\n    return cfg.hisparse_config\n"
    found = build_class([str(copy(tmp_path, module=module, helper=helper))])
    assert found.label == "fixed"
    assert any("inner in vllm.utils.flashinfer_rules reads" in reason for reason in found.reasons)


def test_a_helper_that_does_not_read_it(tmp_path: Path) -> None:
    module = edited(harness.MODULE, (READS, "False"))
    found = build_class([str(copy(tmp_path, module=module))])
    assert (found.label, found.parameter) == ("unguarded", "resolved_backend")


@pytest.mark.parametrize(
    "resolve",
    [
        "_resolve_fi_ar_backend(group) if choice is None else choice",
        "choice or _resolve_fi_ar_backend(group)",
        "choice\n        if choice is not None\n        else _resolve_fi_ar_backend(group)",
    ],
)
def test_a_renamed_parameter(tmp_path: Path, resolve: str) -> None:
    module = edited(
        harness.MODULE,
        (
            "_resolve_fi_ar_backend(group) if resolved_backend is None else resolved_backend",
            resolve,
        ),
        ("resolved_backend: tuple", "choice: tuple"),
        ("resolved_backend=self.", "choice=self."),
    )
    found = build_class([str(copy(tmp_path, module=module))])
    assert (found.label, found.parameter) == ("fixed", "choice")


def test_hisparse_in_words_only_is_none(tmp_path: Path) -> None:
    root = copy(tmp_path, "0.29.0", config='"""No hisparse_config: here."""\n# hisparse_config\n')
    assert build_class([str(root)]).label == "no-hisparse"


def test_a_helper_that_is_nowhere_is_no_reader(tmp_path: Path) -> None:
    module = edited(
        harness.MODULE,
        (READS, "gone()"),
        ("vllm.envs as envs", "vllm.envs as envs\nfrom vllm.attention import gone"),
    )
    assert build_class([str(copy(tmp_path, module=module))]).label == "unguarded"


def test_no_module_and_no_getter(tmp_path: Path) -> None:
    assert build_class([str(copy(tmp_path / "a", module=None))]).label == "no-fi-allreduce"
    without = copy(tmp_path / "b", module="def get_fi_ar_quant_workspace():\n    pass\n")
    assert build_class([str(without)]).label == "no-fi-allreduce"


@pytest.mark.parametrize("text", ["def broken(:\n", "x = 1\0", "(" * 5000])
def test_a_module_that_cannot_be_parsed_is_unknown(tmp_path: Path, text: str) -> None:
    for number, broken in enumerate(({"module": text}, {"config": f"hisparse_config = 1\n{text}"})):
        found = build_class([str(copy(tmp_path / str(number), **broken))])
        assert found.label == "unknown"
        assert "cannot be read" in found.reasons[0]


def test_only_compiled_is_unknown(tmp_path: Path) -> None:
    root = copy(tmp_path)
    compileall.compile_dir(root, quiet=2, legacy=True)
    for source in root.rglob("*.py"):
        source.unlink()
    assert build_class([str(root)]).label == "unknown"
    # The package's own file is there, and the module is not.
    (root / "__init__.py").touch()
    assert build_class([str(root)]).label == "unknown"


def test_no_vllm_and_no_config(tmp_path: Path) -> None:
    nothing = build_class([])
    assert nothing == build_class([str(tmp_path / "absent")])
    assert nothing.label == "unknown"
    root = copy(tmp_path)
    for file in (root / "config").iterdir():
        file.unlink()
    assert build_class([str(root)]).label == "unknown"
