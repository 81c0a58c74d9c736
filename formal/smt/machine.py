"""The transfer as a transition system in SMT-LIB, and its invariant.

This is Machine.v, Decode.v and Prefill.v once more, in many-sorted first-order
logic: the same transitions, guards and conjuncts under the same names, which
`check` compares. A formula speaks of the state before; `post` makes it speak of
the state after.
"""

import re

SORTS = "X G H P E N V"  # transfers, decode's pages, source pages, prefill nodes, nonces, decode nodes, bytes

ENUMS = {
    "DState": "DNone DGranted DFencing DRevoking DQuarantined DVerifying DDecoding DStopping DClosed",
    "PState": "PNone PJoining PActive PDraining PClosed",
    "Closed": "Quiet Failed Done",
    "WState": "WNone WFlying WOk WRefused WLost",
}

# What a transfer is made with, and what bytes can be.
FIXED = {
    "mine": ("X G", "Bool"), "peer": ("X", "P"), "nonce": ("X", "E"), "node": ("X", "N"), "share": ("X X", "Bool"),
    "val": ("X G", "V"), "zero": ("", "V"),
}
AXIOMS = [
    "(forall ((x X) (g G) (y X) (k G)) (=> (= (val x g) (val y k)) (and (= x y) (= g k))))",
    "(forall ((x X) (g G)) (distinct (val x g) zero))",
]

STATE = {
    "dst": ("X", "DState"), "own": ("G X", "Bool"), "grn": ("X G", "Bool"), "rd": ("X G X", "Bool"), "kd": ("X", "Bool"),
    "ver": ("X", "Bool"), "cont": ("G", "V"), "tag": ("G", "X"), "dead": ("X", "Bool"),
    "pst": ("X", "PState"), "inc": ("P", "E"), "used": ("P E", "Bool"), "past": ("X", "Bool"), "hold": ("H X", "Bool"),
    "kw": ("X H", "Bool"), "scont": ("H", "V"), "said": ("X", "Closed"),
    "ws": ("X G", "WState"), "from": ("X G", "H"), "way": ("X G V", "Bool"), "lb": ("X G", "Bool"), "lt": ("X G", "Bool"),
}

GUARDS = """FreshID Alloc DeferRelease Coverage FenceFirst FencePeer Checks KernelStop Holders Readers Tenant Blank Gate
Epochs LowMark Tombstone Silence Drain LostWrite SourceHold SourceKernel
FreshNonce CrashTears FenceHolds Ordered Reports Refusals Complete Honest""".split()


def post(f):
    """f, about the state after."""
    return re.sub(r"[A-Za-z]\w*", lambda m: m[0] + "!" if m[0] in STATE else m[0], f)


def on(guard, f):
    return f"(=> on_{guard} {f})"


def among(term, *values):
    return "(or false " + " ".join(f"(= {term} {v})" for v in values) + ")"


def isopen(d):
    return f"(not {among(d, 'DNone', 'DClosed')})"


def isgone(d):
    return among(d, "DFencing", "DVerifying", "DDecoding", "DStopping", "DClosed")


# ---- changes of the state: each is a formula that says all about one field after

def forall(field):
    """The binder and the argument list of a field: ((a0 X) ...) and 'a0 ...'."""
    names = [f"a{i}" for i in range(len(STATE[field][0].split()))]
    binder = " ".join(f"({n} {s})" for n, s in zip(names, STATE[field][0].split()))
    return binder, " ".join(names)


def define(field, body):
    binder, names = forall(field)
    return field, f"(forall ({binder}) (= ({field}! {names}) {body}))"


def at(field, args):
    _, names = forall(field)
    return "(and true " + " ".join(f"(= {n} {a})" for n, a in zip(names.split(), args.split())) + ")"


def put(field, args, value):
    _, names = forall(field)
    return define(field, f"(ite {at(field, args)} {value} ({field} {names}))")


def add(field, args):
    _, names = forall(field)
    return define(field, f"(or {at(field, args)} ({field} {names}))")


def cut(field, args):
    _, names = forall(field)
    return define(field, f"(and ({field} {names}) (not {at(field, args)}))")


def grows(field):
    binder, names = forall(field)
    return field, f"(forall ({binder}) (=> ({field} {names}) ({field}! {names})))"


def leaves(x):
    return [put("dst", x, "DClosed"), define("rd", f"(and (rd a0 a1 a2) (not (= a0 {x})))")]


