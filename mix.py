import sys; sys.path.insert(0,'/work/h/judging')
from dev2 import *
for i in range(60):
    s=grouped("mixture",0.,7000+i); f=cp(s.values,groups=s.groups)
    if not f or abs(f[0]-s.truth[0])>10 or len(f)>1:
        g=np.array(s.groups); u=sorted(set(s.groups)); 
        print(s.truth,f,len(u),{x:(int((g[:s.truth[0]]==x).sum()),int((g[s.truth[0]:]==x).sum()), round(float(np.median(np.log(np.array(s.values))[g==x])),3)) for x in u})
