#!/usr/bin/env bash
# The suite in two passes: what starts no station on all cores at once, then what does, one test after the other.
#
#     scripts/test_all.sh ["MARKERS"]    e.g. "not slow"
#
# One line at the end counts both. The exit code is 0 only if both passed.
set -uo pipefail
cd "$(dirname "$0")/.."
only=${1:+($1) and }
told=$(mktemp -d)
trap 'rm -rf "$told"' EXIT
failed=0
scripts/run_tests.sh -m "${only}not ros" -n logical --maxprocesses 8 --dist worksteal --junitxml="$told/1.xml" || failed=$?
[ $failed -lt 2 ] || exit $failed  # interrupted, or not even begun
scripts/run_tests.sh -m "${only}ros" --junitxml="$told/2.xml" || failed=$?
.venv/bin/python - "$told"/*.xml <<'END'
import sys
from collections import Counter
from xml.etree import ElementTree

counts = Counter()
for file in sys.argv[1:]:
    for suite in ElementTree.parse(file).iter("testsuite"):
        counts.update({name: float(suite.get(name)) for name in ("tests", "failures", "errors", "skipped", "time")})
passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
print(f"both passes: {passed:.0f} passed, {counts['failures']:.0f} failed, {counts['errors']:.0f} errors, "
      f"{counts['skipped']:.0f} skipped in {counts['time'] / 60:.1f} minutes")
END
exit $failed
