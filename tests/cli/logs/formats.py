"""The ways in which log lines come to an operator: one function a format."""

from __future__ import annotations

import json
from collections.abc import Callable

import re2

_HEAD = re2.compile(r"\((\w+) pid=(\d+)\) (INFO|ERROR|WARNING) (\S+ \S+) \[([\w.]+):(\d+)\] (.*)")
_UVICORN = re2.compile(r"\((\w+) pid=(\d+)\) INFO:     (.*)")
STAMP = "2026-11-03T22:14:04.123456789Z"
# Where a runtime cuts a long line.
PART = 16384


def plain(lines: list[str]) -> list[str]:
    return lines


def vllm_json(lines: list[str]) -> list[str]:
    """As `--logging-config.formatter json` writes: no file name, no tag."""
    out = []
    for text in lines:
        known = {"asctime": "2026-11-03 22:14:04,123", "levelname": "INFO", "name": "vllm.x"}
        message = text
        if found := _HEAD.match(text):
            label, pid, level, time, file, _, message = found.groups()
            known |= {"levelname": level, "processName": label, "process": int(pid)}
            known |= {"asctime": f"2026-{time},000", "name": f"vllm.v1.{file[:-3]}"}
        elif found := _UVICORN.match(text):
            label, pid, message = found.groups()
            known |= {"name": "uvicorn.access", "processName": label, "process": int(pid)}
        out.append(json.dumps({**known, "message": message}))
    return out


def docker(lines: list[str]) -> list[str]:
    out = []
    for text in lines:
        parts = [text[at : at + PART] for at in range(0, len(text), PART)] or [""]
        parts[-1] += "\n"
        for part in parts:
            record = {"log": part, "stream": "stderr", "time": STAMP}
            out.append(json.dumps(record, separators=(",", ":")))
    return out


def cri(lines: list[str]) -> list[str]:
    out = []
    for text in lines:
        parts = [text[at : at + PART] for at in range(0, len(text), PART)] or [""]
        out += [f"{STAMP} stderr P {part}" for part in parts[:-1]]
        out.append(f"{STAMP} stderr F {parts[-1]}")
    return out


def loki(lines: list[str]) -> list[str]:
    return [f'{STAMP} {{app="vllm", pod="decode-0"}} {text}' for text in lines]


def loki_json(lines: list[str]) -> list[str]:
    return [
        json.dumps({"labels": {"pod": "decode-0"}, "line": text, "timestamp": STAMP})
        for text in lines
    ]


def json_in_json(lines: list[str]) -> list[str]:
    return docker(vllm_json(lines))


def journald(lines: list[str]) -> list[str]:
    return [f"Nov 03 22:14:04 node7 vllm[588]: {text}" for text in lines]


def journald_json(lines: list[str]) -> list[str]:
    return [json.dumps({"MESSAGE": [*text.encode()], "_PID": "588"}) for text in lines]


def stern(lines: list[str]) -> list[str]:
    return [f"vllm-decode-0 vllm {text}" for text in lines]


def kubectl_prefix(lines: list[str]) -> list[str]:
    return [f"[pod/vllm-decode-0/vllm] {text}" for text in lines]


def compose(lines: list[str]) -> list[str]:
    return [f"vllm-1  | {text}" for text in lines]


def srun(lines: list[str]) -> list[str]:
    return [f" 0: {text}" for text in lines]


def ts(lines: list[str]) -> list[str]:
    return [f"[2026-11-03 22:14:04] {text}" for text in lines]


def syslog(lines: list[str]) -> list[str]:
    return [f"<14>1 {STAMP} node7 vllm 588 - - {text}" for text in lines]


FORMATS: dict[str, Callable[[list[str]], list[str]]] = {
    form.__name__: form
    for form in (
        plain, vllm_json, docker, cri, loki, loki_json, json_in_json, journald, journald_json,
        stern, kubectl_prefix, compose, srun, ts, syslog,
    )
}  # fmt: skip
