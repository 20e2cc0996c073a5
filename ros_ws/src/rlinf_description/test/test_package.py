"""The checks that every package has; see rlinf_ros.package_checks."""

from pathlib import Path

from rlinf_ros.package_checks import PackageChecks


class TestPackage(PackageChecks):
    folder = Path(__file__).resolve().parents[1]
