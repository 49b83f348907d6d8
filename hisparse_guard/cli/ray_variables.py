"""Variables by which vLLM hands more of its environment to its Ray actors, and what the guard
needs in each (a list with commas)."""

from __future__ import annotations

from hisparse_guard.runtime.settings import PREFIX

RAY_VARIABLES = {
    "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": "PYTHONPATH",
    "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": PREFIX,
}
