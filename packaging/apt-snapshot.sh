#!/bin/sh
# Within the image: makes apt take Debian's packages as they were at a moment, so that an image can be built again.
#   apt-snapshot 20251101T000000Z     "": as they are today
set -eu
moment="${1:-}"
[ -n "$moment" ] || exit 0
case "$moment" in
  [0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]T[0-9][0-9][0-9][0-9][0-9][0-9]Z) ;;
  *) echo "SNAPSHOT=$moment: give a moment as 20251101T000000Z" >&2; exit 2 ;;
esac
# shellcheck source=/dev/null
. /etc/os-release
cat >/etc/apt/sources.list.d/debian.sources <<END
Types: deb
URIs: http://snapshot.debian.org/archive/debian/$moment
Suites: $VERSION_CODENAME $VERSION_CODENAME-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://snapshot.debian.org/archive/debian-security/$moment
Suites: $VERSION_CODENAME-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
# What was signed then has run out by now.
echo 'Acquire::Check-Valid-Until "false";' >/etc/apt/apt.conf.d/10snapshot
