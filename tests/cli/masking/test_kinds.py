"""Kinds of secrets that no name and no look gives away: what is not known to be harmless is masked.
And what an operator needs of a record is still there."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from hisparse_guard.cli.masking import Vault, files
from tests.cli.ramp import test_secrets
from tests.cli.ramp.test_secrets import archive

DATA = Path(__file__).parents[2] / "data"
# A word of a person, without a digit or a capital: only that nobody knows it gives it away.
S = "wexlorum"
HEAD = "(EngineCore pid=7) INFO 01-01 10:00:00 [core.py:1] "

LOGS = {
    "a word without a name": f"he typed {S}\n+ echo {S}",
    "a name that says nothing": f"community={S} tokens: [{S}] mnemonic: {S} {S} {S}",
    "a header on another line": f"user,password\nbob,{S}\nalice,{S}9",
    "glued into a name": f"MY_{S.upper()}_VAR=1 {S}Key: 2 --{S}-flag",
    "other letter case": f"{S} {S.upper()} {S.capitalize()}",
    "cut in two": f"password={S[:4]}\n{S[4:]}\n",
    "joined with known words": f"cache-{S}-worker vllm.{S} a/{S}/b {S}@engine",
    "an unknown name of a number": f"{S}=4711 {S}: 4711",
    "an unknown environment": f"environment:\n  ANYTHING: {S}",
    "a prompt of a client": f"{HEAD}Received request cmpl-{S}: prompt: 'my dog {S}'",
    "a model's path": f"{HEAD}model='acme/{S}-70b' tokenizer='/mnt/{S}/x'",
    "another program": f"postgres started for {S}\n{S} {S}",
    "an exception": f"Traceback (most recent call last):\nKeyError: '{S}'",
    "a key of JSON": f'{{"{S}": 1, "level": "{S}"}}',
    "a number in JSON": f'{{"{S}": 4711}}',
    "ids of tokens": f"{HEAD}Received request: prompt_token_ids: [1, 4711, 9], lora_request: None",
    "a prompt of known words": f"{HEAD}prompt: 'the number is 4711, \\'4711\\' it is', params: x",
    "a client's message": '{"messages": [{"role": "user", "content": "pin 4711"}]}',
    "an answer": f"{HEAD}Generated response cmpl-1: output: '4711 {S}', finish_reason: stop",
    "a tool's arguments": "INFO tool_calls=[{'arguments': '{\"a\": \"4711\"}'}] x",
    "text of JSON": '{"choices": [{"text": "call 4711"}]}',
    "metadata": "INFO metadata={'a': {'b': 'vllm 4711'}} suffix='4711' user='4711'",
    "a request's path": '- "GET /v1/files/4711 HTTP/1.1" 200\n- "GET /cb?code=4711 HTTP/1.1" 200',
    "a header": "INFO User-Agent: 4711\nX-Forwarded-For: 4711\nINFO {'x-request-id': '4711'}",
    "a person": "INFO user_id=4711 session: 4711 tenant_id='4711' account number 4711-1",
    "a code": "INFO OTP is 4711, verification code: 4711 PIN code 4711",
    "a phrase": "INFO seed phrase: engine worker 4711",
    "a number that a secret name has": "<apiKey>4711</apiKey> machine h password 4711",
    "a number under an unknown name": f"INFO {S}=0x4711 {S}: 4711",
    "a table": "USER  PASSWORD\nbob   4711\nname,token\na,4711\n| id | api_key |\n| 1 | 4711 |",
    "a phone": "call +1 555 867 4711 or 555-867-4711 or (555) 867-4711",
    "curl": "+ curl -b sid=4711 -d user=4711 http://h",
    "SSH's client": "  User 4711\n  HostName 4711",
    "half of a pair": f'{{"a": "token=\\ud800{S}", "\\ud800{S}": 1}}',
    "letter by letter": "it is w-e-x-l-o-r-u-m and w e x l o r u m",
    "a card": "paid with 4711 4711 4711 4711",
    "people in JSON": 'INFO {"client_id": "94711947", "project_number": 94711947.5}',
    "an id of another account": "external_id = 94711947\nINFO externalID: 94711947",
    "keys of services": "INFO {user_key: 94711947, app_key: 94711947} storageKey=94711947",
    "programs with a password": "unzip -P 94711947 a.zip\nldapsearch -w 94711947 -D x\n"
    "vault kv put secret value=94711947\nsmbclient -A 94711947 x",
    "an environment in braces": "INFO with env_vars {'K': '94711947'}"
    "\nenv: {K: 94711947, J: '94711947'}",
}
FILES = {
    "a key": f"data: {{{S}: 1}}\n",
    "a name": f"containers:\n- name: {S}\n",
    "an image": f"containers:\n- image: registry/{S}/vllm:1\n",
    "a label": f"metadata:\n  labels: {{app: {S}, {S}: x}}\n",
    "a variable's name": f"env:\n- name: {S.upper()}_TOKEN\n  value: '1'\n",
    "a flag's name": f"args: [--{S}, '1', --{S}=2, -x, {S}]\n",
    "a model that was not asked for": f"args: [--model, acme/{S}, --served-model-name, {S}]\n",
    "a word of a command": f"command: [{S}, serve]\nargs: [sh, -c, 'vllm serve x; {S} 1']\n",
    "a name in a script": f"command: [sh, -c, 'export {S.upper()}=1; vllm serve {S}']\n",
}  # fmt: skip


@pytest.mark.parametrize("place", LOGS)
def test_logs(place: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(LOGS[place] + "\n")
    held = "".join(archive(tmp_path, server_logs=[path]).values())
    for part in (S, S[:4], S[4:], "4711", "-".join(S), " ".join(S)):
        assert part not in held.lower()


def test_the_name_of_a_section(tmp_path: Path) -> None:
    (tmp_path / "a.ini").write_text(f"[{S}]\nmode = auto\n[default]\nmode = auto\n")
    text = archive(tmp_path, deployment=[tmp_path / "a.ini"])["x/deployment/1.ini"]
    assert S not in text and "[default]" in text


@pytest.mark.parametrize("place", FILES)
def test_files(place: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(FILES[place])
    held = archive(tmp_path, deployment=[path])
    assert S not in "".join(held.values()).lower()
    assert "x/deployment/1.yaml" in held


HOSTS = (
    "Jan 01 10:00:00 gpu-node-7 vllm[12]: INFO x",
    "gpu-node-7:1234:5678 [0] NCCL INFO x",
    "[gpu-node-7:12345] *** Process received signal ***",
    "client socket [gpu-node-7]:1234 has failed to connect",
    "failed to connect to gpu-node-7:29500",
    "INFO host='gpu-node-7' SLURMD_NODENAME=gpu-node-7",
    '{"hostname": "gpu-node-7"}',
    "master@gpu-node-7:~$ vllm serve",
)


@pytest.mark.parametrize("line", HOSTS)
def test_a_host_of_known_words_that_its_place_tells(line: str, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(f"INFO from gpu-node-7\n{line}\nINFO gpu-node-7 x\n")
    held = archive(tmp_path, server_logs=[tmp_path / "server.log"])["x/server-logs/1.log"]
    assert "gpu-node" not in held and "INFO from <host>" in held


@pytest.mark.parametrize(
    "address",
    [
        "ip-10-31-77-5",
        "10-31-77-5.default",
        "addr_10.31.77.5_1",
        "node_10_31_77_5",
        "2001:db8:31:77::",
        "0x31:77:31:77",
        "00:11:31:77:44:55",
        "00-11-31-77-44-55",
        "0011.3177.4455",
        "::ffff:10.31.77.5",
    ],
)
def test_addresses(address: str, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(f"INFO at {address} up\n")
    held = archive(tmp_path, server_logs=[tmp_path / "server.log"])["x/server-logs/1.log"]
    for part in ("31.77", "31:77", "31-77", "31_77", "3177"):
        assert part not in held
    assert held.startswith("INFO at ") and held.rstrip().endswith(" up")


def test_numbers_of_unknown_fields_and_of_people(tmp_path: Path) -> None:
    (tmp_path / "v.yaml").write_text(
        f"{S}: 849201773645\naccount: 849201773646\nphone: '849201773647'\nreplicas: 4\n"
    )
    text = archive(tmp_path, deployment=[tmp_path / "v.yaml"])["x/deployment/1.yaml"]
    assert "8492" not in text and "replicas: 4" in text


def test_numbers_in_argument_lists(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("args: [--port, 8000, --api-key, 8471]\n")
    (tmp_path / "a.log").write_text(
        '{"args": ["--port", 8000, "--token", 8472]}\nsetx HF_TOKEN 8473\n'
    )
    held = archive(tmp_path, deployment=[tmp_path / "p.yaml"], server_logs=[tmp_path / "a.log"])
    assert "- 8000\n" in held["x/deployment/1.yaml"] and "8000" in held["x/server-logs/1.log"]
    assert not re.search(r"847\d", "".join(held.values()))


def test_a_secret_of_a_manifest_in_other_letters_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("stringData: {token: engineworker}\n")
    (tmp_path / "a.log").write_text("INFO EngineWorker ENGINEWORKER\n")
    held = archive(tmp_path, deployment=[tmp_path / "s.yaml"], server_logs=[tmp_path / "a.log"])
    assert "engineworker" not in "".join(held.values()).lower()


def test_what_a_log_is_read_for_is_there(tmp_path: Path) -> None:
    log = DATA / "logs" / "main-crash.log"
    held = archive(tmp_path, server_logs=[log])["x/server-logs/1.log"]
    for line in log.read_text().splitlines():
        if "docs.nvidia.com" not in line and 'File "' not in line:
            assert line in held
    assert 'File "<path>/vllm/v1/worker/gpu/async_utils.py", line 175, in get_output' in held


def test_what_a_deployment_is_read_for_is_there(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(
        "spec:\n  containers:\n  - name: vllm\n    image: vllm/vllm-openai:v0.32.0\n"
        "    args: [--model, zai-org/GLM-5.3, --kv-cache-dtype, fp8, --tensor-parallel-size, '4']\n"
        "    env:\n    - {name: HISPARSE_GUARD_MODE, value: strict}\n"
        "    - {name: VLLM_FLASHINFER_ALLREDUCE_BACKEND, value: trtllm}\n"
        "    resources: {limits: {nvidia.com/gpu: '4', memory: 512Gi}}\n"
    )
    held = archive(tmp_path, deployment=[path])["x/deployment/1.yaml"]
    assert "***" not in held
    for kept in ("vllm-openai:v0.32.0", "zai-org/GLM-5.3", "fp8", "strict", "trtllm", "512Gi"):
        assert kept in held


def test_own_words_are_known(tmp_path: Path) -> None:
    """Triage's own titles and advice are not masked in its document."""
    from hisparse_guard.cli.masking import policy
    from hisparse_guard.cli.triage.catalogue import load

    for fault in load().faults:
        for text in (fault.title, fault.meaning, *fault.next_steps):
            unknown = [one for one in text.split() if not policy.known_words(one)]
            assert not [one for one in unknown if "/" not in one], "run the vocabulary again"