def closes(x, outcome):
    return [put("said", x, outcome), put("pst", x, "PClosed")]


def behind(x):
    return on("Ordered", f"(forall ((a G) (b V)) (=> (= (ws {x} a) WOk) (not (way {x} a b))))")


def arrived(x):
    return on("Reports", f"(forall ((a G)) (=> (= (ws {x} a) WOk) (and (lb {x} a) (lt {x} a))))")


def covered(x):
    return on("Coverage", f"(and (= (said {x}) Done) (forall ((a G)) (=> (mine {x} a) (= (ws {x} a) WOk))))")


def drained(x):
    return [on("Drain", f"(forall ((a G)) (not (= (ws {x} a) WFlying)))"),
            on("LostWrite", f"(forall ((a G)) (not (= (ws {x} a) WLost)))")]


def gated(x, g):
    return on("Gate", f"(and (mine {x} {g}) (own {g} {x}) {among(f'(dst {x})', 'DGranted', 'DFencing')})")


CURRENT = on("Epochs", "(= (nonce x) (inc (peer x)))")
HEARD = ["(distinct (dst x) DNone)", "(= (pst x) PNone)", CURRENT, on("LowMark", "(not (past x))")]
CRASHED = "(and (= (node a0) d) (distinct (dst a0) DNone))"

