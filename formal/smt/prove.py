#!/usr/bin/env python3
"""Proves with z3 or cvc5 that the invariant of machine.py is inductive.

    prove.py [--solver z3|cvc5] [--profile honest|summed|receiver] [--vacuity]
    prove.py --drop GUARD[,GUARD] [--holds]   which queries fail without these guards
    prove.py --names                transitions, guards and conjuncts, to be compared with the Coq files

One query for each transition and conjunct, one for each conjunct at the start,
one for each property that the invariant must imply. Exit status 0: all proved (with
--drop and without --holds: one at least has a counterexample). `unknown` is
not proved, and not a counterexample.
"""

import argparse
import re
import subprocess
import sys
import time

import machine as m

SECONDS = 60  # bound of one query
COMMANDS = {"z3": ["z3", "-in"], "cvc5": ["cvc5", "--lang=smt2", "--incremental", f"--tlimit-per={SECONDS * 1000}"]}


def prelude(profile, dropped):
    lines = [f"(set-option :timeout {SECONDS * 1000})"] if dropped is not None else []
    lines += ["(set-logic ALL)"] + [f"(declare-sort {s} 0)" for s in m.SORTS.split()]
    lines += [f"(declare-datatypes (({n} 0)) ((" + " ".join(f"({c})" for c in cs.split()) + ")))" for n, cs in m.ENUMS.items()]
    lines += [f"(declare-fun {n} ({a}) {r})" for n, (a, r) in m.FIXED.items()]
    lines += [f"(declare-fun {n}{prime} ({a}) {r})" for n, (a, r) in m.STATE.items() for prime in ("", "!")]
    lines += [f"(declare-const on_{g} Bool)" for g in m.GUARDS]
    lines += [f"(assert {a})" for a in m.AXIOMS]
    return lines + given(profile, dropped or set())


def given(profile, dropped):
    """Which guards are there: those that the theorem asks for, one of each pair, less the dropped."""
    lines = [f"(assert on_{g})" for g in profile["needs"] if g not in dropped]
    lines += [f"(assert (or on_{a} on_{b}))" for a, b in profile["either"] if not {a, b} <= dropped]
    return lines + [f"(assert (not on_{g}))" for g in sorted(dropped)]


def transition(name):
    parameters, guards, changes = m.TRANSITIONS[name]
    lines = ["(declare-const %s)" % p.strip() for p in parameters.split(",") if p.strip()]
    lines += [f"(assert {g})" for g in guards] + [f"(assert {f})" for _, f in changes]
    changed = {field for field, _ in changes}
    for field in m.STATE:
        if field not in changed:
            binder, names = m.forall(field)
            lines.append(f"(assert (forall ({binder}) (= ({field}! {names}) ({field} {names}))))")
    return lines


def ask(solver, lines, questions):
    """The answers to questions that share a beginning."""
    text = list(lines)
    for q in questions:
        text += ["(push 1)", *q, "(check-sat)", "(pop 1)"]
    if solver != "z3":
        text = [t for t in text if not t.startswith("(set-option")]
    limit = SECONDS * (len(questions) + 1)
    try:
        done = subprocess.run(COMMANDS[solver], input="\n".join(text) + "\n", capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return ["timeout"] * len(questions)
    answers = [a for a in done.stdout.split("\n") if a]
    if any(a.startswith("(error") for a in answers) or (done.returncode and not answers):
        sys.exit(f"{solver}: {done.stdout[:400]} {done.stderr[:400]}")
    return (answers + ["none"] * len(questions))[:len(questions)]


def hold(conjuncts):
    return [f"(assert {f})" for f in conjuncts.values()]


def prove(solver, profile, dropped, vacuity):
    """Yields (where, what, answer, wanted)."""
    begin, inv = prelude(profile, dropped), profile["conjuncts"]
    if not dropped:
        start = begin + [f"(assert (and {m.INIT}))"]
        for name, answer in zip(inv, ask(solver, start, [[f"(assert (not {f}))"] for f in inv.values()])):
            yield "start", name, answer, "unsat"
        for name, answer in zip(profile["safe"], ask(solver, begin + hold(inv), [[f"(assert (not {f}))"] for f in profile["safe"].values()])):
            yield "invariant", name, answer, "unsat"
    for name in m.TRANSITIONS:
        body = transition(name)
        if dropped and not any(re.search(rf"\bon_{g}\b", line) for line in body + list(inv.values()) for g in dropped):
            continue  # the guard is not in it: as before
        questions = [[f"(assert (not {m.post(f)}))"] for f in inv.values()]
        for conjunct, answer in zip(inv, ask(solver, begin + hold(inv) + body, questions)):
            yield name, conjunct, answer, "unsat"
        if vacuity and not ("Honest" in profile["needs"] and name.startswith("Wild")):
            yield name, "possible", ask(solver, begin + hold(inv) + body, [[]])[0], "sat"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--solver", choices=COMMANDS, default="z3")
    p.add_argument("--profile", choices=m.PROFILES, default="honest")
    p.add_argument("--drop", default="")
    p.add_argument("--vacuity", action="store_true", help="also ask whether each transition is possible (z3 answers it)")
    p.add_argument("--holds", action="store_true", help="with --drop: a layer stands behind it, all must still be proved")
    p.add_argument("--names", action="store_true")
    a = p.parse_args()
    if a.names:
        for kind, names in (("transition", m.TRANSITIONS), ("guard", m.GUARDS), ("conjunct", m.DECODE | m.PREFILL)):
            print("\n".join(f"{kind} {n}" for n in names))
        return 0
    dropped = {g for g in a.drop.split(",") if g}
    if dropped - set(m.GUARDS):
        sys.exit(f"no such guard: {', '.join(sorted(dropped - set(m.GUARDS)))}")
    begun, count, wrong = time.monotonic(), 0, []
    for where, what, answer, wanted in prove(a.solver, m.PROFILES[a.profile], dropped, a.vacuity):
        count += 1
        if answer != wanted:
            wrong.append((where, what, answer))
    seconds = time.monotonic() - begun
    found = [w for w in wrong if w[2] == "sat"]
    print(f"{count} queries, {len(wrong)} not proved, {len(found)} with a counterexample, {seconds:.1f} s",
          " ".join(f"{w}/{c}:{r}" for w, c, r in wrong[:8]))
    return 0 if (found if dropped and not a.holds else not wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
