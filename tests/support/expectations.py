"""Bad configuration fixtures say themselves what must be reported of them, in `# expect:` lines."""

from pathlib import Path

CONFIG = Path(__file__).parents[1] / "fixtures" / "config"


def fixtures(folder: str) -> list[Path]:
    found = sorted((CONFIG / folder).glob("*.yaml"))
    assert found, f"no fixtures in {folder}"
    return found


def expected(path: Path) -> list[str]:
    prefix = "# expect: "
    lines = path.read_text().splitlines()
    wanted = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    assert wanted, f"{path} expects nothing"
    return [line.replace("{file}", str(path)).replace("{dir}", str(path.parent)) for line in wanted]