# name: (parameters, guards, changes)
TRANSITIONS = {
    # decode
    "Submit": ("x X", [on("FreshID", "(= (dst x) DNone)"),
                       on("Alloc", "(forall ((a G) (y X)) (=> (mine x a) (not (own a y))))")],
               [put("dst", "x", "DGranted"), define("own", "(or (and (= a1 x) (mine x a0)) (own a0 a1))")]),
    "Grow": ("x X, g G, v V", [isopen("(dst x)"), on("Alloc", "(forall ((y X)) (not (own g y)))"), on("Blank", "(= v zero)")],
             [add("own", "g x"), add("grn", "x g"), put("cont", "g", "v"), put("tag", "g", "x")]),
    "Pin": ("y X, g G, x X", ["(= (dst y) DGranted)", "(own g x)", "(ver x)", "(= (node x) (node y))", on("Tenant", "(share x y)")],
            [add("rd", "y g x")]),
    "Revoke": ("x X", ["(= (dst x) DGranted)"], [put("dst", "x", "DRevoking")]),
    "Quarantine": ("x X", ["(= (dst x) DRevoking)"], [put("dst", "x", "DQuarantined")]),
    "HearClosed": ("x X", [among("(dst x)", "DGranted", "DFencing", "DRevoking", "DQuarantined"),
                           on("DeferRelease", f"(and (distinct (said x) Quiet) {behind('x')})")], leaves("x")),
    "HearDone": ("x X", ["(= (dst x) DGranted)", covered("x"), behind("x"), arrived("x")], [put("dst", "x", "DFencing")]),
    "HearDrained": ("x X", ["(= (dst x) DGranted)", covered("x"), behind("x"), arrived("x")], [put("dst", "x", "DVerifying")]),
    "FenceProved": ("x X", ["(= (dst x) DFencing)", on("FenceFirst", "(dead x)")], [put("dst", "x", "DVerifying")]),
    "DropFenced": ("x X", [among("(dst x)", "DGranted", "DRevoking", "DQuarantined"), on("FencePeer", "(dead x)")], leaves("x")),
    "VerifyOK": ("x X", ["(= (dst x) DVerifying)", on("Checks", "(forall ((a G)) (=> (mine x a) (and (= (cont a) (val x a)) (= (tag a) x))))")],
                 [put("dst", "x", "DDecoding"), add("ver", "x")]),
    "VerifyBad": ("x X", ["(= (dst x) DVerifying)"], leaves("x")),
    "StopVerify": ("x X", ["(= (dst x) DVerifying)"], [put("dst", "x", "DStopping")]),
    "StartKernel": ("x X", ["(= (dst x) DDecoding)"], [add("kd", "x")]),
    "KernelD": ("x X, g G", ["(kd x)", "(or (mine x g) (grn x g))"], [put("cont", "g", "(val x g)")]),
    "EndKernel": ("x X", [], [cut("kd", "x")]),
    "Stop": ("x X", ["(= (dst x) DDecoding)"], [put("dst", "x", "DStopping")]),
    "Release": ("x X", [among("(dst x)", "DDecoding", "DStopping"), on("KernelStop", "(not (kd x))")], leaves("x")),
    "FreePage": ("g G, x X", ["(own g x)", "(= (dst x) DClosed)", on("Holders", "(not (kd x))"),
                              on("Readers", "(forall ((y X) (z X)) (not (rd y g z)))")], [cut("own", "g x")]),
    "Fence": ("", [], [grows("dead")]),
    "CrashD": ("d N", [on("CrashTears", f"(forall ((a0 X)) (=> {CRASHED} (dead! a0)))")],
               [grows("dead"), define("dst", f"(ite {CRASHED} DClosed (dst a0))"), define("own", "(and (own a0 a1) (distinct (node a1) d))"),
                define("rd", "(and (rd a0 a1 a2) (distinct (node a0) d))"), define("kd", "(and (kd a0) (distinct (node a0) d))")]),
    # prefill
    "HearGrant": ("x X", HEARD, [put("pst", "x", "PJoining")]),
    "CloseNew": ("x X", HEARD, closes("x", "Failed")),
    "Admit": ("x X", ["(= (pst x) PJoining)"], [put("pst", "x", "PActive")]),
    "TakeSource": ("x X, h H", ["(forall ((y X)) (not (hold h y)))"], [add("hold", "h x"), add("kw", "x h")]),
    "KernelP": ("x X, h H, v V", ["(kw x h)"], [put("scont", "h", "v")]),
    "Post": ("x X, g G, h H", [on("Silence", "(= (pst x) PActive)"), "(mine x g)", "(= (ws x g) WNone)", "(hold h x)",
                               on("Complete", "(= (scont h) (val x g))")],
             [put("ws", "x g", "WFlying"), put("from", "x g", "h"), cut("kw", "x h")]),
    "EndP": ("x X", ["(= (pst x) PActive)"], [put("pst", "x", "PDraining")]),
    "CloseFailed": ("x X", [among("(pst x)", "PJoining", "PActive", "PDraining"), *drained("x")], closes("x", "Failed")),
    "CloseDone": ("x X", ["(= (pst x) PActive)", *drained("x")], closes("x", "Done")),
    "CloseSilent": ("x X", [among("(pst x)", "PJoining", "PActive", "PDraining")], [put("pst", "x", "PClosed")]),
    "Pass": ("x X", [], [add("past", "x")]),
    "Forget": ("x X", ["(= (pst x) PClosed)", on("Tombstone", "(past x)")], [put("pst", "x", "PNone")]),
    "StopP": ("x X", [], [define("kw", "(and (kw a0 a1) (distinct a0 x))")]),
    "FreeSource": ("x X, h H", ["(hold h x)", on("SourceHold", "(forall ((a G)) (=> (= (ws x a) WFlying) (distinct (from x a) h)))"),
                                on("SourceKernel", "(not (kw x h))")], [define("hold", "(and (hold a0 a1) (distinct a0 h))")]),
    "CrashP": ("p P, e E", [on("FreshNonce", "(not (used p e))")],
               [put("inc", "p", "e"), add("used", "p e"), define("past", "(and (past a0) (distinct (peer a0) p))"),
                define("pst", "(ite (= (peer a0) p) PNone (pst a0))")]),
    # writes
    "Leave": ("x X, g G, v V", ["(= (ws x g) WFlying)", "(= v (scont (from x g)))"], [add("way", "x g v")]),
    "LandBody": ("x X, g G, v V", ["(way x g v)", on("FenceHolds", "(not (dead x))"), gated("x", "g")], [put("cont", "g", "v"), add("lb", "x g")]),
    "LandTag": ("x X, g G, v V", ["(way x g v)", on("FenceHolds", "(not (dead x))"), gated("x", "g")], [put("tag", "g", "x"), add("lt", "x g")]),
    "Vanish": ("x X, g G, v V", [], [cut("way", "x g v")]),
    "ReportOK": ("x X, g G", ["(= (ws x g) WFlying)"], [put("ws", "x g", "WOk")]),
    "ReportRefused": ("x X, g G", ["(= (ws x g) WFlying)", on("Refusals", "(forall ((b V)) (not (way x g b)))")], [put("ws", "x g", "WRefused")]),
    "ReportLost": ("x X, g G", ["(= (ws x g) WFlying)"], [put("ws", "x g", "WLost")]),
    # a sender that is not ours
    "WildWrite": ("x X, g G, v V", ["(not on_Honest)"], [add("way", "x g v")]),
    "WildClosed": ("x X, c Closed", ["(not on_Honest)"], [put("said", "x", "c")]),
}

