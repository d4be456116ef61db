"""Trainer state files written by MXNet 1.9.1: pickles, read without running code."""

import base64
import os
import pickle
import zlib

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.base import MXNetError
from mpgluon.gluon import nn


# A Dense(3) and a Dense(1) on the same two samples: the optimizer's options, the compressed file
# after three steps with a rate of 0.01, the weights at that point, and the weights after two more
# steps with 0.005.
def weights(first, second, bias, last, last_bias):
    """Returns the weights and biases of both layers, whose units have equal weights."""
    return [[first, second]] * 3, [bias] * 3, [[last] * 3], [last_bias]


SAVED = {
    "sgd": (
        {"momentum": 0.9},
        "c-n1}&x_PB6vubk!H(;$3M%MP@UROq2k|~5yD*2sAbRl@(l*-$(zK=x^FtQg!-|XVw$J~-v-lV2O%U{dP!LZ"
        "Zyy`)GolbOCCgqXW<h{@Pz9dh(FTZ*li*blM;RamGr&`o~op59L%*_bFc>mtQJH_!aKEOkSa~ao(5(vG>N>x"
        "i;A)Jq9wcyLZz1tsto&Idt9WuWyv+&(`_4dWU88+A|3Okvfb(;cNkZtY_9l~2dcxzDI;O6krw}avTv%`94u("
        "wu~b=Kg1KfeFYrTS-5@2)CxDeIbh|M|_p*%D>pMti<RS<76`h56?p_zy?>bZomvRB8vdjHqI+1WOH1a5VVQQ"
        "ejIOR>he}tfHhbc*@XjJ^wO#ef0@=6N+^TAfVXXs=B$ZV3PdxFGnJknrWLeTPC~~NLRnP`s>4W#+71HCt|u>"
        "WpQD3T@fH`UrXqR9WsxMK3l<+HSw7BVLMi`Tr?sDt&HJPqeQaOh*(y#(0BsdJWY*An>-SNVHbKbncmSn7meg"
        "zHOq;9P~a|HBxS{f>5{ci?F4#xkrSEnMuYDkoAC)QC_bOLhMwE#8TS7G%2oL$",
        weights(2.117488384, 2.628232956, 0.510744214, -0.918163061, -1.369359374),
        weights(-43.774303436, -62.569770813, -18.795467377, -84.590927124, -5.800834656),
    ),
    "adam": (
        {},
        "c-oDV&ui2`6vw;CYS!9Tp(=V5R9Y=XO9fH1oBCr9fj#&S4716Y3``~=KiJJmMGsaBk6t=@^zKFf29JV2P6{6"
        "DNkPz?sEAHBJ8iZE+6j+&d3o<M-#3}LUw?9@J~kLDV#XSSqkfN*WS%=Xig2c80Y>|VIq)__`=PikRs`(#Fn1"
        "Uc(CDO;C6vbk4s^1F;9=tRx!1ope&y_%G`(16;Hxop<xf+Y$gy$9)4h6*_Y7}*cfh5OC!5NKfK_4DMj%ZE(M"
        "k}l0+zjhYF>Tz!Q44lDcdu2eTkZ@|Gt_#=WVsx2>4XF<yr;s-j~0Xd$nufEA4b?kMxn^#d15UsA|K{ZeCngR"
        ";6OkApPa@Wo28cQaDkZzaUJgPx~a=_5{>T2mA6|%|4K;&A>!NVjDAp+z30Owe+I^!vu>^Y<t8>nXGDq#v=JO"
        ">2J1P9JvcxSLP}aV8~oQWl4UXjjprhAMOyBa>P>~rJ;ipBIMl|FTd(=9AU-~<qqi$qsR_Yp2QMh71znqt(r7"
        "Vntak2rYrJ=cMB$MM#DiPl*mXM4&_QH3L|3Em<C*|!6bIwh`4#36p{;SP^Y)Ru}^ZzjX3iq{Z1feVM;0sx`>"
        "CUxQlDBuR{`iLGHu1H~Dy51QulA`_Ffujy*aD1_@)z<Vvk;H?#H6=ixFOWVoNHjvuG;2hINn`OZ!3",
        weights(0.970035672, 0.970035851, -0.029963735, 0.970037997, -0.029975932),
        weights(0.960095167, 0.960095644, -0.039903272, 0.960101366, -0.039935637),
    ),
    "rmsprop": (
        {"centered": True},
        "c-p0uO>5LZ7{|Lw+pJ});tS|WP!C&>Vv8pWb+_%Z$l|iplV0L%GA09)Nth(;i!3OpYnQ19J6`+(Uc`e1Zwum"
        "0(379Qo&-H8p7i7-yVGWuKubH}&pesT^Lzd?VdmlF%i7dL+&Vm8nP6v~CV{~`F#)BZC40`a>RK_5ws`dkU*{"
        "dprfon>3^~izLxclFe9n&5TLA>aiK|yW{oDE*u`@#IpiCUg_Vv`#suYi~e%)5>$p~+2_RRi(I~R8fQilU<_W"
        "DvoK$llCBaniGC<%y?0<-enwR;_{G~TB<J23Rk?{0CW{h>JC9|@{%_xgWc_xj`g-WDh$;LFK<%%lKok8h^_!"
        "F?0Ks~?3!C4PUgnXs#lBwtJJgG@^M{R`V4OHyer4h(uXb!kQFNTBx@dVQ(g<%R70;9R<1fE?6@bT1NTbN$xs"
        "8g)H!<mMiUf_avs&^G{vx<!G>%Qt=v*er*s?i)5VLo5=jOu<xq4cgzzZ_hknN<++*KA0xvIw20Cqpmf~-S}i"
        "3T8QW*bo9_OK>)e9HfEBqDm$kGjCDjz*c^`Ph8vQ=7l6v(rm3ivjF2KEp3rBfQ|5E~E}Jzl^5TUcC`PL6MC1"
        "hN9)$+-kxTdnn+29dp%vu`BaxvjGMkG8I54uD^;?dh-*@>OJ1(5L4V`%U;F{WC(-v?Xupl<#=jW(>8ICL_Mz"
        "V&e4JkDFGp0e$M_AM?FPB=+cdoMQEEjuhKxElsjn%OJl+XVMnYo)n",
        weights(0.844820678, 0.844847679, -0.155087441, 0.845182002, -0.156996667),
        weights(0.708827376, 0.708938003, -0.290795922, 0.71025759, -0.298142254),
    ),
    "ftrl": (
        {},
        "c-oDV&ui2`6vw;C(p^idf<I6Xo;<Wr3W`1Zd-o7n#6Q4cl8nie$z++#u)CE)#UD_3w~pY|i{QnB;Gf`v2R(~"
        "Wr2m0e3xY4ZNt-Q!cEV#`X5RbEcOLV$n{WTQbCa=Um%TZ-lnf=)Ycixt(NQ^DX!Rc6n|Qmn_u4+OTNdVHDnr"
        "36w0*;c<}$Nz#vf@$i@*n~-wt;F=IjPqam>Uo$B(aj_e--mHuGaQZsz#76)&6&`10}EqtXh%8|yV@Aa_fMQ-"
        "L@&Ft)KiHlMf0$LBg_r-nY>d)m4D?sw<-e5BTy0pF-zxlsdL{jgtKs}mD9US6-%$el^PUA<13R9Eny-+zrut"
        "5b1m&_Vlsx3oi52Ch!uU)t9^;hRhyc@~--tpvWSl^1y0GAt^V1ynE+DH_`Doj+4BEDA-kAZDQvnAHPEDBRVX"
        "``u3$pMx{N*ir<vFg7tl=kK{S2oL@9K8v^{(j>(6L#mm@-dL#qx^RV1AqbZt8y2f1NR8AP0=#KEd9K$$bI|Z"
        "J8C<A|w{ZuS0>S%}i*SZ3Jvf&u;iRuvz%!moy8}x!iWH0TJQR`(YV&Y-OVWhplH1uRLHe`QuE1GTmJW#QlW8"
        "yRz`USINN-{xUKNFC`b<;o6@ztO`wzw1LnQ",
        weights(0.964100957, 0.968018711, -0.021849526, 0.971986353, -0.021965094),
        weights(0.538069308, 0.540370882, -0.01501005, 0.542285919, -0.015467281),
    ),
}