# Ordinary words of a log, as a secret and as a host.
WORD, OTHER = "layer", "scheduler"


@pytest.mark.parametrize("table", [test_secrets.LOGS, test_secrets.MANIFESTS])
def test_an_ordinary_word_is_masked_where_it_is_named(
    table: dict[str, str], tmp_path: Path
) -> None:
    # Places that hold by how random a secret looks, and names.
    exempt = {"token", "as a key", "image", "name that is a secret"}
    for place in table.keys() - exempt:
        text = table[place]
        for secret, word in ((test_secrets.S, WORD), (test_secrets.WORD, OTHER)):
            text = text.replace(secret, word)
        # A value that was cut in two.
        text = text.replace(test_secrets.S[:4], WORD[:3]).replace(test_secrets.S[4:], WORD[3:])
        path = tmp_path / "x.yaml"
        path.write_text(text + "\n", newline="")
        read = files.log if table is test_secrets.LOGS else files.deployment
        shown = read(path, Vault()).text.lower()
        assert not {WORD, OTHER} & set(re.findall(r"[a-z]+", shown)), place


def test_an_ordinary_word_is_kept_where_it_is_repeated(tmp_path: Path) -> None:
    encoded = base64.b64encode(OTHER.encode()).decode()
    (tmp_path / "a.log").write_text(
        f"INFO password={OTHER}\nINFO --token {WORD}\nINFO the {OTHER} and a {WORD}\n{encoded}\n"
    )
    held = archive(tmp_path, server_logs=[tmp_path / "a.log"])
    log = held["x/server-logs/1.log"]
    assert log.splitlines() == [
        "INFO password=***",
        "INFO --token ***",
        f"INFO the {OTHER} and a {WORD}",
        "***",
    ]
    said = " ".join(held["x/README.txt"].split())
    assert "where it is named, not where it is repeated" in said


