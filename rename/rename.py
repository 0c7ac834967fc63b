"""Apply rename tables: python rename.py TABLE.tsv... (from the project's root). Edits by position; texts of mutations follow."""

from __future__ import annotations
import ast, re, subprocess, sys, tomllib
from collections import defaultdict
from pathlib import Path

P = "airflow_provider_cdc"
DIRS = [P, "tests", "bench", "dags"]
ROOT = Path.cwd()
log = open("/tmp/rename.log", "a")


def say(*a):
    print(*a)
    print(*a, file=log, flush=True)


def pyfiles():
    return [
        f
        for d in DIRS
        for f in sorted(Path(d).rglob("*.py"))
        if "__pycache__" not in f.parts and "fixtures" not in f.parts
    ]


def modname(f: Path) -> str:
    parts = f.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Src:
    """Text of a file with byte-accurate positions of AST nodes."""

    def __init__(self, f):
        self.f = f
        self.text = f.read_text()
        self.tree = ast.parse(self.text)
        self.lines = self.text.splitlines(keepends=True)
        self.starts = [0]
        for l in self.lines:
            self.starts.append(self.starts[-1] + len(l))
        self.words = set(re.findall(r"\w+", self.text))
        self.nodes = list(ast.walk(self.tree))
        self.classes = [n for n in self.nodes if isinstance(n, ast.ClassDef)]
        self.calls = [n for n in self.nodes if isinstance(n, ast.Call)]
        self.froms = [n for n in self.nodes if isinstance(n, ast.ImportFrom)]
        self.imps = [n for n in self.nodes if isinstance(n, ast.Import)]

    def at(self, line, col):  # ast col is utf8 bytes
        l = self.lines[line - 1]
        return self.starts[line - 1] + len(l.encode()[:col].decode())

    def start(self, n):
        return self.at(n.lineno, n.col_offset)

    def end(self, n):
        return self.at(n.end_lineno, n.end_col_offset)


class Edits:
    def __init__(self):
        self.by = defaultdict(dict)

    def add(self, f, a, old, new):
        self.by[f][a] = (a + len(old), old, new)

    def apply(self):
        n = 0
        muts = mutation_spans()
        words = defaultdict(dict)
        for f, ed in self.by.items():
            t = Path(f).read_text()
            for a, (b, old, new) in ed.items():
                assert t[a:b] == old, (f, t[a - 20 : b + 20], old)
                words[str(f)][old] = new
            out, p = [], 0
            for a in sorted(ed):
                b, old, new = ed[a]
                out += [t[p:a], new]
                p = b
                n += 1
            out.append(t[p:])
            Path(f).write_text("".join(out))
        fix_mutations(muts, self.by, words)
        self.by.clear()
        return n


def mutation_spans():
    spans = []
    texts = {str(f): f.read_text() for f in Path(P).rglob("*.py")}
    for m in sorted(Path("tests/mutations").glob("*.toml")):
        for e in tomllib.loads(m.read_text())["mutation"]:
            files = [e["file"]] if "file" in e else [f for f, t in texts.items() if e["find"] in t]
            if len(files) == 1 and texts[files[0]].count(e["find"]) == 1:
                a = texts[files[0]].index(e["find"])
                spans.append((m, e, files[0], a, a + len(e["find"])))
    return spans


def fix_mutations(spans, by, words):
    changed = defaultdict(list)
    edits = {str(f): ed for f, ed in by.items()}
    for m, e, f, a, b in spans:
        ed = edits.get(f)
        if not ed:
            continue
        inside = sorted(x for x in ed if a <= x and ed[x][0] <= b)
        partial = [x for x in ed if (x < a < ed[x][0]) or (x < b < ed[x][0])]
        if partial:
            say("PARTIAL mutation", m.name, e["rule"])
        find, p, out = e["find"], 0, []
        loc = {}
        for x in inside:
            y, old, new = ed[x]
            out += [find[p : x - a], new]
            p = y - a
            loc[old] = new
        new_find = "".join(out) + find[p:]
        rep = e["replace"]
        for old, new in {**words[f], **loc}.items():
            if old in loc or not re.search(rf"\b{re.escape(old)}\b", find):
                rep = re.sub(rf"(?<![\w]){re.escape(old)}(?!\w)", new, rep)
        if new_find != find or rep != e["replace"]:
            changed[m].append((find, new_find, e["replace"], rep))
    for m, prs in changed.items():
        t = m.read_text()
        for f0, f1, r0, r1 in prs:
            done = False
            for q in ("'''", '"""', '"', "'"):
                for fq in (f"find = {q}{f0}{q}", f"find = {q}\n{f0}{q}"):
                    i = t.find(fq)
                    if i >= 0:
                        j = t.find("replace = ", i)
                        k = t.find("[[mutation]]", i)
                        k = len(t) if k < 0 else k
                        block = t[i:k]
                        block = block.replace(f0, f1, 1)
                        h = block.find("replace = ")
                        if r0 != r1:
                            block = block[:h] + block[h:].replace(r0, r1, 1)
                        t = t[:i] + block + t[k:]
                        done = True
                        break
                if done:
                    break
            if not done:
                say("MUTATION not rewritten", m.name, repr(f0[:60]))
        m.write_text(t)