# The invariant. Decode's part holds whatever prefill does.
DECODE = {
    "ownfun": "(forall ((g G) (x X) (y X)) (=> (and (own g x) (own g y)) (= x y)))",
    "owner": "(forall ((g G) (x X)) (=> (own g x) (and (distinct (dst x) DNone) (or (mine x g) (grn x g)))))",
    "keep": f"(forall ((x X) (g G)) (=> (and {isopen('(dst x)')} (or (mine x g) (grn x g))) (own g x)))",
    "grown": "(forall ((x X) (g G)) (=> (grn x g) (and (distinct (dst x) DNone) (not (mine x g)))))",
    "kernel": "(forall ((x X) (g G)) (=> (and (kd x) (or (mine x g) (grn x g))) (own g x)))",
    "stops": on("KernelStop", "(forall ((x X)) (=> (kd x) (or (= (dst x) DDecoding) (= (dst x) DStopping))))"),
    "vers": f"(forall ((x X)) (=> (ver x) {among('(dst x)', 'DDecoding', 'DStopping', 'DClosed')}))",
    "runs": "(forall ((x X)) (=> (= (dst x) DDecoding) (ver x)))",
    "page": "(forall ((g G) (x X)) (=> (and (own g x) (ver x) (mine x g)) (and (= (cont g) (val x g)) (= (tag g) x))))",
    "blank": "(forall ((g G) (x X)) (=> (and (own g x) (grn x g)) (and (or (= (cont g) (val x g)) (= (cont g) zero)) (= (tag g) x))))",
    "reader": "(forall ((y X) (g G) (x X)) (=> (rd y g x) (and (own g x) (ver x) (share x y) (= (node x) (node y)))))",
    "reads": f"(forall ((y X) (g G) (x X)) (=> (rd y g x) {isopen('(dst y)')}))",
}
OVER = "(distinct (nonce x) (inc (peer x)))"
PREFILL = {
    "pstart": "(forall ((x X)) (=> (distinct (pst x) PNone) (and (= (nonce x) (inc (peer x))) (distinct (dst x) DNone))))",
    "spent": "(forall ((p P)) (used p (inc p)))",
    "wrote": "(forall ((x X) (g G)) (=> (distinct (ws x g) WNone) (and (mine x g) (distinct (dst x) DNone) (used (peer x) (nonce x)))))",
    "wrotep": f"(forall ((x X) (g G)) (=> (distinct (ws x g) WNone) (or {among('(pst x)', 'PActive', 'PDraining', 'PClosed')} (past x) {OVER})))",
    "fly": "(forall ((x X) (g G)) (=> (= (ws x g) WFlying) (and (hold (from x g) x) (= (scont (from x g)) (val x g)))))",
    "still": "(forall ((x X) (g G) (y X)) (=> (= (ws x g) WFlying) (not (kw y (from x g)))))",
    "kernelp": "(forall ((x X) (h H)) (=> (kw x h) (hold h x)))",
    "wayp": f"(forall ((x X) (g G) (v V)) (=> (way x g v) (and (= v (val x g)) {among('(ws x g)', 'WFlying', 'WOk', 'WLost')})))",
    "promise": "(forall ((x X) (g G)) (=> (distinct (said x) Quiet) (and (distinct (ws x g) WFlying) (distinct (ws x g) WLost))))",
    "kept": f"(forall ((x X)) (=> (distinct (said x) Quiet) (and (distinct (dst x) DNone) (used (peer x) (nonce x)) (or (= (pst x) PClosed) (and (= (pst x) PNone) (or (past x) {OVER}))))))",
    "gone": f"(forall ((x X)) (=> {isgone('(dst x)')} (or (distinct (said x) Quiet) (dead x))))",
    "quiet": f"(forall ((x X) (g G) (v V)) (=> (and {isgone('(dst x)')} (way x g v)) (dead x)))",
    "heard": on("Reports", f"(forall ((x X) (g G)) (=> (and {among('(dst x)', 'DFencing', 'DVerifying')} (mine x g)) (and (lb x g) (lt x g))))"),
    "landb": "(forall ((x X) (g G)) (=> (lb x g) (and (distinct (dst x) DNone) (mine x g) (=> (own g x) (= (cont g) (val x g))))))",
    "landt": "(forall ((x X) (g G)) (=> (lt x g) (and (distinct (dst x) DNone) (mine x g) (=> (own g x) (= (tag g) x)))))",
}
# What is left of it where the bytes of a write are not believed, but verified.
SUMMED = {k: PREFILL[k] for k in "pstart spent wrote wrotep promise kept gone quiet".split()} | {
    "wayw": f"(forall ((x X) (g G) (v V)) (=> (way x g v) {among('(ws x g)', 'WFlying', 'WOk', 'WLost')}))",
}
# hold is a function in Machine.v and a relation here, so that no sort is a function of itself.
ONLY_HERE = {"holdfun": "(forall ((h H) (x X) (y X)) (=> (and (hold h x) (hold h y)) (= x y)))"}

