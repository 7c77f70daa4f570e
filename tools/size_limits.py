"""Fail when a Python file or function is too long to read in one sitting."""

import ast
import sys
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def violations(path: Path) -> list[str]:
    """Name every breach of the two limits in one file."""
    source = path.read_text(encoding="utf-8")
    found = []
    num_lines = source.count("\n")
    if num_lines > MAX_FILE_LINES:
        found.append(f"{path}: {num_lines} lines, the limit is {MAX_FILE_LINES}")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines, the limit is {MAX_FUNCTION_LINES}")
    return found


def main() -> int:
    """Check the folders given on the command line."""
    found = [line for root in sys.argv[1:] for path in sorted(Path(root).rglob("*.py")) for line in violations(path)]
    print("\n".join(found) if found else "file and function lengths are within the limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
