"""What surrounds an engine on a machine without Kubernetes: its process, its log, the host."""

import datetime as dt
import json
import sys
from pathlib import Path

from tests.support.exporting import exporter, write_config
from tests.support.processes import eventually, free_port, get, running
from tests.support.tools import FIXTURES

PAGE = FIXTURES / "pages" / "vllm-0.32.0-two-ranks.prom"
SERVER = """
import http.server, sys, time
page = open(sys.argv[-1], "rb").read()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
START = "INFO 11-20 12:00:00 [kv_cache_utils.py:1087] GPU KV cache size: 8,192 tokens"
LOGGED = 'kvpressure_log_events_total{container="llama",kind="device_oom",namespace="",pod=""}'
OOM = "ERROR {now} [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


async def test_limits_of_the_process_and_failures_in_its_log_reach_the_page_and_the_diagnosis(tmp_path: Path) -> None:
    script, log = tmp_path / "vllm", tmp_path / "engine.log"
    script.write_text(SERVER)
    log.write_text(f"{START}\n")
    port, engine = free_port(), free_port()
    config = tmp_path / "kvpressure.yaml"
    target = {"name": "llama", "url": f"http://127.0.0.1:{engine}"}
    files = [{"target": "llama", "path": str(log)}]
    write_config(config, port, [target], gpu={"vendors": []}, logs={"files": files})
    serve = [sys.executable, str(script), "serve", "llama", "--port", str(engine), "--max-num-seqs=64", str(PAGE)]
    async with running(serve, tmp_path / "vllm.log"), exporter(tmp_path, {}) as run:

        async def shows(*lines: str) -> bool:
            page = await get(f"http://127.0.0.1:{port}/metrics")
            return all(any(line.startswith(wanted) for line in page.splitlines()) for wanted in lines)

        def limit(family: str, name: str) -> str:
            labels = f'engine="0",limit="{name}",model_name="tiny",namespace="",pod="",target="llama"'
            return f"kvpressure_limit_{family}{{{labels}}}"

        async def first() -> bool:
            return await shows(
                f"{limit('declared', 'max_num_seqs')} 1.0",
                f"{limit('declared', 'max_output_tokens')} 0.0",
                f"{limit('value', 'max_num_seqs')} 64.0",
                f"{LOGGED} 0.0",
                'kvpressure_source_up{source="host",target=""} 1.0',
            )

        await eventually(first, run)
        now = dt.datetime.now(dt.UTC)
        with log.open("a") as lines:
            lines.write(OOM.format(now=now.strftime("%m-%d %H:%M:%S")) + "\n")

        async def second() -> bool:
            return await shows(
                'kvpressure_log_events_total{container="llama",kind="device_oom",namespace="",pod=""} 1.0'
            )

        await eventually(second, run)

        async def diagnosed() -> bool:
            told = json.loads(await get(f"http://127.0.0.1:{port}/api/v1/diagnosis"))
            return "CUDA out of memory" in json.dumps(told)

        await eventually(diagnosed, run)
