#!/bin/sh
# Prints the path of a Chromium; installs it first as root with apt-get, unless BERTH_INSTALL=no.
set -e
find_chromium() {
	for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
		if command -v "$name"; then return 0; fi
	done
	return 1
}
find_chromium && exit 0
if [ "${BERTH_INSTALL-}" != no ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get install -y --no-install-recommends chromium fonts-dejavu-core ||
		{ apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }; } >&2
	find_chromium && exit 0
fi
echo "no Chromium: install it, as with 'apt install chromium', so that the page can be tested" >&2
exit 1
