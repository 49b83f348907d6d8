"""No secret leaves in an echoed line, and nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_guard.cli.masking import MASK, mask, mask_arguments, mask_environment

SECRET = "S3cr3tValue0123456789"


@pytest.mark.parametrize(
    "line",
    [
        f"vllm serve model --api-key {SECRET} --port 8000",
        f"vllm serve model --api-key={SECRET}",
        f"vllm serve model --api-key one {SECRET} --port 8000",
        f"non-default args: {{'model_tag': 'm', 'api_key': ['{SECRET}', 'other'], 'port': 8000}}",
        f'{{"log":"args: {{\\"api_key\\": \\"{SECRET}\\"}}\\n","stream":"stderr"}}',
        f"export VLLM_API_KEY={SECRET}",
        f"HF_TOKEN={SECRET} vllm serve m",
        f"  - HUGGING_FACE_HUB_TOKEN: {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"header authorization='Bearer {SECRET}'",
        f"curl -H 'Authorization: Basic {SECRET}'",
        f"https://user:{SECRET}@registry.example/v2/",
        f"--hf-token {SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"token=hf_{SECRET}",
        f"loaded with hf_{SECRET} from cache",
        f"key sk-{SECRET} was refused",
        f"db_password: '{SECRET}'",
    ],
)
def test_secret_goes(line: str) -> None:
    assert SECRET not in mask(line)
    assert MASK in mask(line)


@pytest.mark.parametrize(
    "line",
    [
        "--max-num-batched-tokens 16384 --tokenizer-revision c8917e4 --tokenizer zai-org/GLM-5.3",
        "Avg prompt throughput: 16025.3 tokens/s, GPU KV cache usage: 37.0%",
        "params: SamplingParams(max_tokens=220, min_tokens=0), prompt_token_ids: None",
        "special tokens: eos_token='</s>', pad_token='<pad>'",
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
        "Search for `cudaErrorLaunchFailure' in https://docs.nvidia.com/cuda/ for more.",
        "distributed_init_method=tcp://127.0.0.1:51789 backend=nccl",
    ],
)
def test_nothing_else_is_touched(line: str) -> None:
    assert mask(line) == line


def test_names_of_masked_fields_stay() -> None:
    assert mask("--api-key abcdef --port 80") == f"--api-key {MASK} --port 80"
    assert mask("{'api_key': ['a', 'b'], 'port': 1}") == f"{{'api_key': {MASK}, 'port': 1}}"


def test_environment_and_arguments() -> None:
    assert mask_environment({"HF_TOKEN": "x", "HOME": "/root", "EMPTY_TOKEN": ""}) == {
        "HF_TOKEN": MASK,
        "HOME": "/root",
        "EMPTY_TOKEN": "",
    }
    words = ["vllm", "serve", "m", "--api-key", "one", "two", "--port", "8", "--hf-token=x"]
    assert mask_arguments(words) == [
        "vllm", "serve", "m", "--api-key", MASK, MASK, "--port", "8", f"--hf-token={MASK}",
    ]  # fmt: skip


@given(st.text())
def test_any_text_is_masked_without_error_and_once_is_enough(text: str) -> None:
    once = mask(text)
    assert mask(once) == once
