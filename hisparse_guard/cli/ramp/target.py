"""The server under test, asked from outside: health, models, tokens, one probe request."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httpx

# Enough distinct token ids to draw from, whatever the tokenizer.
TOKENIZED_CHARACTERS = 20_000
ASK_TIMEOUT_S = 30.0
HEALTH_TIMEOUT_S = 10.0


class Unusable(RuntimeError):
    """The server cannot be ramped; the text says why and what to do."""


def api_key(environment: Mapping[str, str]) -> str | None:
    """The key for the server: OPENAI_API_KEY, else VLLM_API_KEY."""
    return environment.get("OPENAI_API_KEY") or environment.get("VLLM_API_KEY") or None


def base(url: str) -> str:
    """`url` without a trailing ``/`` or ``/v1``.

    Raises:
        ValueError: not an http or https address, or one with a user or password in it.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is not an address like http://127.0.0.1:8000")
    if parsed.userinfo:
        raise ValueError(
            "an address with a user or password in it ends up in logs; put the key into"
            " OPENAI_API_KEY instead"
        )
    return url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True)
class Unhealthy:
    """Why an engine is not healthy; not `sure` where it was merely silent, as a front end is
    that is busy."""

    reason: str
    sure: bool = True


class Target:
    """A server behind `base_url`; `engine_urls` are the vLLM servers themselves where that is a
    router, which may know neither ``/health`` nor ``/tokenize``."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        engine_urls: Sequence[str] = (),
        key: str | None = None,
        verify: bool = True,
        probe_timeout_s: float = 300.0,
    ) -> None:
        self.base_url = base_url
        self.model = model
        self.engine_urls = tuple(engine_urls) or (base_url,)
        self._probe_timeout_s = probe_timeout_s
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            verify=verify,
            timeout=ASK_TIMEOUT_S,
        )
        # Servers that answered /health with 404 at the start are not asked again.
        self._without_health: set[str] = set()

    def close(self) -> None:
        self._client.close()

    def look(self) -> dict[str, Any]:
        """What the server says of itself before the ramp: version, models, longest context.

        Raises:
            Unusable: it does not answer, is not healthy, or does not serve the model.
        """
        versions: dict[str, str | None] = {}
        for url in dict.fromkeys((*self.engine_urls, self.base_url)):
            versions[url] = self._version(url)
        for url in self.engine_urls:
            try:
                status = self._client.get(f"{url}/health", timeout=HEALTH_TIMEOUT_S).status_code
            except httpx.HTTPError as error:
                raise Unusable(f"{url} does not answer: {_why(error)}") from None
            if status == 404:
                self._without_health.add(url)
            elif status != 200:
                raise Unusable(f"{url}/health answers {status}: the server is not healthy")
        models = self._models()
        if models is None:
            raise Unusable(
                f"no list of models at {self.base_url}/v1/models"
                " (a router in front? name the vLLM servers with --engine-url)"
            )
        if self.model not in models:
            raise Unusable(
                f"the server does not serve {self.model!r}; it lists {', '.join(models) or 'none'}"
            )
        return {
            "versions": versions,
            "models": sorted(models),
            "max_model_len": models[self.model],
            "without_health": sorted(self._without_health),
        }

    def _version(self, url: str) -> str | None:
        try:
            answer = self._client.get(f"{url}/version", timeout=HEALTH_TIMEOUT_S)
            return str(answer.json()["version"]) if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None

    def _models(self) -> dict[str, int | None] | None:
        """Served models with their longest context in tokens; None where none can be had."""
        for url in dict.fromkeys((self.base_url, *self.engine_urls)):
            try:
                answer = self._client.get(f"{url}/v1/models")
                if answer.status_code in (401, 403):
                    raise Unusable(
                        f"{url} wants a key: put it into OPENAI_API_KEY (it answers"
                        f" {answer.status_code})"
                    )
                if answer.status_code == 200:
                    listed = answer.json()["data"]
                    return {str(m["id"]): m.get("max_model_len") for m in listed}
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                continue
        return None

    def tokenize_url(self) -> str:
        return f"{self.engine_urls[0]}/tokenize"

    def token_pool(self) -> list[int]:
        """Ids of ordinary tokens, by the server's own tokenizer: the same ones each time.

        Raises:
            Unusable: the server does not tokenize.
        """
        letters = random.Random(0)
        text = "".join(letters.choices(string.ascii_letters + "     ", k=TOKENIZED_CHARACTERS))
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        url = self.tokenize_url()
        hint = "name a vLLM server with --engine-url, or ordinary ids with --token-ids LOW-HIGH"
        try:
            answer = self._client.post(url, json=body)
            if answer.status_code != 200:
                raise Unusable(f"{url} answers {answer.status_code}; {hint}")
            ids = sorted({int(one) for one in answer.json()["tokens"]})
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise Unusable(f"{url}: {_why(error)}; {hint}") from None
        if len(ids) < 16:
            raise Unusable(f"{url} gives {len(ids)} different tokens only; {hint}")
        return ids

    def unhealthy(self) -> Unhealthy | None:
        """None where every engine says it is healthy, else who does not and how."""
        for url in self.engine_urls:
            if url in self._without_health:
                continue
            try:
                status = self._client.get(f"{url}/health", timeout=HEALTH_TIMEOUT_S).status_code
            except httpx.TimeoutException as error:
                return Unhealthy(f"{url}/health: {_why(error)}", sure=False)
            except httpx.HTTPError as error:
                return Unhealthy(f"{url}/health: {_why(error)}")
            if status != 200:
                return Unhealthy(f"{url}/health answers {status}")
        return None

    def probe(self, token_ids: Sequence[int]) -> str | None:
        """Asks for one token. None where it came, else what happened instead."""
        body = {
            "model": self.model,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            answer = self._client.post(
                f"{self.base_url}/v1/completions", json=body, timeout=self._probe_timeout_s
            )
            if answer.status_code != 200:
                return f"the probe request is answered {answer.status_code}"
            if not cast("dict[str, Any]", answer.json()).get("choices"):
                return "the probe request is answered without a completion"
        except (httpx.HTTPError, ValueError) as error:
            return f"the probe request fails: {_why(error)}"
        return None

    def listed(self) -> bool:
        """Whether the model is (still) among those served."""
        try:
            return self.model in (self._models() or {})
        except Unusable:
            return False


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, httpx.TimeoutException):
        return f"no answer in time ({type(error).__name__})"
    return text or type(error).__name__
