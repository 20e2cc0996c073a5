#!/usr/bin/env bash
# Adds the simulators of pyproject.toml to .venv, and the Vulkan that ManiSkill renders with. `make simulators`
set -euo pipefail
cd "$(dirname "$0")/.."
done=yes # to be tried again by the next make, where something is lacking
say() { printf '\033[1m%s\033[0m\n' "$*"; }

say "1/2 Vulkan, for ManiSkill"
# SAPIEN wants a newer Mesa than Debian 12's own; newer distributions have it.
vulkan() {
  if grep -q bookworm /etc/os-release; then
    echo "deb http://deb.debian.org/debian bookworm-backports main" >/etc/apt/sources.list.d/bookworm-backports.list
    apt-get update -qq && apt-get install -y -qq --no-install-recommends libvulkan1 mesa-vulkan-drivers/bookworm-backports
  else
    apt-get update -qq && apt-get install -y -qq --no-install-recommends libvulkan1 mesa-vulkan-drivers
  fi
}
lacking() {
  echo "  not installed; ManiSkill needs it: libvulkan1 and mesa-vulkan-drivers (on Debian 12 from bookworm-backports)"
  done=
}
new_enough() {
  ! grep -q bookworm /etc/os-release || dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null | grep -q bpo
}
libraries=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p || true)
if ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1 && [[ $libraries == *libvulkan.so.1* ]] && new_enough; then
  echo "  there is one"
elif [ "$(id -u)" = 0 ]; then
  vulkan || lacking
elif sudo -n true 2>/dev/null; then
  sudo bash -c "$(declare -f vulkan); vulkan" || lacking
else
  lacking
fi

say "2/2 Python packages (.venv)"
.venv/bin/python scripts/install.py simulators
echo "done. Next: .venv/bin/rlinf check sim maniskill"
[ -z "$done" ] || touch .venv/.simulators-done
