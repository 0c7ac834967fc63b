"""Move modules by the rows of kind `module`; rewrite imports, dotted names and paths."""
import re, subprocess, sys
from pathlib import Path
P='airflow_provider_cdc'
moves={}
for l in open('/tmp/all.tsv'):
    p=l.rstrip('\n').split('\t')
    if p[0]=='module': moves[p[2]]=p[3].split()[0]
new_set=set(moves.values())
def path(m): return P+'/'+m.replace('.','/')+'.py'
for o,n in moves.items():
    assert Path(path(o)).exists(),o
    assert not Path(path(n)).exists() or n in moves,n
# by parent
files=[f for d in (P,'tests','bench','dags','docs') for f in sorted(Path(d).rglob('*')) if f.suffix in ('.py','.md','.toml','.yaml','.yml','.sql') and '__pycache__' not in f.parts]+[Path('pyproject.toml'),Path('Makefile'),Path('README.md'),Path('CONTRIBUTING.md'),Path('requirements')]
files=[f for f in files if f.is_file() and f.name!='CHANGELOG.md']
byparent={}
for o,n in moves.items():
    byparent.setdefault(o.rpartition('.')[0],{})[o.rpartition('.')[2]]=n.rpartition('.')[2]
dot=re.compile(r'(?<![\w.])'+P+r'\.('+'|'.join(sorted(map(re.escape,moves),key=len,reverse=True))+r')(?!\w)')
pth=re.compile(r'(?<![\w])('+'|'.join(sorted((re.escape(o.replace('.','/')) for o in moves),key=len,reverse=True))+r')\.py\b')
tpth=re.compile(r'tests/('+'|'.join(sorted((re.escape((o.rpartition('.')[0].replace('.','/')+'/test_'+o.rpartition('.')[2]).lstrip('/')) for o in moves),key=len,reverse=True))+r')\.py\b')
tmoves={}
for o,n in moves.items():
    a=f"tests/{o.rpartition('.')[0].replace('.','/')}/test_{o.rpartition('.')[2]}.py"; b=f"tests/{n.rpartition('.')[0].replace('.','/')}/test_{n.rpartition('.')[2]}.py"
    if Path(a).exists() and not Path(b).exists(): tmoves[a]=b
frm=re.compile(r'^(\s*)from '+P+r'((?:\.\w+)*) import (\([^)]*\)|[^\n]*)$',re.M)
report=[]
for f in files:
    s=o_=f.read_text()
    if f.suffix=='.py':
        uses=[]
        def fix(m):
            parent=m[2].lstrip('.')
            names=byparent.get(parent)
            if not names: return m[0]
            body=m[3]
            def one(x):
                w=x[1]
                if w not in names or re.match(r'\s+as\b',body[x.end():]): 
                    return names.get(w,w) if w in names else w
                uses.append((w,names[w])); return names[w]
            body=re.sub(r'(?<![\w])(\w+)(?!\w)',lambda x: one(x) if not re.search(r'\bas\s+$',body[:x.start()]) else x[1],body)
            return f'{m[1]}from {P}{m[2]} import {body}'
        s=frm.sub(fix,s)
        for w,n in uses:
            # module used as `w.attr`, setattr(w, ...), bare argument
            rest=re.sub(r'',"",s)
            s2=re.sub(rf'(?<![\w.\'"`/]){w}(?=\.\w)(?!\.py\b|\.toml\b|\.md\b)',n,s)
            s2=re.sub(rf'(?<=[(,\[] ){w}(?=[,)\]])|(?<=[(\[]){w}(?=[,)\]])',n,s2)
            s=s2; report.append((str(f),w,n))
    s=dot.sub(lambda m:P+'.'+moves[m[1]],s)
    s=pth.sub(lambda m:moves[m[1].replace('/','.')].replace('.','/')+'.py',s)
    for a,b in tmoves.items(): s=re.sub(re.escape(a)+r'\b',b,s)
    if s!=o_: f.write_text(s)
for o,n in moves.items(): subprocess.run(['git','mv',path(o),path(n)],check=True)
for a,b in tmoves.items(): subprocess.run(['git','mv',a,b],check=True)
for r in report: print(*r)
