"""The table of patches, and what the start knows of it."""

from __future__ import annotations

import hisparse_guard
from hisparse_guard.runtime.patches import PATCHES, TRACE_PATCH


def test_the_start_knows_every_patched_module_and_no_other() -> None:
    patched = {module for patch in (*PATCHES, TRACE_PATCH) for module in patch.modules}
    assert set(hisparse_guard.PATCHED_MODULES) == patched


def test_every_wrapper_says_why_how_and_when_it_can_go() -> None:
    wrappers = {patch.name: patch.wrapper for patch in (*PATCHES, TRACE_PATCH)}
    from hisparse_guard.runtime import patches

    for name, wrapper in wrappers.items():
        # The getters share one, made by a function that says it.
        text = wrapper.__doc__ or patches.get_workspace.__doc__ or ""
        for word in ("Why:", "How:", "Upstream:", "Can go:"):
            assert word in text, (name, word)
