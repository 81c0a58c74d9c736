"""Reads `go test -json`: prints a line a package, the output of what failed, and a count. A skipped test is a failure,
unless it says "on demand": it computes something for the documents that takes hours."""
import collections
import json
import re
import sys

TOLD = re.compile(r"\s*(?:[a-z_0-9]+\.go:\d+: )?((?:seed|measured|sampled by)\b.*)")
output = collections.defaultdict(list)
count = collections.Counter()
bad = []
for line in sys.stdin:
    try:
        e = json.loads(line)
    except ValueError:
        print(line, end="")
        bad.append("output that is no event")
        continue
    if e["Action"] == "build-output":
        print(e["Output"], end="")
        continue
    if e["Action"] == "build-fail":
        bad.append("build of " + e.get("ImportPath", "?"))
        continue
    key = (e.get("Package"), e.get("Test"))
    if e["Action"] == "output":
        output[key].append(e["Output"])
        said = TOLD.match(e["Output"])  # what a run used and what it found belongs in the log
        if said:
            print("   ", key[1], said[1])
        continue
    if e["Action"] not in ("pass", "fail", "skip"):
        continue
    if key[1] is None:
        if e["Action"] == "fail":
            bad.append(key[0])
            print("".join(output[key]), end="")
            for test in [k for k in output if k[0] == key[0] and k[1] is not None]:  # the process ended while it ran
                print(f"--- not ended: {test[0]} {test[1]}")
                print("".join(output.pop(test)), end="")
        if e["Action"] != "skip":
            print(f"{e['Action']:5} {key[0]}  {e.get('Elapsed', 0):.1f} s", flush=True)
        continue
    if e["Action"] == "skip" and any("on demand" in o for o in output[key]):
        output.pop(key)
        continue
    count[e["Action"]] += 1
    if e["Action"] in ("fail", "skip"):
        bad.append(f"{key[0]} {key[1]}")
        print(f"--- {e['Action']}: {key[0]} {key[1]}")
        print("".join(output[key]), end="")
    output.pop(key, None)

failed = count["fail"] + count["skip"] + (0 if count["fail"] + count["skip"] else len(bad))
for b in bad:
    print("not passed:", b, file=sys.stderr)
print(f"{count['pass']} passed, {failed} failed")
sys.exit(1 if bad or not count["pass"] else 0)
