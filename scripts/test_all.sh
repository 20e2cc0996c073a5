#!/usr/bin/env bash
# The suite in three passes side by side: what starts stations in real time, one test after the other, which waits more than it
# computes; stations in simulated time, to which a busy machine does nothing, and what asks a station and is patient; and
# everything else, on all cores.
#
#     scripts/test_all.sh ["MARKERS"]    e.g. "not slow"
#
# Linux shares its cores out among sessions first, and then among the processes of each; a node has a session of its own. So
# the second and the third pass are sessions that come last. What they print is shown when they are through; one line at the
# end counts all. The exit code is 0 only if all passed.
set -uo pipefail
cd "$(dirname "$0")/.."
only=${1:+($1) and }
results=$(mktemp -d)
beside=()
trap 'kill "${beside[@]}" 2> /dev/null && wait "${beside[@]}" 2> /dev/null; rm -rf "$results"' EXIT  # by TERM: what runs in the background ignores INT

pass() {  # NAME SHARE MARKERS OPTIONS...: beside this script, with less than its share of the cores (0 to 19, as with nice)
    local name=$1 share=$2 markers=$3
    LAST=$share setsid bash -c '[ ! -w /proc/self/autogroup ] || echo $LAST > /proc/self/autogroup; exec nice -n $LAST "$@"' \
        pass scripts/run_tests.sh -m "$only$markers" --junitxml="$results/$name.xml" "${@:4}" > "$results/$name.txt" 2>&1 &
    beside+=($!)
}

ros=$(grep -rlE 'mark\.ros\b' tests --include='test_*.py')  # no other file is read to find them
pass others 8 "not ros" -n $(($(nproc) < 8 ? $(nproc) : 8)) --dist worksteal
pass asked 3 "ros and (lockstep or patient)" $ros
echo "stations in real time below; all other tests beside them, in $results"
failed=0
scripts/run_tests.sh -m "${only}ros and not lockstep and not patient" --junitxml="$results/stations.xml" $ros || failed=$?
[ $failed -lt 2 ] || exit $failed  # interrupted, or not even begun
for pid in "${beside[@]}"; do (echo 0 > /proc/$pid/autogroup) 2> /dev/null; sleep 0.2; done  # last no more, one at a time
for pid in "${beside[@]}"; do wait "$pid" || failed=$?; done
cat "$results"/{asked,others}.txt
.venv/bin/python - "$results"/*.xml <<'END'
import sys
from collections import Counter
from xml.etree import ElementTree

counts = Counter()
for file in sys.argv[1:]:
    for suite in ElementTree.parse(file).iter("testsuite"):
        counts.update({name: float(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")})
        counts["again"] += len(suite.findall("testcase")) - float(suite.get("tests"))
passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
print(f"all passes: {passed:.0f} passed, {counts['failures']:.0f} failed, {counts['errors']:.0f} errors, "
      f"{counts['skipped']:.0f} skipped; {counts['again']:.0f} failed at first and ran again")
END
exit $failed