# ------------------------------------------------------------------ scopes
_B = {}


def bound(fn):
    if fn not in _B:
        _B[fn] = _bound(fn)
    return _B[fn]


def _bound(fn):
    """Names bound in a function's own scope."""
    names, glob = set(), set()
    args = fn.args
    for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
        if a:
            names.add(a.arg)
    if isinstance(fn, ast.Lambda):
        return names

    def walk(n):
        for c in ast.iter_child_nodes(n):
            if isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(c.name)
                [walk(d) for d in c.decorator_list]
                continue
            if isinstance(c, ast.Lambda):
                continue
            if isinstance(c, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                walk_comp(c)
                continue
            if isinstance(c, ast.Name) and isinstance(c.ctx, (ast.Store, ast.Del)):
                names.add(c.id)
            if isinstance(c, (ast.Global, ast.Nonlocal)):
                glob.update(c.names)
            if isinstance(c, (ast.Import, ast.ImportFrom)):
                for x in c.names:
                    names.add((x.asname or x.name).split(".")[0])
            if isinstance(c, ast.ExceptHandler) and c.name:
                names.add(c.name)
            if isinstance(c, ast.MatchAs) and c.name:
                names.add(c.name)
            if isinstance(c, ast.MatchStar) and c.name:
                names.add(c.name)
            walk(c)

    def walk_comp(c):
        for d in ast.walk(c):
            if isinstance(d, ast.NamedExpr):
                names.add(d.target.id)

    for b in fn.body:

        class W:
            pass

        holder = ast.Module([b], [])
        walk(holder)
    return names - glob


def comp_bound(c):
    return {n.id for g in c.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}


def refs(src, name, want):
    """Positions of Name nodes `name` that resolve to scope `want`: None for module level, or a function node."""
    out = []
    if name not in src.words:
        return out

    def visit(n, chain):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for d in getattr(n, "decorator_list", []):
                visit(d, chain)
            for d in [*n.args.defaults, *(x for x in n.args.kw_defaults if x)]:
                visit(d, chain)
            for a in [*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs, n.args.vararg, n.args.kwarg]:
                if a and a.annotation:
                    visit(a.annotation, chain)
            if getattr(n, "returns", None):
                visit(n.returns, chain)
            inner = chain + [(n, bound(n))]
            for a in [*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs, n.args.vararg, n.args.kwarg]:
                if a and a.arg == name and want is n:
                    out.append((src.start(a)))
            body = n.body if isinstance(n.body, list) else [n.body]
            for b in body:
                visit(b, inner)
            return
        if isinstance(n, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            inner = chain + [(n, comp_bound(n))]
            visit(n.generators[0].iter, chain)
            for i, g in enumerate(n.generators):
                visit(g.target, inner)
                if i:
                    visit(g.iter, inner)
                for x in g.ifs:
                    visit(x, inner)
            for x in [n.key, n.value] if isinstance(n, ast.DictComp) else [n.elt]:
                visit(x, inner)
            return
        if isinstance(n, ast.ClassDef):
            for d in [*n.decorator_list, *n.bases, *(k.value for k in n.keywords)]:
                visit(d, chain)
            cb = {
                t.id
                for b in n.body
                for t in ast.walk(b)
                if isinstance(b, (ast.Assign, ast.AnnAssign))
                and isinstance(t, ast.Name)
                and isinstance(t.ctx, ast.Store)
            }
            for b in n.body:
                if isinstance(b, (ast.Assign, ast.AnnAssign)):
                    visit(b, chain + [(n, cb)])
                else:
                    visit(b, chain)
            return
        if isinstance(n, ast.Name) and n.id == name:
            scope = next((s for s, b in reversed(chain) if name in b), None)
            # comprehension targets of a comprehension inside the wanted function are their own
            if scope is want:
                out.append(src.start(n))
        if isinstance(n, ast.ExceptHandler) and n.name == name:
            scope = next((s for s, b in reversed(chain) if name in b), None)
            if scope is want:
                seg = src.text[src.start(n) :]
                m = re.search(rf"\bas\s+({name})\b", seg)
                out.append(src.start(n) + m.start(1))
        if isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names:
            seg = src.text[src.start(n) : src.end(n)]
            for m in re.finditer(rf"\b{name}\b", seg):
                if want is None or isinstance(n, ast.Nonlocal):
                    out.append(src.start(n) + m.start())
        if (
            isinstance(n, ast.Constant)
            and isinstance(n.value, str)
            and want is None
            and re.fullmatch(r"[\w.\[\], |]+", n.value)
            and False
        ):
            pass
        for c in ast.iter_child_nodes(n):
            visit(c, chain)

    for b in src.tree.body:
        visit(b, [])
    return out


def def_pos(src, n):
    seg = src.text[src.start(n) :]
    m = re.match(r"(?:async\s+)?(?:def|class)\s+(\w+)", seg)
    return src.start(n) + m.start(1)


def module_level(mod, old, new, ed, sources):
    """Rename a module-level name and all that import it."""
    full = f"{P}.{mod}"
    ok = False
    for f, s in sources.items():
        if modname(f) == full:
            if re.search(rf"(?<![\w.]){new}\b(?!\s*=[^=])", s.text) and any(
                isinstance(n, ast.Name) and n.id == new for n in ast.walk(s.tree)
            ):
                if any(getattr(n, "name", None) == new for n in s.tree.body):
                    say("CLASH", mod, old, new)
                    return False
            for n in s.tree.body:
                if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and n.name == old:
                    # decorators come first; the name is after def/class
                    seg_start = s.at(n.lineno, n.col_offset)
                    ed.add(f, def_pos(s, n), old, new)
                    ok = True
            pos = refs(s, old, None)
            ok = ok or bool(pos)
            for p in pos:
                ed.add(f, p, old, new)
            for n in s.tree.body:
                if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets):
                    for c in ast.walk(n.value):
                        if isinstance(c, ast.Constant) and c.value == old:
                            ed.add(f, s.start(c) + 1, old, new)
    if not ok:
        say("NOT FOUND", mod, old)
        return False
    # importers, also through packages that hand it on
    _, _, _, froms, aliases = index(sources)
    homes = {full}
    for f, n in froms[full]:
        if f.name == "__init__.py" and any(a.name == old for a in n.names):
            homes.add(modname(f))
    for h in homes:
        byfile = defaultdict(list)
        for f, n in froms[h]:
            for a in n.names:
                if a.name == old:
                    ed.add(f, sources[f].start(a), old, new)
                    if a.asname is None:
                        byfile[f].append(n)
        for f, names in byfile.items():
            s = sources[f]
            fns = [
                n
                for n in s.nodes
                if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
                and any(n.lineno < c.lineno <= n.end_lineno for c in names)
            ]
            if any(not any(fn.lineno < c.lineno <= fn.end_lineno for fn in fns) for c in names):
                for p in refs(s, old, None):
                    ed.add(f, p, old, new)
            for fn in fns:
                for p in refs(s, old, fn):
                    ed.add(f, p, old, new)
            if h == full and f.name == "__init__.py":
                for n in s.tree.body:
                    if isinstance(n, ast.Assign) and any(
                        isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets
                    ):
                        for c in ast.walk(n.value):
                            if isinstance(c, ast.Constant) and c.value == old:
                                ed.add(f, s.start(c) + 1, old, new)
        for f, name in aliases[h]:
            if old in sources[f].words:
                alias(f, sources[f], name, old, new, ed)
    return True


def alias(f, s, mod, old, new, ed):
    """`mod.old` and setattr(mod, "old")."""
    for n in s.nodes:
        if isinstance(n, ast.Attribute) and n.attr == old and isinstance(n.value, ast.Name) and n.value.id == mod:
            ed.add(f, s.end(n) - len(old), old, new)
        if isinstance(n, ast.Call) and len(n.args) >= 2 and isinstance(n.args[0], ast.Name) and n.args[0].id == mod:
            c = n.args[1]
            if isinstance(c, ast.Constant) and c.value == old:
                ed.add(f, s.start(c) + 1, old, new)


def find_def(src, qual):
    """Function node of `f` or `C.m`."""
    names = qual.split(".")
    body = src.tree.body
    for i, name in enumerate(names):
        node = next(
            (
                n
                for n in body
                if getattr(n, "name", None) == name
                and isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
            ),
            None,
        )
        if node is None:
            return None
        body = node.body
    return node


_IDX = {}


def index(sources):
    if id(sources) in _IDX:
        return _IDX[id(sources)]
    home, by_base, calls, froms, aliases = (
        {},
        defaultdict(list),
        defaultdict(list),
        defaultdict(list),
        defaultdict(list),
    )
    for f, s in sources.items():
        for n in s.classes:
            home.setdefault((modname(f), n.name), (f, n))
            for b in n.bases:
                b = b.value if isinstance(b, ast.Subscript) else b
                if isinstance(b, ast.Name):
                    by_base[b.id].append((f, n))
        for n in s.calls:
            fn = n.func.id if isinstance(n.func, ast.Name) else n.func.attr if isinstance(n.func, ast.Attribute) else ""
            calls[fn].append((f, n))
        for n in s.froms:
            froms[n.module].append((f, n))
            for a in n.names:
                aliases[f"{n.module}.{a.name}"].append((f, a.asname or a.name))
        for n in s.imps:
            for a in n.names:
                if a.asname:
                    aliases[a.name].append((f, a.asname))
    _IDX.clear()
    _IDX[id(sources)] = (home, by_base, calls, froms, aliases)
    return _IDX[id(sources)]


def subclasses(sources, mod, cls):
    """(file, class node) of a class and of all that inherit it, by name."""
    home, by_base, *_ = index(sources)
    out, seen, todo = [], set(), [cls]
    if (f"{P}.{mod}", cls) in home:
        out.append(home[f"{P}.{mod}", cls])
    while todo:
        c = todo.pop()
        if c in seen:
            continue
        seen.add(c)
        for f, n in by_base[c]:
            out.append((f, n))
            todo.append(n.name)
    return out


def member(kind, mod, qual, new, ed, sources):
    cls, old = qual.split(".")
    got = False
    for f, c in subclasses(sources, mod, cls):
        s = sources[f]
        for n in c.body:
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == old:
                ed.add(f, def_pos(s, n), old, new)
                got = True
            if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.target.id == old:
                ed.add(f, s.start(n.target), old, new)
                got = True
            if isinstance(n, ast.Assign):
                for t in n.targets:
                    if isinstance(t, ast.Name) and t.id == old:
                        ed.add(f, s.start(t), old, new)
                        got = True
        for n in ast.walk(c):
            if (
                isinstance(n, ast.Attribute)
                and n.attr == old
                and isinstance(n.value, ast.Name)
                and n.value.id in ("self", "cls", cls)
            ):
                ed.add(f, s.end(n) - len(old), old, new)
                got = True
        # docstring parameter
        d = (
            c.body[0]
            if c.body and isinstance(c.body[0], ast.Expr) and isinstance(c.body[0].value, ast.Constant)
            else None
        )
        if d is not None:
            seg = s.text[s.start(d) : s.end(d)]
            for m in re.finditer(rf":param {old}:", seg):
                ed.add(f, s.start(d) + m.start() + 7, old, new)
    # keywords of the constructor
    if kind == "field":
        for f, n in index(sources)[2][cls]:
            for k in n.keywords:
                if k.arg == old:
                    ed.add(f, sources[f].start(k), old, new)
    if not got:
        say("NOT FOUND", mod, qual)
    return got


def scoped(mod, what, new, ed, sources):
    fn, old = what.split(":")
    for f, s in sources.items():
        if modname(f) == f"{P}.{mod}":
            node = find_def(s, fn)
            if isinstance(node, ast.ClassDef):
                node = find_def(s, f"{fn}.__init__")
            if node is None:
                say("NOT FOUND", mod, what)
                return None
            b = bound(node)
            if old not in b:
                # in a comprehension or nested function
                hits = [
                    n
                    for n in ast.walk(node)
                    if isinstance(n, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
                    and old in comp_bound(n)
                ]
                hits += [
                    n
                    for n in ast.walk(node)
                    if n is not node and isinstance(n, (ast.FunctionDef, ast.Lambda)) and old in bound(n)
                ]
                if not hits:
                    say("NOT FOUND", mod, what)
                    return None
                for h in hits:
                    for p in refs(s, old, h):
                        ed.add(f, p, old, new)
                return node
            if new in b or any(isinstance(n, ast.Name) and n.id == new for n in ast.walk(node)):
                say("CLASH", mod, what, new)
                return None
            for p in refs(s, old, node):
                ed.add(f, p, old, new)
            for d in [node, *([find_def(s, fn.split(".")[0])] if "." in fn else [])]:
                if d and d.body and isinstance(d.body[0], ast.Expr) and isinstance(d.body[0].value, ast.Constant):
                    e = d.body[0]
                    seg = s.text[s.start(e) : s.end(e)]
                    for m in re.finditer(rf":param {old}:|``{old}``", seg):
                        ed.add(f, s.start(e) + m.start() + (7 if m[0].startswith(":") else 2), old, new)
            return node
    say("NO MODULE", mod)
    return None


ERR = re.compile(r"^(.+?):(\d+):(\d+):(\d+):(\d+): error: (.*)$")


def mypy():
    r = subprocess.run(
        [
            ".venv/bin/dmypy",
            "run",
            "--",
            "--show-column-numbers",
            "--show-error-end",
            "--no-pretty",
            "--no-error-summary",
        ],
        capture_output=True,
        text=True,
    )
    return r.stdout.splitlines()


def ancestors():
    up = defaultdict(set)
    for f in pyfiles():
        for n in ast.walk(ast.parse(f.read_text())):
            if isinstance(n, ast.ClassDef):
                for b in n.bases:
                    b = b.value if isinstance(b, ast.Subscript) else b
                    if isinstance(b, (ast.Name, ast.Attribute)):
                        up[n.name].add(b.id if isinstance(b, ast.Name) else b.attr)

    def all_of(c, seen=()):
        out = [c]
        for b in up[c]:
            if b not in seen:
                out += all_of(b, (*seen, c))
        return out

    return all_of


def fix_by_mypy(members, params):
    all_of = ancestors()
    byname = defaultdict(set)
    for (c, o), v in members.items():
        byname[o].add(v)
    kw = defaultdict(set)
    for (fn, o), v in params.items():
        names = fn.split(".")
        last = members.get((names[0], names[1])) if len(names) == 2 else None
        for name in {names[-1], last} - {None}:
            kw[name, o].add(v)
        if len(names) == 1 or names[-1] == "__init__":
            kw[names[0], o].add(v)
    for (c, o), v in members.items():
        kw[c, o].add(v)
        kw["replace", o].add(v)
    for turn in range(10):
        lines = mypy()
        if not lines:
            say("no output of mypy")
            continue
        ed = Edits()
        left = []
        cache = {}
        for l in lines:
            m = ERR.match(l)
            if not m:
                if ": note:" not in l:
                    left.append(l)
                continue
            f, l1, c1, l2, c2, text = Path(m[1]), int(m[2]), int(m[3]), int(m[4]), int(m[5]), m[6]
            src = cache.setdefault(f, Src(f))

            def pos(line, col):
                return src.starts[line - 1] + col

            a = re.search(r'has no attribute "(\w+)"', text)
            if a:
                head = text.split("has no")[0]
                names = [x.rsplit(".", 1)[-1] for x in re.findall(r"[\w.]+", head)]
                new = next((members[c, a[1]] for n in names for c in all_of(n) if (c, a[1]) in members), None)
                if new is None and "Module" not in head and len(byname[a[1]]) == 1:
                    new = next(iter(byname[a[1]]))
                if new is not None:
                    lo, hi = pos(l1, c1 - 1), pos(l2, c2) + len(a[1]) + 2
                    i = src.text.rfind("." + a[1], lo, hi)
                    if i < 0:
                        i = src.text.find("." + a[1], lo)
                    if i >= 0 and re.match(rf"\.{a[1]}\b", src.text[i:]):
                        ed.add(f, i + 1, a[1], new)
                        continue
            sup = re.search(r'"(\w+)" undefined in superclass', text)
            if sup and len(byname[sup[1]]) == 1:
                i = src.text.find("." + sup[1], pos(l1, c1 - 1))
                ed.add(f, i + 1, sup[1], next(iter(byname[sup[1]])))
                continue
            k = re.search(r'Unexpected keyword argument "(\w+)" for "([\w.]+)"(?: of "(\w+)")?', text)
            if k:
                old, callee, of = k[1], k[2], k[3]
                cand = (
                    kw[callee, old] | (kw[of, old] if of else set())
                    if not (callee == "replace" and of)
                    else {members[c, old] for c in all_of(of) if (c, old) in members} or kw[callee, old]
                )
                if len(cand) > 1 and of:
                    cand = {v for (fn, o), v in params.items() if o == old and fn.split(".")[0] in all_of(of)} or cand
                if len(cand) == 1:
                    new = next(iter(cand))
                    ok = False
                    for n in ast.walk(src.tree):
                        if (
                            isinstance(n, ast.Call)
                            and n.lineno <= l1 <= n.end_lineno
                            and (src.start(n) == pos(l1, c1 - 1) or n.lineno <= l1)
                        ):
                            exact = src.start(n) == pos(l1, c1 - 1)
                            fn = (
                                n.func.id
                                if isinstance(n.func, ast.Name)
                                else n.func.attr
                                if isinstance(n.func, ast.Attribute)
                                else ""
                            )
                            for x in n.keywords:
                                if x.arg == old and (exact or fn in (callee, of)):
                                    ed.add(f, src.start(x), old, new)
                                    ok = True
                    if ok:
                        continue
            left.append(l)
        if not ed.by:
            return left
        say(f"mypy turn {turn}: {ed.apply()} edits, {len(left)} left")
    return left


def main(tables):
    rows = []
    for t in tables:
        for l in open(t):
            l = l.rstrip("\n")
            if not l.strip() or l.startswith("#"):
                continue
            p = l.split("\t")
            if len(p) < 4:
                say("BAD LINE", l)
                continue
            rows.append([x.strip() for x in p[:4]])

    def phase(kinds, f):
        ed = Edits()
        sources = {x: Src(x) for x in pyfiles()}
        n = 0
        for kind, mod, old, new in rows:
            if kind in kinds and old != new:
                try:
                    f(kind, mod.removeprefix(P + "."), old, new, ed, sources)
                except Exception as e:
                    say("ERROR", kind, mod, old, new, repr(e))
        say(f"{kinds}: {ed.apply()} edits")

    # docs: full dotted names and `Old` of classes
    if "--no-locals" not in sys.argv:
        phase(("local", "param"), lambda k, m, o, n, ed, s: scoped(m, o, n, ed, s))
    if "--no-members" not in sys.argv:
        phase(("method", "field"), lambda k, m, o, n, ed, s: member(k, m, o, n, ed, s))
    if "--stop-before-mypy" in sys.argv:
        return
    members = {(o.split(".")[0], o.split(".")[1]): n for k, m, o, n in rows if k in ("method", "field")}
    params = {(o.split(":")[0].replace(".__init__", ""), o.split(":")[1]): n for k, m, o, n in rows if k == "param"}
    left = fix_by_mypy(members, params)
    Path("/tmp/rename-left.txt").write_text("\n".join(left))
    say(len(left), "errors left, in /tmp/rename-left.txt")
    if "--members-only" in sys.argv:
        return
    phase(("function", "constant", "class"), lambda k, m, o, n, ed, s: module_level(m, o, n, ed, s))
    texts(rows)


def texts(rows):
    """Dotted names, roles and backticks in docstrings, comments and docs."""
    full = {
        f"{P}.{m.removeprefix(P + '.')}.{o}": f"{P}.{m.removeprefix(P + '.')}.{n}"
        for k, m, o, n in rows
        if k in ("function", "constant", "class")
    }
    full |= {
        f"{P}.{m.removeprefix(P + '.')}.{o}": f"{P}.{m.removeprefix(P + '.')}.{o.split('.')[0]}.{n}"
        for k, m, o, n in rows
        if k in ("method", "field")
    }
    classes = {o: n for k, m, o, n in rows if k == "class"}
    if not full:
        return
    rx = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, sorted(full, key=len, reverse=True))) + r")(?!\w)")
    bt = (
        re.compile(r"(``?)(" + "|".join(map(re.escape, sorted(classes, key=len, reverse=True))) + r")((?:\.\w+)?``?)")
        if classes
        else None
    )
    docs = [*Path("docs").rglob("*.md"), *Path(".").glob("*.md")]
    for f in [*pyfiles(), *docs, Path("pyproject.toml")]:
        if f.name in ("rules.md", "CHANGELOG.md"):
            continue
        t = f.read_text()
        o = t
        t = rx.sub(lambda m: full[m[1]], t)
        if bt:
            t = bt.sub(lambda m: m[1] + classes[m[2]] + m[3], t)
        if t != o:
            f.write_text(t)


if __name__ == "__main__":
    main([a for a in sys.argv[1:] if not a.startswith("--")])
