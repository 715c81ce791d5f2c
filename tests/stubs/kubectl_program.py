"""A stand-in for kubectl: `get`, `logs`, `config view` and `port-forward` of the cluster in the file $KUBECTL_CLUSTER.

It says what kubectl 1.20 to 1.32 say, word for word as far as kvpressure reads it: the real one is run by
`make e2e-kubernetes`. Started by `tests/stubs/kubectl.py`, and imports nothing of ours.
"""

# ruff: noqa: T201, PTH123, SIM115, SIM105 - as small and as quick to start as it can be

import json
import os
import socket
import sys
import threading
import time

STATE = json.load(open(os.environ["KUBECTL_CLUSTER"]))


def end(*lines, code=1):
    for line in lines:
        print(line, file=sys.stderr, flush=True)
    os._exit(code)


def asked(what):
    with open(os.environ["KUBECTL_CLUSTER"] + ".asked", "a") as log:
        print(os.getpid(), what, file=log)


def parsed(words):
    given, flags = [], {}
    for word in words:
        name, _, value = word.partition("=")
        if word.startswith("-"):
            flags[name.lstrip("-")] = value
        else:
            given.append(word)
    return given, flags


def allowed(verb, resource, name, where):
    if f"{verb} {resource}" in STATE["forbidden"]:
        group = resource.partition(".")[2]
        what = f'resource "{resource.partition(".")[0]}" in API group "{group}" in the namespace "{where}"'
        named = f' "{name}"' if name else ""
        end(f'Error from server (Forbidden): {resource}{named} is forbidden: User "ada" cannot {verb} {what}')


def matches(labels, selector):
    return all(labels.get(term.partition("=")[0]) == term.partition("=")[2] for term in selector.split(",") if term)


def get(words, flags, where):
    if "raw" in flags:
        _, _, _, _, namespace, resource, name = flags["raw"].split("/")
        words, where = [resource, name], namespace
    resource, *names = words
    if resource not in STATE["objects"] and resource in STATE["absent"]:
        end(f'error: the server doesn\'t have a resource type "{resource.partition(".")[0]}"')
    allowed("get" if names else "list", resource, names[0] if names else "", where)
    here = {
        name: item
        for name, item in STATE["objects"].get(resource, {}).items()
        if "all-namespaces" in flags or item["metadata"].get("namespace", "prod") == where
    }
    if names:
        missing = [name for name in names if name not in here]
        if missing and "ignore-not-found" not in flags:
            end(f'Error from server (NotFound): {resource} "{missing[0]}" not found')
        items = [here[name] for name in names if name in here]
        if len(names) == 1 or not items:
            print(json.dumps(items[0]) if items else "", flush=True)
            return
    else:
        selector = flags.get("selector", "")
        items = [item for item in here.values() if matches(item["metadata"].get("labels", {}), selector)]
    if flags.get("output") == "name":
        print("\n".join(f"{resource[:-1]}/{item['metadata']['name']}" for item in items))
    else:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4))


def logs(words, flags, where):
    allowed("get", "pods/log", words[0], where)
    text = STATE["logs"].get(f"{words[0]} {'previous' if 'previous' in flags else 'current'}")
    if text is None and "previous" in flags:
        end(f'Error from server (BadRequest): previous terminated container "vllm" in pod "{words[0]}" not found')
    sys.stdout.write("".join((text or "").splitlines(keepends=True)[-int(flags["tail"]) :]))


def carry(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for side in (source, sink):
        try:
            side.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def port_forward(words, flags, where):
    pod = words[0].removeprefix("pod/")
    local, port = (int(part or 0) for part in words[1].split(":"))
    allowed("create", "pods/portforward", pod, where)
    listener = socket.create_server((flags["address"], local))
    local = listener.getsockname()[1]
    print(f"Forwarding from 127.0.0.1:{local} -> {port}", flush=True)
    while True:
        client, _ = listener.accept()
        print(f"Handling connection for {local}", flush=True)
        try:
            server = socket.create_connection(STATE["engines"].get(f"{pod}:{port}", ("127.0.0.1", 1)))
        except OSError:
            client.close()
            why = f"dial tcp4 127.0.0.1:{port}: connect: connection refused"
            refused = f"an error occurred forwarding {local} -> {port}: error forwarding port {port} to pod x: {why}"
            end(f"E0102 03:04:05.678901   12345 portforward.go:424] {refused}", "error: lost connection to pod")
        for pair in ((client, server), (server, client)):
            threading.Thread(target=carry, args=pair, daemon=True).start()


def main():
    (verb, *words), flags = parsed(sys.argv[1:])
    asked(" ".join((verb, *words, *sorted(flags))))
    if STATE["hangs"]:
        print("To sign in, use a web browser", file=sys.stderr, flush=True)
        time.sleep(3600)
    if flags.get("context", "test") != "test":
        end(f'error: context "{flags["context"]}" does not exist')
    if verb == "config":
        print("prod", end="")
        return
    if STATE["complaint"]:
        end(STATE["complaint"])
    if STATE["floods"]:
        while True:
            sys.stdout.write("x" * 65536)
    where = flags.get("namespace", "prod")
    {"get": get, "logs": logs, "port-forward": port_forward}[verb](words, flags, where)


main()
