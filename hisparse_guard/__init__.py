"""Runtime guard for vLLM servers that run HiSparse and cannot be rebuilt."""

__version__ = "0.1.0"


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``; idempotent, never raises.

    vLLM calls it unprotected in the API server, the engine core and every worker.
    """
    try:
        from hisparse_guard.runtime.arm import arm
    except Exception as error:
        import sys

        try:
            print(f"hisparse-guard: not armed: {error!r}", file=sys.stderr)
        except Exception:
            pass
        return
    arm("entry point")
