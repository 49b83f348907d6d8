"""A local Ray node of its own, one actor that imports vLLM, and what that actor found."""

import json
import os
import sys

import ray


class Worker:
    def __init__(self, late=None):
        # As vLLM's executor sends what the driver's environment holds: to a running interpreter.
        os.environ.update(late or {})

    def load(self, plugins):
        import importlib.metadata

        import vllm.config  # noqa: F401

        active = "hisparse_guard.runtime.activate"
        at_import = active in sys.modules
        if plugins:
            for entry in importlib.metadata.entry_points(group="vllm.general_plugins"):
                entry.load()()
        return {
            "at_import": at_import,
            "armed": active in sys.modules,
            "wrapt": "wrapt" in sys.modules,
            "mode": os.environ.get("HISPARSE_GUARD_MODE"),
            "parent": os.getppid() != int(os.environ["DRIVER_PID"]),
        }


def main():
    job = json.loads(sys.argv[1])
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=80 * 1024 * 1024,
        log_to_driver=False,
    )
    try:
        options = {"runtime_env": {"env_vars": job["runtime_env"]}} if job["runtime_env"] else {}
        actor = ray.remote(Worker).options(**options).remote(job["late"])
        print("RESULT " + json.dumps(ray.get(actor.load.remote(job["plugins"]), timeout=120)))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    os.environ["DRIVER_PID"] = str(os.getpid())
    main()
