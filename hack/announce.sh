#!/bin/sh
# Names the programs that tests miss on this machine, before make test installs them, or skips what needs them.
set -eu
missing=
find_any() { for name in "$@"; do command -v "$name" >/dev/null && return 0; done; return 1; }
find_any chromium chromium-browser google-chrome google-chrome-stable chrome || missing="$missing chromium"
for tool in containerd runc ip; do find_any $tool || missing="$missing $tool"; done
[ -x /usr/lib/cni/bridge ] || missing="$missing containernetworking-plugins"
[ -x /bin/busybox ] || missing="$missing busybox-static"
[ -n "$missing" ] || exit 0
if [ "${BERTH_INSTALL-}" = no ]; then
	echo "==> missing:$missing: tests that need them are skipped, because BERTH_INSTALL=no"
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "==> missing:$missing: tests install them with apt-get; BERTH_INSTALL=no skips these tests instead"
else
	echo "==> missing:$missing: tests that need them are skipped; install them, or run as root on a machine with apt-get"
fi