def trainer_of(name, options, values):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3, in_units=2), nn.Dense(1, in_units=3))
    net.initialize()
    for param, value in zip(net.collect_params().values(), values):
        param.set_data(nd.array(value))
    return net, gluon.Trainer(net.collect_params(), name, {"learning_rate": 0.01, **options})


def file_of(tmp_path, name):
    path = tmp_path / "net.states"
    path.write_bytes(zlib.decompress(base64.b85decode(SAVED[name][1])))
    return str(path)


def step(net, trainer):
    with autograd.record():
        loss = (net(nd.array([[1, 2], [3, 4]])) ** 2).mean()
    loss.backward()
    trainer.step(1)


@pytest.mark.parametrize("name", SAVED)
def test_mxnet_trainer_states_continue_training(name, tmp_path):
    options, _, before, after = SAVED[name]
    net, trainer = trainer_of(name, options, before)
    trainer.load_states(file_of(tmp_path, name))
    assert trainer.learning_rate == 0.005
    for _ in range(2):
        step(net, trainer)
    for param, expected in zip(net.collect_params().values(), after):
        np.testing.assert_allclose(param.data().asnumpy(), expected, rtol=1e-6, atol=1e-7)


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def states_of(trainer, tmp_path):
    trainer.save_states(str(tmp_path / "now.states"))
    return {
        name: array.asnumpy().tobytes()
        for name, array in nd.load(str(tmp_path / "now.states")).items()
    }


def test_other_pickles_are_refused_and_change_nothing(tmp_path):
    options, _, before, _ = SAVED["adam"]
    net, trainer = trainer_of("adam", options, before)
    step(net, trainer)
    kept = states_of(trainer, tmp_path)
    with open(file_of(tmp_path, "adam"), "rb") as file:
        whole = file.read()
    made, path = str(tmp_path / "made"), str(tmp_path / "other.states")
    others = [whole[:end] for end in range(1, len(whole))]
    others += [pickle.dumps(Runs(made)), pickle.dumps(({0: Runs(made)}, None))]
    others += [pickle.dumps(value) for value in (1, {}, ({}, 1), ({0: "a"}, None), [[1], [2]])]
    for data in others:
        with open(path, "wb") as file:
            file.write(data)
        with pytest.raises(MXNetError, match="other.states"):
            trainer.load_states(path)
    assert not os.path.exists(made)
    assert states_of(trainer, tmp_path) == kept


def test_states_of_another_optimizer_are_refused(tmp_path):
    _, trainer = trainer_of("sgd", {}, SAVED["adam"][2])
    with pytest.raises(MXNetError, match=r"with SGD and 4 parameters.* to the optimizer Adam"):
        trainer.load_states(file_of(tmp_path, "adam"))
    param = mx.gluon.Parameter("weight", shape=(3, 2), init="ones")
    param.initialize()
    trainer = gluon.Trainer([param], "adam")
    with pytest.raises(MXNetError, match="it has states of 4 parameters"):
        trainer.load_states(file_of(tmp_path, "adam"))
