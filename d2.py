from hud.judging.change_points import *
from hud.judging.change_points import levels as L, evidence as E
import numpy as np
for v in ([10]*100+[10.2]*100,[10.]*30+[20.]*4,[10,10,10,10,20,20,20,20]):
    y=np.log(np.array(v,float)); y-=np.median(y)
    d=L._short_deviation(y,5e-4); c=L.jumps(y,d); print(d,c, E._snapped(L._clipped(y,c,d),c,5e-4), E._select(L._clipped(y,c,d),c,5e-4))
    t=E._Table(L._clipped(y,c,d),c,5e-4); print(t.score([]),t.score([0]))
