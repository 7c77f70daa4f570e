"""Fail when a Python file or function is too long to read in one sitting, or a function takes too many arguments."""

import ast
import sys
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
# for functions of the package; options of commands and keywords of the public facade are not counted
MAX_ARGUMENTS = 8
_UNCOUNTED = ("src/maskloom/cli/", "src/maskloom/__init__.py")


def violations(path: Path) -> list[str]:
    """Return a line for every violation of the limits in a file."""
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
            number = 0 if is_kernel(node) else num_arguments(node)
            if number > MAX_ARGUMENTS and path.parts[0] == "src" and not path.as_posix().startswith(_UNCOUNTED):
                found.append(
                    f"{path}:{node.lineno}: {node.name} takes {number} arguments, the limit is {MAX_ARGUMENTS}"
                )
    return found


def num_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of arguments of a function, not counting self or cls."""
    every = [*function.args.posonlyargs, *function.args.args]
    own = bool(every) and every[0].arg in ("self", "cls")
    return len(every) + len(function.args.kwonlyargs) - own


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is a Triton kernel, whose pointers and sizes are separate arguments."""
    return any(ast.unparse(decorator).partition("(")[0] == "triton.jit" for decorator in function.decorator_list)


def main() -> int:
    """Check the folders given on the command line; return the exit code."""
    found = [line for root in sys.argv[1:] for path in sorted(Path(root).rglob("*.py")) for line in violations(path)]
    print("\n".join(found) if found else "files, functions and their arguments are within the limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
