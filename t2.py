import sys; sys.path.insert(0,'/work/h/judging')
from dev import *
import tests.judging.truth as T
from hud.judging.change_points import detect as D, evidence as E
from hud.judging.change_points.modes import gap
E._ONE,E._TWO=15,24; D.C=3
for share in (.3,.5):
  for stay in (0,.5,.8,.9):
    for g,sd in ((.03,.01),(.02,.005),(.03,.005),(.05,.01),(.1,.01)):
        fl=0; gg=0
        for i in range(60):
            ch=np.random.default_rng(i); n=200
            slow=np.zeros(n,bool); slow[0]=ch.random()<share
            for t in range(1,n): slow[t]= slow[t-1] if ch.random()<stay else ch.random()<share
            y=ch.normal(0,sd,n)+slow*g
            f=D.detect(y); fl+=len(f); gg+=gap(y,5e-4) is not None
        print(share,stay,g,sd,'false/1000 %.2f'%(fl/60/200*1000),'gap',gg)
