"""Print the public names of rooms with signatures, without docstrings: python3 signatures.py ROOM..."""

import ast, sys
from pathlib import Path

ROOT = Path("/work/main/airflow_provider_cdc")


def sig(n, ind=""):
    a = ast.unparse(n.args)
    r = f" -> {ast.unparse(n.returns)}" if n.returns else ""
    print(f"{ind}def {n.name}({a}){r}")


for room in sys.argv[1:]:
    folder = ROOT / room.replace(".", "/")
    for f in sorted(folder.glob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]):
        if f.name == "__init__.py":
            continue
        print(f"## {f.relative_to(ROOT)}")
        for n in ast.parse(f.read_text()).body:
            if isinstance(n, ast.FunctionDef) and not n.name.startswith("_"):
                sig(n)
            elif isinstance(n, ast.ClassDef) and not n.name.startswith("_"):
                print(f"class {n.name}({', '.join(map(ast.unparse, n.bases))})")
                for m in n.body:
                    if isinstance(m, ast.FunctionDef) and (not m.name.startswith("_") or m.name == "__init__"):
                        sig(m, "    ")
                    elif (
                        isinstance(m, ast.AnnAssign)
                        and isinstance(m.target, ast.Name)
                        and not m.target.id.startswith("_")
                    ):
                        print(f"    {m.target.id}: {ast.unparse(m.annotation)}")
            elif isinstance(n, (ast.Assign, ast.AnnAssign)):
                for t in n.targets if isinstance(n, ast.Assign) else [n.target]:
                    for x in ast.walk(t):
                        if isinstance(x, ast.Name) and not x.id.startswith("_"):
                            print(f"{x.id} = {ast.unparse(n.value)[:70] if n.value else ''}")
