import sys; sys.path.insert(0,'/work/h/judging')
from dev import *
import core
from hud.judging.change_points import detect as D, evidence as E
E._ONE,E._TWO,E._KEEP,D.C=14,26,14,3.0
K=core.CORE if sys.argv[1]=="core" else core.WIDE
KINDS.clear(); KINDS.update(K)
for k in sys.argv[2:]:
    for sg in SIGNALS:
        for i in range(40):
            s=series(k,sg,5000+i); y=np.log(np.array(s.values)); f=D.detect(y)
            bad=[x for x in f if not s.truth or min(abs(x-t) for t in s.truth)>3]
            mis=[t for t in s.truth if not f or min(abs(x-t) for x in f)>3]
            if bad or mis:
                y0=y-np.median(y); dv=D.short_deviation(y,5e-4);c=D.jumps(y0,dv)
                print(k,sg,i,s.size,s.truth,f,'dev %.4f'%dv, 'cand',c)
