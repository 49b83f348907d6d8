"""What a vLLM config says, as plain values: never the config object itself."""

from typing import Any, NamedTuple


class ConfigFacts(NamedTuple):
    """What a vLLM config says; None where it does not say it.

    Attributes:
        source: what shows HiSparse: ``attention_config``, ``connector``, or None.
    """

    hisparse: bool
    source: str | None = None
    model: str | None = None
    instance_id: str | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None


def read_config(config: Any) -> ConfigFacts:
    """What `config`, a VllmConfig of any release or fork, says."""
    source = hisparse_source(config)
    parallel = getattr(config, "parallel_config", None)
    return ConfigFacts(
        hisparse=source is not None,
        source=source,
        model=_of_type(str, getattr(config, "model_config", None), "model"),
        instance_id=_of_type(str, config, "instance_id"),
        tensor_parallel_size=_of_type(int, parallel, "tensor_parallel_size"),
        data_parallel_size=_of_type(int, parallel, "data_parallel_size"),
    )


def hisparse_source(config: Any) -> str | None:
    """What in `config` shows that HiSparse is on; None where it is off."""
    attention = getattr(config, "attention_config", None)
    if getattr(attention, "hisparse_config", None) is not None:
        return "attention_config"
    # vLLM 0.30 and later infer the above from the connector; a fork may not.
    transfer = getattr(config, "kv_transfer_config", None)
    names = [getattr(transfer, "kv_connector", None)]
    extra = getattr(transfer, "kv_connector_extra_config", None)
    if isinstance(extra, dict) and isinstance(extra.get("connectors"), (list, tuple)):
        names += [c.get("kv_connector") for c in extra["connectors"] if isinstance(c, dict)]
    return "connector" if "HiSparseConnector" in names else None


def _of_type(kind: type, holder: Any, name: str) -> Any:
    value = getattr(holder, name, None)
    return value if type(value) is kind else None
