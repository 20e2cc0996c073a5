#!/usr/bin/env bash
# The distribution's Chromium, in which the tests open the operator's page (docs/operator_page.md). `make browser`
set -euo pipefail
install=(apt-get install -y -qq --no-install-recommends chromium)
if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then
  exit 0
elif [ "$(id -u)" = 0 ]; then
  apt-get update -qq && "${install[@]}" || echo "browser: not installed; tests/ros/test_page_browser.py is skipped"
elif sudo -n true 2>/dev/null; then
  sudo apt-get update -qq && sudo "${install[@]}" || echo "browser: not installed; tests/ros/test_page_browser.py is skipped"
else
  echo "browser: not installed: sudo ${install[*]}. Without it tests/ros/test_page_browser.py is skipped"
fi