INIT = """(forall ((x X)) (= (dst x) DNone)) (forall ((g G) (x X)) (not (own g x))) (forall ((x X) (g G)) (not (grn x g)))
(forall ((y X) (g G) (x X)) (not (rd y g x))) (forall ((x X)) (not (kd x))) (forall ((x X)) (not (ver x))) (forall ((x X)) (= (pst x) PNone))
(forall ((p P)) (used p (inc p))) (forall ((x X) (h H)) (not (kw x h))) (forall ((x X)) (= (said x) Quiet))
(forall ((x X) (g G)) (= (ws x g) WNone)) (forall ((x X) (g G) (v V)) (not (way x g v))) (forall ((x X) (g G)) (not (lb x g)))
(forall ((x X) (g G)) (not (lt x g))) (forall ((h H) (x X) (y X)) (=> (and (hold h x) (hold h y)) (= x y)))"""

SAFE = {
    "NoLeak": """(forall ((y X) (g G)) (=> (= (dst y) DDecoding) (and (=> (mine y g) (= (cont g) (val y g)))
        (=> (grn y g) (or (= (cont g) (val y g)) (= (cont g) zero)))
        (forall ((x X)) (=> (rd y g x) (and (share x y) (or (= (cont g) (val x g)) (and (grn x g) (= (cont g) zero)))))))))""",
    "NoFalseAlarm": """(forall ((y X) (g G)) (=> (= (dst y) DDecoding) (and (=> (or (mine y g) (grn y g)) (= (tag g) y))
        (forall ((x X)) (=> (rd y g x) (= (tag g) x))))))""",
    "OneOwner": DECODE["ownfun"],
}
SAFE_HONEST = SAFE | {
    "FencedReuse": "(forall ((x X) (g G) (v V)) (=> (and (way x g v) (not (dead x))) (own g x)))",
    "ClosedMeansClosed": """(forall ((x X) (g G)) (=> (distinct (said x) Quiet) (and (distinct (ws x g) WFlying)
        (forall ((v V)) (=> (way x g v) (= (ws x g) WOk))))))""",
    "SourceHeld": """(forall ((x X) (g G)) (=> (= (ws x g) WFlying) (and (hold (from x g) x) (= (scont (from x g)) (val x g))
        (forall ((y X)) (not (kw y (from x g)))))))""",
    "NoStaleKernel": """(and (forall ((x X) (g G)) (=> (and (kd x) (or (mine x g) (grn x g))) (own g x)))
        (forall ((x X) (h H)) (=> (kw x h) (hold h x))))""",
}

EITHER = [("Checks", "Reports"), ("KernelStop", "Holders")]  # one of each pair is enough
UNUSED = {"FenceFirst", "Gate"}  # second layers that the honest theorem does without

PROFILES = {
    # our sender: no page is tagged or summed, unless reports cannot be trusted
    "honest": dict(conjuncts=DECODE | PREFILL | ONLY_HERE, safe=SAFE_HONEST,
                   needs=[g for g in GUARDS if g not in UNUSED and not any(g in pair for pair in EITHER)], either=EITHER),
    # our sender, but its source pages may be anything: what arrives is verified
    "summed": dict(conjuncts=DECODE | SUMMED, safe=SAFE | {k: SAFE_HONEST[k] for k in ("FencedReuse", "ClosedMeansClosed")},
                   needs=[g for g in GUARDS if g not in UNUSED | {"SourceHold", "SourceKernel", "Complete", "Reports", "KernelStop", "Holders"}],
                   either=[("KernelStop", "Holders")]),
    # any sender: the receiver places, and what was placed is verified
    "receiver": dict(conjuncts=DECODE, safe=SAFE, needs=["FreshID", "Alloc", "Blank", "Tenant", "Readers", "Gate", "Checks"],
                     either=[("KernelStop", "Holders")]),
}
