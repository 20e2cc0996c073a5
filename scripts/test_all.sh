#!/usr/bin/env bash
# The suite in two passes side by side: what starts stations, two files at a time, which waits more than it computes; and
# with lower priority everything else, on all cores. Linux shares a core out among sessions first and then among the
# processes of each, and every node of a station has a session: so the second pass has one of its own, that comes last.
#
#     scripts/test_all.sh ["MARKERS"]    e.g. "not slow"
#
# The second pass is printed when it is through; one line at the end counts both. The exit code is 0 only if both passed.
set -uo pipefail
cd "$(dirname "$0")/.."
only=${1:+($1) and }
results=$(mktemp -d)
last='[ ! -w /proc/self/autogroup ] || echo 19 > /proc/self/autogroup; exec nice -n 15 "$@"'
setsid bash -c "$last" last scripts/run_tests.sh -m "${only}not ros" -n logical --maxprocesses 8 --dist worksteal \
    --junitxml="$results/others.xml" > "$results/others.txt" 2>&1 &
others=$!
trap 'kill $others 2> /dev/null && wait $others 2> /dev/null; rm -rf "$results"' EXIT  # by TERM: what runs in the background ignores INT
echo "stations below; all other tests beside them, in $results/others.txt"
failed=0
scripts/run_tests.sh -m "${only}ros" -n 2 --dist loadfile --no-loadscope-reorder --junitxml="$results/stations.xml" ||
    failed=$?
[ $failed -lt 2 ] || exit $failed  # interrupted, or not even begun
wait $others || failed=$?
cat "$results/others.txt"
.venv/bin/python - "$results"/*.xml <<'END'
import sys
from collections import Counter
from xml.etree import ElementTree

counts = Counter()
for file in sys.argv[1:]:
    for suite in ElementTree.parse(file).iter("testsuite"):
        counts.update({name: float(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")})
passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
print(f"both passes: {passed:.0f} passed, {counts['failures']:.0f} failed, {counts['errors']:.0f} errors, "
      f"{counts['skipped']:.0f} skipped")
END
exit $failed
