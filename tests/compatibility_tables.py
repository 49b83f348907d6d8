"""What docs/compatibility.md shows: for each cell the tests that stand for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.runtime.telemetry.kernel_classes import CLASSES
from tests.support.interpreters import SUPPORTED

CONFORMANCE = "tests/conformance/test_conformance.py::"
UPSTREAM = "tests/conformance/test_upstream_fix.py::"
PROCESSES = "tests/cli/bundle/test_processes.py::"
RAY = "tests/ray/test_ray.py::"
INJECTORS = "tests/injectors/test_injectors.py::"


@dataclass(frozen=True)
class Cell:
    """One combination.

    Attributes:
        tests: ids; ``*`` stands for any text.
        refused: why the guard does not act there, where that is what the tests show.
        note: what else the reader has to know.
    """

    tests: tuple[str, ...]
    refused: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    text: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Cell | None, ...]]

    def tests(self) -> Iterator[str]:
        for cells in self.rows.values():
            for cell in cells:
                yield from cell.tests if cell else ()


def _unguarded(release: str) -> tuple[Cell | None, ...]:
    fresh = f"{CONFORMANCE}test_workers_that_start_a_fresh_interpreter"
    return (
        Cell((f"{CONFORMANCE}test_lazy_workspace_is_trtllm_on_every_rank[*-{release}]",)),
        Cell((f"{fresh}[spawn-{release}]",)),
        Cell((f"{fresh}[forkserver-{release}]",)),
        _late(release),
    )


def _late(tree: str) -> Cell:
    name = "test_already_imported_modules_and_taken_names_are_patched"
    return Cell((f"{CONFORMANCE}{name}[{tree}]",))


def _fork_only(test: str, late: Cell | None = None, **more: str) -> tuple[Cell | None, ...]:
    return Cell((test,), **more), None, None, late


def _derived(tree: str) -> tuple[Cell | None, ...]:
    test = f"{CONFORMANCE}test_lazy_workspace_is_trtllm_on_every_rank[*-{tree}]"
    return _fork_only(test, _late(tree))


def _no_hisparse(release: str) -> tuple[Cell | None, ...]:
    name = "test_without_hisparse_nothing_changes_and_nothing_is_said"
    return _fork_only(f"{CONFORMANCE}{name}[{release}]", refused="no HiSparse in this release")


_FIXED = f"{CONFORMANCE}test_a_fixed_build_forgets_the_path_without_standalone"
VLLM = Table(
    "vLLM",
    "Real vLLM code of the release with two gloo ranks under HiSparse, CPython of the tests. "
    "Passed: each rank makes a `trtllm` workspace, by each tested path that leads to one. The "
    "first three columns come in by `sitecustomize`, each with another start method of the "
    "workers; the last one by the entry point, after vLLM's modules were imported. The rows "
    "without a release number are edited copies that stand for nightlies and forks.",
    ("fork", "spawn", "forkserver", "entry point"),
    {
        **{release: _no_hisparse(release) for release in ("0.19.1", "0.24.0", "0.25.1", "0.29.0")},
        **{release: _unguarded(release) for release in ("0.30.0", "0.31.0", "0.32.0", "0.33.0")},
        "0.34.0": _fork_only(f"{UPSTREAM}test_what_vllm_makes_alone_and_with_the_guard[*]"),
        "main after #65201 (`leaky`)": _derived("leaky"),
        "backend passed from init (`fixed-backend`)": _fork_only(f"{_FIXED}[fixed-backend]"),
        "the same, other names (`fixed-choice`)": _fork_only(f"{_FIXED}[fixed-choice]"),
        "HiSparse on 0.24 (`fork-0.24`)": _fork_only(
            f"{CONFORMANCE}test_a_fork_whose_resolver_answers_a_bare_string[fork-0.24]"
        ),
        "HiSparse on 0.25 (`fork-0.25`)": _derived("fork-0.25"),
        "resolver takes a device (`fork-device`)": _derived("fork-device"),
        "group by keyword (`keyword-group`)": _derived("keyword-group"),
        "unknown answer (`odd-shape`)": _fork_only(
            f"{CONFORMANCE}test_an_unknown_shape_goes_through_with_one_error_line_a_rank[odd-shape]",
            refused="vLLM's answer is used, one ERROR line",
        ),
        "every caller passes the backend (`mended`)": _fork_only(
            f"{UPSTREAM}test_a_tree_whose_callers_are_mended_needs_no_guard",
            refused="not needed there",
        ),
    },
)


def _methods(form: str) -> tuple[Cell | None, ...]:
    test = f"{PROCESSES}test_multiprocessing[{form}-*-"
    methods = (Cell((f"{test}{method}]",)) for method in ("fork", "spawn", "forkserver"))
    return tuple(methods)


_SHADOWED = f"{PROCESSES}test_entry_point_where_sitecustomize_was_shadowed"
WAYS = Table(
    "Ways in",
    "A small stand-in for vLLM, except where the cell says otherwise. Passed: the process that "
    "the start method makes is guarded.",
    ("one process", "fork", "spawn", "forkserver", "Ray actor"),
    {
        "folder on PYTHONPATH": (
            Cell((f"{PROCESSES}test_guarded_and_nothing_written[dir-*]",)),
            *_methods("dir"),
            None,
        ),
        "zip on PYTHONPATH": (
            Cell((f"{PROCESSES}test_guarded_and_nothing_written[zip-*]",)),
            _methods("zip")[0],
            Cell(
                (
                    f"{PROCESSES}test_multiprocessing[zip-*-spawn]",
                    "tests/server/test_server.py::test_the_zip_cures_the_workers[zip]",
                ),
                note="a real `vllm serve` too",
            ),
            _methods("zip")[2],
            Cell((f"{RAY}test_set_before_the_driver_starts", f"{RAY}test_set_by_runtime_env")),
        ),
        "zip, its `sitecustomize` shadowed": (
            Cell((f"{_SHADOWED}[zip-*]",), note="by the entry point"),
            *(None,) * 4,
        ),
        "pip, vLLM's plugin": (
            Cell(("tests/cli/bundle/test_contents.py::test_an_installed_wheel_guards",)),
            None,
            None,
            None,
            Cell((f"{RAY}test_installed_it_comes_in_as_vllms_plugin",)),
        ),
        "`hisparse-guard run`": (
            Cell(("tests/cli/run/test_run.py::test_the_command_is_guarded[*]",)),
            *(None,) * 4,
        ),
        "ConfigMap by `inject`": (
            None,
            None,
            Cell(
                (
                    "tests/cli/inject/test_end_to_end.py::"
                    "test_a_real_server_from_an_injected_deployment",
                ),
                note="a real `vllm serve`",
            ),
            None,
            None,
        ),
        "PYTHONPATH set in a running actor": (
            *(None,) * 4,
            Cell(
                (f"{RAY}test_arriving_after_the_interpreter_started",),
                refused="Python reads PYTHONPATH at its start",
            ),
        ),
        **{
            f"`python {option}`": (
                Cell((f"{PROCESSES}test_options[*-['{option}']-False]",), refused=why),
                *(None,) * 4,
            )
            for option, why in (
                ("-I", "Python ignores PYTHONPATH"),
                ("-E", "Python ignores PYTHONPATH"),
                ("-S", "no `sitecustomize`; the entry point is left"),
            )
        },
        "a child with an empty environment": (
            Cell((f"{PROCESSES}test_subprocess[*-{{}}-False]",), refused="no PYTHONPATH there"),
            *(None,) * 4,
        ),
    },
)


def _python(version: str) -> tuple[Cell | None, ...]:
    worker = None
    if version == "3.14":
        test = "tests/worlds/test_interpreters.py::test_a_worker_on_another_version"
        worker = Cell((test,), note="CPython for WebAssembly")
    name = "test_the_sdist_without_the_extra_and_the_wheel_with_it"
    return (
        Cell((f"tests/startup/test_threads.py::test_two_threads[{version}]",)),
        worker,
        Cell((f"tests/packaging/test_installations.py::{name}[{version}]",)),
    )


PYTHONS = Table(
    "Python",
    "The stand-in for vLLM. Start: folder and zip, two threads that import at the same time. "
    "Installed: sdist and wheel, without and with the extra `cli`.",
    ("start", "one worker to its workspace", "installed"),
    {f"CPython {version}": _python(version) for version in SUPPORTED},
)


def _orders() -> dict[str, tuple[Cell | None, ...]]:
    orders = [
        *("guard-ddtrace", "ddtrace-guard", "guard-opentelemetry", "opentelemetry-guard"),
        *("guard-ddtrace-opentelemetry", "guard-opentelemetry-ddtrace"),
        *("ddtrace-guard-opentelemetry", "ddtrace-opentelemetry-guard"),
        *("opentelemetry-guard-ddtrace", "opentelemetry-ddtrace-guard"),
    ]
    served = {
        "guard-opentelemetry": "opentelemetry behind",
        "opentelemetry-guard": "opentelemetry in front",
    }
    server = "tests/server/test_server.py::test_the_zip_cures_the_workers"
    return {
        order.replace("-", ", "): (
            Cell((f"{INJECTORS}test_both_stay_in_force[{order}]",)),
            Cell((f"{server}[{served[order]}]",)) if order in served else None,
        )
        for order in orders
    }


OTHERS = Table(
    "Other injectors",
    "ddtrace and OpenTelemetry's auto-instrumentation on the same PYTHONPATH, in the order of the "
    "row. Passed: all of them are in force.",
    ("one process", "real `vllm serve`"),
    _orders(),
)

KERNEL = "tests/runtime/telemetry/test_kernel_class.py::test_releases"
FI_TEST = "tests/conformance/test_flashinfer_releases.py::"


def _flashinfer(version: str) -> tuple[Cell | None, ...]:
    label = CLASSES[version]
    kernel = Cell((f"{KERNEL}[{version}]",), note=f"class `{label}`")
    if version not in ("0.7.2.post1", "0.7.4"):
        return kernel, None
    called = f"{FI_TEST}test_flashinfer_takes_vllms_call[{version}]"
    line = f"{FI_TEST}test_the_first_line_names_release_and_kernel_class[{version}-{label}]"
    same = f"{FI_TEST}test_guarded_it_is_trtllm_as_with_the_pinned_release[*]"
    return kernel, Cell((called, line, same))


FLASHINFER = Table(
    "FlashInfer",
    "The kernel class as read from the release's source ([kernel-class.md](kernel-class.md)), and "
    "the guard on vLLM 0.33.0 with this release.",
    ("kernel class", "guarded vLLM 0.33.0"),
    {version: _flashinfer(version) for version in CLASSES},
)

TABLES = (VLLM, WAYS, PYTHONS, OTHERS, FLASHINFER)