# Known words in a row, at places that tell what they are.
ROW = "engine-batch-layer"
ROWS = {
    "a variable": f'INFO "FOO={ROW}" export BAR={ROW}',
    "handed on": f"+ echo {ROW} | sudo -S true\n+ passwd <<< {ROW}\n+ vault login {ROW}",
    "several options of curl": f"+ curl -d x --user a:{ROW} --proxy-user b:{ROW} -b s={ROW} h",
    "an entry": f"- {{name: GREETING, value: {ROW}}}",
    "other keys": f"INFO routing_key: {ROW} key: {ROW}\nusing key {ROW} for x",
    "a name after a name": f"INFO bad credentials for bob: password '{ROW}' rejected",
    "ends of lines in quotes": f"send: b'GET / HTTP/1.1\\r\\nX-Tenant: {ROW}\\r\\n'",
    "Terraform": f'variable "db_password" {{\n  type = string\n  default = "{ROW}"\n}}',
    "three quotes": f'password = """{ROW}"""',
    "headers of JSON": f'{{"headers": {{"X-Foo": "{ROW}", "wexlorum": "{ROW}"}}}}',
    "attributes": f'{{"attributes": [{{"key": "host.name", "value": {{"s": "{ROW}"}}}}]}}',
    "an unknown name of JSON": f'{{"wexlorum": "{ROW}"}}',
    "nginx": f"proxy_set_header X-Key {ROW};",
    "a session": f"rt=0.1 sess={ROW}",
    "lists": f"INFO loaded api keys: {ROW}, {ROW}\ncredentials (bob, {ROW})\ntokens:\n- {ROW}",
    "signs": f"INFO password<{ROW}> bearer token {ROW} ssh_key={ROW} api.key={ROW}",
    "names of several words": f"INFO tokenValue={ROW} webhookUrl={ROW} apiKeyProd={ROW}",
    "people": f"INFO session id {ROW} from user '{ROW}' license {ROW} code={ROW}&state={ROW}",
    "goes on": f"export HF_TOKEN=\\\n{ROW}\nvllm x \\\n --api-key \\\n {ROW} \\\n  -u a:{ROW}",
    "hosts": f'INFO "hosts": ["{ROW}"] node {ROW} died',
    "a column of names": f"token    {ROW}\ntoken_accessor    {ROW}\nroot_token    {ROW}",
    "directives": f"requirepass {ROW}\nmasterauth {ROW}\nbindpw {ROW}\nrootpw {ROW}",
    "a word between": f"AUTH PLAIN {ROW}\nnew password is now {ROW}\nAUTH LOGIN {ROW}",
    "bold type": f"- **Token:** `{ROW}`\n- __Password:__ {ROW}",
    "XML": f"<key>password</key><string>{ROW}</string>\n<string>{ROW}</string>\n"
    f"<saml:NameID>{ROW}</saml:NameID>\n<username>{ROW}</username>",
    "OAuth": f"'code_verifier': '{ROW}', device_code={ROW}&user_code={ROW}",
    "what is to be masked": f"::add-mask::{ROW}\n##[add-mask]{ROW}",
    "clients": f"mc alias set m http://h {ROW} {ROW}\nnet use h /user:bob {ROW}\n"
    f"racadm -u root -p {ROW}\nsnmpwalk -v2c -c {ROW} h\nwandb: Appending key for h.io: {ROW}",
    "a long line": f"(EngineCore pid=7) INFO 01-01 10:00:00 [core.py:1] api_key=\n{ROW}",
    "a passphrase": f"passphrase: {ROW} {ROW}",
}


