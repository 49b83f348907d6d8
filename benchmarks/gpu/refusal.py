"""Makes a FlashInfer workspace on NVLink multicast impossible in this process."""

from __future__ import annotations

import re

MULTICAST_CALL = re.compile(r"cuMulticast(Create|AddDevice|Bind)")


class Asked(BaseException):
    """FlashInfer was asked for a workspace that must not be made here.

    A BaseException: vLLM takes an Exception for a failure and tries the next backend.
    """


class Refusal:
    """Makes an `mnnvl` workspace impossible in this process."""

    def __init__(self):
        self.asked = []
        import flashinfer.comm as comm
        import flashinfer.comm.allreduce as allreduce
        import flashinfer.comm.mnnvl as mnnvl
        import flashinfer.comm.trtllm_mnnvl_ar as mnnvl_ar

        self.create = comm.create_allreduce_fusion_workspace

        def create(backend="auto", *args, **kwargs):
            self.asked.append(backend)
            if backend != "trtllm":
                raise Asked(backend)
            return self.create(backend, *args, **kwargs)

        def never(*args, **kwargs):
            raise Asked("mnnvl")

        real = mnnvl.SymmDeviceMemory.__init__

        def symmetric(memory, *args, **kwargs):
            multicast = args[5] if len(args) > 5 else kwargs.get("enable_multicast", True)
            if multicast:
                raise Asked("multicast memory")
            real(memory, *args, **kwargs)

        self.places = [
            (comm, "create_allreduce_fusion_workspace", create),
            (allreduce, "create_allreduce_fusion_workspace", create),
            (mnnvl_ar.MNNVLAllReduceFusionWorkspace, "__init__", never),
            (mnnvl.McastGPUBuffer, "__init__", never),
            (mnnvl.SymmDeviceMemory, "__init__", symmetric),
            *((mnnvl.cuda, name, never) for name in dir(mnnvl.cuda) if MULTICAST_CALL.match(name)),
        ]
        for owner, name, function in self.places:
            setattr(owner, name, function)
        self.check()
        for backend in ("mnnvl", "mnnvl-cutedsl", "auto"):
            self._expect(comm.create_allreduce_fusion_workspace, backend=backend)
        # Not by making objects: half-made ones would complain when they are deleted.
        self._expect(mnnvl_ar.MNNVLAllReduceFusionWorkspace.__init__, None)
        self._expect(mnnvl.McastGPUBuffer.__init__, None)
        self._expect(mnnvl.SymmDeviceMemory.__init__, None, 1, 1, 0, 0)
        self._expect(mnnvl.cuda.cuMulticastCreate, None)
        self.asked.clear()

    def check(self):
        """Whether all are in place (again: later imports could have put others there)."""
        for owner, name, function in self.places:
            if getattr(owner, name) is not function:
                raise RuntimeError(f"{owner}.{name} is not refused: nothing is run here")

    @staticmethod
    def _expect(function, *args, **kwargs):
        try:
            function(*args, **kwargs)
        except Asked:
            return
        raise RuntimeError(f"{function} was not refused: nothing is run here")
