import sys; sys.path.insert(0,'/work/h/judging')
from dev import *
import core
from hud.judging.change_points import detect as D, evidence as E
KINDS.clear(); KINDS.update(core.CORE)
D.C=3
for k,sg,i in (("gaussian","two steps",2),("outliers","two steps",7),("gaussian","step",16)):
    s=series(k,sg,5000+i); y=np.log(np.array(s.values)); y=y-np.median(y)
    dv=D.short_deviation(y,5e-4); c=D.jumps(y,dv); cl=D.clip(y,c,dv)
    e=[0,*s.truth,200]; print(s.truth,[round(float(np.mean(cl[a:b])),4) for a,b in zip(e,e[1:])], [round(float(np.std(cl[a:b])),4) for a,b in zip(e,e[1:])])
    cand=list(s.truth)
    T=E._Table(cl,cand)
    def sc(cols):
        P=E._Table(cl,cand)
        t=P.products[:,0,0]
        if cols:
            q=[x+1 for x in cols]; t=t-np.einsum("gi,gi->g",P.products[:,0,q],np.linalg.solve(P.products[:,q][:,:,q],P.products[:,0,q][:,:,None])[:,:,0])
        f=-199*np.log(t)-P.determinants
        return f.max(), int(f.argmax()), np.round(f-f.max(),1)
    print(sc([])); 
    for j in range(len(cand)): print(j,sc([j])[:2])
    print(sc(list(range(len(cand)))))
