from sweep import *
for C,one,two,keep,mn in ((3.0,14.5,27,14.5,5),(3.0,14.5,27,14.5,7)):
    E._ONE,E._TWO,E._KEEP,D.C=one,two,keep,C
    E._MIN=mn
    print(C,one,two,keep,mn); both(seed=5000)
