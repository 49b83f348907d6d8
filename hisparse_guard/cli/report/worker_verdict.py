"""What is shown of one worker, and when it is unproven.

A worker is unproven where its evidence is not whole (`decoding.py`, `reader.py`: `doubts`), where
its own lines do not agree (`contradictions.py`), or where it does not show what serves each of its
groups (here). A server is unproven besides where ranks are missing (`server_verdict.py`), or differ
(`group_verdict.py`).
"""

from __future__ import annotations

from hisparse_guard.cli.report.exit_codes import Finding
from hisparse_guard.cli.report.model import NONE, TRTLLM, Process, Standing
from hisparse_guard.cli.report.ranks import ranges


def serves(process: Process, standing: Standing) -> str | None:
    """What is shown to serve a group: ``trtllm``, ``none``, ``failed``, or None: not shown."""
    if standing.state == "failed":
        return "failed"
    # Workspaces are destroyed when a server is stopped; one that ended had it until then.
    if standing.present or (standing.state == "destroyed" and process.ended):
        proven = standing.backend == standing.expected == TRTLLM and not standing.unexpected
        # All decisions may be of a time before the guard was there; not those of one group alone.
        decided = any(one.used for one in process.groups.values())
        return TRTLLM if proven and standing.used == ([TRTLLM] if decided else []) else None
    return NONE if standing.state is None and standing.used == [NONE] else None


def one_rank(process: Process) -> bool:
    """Whether its configs show that there is no all-reduce: tensor parallel size 1."""
    if process.groups or process.backends or process.asked:
        return False
    several = (process.world_size or 1) > 1 and process.data_parallel_sizes <= {1, None}
    return process.tensor_parallel_sizes == {1} and not several


def judge_process(process: Process, hisparse: bool | None) -> list[Finding]:
    """Findings on one worker; `hisparse` is that of its server."""
    found: list[Finding] = []
    if process.doubts or process.errors:
        found.append(("unproven", "its evidence is not whole, or tells of errors"))
    strange = [backend for backend in process.backends if backend != TRTLLM]
    if strange and hisparse is not False:
        said = f"{' and '.join(strange)} workspace"
        found.append(
            ("unsafe", f"{said} under HiSparse")
            if hisparse
            else ("unproven", f"{said}, and whether HiSparse is on is not known")
        )
    if hisparse is None:
        found.append(("unproven", "no config was seen: whether HiSparse is on is not known"))
    elif hisparse is False:
        found.append(("not HiSparse", "every config that was seen had HiSparse off"))
    elif not process.hisparse:
        saw = "no config" if process.hisparse is None else "HiSparse off"
        found.append(("unproven", f"it saw {saw}, and HiSparse is on in its server"))
    elif one_rank(process):
        found.append(("safe", "tensor parallel size 1: there is no all-reduce"))
    elif not process.groups:
        found.append(("unproven", "HiSparse seen, no backend decided yet"))
    else:
        found += [_judge_group(process, standing) for standing in process.groups.values()]
        found += _without_its_group(process)
    return found


def _judge_group(process: Process, standing: Standing) -> Finding:
    what = serves(process, standing)
    if what == "failed":
        instead = standing.fallback or "what vLLM falls back to"
        return "failed", f"{standing.failure or 'no reason given'}; {instead} serves instead"
    if what == TRTLLM:
        quant = "; its quant workspace failed" if process.quant_failed else ""
        return "safe", f"workspace {standing.state} with backend {standing.backend}{quant}"
    if what == NONE:
        return "safe", "FlashInfer all-reduce is off"
    if standing.state == "destroyed":
        return "unproven", "its workspace was destroyed and none is shown to have come since"
    if standing.state is not None:
        used = " and ".join(str(one or "unknown") for one in standing.used) or "nothing"
        return "unproven", (
            f"workspace {standing.state} with backend {standing.backend}, expected was "
            f"{standing.expected}, decided was {used}"
            + ("; one came that was not expected" if standing.unexpected else "")
        )
    if process.mode == "strict" and standing.used not in ([TRTLLM], []):
        return "unproven", (
            f"mode strict refuses the {' and '.join(map(str, standing.used))} workspace that would "
            "be made: the server does not come up"
        )
    if standing.used == [TRTLLM]:
        return "unproven", "HiSparse seen, no workspace made yet"
    used = " and ".join(str(one or "unknown") for one in standing.used) or "nothing"
    return "unproven", f"decided was {used}, no workspace made yet"


def _without_its_group(process: Process) -> list[Finding]:
    """Proof for another group than the tensor parallel one is none for that.

    vLLM numbers the ranks of tensor parallel groups contiguously.
    """
    # Up to vLLM 0.31 the resolver is given no group.
    if any(group == (group.name, None, None) for group in process.groups):
        return []
    sizes = {
        group.size
        for group in process.groups
        if group.size and process.rank is not None and process.rank % group.size == group.rank
    } - {1}
    wanted = {size for size in process.tensor_parallel_sizes if size is not None and size > 1}
    missing = f"of {ranges(wanted - sizes)} ranks" if wanted else "of its ranks"
    if sizes and wanted <= sizes:
        return []
    return [("unproven", f"nothing is shown for the tensor parallel group {missing}")]
