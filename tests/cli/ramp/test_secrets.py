"""A marked secret in every place where people put them: none can be read in the archive."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.ramp.results import archive

# ruff: noqa: E501 - one place a line
# A password of a person: neither long nor random.
S = "zebraMARK"
# What a machine makes.
R = "q9XtMARK7vLw2ZpR4sKd8"
B64 = base64.b64encode(S.encode()).decode()
WORD = "correct-MARK-horse"

MANIFESTS: dict[str, str] = {
    "two lines": f"env:\n- name: HF_TOKEN\n  value: {S}\n",
    "flow": f"env: [{{name: HF_TOKEN, value: {S}}}]\n",
    "value first": f"env:\n- value: {S}\n  name: ANYTHING\n",
    "args list": f"args: [--api-key, {S}, {WORD}, --port, '8000']\n",
    "args lines": f"command:\n- vllm\n- serve\n- --api-key={S}\n- --hf-token\n- {WORD}\n",
    "shell in args": f'command: [sh, -c]\nargs: ["vllm serve x --api-key {S} && echo {WORD}"]\n',
    "last applied": json.dumps(
        {
            "metadata": {
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": json.dumps(
                        {"spec": {"env": [{"name": "X", "value": S}], "args": ["-k", R]}}
                    )
                }
            }
        }
    ),
    "block scalar": f"data:\n  run.sh: |\n    export TOKEN={S}\n    curl -H 'x: {R}'\n",
    "folded": f"args:\n- >-\n  vllm serve x\n  --api-key {S}\n",
    "string data": f"kind: Secret\nstringData:\n  anything: {S}\n",
    "base64 data": f"kind: Secret\ndata:\n  anything: {B64}\n",
    "probe headers": f"httpGet:\n  httpHeaders:\n  - name: Authorization\n    value: Bearer {S}\n",
    "probe header, other": f"httpHeaders:\n- {{name: X-Thing, value: {S}}}\n",
    "pem": f"tls:\n  k: |\n    -----BEGIN PRIVATE KEY-----\n    {R}{R}\n    -----END PRIVATE KEY-----\n",
    "openssh": f"k: |\n  -----BEGIN OPENSSH PRIVATE KEY-----\n  {R}{R}\n",
    "helm values": f"vllm:\n  hfToken: {S}\n  auth: {{existing: {WORD}}}\n  extra: [{R}]\n",
    "compose map": f"services:\n  vllm:\n    environment:\n      FOO: {S}\n      NUM_PW: 123456789MARK\n",
    "compose list": f"services:\n  vllm:\n    environment:\n    - FOO={S}\n    - HF_TOKEN={WORD}\n",
    "compose command": f"services:\n  vllm:\n    command: --model x --api-key {S}\n",
    "connection string": f"url: postgres://u:{S}@db/x\nother: Server=db;Password={S};\n",
    "sas": f"u: https://a.blob.core.windows.net/c?sv=2020&sig={R}%3D\n",
    "signed url": f"u: https://s3/x?X-Amz-Signature={R}&X-Amz-Credential={S}\n",
    "webhook": f"u: https://hooks.slack.com/services/T0/B0/{R}\n",
    "suffixes": f"a:\n  OPENAI_API_KEY_PROD: {S}\n  HF_TOKEN_READ: {S}\n  DB_PW: {S}\n  X_PASS: {S}\n",
    "under a secret name": f"credentials:\n  a: {S}\n  b: [{S}, {WORD}]\n  c: {{d: {S}}}\n",
    "label": f"metadata:\n  labels: {{x: {S}}}\n",
    "as a key": f"data: {{{R}: 1}}\n",
    "comment": f"a: 1 # the password is {S}\n",
    "anchor": f"x: &a {{token: {S}}}\ny: *a\n",
    "image": f"image: registry/{S}/vllm:1\n",
    "name that is a secret": f"containers:\n- name: {R}\n",
    "docker config": json.dumps(
        {"auths": {"r": {"auth": base64.b64encode(f"u:{S}".encode()).decode()}}}
    ),
    "json in a value": json.dumps({"a": json.dumps({"b": json.dumps({"password": S})})}),
    "kv config": f'args: [--kv-transfer-config, \'{{"kv_connector":"x","s3":"{S}"}}\']\n',
    "env from text": f'env: "FOO={S}"\n',
}

FILES: dict[str, tuple[str, str]] = {
    "script": ("run.sh", f"#!/bin/sh\nexport FOO={S}\nvllm serve x \\\n  --api-key \\\n  {WORD}\n"),
    "curl -u": ("run.sh", f"curl -u me:{S} http://h\ncurl -ume:{S} http://h\n"),
    "sshpass": ("run.sh", f"sshpass -p {S} ssh h\nsshpass -p{S} ssh h\n"),
    "docker login": ("run.sh", f"echo {S} | docker login -u me --password-stdin r\ndocker login -p {WORD}\n"),
    "heredoc": ("run.sh", f"cat <<EOF\ntoken: {S}\nEOF\n"),
    "header": ("run.sh", f'curl -H "Authorization: Bearer {S}" -H \'X-K: {WORD}\' h\n'),
    "quotes over lines": ("run.sh", f"X='a\n{S}\nb' vllm serve x\n"),
    "comment": ("run.sh", f"# key {S}\nvllm serve x # {WORD}\n"),
    "netrc": (".netrc", f"machine h login {WORD} password {S}\n"),
    "unit": (
        "vllm.service",
        f"[Service]\nEnvironment=HF_TOKEN={S} FOO={WORD}\nEnvironment=\"A={R}\"\n"
        f"ExecStart=/usr/bin/vllm serve x \\\n  --api-key {S}\n# {S}\n",
    ),
    "env file": (".env", f"FOO={S}\nexport HF_TOKEN='{WORD}'\n"),
    "dockerfile": ("Dockerfile", f"ENV TOKEN {S}\nARG A={WORD}\nRUN pip install --token {R}\nCMD [\"vllm\", \"{S}\"]\n"),
    "helm template": ("t.yaml", f"a: {{{{ .Values.x }}}}\ntoken: {S}\n{{{{- if y }}}}\n"),
    "ini": ("a.ini", f"[default]\naws_secret_access_key = {S}\nx = {WORD}\n"),
    "toml": ("a.toml", f'[a]\nkey = "{S}"\n'),
    "plain": ("notes.txt", f"the password is {S}\n"),
    "key file": ("id_rsa", f"-----BEGIN RSA PRIVATE KEY-----\n{R}\n"),
    "vllm config": ("vllm.yaml", f"model: x\napi-key: {S}\nhf-token: {WORD}\n"),
}  # fmt: skip

LOGS: dict[str, str] = {
    "repr": f"INFO non-default args: {{'api_key': ['{S}', '{WORD}'], 'port': 1}}",
    "twice escaped": f'INFO got {{\\\\\\"password\\\\\\": \\\\\\"{S}\\\\\\"}}',
    "escaped": f'INFO got {{\\"hf_token\\": \\"{S}\\"}}',
    "colour": f"INFO \x1b[36mapi_key\x1b[0m=\x1b[32m{S}\x1b[0m",
    "colour inside": f"INFO pass\x1b[1mword=\x1b[0m{S}",
    "url": f"INFO from https://u:{S}@host/x?token={WORD}",
    "url path": f"INFO posting to https://hooks.example.com/services/T1/{R}",
    "token": f"INFO hf_{R}abcdef and {R}",
    "header": f"INFO headers: {{'authorization': 'Bearer {R}'}}",
    "cookie": f"INFO Cookie: session={R}",
    "set -x": f"+ vllm serve x --api-key {S} {WORD}",
    "set -x curl": f"+ curl -s -u me:{S} http://h",
    "bytes": f"INFO headers [(b'x-api-key', b'{S}')] password=b'{S}'",
    "json line": json.dumps({"message": f"password={S}", "api_key": WORD, "extra": {"token": S}}),
    "docker": json.dumps({"log": f"api_key={S}\n", "stream": "stdout"}),
    "docker parts": "\n".join(
        f'{{"log":{json.dumps(part)},"stream":"stdout","time":"2026-01-01T00:00:00Z"}}'
        for part in (f"api_key={S[:4]}", S[4:] + "\n")
    ),
    "docker lines": "\n".join(
        f'{{"log":{json.dumps(one)},"stream":"stdout","time":"2026-01-01T00:00:00Z"}}'
        for one in ("password:\n", f"  {S}\n")
    ),
    **{
        f"prefix {prefix}": "\n".join(prefix + one for one in ("INFO x", "password:", f"  {S}"))
        for prefix in (
            "vllm-1  | ",
            "[pod/vllm-0/vllm] ",
            "vllm-0 vllm ",
            "Jan 01 10:00:00 h vllm[12]: ",
            "2026-01-01T00:00:00.123Z ",
            "0: ",
            "(RayWorkerWrapper pid=12, ip=x) ",
        )
    },
    "two containers": f"a-1 | INFO x\nb-1 | INFO x\na-1 | password:\nb-1 | INFO y\na-1 |   {S}",
    "signs that look alike": f"INFO password\uff1a{S} token → {WORD}\n│ HF_TOKEN │ {S} │",
    "C1 colour": f"INFO pass\x9b1mword={S} passx\x08word={S}",
    "zeros between": f"INFO cmd vllm\0serve\0--api-key\0{S}\0--port\0001",
    "percent twice": f"INFO x=https%3A%2F%2Fu%3A{S}%40h%2F and token%253D{S}%2526",
    "octal": f"INFO pass\\167ord={S}",
    "a quote over lines": f'INFO cfg\ntoken = """\n{S}\n"""\npassword: "x{S} \\\n  {WORD}"',
    "bytes pair": f"INFO [(b'x-api-key', b'{S}')]",
    "json pairs": json.dumps({"headers": [["x-api-key", S]], "h": [{"header": "token", "val": S}]}),
    "json environment": json.dumps({"env": {"ANYTHING": S}}),
    "cookies": f"> Cookie: sid=x; theme={S}\n< Set-Cookie: a={WORD}; Path=/",
    "query of a path": f'INFO "GET /cb?code={S}&state={WORD} HTTP/1.1" 200',
    "key of an environment": f"NGC_CLI_KEY={S}\nauthKey={WORD}",
    "camel": f"INFO {{'accessToken': '{S}', 'userPwd': '{WORD}'}}",
    "names of two words": f"INFO Secret Key = {S} Pass Phrase: {WORD}",
    "sentences": f"INFO Incorrect API key provided: {S}. set password to {WORD}",
    "typed": f"    api_key: str = '{S}'\n    token: Optional[str] = '{WORD}'",
    "other equals": f"INFO password := {S} token != {WORD} api_key=={S}",
    "tags": f"token: !x {S}\nauth: &a {WORD}",
    "Secret": f"stringData:\n  foo: {S}",
    "SQL": f"INFO IDENTIFIED BY '{S}'",
    "literal": f"+ kubectl create secret generic x --from-literal=a={S}",
    "crypt": f"admin:$apr1${R[:8]}$MARKabcdefgh/\nroot:$6${R[:8]}$MARK/abc",
    "prompts": f"u@h's password: {S}\nPassword for u: {WORD}\nEnter passphrase for key 'x': {S}",
    "NCCL": f"NCCL INFO NCCL_SECRET set by environment to {S}",
    "env_vars": f"INFO runtime_env={{'env_vars': {{'ANYTHING': '{S}'}}}}",
    "any scheme": f"INFO Authorization: ApiKey {S}",
    "dots, arrows, marks": f"HF_TOKEN....: {S}\nTOKEN ===> {S}\n**password**: {S}\n`token` | `{S}`",
    "an escaped quote inside": f'INFO {{"password": "ab\\"{S}", "x": 1}} pw=\'it\\\'s {WORD}\'',
    "a comma inside": f"INFO password=abc,d;{S} next",
    "form": f'form-data; name="password"\n\n{S}\n--x',
    "between name and value": f"- name: HF_TOKEN\n  optional: true\n  value: {S}",
    "later kinds of tokens": "INFO gsk_MARKabcdefghijklmnop pplx-MARKabcdefghijklmnop hvs.MARKabcdefghijklmnop",
    "cri parts": f"2026-01-01T00:00:00Z stdout P api_key={S[:4]}\n2026-01-01T00:00:00Z stdout F {S[4:]}",
    "env pair": f"INFO env {{'name': 'HF_TOKEN', 'value': '{S}'}}",
    "env pair, value first": f'INFO env {{"value": "{S}", "name": "HF_TOKEN"}}',
    "pem": f"INFO key\n-----BEGIN PRIVATE KEY-----\n{R}\nabc{S}\n-----END PRIVATE KEY-----",
    "pem in one line": f"INFO -----BEGIN PRIVATE KEY-----\\n{S}\\n-----END PRIVATE KEY-----",
    "dsn": f"INFO redis://:{S}@h:6379/0 and AccountKey={R}==;",
    "carriage return": f"INFO x\rapi_key={S}",
    "zero width": f"INFO api_\u200bkey={S}",
    "suffix": f"INFO OPENAI_API_KEY_PROD={S} MY_PW={S} DB_PASS: {S}",
    "a sentence": f"INFO Using password {S} for login, api key is: {WORD}",
    "xml": f"<password>{S}</password>",
    "argv": f"INFO argv ['vllm', '--api-key', '{S}', '--port']",
    "argv in json": json.dumps({"args": ["--api-key", S, WORD]}),
    "percent": f"INFO password%3D{S}%26",
    "pydantic": f"INFO Settings(api_key=SecretStr('{S}'), x=1)",
    "nested": f"INFO {{'auth': {{'user': 'x', 'value': '{S}'}}}}",
    "environ": f"environ({{'HF_TOKEN_READ': '{S}', 'AWS_SECRET_ACCESS_KEY': '{S}'}})",
    "json under a secret name": json.dumps({"credentials": {"a": S, "b": [WORD]}}),
    "json deep under a secret name": json.dumps({"auth": {"x": {"y": {"value": S}}}}),
    "json key and value": json.dumps({"env": [{"key": "HF_TOKEN", "value": S}]}),
    "json Name and Value": json.dumps({"env": [{"Name": "HF_TOKEN", "Value": S}]}),
    "key and value": f"INFO env {{'key': 'HF_TOKEN', 'value': '{S}'}}",
    "list over lines": f'INFO config {{\n  "api_key": [\n    "{S}",\n    "{WORD}"\n  ],\n  "port": 1\n}}',
    "list begun on its line": f"INFO {{'api_key': ['{S}',\n             '{WORD}'],\n 'port': 1}}",
    "value on the next line": f'INFO config {{\n  "api_key":\n    "{S}"\n}}',
    "vLLM's lines": "\n".join(
        f"(EngineCore pid=7) INFO 01-01 10:00:00 [a.py:1] {one}"
        for one in ("config {", '  "api_key": [', f'    "{S}"', "  ]", "}")
    ),
    "YAML value": f"INFO config\npassword:\n  {S}",
    "YAML list": f"INFO config\napi_key:\n- {S}\n- {WORD}\nport: 1",
    "YAML block": f"INFO config\ntoken: |\n  {S}\n\n  {WORD}\nx: 1",
    "YAML name and value": f"env:\n- name: HF_TOKEN\n  value: {S}",
    "YAML value and name": f"env:\n- value: {S}\n  name: HF_TOKEN",
    "JSON name and value": f'{{\n "name": "HF_TOKEN",\n "value": "{S}"\n}}',
    "flag and value": f"argv\n- --api-key\n- {S}\n",
    "name, then equals": f"[x]\npassword\n={S}",
    "a mapping in one line": f"INFO {{'credentials': {{'user': {{'n': 'x'}}, 'pw2': '{S}'}}}}",
    "several words": f"INFO args: --api-key '{S}' '{WORD}' --port 1",
    "several items": f"INFO argv ['vllm', '--api-key', '{S}', '{WORD}', '--port']",
    "digest": f'INFO Authorization: Digest username="u", response="{S}"',
    "escaped name": f"INFO pass\\u0077ord={S} pass%77ord={S} pass\\x77ord: {S}",
    "HTML": f"INFO password&quot;: &quot;{S}&quot; and token&#34;: &#x22;{S}&#34;",
    "table": f"| password | {S} |",
    "passcode": f"INFO passcode: {S}",
    "key": f'INFO key={S} "GET /v1/models?key={WORD} HTTP/1.1" 200',
}


def assert_none(held: dict[str, str]) -> None:
    half = base64.b64encode(b"MARK").decode()[:4]
    for name, text in held.items():
        for mark in ("MARK", "mark7", half, B64, "zebr"):
            assert mark not in text, f"{name}: {text}"


@pytest.mark.parametrize("place", MANIFESTS)
def test_manifests(place: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(MANIFESTS[place])
    assert "MARK" in MANIFESTS[place] or B64 in MANIFESTS[place] or "auths" in MANIFESTS[place]
    held = archive(tmp_path, deployment=[path])
    assert_none(held)
    assert any("deployment/1" in name for name in held), "it was read"


@pytest.mark.parametrize("place", FILES)
def test_other_files(place: str, tmp_path: Path) -> None:
    name, text = FILES[place]
    assert "MARK" in text
    (tmp_path / name).write_text(text)
    held = archive(tmp_path, deployment=[tmp_path / name])
    assert_none(held)
    record = json.loads(held["x/record.json"])
    assert record["left_out"] or any("deployment/1" in one for one in held)


@pytest.mark.parametrize("place", LOGS)
def test_logs(place: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(LOGS[place] + "\n", newline="")
    held = archive(tmp_path, server_logs=[path])
    assert_none(held)
    assert held["x/server-logs/1.log"].strip()


def test_lines_after_a_value_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    head = "INFO 01-01 10:00:00 [a.py:1] "
    lines = ["a:", "  api_key: [", f"    {S}", "  ]", "  port: 1", "token:", f"  {S}", "port: 2"]
    text = "\n".join(head + one for one in lines)
    # A bracket that never closes ends with its message.
    text += f"\n{head}auth: {{\n{S}\nINFO 01-01 10:00:01 [a.py:1] started\n"
    path.write_text(text)
    held = archive(tmp_path, server_logs=[path])
    assert_none(held)
    for kept in ("port: 1", "port: 2", "started"):
        assert kept in held["x/server-logs/1.log"]


@pytest.mark.parametrize("place", [one for one in LOGS if one.startswith("json")])
def test_evidence(place: str, tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    path.write_text(LOGS[place] + "\n")
    held = archive(tmp_path, evidence=[path])
    assert_none(held)
    assert held["x/evidence/1.jsonl"].strip()


@pytest.mark.parametrize(
    "pack",
    [
        lambda text: gzip.compress(text.encode()),
        lambda text: bz2.compress(text.encode()),
        lambda text: lzma.compress(text.encode()),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.encode("utf-16-be"),
        lambda text: text.encode("utf-32"),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: gzip.compress(text.encode("utf-16")),
    ],
)
def test_packed_and_encoded_logs(pack: Callable[[str], bytes], tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(pack(f"INFO started\nINFO api_key={S}\nINFO done\n"))
    held = archive(tmp_path, server_logs=[path])
    assert_none(held)
    assert "INFO started" in held["x/server-logs/1.log"]


def test_a_secret_of_one_file_is_blanked_in_all(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"stringData: {{token: {WORD}}}\n")
    encoded = base64.b64encode(WORD.encode()).decode()
    (tmp_path / "a.log").write_text(f"hello {WORD} and {encoded} and {WORD.encode().hex()}\n")
    held = archive(tmp_path, deployment=[tmp_path / "s.yaml"], server_logs=[tmp_path / "a.log"])
    assert "hello *** and *** and ***" in held["x/server-logs/1.log"]


@pytest.mark.parametrize(
    "named", ["password=swordfish", "{'password': 'swordfish'}", "+ x --api-key swordfish"]
)
def test_an_ordinary_word_that_is_named_once_is_blanked_everywhere(
    named: str, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text(f"INFO he typed swordfish\nINFO {named}\nINFO auth: refused\n")
    (tmp_path / "b.log").write_text("INFO swordfish was refused\n")
    held = archive(tmp_path, server_logs=[tmp_path / "a.log", tmp_path / "b.log"])
    assert "swordfish" not in "".join(held.values())
    assert "*** was refused" in held["x/server-logs/2.log"]


def test_the_environment_by_names_and_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", S)
    monkeypatch.setenv("VLLM_SOMETHING", WORD)
    monkeypatch.setenv("MY_COLOUR", S)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    held = archive(tmp_path)
    assert_none(held)
    kept = json.loads(held["x/environment.json"])
    assert kept["NCCL_DEBUG"] == "INFO" and kept["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert not {"VLLM_API_KEY", "VLLM_SOMETHING", "MY_COLOUR"} & set(kept)


def test_no_paths_users_hosts_nor_hashes(tmp_path: Path) -> None:
    line = (
        "INFO /home/annabel/models/x on gpu-7.corp.example.com (10.1.2.3, fe80::1:2) at"
        " /opt/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py:12 http://gpu-7/v1/models"
    )
    (tmp_path / "annabel.log").write_text(line + "\n")
    held = archive(tmp_path, server_logs=[tmp_path / "annabel.log"])
    text = "".join(held.values()) + "".join(held)
    for word in ("annabel", "gpu-7", "10.1.2.3", "fe80", "/opt/venv", str(tmp_path), "sha256"):
        assert word not in text
    assert "vllm/v1/engine/core.py:12" in text