@pytest.mark.parametrize("place", ROWS)
def test_known_words_that_their_place_tells(place: str, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(ROWS[place] + "\nINFO an engine-batch-layer\n")
    shown = archive(tmp_path, server_logs=[tmp_path / "server.log"])["x/server-logs/1.log"]
    assert "batch" not in "".join(shown.splitlines()[:-1])
    assert shown.splitlines()[-1].startswith("INFO an ")


def test_accounts_and_times(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(
        "INFO arn:aws:iam::286226659047:role/x chat_id: 413840901\n[03/Dec/2026:08:00:00 +0000] x\n"
    )
    shown = archive(tmp_path, server_logs=[tmp_path / "server.log"])["x/server-logs/1.log"]
    assert "2862" not in shown and "4138" not in shown and "2026:08:00:00" in shown


WORD_HOSTS = (
    "Dec  3 08:00:00 layer vllm[12]: x",
    "<34>1 2026-01-01T00:00:00Z layer vllm 12 - - x",
    "[   12.345678] layer kernel: x",
    "layer:123:456 [0] NCCL INFO x",
    "(Worker pid=1) layer:123:456:789 [0] NCCL INFO x",
    "[1700000000.123456] [layer:12345:0] x",
    "The client socket has failed to connect to [layer]:29500",
    "trying to connect to (layer, 29500)",
    "  host      : layer",
    "MASTER_ADDR=layer vllm serve --host layer --port 1",
    "srun: error: layer: task 0: Killed",
    "STEP 123.0 ON layer CANCELLED AT x",
    "slurmstepd: error: *** JOB 123 ON layer CANCELLED AT x ***",
    "root@layer:~# ls",
    "[root@layer ~]# ls",
    "Could not resolve host: layer",
    "Cannot connect to host layer:8000 ssl:default",
    "Connected to layer (10.1.2.3) port 8000",
    "(RayWorker pid=12, ip=layer) x",
    "Successfully assigned default/x to layer",
    'up{instance="layer:9100",node="layer"} 1',
    '{"hostname": "layer", "node": "layer", "message": "x"}',
    "Linux layer 5.15.0-91-generic x",
    "git@layer:team/x",
    "10.1.2.3 layer",
    "lookup layer on 10.96.0.10:53: no such host",
    "hostname=layer",
)


@pytest.mark.parametrize("line", WORD_HOSTS)
def test_a_host_of_one_word_is_masked_at_its_place(line: str, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(f"{line}\nINFO a layer\n")
    shown = archive(tmp_path, server_logs=[tmp_path / "server.log"])["x/server-logs/1.log"]
    assert "layer" not in shown.splitlines()[0] and "<host>" in shown
    assert shown.splitlines()[1] == "INFO a layer"


@pytest.mark.parametrize(
    "line",
    [
        "PIN: 4 7 11",
        "PIN 47 11",
        "PIN number 47117",
        "your code: 47117",
        "phone 5551 2347 11",
        "phone: 123 456 711",
        "password is 123 456 711",
        "password: 123 456 711",
        "OTP 123-711",
        "card 3782 822463 10711",
        "IBAN DE89 3704 0044 0532 0137 11",
        "account no. 1234 5678 711",
        "passphrase: worker 4711 711",
    ],
)
def test_a_number_in_groups(line: str, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(f"INFO {line}\nINFO step 4 7 11\n")
    shown = archive(tmp_path, server_logs=[tmp_path / "server.log"])["x/server-logs/1.log"]
    assert not re.search(r"\d", shown.splitlines()[0])
    assert shown.splitlines()[1] == "INFO step 4 7 11"
